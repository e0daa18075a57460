//! The query of a boot script request.

use std::borrow::Cow;

use hoist_model::{BssKey, Mac, Nid, Node};
use hoist_site::Roster;
use std::sync::Arc;

use crate::bss;

/// Longest query worth reading; firmware sends a hundred bytes.
const MAX_QUERY: usize = 2048;

/// One request for a boot script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BootRequest<'q> {
    pub who: BootRequester<'q>,
    /// iPXE's `${buildarch}`.
    pub arch: Option<Cow<'q, str>>,
    /// How often booting failed so far.
    pub retry: u32,
    /// How often the machine was sent away to ask again.
    pub wait: u32,
    /// When it was sent away, in seconds.
    pub ts: Option<i64>,
    /// Parts instead of a script.
    pub json: bool,
}

/// The machine or node that a request names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BootRequester<'q> {
    /// With the spelling it used, if that was six pairs.
    Mac(Mac, Option<Cow<'q, str>>),
    Name(Cow<'q, str>),
    Nid(Nid),
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadQuery {
    #[error("Need a mac=, name=, or nid= parameter")]
    Nobody,
    #[error("the query is longer than {MAX_QUERY} bytes")]
    TooLong,
    #[error("`{0}` is not a MAC address; write it like 52:54:00:12:34:56")]
    Mac(String),
    #[error("name= takes letters, digits and `-` `.` `_` `:`")]
    Name,
    #[error("arch= takes letters, digits, `-` and `_`")]
    Arch,
}

impl<'q> BootRequest<'q> {
    pub fn parse(query: &'q str) -> Result<Self, BadQuery> {
        if query.len() > MAX_QUERY {
            return Err(BadQuery::TooLong);
        }
        let mut found = QueryFields::default();
        for pair in query.split('&') {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let slot = match name {
                "mac" => &mut found.mac,
                "name" => &mut found.name,
                "nid" => &mut found.nid,
                "arch" => &mut found.arch,
                "retry" => &mut found.retry,
                "wait" => &mut found.wait,
                "ts" => &mut found.ts,
                "json" => &mut found.json,
                _ => continue,
            };
            glue(slot, decode(value));
        }
        let arch = found.arch.filter(|arch| !arch.is_empty());
        if arch.as_ref().is_some_and(|arch| !is_word(arch, "-_", 32)) {
            return Err(BadQuery::Arch);
        }
        let number = |text: Option<Cow<'_, str>>| text.and_then(|text| integer(&text)).unwrap_or(0);
        Ok(Self {
            who: who(found.mac, found.name, found.nid)?,
            arch,
            retry: u32::try_from(number(found.retry)).unwrap_or(0),
            wait: u32::try_from(number(found.wait)).unwrap_or(0),
            ts: found.ts.and_then(|text| integer(&text)),
            json: number(found.json) != 0,
        })
    }
}

#[derive(Default)]
struct QueryFields<'q> {
    mac: Option<Cow<'q, str>>,
    name: Option<Cow<'q, str>>,
    nid: Option<Cow<'q, str>>,
    arch: Option<Cow<'q, str>>,
    retry: Option<Cow<'q, str>>,
    wait: Option<Cow<'q, str>>,
    ts: Option<Cow<'q, str>>,
    json: Option<Cow<'q, str>>,
}

/// The first non-empty key; an invalid MAC or nid counts as absent. An invalid MAC alone is an
/// unknown name: BSS does not check the syntax of names.
fn who<'q>(
    mac: Option<Cow<'q, str>>,
    name: Option<Cow<'q, str>>,
    nid: Option<Cow<'q, str>>,
) -> Result<BootRequester<'q>, BadQuery> {
    let mac = mac.filter(|text| !text.is_empty());
    if let Some(parsed) = mac.as_ref().and_then(|text| text.parse().ok()) {
        // Nothing around it, which the parser forgives: scripts repeat the spelling.
        let is_bare = |text: &Cow<'_, str>| text.len() == 17 && text.trim() == text;
        return Ok(BootRequester::Mac(parsed, mac.filter(is_bare)));
    }
    if let Some(name) = name.filter(|text| !text.is_empty()) {
        return if is_name(&name) { Ok(BootRequester::Name(name)) } else { Err(BadQuery::Name) };
    }
    let nid = nid.and_then(|text| integer(&text)).and_then(|nid| u32::try_from(nid).ok());
    match (nid.map(Nid::new), mac) {
        (Some(nid), _) => Ok(BootRequester::Nid(nid)),
        (None, Some(text)) if is_name(&text) => Ok(BootRequester::Name(text)),
        (None, Some(text)) => Err(BadQuery::Mac(text.chars().take(40).collect())),
        (None, None) => Err(BadQuery::Nobody),
    }
}

fn is_name(text: &str) -> bool {
    is_word(text, "-._:", 128)
}

/// Given twice, the values are one text: so BSS reads them.
fn glue<'q>(slot: &mut Option<Cow<'q, str>>, value: Cow<'q, str>) {
    *slot = Some(match slot.take() {
        Some(before) => Cow::Owned(before.into_owned() + &value),
        None => value,
    });
}

fn decode(text: &str) -> Cow<'_, str> {
    if !text.contains(['%', '+']) {
        return Cow::Borrowed(text);
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [byte, tail @ ..] = rest {
        rest = tail;
        let escaped = tail.split_at_checked(2).and_then(|(digits, tail)| {
            let digits = std::str::from_utf8(digits).ok()?;
            Some((u8::from_str_radix(digits, 16).ok()?, tail))
        });
        match (*byte, escaped) {
            (b'%', Some((decoded, tail))) => {
                bytes.push(decoded);
                rest = tail;
            }
            (b'+', _) => bytes.push(b' '),
            (byte, _) => bytes.push(byte),
        }
    }
    Cow::Owned(String::from_utf8_lossy(&bytes).into_owned())
}

fn is_word(text: &str, also: &str, longest: usize) -> bool {
    text.len() <= longest && text.chars().all(|c| c.is_ascii_alphanumeric() || also.contains(c))
}

/// Decimal, or with `0x`, `0o`, `0b` in front.
pub fn integer(text: &str) -> Option<i64> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    if digits.starts_with(['+', '-']) {
        return None;
    }
    let radix = |prefixes: [&str; 2]| prefixes.iter().find_map(|p| digits.strip_prefix(p));
    let number = if let Some(digits) = radix(["0x", "0X"]) {
        i64::from_str_radix(digits, 16).ok()?
    } else if let Some(digits) = radix(["0o", "0O"]) {
        i64::from_str_radix(digits, 8).ok()?
    } else if let Some(digits) = radix(["0b", "0B"]) {
        i64::from_str_radix(digits, 2).ok()?
    } else {
        digits.parse().ok()?
    };
    (number >= 0).then_some(sign * number)
}

impl BootRequester<'_> {
    pub fn node<'r>(&self, roster: &'r Roster) -> Option<&'r Arc<Node>> {
        match self {
            Self::Mac(mac, _) => roster.by_mac(*mac),
            Self::Name(name) => bss::node_of_host(roster, name),
            Self::Nid(nid) => roster.by_nid(*nid),
        }
    }

    /// The key of a record written under the machine's own identifier.
    pub fn key(&self) -> Option<BssKey> {
        match self {
            Self::Mac(mac, _) => Some(BssKey::Mac(*mac)),
            Self::Name(name) => name.parse().ok(),
            Self::Nid(nid) => Some(BssKey::Nid(*nid)),
        }
    }

    /// `mac=…`, `name=…` or `nid=…`, as a machine would ask again.
    pub fn query(&self) -> String {
        match self {
            Self::Mac(mac, _) => format!("mac={mac}"),
            Self::Name(name) => format!("name={name}"),
            Self::Nid(nid) => format!("nid={nid}"),
        }
    }

    /// The value of `BOOTIF=`: in the case the machine used.
    pub fn bootif(&self) -> Option<String> {
        match self {
            Self::Mac(_, Some(spelled)) => Some(format!("01-{}", spelled.replace(':', "-"))),
            Self::Mac(mac, None) => Some(format!("01-{}", mac.to_string().replace(':', "-"))),
            Self::Name(_) | Self::Nid(_) => None,
        }
    }
}

impl std::fmt::Display for BootRequester<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Mac(mac, _) => write!(f, "mac {mac}"),
            Self::Name(name) => write!(f, "name {name}"),
            Self::Nid(nid) => write!(f, "nid {nid}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_first_that_is_not_empty_says_who_asks() {
        let who = |query: &str| BootRequest::parse(query).map(|asked| asked.who.query());
        assert_eq!(who("mac=A4-BF-01-3C-5E-70&name=x"), Ok("mac=a4:bf:01:3c:5e:70".to_owned()));
        assert_eq!(who("mac=a4%3Abf%3a01:3c:5e:70"), Ok("mac=a4:bf:01:3c:5e:70".to_owned()));
        assert_eq!(who("mac=&name=x1c0s0b0n0&nid=7"), Ok("name=x1c0s0b0n0".to_owned()));
        assert_eq!(who("nid=0x10"), Ok("nid=16".to_owned()));
        assert_eq!(who("nid=0"), Ok("nid=0".to_owned()));
        for nid in ["-1", "abc", "99999999999999999999", "4294967296", "0x", "--1"] {
            assert_eq!(who(&format!("nid={nid}")), Err(BadQuery::Nobody), "{nid}");
        }
        assert_eq!(who(""), Err(BadQuery::Nobody));
        let long = "00:11:22:33:44:55:66:77";
        assert_eq!(who(&format!("mac={long}")), Ok(format!("name={long}")));
        assert_eq!(who("mac=zz&name=x1c0s0b0n0"), Ok("name=x1c0s0b0n0".to_owned()));
        assert_eq!(who("mac=zz&nid=7"), Ok("nid=7".to_owned()));
        assert!(matches!(who("mac=z%0Az"), Err(BadQuery::Mac(_))));
        assert_eq!(who("name=a%0Ab"), Err(BadQuery::Name));
        assert_eq!(BootRequest::parse("nid=1&arch=a%0Ab"), Err(BadQuery::Arch));
        assert_eq!(BootRequest::parse(&"a".repeat(3000)), Err(BadQuery::TooLong));
    }

    #[test]
    fn the_interface_is_named_in_the_case_the_machine_used() {
        let bootif = |query: &str| BootRequest::parse(query).unwrap().who.bootif();
        assert_eq!(bootif("mac=A4:bf:01:3c:5e:70").as_deref(), Some("01-A4-bf-01-3c-5e-70"));
        assert_eq!(bootif("mac=a4bf013c5e70").as_deref(), Some("01-a4-bf-01-3c-5e-70"));
        assert_eq!(bootif("nid=1"), None);
        for around in ["%0a%0a525400000001%0a%0a%0a", "+525400000001++++"] {
            let bootif = bootif(&format!("mac={around}"));
            assert_eq!(bootif.as_deref(), Some("01-52-54-00-00-00-01"), "{around}");
        }
    }

    proptest! {
        #[test]
        fn any_query_is_read_or_refused(query in ".{0,200}") {
            if let Ok(asked) = BootRequest::parse(&query) {
                let again = asked.who.query();
                prop_assert!(again.chars().all(|c| c.is_ascii_graphic()));
                let bootif = asked.who.bootif().unwrap_or_default();
                prop_assert!(bootif.chars().all(|c| c.is_ascii_graphic()));
                prop_assert_eq!(BootRequest::parse(&again).unwrap().who.query(), again);
            }
        }
    }
}
