//! Selects the configuration that a node boots: a function of the roster and the node.
//!
//! The order, highest first:
//!
//! 1. the configuration named by `hoist boot once` for the node's next boot;
//! 2. configurations marked `once` that the node has not had yet;
//! 3. configurations of the profile the node is on;
//! 4. the most specific selector: the node itself, a pattern of names, a group, a label, a subrole,
//!    a role, a partition, an architecture, everything; among equals the one with more terms;
//! 5. the highest priority (BSS records have 0);
//! 6. BSS records before configurations, then the name that sorts first.
//!
//! BSS records take part as configurations: one written for the node itself as a configuration that
//! names the node, one written for a role or `Default` as one that names that. Among themselves
//! they keep BSS's order: the node, its role, its subrole, its groups, `Default`.

use std::cmp::{Ordering, Reverse};
use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use hoist_model::selector::{Bound, Class, Identity, Specificity};
use hoist_model::{
    BootConfig, BootMode, BootState, BssKey, BssRecord, ConfigMode, Name, Nid, Node, NodeId,
    Provisioning, ServedBoot, ServedConfig,
};
use hoist_site::Roster;
use jiff::{SignedDuration, Timestamp};

use crate::bss;
use crate::memo::Memo;
use crate::skeleton::Skeletons;
use crate::template::Templates;

/// The boot configurations of one roster, made ready for asking.
#[derive(Debug)]
pub struct Table {
    roster: Arc<Roster>,
    /// Those whose selectors name nodes one by one, by node.
    exact: HashMap<NodeId, Vec<usize>>,
    /// The others, which have to be tried.
    tried: Vec<usize>,
    configs: Vec<Ready>,
    /// Places in `configs`.
    places: HashMap<Name, usize>,
    pub templates: Templates,
    /// Of configurations, for the one [`Booter`](crate::Booter) that made the table.
    pub(crate) skeletons: Skeletons,
    /// Made when there was time for it. It may be of other BSS records.
    pub(crate) memo: ArcSwapOption<Memo>,
}

#[derive(Debug)]
struct Ready {
    config: Arc<BootConfig>,
    /// `None` when the selector means nothing here any more: then it selects nothing.
    bound: Option<Bound>,
}

/// Where a configuration comes from.
#[derive(Debug, Clone)]
pub enum Source {
    Config(Arc<BootConfig>),
    Bss(Arc<BssRecord>),
}

/// A configuration that selects the node.
#[derive(Debug, Clone)]
pub struct Choice {
    pub source: Source,
    pub specificity: Specificity,
    pub rank: Rank,
}

/// How choices are ordered; the greatest wins.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank {
    pub recurrence: Recurrence,
    /// Of the node's profile.
    pub profile: bool,
    pub specificity: Specificity,
    pub priority: i32,
    pub bss: bool,
    pub name: Reverse<String>,
}

/// How often a node gets it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Recurrence {
    Always,
    /// Marked `once`, and not had yet.
    Once,
    /// Named for the node's next boot only.
    Next,
}

/// Why a configuration that selects the node is excluded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Exclusion {
    Disabled,
    OtherProfile {
        wanted: Name,
    },
    /// The node has had it.
    Spent,
    /// The configuration is for one boot, and another machine asks.
    Elsewhere,
    /// It installs, and the node is to run live.
    Installs,
    /// It does not install, and the node is to be installed by one that does.
    DoesNotInstall,
}

/// A machine that fails to load its files tries again: within this time that is the same boot.
pub const SAME_BOOT: SignedDuration = SignedDuration::from_mins(15);

/// The boot state of a node as seen by one request.
#[derive(Debug, Clone, Copy, Default)]
pub struct BootContext<'a> {
    pub state: Option<&'a BootState>,
    /// The node's one-time boot, if the request still belongs to that boot: a retry is not a second
    /// boot.
    again: Option<&'a ServedConfig>,
    /// The request is not from the node's address: a one-time boot waits for the node itself.
    is_elsewhere: bool,
}

/// All configurations that select a node.
#[derive(Debug, Default)]
pub struct Selection {
    /// The best first.
    pub choices: Vec<Choice>,
    pub barred: Vec<(Choice, Exclusion)>,
}

impl Table {
    pub fn build(roster: &Arc<Roster>) -> Self {
        let mut exact = HashMap::<_, Vec<usize>>::new();
        let mut tried = Vec::new();
        let mut configs = Vec::new();
        for config in roster.boot_configs() {
            let selector = config.spec.selector.as_ref();
            let bound = selector.and_then(|selector| selector.bind(roster.as_ref()).ok());
            let at = configs.len();
            match bound.as_ref().and_then(Bound::identities) {
                Some(identities) => {
                    for node in identities.iter().filter_map(|identity| named(roster, identity)) {
                        let configs: &mut Vec<usize> = exact.entry(node.id).or_default();
                        if configs.last() != Some(&at) {
                            configs.push(at);
                        }
                    }
                }
                None if bound.is_some() => tried.push(at),
                None => {}
            }
            configs.push(Ready { config: Arc::clone(config), bound });
        }
        let templates = Templates::of(roster.boot_configs());
        let named = |(at, ready): (usize, &Ready)| (ready.config.name.clone(), at);
        Self {
            roster: Arc::clone(roster),
            places: configs.iter().enumerate().map(named).collect(),
            skeletons: Skeletons::new(configs.len()),
            memo: ArcSwapOption::empty(),
            exact,
            tried,
            configs,
            templates,
        }
    }

    pub(crate) fn config(&self, at: usize) -> &Arc<BootConfig> {
        &self.configs[at].config
    }

    pub(crate) fn place_of(&self, config: &Arc<BootConfig>) -> Option<usize> {
        let at = *self.places.get(&config.name)?;
        Arc::ptr_eq(self.config(at), config).then_some(at)
    }

    /// Whether it still holds for this roster.
    pub fn is_of(&self, roster: &Roster) -> bool {
        self.roster.has_rules_of(roster)
    }

    /// The configurations worth a look for a node.
    fn candidates<'t>(
        &'t self,
        roster: &Roster,
        node: &'t Node,
    ) -> impl Iterator<Item = (&'t Ready, Specificity)> {
        let subject = roster.subject(node);
        let exact = self.exact.get(&node.id).map_or([].as_slice(), Vec::as_slice);
        self.tried.iter().chain(exact).filter_map(move |at| {
            let ready = &self.configs[*at];
            Some((ready, ready.bound.as_ref()?.specificity(&subject)?))
        })
    }

    /// The one configuration a node boots.
    pub fn best(
        &self,
        roster: &Roster,
        node: &Node,
        asked: Option<&BssKey>,
        standing: BootContext<'_>,
    ) -> Option<Choice> {
        // Most sites have either; then there is nothing to compare.
        if self.configs.is_empty() {
            return of_bss(roster, node, asked);
        }
        if standing.next().is_some() || standing.installs() {
            return self.select(roster, node, asked, standing).choices.into_iter().next();
        }
        // The same for the usual node, without making a choice of everything that loses.
        let open = self.candidates(roster, node);
        let open = open.filter(|(ready, _)| barred(&ready.config, standing).is_none());
        let config = open.max_by(|(a, at), (b, bt)| {
            let key = |config: &BootConfig, specificity| {
                let spec = &config.spec;
                (recurrence(config, None), spec.profile.is_some(), specificity, spec.priority)
            };
            let one = key(&a.config, *at);
            let other = key(&b.config, *bt);
            one.cmp(&other).then_with(|| b.config.name.cmp(&a.config.name))
        });
        let config = config.map(|(ready, at)| Choice::of_config(&ready.config, at, None));
        let of_bss = of_bss(roster, node, asked);
        config.into_iter().chain(of_bss).max_by(Choice::by_rank)
    }

    /// All configurations that select a node, in order, and the excluded ones with the reason.
    pub fn select(
        &self,
        roster: &Roster,
        node: &Node,
        asked: Option<&BssKey>,
        standing: BootContext<'_>,
    ) -> Selection {
        let next = standing.next();
        let mut selection = Selection::default();
        for (ready, specificity) in self.candidates(roster, node) {
            let choice = Choice::of_config(&ready.config, specificity, next);
            match barred(&ready.config, standing) {
                Some(reason) if choice.rank.recurrence != Recurrence::Next => {
                    selection.barred.push((choice, reason));
                }
                _ => selection.choices.push(choice),
            }
        }
        // Named for the next boot, it need not select the node.
        if let Some(config) = next.and_then(|name| roster.boot_config(name))
            && !selection.choices.iter().any(|choice| choice.rank.recurrence == Recurrence::Next)
        {
            let specificity = Specificity { class: Class::Node, atoms: 1 };
            selection.choices.push(Choice::of_config(config, specificity, next));
        }
        selection.choices.extend(of_bss(roster, node, asked));
        keep_installers(standing, &mut selection);
        selection.choices.sort_by(|a, b| Choice::by_rank(b, a));
        selection
    }
}

impl<'a> BootContext<'a> {
    /// At the beginning of a boot.
    pub fn new(state: Option<&'a BootState>) -> Self {
        Self { state, again: None, is_elsewhere: false }
    }

    /// After `retry` failures to boot.
    pub fn after(
        roster: &Roster,
        state: Option<&'a BootState>,
        retry: u32,
        now: Timestamp,
    ) -> Self {
        let given = state.and_then(|state| state.given.as_ref()).filter(|_| retry > 0);
        let again = given.filter(|given| {
            let config = roster.boot_config(&given.config);
            let unchanged = config.is_some_and(|config| config.revision == given.revision);
            unchanged && now.duration_since(given.at) < SAME_BOOT
        });
        Self { state, again, is_elsewhere: false }
    }

    /// As it is for a request that is not from the node's address.
    #[must_use]
    pub(crate) fn elsewhere(self) -> Self {
        Self { again: None, is_elsewhere: true, ..self }
    }

    /// Whether an answer may change the record of a one-time boot or of an installation.
    pub(crate) fn is_used_up_by(&self, choice: Option<&Choice>) -> bool {
        let is_begun =
            self.state.is_some_and(|state| state.given.is_some() || state.installing.is_some());
        is_begun || choice.is_some_and(Choice::is_for_one_boot)
    }

    /// The configuration of the next boot only.
    fn next(&self) -> Option<&'a Name> {
        self.named().or_else(|| Some(&self.again.filter(|given| given.named)?.config))
    }

    /// The run for which the node boots the provisioning agent. A protected node never does, even
    /// if it was enrolled before.
    pub fn provisioning(&self, node: &Node) -> Option<&'a Provisioning> {
        let provisioning = self.state.and_then(|state| state.provisioning.as_ref());
        provisioning.filter(|_| !node.is_protected())
    }

    fn named(&self) -> Option<&'a Name> {
        self.state.filter(|_| !self.is_elsewhere).and_then(|state| state.once.as_ref())
    }

    /// Whether the configuration of the next boot may install a node that is installed.
    pub(crate) fn may_reinstall(&self) -> bool {
        match self.state {
            Some(state) if state.once.is_some() => state.reinstall,
            _ => self.again.is_some_and(|given| given.reinstall),
        }
    }

    /// Whether the configuration was already served in this very boot.
    fn is_again(&self, config: &BootConfig) -> bool {
        self.again.is_some_and(|given| given.config == config.name)
    }

    /// The record of serving a choice, if one is needed.
    pub(crate) fn served_boot(&self, choice: &Choice, now: Timestamp) -> Option<ServedBoot> {
        let config = match &choice.source {
            Source::Config(config) => Some(config),
            Source::Bss(_) => None,
        };
        let installing = config.filter(|_| choice.installs()).map(|config| config.name.clone());
        let decided = self.state.and_then(|state| state.decided);
        let out = ServedBoot { at: now, decided, given: None, spends: false, installing };
        if self.is_elsewhere {
            return None;
        }
        let Some(config) = config.filter(|_| choice.is_for_one_boot()) else {
            let told = self.state.map(|state| (state.given.is_some(), state.installing.as_ref()));
            let (other_boot, installing) = told.unwrap_or_default();
            return (other_boot || installing != out.installing.as_ref()).then_some(out);
        };
        let named = choice.rank.recurrence == Recurrence::Next;
        if self.is_again(config) && !(named && self.named().is_some()) {
            return None;
        }
        let given = ServedConfig {
            config: config.name.clone(),
            revision: config.revision,
            at: now,
            named,
            reinstall: named && self.may_reinstall(),
        };
        Some(ServedBoot { given: Some(given), spends: config.spec.once, ..out })
    }

    fn installs(&self) -> bool {
        self.state.and_then(|state| state.mode) == Some(BootMode::Install)
    }
}

/// The node that goes by a name, in the sense of selectors.
pub(crate) fn named<'r>(roster: &'r Roster, identity: &Identity) -> Option<&'r Arc<Node>> {
    match identity {
        Identity::Name(name) => roster.by_name(name),
        Identity::Xname(xname) => roster.by_xname(*xname),
        Identity::Nid(nid) => roster.by_nid(Nid::new(*nid)),
        Identity::Mac(mac) => roster.by_mac(*mac),
    }
}

/// How often a node gets a configuration, if it is to have `next` in its next boot.
fn recurrence(config: &BootConfig, next: Option<&Name>) -> Recurrence {
    if next == Some(&config.name) {
        Recurrence::Next
    } else if config.spec.once {
        Recurrence::Once
    } else {
        Recurrence::Always
    }
}

fn barred(config: &BootConfig, standing: BootContext<'_>) -> Option<Exclusion> {
    let spec = &config.spec;
    let state = standing.state;
    if !spec.enabled {
        return Some(Exclusion::Disabled);
    }
    if let Some(wanted) = &spec.profile
        && state.and_then(|state| state.profile.as_ref()) != Some(wanted)
    {
        return Some(Exclusion::OtherProfile { wanted: wanted.clone() });
    }
    let installs = spec.mode == ConfigMode::Install;
    // A changed installer must not install every node again.
    let spent = state.and_then(|state| state.spent.get(&config.name));
    let spent = spent.is_some_and(|revision| installs || *revision == config.revision);
    if spec.once && spent && !standing.is_again(config) {
        return Some(Exclusion::Spent);
    }
    if spec.once && standing.is_elsewhere {
        return Some(Exclusion::Elsewhere);
    }
    let live = state.and_then(|state| state.mode) == Some(BootMode::Live);
    (live && installs).then_some(Exclusion::Installs)
}

/// A node that is to be installed boots an installer, if there is one; a one-time boot takes
/// precedence.
fn keep_installers(standing: BootContext<'_>, selection: &mut Selection) {
    if !standing.installs() || !selection.choices.iter().any(Choice::installs) {
        return;
    }
    let kept = |choice: &Choice| choice.installs() || choice.rank.recurrence == Recurrence::Next;
    let (kept, others): (Vec<_>, Vec<_>) =
        std::mem::take(&mut selection.choices).into_iter().partition(kept);
    selection.choices = kept;
    selection.barred.extend(others.into_iter().map(|choice| (choice, Exclusion::DoesNotInstall)));
}

fn of_bss(roster: &Roster, node: &Node, asked: Option<&BssKey>) -> Option<Choice> {
    // Most sites have none; a node has a dozen names to look for.
    if !roster.has_bss_records() {
        return None;
    }
    if let Some(record) = bss::own_record(roster, node, asked) {
        return Some(Choice::of_record(record, Class::Node, record.key.to_string()));
    }
    let (record, class, tag) = bss::tagged_record(roster, node)?;
    Some(Choice::of_record(record, class, tag))
}

impl Choice {
    pub(crate) fn of_config(
        config: &Arc<BootConfig>,
        specificity: Specificity,
        next: Option<&Name>,
    ) -> Self {
        let spec = &config.spec;
        Self {
            source: Source::Config(Arc::clone(config)),
            specificity,
            rank: Rank {
                recurrence: recurrence(config, next),
                profile: spec.profile.is_some(),
                specificity,
                priority: spec.priority,
                bss: false,
                name: Reverse(config.name.to_string()),
            },
        }
    }

    pub(crate) fn of_record(record: &Arc<BssRecord>, class: Class, matched: String) -> Self {
        let specificity = Specificity { class, atoms: 1 };
        Self {
            source: Source::Bss(Arc::clone(record)),
            specificity,
            rank: Rank {
                recurrence: Recurrence::Always,
                profile: false,
                specificity,
                priority: 0,
                bss: true,
                name: Reverse(matched),
            },
        }
    }

    /// Records without a kernel, which have their cloud-init data only, keep nothing else out.
    fn by_rank(a: &Self, b: &Self) -> Ordering {
        a.boots().cmp(&b.boots()).then_with(|| a.rank.cmp(&b.rank))
    }

    /// Description of the matching term.
    pub fn matched(&self) -> String {
        match &self.source {
            Source::Config(config) => {
                config.spec.selector.as_ref().map(ToString::to_string).unwrap_or_default()
            }
            Source::Bss(_) => self.rank.name.0.clone(),
        }
    }

    /// Whether a node that boots it goes to its disk afterwards.
    pub fn installs(&self) -> bool {
        matches!(&self.source, Source::Config(config) if config.spec.mode == ConfigMode::Install)
    }

    /// Whether the node gets it one time only.
    pub fn is_for_one_boot(&self) -> bool {
        self.rank.recurrence != Recurrence::Always
    }

    pub fn boots(&self) -> bool {
        match &self.source {
            Source::Config(_) => true,
            Source::Bss(record) => !record.kernel.is_empty(),
        }
    }

    /// `BootConfig compute`, `boot parameters of Default`.
    pub fn name(&self) -> String {
        match &self.source {
            Source::Config(config) => config.name.to_string(),
            Source::Bss(record) => format!("bss:{}", record.key),
        }
    }

    pub fn revision(&self) -> u64 {
        match &self.source {
            Source::Config(config) => config.revision,
            Source::Bss(record) => record.revision,
        }
    }
}
