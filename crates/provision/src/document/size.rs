//! How large something shall be, as people write it.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub const KIB: u64 = 1 << 10;
pub const MIB: u64 = 1 << 20;
pub const GIB: u64 = 1 << 30;

/// Largest size that can be written; disks end long before.
pub const MAX_SIZE: u64 = 1 << 60;

/// Hundredths of a percent in a whole.
const WHOLE: u64 = 10_000;

/// Units by name, in bytes.
const UNITS: [(&str, u64); 13] = [
    ("B", 1),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("PB", 1_000_000_000_000_000),
    ("KiB", KIB),
    ("MiB", MIB),
    ("GiB", GIB),
    ("TiB", 1 << 40),
    ("PiB", 1 << 50),
    ("EB", 1_000_000_000_000_000_000),
    ("EiB", 1 << 60),
];

/// A size: a number of bytes, a share of the usable room, or the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
pub enum Size {
    Exact(Bytes),
    Percent(Percent),
    Rest,
}

/// A number of bytes, written with its unit: `20 GiB`, `512 MB`.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(try_from = "String", into = "String")]
pub struct Bytes(pub u64);

/// A share of the whole, at most all of it, in steps of 0.01 %.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Percent(u16);

/// A text that is no size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParseSizeError(String);

impl std::error::Error for ParseSizeError {}

impl fmt::Display for ParseSizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Percent {
    /// `None` unless it is more than nothing and at most the whole.
    pub fn new(hundredths: u64) -> Option<Self> {
        u16::try_from(hundredths).ok().filter(|h| (1..=WHOLE).contains(&u64::from(*h))).map(Self)
    }

    pub fn hundredths(self) -> u64 {
        u64::from(self.0)
    }

    /// Rounded down.
    pub fn of(self, whole: u64) -> u64 {
        let part = u128::from(whole) * u128::from(self.0) / u128::from(WHOLE);
        u64::try_from(part).unwrap_or(whole)
    }
}

/// Digits with at most this many behind the point.
const MAX_DECIMALS: usize = 6;

/// `12.5` as 12 500 000 millionths.
fn millionths(text: &str) -> Option<u128> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if !is_number(whole) || !is_number(decimals) || decimals.len() > MAX_DECIMALS {
        return None;
    }
    let whole: u64 = whole.parse().ok()?;
    let decimals: u128 = format!("{decimals:0<MAX_DECIMALS$}").parse().ok()?;
    Some(u128::from(whole) * 1_000_000 + decimals)
}

fn split(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    (number, unit.trim_start())
}

impl FromStr for Bytes {
    type Err = ParseSizeError;
    fn from_str(text: &str) -> Result<Self, ParseSizeError> {
        let wrong = |why: &str| ParseSizeError(format!("`{text}` is no size: {why}"));
        let (number, unit) = split(text.trim());
        if unit.is_empty() {
            return Err(wrong("the unit is missing; write it like `20 GiB`"));
        }
        let names = || UNITS.map(|(name, _)| name).join(", ");
        let scale = UNITS.iter().find(|(name, _)| *name == unit);
        let Some((_, scale)) = scale else {
            return Err(wrong(&format!("unknown unit `{unit}`; the units are {}", names())));
        };
        let number = millionths(number)
            .ok_or_else(|| wrong("it begins with no number; write it like `20 GiB`"))?;
        let bytes = number.checked_mul(u128::from(*scale)).map(|bytes| bytes / 1_000_000);
        match bytes.and_then(|bytes| u64::try_from(bytes).ok()) {
            Some(0) => Err(wrong("nothing fits into nothing")),
            Some(bytes) if bytes <= MAX_SIZE => Ok(Self(bytes)),
            _ => Err(wrong("no disk is that large")),
        }
    }
}

impl FromStr for Size {
    type Err = ParseSizeError;
    fn from_str(text: &str) -> Result<Self, ParseSizeError> {
        let text = text.trim();
        if text == "rest" {
            return Ok(Self::Rest);
        }
        let Some(percent) = text.strip_suffix('%') else {
            return text.parse().map(Self::Exact).map_err(|ParseSizeError(why)| {
                ParseSizeError(why.replace("`20 GiB`", "`20 GiB`, `80%` or `rest`"))
            });
        };
        let hundredths = millionths(percent.trim()).filter(|m| m % 10_000 == 0);
        hundredths
            .and_then(|m| Percent::new(u64::try_from(m / 10_000).ok()?))
            .map(Self::Percent)
            .ok_or_else(|| {
                let why = "a share is more than 0% and at most 100%, like `80%` or `12.5%`";
                ParseSizeError(format!("`{text}` is no size: {why}"))
            })
    }
}

impl fmt::Display for Bytes {
    /// In the largest binary unit that says it exactly.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let binary = ["PiB", "TiB", "GiB", "MiB", "KiB"];
        let fits = |name: &'static str| {
            let (_, scale) = UNITS.iter().find(|(unit, _)| *unit == name)?;
            (self.0 >= *scale && self.0.is_multiple_of(*scale)).then_some((self.0 / scale, name))
        };
        let (number, unit) = binary.into_iter().find_map(fits).unwrap_or((self.0, "B"));
        write!(f, "{number} {unit}")
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(bytes) => bytes.fmt(f),
            Self::Percent(Percent(hundredths)) => {
                let whole = hundredths / 100;
                let part = hundredths % 100;
                if part == 0 { write!(f, "{whole}%") } else { write!(f, "{whole}.{part:02}%") }
            }
            Self::Rest => f.write_str("rest"),
        }
    }
}

impl TryFrom<String> for Bytes {
    type Error = ParseSizeError;
    fn try_from(text: String) -> Result<Self, ParseSizeError> {
        text.parse()
    }
}

impl From<Bytes> for String {
    fn from(bytes: Bytes) -> Self {
        bytes.to_string()
    }
}

impl TryFrom<String> for Size {
    type Error = ParseSizeError;
    fn try_from(text: String) -> Result<Self, ParseSizeError> {
        text.parse()
    }
}

impl From<Size> for String {
    fn from(size: Size) -> Self {
        size.to_string()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn sizes_are_exact_shares_or_the_rest() {
        let exact = |bytes| Ok(Size::Exact(Bytes(bytes)));
        for (text, size) in [
            ("20 GiB", exact(20 * GIB)),
            ("20GiB", exact(20 * GIB)),
            ("1.5 GiB", exact(GIB + GIB / 2)),
            ("512 MB", exact(512_000_000)),
            ("1 B", exact(1)),
            ("1 EiB", exact(MAX_SIZE)),
            ("rest", Ok(Size::Rest)),
            ("80%", Ok(Size::Percent(Percent(8000)))),
            ("12.5 %", Ok(Size::Percent(Percent(1250)))),
            ("100%", Ok(Size::Percent(Percent(10_000)))),
        ] {
            assert_eq!(text.parse(), size, "{text}");
        }
    }

    #[test]
    fn invalid_size_is_refused_with_an_example() {
        for (text, why) in [
            ("20", "the unit is missing; write it like `20 GiB`, `80%` or `rest`"),
            ("20 gib", "unknown unit `gib`"),
            ("GiB", "it begins with no number"),
            ("0 GiB", "nothing fits into nothing"),
            ("-1 GiB", "unknown unit"),
            ("2 EiB", "no disk is that large"),
            ("99999999999999999999 PiB", "it begins with no number"),
            ("0%", "more than 0%"),
            ("101%", "at most 100%"),
            ("1.001%", "a share is"),
            ("remaining", "unknown unit `remaining`"),
            ("", "the unit is missing"),
        ] {
            let error = text.parse::<Size>().expect_err(text).to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn printed_size_parses_to_the_same(bytes in 1..=MAX_SIZE, share in 1..=WHOLE) {
            for size in [Size::Exact(Bytes(bytes)), Size::Percent(Percent::new(share).unwrap())] {
                prop_assert_eq!(size.to_string().parse(), Ok(size));
            }
        }

        #[test]
        fn no_text_makes_the_parser_panic(text in ".{0,40}") {
            let _ = text.parse::<Size>();
        }

        #[test]
        fn share_is_at_most_the_whole(share in 1..=WHOLE, whole: u64) {
            prop_assert!(Percent::new(share).unwrap().of(whole) <= whole);
        }
    }
}
