//! Boot routes: the boot script, BSS v1 (`/boot/v1`) and hoist's native API (`/boot/v2`).
//!
//! Scripts are answered from one roster, without waiting; the boot log is kept in memory and
//! written in the background. Selection and rendering belong to `hoist-boot`.

mod boot_log;
mod change;
mod cloud_init;
mod discovered;
mod failure_events;
mod history;
mod hosts;
mod join_token;
mod native;
mod notice;
mod parameters;
mod pending_boots;
pub(crate) mod phone_home;
mod refresh;
mod script;
mod service;
mod states;
mod unknown_addresses;
mod unknown_machines;
mod whole_site;

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use async_trait::async_trait;
use axum::response::{IntoResponse, Response};
use hoist_api::admin::Context;
use hoist_boot::Booter;
use hoist_boot::rule::BootRule;
use hoist_model::{NodeId, PhoneHome};
use hoist_site::{Registry, Roster, SeedProvider, States};
use hoist_store::StoreError;
use http::{HeaderValue, header};
use rustls_pki_types::CertificateDer;
use tokio::sync::Semaphore;

use failure_events::FailureEvents;
use join_token::JoinTokens;
use notice::Notices;
use phone_home::Reports;
use refresh::Refresh;
use whole_site::WholeSites;

use crate::ahead;
use crate::enrollment::AgentsSent;
use crate::http_client::{self, HttpClientError};
use crate::site::Site;
use hoist_chassis::Chassis;
use hoist_chassis::route::{AccessClass, Route, with_state};

pub use boot_log::{BootLog, BootLogRow, Endpoint};
pub use hoist_boot::Settings as ScriptSettings;
pub use hoist_boot::presign::S3;
pub use pending_boots::PendingBoots;
pub(crate) use script::place;
pub use unknown_machines::UnknownMachine;

/// Site settings for boot.
#[derive(Debug, Clone, Default)]
pub struct BootSettings {
    pub scripts: ScriptSettings,
    /// A PUT of boot parameters without a kernel is refused where there is one.
    pub keep_kernel: bool,
    pub dialect: BssDialect,
    pub helpers: Helpers,
}

/// Whose answers the service routes give, where BSS of `OpenCHAMI` and its HPE upstream differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BssDialect {
    #[default]
    OpenChami,
    Hpe,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the dialect must be `openchami` or `hpe`")]
pub struct ParseBssDialectError;

impl FromStr for BssDialect {
    type Err = ParseBssDialectError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "openchami" => Ok(Self::OpenChami),
            "hpe" => Ok(Self::Hpe),
            _ => Err(ParseBssDialectError),
        }
    }
}

/// Other services that booting involves.
#[derive(Debug, Clone, Default)]
pub struct Helpers {
    /// Gives the join tokens for `${SPIRE_JOIN_TOKEN}`.
    pub spire: Option<String>,
    /// Is told of every machine that asks for its script.
    pub notify: Option<String>,
    /// Trusted for both, besides nothing else; empty means the machine's.
    pub authorities: Vec<CertificateDer<'static>>,
}

/// State shared by the handlers.
#[derive(Debug, Clone)]
pub struct Boot {
    pub(crate) chassis: Chassis,
    pub(crate) registry: Registry,
    pub(crate) booter: Arc<Booter>,
    pub(crate) log: BootLog,
    pub(crate) pending_boots: PendingBoots,
    pub(crate) agents_sent: AgentsSent,
    unerased: Arc<dyn UnerasedNodes>,
    states: States,
    /// `embedded`, `etcd` or `postgres`.
    backend: &'static str,
    refresh: Refresh,
    contacts: Contacts,
    reports: Arc<Reports>,
    failures: Arc<FailureEvents>,
    /// Permits for answers with everything in them.
    whole_sites: WholeSites,
    /// Permits for notices.
    notice_permits: Arc<Semaphore>,
    keep_kernel: bool,
    dialect: BssDialect,
}

/// Everything that booting needs besides the chassis.
#[derive(Debug)]
pub struct Dependencies {
    pub site: Site,
    pub contacts: Contacts,
    pub seeds: Arc<dyn SeedProvider>,
    pub agents_sent: AgentsSent,
    pub unerased: Arc<dyn UnerasedNodes>,
    pub settings: BootSettings,
}

/// Provisioning, as booting sees it.
#[async_trait]
pub trait UnerasedNodes: fmt::Debug + Send + Sync {
    /// The nodes that are being retired and are not known to be erased, each with its run. Such a
    /// node must not be released to boot anything else.
    async fn unerased(&self) -> Result<HashMap<NodeId, String>, StoreError>;
}

/// The other services, if there are any.
#[derive(Debug, Clone, Default)]
pub struct Contacts {
    join_tokens: Option<JoinTokens>,
    notices: Option<Notices>,
}

impl Contacts {
    /// Connects to nothing yet.
    pub fn new(helpers: &Helpers) -> Result<Self, HttpClientError> {
        let Helpers { spire, notify, authorities } = helpers;
        if spire.is_none() && notify.is_none() {
            return Ok(Self::default());
        }
        let plain = [spire, notify].into_iter().flatten().all(|url| url.starts_with("http://"));
        let client = http_client::client(authorities, plain)?;
        let join_tokens = spire.as_ref().map(|url| JoinTokens::new(client.clone(), url));
        let notices = notify.as_ref().map(|url| Notices::new(client, url.clone()));
        Ok(Self { join_tokens, notices })
    }
}

/// Open unless the site locks it.
pub(crate) const OPEN: AccessClass = AccessClass::Lockable { context: Context::Boot };

impl Boot {
    pub fn new(chassis: &Chassis, dependencies: Dependencies) -> Self {
        let Dependencies { site, contacts, seeds, agents_sent, unerased, settings } = dependencies;
        let registry = site.registry;
        let booter = Booter::new(settings.scripts).with_metadata(seeds);
        let booter = Arc::new(booter.with_agents(site.key, site.ports.tls));
        registry.add_rule(Arc::new(BootRule::new(Arc::clone(&booter))));
        Self {
            chassis: chassis.clone(),
            booter,
            log: BootLog::new(Arc::clone(&chassis.store)),
            pending_boots: PendingBoots::new(chassis, registry.clone(), &site.data_dir),
            agents_sent,
            unerased,
            registry,
            states: site.states,
            backend: site.backend,
            refresh: Refresh::new(site.source),
            contacts,
            reports: Arc::default(),
            failures: Arc::default(),
            whole_sites: WholeSites::default(),
            notice_permits: Arc::new(Semaphore::new(refresh::NOTICES)),
            keep_kernel: settings.keep_kernel,
            dialect: settings.dialect,
        }
    }

    /// Starts what runs beside the answers.
    pub fn start(&self) {
        let tasks = &self.chassis.tasks;
        let stop = tasks.stopping();
        let booter = Arc::clone(&self.booter);
        let prepare = move |roster: &Arc<Roster>| booter.prepare(roster);
        tasks.spawn("boot ahead", ahead::work(self.registry.clone(), stop.clone(), prepare));
        tasks.spawn("boot log", self.log.clone().flush(stop.clone()));
        tasks.spawn("boot log of others", self.log.clone().follow(stop.clone()));
        tasks.spawn("pending boots", self.pending_boots.clone().write(stop.clone()));
        tasks.spawn("refresh", self.refresh.clone().run(stop.clone()));
        if let Some(notices) = &self.contacts.notices {
            tasks.spawn("boot notices", notices.clone().send(stop.clone()));
        }
    }
}

/// All routes of the context.
pub fn routes(boot: &Boot) -> Vec<Route> {
    let bss = bss_routes().into_iter().map(|route| route.lenient().legacy()).collect();
    let all = [
        script_routes(boot),
        parameters::routes(),
        bss,
        native::routes(),
        states::routes(),
        discovered::routes(),
    ];
    with_state(all.into_iter().flatten().collect(), boot)
}

fn script_routes(boot: &Boot) -> Vec<Route<Boot>> {
    let direct = boot.clone();
    vec![
        Route::get("/boot/v1/bootscript", OPEN, script::bootscript)
            .summary("The boot script of a machine, for iPXE")
            .reason(
                "The script of the machine that is named: kernel, command line and seed URL; of a node \
                 that is being provisioned also its provision token, which counts once. Firmware \
                 has no credentials. Secrets do not belong on command lines",
            )
            .query("mac", "who is asking, in any spelling")
            .query("name", "its xname or name, if it gives no MAC")
            .query("nid", "its nid, if it gives neither")
            .query("arch", "iPXE's `${buildarch}`")
            .query("retry", "how often booting failed so far")
            .query("wait", "how often it was sent to ask again")
            .query("ts", "ignored")
            .query("json", "not 0: the parts of the script instead")
            .gives_media(200, "text/plain")
            .lenient()
            .legacy()
            .direct(move |head| script::direct(&direct, head)),
    ]
}

/// What else BSS answers.
fn bss_routes() -> Vec<Route<Boot>> {
    const JSON: &str = "application/json";
    vec![
        Route::get("/boot/v1/hosts", OPEN, hosts::get)
            .summary("BSS: the nodes of the inventory, all or those named")
            .reason(
                "Names, xnames, nids, MACs, roles and power of all nodes, no addresses. `ochami` \
                 sends no token here",
            )
            .query("name", "xnames or names, joined by commas or repeated")
            .query("mac", "MACs")
            .query("nid", "nids")
            .gives_media(200, JSON),
        Route::post("/boot/v1/hosts", OPEN, refresh::hosts)
            .summary("BSS: import from the inventory source now")
            .reason(
                "Nothing; the source is read at most every 5 s. `ochami` and discovery send no \
                 token here",
            )
            .gives_nothing(204),
        Route::get("/boot/v1/dumpstate", OPEN, hosts::dumpstate)
            .summary("BSS: all nodes and all boot parameters")
            .reason(
                "The list of `/boot/v1/hosts`. Boot parameters with their cloud-init documents \
                 are left out without the right to read `/boot/v1/bootparameters`",
            )
            .more_for(parameters::READ)
            .gives_media(200, JSON),
        Route::get("/boot/v1/endpoint-history", OPEN, history::get)
            .summary("BSS: last request of each node and resource")
            .reason(
                "Names of nodes and the times of their last boots. CSM scripts follow boots here \
                 without a token",
            )
            .query("name", "one node")
            .query("endpoint", "`bootscript` or `user-data`")
            .gives_media(200, JSON),
        Route::post("/boot/v1/scn", OPEN, refresh::scn)
            .summary("BSS: a notice that the state of nodes changed")
            .reason(
                "Nothing; the source is read at most every 5 s. The notification daemon has no \
                 token",
            )
            .takes::<serde_json::Map<String, serde_json::Value>>()
            .body_limit(refresh::MAX_NOTICE)
            .gives_nothing(200),
        Route::get("/boot/v1/service/status", OPEN, service::status)
            .summary("BSS: status of the service")
            .reason("A constant")
            .gives_media(200, JSON),
        Route::get("/boot/v1/service/version", OPEN, service::version)
            .summary("BSS: the version")
            .reason("The version of hoist")
            .gives_media(200, JSON),
        Route::get("/boot/v1/service/hsm", OPEN, service::hsm)
            .summary("BSS: status of the inventory source")
            .reason("Whether the last import succeeded")
            .gives_media(200, JSON),
        Route::get("/boot/v1/service/storage/status", OPEN, service::storage)
            .summary("BSS: status of the store")
            .reason("The kind of store and whether it answers, no address")
            .gives_media(200, JSON),
        Route::get("/boot/v1/service/etcd", OPEN, service::etcd)
            .summary("BSS: status of the store, in the form of the HPE upstream")
            .reason("Whether the store answers")
            .gives_media(200, JSON),
        Route::get("/boot/v1/service/status/all", OPEN, service::all)
            .summary("BSS: status of service, store and inventory source")
            .reason("What the other routes under `/boot/v1/service` say")
            .gives_media(200, JSON),
        Route::get("/meta-data", OPEN, cloud_init::meta_data)
            .summary("BSS: cloud-init's meta-data of the node with the caller's address")
            .reason(
                "The meta-data of the node whose address asks, and that of the records `Default` \
                 and `Global` for everybody, as BSS does. cloud-init has no credentials",
            )
            .query("key", "only this member: `a.b.c`")
            .gives_media(200, JSON),
        Route::get("/user-data", OPEN, cloud_init::user_data)
            .summary("BSS: cloud-init's user-data of the node with the caller's address")
            .reason(
                "The user-data of the node whose address asks, else that of the record \
                 `Default`. cloud-init has no credentials",
            )
            .gives_media(200, "text/yaml"),
        Route::post("/phone-home", OPEN, phone_home::by_address)
            .summary("BSS: report that a node is up")
            .reason(
                "The cloud-init data of the node's own record, and the report itself. A report \
                 counts for the node whose address sends it, once in 5 s",
            )
            .takes::<PhoneHome>()
            .body_limit(phone_home::MAX_REPORT)
            .gives_media(200, JSON),
    ]
}

/// JSON with the type that BSS gives it.
fn bss_json<T: serde::Serialize + ?Sized>(value: &T) -> Response {
    as_bss_json(json_text(value))
}

fn as_bss_json(body: impl IntoResponse) -> Response {
    const JSON: HeaderValue = HeaderValue::from_static("application/json; charset=UTF-8");
    ([(header::CONTENT_TYPE, JSON)], body).into_response()
}

fn json_text<T: serde::Serialize + ?Sized>(value: &T) -> Vec<u8> {
    serde_json::to_vec(value).expect("a plain value")
}
