//! Flags in notes: `name`, `name=value` and `name=[a b]`, between semicolons, as Megatron's jobs have them.

use std::collections::BTreeMap;

/// The flags of a notes cell.
#[derive(Clone, Debug, Default)]
pub struct Flags(BTreeMap<String, String>);

impl Flags {
    /// Those of a text. Whatever is no flag (it has spaces before any `=`) is left out.
    pub fn of(text: &str) -> Flags {
        let mut flags = BTreeMap::new();
        for part in text.split(';').map(str::trim) {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let name = name.trim().trim_start_matches('-').replace('_', "-").to_lowercase();
            if !name.is_empty() && !name.contains(' ') {
                flags.insert(name, value.trim().to_string());
            }
        }
        Flags(flags)
    }

    /// Whether a flag stands there.
    pub fn has(&self, name: &str) -> bool {
        self.0.get(name).is_some_and(|value| !value.eq_ignore_ascii_case("false"))
    }

    /// A flag's value.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// A flag's number.
    pub fn number(&self, name: &str) -> Option<f64> {
        self.text(name)?.parse().ok().filter(|n: &f64| n.is_finite())
    }

    /// A flag's whole number.
    pub fn count(&self, name: &str) -> Option<usize> {
        self.number(name).filter(|n| (0.0..1e9).contains(n)).map(|n| n as usize)
    }

    /// A flag's list.
    pub fn list(&self, name: &str) -> Vec<String> {
        let Some(value) = self.text(name) else { return Vec::new() };
        let inner = value.trim_matches(|c| c == '[' || c == ']' || c == '"' || c == '\'');
        inner
            .split([' ', ','])
            .map(|item| item.trim_matches(['"', '\'']).to_string())
            .filter(|i| !i.is_empty())
            .collect()
    }
}

/// Blocks before the first with experts, of a `moe-layer-freq`: `([0]*3+[1]*13)`, or a number n: every n-th is one, and
/// none of the first before it.
pub fn dense_blocks(text: &str, layers: usize) -> usize {
    let text = text.trim().trim_start_matches('(').trim_end_matches(')');
    if let Ok(every) = text.parse::<usize>() {
        return if every > 1 { layers - layers.div_ceil(every) } else { 0 };
    }
    let mut dense = 0usize;
    for part in text.split('+') {
        let (list, times) = part.split_once('*').unwrap_or((part, "1"));
        let times: usize = times.trim().parse().unwrap_or(1).min(layers);
        let zeros = list.chars().filter(|c| *c == '0').count();
        dense = dense.saturating_add(zeros * times);
    }
    dense.min(layers)
}

/// Blocks of every chunk of a pipeline layout such as `Et*3|(tt|)*6tmL` (E embedding, t block, m extra prediction block,
/// L loss, | next chunk). None where it is of another form.
pub fn layout(text: &str) -> Option<Vec<usize>> {
    let mut plain = String::new();
    let chars: Vec<char> = text.chars().collect();
    let mut place = 0;
    while place < chars.len() {
        let (unit, next) = if chars[place] == '(' {
            let end = place + chars[place..].iter().position(|c| *c == ')')?;
            (chars[place + 1..end].iter().collect::<String>(), end + 1)
        } else {
            (chars[place].to_string(), place + 1)
        };
        let mut times = 1;
        place = next;
        if chars.get(place) == Some(&'*') {
            let digits: String = chars[place + 1..].iter().take_while(|c| c.is_ascii_digit()).collect();
            times = digits.parse::<usize>().ok().filter(|n| *n <= 4096)?;
            place += 1 + digits.len();
        }
        plain.push_str(&unit.repeat(times));
    }
    let chunks: Vec<usize> = plain.split('|').map(|chunk| chunk.chars().filter(|c| *c == 't').count()).collect();
    (chunks.iter().sum::<usize>() > 0).then_some(chunks)
}
