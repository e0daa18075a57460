//! The reasons of a node's boot outcome: the choice, the rejected alternatives, and the origin of
//! every kernel argument.

use hoist_model::selector::Class;
use hoist_model::{BootAction, BssKey, Node, Provisioning};
use hoist_site::Roster;
use jiff::Timestamp;

use crate::agent;
use crate::answer::{Booter, RequestOrigin, ScriptError, asked_by};
use crate::bss;
use crate::command_line::{Line, Origin, Part, resolve_in};
use crate::outcome::{self, Images};
use crate::select::{BootContext, Choice, Exclusion, Rank, Source, Table};

const NO_KERNEL: &str = "has no kernel";

#[derive(Debug)]
pub struct Explanation {
    pub doing: BootAction,
    /// Why the node gets an error or has to wait, although something was chosen for it.
    pub problem: Option<String>,
    /// Records for unknown machines: a node that has to wait boots the one of its architecture.
    pub discovery: Vec<BssKey>,
    pub choice: Option<Choice>,
    /// The other configurations of the node, the next best first.
    pub lost: Vec<RejectedChoice>,
    /// Where the choice has a kernel.
    pub images: Option<Images>,
    /// Why plug-in archives follow the agent, or why there is no agent.
    pub plugins: Vec<String>,
    /// The kernel arguments with their origins.
    pub arguments: Vec<(String, Origin)>,
}

#[derive(Debug)]
pub struct RejectedChoice {
    pub choice: Choice,
    pub why: String,
}

pub fn explain(
    booter: &Booter,
    roster: &Roster,
    table: &Table,
    node: &Node,
    standing: BootContext<'_>,
    place: RequestOrigin<'_>,
) -> Explanation {
    let asked = asked_by(roster, node).who.key();
    let selection = table.select(roster, node, asked.as_ref(), standing);
    let barred = selection.barred.iter().map(|(choice, _)| choice);
    let taken = record_of(selection.choices.iter().chain(barred)).cloned();
    // Choices that boot come first.
    let (booting, others): (Vec<_>, Vec<_>) =
        selection.choices.into_iter().partition(Choice::boots);
    let mut booting = booting.into_iter();
    let choice = booting.next();
    let mut lost: Vec<RejectedChoice> = Vec::new();
    if let Some(winner) = &choice {
        let why = |choice: Choice| {
            let why = why_lost(&winner.rank, &choice.rank);
            RejectedChoice { choice, why }
        };
        lost.extend(booting.map(why));
    }
    let no_kernel = |choice| RejectedChoice { choice, why: NO_KERNEL.to_owned() };
    lost.extend(others.into_iter().map(no_kernel));
    lost.extend(taken.into_iter().flat_map(|taken| other_records(roster, node, &taken)));
    let barred = selection.barred.into_iter();
    lost.extend(barred.map(|(choice, why)| RejectedChoice { choice, why: why_barred(&why) }));
    let provisioning = standing.provisioning(node);
    let (images, arguments) = match (provisioning, &choice) {
        (Some(provisioning), _) => agent_parts(booter, roster, node, provisioning, place),
        (None, Some(choice)) => script_parts(booter, roster, table, node, choice, place),
        (None, None) => (None, Vec::new()),
    };
    let plugins = provisioning.map(|provisioning| plugins(roster, node, provisioning));
    let planned = outcome::doing(node, standing, choice.as_ref());
    let failure = match (planned, provisioning) {
        (BootAction::Provision, Some(provisioning)) => booter
            .agent_problem(roster, table, node, provisioning, place)
            .map(|why| (BootAction::Wait, why)),
        (doing, _) if doing.boots() => choice
            .as_ref()
            .and_then(|choice| failed_script(booter, roster, table, node, choice, place)),
        _ => None,
    };
    let (doing, problem) = failure.map_or((planned, None), |(doing, why)| (doing, Some(why)));
    let discovery = if planned == BootAction::Wait { unknown_records(roster) } else { Vec::new() };
    Explanation {
        plugins: plugins.unwrap_or_default(),
        doing,
        problem,
        discovery,
        choice,
        lost,
        images,
        arguments,
    }
}

type ScriptParts = (Option<Images>, Vec<(String, Origin)>);

/// The images and kernel arguments of the provisioning agent.
fn agent_parts(
    booter: &Booter,
    roster: &Roster,
    node: &Node,
    provisioning: &Provisioning,
    place: RequestOrigin<'_>,
) -> ScriptParts {
    let server = booter.agent_server(place).unwrap_or_default();
    let base = booter.base(place);
    let images = agent::images(roster, &base, node, provisioning, None).ok();
    let initrds = images.as_ref().map_or(1, |images| images.initrd.len());
    let line = agent::line(roster, &server, node, provisioning, initrds, None);
    (images, arguments_of(line))
}

/// The images and kernel arguments of a choice.
fn script_parts(
    booter: &Booter,
    roster: &Roster,
    table: &Table,
    node: &Node,
    choice: &Choice,
    place: RequestOrigin<'_>,
) -> ScriptParts {
    let base = booter.base(place);
    let now = Timestamp::UNIX_EPOCH;
    let line = booter.parts_of(roster, table, node, choice, place, now);
    let native = matches!(choice.source, Source::Config(_));
    let mut arguments = Vec::new();
    for part in line.parts {
        let text = if native { resolve_in(roster, &base, &part.text) } else { part.text };
        arguments.extend(text.split_whitespace().map(|word| (word.to_owned(), part.origin)));
    }
    (Some(outcome::images(roster, &base, choice)), arguments)
}

/// The answer to a node instead of the chosen script, with its reason.
fn failed_script(
    booter: &Booter,
    roster: &Roster,
    table: &Table,
    node: &Node,
    choice: &Choice,
    place: RequestOrigin<'_>,
) -> Option<(BootAction, String)> {
    let script = booter.validate(roster, table, node, choice, place, Timestamp::UNIX_EPOCH);
    match script.err()? {
        ScriptError::Image(why) => Some((BootAction::Fail, why)),
        ScriptError::Template(error) => {
            let why = format!("the template of `{}` failed: {error}", choice.name());
            Some((BootAction::Wait, why))
        }
    }
}

/// The keys of the records that boot unknown machines.
fn unknown_records(roster: &Roster) -> Vec<BssKey> {
    let is_unknown = |key: &BssKey| matches!(key, BssKey::Tag(tag) if tag.starts_with("Unknown-"));
    let records = roster.bss_records().filter(|record| !record.kernel.is_empty());
    let mut keys: Vec<_> = records.map(|record| record.key.clone()).filter(is_unknown).collect();
    keys.sort();
    keys
}

fn plugins(roster: &Roster, node: &Node, provisioning: &Provisioning) -> Vec<String> {
    let Some(profile) = roster.provision_profile(&provisioning.profile) else { return Vec::new() };
    let name = &profile.name;
    match agent::archives(roster, &profile.spec, agent::arch(node, None)) {
        Err((place, needed)) => {
            vec![format!(
                "no artifact contains the plug-in for {needed}, which {name} needs at {place}"
            )]
        }
        Ok(archives) => {
            let told = |archive: agent::Archive<'_>| {
                format!("{}: {name} needs {}", archive.name, archive.has.join(", "))
            };
            archives.into_iter().map(told).collect()
        }
    }
}

fn arguments_of(line: Line) -> Vec<(String, Origin)> {
    let words = |part: Part| {
        let words: Vec<_> = part.text.split_whitespace().map(str::to_owned).collect();
        words.into_iter().map(move |word| (word, part.origin))
    };
    line.parts.into_iter().flat_map(words).collect()
}

/// Further boot parameters of BSS for the node, which lost to those that took part: among themselves
/// they have an order of their own.
fn other_records(roster: &Roster, node: &Node, taken: &BssKey) -> Vec<RejectedChoice> {
    let keys = bss::keys_of(node).map(|key| (key, Class::Node));
    let roles = [(&node.spec.role, Class::Role), (&node.spec.subrole, Class::Subrole)];
    let roles = roles
        .into_iter()
        .filter_map(|(role, class)| role.as_ref().map(|role| (BssKey::tag(role.as_str()), class)));
    let groups = roster.groups_of(node).into_iter();
    let groups = groups.map(|group| (BssKey::tag(group.as_str()), Class::Group));
    let default = [(BssKey::tag(BssKey::DEFAULT), Class::Everything)];
    let others = keys.chain(roles).chain(groups).chain(default).filter(|(key, _)| key != taken);
    let lost = |(key, class): (BssKey, Class)| {
        let choice = Choice::of_record(roster.bss(&key)?, class, key.to_string());
        let why = if choice.boots() {
            format!("the boot parameters of {taken} take precedence")
        } else {
            NO_KERNEL.to_owned()
        };
        Some(RejectedChoice { choice, why })
    };
    others.filter_map(lost).collect()
}

/// The key of the boot parameters among choices.
fn record_of<'c>(mut choices: impl Iterator<Item = &'c Choice>) -> Option<&'c BssKey> {
    choices.find_map(|choice| match &choice.source {
        Source::Bss(record) => Some(&record.key),
        Source::Config(_) => None,
    })
}

/// In the order in which choices are compared.
fn why_lost(winner: &Rank, loser: &Rank) -> String {
    if winner.recurrence != loser.recurrence {
        return "a one-time configuration takes precedence".to_owned();
    }
    if winner.profile != loser.profile {
        return "a configuration of the node's profile takes precedence".to_owned();
    }
    let won = winner.specificity;
    let lost = loser.specificity;
    if won.class != lost.class {
        return format!("{} is more specific than {}", word(won.class), word(lost.class));
    }
    if won.atoms != lost.atoms {
        return "another selector has more terms".to_owned();
    }
    if winner.priority != loser.priority {
        return format!("priority {} is lower than {}", loser.priority, winner.priority);
    }
    if winner.bss != loser.bss {
        return "boot parameters take precedence over configurations".to_owned();
    }
    "another name sorts first".to_owned()
}

fn why_barred(barred: &Exclusion) -> String {
    match barred {
        Exclusion::Disabled => "disabled".to_owned(),
        Exclusion::OtherProfile { wanted } => format!("only for nodes on profile {wanted}"),
        Exclusion::Spent => "for one boot, which the node already had".to_owned(),
        Exclusion::Elsewhere => "for one boot, and reserved for the node's own address".to_owned(),
        Exclusion::Installs => "installs, but the node runs live".to_owned(),
        Exclusion::DoesNotInstall => "does not install, but the node is to be installed".to_owned(),
    }
}

/// How a selector names a node, in a word.
pub fn word(class: Class) -> &'static str {
    match class {
        Class::Everything => "everything",
        Class::State => "a state",
        Class::Arch => "an architecture",
        Class::Partition => "a partition",
        Class::Role => "a role",
        Class::Subrole => "a subrole",
        Class::Label => "a label",
        Class::Group => "a group",
        Class::Pattern => "a pattern of names",
        Class::Node => "the node itself",
    }
}
