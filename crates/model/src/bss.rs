//! Boot parameters as the Boot Script Service (BSS) keeps them: one record per key, and parameters
//! that belong to an image.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::text::as_text;
use crate::{Mac, Nid, NodeId, Xname};

/// Longest tag.
const MAX_TAG: usize = 128;

/// The key of a record. Only the spelling distinguishes the kinds.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BssKey {
    Xname(Xname),
    Mac(Mac),
    Nid(Nid),
    /// `Default`, `Global`, `Unknown-<arch>`, a role, a subrole, a group, or a node's name.
    Tag(String),
    /// A node that has no xname, and whose name reads like something else: `@` and its id.
    Id(NodeId),
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseBssKeyError {
    #[error("a host name cannot be empty")]
    Empty,
    #[error("a host name has at most {MAX_TAG} characters, without blanks and control characters")]
    Wrong,
}

/// The boot parameters of one key.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BssRecord {
    pub key: BssKey,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub kernel: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub initrd: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub params: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cloud_init: Option<Box<CloudInit>>,
    /// New with every POST and PUT; nodes carry it on their command line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub referral_token: Option<String>,
    #[serde(default)]
    pub revision: u64,
}

impl BssRecord {
    /// Whether it is the image for unknown machines of an architecture.
    pub fn is_for_unknown_machines(&self) -> bool {
        matches!(&self.key, BssKey::Tag(tag) if tag.starts_with("Unknown-"))
    }
}

/// The cloud-init part of a record, in BSS's own spelling.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct CloudInit {
    #[serde(rename = "meta-data", default)]
    pub meta_data: Option<serde_json::Value>,
    #[serde(rename = "user-data", default)]
    pub user_data: Option<serde_json::Value>,
    #[serde(rename = "phone-home", default)]
    pub phone_home: PhoneHome,
}

/// The report of a booted node about itself.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct PhoneHome {
    #[serde(default)]
    pub pub_key_dsa: String,
    #[serde(default)]
    pub pub_key_rsa: String,
    #[serde(default)]
    pub pub_key_ecdsa: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub pub_key_ed25519: String,
    #[serde(default)]
    pub instance_id: String,
    #[serde(default)]
    pub hostname: String,
    #[serde(default)]
    pub fqdn: String,
}

/// Parameters of a kernel or initrd, for every node that boots it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BssImage {
    pub image: BssImageKey,
    pub params: String,
    #[serde(default)]
    pub revision: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BssImageKey {
    pub kind: ImageKind,
    pub path: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ImageKind {
    Kernel,
    Initrd,
}

impl CloudInit {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl PhoneHome {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl BssKey {
    pub const DEFAULT: &'static str = "Default";
    pub const GLOBAL: &'static str = "Global";

    /// The record for unknown machines of an architecture.
    pub fn unknown(arch: &str) -> Self {
        Self::Tag(format!("Unknown-{arch}"))
    }

    pub fn tag(word: impl Into<String>) -> Self {
        Self::Tag(word.into())
    }

    /// The key of a name's record; the id, if the name reads like an xname, a MAC address or a nid.
    pub fn of_name(name: &str, id: NodeId) -> Self {
        match name.parse() {
            Ok(tag @ Self::Tag(_)) => tag,
            _ => Self::Id(id),
        }
    }
}

impl FromStr for BssKey {
    type Err = ParseBssKeyError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.is_empty() {
            return Err(ParseBssKeyError::Empty);
        }
        if let Ok(xname) = text.parse::<Xname>()
            && xname.is_node()
        {
            return Ok(Self::Xname(xname));
        }
        if text.contains([':', '-', '.'])
            && let Ok(mac) = text.parse()
        {
            return Ok(Self::Mac(mac));
        }
        if let Some(Ok(nid)) = text.strip_prefix("nid").map(str::parse) {
            return Ok(Self::Nid(nid));
        }
        if let Some(Ok(id)) = text.strip_prefix('@').map(str::parse) {
            return Ok(Self::Id(id));
        }
        let wrong = |c: char| c.is_control() || c.is_whitespace();
        if text.len() > MAX_TAG || text.contains(wrong) {
            return Err(ParseBssKeyError::Wrong);
        }
        Ok(Self::Tag(text.to_owned()))
    }
}

impl fmt::Display for BssKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Xname(xname) => xname.fmt(f),
            Self::Mac(mac) => mac.fmt(f),
            Self::Nid(nid) => write!(f, "nid{nid}"),
            Self::Tag(tag) => f.pad(tag),
            Self::Id(id) => write!(f, "@{id}"),
        }
    }
}

as_text!(BssKey, "BssKey", "an xname, a MAC address, `nid<number>` or a tag", None);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn spelling_tells_the_kinds_apart() {
        let key = |text: &str| text.parse::<BssKey>().unwrap();
        assert!(matches!(key("x1203c4s2b1n0"), BssKey::Xname(_)));
        assert!(matches!(key("A4:BF:01:3C:5E:70"), BssKey::Mac(_)));
        for spelled in ["a4-bf-01-3c-5e-70", "a4bf.013c.5e70", "01-A4-BF-01-3C-5E-70"] {
            assert_eq!(key(spelled), key("A4:BF:01:3C:5E:70"));
        }
        assert_eq!(key("X1203C4S2B1N0"), key("x1203c4s2b1n0"));
        assert!(matches!(key("nid48"), BssKey::Nid(_)));
        assert!(matches!(key("nid0"), BssKey::Nid(_)));
        for tag in ["Default", "Unknown-x86_64", "Compute", "x1203c4s2b1", "nid-1", "a4bf013c5e70"]
        {
            assert_eq!(key(tag), BssKey::Tag(tag.to_owned()));
        }
        assert_eq!("".parse::<BssKey>(), Err(ParseBssKeyError::Empty));
        assert_eq!("a b".parse::<BssKey>(), Err(ParseBssKeyError::Wrong));
    }

    proptest! {
        #[test]
        fn keys_print_as_something_that_parses_to_themselves(text in ".{0,140}") {
            if let Ok(key) = text.parse::<BssKey>() {
                prop_assert_eq!(key.to_string().parse(), Ok(key));
            }
        }
    }
}
