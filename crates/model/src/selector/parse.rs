//! Text to expression, with errors that point at the character.

use crate::mac::ParseMacError;
use crate::name::ParseNameError;
use crate::node::{Arch, Lifecycle};
use crate::selector::glob::{self, Glob, NamePatternError, XnamePattern};
use crate::selector::{Atom, Expr};
use crate::suggestion::nearest;

/// Bounds that no selector written by a person meets.
const MAX_TEXT: usize = 8 * 1024;
const MAX_DEPTH: usize = 64;

/// Words that are not names unless they are quoted.
pub(super) const OPERATORS: [&str; 3] = ["and", "not", "or"];

const PREFIXES: [&str; 11] = [
    "node",
    "role",
    "subrole",
    "group",
    "partition",
    "arch",
    "label",
    "xname",
    "nid",
    "mac",
    "state",
];

/// The error and its position in the text (in characters, from 0).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("selector `{text}`, character {}: {message}", at + 1)]
pub struct ParseSelectorError {
    pub text: String,
    pub at: usize,
    pub message: String,
}

impl ParseSelectorError {
    /// The text with an arrow under the place, for a terminal.
    pub fn drawing(&self) -> String {
        format!("{}\n{}^ {}", self.text, " ".repeat(self.at), self.message)
    }
}

pub(super) fn selector(text: &str) -> Result<Expr, ParseSelectorError> {
    check_length(text)?;
    let mut parser = Parser { text, at: 0, depth: 0 };
    let expr = parser.any()?;
    match parser.peek() {
        None => Ok(expr),
        Some(_) => Err(parser.error("expected `,`, `&` or the end")),
    }
}

pub(super) fn check_length(text: &str) -> Result<(), ParseSelectorError> {
    if text.len() <= MAX_TEXT {
        return Ok(());
    }
    let shown: String = text.chars().take(40).collect();
    let message = format!("longer than {MAX_TEXT} bytes");
    Err(ParseSelectorError { text: format!("{shown}…"), at: 0, message })
}

struct Parser<'a> {
    text: &'a str,
    /// Byte offset of the next token.
    at: usize,
    depth: usize,
}

type Parsed<T> = Result<T, ParseSelectorError>;

impl<'a> Parser<'a> {
    fn any(&mut self) -> Parsed<Expr> {
        self.chain(Self::all, ',', "or", Expr::Any)
    }

    fn all(&mut self) -> Parsed<Expr> {
        self.chain(Self::not, '&', "and", Expr::All)
    }

    fn chain(
        &mut self,
        part: fn(&mut Self) -> Parsed<Expr>,
        sign: char,
        word: &str,
        join: fn(Vec<Expr>) -> Expr,
    ) -> Parsed<Expr> {
        let first = part(self)?;
        let mut parts = vec![first];
        while self.eat(sign) || self.eat_word(word) {
            parts.push(part(self)?);
        }
        Ok(if parts.len() == 1 { parts.remove(0) } else { join(parts) })
    }

    fn not(&mut self) -> Parsed<Expr> {
        if self.eat('!') || self.eat_word("not") {
            return Ok(Expr::Not(Box::new(self.nested(Self::not)?)));
        }
        if self.eat('(') {
            return self.closed();
        }
        self.atom()
    }

    /// An expression whose opening parenthesis was read.
    fn closed(&mut self) -> Parsed<Expr> {
        let expr = self.nested(Self::any)?;
        if self.eat(')') { Ok(expr) } else { Err(self.error("expected `)`")) }
    }

    fn nested(&mut self, part: fn(&mut Self) -> Parsed<Expr>) -> Parsed<Expr> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(self.error("it is nested too deeply"));
        }
        let expr = part(self);
        self.depth -= 1;
        expr
    }

    fn atom(&mut self) -> Parsed<Expr> {
        self.skip_spaces();
        let start = self.at;
        if let Some(regex) = self.regex() {
            return Ok(Expr::Atom(Atom::Matching(regex)));
        }
        let word = self.word()?;
        if word.text == "first" && self.rest().starts_with('(') {
            self.at += 1;
            return Ok(Expr::First(Box::new(self.closed()?)));
        }
        if word.is_empty() {
            let message = match self.peek() {
                None => "expected a selector here, but it ends".to_owned(),
                Some(c) => format!("expected a selector, found `{c}`"),
            };
            return Err(self.error(message));
        }
        let atom = atom(&word).map_err(|(offset, message)| self.error_at(start + offset, message));
        atom.map(Expr::Atom)
    }

    /// The text between two slashes, if a regex comes next.
    fn regex(&mut self) -> Option<String> {
        let inside = self.rest().strip_prefix('/')?;
        let end = inside.find('/').filter(|end| *end > 0)?;
        self.at += end + 2;
        Some(inside[..end].to_owned())
    }

    /// Everything up to a space or an operator; quotes and brackets keep those inside.
    fn word(&mut self) -> Parsed<Word> {
        let mut word = Word { text: String::new(), quoted_from: None };
        let mut in_brackets = false;
        while let Some(c) = self.rest().chars().next() {
            match c {
                '"' | '\'' => {
                    word.quoted_from.get_or_insert(word.text.len());
                    self.quoted(c, &mut word)?;
                    continue;
                }
                '[' => in_brackets = true,
                ']' => in_brackets = false,
                ',' if word.text.starts_with("nid:") && self.digit_follows() => {}
                ',' if in_brackets => {}
                ',' | '&' | '!' | '(' | ')' => break,
                c if c.is_whitespace() => break,
                _ => {}
            }
            word.text.push(c);
            self.at += c.len_utf8();
        }
        Ok(word)
    }

    fn quoted(&mut self, quote: char, word: &mut Word) -> Parsed<()> {
        let inside = &self.rest()[1..];
        let Some(end) = inside.find(quote) else {
            return Err(self.error("this quote is never closed"));
        };
        word.text.push_str(&inside[..end]);
        self.at += end + 2;
        Ok(())
    }

    fn digit_follows(&self) -> bool {
        self.rest()[1..].starts_with(|c: char| c.is_ascii_digit())
    }

    fn eat(&mut self, sign: char) -> bool {
        let found = self.peek() == Some(sign);
        if found {
            self.at += sign.len_utf8();
        }
        found
    }

    /// A keyword counts only when it stands alone: `order` is not `or der`.
    fn eat_word(&mut self, word: &str) -> bool {
        self.skip_spaces();
        let ends = |c: char| c.is_whitespace() || c == '(' || c == '!';
        let found = self.rest().strip_prefix(word).is_some_and(|tail| tail.starts_with(ends));
        if found {
            self.at += word.len();
        }
        found
    }

    fn peek(&mut self) -> Option<char> {
        self.skip_spaces();
        self.rest().chars().next()
    }

    fn skip_spaces(&mut self) {
        self.at = self.text.len() - self.rest().trim_start().len();
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn error(&self, message: impl Into<String>) -> ParseSelectorError {
        self.error_at(self.at, message)
    }

    fn error_at(&self, byte: usize, message: impl Into<String>) -> ParseSelectorError {
        let mut byte = byte.min(self.text.len());
        while !self.text.is_char_boundary(byte) {
            byte -= 1;
        }
        ParseSelectorError {
            text: self.text.to_owned(),
            at: self.text[..byte].chars().count(),
            message: message.into(),
        }
    }
}

/// A word and, if part of it was quoted, from which byte on: quoted text is never an operator or
/// a prefix.
struct Word {
    text: String,
    quoted_from: Option<usize>,
}

impl Word {
    fn is_empty(&self) -> bool {
        self.text.is_empty() && self.quoted_from.is_none()
    }

    /// Where `sign` first stands outside of quotes.
    fn find(&self, sign: char) -> Option<usize> {
        let plain = &self.text[..self.quoted_from.unwrap_or(self.text.len())];
        plain.find(sign)
    }
}

/// Why the value after a prefix is refused.
#[derive(Debug, thiserror::Error)]
enum ValueError {
    #[error("`{0}:` needs a value")]
    Missing(String),
    #[error("quotes and control characters cannot be part of a value")]
    Characters,
    #[error("a group is written PARTITION/NAME")]
    Group,
    #[error("`{0}` is not an xname pattern; write it like x1000c0s[0-7]b*n*")]
    Xname(String),
    #[error("`{0}` is not a list of nids; write it like 1-128,200")]
    Nids(String),
    #[error("`{value}` is none of {known}")]
    NoneOf { value: String, known: String },
    #[error(transparent)]
    Name(#[from] NamePatternError),
    #[error(transparent)]
    Mac(#[from] ParseMacError),
    #[error(transparent)]
    Label(#[from] ParseNameError),
}

/// The error is an offset into the word and a message.
fn atom(word: &Word) -> Result<Atom, (usize, String)> {
    let text = word.text.as_str();
    if text == "*" {
        return Ok(Atom::Everything);
    }
    if let Some(colon) = word.find(':') {
        let prefix = &text[..colon];
        let value = &text[colon + 1..];
        if PREFIXES.contains(&prefix) {
            return prefixed(prefix, value).map_err(|error| (colon + 1, error.to_string()));
        }
        if !prefix.contains(['/', '=']) {
            return Err((0, unknown_prefix(prefix, text)));
        }
    }
    if word.find('=').is_some() {
        return label(text).map_err(|error| (0, error.to_string()));
    }
    if let Some(slash) = word.find('/') {
        return group(&text[..slash], &text[slash + 1..]).map_err(|error| (0, error.to_string()));
    }
    match text.parse::<crate::Role>() {
        Ok(_) => Ok(Atom::Bare(text.to_owned())),
        // Only in quotes: a colon outside of them ends a prefix.
        Err(_) if text.contains(':') && text.parse::<crate::GroupName>().is_ok() => {
            Ok(Atom::Bare(text.to_owned()))
        }
        Err(_) if text.contains('*') => {
            let message =
                "a pattern needs to say what it matches; write `node:` or `role:` in front";
            Err((0, message.to_owned()))
        }
        Err(error) => Err((0, error.to_string())),
    }
}

fn unknown_prefix(prefix: &str, text: &str) -> String {
    match nearest(prefix, PREFIXES) {
        Some(close) => format!("unknown prefix `{prefix}:`; did you mean `{close}:`?"),
        None => format!(
            "unknown prefix `{prefix}:`; the prefixes are {}; a role or group with a colon in its name is \
             written in quotes: \"{text}\"",
            PREFIXES.join(", ")
        ),
    }
}

fn prefixed(prefix: &str, value: &str) -> Result<Atom, ValueError> {
    if value.is_empty() {
        return Err(ValueError::Missing(prefix.to_owned()));
    }
    match prefix {
        "node" => {
            glob(value)?;
            Ok(Atom::Node(Glob::of_names(value)?))
        }
        "role" => Ok(Atom::Role(glob(value)?)),
        "subrole" => Ok(Atom::Subrole(glob(value)?)),
        "partition" => Ok(Atom::Partition(glob(value)?)),
        "group" => match value.split_once('/') {
            Some((partition, name)) => group(partition, name),
            None => group("*", value),
        },
        "arch" => arch(value),
        "label" => label(value),
        "xname" => XnamePattern::parse(value)
            .map(Atom::Xname)
            .ok_or_else(|| ValueError::Xname(value.to_owned())),
        "nid" => glob::parse_ranges(value)
            .map(Atom::Nid)
            .ok_or_else(|| ValueError::Nids(value.to_owned())),
        "mac" => Ok(Atom::Mac(value.parse()?)),
        "state" => state(value),
        _ => unreachable!("only listed prefixes come here"),
    }
}

fn glob(value: &str) -> Result<Glob, ValueError> {
    if value.contains('"') || value.chars().any(char::is_control) {
        return Err(ValueError::Characters);
    }
    Ok(Glob::exact(value))
}

fn group(partition: &str, name: &str) -> Result<Atom, ValueError> {
    let sign = |c: char| c.is_ascii_alphanumeric() || "-:._*".contains(c);
    let plain = |part: &str| !part.is_empty() && part.chars().all(sign);
    if !plain(partition) || !plain(name) {
        return Err(ValueError::Group);
    }
    Ok(match name {
        "*" => Atom::Partition(glob(partition)?),
        name => Atom::Group { partition: glob(partition)?, group: glob(name)? },
    })
}

fn label(text: &str) -> Result<Atom, ValueError> {
    let (key, value) = match text.split_once('=') {
        Some((key, value)) => (key, Some(glob(value)?)),
        None => (text, None),
    };
    Ok(Atom::Label { key: key.parse()?, value })
}

fn arch(value: &str) -> Result<Atom, ValueError> {
    let all = [Arch::X86_64, Arch::Aarch64, Arch::Riscv64, Arch::Unknown];
    let found = all.into_iter().find(|arch| arch.as_str() == value);
    found.map(Atom::Arch).ok_or_else(|| one_of(value, &all.map(Arch::as_str)))
}

fn state(value: &str) -> Result<Atom, ValueError> {
    let found = Lifecycle::ALL.into_iter().find(|state| state.as_str() == value);
    found.map(Atom::State).ok_or_else(|| one_of(value, &Lifecycle::ALL.map(Lifecycle::as_str)))
}

fn one_of(value: &str, all: &[&str]) -> ValueError {
    ValueError::NoneOf { value: value.to_owned(), known: all.join(", ") }
}
