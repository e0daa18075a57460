//! Why a node boots what it boots: what was chosen, what lost and why, and where every word of the
//! command line comes from.

use hoist_inventory::Roster;
use hoist_model::selector::Class;
use hoist_model::{BssKey, Doing, Node, Provisioning};
use jiff::Timestamp;

use crate::agent;
use crate::answer::{Booter, Place, asked_by};
use crate::bss;
use crate::command_line::{Line, Origin, Part, resolve_in};
use crate::outcome::{self, Images};
use crate::select::{Barred, Choice, Rank, Source, Standing, Table};

#[derive(Debug)]
pub struct Explanation {
    pub doing: Doing,
    pub choice: Option<Choice>,
    /// What also speaks of the node, the next best first.
    pub lost: Vec<Lost>,
    /// Where the choice has a kernel.
    pub images: Option<Images>,
    /// Why there are archives of plug-ins behind the agent, or why there is no agent.
    pub plugins: Vec<String>,
    /// Every word of the command line.
    pub words: Vec<(String, Origin)>,
}

#[derive(Debug)]
pub struct Lost {
    pub choice: Choice,
    pub why: String,
}

pub fn explain(
    booter: &Booter,
    roster: &Roster,
    table: &Table,
    node: &Node,
    standing: Standing<'_>,
    place: Place<'_>,
) -> Explanation {
    let asked = asked_by(roster, node).who.key();
    let selection = table.select(roster, node, asked.as_ref(), standing);
    let barred = selection.barred.iter().map(|(choice, _)| choice);
    let taken = record_of(selection.choices.iter().chain(barred)).cloned();
    let mut choices = selection.choices.into_iter();
    let choice = choices.next();
    let mut lost: Vec<Lost> = Vec::new();
    if let Some(winner) = &choice {
        let why = |choice: Choice| {
            let why = if winner.boots() && !choice.boots() {
                "it names no kernel".to_owned()
            } else {
                why_lost(&winner.rank, &choice.rank)
            };
            Lost { choice, why }
        };
        lost.extend(choices.map(why));
    }
    lost.extend(taken.into_iter().flat_map(|taken| other_records(roster, node, &taken)));
    let barred = selection.barred.into_iter();
    lost.extend(barred.map(|(choice, why)| Lost { choice, why: why_barred(&why) }));
    let provisioning = standing.provisioning(node);
    let (images, words) = match choice.as_ref().filter(|choice| choice.boots()) {
        _ if provisioning.is_some() => (None, Vec::new()),
        None => (None, Vec::new()),
        Some(choice) => {
            let base = booter.base(place);
            let now = Timestamp::UNIX_EPOCH;
            let line = booter.parts_of(roster, table, node, choice, place, now);
            let native = matches!(choice.source, Source::Config(_));
            let mut words = Vec::new();
            for part in line.parts {
                let text = if native { resolve_in(roster, &base, &part.text) } else { part.text };
                words.extend(text.split_whitespace().map(|word| (word.to_owned(), part.origin)));
            }
            (Some(outcome::images(roster, &base, choice)), words)
        }
    };
    let (images, words) = match provisioning {
        None => (images, words),
        Some(provisioning) => {
            let server = booter.agent_server(place).unwrap_or_default();
            let base = booter.base(place);
            let images = agent::images(roster, &base, node, provisioning, None).ok();
            let initrds = images.as_ref().map_or(1, |images| images.initrd.len());
            let line = agent::line(roster, &server, node, provisioning, initrds, None);
            (images, words_of(line))
        }
    };
    let plugins = provisioning.map(|provisioning| plugins(roster, node, provisioning));
    Explanation {
        plugins: plugins.unwrap_or_default(),
        doing: outcome::doing(node, standing, choice.as_ref()),
        choice,
        lost,
        images,
        words,
    }
}

fn plugins(roster: &Roster, node: &Node, provisioning: &Provisioning) -> Vec<String> {
    let Some(profile) = roster.provision_profile(&provisioning.profile) else { return Vec::new() };
    let name = &profile.name;
    match agent::archives(roster, &profile.spec, agent::arch(node, None)) {
        Err((place, needed)) => {
            vec![format!("no artifact has the plug-in for {needed}, which {name} needs at {place}")]
        }
        Ok(archives) => {
            let told = |archive: agent::Archive<'_>| {
                format!("{}: {name} needs {}", archive.name, archive.has.join(", "))
            };
            archives.into_iter().map(told).collect()
        }
    }
}

fn words_of(line: Line) -> Vec<(String, Origin)> {
    let words = |part: Part| {
        let words: Vec<_> = part.text.split_whitespace().map(str::to_owned).collect();
        words.into_iter().map(move |word| (word, part.origin))
    };
    line.parts.into_iter().flat_map(words).collect()
}

/// Boot parameters of BSS that speak of the node beside the ones that took part: among themselves
/// they have an order of their own.
fn other_records(roster: &Roster, node: &Node, taken: &BssKey) -> Vec<Lost> {
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
        Some(Lost { choice, why: format!("the boot parameters of {taken} go before") })
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
    if winner.turn != loser.turn {
        return "another one is for one boot only".to_owned();
    }
    if winner.profile != loser.profile {
        return "another one is of the node's profile".to_owned();
    }
    let (won, lost) = (winner.specificity, loser.specificity);
    if won.class != lost.class {
        return format!("{} is closer than {}", word(won.class), word(lost.class));
    }
    if won.atoms != lost.atoms {
        return "another selector says more about the node".to_owned();
    }
    if winner.priority != loser.priority {
        return format!("its priority is {}, not {}", loser.priority, winner.priority);
    }
    if winner.bss != loser.bss {
        return "boot parameters go before configurations".to_owned();
    }
    "another name sorts before".to_owned()
}

fn why_barred(barred: &Barred) -> String {
    match barred {
        Barred::Disabled => "it is not enabled".to_owned(),
        Barred::OtherProfile { wanted } => format!("it is for nodes on profile {wanted}"),
        Barred::Spent => "it is for one boot, and the node has had it".to_owned(),
        Barred::Elsewhere => "it is for one boot, and waits for the node's own address".to_owned(),
        Barred::Installs => "it installs, and the node is to run live".to_owned(),
        Barred::DoesNotInstall => "the node is to be installed, and another one does".to_owned(),
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
