//! The boot outcome of a node in a form that can be compared.

use hoist_model::{BootAction, BootMode, Node};
use hoist_site::Roster;
use jiff::Timestamp;

use crate::answer::{self, Booter, RequestOrigin, asked_by};
use crate::command_line::{Origin, resolve, resolve_in};
use crate::select::{BootContext, Choice, Source, Table};
use crate::skeleton::NOWHERE;

/// Everything a person would notice when the machine boots. Addresses of controllers and tokens
/// are left out: they differ without a difference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BootOutcome {
    pub doing: BootAction,
    /// The booted configuration, if the node boots one.
    pub booted: Option<BootedConfig>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BootedConfig {
    /// The configuration, or `bss:…`.
    pub name: String,
    pub images: Images,
    pub line: String,
    pub template: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Images {
    pub kernel: String,
    pub initrd: Vec<String>,
}

/// The node's action, given its choice.
pub fn doing(node: &Node, standing: BootContext<'_>, choice: Option<&Choice>) -> BootAction {
    if !node.spec.enabled {
        return BootAction::Disabled;
    }
    if standing.provisioning(node).is_some() {
        return BootAction::Provision;
    }
    match answer::mode(node, standing, choice) {
        BootMode::Disk => BootAction::Disk,
        BootMode::Hold => BootAction::Hold,
        mode @ (BootMode::Live | BootMode::Install) => match choice {
            Some(choice) if !choice.boots() => BootAction::Wait,
            Some(choice) if choice.installs() || mode == BootMode::Install => BootAction::Install,
            Some(_) => BootAction::Boot,
            None => BootAction::Wait,
        },
    }
}

/// The kernel and initrds of a choice, with artifacts as URLs under `base`.
pub fn images(roster: &Roster, base: &str, choice: &Choice) -> Images {
    let one = |url: &String| resolve(roster, base, url);
    match &choice.source {
        Source::Config(config) => Images {
            kernel: one(&config.spec.kernel),
            initrd: config.spec.initrd.iter().map(one).collect(),
        },
        Source::Bss(record) => Images {
            kernel: one(&record.kernel),
            initrd: Some(&record.initrd)
                .filter(|url| !url.is_empty())
                .map(one)
                .into_iter()
                .collect(),
        },
    }
}

/// The outcome by the roster alone: unsaved one-time boots do not count.
pub fn of(booter: &Booter, roster: &Roster, table: &Table, node: &Node) -> BootOutcome {
    let state = roster.boot_state(node.id).map(AsRef::as_ref);
    let standing = BootContext::new(state);
    let asked = asked_by(roster, node).who.key();
    let choice = table.best(roster, node, asked.as_ref(), standing);
    let doing = doing(node, standing, choice.as_ref());
    let boots_choice = doing.boots() && doing != BootAction::Provision;
    let booted = choice.filter(|_| boots_choice).map(|choice| {
        // A seed needs a place, whichever it is.
        let place = RequestOrigin { host: Some(NOWHERE), ..RequestOrigin::default() };
        // Nothing of it depends on the time.
        let mut line = booter.parts_of(roster, table, node, &choice, place, Timestamp::UNIX_EPOCH);
        line.parts.retain(|part| part.origin != Origin::Referral);
        BootedConfig {
            name: choice.name(),
            images: images(roster, "", &choice),
            line: resolve_in(roster, "", &line.text()),
            template: match &choice.source {
                Source::Config(config) => config.spec.template.clone(),
                Source::Bss(_) => None,
            },
        }
    });
    BootOutcome { doing, booted }
}

impl BootOutcome {
    /// The configuration, or the action that replaces booting.
    pub fn told(&self) -> String {
        match &self.booted {
            Some(booted) => booted.name.clone(),
            None => self.doing.to_string(),
        }
    }
}
