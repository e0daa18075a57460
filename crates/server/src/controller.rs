//! A whole controller: data directory, store, roster, routes and the tasks behind them.
//!
//! Everything comes in by value; nothing here reads flags or the environment.

mod contexts;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use hoist_diagnostic::chain;
use hoist_discovery::Network;
use hoist_site::import::Importer;
use hoist_site::registry::{ChangeGuard, Horizon, LoadError, LoadedFrom, until_cancelled};
use hoist_site::schema::{MigrateError, SchemaError};
use hoist_site::source::SourceError;
use hoist_site::{Registry, SiteKey, States, controllers, last_good};
use hoist_store::url::{self, Address, HistoryLimits};
use hoist_store::{Store, StoreError};
use jiff::Timestamp;
use rustls_pki_types::CertificateDer;
use tokio_util::sync::CancellationToken;

use crate::boot::BootSettings;
use crate::data_dir::{DataDir, DataDirError, Runtime};
use crate::deploy::DeploySettings;
use crate::http_client::HttpClientError;
use crate::inventory::{Inventory, STALE_AFTER, SourceConfig, committer, end_expired};
use crate::metadata::{Metadata, MetadataSettings};
use crate::site::{EMBEDDED, Ports, Site, Source};
use crate::site_key::KeyError;
use crate::upgrade::UpgradeError;
use crate::{data_disk, registration, site_key, upgrade};
use hoist_chassis::Limits;
use hoist_chassis::auth::{BssAuth, Policy};
use hoist_chassis::ca::ServerName;
use hoist_chassis::health::CheckResult;
use hoist_chassis::jwks::JwksConfig;
use hoist_chassis::peer::Proxies;
use hoist_chassis::{
    Chassis, Retentions, RunningServer, Server, ServerBuilder, StartError, StopReport,
};

use contexts::{Contexts, OtherServices};

/// How long a start waits for the store before it turns to the last-good copy.
const STORE_TIMEOUT: Duration = Duration::from_secs(5);

/// How often the gauges are set.
const GAUGES_EVERY: Duration = Duration::from_secs(5);

/// The configuration of a controller.
#[derive(Debug, Clone)]
pub struct Config {
    pub data_dir: PathBuf,
    /// Plain HTTP.
    pub listen: Option<SocketAddr>,
    pub tls_listen: Option<SocketAddr>,
    /// Address of the store; see [`hoist_store::url`].
    pub store: String,
    /// Where nodes are imported from; `None` when people declare them here.
    pub source: Option<SourceConfig>,
    /// The only authorities trusted for sources that an import names.
    pub import_authorities: Vec<CertificateDer<'static>>,
    /// Further names and addresses this controller is reached by.
    pub names: Vec<ServerName>,
    pub policy: Policy,
    pub limits: Limits,
    pub retentions: Retentions,
    pub change_guard: ChangeGuard,
    /// How far back watches of nodes may start, and how much history the store keeps.
    pub horizon: Horizon,
    pub jwks: Option<JwksConfig>,
    /// Who may say for whom they ask.
    pub proxies: Proxies,
    pub boot: BootSettings,
    pub metadata: MetadataSettings,
    pub deploy: DeploySettings,
    /// Where machines that search for clusters are answered.
    pub discovery: Option<Network>,
    /// After so long a provisioning agent that says nothing is taken for dead.
    pub agent_silence: Duration,
}

/// An agent at work says every ten seconds that it lives.
const AGENT_SILENCE: Duration = Duration::from_mins(2);

impl Config {
    pub fn new(data_dir: impl Into<PathBuf>) -> Self {
        Self {
            data_dir: data_dir.into(),
            listen: None,
            tls_listen: None,
            store: "embedded".to_owned(),
            source: None,
            import_authorities: Vec::new(),
            names: Vec::new(),
            policy: Policy::default(),
            limits: Limits::default(),
            retentions: Retentions::default(),
            change_guard: ChangeGuard::default(),
            horizon: Horizon::default(),
            jwks: None,
            proxies: Proxies::default(),
            boot: BootSettings::default(),
            metadata: MetadataSettings::default(),
            deploy: DeploySettings::default(),
            discovery: None,
            agent_silence: AGENT_SILENCE,
        }
    }
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControllerError {
    #[error("the data directory cannot be used")]
    DataDir(#[from] DataDirError),
    #[error("the store `{store}` cannot be opened")]
    Store { store: String, source: StoreError },
    #[error("the site cannot be loaded")]
    Load(#[source] LoadError),
    #[error("the inventory source cannot be used")]
    Source(#[from] SourceError),
    #[error("the services that booting involves cannot be used")]
    Helper(#[from] HttpClientError),
    #[error("tokens for nodes cannot be made")]
    Key(#[from] KeyError),
    #[error("the server cannot start")]
    Start(#[from] StartError),
    #[error("the store cannot be brought to the schema of this version")]
    Upgrade(#[from] UpgradeError),
}

/// A running controller.
#[derive(Debug)]
pub struct Controller {
    running: RunningServer,
    data_dir: DataDir,
    site: Site,
    inventory: Inventory,
}

impl Controller {
    /// Starts, and returns once it listens and answers.
    pub async fn start(config: Config) -> Result<Self, ControllerError> {
        warn_of_open_bss(&config.policy);
        let data_dir = DataDir::open(&config.data_dir)?;
        let site = Box::pin(open_site(&config, &data_dir)).await?;
        let services = OtherServices::open(&config, &site)?;
        let mut server = server_builder(&config, &site).prepare().await?;
        let contexts = Contexts::new(server.chassis(), &site, services, config);
        server.add_routes(contexts.routes());
        contexts.cluster().open().await;
        server.set_members(contexts.cluster().members());
        contexts.start();
        let running = Box::pin(server.start()).await?;
        site.ports.set(running.plain_addr(), running.tls_addr());
        let metadata = contexts.metadata().clone();
        let controller = Self { running, data_dir, site, inventory: contexts.into_inventory() };
        controller.start_background(metadata);
        controller.announce();
        Ok(controller)
    }

    fn start_background(&self, metadata: Metadata) {
        let chassis = self.running.chassis();
        let registry = &self.site.registry;
        let tasks = &chassis.tasks;
        let stop = tasks.stopping();
        tasks.spawn("follow", registry.clone().follow(stop.clone()));
        tasks.spawn("fold", registry.clone().fold(stop.clone()));
        tasks.spawn("states", self.site.states.clone().follow(stop.clone()));
        let keep = last_good::keep(registry.clone(), self.data_dir.last_good(), stop.clone());
        tasks.spawn("last-good", keep);
        if let Some(Source { url, importer }) = self.site.source.clone() {
            tasks.spawn("import", importer.run(committer(chassis, &url), stop.clone()));
        }
        let over = end_expired(registry.clone(), chassis.clone(), stop.clone());
        tasks.spawn("maintenance", over);
        let gauges = Gauges {
            registry: registry.clone(),
            importer: self.site.source.as_ref().map(|source| source.importer.clone()),
            metadata,
            data_dir: self.data_dir.path().to_owned(),
        };
        tasks.spawn("gauges", gauges.keep(stop.clone()));
        data_disk::check(&chassis.readiness, self.data_dir.path());
        let store = Arc::clone(&chassis.store);
        let clock = Arc::clone(&chassis.clock);
        tasks.spawn("registration", registration::keep(store, clock, stop.clone()));
        check_freshness(chassis, registry);
        let differs = Arc::new(AtomicBool::new(false));
        site_key::check(&chassis.readiness, Arc::clone(&differs));
        let store = Arc::clone(&chassis.store);
        let key = self.site.key.clone();
        tasks.spawn("site key", site_key::watch(store, key, differs, stop.clone()));
    }

    fn announce(&self) {
        let runtime = Runtime {
            url: self.running.plain_addr().map(|addr| format!("http://{}", reachable(addr))),
            tls_url: self.running.tls_addr().map(|addr| format!("https://{}", reachable(addr))),
            ca: self.data_dir.path().join("ca").join("root.pem"),
            pid: std::process::id(),
        };
        if let Err(error) = self.data_dir.announce(&runtime) {
            tracing::warn!(%error, "local commands cannot find this server by themselves");
        }
    }

    pub fn plain_addr(&self) -> Option<SocketAddr> {
        self.running.plain_addr()
    }

    pub fn tls_addr(&self) -> Option<SocketAddr> {
        self.running.tls_addr()
    }

    /// Every route and who may call it, one per line.
    pub fn access_classes(&self) -> &str {
        self.running.access_classes()
    }

    /// The routes that need no token, as a table for people.
    pub fn open_routes(&self) -> &str {
        self.running.open_routes()
    }

    pub fn registry(&self) -> &Registry {
        &self.site.registry
    }

    pub fn inventory(&self) -> &Inventory {
        &self.inventory
    }

    pub fn chassis(&self) -> &Chassis {
        self.running.chassis()
    }

    /// Stops accepting, finishes requests, flushes, and joins everything.
    pub async fn stop(self) -> StopReport {
        self.data_dir.withdraw();
        self.running.stop().await
    }
}

fn warn_of_open_bss(policy: &Policy) {
    if policy.bss == BssAuth::Open {
        tracing::warn!(
            "`bss.auth` is `open`: clients without a token can change the boot parameters of all nodes; set it \
             to `token` or `jwks` to require one"
        );
    }
}

fn server_builder(config: &Config, site: &Site) -> ServerBuilder {
    let store = Arc::clone(site.registry.store());
    let mut builder = Server::builder(&site.data_dir, store)
        .names(config.names.clone())
        .policy(config.policy.clone())
        .limits(config.limits.clone())
        .proxies(config.proxies.clone())
        .retentions(config.retentions)
        .write_scope(|caller_gone, write| Box::pin(until_cancelled(caller_gone, write)));
    if let Some(addr) = config.listen {
        builder = builder.listen_plain(addr);
    }
    if let Some(addr) = config.tls_listen {
        builder = builder.listen_tls(addr);
    }
    if let Some(jwks) = &config.jwks {
        builder = builder.jwks(jwks.clone());
    }
    builder
}

/// Opens the store, brings its schema up to date where that is safe, and loads the site.
async fn open_site(config: &Config, data_dir: &DataDir) -> Result<Site, ControllerError> {
    let started = Instant::now();
    let address = config.store.parse::<Address>();
    let store_error = |source| ControllerError::Store {
        store: address.as_ref().map_or_else(|_| "?".to_owned(), ToString::to_string),
        source,
    };
    // The controller follows this history itself, so a short horizon of clients does not shorten it.
    let least = HistoryLimits { changes: 1000, age: Duration::from_mins(1) };
    let history = HistoryLimits {
        changes: u64::try_from(config.horizon.removals).unwrap_or(u64::MAX).max(least.changes),
        age: config.horizon.age.max(least.age),
    };
    let store = url::open_keeping(&config.store, data_dir.path(), history);
    let store = store.await.map_err(store_error)?;
    let backend = match &address {
        Ok(Address::Etcd(_)) => "etcd",
        Ok(Address::Postgres(_)) => "postgres",
        Ok(Address::Embedded) | Err(_) => EMBEDDED,
    };
    // No other controller can use an embedded store; a shared one needs `hoist db upgrade`.
    if backend == EMBEDDED {
        // The lock of the directory proves that a registration is of a killed controller.
        if let Err(error) = controllers::forget_all(store.as_ref()).await {
            tracing::debug!(error = %chain(&error), "an old registration stays until it ages");
        }
        upgrade_unless_unusable(&store, data_dir).await?;
    }
    let registry = open_registry(Arc::clone(&store), data_dir, config.change_guard).await?;
    registry.set_horizon(config.horizon);
    let states = States::new(store);
    let source = match &config.source {
        Some(config) => Some(Box::pin(open_source(config, &registry, &states)).await?),
        None => None,
    };
    let key = open_key(data_dir, &registry, backend).await?;
    Ok(Site {
        registry,
        states,
        key,
        backend,
        source,
        data_dir: data_dir.path().to_owned(),
        ports: Ports::default(),
        started,
    })
}

async fn open_source(
    config: &SourceConfig,
    registry: &Registry,
    states: &States,
) -> Result<Source, SourceError> {
    let registry = registry.clone();
    let states = states.clone();
    let source = config.open().await?;
    registry.set_awaits_import(true);
    let options = config.reconcile.clone();
    let importer = Importer::new(registry, states, source, options, config.every);
    Ok(Source { url: config.url(), importer })
}

/// Without the store it is compared as soon as that is back.
async fn open_key(
    data_dir: &DataDir,
    registry: &Registry,
    backend: &str,
) -> Result<SiteKey, KeyError> {
    let key = site_key::open(data_dir.path())?;
    if registry.contact().loaded_from == LoadedFrom::Store {
        let store = registry.store().as_ref();
        let alone = backend == EMBEDDED;
        let settling = site_key::settle(store, &key, data_dir.path(), alone);
        match tokio::time::timeout(STORE_TIMEOUT, settling).await {
            Ok(Err(KeyError::Store(error))) => {
                tracing::warn!(error = %chain(&error), "the site's key is compared later");
            }
            Err(_) => tracing::warn!("the store went away before the site's key was compared"),
            Ok(settled) => settled?,
        }
    }
    Ok(key)
}

/// Upgrades the schema, unless the store cannot be used now: the site is then served from the
/// last-good copy, and the next start upgrades.
async fn upgrade_unless_unusable(
    store: &Arc<dyn Store>,
    data_dir: &DataDir,
) -> Result<(), ControllerError> {
    match upgrade::upgrade(Arc::clone(store), data_dir.path(), Timestamp::now()).await {
        Ok(_) => Ok(()),
        Err(MigrateError::Store(error) | MigrateError::Schema(SchemaError::Store(error))) => {
            tracing::warn!(error = %chain(&error), "the schema of the store was not checked");
            Ok(())
        }
        Err(error) => Err(error.into()),
    }
}

/// From the store if it can be read, else from the last-good copy, else empty and not ready. Only a
/// store that another version or another product wrote keeps a controller from starting: an outage
/// does not cause that, and an operator must look.
async fn open_registry(
    store: Arc<dyn Store>,
    data_dir: &DataDir,
    change_guard: ChangeGuard,
) -> Result<Registry, ControllerError> {
    let opening = Registry::open(Arc::clone(&store), change_guard);
    let error = match tokio::time::timeout(STORE_TIMEOUT, opening).await {
        Ok(Ok(registry)) => return Ok(registry),
        Ok(Err(error)) => error,
        Err(_) => {
            let detail = format!("no answer within {STORE_TIMEOUT:?}");
            LoadError::Store(StoreError::Unavailable { detail })
        }
    };
    if matches!(error, LoadError::Schema(_)) {
        return Err(ControllerError::Load(error));
    }
    let registry = match last_good::read(&data_dir.last_good()) {
        Ok((roster, taken)) => {
            tracing::warn!(
                error = %chain(&error), %taken, revision = roster.revision(), nodes = roster.len(),
                "the store cannot be read; going on from the last-good copy"
            );
            Registry::resume(store, roster, taken, change_guard)
        }
        // Nothing that happens later makes such a store readable.
        Err(_) if is_damaged(&error) => return Err(ControllerError::Load(error)),
        Err(no_copy) => {
            tracing::error!(
                error = %chain(&error), last_good = %chain(&no_copy),
                "the store cannot be read; not ready until it can"
            );
            Registry::empty(store, change_guard)
        }
    };
    registry.note_failure(&error);
    Ok(registry)
}

fn is_damaged(error: &LoadError) -> bool {
    matches!(error, LoadError::Record(_) | LoadError::Store(StoreError::Damaged { .. }))
}

/// A stale roster degrades readiness and never fails it, since boots go on. Without a complete roster
/// the controller is not ready.
fn check_freshness(chassis: &Chassis, registry: &Registry) {
    let registry = registry.clone();
    chassis.readiness.add("roster", move || {
        let contact = registry.contact();
        let roster = registry.roster();
        let complete = registry.is_complete();
        async move {
            let seen = format!(
                "revision {}, {} nodes, {} s old",
                roster.revision(),
                roster.len(),
                contact.silent.as_secs()
            );
            match contact.loaded_from {
                LoadedFrom::Nothing => CheckResult::down("neither the store nor a copy was read"),
                _ if !complete => CheckResult::down("no nodes yet: the source was not read"),
                LoadedFrom::Snapshot { taken } => {
                    CheckResult::degraded(format!("{seen}, from the last-good copy of {taken}"))
                }
                LoadedFrom::Store if contact.silent > STALE_AFTER => {
                    CheckResult::degraded(format!("{seen}, stale"))
                }
                LoadedFrom::Store => CheckResult::ok(seen),
            }
        }
    });
}

/// The state that the readiness checks judge, as numbers for `/metrics`.
struct Gauges {
    registry: Registry,
    importer: Option<Importer>,
    metadata: Metadata,
    data_dir: PathBuf,
}

impl Gauges {
    async fn keep(self, stop: CancellationToken) {
        let mut tick = tokio::time::interval(GAUGES_EVERY);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = tick.tick() => {}
            }
            self.measure_roster();
            if let Some(importer) = &self.importer {
                let alarmed = importer.progress().last.is_some_and(|report| report.alarm.is_some());
                metrics::gauge!("hoist_import_alarm").set(f64::from(u8::from(alarmed)));
            }
            self.metadata.measure();
            data_disk::measure(&self.data_dir);
        }
    }

    fn measure_roster(&self) {
        let roster = self.registry.roster();
        let contact = self.registry.contact();
        #[expect(clippy::cast_precision_loss, reason = "gauges are floats")]
        {
            metrics::gauge!("hoist_roster_nodes").set(roster.len() as f64);
            metrics::gauge!("hoist_roster_revision").set(roster.revision() as f64);
        }
        let from_store = contact.loaded_from == LoadedFrom::Store;
        metrics::gauge!("hoist_roster_from_store").set(f64::from(u8::from(from_store)));
        metrics::gauge!("hoist_roster_age_seconds").set(contact.silent.as_secs_f64());
        metrics::gauge!("hoist_store_connected").set(f64::from(u8::from(contact.connected)));
        metrics::gauge!("hoist_store_full").set(f64::from(u8::from(contact.full)));
    }
}

/// An address that can be connected to: "any" is reached through loopback.
fn reachable(addr: SocketAddr) -> SocketAddr {
    match addr {
        SocketAddr::V4(v4) if v4.ip().is_unspecified() => {
            SocketAddr::new(std::net::Ipv4Addr::LOCALHOST.into(), addr.port())
        }
        SocketAddr::V6(v6) if v6.ip().is_unspecified() => {
            SocketAddr::new(std::net::Ipv6Addr::LOCALHOST.into(), addr.port())
        }
        other => other,
    }
}
