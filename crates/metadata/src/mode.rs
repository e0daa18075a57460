//! Site settings: the provider of the nodes' documents, and the treatment of unknown machines.

use std::fmt;
use std::str::FromStr;

use hoist_model::Node;

/// Longest URL or argument that is filled in for every node: it ends on a kernel's command line.
const MAX_PATTERN: usize = 1024;

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Mode {
    /// hoist renders and serves them.
    #[default]
    Builtin,
    /// Another service, named by this kernel argument; hoist is not involved.
    External { argument: Pattern },
    /// Nodes ask hoist and are sent on.
    Redirect { url: Pattern },
    /// Nodes ask hoist, and hoist asks for them.
    Proxy { url: Pattern },
    /// No provider; the command line names none.
    None,
}

/// The answer to a machine without a node, or with a disabled one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Unknown {
    /// Ask again later.
    #[default]
    Hold,
    /// Documents that say nothing but an instance id.
    Default,
    /// Not found.
    Deny,
}

/// Text with placeholders for fields of a node: `{id}`, `{name}`, `{xname}`. The result is one
/// word.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern(Vec<Piece>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Text(String),
    Id,
    Name,
    /// The name where there is none.
    Xname,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseModeError {
    #[error("unknown mode `{0}`; use builtin, external, redirect, proxy or none")]
    Mode(String),
    #[error("unknown policy `{0}`; use hold, default or deny")]
    Policy(String),
    #[error("mode `{0}` needs the URL of the other service")]
    NoUrl(&'static str),
    #[error("mode `{0}` takes no URL")]
    Url(&'static str),
    #[error("unknown placeholder `{{{0}}}`; use {{id}}, {{name}} or {{xname}}")]
    Gap(String),
    #[error(
        "it becomes a part of the kernel's command line: at most {MAX_PATTERN} characters, \
         no blanks, quotes or `$`, and no artifact"
    )]
    Word,
    #[error("not a URL; write http://HOST:PORT/PATH or https://HOST:PORT/PATH")]
    NotHttp,
}

impl Mode {
    /// `url` and `argument` as the site wrote them; `{base}` in the argument is the URL.
    pub fn parse(word: &str, url: Option<&str>, argument: &str) -> Result<Self, ParseModeError> {
        let needed = |word| url.ok_or(ParseModeError::NoUrl(word));
        let unwanted = |word, mode| match url {
            Some(_) => Err(ParseModeError::Url(word)),
            None => Ok(mode),
        };
        match word {
            "builtin" => unwanted("builtin", Self::Builtin),
            "none" => unwanted("none", Self::None),
            "external" => {
                let argument = if argument.contains("{base}") {
                    let base = needed("external")?;
                    check_http(base)?;
                    argument.replace("{base}", base.trim_end_matches('/'))
                } else {
                    argument.to_owned()
                };
                Ok(Self::External { argument: argument.parse()? })
            }
            "redirect" => Ok(Self::Redirect { url: http(needed("redirect")?)? }),
            "proxy" => Ok(Self::Proxy { url: http(needed("proxy")?)? }),
            other => Err(ParseModeError::Mode(other.to_owned())),
        }
    }

    /// Where the documents of a node are, if hoist does not make them: a URL, or an argument.
    pub fn elsewhere(&self, node: &Node) -> Option<String> {
        match self {
            Self::External { argument: place }
            | Self::Redirect { url: place }
            | Self::Proxy { url: place } => Some(place.fill(node)),
            Self::Builtin | Self::None => None,
        }
    }

    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Builtin => "builtin",
            Self::External { .. } => "external",
            Self::Redirect { .. } => "redirect",
            Self::Proxy { .. } => "proxy",
            Self::None => "none",
        }
    }
}

fn check_http(url: &str) -> Result<(), ParseModeError> {
    let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
    let host = rest.and_then(|rest| rest.split(['/', '?', '#']).next()).unwrap_or_default();
    let plain = !host.is_empty() && !host.contains(['@', '{']) && !url.contains(['?', '#']);
    if plain { Ok(()) } else { Err(ParseModeError::NotHttp) }
}

fn http(url: &str) -> Result<Pattern, ParseModeError> {
    check_http(url)?;
    url.trim_end_matches('/').parse()
}

impl Pattern {
    pub fn fill(&self, node: &Node) -> String {
        self.0.iter().fold(String::new(), |text, piece| match piece {
            Piece::Text(piece) => text + piece,
            Piece::Id => text + &node.id.to_string(),
            Piece::Name => text + node.name.as_str(),
            Piece::Xname => match node.spec.xname {
                Some(xname) => text + &xname.to_string(),
                None => text + node.name.as_str(),
            },
        })
    }

    /// Whether it speaks TLS.
    pub fn is_plain(&self) -> bool {
        matches!(self.0.first(), Some(Piece::Text(text)) if text.starts_with("http://"))
    }
}

impl FromStr for Pattern {
    type Err = ParseModeError;

    fn from_str(text: &str) -> Result<Self, ParseModeError> {
        let plain = |c: char| c.is_ascii_graphic() && !"\"'`$\\|&<>".contains(c);
        if text.is_empty()
            || text.len() > MAX_PATTERN
            || !text.chars().all(plain)
            || text.contains("artifact:")
        {
            return Err(ParseModeError::Word);
        }
        let mut pieces = Vec::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('{') {
            let (gap, after) =
                after.split_once('}').ok_or(ParseModeError::Gap(after.to_owned()))?;
            if !before.is_empty() {
                pieces.push(Piece::Text(before.to_owned()));
            }
            pieces.push(match gap {
                "id" => Piece::Id,
                "name" => Piece::Name,
                "xname" => Piece::Xname,
                other => return Err(ParseModeError::Gap(other.to_owned())),
            });
            rest = after;
        }
        if !rest.is_empty() {
            pieces.push(Piece::Text(rest.to_owned()));
        }
        Ok(Self(pieces))
    }
}

impl FromStr for Unknown {
    type Err = ParseModeError;

    fn from_str(text: &str) -> Result<Self, ParseModeError> {
        match text {
            "hold" => Ok(Self::Hold),
            "default" => Ok(Self::Default),
            "deny" => Ok(Self::Deny),
            other => Err(ParseModeError::Policy(other.to_owned())),
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use hoist_model::NodeId;
    use jiff::Timestamp;

    use super::*;

    const NOCLOUD: &str = "ds=nocloud;s={base}/;dsmode=net";

    fn node(xname: Option<&str>) -> Node {
        let spec = serde_json::json!({"xname": xname});
        Node {
            id: NodeId::from_bits(1),
            name: "n1".parse().unwrap(),
            spec: serde_json::from_value(spec).unwrap(),
            protection: None,
            maintenance: None,
            provenance: None,
            generation: 0,
            revision: 1,
            created: Timestamp::UNIX_EPOCH,
            updated: Timestamp::UNIX_EPOCH,
        }
    }

    #[test]
    fn gaps_are_filled_with_what_is_known_of_the_node() {
        let pattern: Pattern = "http://h/{id}/{name}/{xname}".parse().unwrap();
        let id = NodeId::from_bits(1);
        let named = pattern.fill(&node(Some("x0c0s0b0n0")));
        assert_eq!(named, format!("http://h/{id}/n1/x0c0s0b0n0"));
        assert_eq!(pattern.fill(&node(None)), format!("http://h/{id}/n1/n1"));
    }

    #[test]
    fn modes_say_what_they_need() {
        let external = Mode::parse("external", Some("http://ci:27777/cloud-init/"), NOCLOUD);
        let Ok(Mode::External { argument }) = external else { panic!("{external:?}") };
        let expected = "ds=nocloud;s=http://ci:27777/cloud-init/;dsmode=net";
        assert_eq!(argument.fill(&node(None)), expected);
        let own = Mode::parse("external", None, "ds=nocloud;h={name}").unwrap();
        assert_eq!(own, Mode::External { argument: "ds=nocloud;h={name}".parse().unwrap() });
        assert_eq!(Mode::parse("builtin", None, NOCLOUD), Ok(Mode::Builtin));
        for (word, url, error) in [
            ("external", None, ParseModeError::NoUrl("external")),
            ("redirect", None, ParseModeError::NoUrl("redirect")),
            ("proxy", None, ParseModeError::NoUrl("proxy")),
            ("builtin", Some("http://h"), ParseModeError::Url("builtin")),
            ("none", Some("http://h"), ParseModeError::Url("none")),
            ("proxy", Some("ftp://h"), ParseModeError::NotHttp),
            ("proxy", Some("http://u:p@h/"), ParseModeError::NotHttp),
            ("redirect", Some("http://h/?a"), ParseModeError::NotHttp),
            ("redirect", Some("http://{name}/"), ParseModeError::NotHttp),
            ("proxy", Some("http://h/{nid}"), ParseModeError::Gap("nid".to_owned())),
            ("proxy", Some("http://h/{id"), ParseModeError::Gap("id".to_owned())),
            ("kettle", None, ParseModeError::Mode("kettle".to_owned())),
        ] {
            assert_eq!(Mode::parse(word, url, NOCLOUD), Err(error), "{word} {url:?}");
        }
    }

    #[test]
    fn an_argument_stays_one_word_of_a_script() {
        let long = "x".repeat(MAX_PATTERN + 1);
        assert!(long[1..].parse::<Pattern>().is_ok());
        for wrong in ["", "a b", "a\nchain b", "a||b", "${net0}", "artifact:x", "\u{e9}", &long] {
            assert_eq!(wrong.parse::<Pattern>(), Err(ParseModeError::Word), "{wrong}");
        }
    }
}
