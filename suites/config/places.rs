//! Line and column of places in a text, each found in the same short time however long the text or its lines are.

/// Where something stands in a file, both from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Line.
    pub line: usize,
    /// Column, in characters.
    pub column: usize,
}

/// Bytes between two places that are known.
const STEP: usize = 1024;

/// Where every [`STEP`]th byte of a text stands.
pub struct Places<'a> {
    text: &'a [u8],
    known: Vec<Place>,
}

impl<'a> Places<'a> {
    /// Reads the text once.
    pub fn of(text: &'a str) -> Places<'a> {
        let text = text.as_bytes();
        let mut known = vec![Place { line: 1, column: 1 }];
        for (index, block) in text.chunks(STEP).enumerate() {
            known.push(behind(known[index], block));
        }
        Places { text, known }
    }

    /// The place of a byte. Offsets behind the end have the place of the end.
    pub fn at(&self, offset: usize) -> Place {
        let offset = offset.min(self.text.len());
        let block = offset / STEP;
        behind(self.known[block], &self.text[block * STEP..offset])
    }
}

/// The place behind these bytes. A character counts where it begins.
fn behind(mut place: Place, bytes: &[u8]) -> Place {
    for byte in bytes {
        match byte {
            b'\n' => place = Place { line: place.line + 1, column: 1 },
            0x80..0xc0 => {}
            _ => place.column += 1,
        }
    }
    place
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_those_of_a_reader_who_counts() {
        let text = format!("a = 1\n\n{} = \"ä漢\"\n{}\nend", "k".repeat(3000), "[1, 2, ä], ".repeat(500));
        let places = Places::of(&text);
        let (mut line, mut column) = (1, 1);
        for (offset, symbol) in text.char_indices() {
            assert_eq!(places.at(offset), Place { line, column }, "byte {offset}");
            (line, column) = if symbol == '\n' { (line + 1, 1) } else { (line, column + 1) };
        }
        assert_eq!(places.at(text.len()), Place { line, column });
        assert_eq!(places.at(usize::MAX), places.at(text.len()));
        assert_eq!(Places::of("").at(0), Place { line: 1, column: 1 });
    }
}
