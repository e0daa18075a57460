//! The answer to a booting machine: a function of the roster, the request and the settings.
//!
//! Does not belong here: selection (`select`), the text of scripts (`script`), HTTP and the boot
//! log.

mod from_skeleton;

use std::net::IpAddr;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use compact_str::CompactString;
use hoist_model::{
    BootConfig, BootMode, BootState, BssKey, BssRecord, Node, NodeId, Provisioning, ServedBoot,
};
use hoist_site::seed::nocloud_argument;
use hoist_site::{AddressFit, Roster, SeedProvider, SiteKey};
use hoist_template::{NodeValues, TemplateError, TrustedText};
use jiff::Timestamp;
use parking_lot::Mutex;

use crate::agent::{self, NoAgent};
use crate::bss::host_name;
use crate::command_line::{self, Line, Names, Surroundings, resolve, resolve_in};
use crate::memo::Memo;
use crate::presign::{PresignError, S3, is_s3};
use crate::request::{BootRequest, BootRequester};
use crate::script::{self, BootScript, Chain};
use crate::select::{BootContext, Choice, Recurrence, Source, Table};
use crate::skeleton::{NO_NAMES, NO_SEED};
use crate::template::View;

/// The placeholder that BSS replaces by a token fetched for the node.
pub const JOIN_TOKEN: &str = "${SPIRE_JOIN_TOKEN}";

/// Longest host that a machine may have asked: a DNS name with a port.
const MAX_HOST: usize = 255 + 6;

/// Settings of boot scripts.
#[derive(Debug, Clone)]
pub struct Settings {
    /// URLs of the controllers, including this one, without a slash at the end.
    pub advertise: Vec<String>,
    /// Prefix of `/boot/v1` in retry URLs, if it is not one of `advertise`.
    pub chain_base: Option<String>,
    /// The address in the `ds=` argument of BSS records, if it is not one of `advertise`.
    pub ds_address: Option<String>,
    /// `ds=nocloud;…` in the form that every version of cloud-init takes, also for BSS records.
    pub portable_ds: bool,
    /// URL of this controller for agents, if it does not follow from the machine's request.
    pub agent_server: Option<String>,
    pub retry_delay: Duration,
    pub ask_delay: Duration,
    /// Longest pause between two requests of a machine that has to wait, unless the first one is
    /// longer.
    pub max_ask_delay: Duration,
    pub s3: Option<S3>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            advertise: Vec::new(),
            chain_base: None,
            ds_address: None,
            portable_ds: false,
            agent_server: None,
            retry_delay: Duration::from_secs(30),
            ask_delay: Duration::from_secs(10),
            max_ask_delay: Duration::from_mins(1),
            s3: None,
        }
    }
}

/// The address and path of the request.
#[derive(Debug, Clone, Copy, Default)]
pub struct RequestOrigin<'a> {
    /// The `Host` header.
    pub host: Option<&'a str>,
    pub secure: bool,
    /// Path prefix added by a gateway: `/apis/bss`, or empty.
    pub prefix: &'a str,
    /// Address of the client; none in a preview.
    pub from: Option<IpAddr>,
}

#[derive(Debug)]
pub enum Answer {
    Script {
        text: String,
        served: ServedScript,
    },
    Parts {
        parts: Parts,
        served: ServedScript,
    },
    /// With the detail, in BSS's words where it has some.
    NotFound {
        /// The node that asked, if there is one.
        node: Option<NodeId>,
        detail: String,
    },
    /// The script wants a join token for this node first; then it is [`PendingScript::finish`].
    NeedsToken(Box<PendingScript>),
}

/// The answer that was given, for the boot history and the boot state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServedScript {
    pub node: Option<NodeId>,
    pub what: What,
    /// A configuration for one boot was kept back: the request is not from the node's address.
    pub is_kept_back: bool,
}

impl ServedScript {
    pub fn new(node: Option<NodeId>, what: What) -> Self {
        Self { node, what, is_kept_back: false }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// A kernel, from a configuration or a BSS record.
    Boot {
        /// The name of the configuration or record.
        name: CompactString,
        revision: u64,
        installs: bool,
        /// The record of this one-time boot.
        served_boot: Option<Box<ServedBoot>>,
    },
    /// The agent that provisions the node, with the token of this nonce.
    Agent {
        nonce: [u8; 16],
    },
    /// The image for unknown machines.
    Discovery,
    Disk,
    Hold,
    AskAgain,
}

/// `json=1`: the inputs of the script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parts {
    pub params: String,
    pub kernel: String,
    pub kernel_params: String,
    pub initrd: String,
    pub initrd_params: String,
}

/// A script that lacks only its join token.
#[derive(Debug)]
pub struct PendingScript {
    pub xname: String,
    pub role: Option<String>,
    pub subrole: Option<String>,
    text: Text,
    served: ServedScript,
}

#[derive(Debug)]
enum Text {
    Script(String),
    Parts(Parts),
}

impl PendingScript {
    /// The node that asked, if there is one.
    pub fn node(&self) -> Option<NodeId> {
        self.served.node
    }

    pub fn finish(self, token: &str) -> Answer {
        let served = self.served;
        match self.text {
            Text::Script(text) => Answer::Script { text: text.replace(JOIN_TOKEN, token), served },
            Text::Parts(mut parts) => {
                parts.params = parts.params.replace(JOIN_TOKEN, token);
                Answer::Parts { parts, served }
            }
        }
    }
}

/// Makes answers. Holds the settings and the table derived from the current roster.
#[derive(Debug)]
pub struct Booter {
    settings: Settings,
    /// Locates the metadata of nodes; without one, the command line names no metadata source.
    metadata: Option<Arc<dyn SeedProvider>>,
    /// The key from which the tokens of agents are derived.
    key: Option<SiteKey>,
    /// The TLS port of this controller, once it listens.
    tls_port: Arc<OnceLock<u16>>,
    table: ArcSwapOption<Table>,
    building: Mutex<()>,
    /// When the inventory was last reported to have changed, in seconds.
    woken: AtomicI64,
}

/// One request on one roster, with all inputs of the answer.
struct Case<'a> {
    roster: &'a Roster,
    table: &'a Table,
    asked: &'a BootRequest<'a>,
    standing: BootContext<'a>,
    place: RequestOrigin<'a>,
    now: Timestamp,
    /// The script is made to be cut, and has the names of [`NOBODY`](crate::skeleton::NOBODY).
    is_skeleton: bool,
}

impl Booter {
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            metadata: None,
            key: None,
            tls_port: Arc::default(),
            table: ArcSwapOption::empty(),
            building: Mutex::new(()),
            woken: AtomicI64::new(i64::MIN),
        }
    }

    /// The inventory may know more machines now: those that wait ask often again.
    pub fn wake(&self, now: Timestamp) {
        self.woken.fetch_max(now.as_second(), Ordering::Relaxed);
    }

    /// Names the metadata source on the command lines.
    #[must_use]
    pub fn with_metadata(self, provider: Arc<dyn SeedProvider>) -> Self {
        Self { metadata: Some(provider), ..self }
    }

    /// Enables provisioning with the key of the tokens and the port for agents, once it is known.
    #[must_use]
    pub fn with_agents(self, key: SiteKey, tls_port: Arc<OnceLock<u16>>) -> Self {
        Self { key: Some(key), tls_port, ..self }
    }

    /// A copy with the same settings for other rosters; the table of the current roster stays here.
    #[must_use]
    pub fn another(&self) -> Self {
        Self {
            metadata: self.metadata.clone(),
            key: self.key.clone(),
            tls_port: Arc::clone(&self.tls_port),
            ..Self::new(self.settings.clone())
        }
    }

    /// The compiled configurations of the roster. Rebuilt only when they, or the nodes and groups
    /// they select, have changed.
    pub fn table(&self, roster: &Arc<Roster>) -> Arc<Table> {
        let current = |table: Option<Arc<Table>>| table.filter(|table| table.is_of(roster));
        if let Some(table) = current(self.table.load_full()) {
            return table;
        }
        let _building = self.building.lock();
        if let Some(table) = current(self.table.load_full()) {
            return table;
        }
        let table = Arc::new(Table::build(roster));
        self.table.store(Some(Arc::clone(&table)));
        table
    }

    /// Computes the boot table of the roster ahead of requests. Must not run while a machine waits:
    /// it takes a second for a million nodes.
    pub fn prepare(&self, roster: &Arc<Roster>) {
        let table = self.table(roster);
        if table.memo.load().as_ref().is_some_and(|memo| memo.is_of(roster)) {
            return;
        }
        let seed = |node: &Node, config: &BootConfig| self.seed(roster, node, config);
        table.memo.store(Some(Arc::new(Memo::build(roster, &table, seed))));
    }

    /// `state` returns the boot state of a node, including changes that are not stored yet.
    pub fn answer(
        &self,
        roster: &Arc<Roster>,
        asked: &BootRequest<'_>,
        place: RequestOrigin<'_>,
        now: Timestamp,
        state: impl Fn(NodeId) -> Option<Arc<BootState>>,
    ) -> Answer {
        let kept = self.table.load();
        let made;
        let table = if let Some(table) = kept.as_ref().filter(|table| table.is_of(roster)) {
            table
        } else {
            made = self.table(roster);
            &made
        };
        let standing = BootContext::default();
        let case = Case { roster, table, asked, standing, place, now, is_skeleton: false };
        if let Some(answer) = self.usual(&case, &state) {
            return answer;
        }
        let Some(node) = asked.who.node(roster) else { return self.unknown(&case) };
        if !node.spec.enabled {
            let detail = format!("{}: this host is disabled", asked.who);
            return Answer::NotFound { node: Some(node.id), detail };
        }
        let state = state(node.id);
        let standing = BootContext::after(roster, state.as_deref(), asked.retry, now);
        let case = Case { standing, ..case };
        if let Some(provisioning) = standing.provisioning(node).filter(|_| !asked.json) {
            return self.agent(&case, node, provisioning);
        }
        let key = asked.who.key();
        let choice = table.best(roster, node, key.as_ref(), standing);
        if standing.is_used_up_by(choice.as_ref()) && is_elsewhere(roster, node, place) {
            let case = Case { standing: standing.elsewhere(), ..case };
            let next = table.best(roster, node, key.as_ref(), case.standing);
            let mut answer = self.as_chosen(&case, node, next);
            if let Answer::Script { served, .. } = &mut answer {
                served.is_kept_back = choice.is_some_and(|choice| choice.is_for_one_boot());
            }
            return answer;
        }
        self.as_chosen(&case, node, choice)
    }

    /// The answer by boot mode and chosen configuration.
    fn as_chosen(&self, case: &Case<'_>, node: &Node, choice: Option<Choice>) -> Answer {
        let standing = case.standing;
        let mode = mode(node, standing, choice.as_ref());
        if !case.asked.json {
            let served = |what| ServedScript::new(Some(node.id), what);
            match mode {
                BootMode::Disk => {
                    return Answer::Script { text: script::disk(), served: served(What::Disk) };
                }
                BootMode::Hold => {
                    let reason = standing.state.and_then(|state| state.reason.as_deref());
                    let reason = format!("this node is held{}", told(reason));
                    let asking = self.asking(case, Some(node));
                    let text = script::wait(&reason, self.pause(case), &asking);
                    return Answer::Script { text, served: served(What::Hold) };
                }
                BootMode::Live | BootMode::Install => {}
            }
        }
        match choice.filter(Choice::boots) {
            Some(choice) => self.boot(case, Some(node), &choice),
            None => self.unconfigured(case, Some(node)),
        }
    }

    /// The agent, or the reason why it is unavailable: a node that is to be provisioned must not
    /// boot anything else.
    fn agent(&self, case: &Case<'_>, node: &Node, provisioning: &Provisioning) -> Answer {
        let arch = case.asked.arch.as_deref();
        let (text, what) = match self.agent_script(case, node, provisioning, arch) {
            Ok(text) => (text, What::Agent { nonce: provisioning.nonce }),
            Err(why) => {
                let why = format!("this node is to be provisioned: {why}");
                let asking = self.asking(case, Some(node));
                (script::wait(&why, self.pause(case), &asking), What::AskAgain)
            }
        };
        Answer::Script { text, served: ServedScript::new(Some(node.id), what) }
    }

    fn agent_script(
        &self,
        case: &Case<'_>,
        node: &Node,
        provisioning: &Provisioning,
        arch: Option<&str>,
    ) -> Result<String, NoAgent> {
        let images = agent::images(case.roster, &self.base(case.place), node, provisioning, arch)?;
        let server = self.agent_server(case.place).ok_or(NoAgent::Server)?;
        let key = self.key.as_ref().ok_or(NoAgent::Server)?;
        let initrds = images.initrd.len();
        let line = agent::line(case.roster, &server, node, provisioning, initrds, Some(key));
        Ok(script::boot(&BootScript {
            kernel: &images.kernel,
            initrds: &images.initrd,
            line: &line.text(),
            retry_delay: self.settings.retry_delay.as_secs(),
            chain: &self.retrying(case, Some(node), true),
        }))
    }

    /// Where agents reach this controller.
    pub fn agent_server(&self, place: RequestOrigin<'_>) -> Option<String> {
        let told = self.settings.agent_server.clone();
        told.or_else(|| agent::secure(&self.base(place), self.tls_port.get().copied()))
    }

    /// A machine without a node gets the BSS record written for it, if there is one. A tag is not
    /// the name of a machine: `name=Default` gets nothing.
    fn unknown(&self, case: &Case<'_>) -> Answer {
        let of_machine =
            |key: &BssKey| matches!(key, BssKey::Xname(_) | BssKey::Mac(_) | BssKey::Nid(_));
        let key = case.asked.who.key().filter(of_machine);
        let record = key.and_then(|key| case.roster.bss(&key));
        match record.filter(|record| !record.kernel.is_empty()) {
            Some(record) => self.boot(case, None, &own(record)),
            None => self.unconfigured(case, None),
        }
    }

    /// Nothing was written for the machine: the image for its architecture, or wait.
    fn unconfigured(&self, case: &Case<'_>, node: Option<&Node>) -> Answer {
        let BootRequest { who, arch, wait, json, .. } = case.asked;
        let id = node.map(|node| node.id);
        let discovery = arch.as_ref().and_then(|arch| case.roster.bss(&BssKey::unknown(arch)));
        if let Some(record) = discovery.filter(|record| !record.kernel.is_empty()) {
            let mut answer = self.boot(case, None, &own(record));
            if let Answer::Script { served, .. } = &mut answer {
                *served = ServedScript::new(id, What::Discovery);
            }
            return answer;
        }
        let served = ServedScript::new(id, What::AskAgain);
        if *json {
            let nothing = String::new;
            let parts = Parts {
                params: "kernel".to_owned(),
                kernel: nothing(),
                kernel_params: nothing(),
                initrd: nothing(),
                initrd_params: nothing(),
            };
            return Answer::Parts { parts, served };
        }
        // Those who name their architecture of their own accord hear the truth at once, as from
        // BSS. Machines that were sent to ask again go on asking: a 404 would end their boot.
        if arch.is_some() && *wait == 0 {
            return Answer::NotFound {
                node: id,
                detail: format!("{who}: this host not configured for booting."),
            };
        }
        let text = script::ask_again(self.pause(case), &self.asking(case, node));
        Answer::Script { text, served }
    }

    /// Grows with every round and differs from machine to machine, so that a room full of unknown
    /// machines does not ask as one.
    fn pause(&self, case: &Case<'_>) -> u64 {
        let first = self.settings.ask_delay.as_secs();
        let wait = self.rounds(case);
        if wait == 0 {
            return first;
        }
        let longest = self.settings.max_ask_delay.as_secs().max(first).max(1);
        let grown = (first << wait.min(5)).clamp(1, longest);
        let spread = grown / 4;
        let salt =
            case.asked.who.query().bytes().fold(u64::from(wait), |sum, byte| {
                sum.wrapping_mul(31).wrapping_add(u64::from(byte))
            });
        grown - spread + salt % (2 * spread + 1)
    }

    /// How often the machine was sent away since the inventory was last reported to have changed.
    fn rounds(&self, case: &Case<'_>) -> u32 {
        let woken = self.woken.load(Ordering::Relaxed);
        let was_woken = case.asked.ts.is_some_and(|sent_away| sent_away <= woken);
        if was_woken { 0 } else { case.asked.wait }
    }

    /// Where a machine that has to wait asks again.
    fn asking(&self, case: &Case<'_>, node: Option<&Node>) -> Chain {
        let who = asker(case, node);
        let ts = case.now.as_second();
        let wait = self.rounds(case).saturating_add(1).min(99);
        let query = format!("{who}&arch=${{buildarch}}&ts={ts}&wait={wait}");
        // The machine waits; a restart of the controller must not end that.
        self.chain(case.place, &query, true)
    }

    fn retrying(&self, case: &Case<'_>, node: Option<&Node>, native: bool) -> Chain {
        let who = asker(case, node);
        let query = format!("{who}&retry={}", case.asked.retry.saturating_add(1));
        self.chain(case.place, &query, native)
    }

    /// This controller first, then the others, and around again.
    fn chain(&self, place: RequestOrigin<'_>, query: &str, forever: bool) -> Chain {
        let url = |base: &str, prefix: &str| format!("{base}{prefix}/boot/v1/bootscript?{query}");
        if let Some(base) = &self.settings.chain_base {
            return Chain { urls: vec![url(base, "")], forever };
        }
        let all = &self.settings.advertise;
        let at = self.own_place(place);
        if all.len() > 1 {
            // The next one first: whatever failed may have failed because of this one.
            let order = (1..=all.len()).map(|step| &all[(at + step) % all.len()]);
            return Chain { urls: order.map(|base| url(base, "")).collect(), forever: true };
        }
        Chain { urls: vec![url(&self.base(place), place.prefix)], forever }
    }

    /// Where this controller is reached: as configured, else as the machine did it.
    pub fn base(&self, place: RequestOrigin<'_>) -> String {
        if let Some(base) = self.settings.advertise.get(self.own_place(place)) {
            return base.clone();
        }
        let plain = |c: char| c.is_ascii_alphanumeric() || "-._:[]".contains(c);
        let is_one = |host: &&str| (1..=MAX_HOST).contains(&host.len()) && host.chars().all(plain);
        match place.host.filter(is_one) {
            Some(host) => [if place.secure { "https://" } else { "http://" }, host].concat(),
            // iPXE takes a path for one on the server it got the script from.
            None => String::new(),
        }
    }

    /// Which of the advertised URLs the machine used; the first if none.
    fn own_place(&self, place: RequestOrigin<'_>) -> usize {
        let host = place.host.unwrap_or_default();
        let is_host = |base: &String| {
            let authority = base.split_once("://").map_or(base.as_str(), |(_, rest)| rest);
            authority.split('/').next() == Some(host)
        };
        self.settings.advertise.iter().position(is_host).unwrap_or(0)
    }
}

/// Renders the script of a choice.
impl Booter {
    /// The kernel arguments for the seed of a node.
    fn seed_arguments(
        &self,
        roster: &Roster,
        node: Option<&Node>,
        config: &BootConfig,
        base: &str,
    ) -> Option<String> {
        match (config.spec.cloud_init.as_deref(), node) {
            (Some("none"), _) => None,
            (Some(url), _) => Some(nocloud_argument(url)),
            (None, Some(node)) => {
                let seed = self.seed(roster, node, config)?;
                Some(seed.at(base)).filter(|arguments| !arguments.is_empty())
            }
            // The placeholder machine of skeletons.
            (None, None) => self.metadata.is_some().then(|| NO_SEED.to_owned()),
        }
    }

    fn boot(&self, case: &Case<'_>, node: Option<&Node>, choice: &Choice) -> Answer {
        let what = What::Boot {
            name: choice.name().into(),
            revision: choice.revision(),
            installs: choice.installs(),
            served_boot: case.standing.served_boot(choice, case.now).map(Box::new),
        };
        let served = ServedScript::new(node.map(|node| node.id), what);
        if let Some(text) = self.filled(case, node, choice) {
            return Answer::Script { text, served };
        }
        let made = match self.make(case, node, choice) {
            Ok(made) => made,
            Err(RenderError::Sign(error)) => {
                return Answer::NotFound { node: served.node, detail: error.to_string() };
            }
            Err(RenderError::Template { error, chain }) => {
                // Any client can repeat such requests, so at most one line is logged per second.
                static TOLD: AtomicI64 = AtomicI64::new(0);
                let now = case.now.as_second();
                if TOLD.swap(now, Ordering::Relaxed) != now {
                    tracing::warn!(config = choice.name(), reason = %error, "boot template failed");
                }
                let reason = format!("the template of `{}` failed: {error}", choice.name());
                let text = script::wait(&reason, self.settings.retry_delay.as_secs(), &chain);
                return Answer::Script {
                    text,
                    served: ServedScript { what: What::AskAgain, ..served },
                };
            }
        };
        if !case.asked.json && made.script.contains(JOIN_TOKEN)
            || case.asked.json && made.line.contains(JOIN_TOKEN)
        {
            let text = if case.asked.json {
                Text::Parts(made.parts(case.roster, choice))
            } else {
                Text::Script(made.script)
            };
            let xname = node.map(host_name);
            let role = |role: Option<&hoist_model::Role>| role.map(ToString::to_string);
            return Answer::NeedsToken(Box::new(PendingScript {
                xname: xname.unwrap_or_default(),
                role: role(node.and_then(|node| node.spec.role.as_ref())),
                subrole: role(node.and_then(|node| node.spec.subrole.as_ref())),
                text,
                served,
            }));
        }
        if case.asked.json {
            return Answer::Parts { parts: made.parts(case.roster, choice), served };
        }
        Answer::Script { text: made.script, served }
    }

    fn make(
        &self,
        case: &Case<'_>,
        node: Option<&Node>,
        choice: &Choice,
    ) -> Result<RenderedScript, RenderError> {
        let base = self.base(case.place);
        let native = matches!(choice.source, Source::Config(_));
        let chain = self.retrying(case, node, native);
        let line = self.line(case, node, choice, &base);
        let text = line.text();
        let text = if native {
            resolve_in(case.roster, &base, &text)
        } else {
            self.sign_arguments(&text, case.now)
        };
        let (kernel, initrds) = self.images(case, choice, &base)?;
        let retry_delay = self.settings.retry_delay.as_secs();
        let script = match &choice.source {
            Source::Config(config) if config.spec.template.is_some() => {
                let node = node.ok_or_else(|| {
                    RenderError::template(TemplateError::new("the template needs a node"), &chain)
                })?;
                let values = node_values(case.roster, node, &case.asked.who);
                let view = View {
                    node: values,
                    config: TrustedText(&config.name),
                    kernel: TrustedText(&kernel),
                    initrd: initrds.iter().map(|initrd| TrustedText(initrd)).collect(),
                    params: TrustedText(&text),
                    base: TrustedText(&base),
                    retry_url: TrustedText(chain.urls.first().map_or("", String::as_str)),
                    retry_delay,
                };
                let rendered = case.table.templates.render(&config.name, &view);
                rendered.map_err(|error| RenderError::template(error, &chain))?
            }
            _ => script::boot(&BootScript {
                kernel: &kernel,
                initrds: &initrds,
                line: &text,
                retry_delay,
                chain: &chain,
            }),
        };
        Ok(RenderedScript { script, line: text })
    }

    /// The command line, with the origin of every part.
    fn line(&self, case: &Case<'_>, node: Option<&Node>, choice: &Choice, base: &str) -> Line {
        let bootif = case.asked.who.bootif();
        let discovery = node.is_none() && case.asked.who.node(case.roster).is_some();
        match &choice.source {
            Source::Bss(record) => {
                let address = self.settings.ds_address.as_deref().unwrap_or(base);
                let ds = if self.settings.portable_ds {
                    format!("ds=nocloud;s={address}/;dsmode=net")
                } else {
                    format!("ds=nocloud-net;s={address}/")
                };
                // Without the node and everything that would tie the machine to one.
                let is_own = !record.is_for_unknown_machines() && !discovery;
                let bootif = bootif.as_deref().filter(|_| is_own);
                let host = node.map(host_name);
                let nid = node.and_then(|node| node.spec.nid).map(|nid| nid.to_string());
                let names = match &host {
                    Some(host) => Some(Names { host, nid: nid.as_deref() }),
                    None => case.is_skeleton.then_some(NO_NAMES),
                };
                let around = Surroundings { names, is_own, bootif, ds: Some(&ds) };
                command_line::of_record(case.roster, record, around)
            }
            Source::Config(config) => {
                let ds = self.seed_arguments(case.roster, node, config, base);
                let bootif = bootif.as_deref();
                let around = Surroundings { names: None, is_own: true, bootif, ds: ds.as_deref() };
                command_line::of_config(config, around)
            }
        }
    }

    fn images(
        &self,
        case: &Case<'_>,
        choice: &Choice,
        base: &str,
    ) -> Result<(String, Vec<String>), RenderError> {
        let one = |url: &str| {
            let url = resolve(case.roster, base, url);
            self.signed(&url, case.now).map_err(RenderError::Sign)
        };
        match &choice.source {
            Source::Config(config) => {
                let initrds = config.spec.initrd.iter().map(|initrd| one(initrd));
                Ok((one(&config.spec.kernel)?, initrds.collect::<Result<_, _>>()?))
            }
            Source::Bss(record) => {
                let initrd = Some(&record.initrd).filter(|initrd| !initrd.is_empty());
                Ok((
                    one(&record.kernel)?,
                    initrd.map(|initrd| one(initrd)).into_iter().collect::<Result<_, _>>()?,
                ))
            }
        }
    }

    fn signed(&self, url: &str, now: Timestamp) -> Result<String, SignError> {
        if !is_s3(url) {
            return Ok(url.to_owned());
        }
        match &self.settings.s3 {
            Some(s3) => Ok(s3.sign(url, now)?),
            None => Err(SignError::NotSet(url.to_owned())),
        }
    }

    /// `metal.server=s3://…` and `root=live:s3://…`, where they can be signed.
    fn sign_arguments(&self, line: &str, now: Timestamp) -> String {
        const WORDS: [&str; 2] = ["metal.server=", "root=live:"];
        if self.settings.s3.is_none() || !WORDS.iter().any(|word| line.contains(word)) {
            return line.to_owned();
        }
        let signed = line.split(' ').map(|word| {
            let prefix = WORDS.iter().find(|prefix| word.starts_with(**prefix));
            let url = prefix.map(|prefix| &word[prefix.len()..]).filter(|url| is_s3(url));
            match (prefix, url.and_then(|url| self.signed(url, now).ok())) {
                (Some(prefix), Some(url)) => format!("{prefix}{url}"),
                _ => word.to_owned(),
            }
        });
        signed.collect::<Vec<_>>().join(" ")
    }
}

/// Explains an answer.
impl Booter {
    /// The command line a node would get, part by part.
    pub fn parts_of(
        &self,
        roster: &Roster,
        table: &Table,
        node: &Node,
        choice: &Choice,
        place: RequestOrigin<'_>,
        now: Timestamp,
    ) -> Line {
        let asked = asked_by(roster, node);
        let standing = BootContext::default();
        let asked = &asked;
        let case = Case { roster, table, asked, standing, place, now, is_skeleton: false };
        self.line(&case, Some(node), choice, &self.base(place))
    }

    /// Why a node that is to be provisioned does not get the agent, if so.
    pub fn agent_problem(
        &self,
        roster: &Roster,
        table: &Table,
        node: &Node,
        provisioning: &Provisioning,
        place: RequestOrigin<'_>,
    ) -> Option<String> {
        let asked = asked_by(roster, node);
        let standing = BootContext::default();
        let now = Timestamp::UNIX_EPOCH;
        let asked = &asked;
        let case = Case { roster, table, asked, standing, place, now, is_skeleton: false };
        let failed = self.agent_script(&case, node, provisioning, None).err();
        failed.map(|why| format!("it is to be provisioned: {why}"))
    }

    /// The whole script of a choice for a node, or the reason why there is none.
    pub fn validate(
        &self,
        roster: &Roster,
        table: &Table,
        node: &Node,
        choice: &Choice,
        place: RequestOrigin<'_>,
        now: Timestamp,
    ) -> Result<String, ScriptError> {
        let asked = asked_by(roster, node);
        let standing = BootContext::default();
        let asked = &asked;
        let case = Case { roster, table, asked, standing, place, now, is_skeleton: false };
        match self.make(&case, Some(node), choice) {
            Ok(made) => Ok(made.script),
            Err(RenderError::Sign(error)) => Err(ScriptError::Image(error.to_string())),
            Err(RenderError::Template { error, .. }) => Err(ScriptError::Template(error)),
        }
    }
}

/// Errors of rendering a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScriptError {
    /// Its kernel or initrd cannot be reached.
    Image(String),
    Template(TemplateError),
}

/// Whether the request comes from an address that is not the node's.
fn is_elsewhere(roster: &Roster, node: &Node, place: RequestOrigin<'_>) -> bool {
    place.from.is_some_and(|from| roster.address_fit(node, from) == AddressFit::Foreign)
}

/// As the node itself would ask: by the MAC it boots with.
pub fn asked_by(roster: &Roster, node: &Node) -> BootRequest<'static> {
    let mac = roster.boot(node).map(|boot| boot.mac);
    let mac = mac.or_else(|| node.spec.interfaces.first().map(|interface| interface.mac));
    let who = match mac {
        Some(mac) => BootRequester::Mac(mac, None),
        None => BootRequester::Name(node.name.to_string().into()),
    };
    BootRequest { who, arch: None, retry: 0, wait: 0, ts: None, json: false }
}

/// The boot mode of a node: of its boot state, else of its configuration.
pub fn mode(node: &Node, standing: BootContext<'_>, choice: Option<&Choice>) -> BootMode {
    let installs = choice.is_some_and(Choice::installs);
    // A one-time boot takes precedence over the mode of a held or installed node.
    let next = choice.is_some_and(|choice| choice.rank.recurrence == Recurrence::Next);
    let decided = standing.state.and_then(|state| state.mode).filter(|_| !next);
    let mode = decided.unwrap_or(if installs { BootMode::Install } else { BootMode::Live });
    // A new configuration or a changed group must not overwrite an installed disk.
    let installed = standing.state.is_some_and(|state| state.installed.is_some());
    let reinstalled = next && standing.may_reinstall();
    let keeps_disk = node.is_protected() || installed && decided.is_none() && !reinstalled;
    if !keeps_disk || mode != BootMode::Install {
        return mode;
    }
    let held = standing.state.and_then(|state| state.mode) == Some(BootMode::Hold);
    if held { BootMode::Hold } else { BootMode::Disk }
}

struct RenderedScript {
    script: String,
    line: String,
}

/// Why an `s3://` URL of a kernel or initrd cannot be signed.
#[derive(Debug, thiserror::Error)]
enum SignError {
    #[error("cannot sign `{0}`: `s3.endpoint` and its keys are not set")]
    NotSet(String),
    #[error(transparent)]
    Presign(#[from] PresignError),
}

enum RenderError {
    Sign(SignError),
    Template { error: TemplateError, chain: Chain },
}

impl RenderError {
    fn template(error: TemplateError, chain: &Chain) -> Self {
        Self::Template { error, chain: chain.clone() }
    }
}

impl RenderedScript {
    /// Paths as they are stored, not as they are signed.
    fn parts(&self, roster: &Roster, choice: &Choice) -> Parts {
        let image = |kind, path: &str| {
            let key = hoist_model::BssImageKey { kind, path: path.to_owned() };
            roster.bss_image(&key).map(|image| image.params.clone()).unwrap_or_default()
        };
        let (kernel, initrd) = match &choice.source {
            Source::Config(config) => (config.spec.kernel.clone(), config.spec.initrd.join(" ")),
            Source::Bss(record) => (record.kernel.clone(), record.initrd.clone()),
        };
        Parts {
            params: format!("kernel {}", self.line),
            kernel_params: image(hoist_model::ImageKind::Kernel, &kernel),
            initrd_params: image(hoist_model::ImageKind::Initrd, &initrd),
            kernel,
            initrd,
        }
    }
}

fn own(record: &Arc<BssRecord>) -> Choice {
    Choice::of_record(record, hoist_model::selector::Class::Node, record.key.to_string())
}

/// How a machine asks the next time, as with BSS: by MAC if one is known, whatever it asked by.
fn asker(case: &Case<'_>, node: Option<&Node>) -> String {
    let mac = node.and_then(|node| match case.asked.who {
        BootRequester::Mac(..) => None,
        BootRequester::Name(_) | BootRequester::Nid(_) => {
            node.spec.interfaces.first().map(|i| i.mac)
        }
    });
    mac.map_or_else(|| case.asked.who.query(), |mac| format!("mac={mac}"))
}

fn told(reason: Option<&str>) -> String {
    reason.map(|reason| format!(": {reason}")).unwrap_or_default()
}

fn node_values<'a>(roster: &Roster, node: &'a Node, who: &BootRequester<'_>) -> NodeValues<'a> {
    let asked = match who {
        BootRequester::Mac(mac, _) => Some(*mac),
        BootRequester::Name(_) | BootRequester::Nid(_) => None,
    };
    NodeValues::of(roster, node, asked)
}
