//! Hardware addresses.

use std::fmt;
use std::str::FromStr;

use crate::text::as_text;

/// The hardware address of an interface: the only name a machine has before we give it one.
///
/// Firmware and tools print it in many ways: `52:54:00:…`, `52-54-00-…`, `5254.00…`, `525400…`, and
/// PXE's `01-52-54-00-…` with the hardware type in front. Parsing accepts all of them, printing
/// always uses lower case and colons, so two spellings can never become two nodes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mac([u8; 6]);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a MAC address; write it like 52:54:00:12:34:56")]
pub struct ParseMacError(String);

impl Mac {
    pub const fn from_octets(octets: [u8; 6]) -> Self {
        Self(octets)
    }

    pub fn octets(self) -> [u8; 6] {
        self.0
    }

    /// Whether one interface can have it: not a group address, not all zero.
    pub fn is_unicast(self) -> bool {
        self.0[0] & 1 == 0 && self.0 != [0; 6]
    }
}

impl FromStr for Mac {
    type Err = ParseMacError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text.trim().as_bytes()).map(Self).ok_or_else(|| ParseMacError(text.to_owned()))
    }
}

fn parse(text: &[u8]) -> Option<[u8; 6]> {
    match text.len() {
        12 => octets(text, 2, None),
        14 => octets(text, 4, Some(b'.')),
        17 => octets(text, 2, Some(b':')).or_else(|| octets(text, 2, Some(b'-'))),
        // PXE's BOOTIF: the ARP hardware type (1, Ethernet) stands in front.
        20 => text.strip_prefix(b"01-").and_then(|mac| octets(mac, 2, Some(b'-'))),
        _ => None,
    }
}

/// Twelve hex digits, with `separator` (if any) between every `digits` of them and nowhere else.
fn octets(text: &[u8], digits: usize, separator: Option<u8>) -> Option<[u8; 6]> {
    let mut octets = [0u8; 6];
    let mut seen = 0;
    let mut rest = text;
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        let at_border = seen > 0 && seen % digits == 0;
        match separator {
            Some(separator) if at_border && byte == separator => {
                let (&next, tail) = rest.split_first()?;
                rest = tail;
                push(&mut octets, &mut seen, next)?;
            }
            Some(_) if at_border => return None,
            _ => push(&mut octets, &mut seen, byte)?,
        }
    }
    (seen == 12).then_some(octets)
}

fn push(octets: &mut [u8; 6], seen: &mut usize, digit: u8) -> Option<()> {
    let value = u8::try_from(char::from(digit).to_digit(16)?).ok()?;
    let octet = octets.get_mut(*seen / 2)?;
    *octet = *octet << 4 | value;
    *seen += 1;
    Some(())
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // By hand: every boot script has some of these, and the machinery of formats takes longer
        // than the rest of the script.
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut text = [b':'; 17];
        for (pair, octet) in text.chunks_mut(3).zip(self.0) {
            pair[0] = DIGITS[usize::from(octet >> 4)];
            pair[1] = DIGITS[usize::from(octet & 15)];
        }
        f.write_str(std::str::from_utf8(&text).map_err(|_| fmt::Error)?)
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

as_text!(Mac, "Mac", "a MAC address such as 52:54:00:12:34:56", None);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_spelling_is_the_same_node(octets: [u8; 6]) {
            let colons = Mac(octets).to_string();
            let bare = colons.replace(':', "");
            let dots = format!("{}.{}.{}", &bare[..4], &bare[4..8], &bare[8..]);
            let dashes = colons.replace(':', "-");
            let bootif = format!("01-{dashes}");
            let shouted = colons.to_uppercase();
            let padded = format!(" {colons} ");
            for text in [colons, bare, dots, dashes, bootif, shouted, padded] {
                prop_assert_eq!(text.parse(), Ok(Mac(octets)));
            }
        }

        #[test]
        fn no_text_makes_the_parser_panic(text in ".{0,24}") {
            let _ = text.parse::<Mac>();
        }
    }

    #[test]
    fn half_spellings_are_refused() {
        for text in [
            "",
            "2:0:0:0:0:1",
            "02:00:00:00:00",
            "02:00:00:00:00:0g",
            "02 00 00 00 00 01",
            "+20000000001",
            "02:00-00:00:00:01",
            "02:00:00:00:00:01:02:03",
            "0200:0000:0001",
            "02-00-00-00-00-01-",
            "02-52-54-00-00-00-01",
            "020.000.000.001",
        ] {
            assert!(text.parse::<Mac>().is_err(), "{text}");
        }
    }

    #[test]
    fn group_addresses_and_zero_are_not_unicast() {
        for text in ["ff:ff:ff:ff:ff:ff", "01:00:5e:00:00:01", "00:00:00:00:00:00"] {
            assert!(!text.parse::<Mac>().unwrap().is_unicast(), "{text}");
        }
        assert!("52:54:00:00:00:01".parse::<Mac>().unwrap().is_unicast());
    }
}
