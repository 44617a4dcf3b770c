//! `NCCL_TESTS_SPLIT` and `NCCL_TESTS_SPLIT_MASK`: groups of ranks that measure at the same time.

/// How a rank's number becomes the number of its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// `rank & value`.
    And(usize),
    /// `rank | value`.
    Or(usize),
    /// `rank % value`.
    Mod(usize),
    /// `rank / value`.
    Div(usize),
}

impl Split {
    /// The group of a rank.
    pub fn color(self, rank: usize) -> usize {
        match self {
            Split::And(value) => rank & value,
            Split::Or(value) => rank | value,
            Split::Mod(value) => rank % value,
            Split::Div(value) => rank / value,
        }
    }

    /// What the variables say; the mask, in hexadecimal, wins.
    pub fn from_environment(variable: impl Fn(&str) -> Option<String>) -> Result<Option<Split>, String> {
        if let Some(mask) = variable("NCCL_TESTS_SPLIT_MASK") {
            let digits = mask.trim().trim_start_matches("0x").trim_start_matches("0X");
            let value = usize::from_str_radix(digits, 16);
            return value
                .map(|value| Some(Split::And(value)))
                .map_err(|_| format!("NCCL_TESTS_SPLIT_MASK=`{mask}` is no hexadecimal number"));
        }
        variable("NCCL_TESTS_SPLIT").map(|text| Split::parse(&text)).transpose()
    }

    fn parse(text: &str) -> Result<Split, String> {
        let wrong = || format!("NCCL_TESTS_SPLIT=`{text}` is none of AND, OR, MOD, DIV (&, |, %, /) with a number");
        let upper = text.trim().to_ascii_uppercase();
        type Form = (&'static str, fn(usize) -> Split);
        let forms: [Form; 8] = [
            ("AND", Split::And),
            ("&", Split::And),
            ("OR", Split::Or),
            ("|", Split::Or),
            ("MOD", Split::Mod),
            ("%", Split::Mod),
            ("DIV", Split::Div),
            ("/", Split::Div),
        ];
        let (rest, make) = forms
            .iter()
            .find_map(|(name, make)| upper.strip_prefix(name).map(|rest| (rest, make)))
            .ok_or_else(wrong)?;
        let split = make(number(rest.trim()).ok_or_else(wrong)?);
        match split {
            Split::Mod(0) | Split::Div(0) => Err(wrong()),
            split => Ok(split),
        }
    }
}

/// Base 2 after `0b`, 16 after `0x`, 8 after another 0, else 10, as C reads numbers.
fn number(text: &str) -> Option<usize> {
    let (digits, radix) = match text.get(..2) {
        Some("0B") => (&text[2..], 2),
        Some("0X") => (&text[2..], 16),
        _ if text.len() > 1 && text.starts_with('0') => (&text[1..], 8),
        _ => (text, 10),
    };
    usize::from_str_radix(digits, radix).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_nccl_tests_are_read() {
        let of = |name: &'static str, text: &'static str| {
            Split::from_environment(move |asked| (asked == name).then(|| text.to_string()))
        };
        assert_eq!(of("NCCL_TESTS_SPLIT", "AND 0x7"), Ok(Some(Split::And(7))));
        assert_eq!(of("NCCL_TESTS_SPLIT", "% 0b11"), Ok(Some(Split::Mod(3))));
        assert_eq!(of("NCCL_TESTS_SPLIT", "div010"), Ok(Some(Split::Div(8))));
        assert_eq!(of("NCCL_TESTS_SPLIT", "| 1"), Ok(Some(Split::Or(1))));
        assert_eq!(of("NCCL_TESTS_SPLIT_MASK", "0xF"), Ok(Some(Split::And(15))));
        assert_eq!(of("OTHER", "x"), Ok(None));
        for wrong in ["", "AND", "MOD 0", "XOR 3", "/0", "AND -1"] {
            assert!(of("NCCL_TESTS_SPLIT", wrong).is_err(), "{wrong}");
        }
        assert_eq!([0, 1, 2, 3].map(|rank| Split::Div(2).color(rank)), [0, 0, 1, 1]);
        assert_eq!([0, 1, 2, 3].map(|rank| Split::Mod(2).color(rank)), [0, 1, 0, 1]);
    }
}
