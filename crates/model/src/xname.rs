//! Physical names in the grammar of Cray systems: `x1000c0s0b0n0` is cabinet 1000, chassis 0,
//! slot 0, BMC 0, node 0.

use std::fmt;
use std::str::FromStr;

use crate::text::as_text;

/// The kind of component that an xname names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum XnameKind {
    System,
    Partition,
    /// `all`, `all_comp`, `all_svc`, `sms<n>`: words that stand for sets.
    Special,
    Cabinet,
    CabinetBmc,
    CabinetPduController,
    Chassis,
    ChassisBmc,
    MgmtSwitch,
    RouterModule,
    RouterBmc,
    ComputeModule,
    NodeBmc,
    NodeBmcNic,
    Node,
    NodeNic,
    NodeHsnNic,
    VirtualNode,
}

/// A physical name, kept as numbers: `s9` sorts before `s10`, and leading zeros or capitals make
/// no second spelling.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Xname {
    /// The ordinals from the cabinet down; those the kind does not have are 0.
    ordinals: [u16; MAX_PARTS],
    kind: XnameKind,
    /// How many ordinals count (a partition may have one or two).
    parts: u8,
}

const MAX_PARTS: usize = 6;

/// Longest accepted text; the longest valid one has 6 letters and 6 numbers of 5 digits.
const MAX_TEXT: usize = 64;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not an xname: {reason}")]
pub struct ParseXnameError {
    text: String,
    reason: &'static str,
}

/// Letters in order -> component kind. The letters alone decide the kind.
const SHAPES: [(&str, XnameKind); 15] = [
    ("x", XnameKind::Cabinet),
    ("xb", XnameKind::CabinetBmc),
    ("xm", XnameKind::CabinetPduController),
    ("xc", XnameKind::Chassis),
    ("xcb", XnameKind::ChassisBmc),
    ("xcw", XnameKind::MgmtSwitch),
    ("xcr", XnameKind::RouterModule),
    ("xcrb", XnameKind::RouterBmc),
    ("xcs", XnameKind::ComputeModule),
    ("xcsb", XnameKind::NodeBmc),
    ("xcsbi", XnameKind::NodeBmcNic),
    ("xcsbn", XnameKind::Node),
    ("xcsbni", XnameKind::NodeNic),
    ("xcsbnh", XnameKind::NodeHsnNic),
    ("xcsbnv", XnameKind::VirtualNode),
];

const SPECIAL: [&str; 4] = ["all", "all_comp", "all_svc", "sms"];

impl Xname {
    pub fn kind(&self) -> XnameKind {
        self.kind
    }

    /// The ordinals from the cabinet down.
    pub fn ordinals(&self) -> &[u16] {
        &self.ordinals[..usize::from(self.parts)]
    }

    pub fn is_node(&self) -> bool {
        matches!(self.kind, XnameKind::Node | XnameKind::VirtualNode)
    }

    /// The thing this one sits in: a node's BMC, a cabinet's system. `None` at the top.
    pub fn parent(&self) -> Option<Self> {
        let letters = self.letters()?;
        if letters.len() == 1 {
            return Some(Self { ordinals: [0; MAX_PARTS], kind: XnameKind::System, parts: 1 });
        }
        let above = &letters[..letters.len() - 1];
        let (_, kind) = SHAPES.iter().find(|(shape, _)| *shape == above)?;
        let mut ordinals = self.ordinals;
        ordinals[above.len()] = 0;
        Some(Self { ordinals, kind: *kind, parts: self.parts - 1 })
    }

    fn letters(&self) -> Option<&'static str> {
        SHAPES.iter().find(|(_, kind)| *kind == self.kind).map(|(shape, _)| *shape)
    }
}

impl FromStr for Xname {
    type Err = ParseXnameError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text).map_err(|reason| ParseXnameError {
            text: text.chars().take(MAX_TEXT).collect(),
            reason,
        })
    }
}

fn parse(text: &str) -> Result<Xname, &'static str> {
    let text = text.trim().to_ascii_lowercase();
    if text.len() > MAX_TEXT {
        return Err("it is too long");
    }
    if let Some(special) = special(&text) {
        return Ok(special);
    }
    if text.starts_with('p') {
        return partition(&text);
    }
    let (letters, ordinals, parts) = split(&text)?;
    let kind = if letters == "s" {
        XnameKind::System
    } else {
        let shape = SHAPES.iter().find(|(shape, _)| *shape == letters);
        shape.ok_or("no component has these letters; a node looks like x1000c0s0b0n0")?.1
    };
    check_ordinals(kind, &ordinals[..usize::from(parts)])?;
    Ok(Xname { ordinals, kind, parts })
}

/// `x1000c0` -> ("xc", [1000, 0]).
fn split(text: &str) -> Result<(String, [u16; MAX_PARTS], u8), &'static str> {
    let mut letters = String::new();
    let mut ordinals = [0; MAX_PARTS];
    let mut rest = text;
    while let Some(letter) = rest.chars().next() {
        let digits_end = rest[letter.len_utf8()..]
            .find(|c: char| !c.is_ascii_digit())
            .map_or(rest.len(), |end| end + letter.len_utf8());
        let slot = ordinals.get_mut(letters.len()).ok_or("it has too many components")?;
        *slot = number(&rest[letter.len_utf8()..digits_end])?;
        letters.push(letter);
        rest = &rest[digits_end..];
    }
    if letters.is_empty() {
        return Err("empty");
    }
    let parts = u8::try_from(letters.len()).map_err(|_| "it has too many components")?;
    Ok((letters, ordinals, parts))
}

fn number(digits: &str) -> Result<u16, &'static str> {
    if digits.is_empty() {
        return Err("every letter is followed by a number");
    }
    digits.parse().map_err(|_| "a number in it is above 65535")
}

fn check_ordinals(kind: XnameKind, ordinals: &[u16]) -> Result<(), &'static str> {
    use XnameKind as K;
    let last = ordinals[ordinals.len() - 1];
    if kind == K::System {
        return if last == 0 { Ok(()) } else { Err("the system is s0") };
    }
    if ordinals[0] > 9999 {
        return Err("a cabinet number has at most 4 digits");
    }
    let below_chassis = !matches!(kind, K::Cabinet | K::CabinetBmc | K::CabinetPduController);
    if below_chassis && ordinals[1] > 7 {
        return Err("a chassis number is 0 to 7");
    }
    match kind {
        K::CabinetBmc | K::ChassisBmc if last != 0 => Err("a chassis or cabinet has one BMC, b0"),
        K::CabinetPduController | K::NodeNic | K::NodeHsnNic | K::NodeBmcNic if last > 3 => {
            Err("this number is 0 to 3")
        }
        K::MgmtSwitch if last == 0 => Err("switch numbers start at 1"),
        _ => Ok(()),
    }
}

/// `p1` or `p1.2`, and nothing else between the numbers.
fn partition(text: &str) -> Result<Xname, &'static str> {
    let mut ordinals = [0; MAX_PARTS];
    let numbers = &text[1..];
    let parts = if let Some((hard, soft)) = numbers.split_once('.') {
        ordinals[0] = number(hard)?;
        ordinals[1] = number(soft)?;
        2
    } else {
        ordinals[0] = number(numbers)?;
        1
    };
    Ok(Xname { ordinals, kind: XnameKind::Partition, parts })
}

fn special(text: &str) -> Option<Xname> {
    let (word, ordinal) = match text.strip_prefix("sms") {
        Some(digits) => ("sms", number(digits).ok()?),
        None => (text, 0),
    };
    let which = SPECIAL.iter().position(|special| *special == word)?;
    let mut ordinals = [0; MAX_PARTS];
    ordinals[0] = u16::try_from(which).ok()?;
    ordinals[1] = ordinal;
    Some(Xname { ordinals, kind: XnameKind::Special, parts: 2 })
}

impl fmt::Display for Xname {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            XnameKind::System => f.write_str("s0"),
            XnameKind::Partition if self.parts == 2 => {
                write!(f, "p{}.{}", self.ordinals[0], self.ordinals[1])
            }
            XnameKind::Partition => write!(f, "p{}", self.ordinals[0]),
            XnameKind::Special => {
                let word = SPECIAL[usize::from(self.ordinals[0])];
                f.write_str(word)?;
                if word == "sms" { write!(f, "{}", self.ordinals[1]) } else { Ok(()) }
            }
            _ => {
                let letters = self.letters().expect("every other kind has letters");
                letters.chars().zip(self.ordinals).try_for_each(|(l, n)| write!(f, "{l}{n}"))
            }
        }
    }
}

impl fmt::Debug for Xname {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

as_text!(Xname, "Xname", "an xname such as x1000c0s0b0n0", None);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn kind(text: &str) -> Option<XnameKind> {
        text.parse::<Xname>().ok().map(|xname| xname.kind())
    }

    #[test]
    fn the_contracts_valid_examples_are_what_they_should_be() {
        for text in ["x1000c0s0b0n0", "x0c0s0b0n0", "x9999c7s63b0n0", "x1000c0s0b3n0"] {
            assert_eq!(kind(text), Some(XnameKind::Node), "{text}");
            assert_eq!(text.parse::<Xname>().unwrap().to_string(), text);
        }
        for (text, canonical) in [
            ("X1000C0S0B0N0", "x1000c0s0b0n0"),
            (" x1000c0s0b0n0 ", "x1000c0s0b0n0"),
            ("x01000c00s01b0n0", "x1000c0s1b0n0"),
            ("x1000c0s0b0n00", "x1000c0s0b0n0"),
            ("p01", "p1"),
        ] {
            assert_eq!(text.parse::<Xname>().unwrap().to_string(), canonical, "{text}");
        }
        for (text, wanted) in [
            ("x1000c0s0b0n0v1", XnameKind::VirtualNode),
            ("x1000c0s0b0", XnameKind::NodeBmc),
            ("x1000c0s0", XnameKind::ComputeModule),
            ("x1000c0b0", XnameKind::ChassisBmc),
            ("x1000", XnameKind::Cabinet),
            ("x1000c0s0b0n0i3", XnameKind::NodeNic),
            ("x1000c0s0b0n0h0", XnameKind::NodeHsnNic),
            ("x1000c0s0b0i0", XnameKind::NodeBmcNic),
            ("x1000b0", XnameKind::CabinetBmc),
            ("x1000m3", XnameKind::CabinetPduController),
            ("x1000c0r1b0", XnameKind::RouterBmc),
            ("x3000c0w1", XnameKind::MgmtSwitch),
            ("p1", XnameKind::Partition),
            ("p1.2", XnameKind::Partition),
            ("s0", XnameKind::System),
            ("all", XnameKind::Special),
            ("sms1", XnameKind::Special),
        ] {
            assert_eq!(kind(text), Some(wanted), "{text}");
            assert_eq!(text.parse::<Xname>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn the_contracts_invalid_examples_are_refused() {
        for text in [
            "x10000c0s0b0n0",
            "x1000c8s0b0n0",
            "x1000c0b1",
            "x3000c0w0",
            "x1000c0s0b0n0i4",
            "x1000c0s0b0n",
            "nid000001",
            "node1",
            "",
            "p1x2",
            "p1-2",
            "s1",
            "xä",
            "x1000c0s0b0n0v1i0",
            "x1c0s70000b0n0",
            "x",
            "sms",
            "p",
            "p1.",
        ] {
            assert!(text.parse::<Xname>().is_err(), "{text}");
        }
    }

    #[test]
    fn parents_lead_up_to_the_system() {
        let node: Xname = "x1000c0s0b0n0".parse().unwrap();
        let line: Vec<_> =
            std::iter::successors(Some(node), Xname::parent).map(|x| x.to_string()).collect();
        let up = ["x1000c0s0b0n0", "x1000c0s0b0", "x1000c0s0", "x1000c0", "x1000", "s0"];
        assert_eq!(line, up);
    }

    #[test]
    fn slots_sort_as_numbers() {
        let nine: Xname = "x1c0s9b0n0".parse().unwrap();
        let ten: Xname = "x1c0s10b0n0".parse().unwrap();
        assert!(nine < ten);
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parser_panic(text in "[a-zA-Zä0-9. _]{0,70}") {
            if let Ok(xname) = text.parse::<Xname>() {
                prop_assert_eq!(xname.to_string().parse(), Ok(xname));
                let _ = xname.parent();
            }
        }
    }
}
