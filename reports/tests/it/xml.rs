//! Whether a text is well-formed XML, and what it holds: a small reader of our own, so that what we write is not checked by
//! what wrote it. It knows elements, attributes, text and the five entities with numbers, which is all that we write.

/// An element as it opens.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Element {
    pub name: String,
    pub attributes: Vec<(String, String)>,
    /// Names of the elements around it, the outermost first.
    pub around: Vec<String>,
}

/// Elements and texts of a document, in order.
#[derive(Debug, Default)]
pub struct Content {
    pub elements: Vec<Element>,
    /// Each text with the name of the element that it stands in.
    pub texts: Vec<(String, String)>,
}

impl Content {
    pub fn count(&self, name: &str) -> usize {
        self.elements.iter().filter(|element| element.name == name).count()
    }

    pub fn texts_in(&self, name: &str) -> Vec<&str> {
        self.texts.iter().filter(|(element, _)| element == name).map(|(_, text)| text.as_str()).collect()
    }
}

impl Element {
    pub fn attribute(&self, name: &str) -> Option<&str> {
        self.attributes.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }
}

/// Reads a document with one outermost element.
pub fn read(text: &str) -> Result<Content, String> {
    let mut rest = text.strip_prefix("<!DOCTYPE html>").unwrap_or(text);
    let mut content = Content::default();
    let mut open: Vec<String> = Vec::new();
    let mut ended = false;
    while !rest.is_empty() {
        let start = rest.find('<').unwrap_or(rest.len());
        let words = unescape(&rest[..start])?;
        match open.last() {
            Some(name) => content.texts.push((name.clone(), words)),
            None if words.trim().is_empty() => {}
            None => return Err(format!("text outside of all elements: {words:?}")),
        }
        rest = &rest[start..];
        if rest.is_empty() {
            break;
        }
        let end = tag_end(rest).ok_or_else(|| format!("a tag that does not end: {:.60}", rest))?;
        let (tag, after) = (&rest[1..end], &rest[end + 1..]);
        rest = after;
        if let Some(name) = tag.strip_prefix('/') {
            match open.pop() {
                Some(opened) if opened == name => ended = open.is_empty(),
                other => return Err(format!("</{name}> closes {other:?}")),
            }
            continue;
        }
        if ended {
            return Err(format!("a second outermost element: {tag:.60}"));
        }
        let (tag, closes) = tag.strip_suffix('/').map_or((tag, false), |tag| (tag, true));
        let mut element = element(tag)?;
        element.around = open.clone();
        match closes {
            true => ended = open.is_empty(),
            false => open.push(element.name.clone()),
        }
        content.elements.push(element);
    }
    if open.is_empty() { Ok(content) } else { Err(format!("not closed: {open:?}")) }
}

/// The place of the `>` that ends a tag, which is not inside of quotes.
fn tag_end(text: &str) -> Option<usize> {
    let mut quoted = false;
    text.char_indices().find_map(|(place, symbol)| {
        quoted ^= symbol == '"';
        (symbol == '>' && !quoted).then_some(place)
    })
}

fn element(tag: &str) -> Result<Element, String> {
    let name_end = tag.find(char::is_whitespace).unwrap_or(tag.len());
    let (name, mut rest) = tag.split_at(name_end);
    if name.is_empty() || !name.chars().all(|symbol| symbol.is_ascii_alphanumeric()) {
        return Err(format!("no name of an element: {tag:.60}"));
    }
    let mut element = Element { name: name.to_string(), ..Element::default() };
    loop {
        rest = rest.trim_start();
        if rest.is_empty() {
            return Ok(element);
        }
        let (key, after) = rest.split_once("=\"").ok_or_else(|| format!("no attribute: {rest:.60}"))?;
        let (value, after) = after.split_once('"').ok_or_else(|| format!("quotes that do not end: {after:.60}"))?;
        let is_name = |key: &str| !key.is_empty() && key.chars().all(|s| s.is_ascii_alphanumeric() || s == '-');
        if !is_name(key) || value.contains('<') || element.attribute(key).is_some() {
            return Err(format!("a bad or second attribute {key:?} of {name}"));
        }
        element.attributes.push((key.to_string(), unescape(value)?));
        rest = after;
    }
}

fn unescape(text: &str) -> Result<String, String> {
    let is_allowed = |symbol: char| {
        matches!(symbol, '\t' | '\n' | '\r') || (symbol >= ' ' && symbol != '\u{fffe}' && symbol != '\u{ffff}')
    };
    if let Some(symbol) = text.chars().find(|symbol| !is_allowed(*symbol)) {
        return Err(format!("XML may not hold {symbol:?}"));
    }
    let mut parts = text.split('&');
    let mut plain = parts.next().unwrap_or_default().to_string();
    for part in parts {
        let (name, rest) = part.split_once(';').ok_or_else(|| format!("& without ; in {part:.40}"))?;
        plain.push(match name {
            "amp" => '&',
            "lt" => '<',
            "gt" => '>',
            "quot" => '"',
            "#39" => '\'',
            other => return Err(format!("unknown entity {other}")),
        });
        plain.push_str(rest);
    }
    Ok(plain)
}

#[test]
fn what_is_not_well_formed_is_refused() {
    for bad in [
        "<a>",
        "<a></b>",
        "<a/><b/>",
        "x<a/>",
        "<a b=c/>",
        "<a b=\"1\" b=\"2\"/>",
        "<a>&nbsp;</a>",
        "<a>\u{1}</a>",
        "<a b=\"<\"/>",
        "<a>&x</a>",
        "<a",
    ] {
        assert!(read(bad).is_err(), "{bad}");
    }
    let content = read("<a b=\"1 &gt; 0\"><c/>x &amp; y</a>").unwrap();
    assert_eq!(content.elements[0].attribute("b"), Some("1 > 0"));
    assert_eq!(content.elements[1].around, ["a"]);
    assert_eq!(content.texts_in("a"), ["", "x & y"]);
}
