//! One value of a TOML file, set where it stands: the rest of the text, comments and order with it, stays. What is written in
//! a form that this does not know is refused, since the outcome is read again and compared.

use std::ops::Range;
use toml::de::{DeTable, DeValue};
use toml::{Table, Value};

/// The text with a value (as TOML) at a place: keys from the outermost table inwards.
///
/// # Errors
/// It is no TOML, or the value cannot be set without changing others; in words.
pub fn set(text: &str, place: &[&str], value: &str) -> Result<String, String> {
    let broken = |error: toml::de::Error| error.to_string();
    let mut wanted: Table = text.parse().map_err(broken)?;
    let parsed: Table = format!("x = {value}").parse().map_err(broken)?;
    let shown = place.join(".");
    let refused = || {
        format!(
            "{shown} cannot be set where it stands without changing other keys; remove it, or write it as {shown} = {value}"
        )
    };
    put(&mut wanted, place, parsed["x"].clone()).ok_or_else(refused)?;
    let edited = edited(text, place, value).ok_or_else(refused)?;
    let found: Table = edited.parse().map_err(|_| refused())?;
    if found == wanted { Ok(edited) } else { Err(refused()) }
}

/// The value in the parsed table, where it is to stand.
fn put(table: &mut Table, place: &[&str], value: Value) -> Option<()> {
    let (last, tables) = place.split_last()?;
    let mut at = table;
    for key in tables {
        at = at.entry((*key).to_string()).or_insert_with(|| Value::Table(Table::new())).as_table_mut()?;
    }
    at.insert((*last).to_string(), value);
    Some(())
}

fn edited(text: &str, place: &[&str], value: &str) -> Option<String> {
    let root = DeTable::parse(text).ok()?;
    let mut table = root.get_ref();
    // The innermost table in braces that holds the place.
    let mut braces: Option<Range<usize>> = None;
    for (depth, key) in place.iter().enumerate() {
        let Some((_, found)) = table.iter().find(|(name, _)| name.get_ref() == key) else {
            let rest = place[depth..].join(".");
            return Some(match braces {
                Some(span) => within(text, &span, &rest, value),
                None => beneath(text, place, value),
            });
        };
        if depth + 1 == place.len() {
            return Some(replaced(text, found.span(), value));
        }
        let DeValue::Table(inner) = found.get_ref() else { return None };
        if text.get(found.span())?.starts_with('{') {
            braces = Some(found.span());
        }
        table = inner;
    }
    None
}

fn replaced(text: &str, span: Range<usize>, value: &str) -> String {
    format!("{}{value}{}", &text[..span.start], &text[span.end..])
}

/// First in a table in braces.
fn within(text: &str, span: &Range<usize>, key: &str, value: &str) -> String {
    let begin = span.start + 1;
    let is_empty = text[begin..span.end].trim_start().starts_with('}');
    let comma = if is_empty { " " } else { "," };
    replaced(text, begin..begin, &format!(" {key} = {value}{comma}"))
}

/// First under the heading of its table, or under a new one at the end; above all headings where it has none.
fn beneath(text: &str, place: &[&str], value: &str) -> String {
    let (tables, key) = (&place[..place.len() - 1], place[place.len() - 1]);
    let line = format!("{key} = {value}\n");
    let heading = format!("[{}]", tables.join("."));
    let is_heading = |line: &str| line.split('#').next().is_some_and(|before| before.trim() == heading);
    let (mut at, mut first) = (0, None);
    for text_line in text.split_inclusive('\n') {
        if first.is_none() && text_line.trim_start().starts_with('[') {
            first = Some(at);
        }
        at += text_line.len();
        if !tables.is_empty() && is_heading(text_line) {
            let line = if text_line.ends_with('\n') { line } else { format!("\n{line}") };
            return replaced(text, at..at, &line);
        }
    }
    let broken = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
    if !tables.is_empty() {
        return format!("{text}{broken}\n{heading}\n{line}");
    }
    match first {
        // Remarks on the first heading stay with it.
        Some(first) => {
            let before = text[..first].split_inclusive('\n').rev();
            let remarks = before.take_while(|line| line.trim().is_empty() || line.trim_start().starts_with('#'));
            let at = first - remarks.map(str::len).sum::<usize>();
            replaced(text, at..at, &line)
        }
        None => format!("{text}{broken}{line}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_set_where_it_stands_and_the_rest_stays() {
        let cases = [
            // There already: bare, in braces, with a remark behind it.
            ("a = 1 # one\nb = 2\n", &["a"][..], "a = 9 # one\nb = 2\n"),
            ("[t]\na = { value = 1, source = \"x\" } # y\n", &["t", "a"], "[t]\na = 9 # y\n"),
            ("[t]\nin = { b = 2, a = 1 }\n", &["t", "in", "a"], "[t]\nin = { b = 2, a = 9 }\n"),
            ("t.a = 1\n", &["t", "a"], "t.a = 9\n"),
            // Not there: in braces, under its heading, under a new one, above the first.
            ("[t]\nin = { b = 2 }\n", &["t", "in", "a"], "[t]\nin = { a = 9, b = 2 }\n"),
            ("[t]\nin = {}\n", &["t", "in", "a"], "[t]\nin = { a = 9 }\n"),
            ("[u]\nb = 1\n[ t ] # t\nb = 2\n", &["t", "a"], "[u]\nb = 1\n[ t ] # t\nb = 2\n\n[t]\na = 9\n"),
            ("[u]\nb = 1\n[t] # t\nb = 2\n", &["t", "a"], "[u]\nb = 1\n[t] # t\na = 9\nb = 2\n"),
            ("[t]", &["t", "a"], "[t]\na = 9\n"),
            ("[t.u]\nb = 1\n", &["t", "a"], "[t.u]\nb = 1\n\n[t]\na = 9\n"),
            ("b = 1", &["t", "u", "a"], "b = 1\n\n[t.u]\na = 9\n"),
            ("b = 1\n\n# of t\n[t]\nc = 1\n", &["a"], "b = 1\na = 9\n\n# of t\n[t]\nc = 1\n"),
            ("# mine\nb = 1", &["a"], "# mine\nb = 1\na = 9\n"),
            ("", &["a"], "a = 9\n"),
        ];
        for (before, place, after) in cases {
            match set(before, place, "9") {
                Ok(text) => assert_eq!(text, after, "{before}"),
                // A second heading of one table is no TOML.
                Err(_) => assert!(before.contains("[ t ]"), "{before}"),
            }
        }
    }

    #[test]
    fn what_cannot_be_set_is_refused() {
        for (text, place) in [
            ("a = ", &["a"][..]),
            ("a = 1\n", &["a", "b"]),
            ("[[t]]\nb = 1\n", &["t", "a"]),
            ("x = [\n[1],\n]\n", &["x", "a"]),
            ("[t.a]\nb = 1\n", &["t", "a"]),
        ] {
            assert!(set(text, place, "9").is_err(), "{text}");
        }
    }
}
