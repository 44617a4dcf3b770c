//! One value of a TOML file, set where it stands: the rest of the text, comments and order with it, stays.

use toml_edit::{DocumentMut, InlineTable, Item, Table, TableLike, Value};

/// The text with a value (as TOML) at a place: keys from the outermost table inwards.
///
/// # Errors
/// It is no TOML, or what stands there or above is something else than a value in tables; in words.
pub fn set(text: &str, place: &[&str], value: &str) -> Result<String, String> {
    let broken = |error: toml_edit::TomlError| error.to_string();
    let mut document: DocumentMut = text.parse().map_err(broken)?;
    let value: Value = value.parse().map_err(broken)?;
    let shown = place.join(".");
    put(&mut document, place, value)
        .ok_or_else(|| format!("{shown} cannot be set: what stands there is no value, or what holds it is no table"))?;
    Ok(document.to_string())
}

fn put(document: &mut DocumentMut, place: &[&str], mut value: Value) -> Option<()> {
    let (last, tables) = place.split_last()?;
    let mut in_braces = false;
    let mut at: &mut dyn TableLike = document.as_table_mut();
    for key in tables {
        let new = || match in_braces {
            true => Item::Value(InlineTable::new().into()),
            // Without a heading of its own as long as it only holds tables.
            false => {
                let mut table = Table::new();
                table.set_implicit(true);
                Item::Table(table)
            }
        };
        let item = at.entry(key).or_insert_with(new);
        in_braces = item.is_inline_table();
        at = item.as_table_like_mut()?;
    }
    match at.get_mut(last) {
        Some(Item::Value(old)) => {
            *value.decor_mut() = old.decor().clone();
            *old = value;
        }
        Some(_) => return None,
        None => {
            at.insert(last, Item::Value(value));
            if in_braces {
                at.fmt();
            }
        }
    }
    Some(())
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
            ("[t]\nin = { b = 2 }\n", &["t", "in", "a"], "[t]\nin = { b = 2, a = 9 }\n"),
            ("[t]\nin = {}\n", &["t", "in", "a"], "[t]\nin = { a = 9 }\n"),
            ("[u]\nb = 1\n[ t ] # t\nb = 2\n", &["t", "a"], "[u]\nb = 1\n[ t ] # t\nb = 2\na = 9\n"),
            ("[t]", &["t", "a"], "[t]\na = 9\n"),
            ("[t.u]\nb = 1\n", &["t", "a"], "[t]\na = 9\n[t.u]\nb = 1\n"),
            ("b = 1", &["t", "u", "a"], "b = 1\n\n[t.u]\na = 9\n"),
            ("b = 1\n\n# of t\n[t]\nc = 1\n", &["a"], "b = 1\na = 9\n\n# of t\n[t]\nc = 1\n"),
            ("# mine\nb = 1", &["a"], "# mine\nb = 1\na = 9\n"),
            ("", &["a"], "a = 9\n"),
        ];
        for (before, place, after) in cases {
            assert_eq!(set(before, place, "9").as_deref(), Ok(after), "{before}");
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
