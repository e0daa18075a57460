//! A group of nodes inside a partition: listed one by one, or computed by a selector.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use hoist_diagnostic::Diagnostic;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::name::ParseNameError;
use crate::text::as_text;
use crate::{GroupName, Name, Selector};

/// `PARTITION/NAME`. The partition may be omitted for the default one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupKey {
    pub partition: Name,
    pub name: GroupName,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GroupSpec {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// A node's groups are applied in the order (priority, name); the later one wins.
    #[serde(default)]
    pub priority: i32,
    /// A node is in at most one of the groups that name the same set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exclusive_set: Option<Name>,
    /// Names of the members. Membership is kept on the nodes: writing this list sets it there in
    /// the same transaction, leaving it out changes no membership.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub members: Option<BTreeSet<Name>>,
    /// Computed membership; the alternative to `members`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<Selector>,
}

/// A group as the site keeps it (without `members`, which live on the nodes).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Group {
    pub partition: Name,
    pub name: GroupName,
    pub spec: GroupSpec,
    pub revision: u64,
}

impl Group {
    pub fn key(&self) -> GroupKey {
        GroupKey { partition: self.partition.clone(), name: self.name.clone() }
    }
}

impl GroupSpec {
    pub fn check(&self) -> Vec<Diagnostic> {
        if self.members.is_some() && self.selector.is_some() {
            let diagnostic =
                Diagnostic::new("members", "a group has `members` or a `selector`, not both");
            return vec![diagnostic.hint("remove one of them")];
        }
        Vec::new()
    }
}

impl FromStr for GroupKey {
    type Err = ParseNameError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once('/') {
            Some((partition, name)) => {
                Ok(Self { partition: partition.parse()?, name: name.parse()? })
            }
            None => Ok(Self { partition: Name::default_partition(), name: text.parse()? }),
        }
    }
}

impl fmt::Display for GroupKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.partition, self.name)
    }
}

as_text!(GroupKey, "GroupKey", "a group written as PARTITION/NAME", None);
