//! Where a node stands in its booting: what it is to do the next time it asks.
//!
//! Most nodes have no record at all and boot whatever their configuration says.

use std::collections::BTreeMap;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Mac, Name, NodeId, Xname};

/// What was decided about one node's booting, by people or by what the node reported.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BootState {
    pub node: NodeId,
    /// `None`: what its boot configuration says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<BootMode>,
    /// The configuration of the next boot only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub once: Option<Name>,
    /// That configuration may install the node although it is installed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reinstall: bool,
    /// Which further configurations are open to the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<Name>,
    /// Configurations marked `once` that the node has had, with their revision: a changed one
    /// counts as new unless it installs.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub spent: BTreeMap<Name, u64>,
    /// The boot it was last given a configuration for one boot in. Gone with its next boot, with
    /// what people decide meanwhile, and when it reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub given: Option<Given>,
    /// What installs it, from when it was handed out until the node reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub installing: Option<Name>,
    /// Since when the node has something on its disk to boot from: what installs is not given to
    /// it again unless somebody says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub installed: Option<Timestamp>,
    /// It is being provisioned: until that is over it boots the agent, whatever else was decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provisioning: Option<Provisioning>,
    /// The node is gone; that it is installed waits for it to come back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub was: Option<Was>,
    /// When people last decided on its mode or its next boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub decided: Option<Timestamp>,
    /// Why, in the words of who said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Who said so: a token's name, `phone-home`, `agent`.
    pub by: String,
    #[schemars(with = "String")]
    pub since: Timestamp,
    pub revision: u64,
}

/// A configuration for one boot, handed out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Given {
    pub config: Name,
    /// Of the configuration: a changed one is not what was given.
    pub revision: u64,
    #[schemars(with = "String")]
    pub at: Timestamp,
    /// It was named for the node's next boot; otherwise it is marked `once`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub named: bool,
    /// It might install the node although it was installed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reinstall: bool,
}

/// What a node boots the agent for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Provisioning {
    pub run: String,
    pub profile: Name,
    /// Of the node's arming. Its token is made of this and of the site's key, so that a script can
    /// carry it without anything being looked up; alone it is worth nothing.
    pub nonce: [u8; 16],
}

/// The machine that a removed node was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Was {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub xname: Option<Xname>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub macs: Vec<Mac>,
}

/// What follows from handing out a kernel to a node: [`BootState::hand_out`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HandOut {
    pub at: Timestamp,
    /// The decision it was made under: [`BootState::decided`].
    pub decided: Option<Timestamp>,
    /// It is for one boot.
    pub given: Option<Given>,
    /// It is marked `once`.
    pub spends: bool,
    /// It installs.
    pub installing: Option<Name>,
}

#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema, PartialOrd, Ord,
)]
#[serde(rename_all = "lowercase")]
pub enum BootMode {
    /// Boots its configuration, every time.
    Live,
    /// Boots its configuration to install itself; when it reports that it did, it goes to `disk`.
    Install,
    /// Leaves the network boot for the disk.
    Disk,
    /// Waits until told otherwise.
    Hold,
}

/// What a node does when it asks what to boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Doing {
    /// It boots a kernel.
    Boot,
    /// It boots what installs it.
    Install,
    /// It boots the agent, to be provisioned.
    Provision,
    /// It leaves for its disk.
    Disk,
    /// It waits because somebody said so.
    Hold,
    /// It waits because nothing was written for it.
    Wait,
    /// It is turned away.
    Disabled,
}

impl Doing {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Boot => "boot",
            Self::Install => "install",
            Self::Provision => "provision",
            Self::Disk => "disk",
            Self::Hold => "hold",
            Self::Wait => "wait",
            Self::Disabled => "disabled",
        }
    }

    /// Whether it gets a kernel from the network.
    pub fn boots(self) -> bool {
        matches!(self, Self::Boot | Self::Install | Self::Provision)
    }
}

impl std::fmt::Display for Doing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

impl BootMode {
    pub const ALL: [Self; 4] = [Self::Live, Self::Install, Self::Disk, Self::Hold];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::Install => "install",
            Self::Disk => "disk",
            Self::Hold => "hold",
        }
    }
}

impl std::fmt::Display for BootMode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

impl BootState {
    pub fn new(node: NodeId, by: impl Into<String>, now: Timestamp) -> Self {
        Self {
            node,
            mode: None,
            once: None,
            reinstall: false,
            profile: None,
            spent: BTreeMap::new(),
            given: None,
            installing: None,
            installed: None,
            provisioning: None,
            was: None,
            decided: None,
            reason: None,
            by: by.into(),
            since: now,
            revision: 0,
        }
    }

    /// Whether it says nothing beyond what holds without it.
    pub fn is_blank(&self) -> bool {
        self.mode.is_none()
            && self.once.is_none()
            && self.profile.is_none()
            && self.spent.is_empty()
            && self.given.is_none()
            && self.installing.is_none()
            && self.installed.is_none()
            && self.provisioning.is_none()
    }

    /// Takes note of what was handed out. What was decided or reported after that stands: a note
    /// may come late, and it may come twice.
    pub fn hand_out(&mut self, out: &HandOut) {
        let stands = self.decided == out.decided;
        let reported = self.installed.is_some_and(|at| at >= out.at);
        if let Some(given) = &out.given {
            if out.spends {
                self.spent.insert(given.config.clone(), given.revision);
            }
            if stands && given.named && self.once.as_ref() == Some(&given.config) {
                self.once = None;
                self.reinstall = false;
            }
        }
        if stands && !reported {
            self.given.clone_from(&out.given);
        }
        if !reported {
            self.installing.clone_from(&out.installing);
        }
    }

    /// Somebody decides on the mode or the next boot: what was given before is taken back.
    pub fn decide(&mut self, now: Timestamp, decide: impl FnOnce(&mut Self)) {
        let said = |state: &Self| (state.mode, state.once.clone(), state.reinstall);
        let before = said(self);
        decide(self);
        if self.given.take().is_some() || said(self) != before {
            self.decided = Some(now);
        }
    }

    /// The node reports that it has installed itself. What people decided meanwhile stays.
    pub fn report_installed(&mut self, now: Timestamp) {
        if matches!(self.mode, None | Some(BootMode::Install)) {
            self.mode = Some(BootMode::Disk);
            self.reason = None;
        }
        // Reports repeat themselves; only the first one after an installation is news.
        if self.installing.take().is_some() || self.installed.is_none() {
            self.installed = Some(now);
        }
        self.given = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// `rescue` is named for the next boot at second 1 and handed out at second 2.
    fn handed_out() -> (BootState, HandOut) {
        let mut state = BootState::new(NodeId::from_bits(1), "test", at(0));
        let rescue: Name = "rescue".parse().unwrap();
        state.decide(at(1), |state| state.once = Some(rescue.clone()));
        let given = Given { config: rescue, revision: 7, at: at(2), named: true, reinstall: false };
        let decided = state.decided;
        let out =
            HandOut { at: at(2), decided, given: Some(given), spends: true, installing: None };
        (state, out)
    }

    #[test]
    fn a_hand_out_is_noted_once_however_often_it_is_told() {
        let (mut state, out) = handed_out();
        state.hand_out(&out);
        assert_eq!((&state.once, &state.given), (&None, &out.given));
        let noted = state.clone();
        state.hand_out(&out);
        assert_eq!(state, noted);
    }

    #[test]
    fn a_late_note_takes_nothing_from_what_was_decided_or_reported_meanwhile() {
        let (mut state, out) = handed_out();
        state.decide(at(3), |state| state.once = None);
        state.decide(at(4), |state| state.once = Some("rescue".parse().unwrap()));
        state.hand_out(&out);
        assert!(state.once.is_some() && state.given.is_none(), "it was named again: {state:?}");
        assert_eq!(state.spent.len(), 1);

        let (mut state, out) = handed_out();
        let out = HandOut { installing: Some("rescue".parse().unwrap()), ..out };
        state.report_installed(at(3));
        state.hand_out(&out);
        assert!(state.once.is_none() && state.given.is_none() && state.installing.is_none());
    }

    #[test]
    fn saying_again_what_holds_is_no_decision_unless_it_takes_something_back() {
        let (mut state, out) = handed_out();
        let before = state.clone();
        state.decide(at(3), |state| state.once = Some("rescue".parse().unwrap()));
        assert_eq!(state, before);
        state.hand_out(&out);
        state.decide(at(4), |state| state.once = None);
        assert_eq!((state.given, state.decided), (None, Some(at(4))));
    }

    #[test]
    fn records_of_before_are_read() {
        let text = r#"{"node": "00000000000000000000000001", "mode": "disk", "once": "rescue",
            "spent": {"flash": 3}, "by": "admin", "since": "2026-01-01T00:00:00Z", "revision": 5}"#;
        let node = NodeId::from_bits(1);
        let text = text.replace("00000000000000000000000001", &node.to_string());
        let state: BootState = serde_json::from_str(&text).unwrap();
        assert_eq!((state.node, state.reinstall, state.decided), (node, false, None));
    }
}
