//! A whole controller: data directory, store, roster, routes and the tasks behind them.
//!
//! Everything comes in by value; nothing here reads flags or the environment.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use hoist_inventory::import::Importer;
use hoist_inventory::registry::{Brake, LoadError, LoadedFrom};
use hoist_inventory::source::SourceError;
use hoist_inventory::{Registry, States, controllers, last_good};
use hoist_metadata::{MetadataProvider, SiteKey};
use hoist_store::url::Address;
use hoist_store::{Store, StoreError};
use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use crate::artifacts::{self, Artifacts};
use crate::auth::{BssAuth, Policy};
use crate::boot::{self, Boot, BootSettings, Contacts, Grounds, HelperError};
use crate::ca::ServerName;
use crate::data_dir::{DataDir, DataDirError, Runtime};
use crate::database::UpgradeError;
use crate::deploy::{self, Deploy, DeploySettings};
use crate::health::Finding;
use crate::hsm::{self, Hsm};
use crate::inventory::{self, Background, Inventory, STALE_AFTER, Source, SourceConfig, committer};
use crate::jwks::JwksConfig;
use crate::listen::Limits;
use crate::metadata::key::KeyError;
use crate::metadata::secrets::Vault;
use crate::metadata::{self, Metadata, MetadataSettings, Providers};
use crate::peer::Proxies;
use crate::provision::{self, Provision, Runs};
use crate::server::{Chassis, Retentions, Running, Server, StartError, Stopped};
use crate::{backup, chain, database, registration};

/// How long a start waits for the store before it turns to the last-good copy.
const STORE_PATIENCE: Duration = Duration::from_secs(5);

/// How often the gauges are set.
const GAUGES_EVERY: Duration = Duration::from_secs(5);

/// What a controller is to be like.
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
    /// Further names and addresses this controller is reached by.
    pub names: Vec<ServerName>,
    pub policy: Policy,
    pub limits: Limits,
    pub retentions: Retentions,
    pub brake: Brake,
    pub jwks: Option<JwksConfig>,
    /// Who may say for whom they ask.
    pub proxies: Proxies,
    pub boot: BootSettings,
    pub metadata: MetadataSettings,
    pub deploy: DeploySettings,
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
            names: Vec::new(),
            policy: Policy::default(),
            limits: Limits::default(),
            retentions: Retentions::default(),
            brake: Brake::default(),
            jwks: None,
            proxies: Proxies::default(),
            boot: BootSettings::default(),
            metadata: MetadataSettings::default(),
            deploy: DeploySettings::default(),
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
    #[error("the site cannot be loaded, and there is no last-good copy to go on from")]
    Load(#[source] LoadError),
    #[error("the inventory source cannot be used")]
    Source(#[from] SourceError),
    #[error("the services that booting involves cannot be used")]
    Helper(#[from] HelperError),
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
    running: Running,
    data_dir: DataDir,
    registry: Registry,
    inventory: Inventory,
}

impl Controller {
    /// Starts, and returns once it listens and answers.
    #[expect(clippy::too_many_lines, reason = "everything is put together, one after the other")]
    pub async fn start(config: Config) -> Result<Self, ControllerError> {
        let started = Instant::now();
        if config.policy.bss == BssAuth::Open {
            tracing::warn!(
                "`bss.auth` is `open`: everybody who reaches this server can change what nodes boot"
            );
        }
        let data_dir = DataDir::open(&config.data_dir)?;
        let address = config.store.parse::<Address>();
        let store_error = |source| ControllerError::Store {
            store: address.as_ref().map_or_else(|_| "?".to_owned(), ToString::to_string),
            source,
        };
        let store =
            hoist_store::url::open(&config.store, data_dir.path()).await.map_err(store_error)?;
        let backend = match &address {
            Ok(Address::Etcd(_)) => "etcd",
            Ok(Address::Postgres(_)) => "postgres",
            Ok(Address::Embedded) | Err(_) => "embedded",
        };
        // Alone on this store, there is nobody to wait for; shared ones need `hoist db upgrade`.
        if backend == "embedded" {
            // What a killed controller said of itself: the lock of the directory knows better.
            controllers::forget_all(store.as_ref()).await.map_err(store_error)?;
            database::upgrade(Arc::clone(&store), data_dir.path(), Timestamp::now()).await?;
        }
        let registry = open_registry(Arc::clone(&store), &data_dir, config.brake).await?;
        let states = States::new(Arc::clone(&store));

        let mut builder = Server::builder(data_dir.path(), store)
            .names(config.names)
            .policy(config.policy)
            .limits(config.limits)
            .proxies(config.proxies)
            .retentions(config.retentions);
        if let Some(addr) = config.listen {
            builder = builder.listen_plain(addr);
        }
        if let Some(addr) = config.tls_listen {
            builder = builder.listen_tls(addr);
        }
        if let Some(jwks) = config.jwks {
            builder = builder.jwks(jwks);
        }
        let (sender, receiver) = std::sync::mpsc::channel();
        let (shared_registry, shared_states) = (registry.clone(), states.clone());
        let source = match &config.source {
            Some(config) => Some(Box::pin(open_source(config, &registry, &states)).await?),
            None => None,
        };
        let key = open_key(&data_dir, &registry, backend).await?;
        let shared_key = key.clone();
        let (plain_port, tls_port) = (Arc::new(OnceLock::new()), Arc::new(OnceLock::new()));
        let providers = Arc::new(Providers::new(&key, &config.metadata, data_dir.path())?);
        let unknown = config.metadata.unknown;
        let deploy_vault = Vault::new(data_dir.path(), config.metadata.variables.clone());
        let vault = Vault::new(data_dir.path(), config.metadata.variables);
        let grounds = Grounds {
            registry: registry.clone(),
            states: states.clone(),
            backend,
            source: source.clone(),
            contacts: Contacts::new(&config.boot.helpers)?,
            metadata: Arc::clone(&providers) as Arc<dyn MetadataProvider>,
            key: key.clone(),
            tls_port: Arc::clone(&tls_port),
            data_dir: data_dir.path().to_owned(),
        };
        let (hsm_registry, hsm_states) = (registry.clone(), states.clone());
        let background = Background { started, backend, source: source.clone() };
        let dir = data_dir.path().to_owned();
        let (artifact_dir, artifact_registry) = (dir.clone(), registry.clone());
        let is_shared = backend != "embedded";
        let (deploy_dir, deploy_registry) = (dir.clone(), registry.clone());
        let siblings = config.boot.scripts.advertise.clone();
        let (advertise, shared_plain_port) = (siblings.clone(), Arc::clone(&plain_port));
        let running = builder
            .context(move |chassis| backup::route::routes(chassis, dir))
            .context(move |chassis| {
                let inventory = Inventory::new(chassis, shared_registry, shared_states, background);
                let routes = inventory::routes(&inventory);
                // The receiver is read right after the start.
                let _ = sender.send(inventory);
                routes
            })
            .context(move |chassis| {
                let boot = Boot::new(chassis, grounds, config.boot);
                let runs = Runs::new(&boot, key.clone(), config.agent_silence);
                let metadata = Metadata::new(&boot, key, providers, unknown, vault, runs.clone());
                let provision = Provision::new(&metadata, runs, advertise, shared_plain_port);
                let mut routes = boot::routes(&boot);
                routes.extend(metadata::routes(&metadata));
                routes.extend(provision::routes(&provision));
                boot.start();
                provision.start();
                routes
            })
            .context(move |chassis| hsm::routes(&Hsm::new(chassis, hsm_registry, hsm_states)))
            .context(move |chassis| {
                let artifacts = Artifacts::new(chassis, artifact_registry, &artifact_dir, siblings);
                artifacts.start();
                artifacts::routes(&artifacts)
            })
            .context(move |chassis| {
                let deploy = Deploy::new(
                    chassis,
                    deploy_registry,
                    config.deploy,
                    deploy_vault,
                    is_shared,
                    &deploy_dir,
                );
                deploy::routes(&deploy)
            })
            .start()
            .await?;
        // A machine that is to boot the agent and asks before this is told to ask again.
        let known = [(&plain_port, running.plain_addr()), (&tls_port, running.tls_addr())];
        for (port, addr) in known {
            addr.map(|addr| port.set(addr.port()));
        }
        let inventory = receiver.recv().expect("a started server has made its routes");
        let controller = Self { running, data_dir, registry, inventory };
        controller.start_background(states, source, shared_key);
        controller.announce();
        Ok(controller)
    }

    fn start_background(&self, states: States, source: Option<Source>, key: SiteKey) {
        let chassis = self.running.chassis();
        let (tasks, stop) = (&chassis.tasks, chassis.tasks.stopping());
        tasks.spawn("follow", self.registry.clone().follow(stop.clone()));
        tasks.spawn("fold", self.registry.clone().fold(stop.clone()));
        tasks.spawn("states", states.follow(stop.clone()));
        let keep = last_good::keep(self.registry.clone(), self.data_dir.last_good(), stop.clone());
        tasks.spawn("last-good", keep);
        if let Some(Source { url, importer }) = source {
            tasks.spawn("import", importer.run(committer(chassis, &url), stop.clone()));
        }
        tasks.spawn("gauges", show_freshness(self.registry.clone(), stop.clone()));
        let (store, clock) = (Arc::clone(&chassis.store), Arc::clone(&chassis.clock));
        tasks.spawn("registration", registration::keep(store, clock, stop.clone()));
        check_freshness(chassis, &self.registry);
        let differs = Arc::new(AtomicBool::new(false));
        metadata::key::check(&chassis.readiness, Arc::clone(&differs));
        let store = Arc::clone(&chassis.store);
        tasks.spawn("site key", metadata::key::watch(store, key, differs, stop.clone()));
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
    pub fn planes(&self) -> &str {
        self.running.planes()
    }

    /// The routes that need no token, as a table for people.
    pub fn open_routes(&self) -> &str {
        self.running.open_routes()
    }

    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    pub fn inventory(&self) -> &Inventory {
        &self.inventory
    }

    pub fn chassis(&self) -> &Chassis {
        self.running.chassis()
    }

    /// Stops accepting, finishes requests, flushes, and joins everything.
    pub async fn stop(self) -> Stopped {
        self.data_dir.withdraw();
        self.running.stop().await
    }
}

async fn open_source(
    config: &SourceConfig,
    registry: &Registry,
    states: &States,
) -> Result<Source, SourceError> {
    let (registry, states) = (registry.clone(), states.clone());
    let (source, options) = (config.open().await?, config.reconcile.clone());
    let importer = Importer::new(registry, states, source, options, config.every);
    Ok(Source { url: config.url(), importer })
}

/// Without the store it is compared as soon as that is back.
async fn open_key(
    data_dir: &DataDir,
    registry: &Registry,
    backend: &str,
) -> Result<SiteKey, KeyError> {
    let key = metadata::key::open(data_dir.path())?;
    if registry.contact().loaded_from == LoadedFrom::Store {
        let (store, alone) = (registry.store().as_ref(), backend == "embedded");
        let settling = metadata::key::settle(store, &key, data_dir.path(), alone);
        match tokio::time::timeout(STORE_PATIENCE, settling).await {
            Ok(Err(KeyError::Store(StoreError::Unavailable { .. }))) | Err(_) => {
                tracing::warn!("the store went away before the site's key was compared");
            }
            Ok(settled) => settled?,
        }
    }
    Ok(key)
}

/// From the store if it answers, else from the last-good copy.
async fn open_registry(
    store: Arc<dyn Store>,
    data_dir: &DataDir,
    brake: Brake,
) -> Result<Registry, ControllerError> {
    let opening = Registry::open(Arc::clone(&store), brake);
    let error = match tokio::time::timeout(STORE_PATIENCE, opening).await {
        Ok(Ok(registry)) => return Ok(registry),
        Ok(Err(error)) => error,
        Err(_) => {
            let detail = format!("no answer within {STORE_PATIENCE:?}");
            LoadError::Store(StoreError::Unavailable { detail })
        }
    };
    let away = matches!(error, LoadError::Store(StoreError::Unavailable { .. }));
    if !away {
        return Err(ControllerError::Load(error));
    }
    match last_good::read(&data_dir.last_good()) {
        Ok((roster, taken)) => {
            tracing::warn!(
                error = %chain(&error), %taken, revision = roster.revision(), nodes = roster.len(),
                "the store is away; going on from the last-good copy"
            );
            Ok(Registry::resume(store, roster, taken, brake))
        }
        Err(no_copy) => {
            tracing::error!(error = %chain(&no_copy), "no last-good copy");
            Err(ControllerError::Load(error))
        }
    }
}

/// A stale picture degrades readiness; it never fails it, since boots go on.
fn check_freshness(chassis: &Chassis, registry: &Registry) {
    let registry = registry.clone();
    chassis.readiness.add("roster", move || {
        let contact = registry.contact();
        let roster = registry.roster();
        async move {
            let seen = format!(
                "revision {}, {} nodes, {} s old",
                roster.revision(),
                roster.len(),
                contact.silent.as_secs()
            );
            match contact.loaded_from {
                LoadedFrom::Snapshot { taken } => {
                    Finding::degraded(format!("{seen}, from the last-good copy of {taken}"))
                }
                LoadedFrom::Store if contact.silent > STALE_AFTER => {
                    Finding::degraded(format!("{seen}, stale"))
                }
                LoadedFrom::Store => Finding::ok(seen),
            }
        }
    });
}

/// The same as numbers, for `/metrics`.
async fn show_freshness(registry: Registry, stop: CancellationToken) {
    let mut tick = tokio::time::interval(GAUGES_EVERY);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = tick.tick() => {}
        }
        let (roster, contact) = (registry.roster(), registry.contact());
        #[expect(clippy::cast_precision_loss, reason = "gauges are floats")]
        {
            metrics::gauge!("hoist_roster_nodes").set(roster.len() as f64);
            metrics::gauge!("hoist_roster_revision").set(roster.revision() as f64);
        }
        let from_store = contact.loaded_from == LoadedFrom::Store;
        metrics::gauge!("hoist_roster_from_store").set(f64::from(u8::from(from_store)));
        metrics::gauge!("hoist_roster_age_seconds").set(contact.silent.as_secs_f64());
        metrics::gauge!("hoist_store_connected").set(f64::from(u8::from(contact.connected)));
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
