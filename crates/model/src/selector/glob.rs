//! Patterns inside atoms: `login*`, `x1000c0s[0-7]b*n*`, `1-128,200`.

use std::fmt;

use crate::Xname;

/// Text in which `*` stands for any characters. Compared without case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Glob(String);

impl Glob {
    pub fn exact(text: &str) -> Self {
        Self(text.to_owned())
    }

    pub(crate) fn is_any(&self) -> bool {
        self.0 == "*"
    }

    /// The text itself when it has no `*`: what an index can be asked for.
    pub fn as_exact(&self) -> Option<&str> {
        (!self.0.contains('*')).then_some(self.0.as_str())
    }

    pub fn matches(&self, text: &str) -> bool {
        glob(self.0.as_bytes(), text.as_bytes())
    }
}

/// The usual two-pointer match: remember the last `*` and, on a mismatch, let it take one more
/// byte. Linear in practice, and never exponential.
fn glob(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        if p < pattern.len() && pattern[p] == b'*' {
            star = Some((p, t));
            p += 1;
        } else if p < pattern.len() && pattern[p].eq_ignore_ascii_case(&text[t]) {
            p += 1;
            t += 1;
        } else if let Some((star_p, star_t)) = star {
            star = Some((star_p, star_t + 1));
            p = star_p + 1;
            t = star_t + 1;
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|b| *b == b'*')
}

impl fmt::Display for Glob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plain = |c: char| !c.is_whitespace() && !",&!()\"'".contains(c);
        if !self.0.is_empty() && self.0.chars().all(plain) {
            f.write_str(&self.0)
        } else {
            write!(f, "\"{}\"", self.0)
        }
    }
}

/// The letters of an xname with a pattern for each number. A pattern with fewer letters than the
/// node's xname covers everything below: `x1000` is the whole cabinet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct XnamePattern(Vec<(char, Numbers)>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Numbers {
    Any,
    Ranges(Vec<(u32, u32)>),
}

impl XnamePattern {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some(letter) = rest.chars().next().filter(char::is_ascii_alphabetic) {
            rest = &rest[1..];
            let (numbers, tail) = Numbers::parse(rest)?;
            parts.push((letter.to_ascii_lowercase(), numbers));
            rest = tail;
        }
        let letters: String = parts.iter().map(|(letter, _)| *letter).collect();
        let known = "xcsbnv".starts_with(&letters) && !letters.is_empty();
        (rest.is_empty() && known).then_some(Self(parts))
    }

    /// Whether it names one node and no more.
    pub(crate) fn is_exact(&self) -> bool {
        let single = |numbers: &Numbers| match numbers {
            Numbers::Any => false,
            Numbers::Ranges(ranges) => matches!(ranges.as_slice(), [(from, to)] if from == to),
        };
        self.0.len() == "xcsbn".len() && self.0.iter().all(|(_, numbers)| single(numbers))
    }

    /// The one node it names.
    pub(crate) fn as_exact(&self) -> Option<Xname> {
        if self.is_exact() { self.to_string().parse().ok() } else { None }
    }

    pub(crate) fn matches(&self, xname: &Xname) -> bool {
        let ordinals = xname.ordinals();
        self.0.len() <= ordinals.len()
            && self.0.iter().zip(ordinals).all(|((_, numbers), n)| numbers.contain(u32::from(*n)))
    }
}

impl Numbers {
    fn parse(text: &str) -> Option<(Self, &str)> {
        if let Some(tail) = text.strip_prefix('*') {
            return Some((Self::Any, tail));
        }
        if let Some(tail) = text.strip_prefix('[') {
            let (list, tail) = tail.split_once(']')?;
            return Some((Self::Ranges(parse_ranges(list)?), tail));
        }
        let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let number = text[..end].parse().ok()?;
        Some((Self::Ranges(vec![(number, number)]), &text[end..]))
    }

    fn contain(&self, number: u32) -> bool {
        match self {
            Self::Any => true,
            Self::Ranges(ranges) => in_ranges(ranges, number),
        }
    }
}

impl fmt::Display for XnamePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|(letter, numbers)| match numbers {
            Numbers::Any => write!(f, "{letter}*"),
            Numbers::Ranges(ranges) => match ranges.as_slice() {
                [(from, to)] if from == to => write!(f, "{letter}{from}"),
                ranges => {
                    write!(f, "{letter}[")?;
                    fmt_ranges(f, ranges)?;
                    f.write_str("]")
                }
            },
        })
    }
}

/// `1-128,200` -> [(1, 128), (200, 200)].
pub(crate) fn parse_ranges(text: &str) -> Option<Vec<(u32, u32)>> {
    text.split(',').map(parse_range).collect()
}

fn parse_range(text: &str) -> Option<(u32, u32)> {
    let number = |digits: &str| {
        let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
        if plain { digits.parse::<u32>().ok() } else { None }
    };
    let (from, to) = match text.split_once('-') {
        Some((from, to)) => (number(from)?, number(to)?),
        None => (number(text)?, number(text)?),
    };
    (from <= to).then_some((from, to))
}

pub(crate) fn in_ranges(ranges: &[(u32, u32)], number: u32) -> bool {
    ranges.iter().any(|(from, to)| (*from..=*to).contains(&number))
}

pub(crate) fn fmt_ranges(f: &mut fmt::Formatter<'_>, ranges: &[(u32, u32)]) -> fmt::Result {
    for (i, (from, to)) in ranges.iter().enumerate() {
        let comma = if i > 0 { "," } else { "" };
        if from == to {
            write!(f, "{comma}{from}")?;
        } else {
            write!(f, "{comma}{from}-{to}")?;
        }
    }
    Ok(())
}
