//! Values in quotes, as a shell, JSON, YAML and TOML have them, and as they stand in each other.

/// What begins and ends a value.
pub(super) const QUOTES: [char; 3] = ['"', '\'', '`'];

/// The quotes that are open, each with how many backslashes escape it: JSON in JSON has `\"` inside of `"`.
#[derive(Clone, Default)]
pub(super) struct Open(Vec<(char, usize)>);

impl Open {
    pub(super) fn pass(&mut self, text: &str, at: usize, c: char) {
        const MOST: usize = 16;
        if !QUOTES.contains(&c) || is_apostrophe(text, at) {
            return;
        }
        let quote = (c, escapes(text, at));
        match self.0.iter().position(|open| *open == quote) {
            Some(place) => self.0.truncate(place),
            None if self.0.len() < MOST => self.0.push(quote),
            None => {}
        }
    }

    /// Whether the quote at a place ends one of them.
    fn ends(&self, text: &str, at: usize) -> bool {
        let quote = |c| (c, escapes(text, at));
        text[at..].chars().next().is_some_and(|c| self.0.contains(&quote(c)))
    }
}

/// Backslashes before a place.
fn escapes(text: &str, at: usize) -> usize {
    text.as_bytes()[..at].iter().rev().take_while(|byte| **byte == b'\\').count()
}

/// As in `don't`.
fn is_apostrophe(text: &str, at: usize) -> bool {
    let is_part = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    bytes[at] == b'\'' && at > 0 && is_part(bytes.get(at - 1)) && is_part(bytes.get(at + 1))
}

/// Bytes of a quote, with what escapes it, that a text begins with.
fn quote_of(text: &str) -> usize {
    let escapes = text.len() - text.trim_start_matches('\\').len();
    if escapes <= 7 && text[escapes..].starts_with(QUOTES) { escapes + 1 } else { 0 }
}

/// Bytes of what closes a name in quotes: `"api_key": …`, `environ["KEY"] = …`.
pub(super) fn closing(text: &str) -> usize {
    let quote = quote_of(text);
    if quote > 0 && text[quote..].starts_with(']') { quote + 1 } else { quote }
}

/// The value that begins at a place, without its quotes: a word as a shell has it, or the rest of the line. `open` are the
/// quotes around name and value. Nothing where there is none.
pub(super) fn span(text: &str, at: usize, whole_line: bool, open: &Open) -> Option<(usize, usize)> {
    let quote = quote_of(&text[at..]);
    if quote > 0 && !open.ends(text, at + quote - 1) {
        let inner = at + quote;
        let end = closing_quote(text, inner, quote - 1).unwrap_or(text.len());
        // The quote that closes may have fewer backslashes before it than the one that opens.
        let slashes = text[end..].len() - text[end..].trim_start_matches('\\').len();
        let behind = (end + slashes + 1).min(text.len());
        // Words may be put together from several: 'it'"'"'s'.
        let next = text[behind..].chars().next();
        let goes_on =
            next.is_some_and(|c| c.is_ascii_alphanumeric() || QUOTES.contains(&c) && !open.ends(text, behind));
        if !goes_on {
            return (end > inner).then_some((inner, end));
        }
    }
    let mut end = at;
    while let Some(c) = text[end..].chars().next() {
        let is_end = if whole_line { "\r\n".contains(c) } else { c.is_whitespace() };
        if is_end {
            break;
        }
        if QUOTES.contains(&c) && !is_apostrophe(text, end) {
            if open.ends(text, end) {
                break;
            }
            end = closing_quote(text, end + 1, escapes(text, end)).map_or(end + 1, |closing| closing + 1);
            continue;
        }
        if c == '\\' {
            // The escape of a quote that closes is not the value's.
            let behind = text.len() - text[end..].trim_start_matches('\\').len();
            if open.ends(text, behind) {
                break;
            }
            end = behind;
            continue;
        }
        end += c.len_utf8();
    }
    (end > at).then_some((at, end))
}

/// Where the quote before `inner` ends, which so many backslashes escape.
fn closing_quote(text: &str, inner: usize, escapes: usize) -> Option<usize> {
    let quote = text[..inner].chars().next_back()?;
    let mut from = inner;
    loop {
        let at = from + text[from..].find(quote)?;
        let slashes = text[inner..at].len() - text[inner..at].trim_end_matches('\\').len();
        // What is inside is escaped once more.
        let is_closing = if escapes == 0 { slashes.is_multiple_of(2) } else { slashes <= escapes };
        if is_closing {
            return Some(at - if escapes == 0 { 0 } else { slashes });
        }
        from = at + 1;
    }
}
