//! The boot state of a node: decisions about its next boots.
//!
//! Most nodes have no record at all and boot by their configuration.

use std::collections::BTreeMap;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Mac, Name, NodeId, Xname};

/// The decisions about one node's booting, made by people or by the node's reports.
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
    /// The last one-time boot of the node. Cleared by its next boot, by a new decision, and by its
    /// report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub given: Option<ServedConfig>,
    /// What installs it, from when it was handed out until the node reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub installing: Option<Name>,
    /// Since when the node has a system on its disk: an installer is not served again unless an
    /// operator asks for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub installed: Option<Timestamp>,
    /// It is being provisioned: until that is over it boots the agent, whatever else was decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provisioning: Option<Provisioning>,
    /// The node is gone; that it is installed waits for it to come back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub was: Option<RemovedMachine>,
    /// When people last decided on its mode or its next boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub decided: Option<Timestamp>,
    /// The reason, as given by the author.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The author: a token's name, `phone-home`, `agent`.
    pub by: String,
    #[schemars(with = "String")]
    pub since: Timestamp,
    pub revision: u64,
}

/// A configuration for one boot, handed out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ServedConfig {
    pub config: Name,
    /// Revision of the configuration: a changed configuration is another one.
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

/// The run for which a node boots the provisioning agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Provisioning {
    pub run: String,
    pub profile: Name,
    /// Of the node's enrollment. Its token is made of this and of the site's key, so that a script
    /// can carry the token without a lookup. The nonce alone is worth nothing.
    pub nonce: [u8; 16],
}

/// The machine that a removed node was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RemovedMachine {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub xname: Option<Xname>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub macs: Vec<Mac>,
}

/// The consequence of serving a kernel to a node: [`BootState::note_served`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServedBoot {
    pub at: Timestamp,
    /// The decision it was made under: [`BootState::decided`].
    pub decided: Option<Timestamp>,
    /// It is for one boot.
    pub given: Option<ServedConfig>,
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
    /// Waits until the state is changed.
    Hold,
}

/// The action of a node when it asks for its boot script.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum BootAction {
    /// It boots a kernel.
    Boot,
    /// It boots what installs it.
    Install,
    /// Boots the provisioning agent.
    Provision,
    /// It leaves for its disk.
    Disk,
    /// Waits by an operator's decision.
    Hold,
    /// It waits because nothing was written for it.
    Wait,
    /// Its requests are refused.
    Disabled,
    /// It gets an error instead of a script.
    Fail,
}

impl BootAction {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Boot => "boot",
            Self::Install => "install",
            Self::Provision => "provision",
            Self::Disk => "disk",
            Self::Hold => "hold",
            Self::Wait => "wait",
            Self::Disabled => "disabled",
            Self::Fail => "fail",
        }
    }

    /// Whether it gets a kernel from the network.
    pub fn boots(self) -> bool {
        matches!(self, Self::Boot | Self::Install | Self::Provision)
    }
}

impl std::fmt::Display for BootAction {
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

    /// Records a served one-time boot. Later decisions and reports take precedence: a record may
    /// come late, and it may come twice.
    pub fn note_served(&mut self, out: &ServedBoot) {
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

    /// Records a decision about the mode or the next boot, which cancels an earlier one-time boot.
    pub fn decide(&mut self, now: Timestamp, decide: impl FnOnce(&mut Self)) {
        let said = |state: &Self| (state.mode, state.once.clone(), state.reinstall);
        let before = said(self);
        decide(self);
        if self.given.take().is_some() || said(self) != before {
            self.decided = Some(now);
        }
    }

    /// Records the node's report that it has installed itself. Decisions made meanwhile stay.
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
    fn served() -> (BootState, ServedBoot) {
        let mut state = BootState::new(NodeId::from_bits(1), "test", at(0));
        let rescue: Name = "rescue".parse().unwrap();
        state.decide(at(1), |state| state.once = Some(rescue.clone()));
        let given =
            ServedConfig { config: rescue, revision: 7, at: at(2), named: true, reinstall: false };
        let decided = state.decided;
        let out =
            ServedBoot { at: at(2), decided, given: Some(given), spends: true, installing: None };
        (state, out)
    }

    #[test]
    fn served_boot_counts_once_however_often_it_is_noted() {
        let (mut state, out) = served();
        state.note_served(&out);
        assert_eq!((&state.once, &state.given), (&None, &out.given));
        let noted = state.clone();
        state.note_served(&out);
        assert_eq!(state, noted);
    }

    #[test]
    fn late_note_keeps_later_decisions_and_reports() {
        let (mut state, out) = served();
        state.decide(at(3), |state| state.once = None);
        state.decide(at(4), |state| state.once = Some("rescue".parse().unwrap()));
        state.note_served(&out);
        assert!(state.once.is_some() && state.given.is_none(), "it was named again: {state:?}");
        assert_eq!(state.spent.len(), 1);

        let (mut state, out) = served();
        let out = ServedBoot { installing: Some("rescue".parse().unwrap()), ..out };
        state.report_installed(at(3));
        state.note_served(&out);
        assert!(state.once.is_none() && state.given.is_none() && state.installing.is_none());
    }

    #[test]
    fn repeated_decision_counts_only_if_it_revokes_something() {
        let (mut state, out) = served();
        let before = state.clone();
        state.decide(at(3), |state| state.once = Some("rescue".parse().unwrap()));
        assert_eq!(state, before);
        state.note_served(&out);
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
