//! Patterns inside atoms: `login*`, `x1000c0s[0-7]b*n*`, `1-128,200`.

use std::fmt;

use crate::Xname;

/// Lists of numbers in one pattern; looking for more of them would take long.
const MAX_LISTS: usize = 4;

/// Text in which `*` stands for any characters. Compared without case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Glob(String);

#[derive(Debug, thiserror::Error)]
pub(crate) enum NamePatternError {
    #[error("more than {MAX_LISTS} lists of numbers in `{0}`")]
    TooManyLists(String),
    #[error("`{0}` has no list of numbers; write it like n[1-20,30]")]
    NoNumbers(String),
}

impl Glob {
    pub fn exact(text: &str) -> Self {
        Self(text.to_owned())
    }

    pub(crate) fn is_any(&self) -> bool {
        self.0 == "*"
    }

    /// Of names of nodes, in which `[1-20,30]` stands for these numbers, with any zeros in front.
    pub(crate) fn of_names(text: &str) -> Result<Self, NamePatternError> {
        let mut lists = text.split('[');
        let is_plain = lists.next().is_some_and(|start| !start.contains(']'));
        let is_list = |part: &str| {
            let (list, rest) = part.split_once(']')?;
            parse_ranges(list).filter(|_| !rest.contains(']'))
        };
        let count = text.matches('[').count();
        if count > MAX_LISTS {
            return Err(NamePatternError::TooManyLists(text.to_owned()));
        }
        if !is_plain || !lists.all(|part| is_list(part).is_some()) {
            return Err(NamePatternError::NoNumbers(text.to_owned()));
        }
        Ok(Self(text.to_owned()))
    }

    /// As [`Self::matches`], for one that was made of names of nodes.
    pub(crate) fn matches_name(&self, name: &str) -> bool {
        name_matches(&self.0, name)
    }

    /// The text itself if it has no `*` and no list, for lookups in an index.
    pub fn as_exact(&self) -> Option<&str> {
        (!self.0.contains(['*', '['])).then_some(self.0.as_str())
    }

    pub fn matches(&self, text: &str) -> bool {
        glob(self.0.as_bytes(), text.as_bytes())
    }
}

/// Every number of the name may be the one that the first list is of.
fn name_matches(pattern: &str, name: &str) -> bool {
    let listed = pattern.split_once('[').and_then(|(before, rest)| {
        let (list, after) = rest.split_once(']')?;
        Some((before, parse_ranges(list)?, after))
    });
    let Some((before, ranges, after)) = listed else {
        return glob(pattern.as_bytes(), name.as_bytes());
    };
    let is_digit = |at: usize| name.as_bytes().get(at).is_some_and(u8::is_ascii_digit);
    let starts = (0..name.len()).filter(|at| is_digit(*at) && (*at == 0 || !is_digit(at - 1)));
    starts.into_iter().any(|start| {
        let end = (start..name.len()).find(|at| !is_digit(*at)).unwrap_or(name.len());
        name[start..end].parse().is_ok_and(|number| in_ranges(&ranges, number))
            && glob(before.as_bytes(), &name.as_bytes()[..start])
            && name_matches(after, &name[end..])
    })
}

/// The usual two-pointer match: remember the last `*` and, on a mismatch, let it take one more
/// byte. Linear in practice, and never exponential.
fn glob(pattern: &[u8], text: &[u8]) -> bool {
    let mut p = 0;
    let mut t = 0;
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
