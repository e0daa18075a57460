//! What a node comes to when it asks what to boot, in a form that can be compared.

use hoist_inventory::Roster;
use hoist_model::{BootMode, Doing, Node};
use jiff::Timestamp;

use crate::answer::{self, Booter, Place, asked_by};
use crate::command_line::{Origin, resolve, resolve_in};
use crate::select::{Choice, Source, Standing, Table};
use crate::skeleton::NOWHERE;

/// Everything a person would notice when the machine boots. Addresses of controllers and tokens
/// are left out: they differ without a difference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    pub doing: Doing,
    /// What it boots, where it boots.
    pub booted: Option<Booted>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Booted {
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

/// What a node does with what was chosen for it.
pub fn doing(node: &Node, standing: Standing<'_>, choice: Option<&Choice>) -> Doing {
    if !node.spec.enabled {
        return Doing::Disabled;
    }
    if standing.provisioning(node).is_some() {
        return Doing::Provision;
    }
    match answer::mode(node, standing, choice) {
        BootMode::Disk => Doing::Disk,
        BootMode::Hold => Doing::Hold,
        mode @ (BootMode::Live | BootMode::Install) => match choice {
            Some(choice) if !choice.boots() => Doing::Wait,
            Some(choice) if choice.installs() || mode == BootMode::Install => Doing::Install,
            Some(_) => Doing::Boot,
            None => Doing::Wait,
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

/// As the roster alone decides it: what was handed out but is not written yet does not count.
pub fn of(booter: &Booter, roster: &Roster, table: &Table, node: &Node) -> Outcome {
    let state = roster.boot_state(node.id).map(AsRef::as_ref);
    let standing = Standing::new(state);
    let asked = asked_by(roster, node).who.key();
    let choice = table.best(roster, node, asked.as_ref(), standing);
    let doing = doing(node, standing, choice.as_ref());
    let boots_choice = doing.boots() && doing != Doing::Provision;
    let booted = choice.filter(|_| boots_choice).map(|choice| {
        // A seed needs a place, whichever it is.
        let place = Place { host: Some(NOWHERE), ..Place::default() };
        // Nothing of it depends on the time.
        let mut line = booter.parts_of(roster, table, node, &choice, place, Timestamp::UNIX_EPOCH);
        line.parts.retain(|part| part.origin != Origin::Referral);
        Booted {
            name: choice.name(),
            images: images(roster, "", &choice),
            line: resolve_in(roster, "", &line.text()),
            template: match &choice.source {
                Source::Config(config) => config.spec.template.clone(),
                Source::Bss(_) => None,
            },
        }
    });
    Outcome { doing, booted }
}

impl Outcome {
    /// The configuration, or what it does instead of booting one.
    pub fn told(&self) -> String {
        match &self.booted {
            Some(booted) => booted.name.clone(),
            None => self.doing.to_string(),
        }
    }
}
