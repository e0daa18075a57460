//! The server: started from a data directory, a store and the routes of the contexts. Guarantees that
//! no task is left after it stopped.
//!
//! Does not belong here: routes and rules of any context.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::middleware::from_fn;
use hoist_store::Store;
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::acceptor_threads::AcceptorThreads;
use crate::addresses::Clients;
use crate::audit::{AuditLog, Retention};
use crate::auth::{BssAuth, Failures, Gate, Policy, WriteScope, no_scope};
use crate::ca::{self, Ca, CaError, ServerName};
use crate::clock::{Clock, SystemClock};
use crate::direct::Ways;
use crate::events::EventBus;
use crate::health::{CheckResult, Readiness};
use crate::host::HostNames;
use crate::jwks::{Jwks, JwksConfig};
use crate::listen::{App, Host, Limits, Listener, defer_silent};
use crate::log_limit::LogLimit;
use crate::member::{Members, NoMembers};
use crate::peer::Proxies;
use crate::route::{Route, RouteError, RouteTable};
use crate::tasks::Tasks;
use crate::token::{AdminTokenError, Tokens, ensure_admin_token};
use crate::validity::Verifier;
use crate::{admin, compress, openapi, secret, telemetry};

/// Time that a start waits for the tokens from the store; after that only the admin token works
/// until the store is back.
const LOAD_TOKENS: Duration = Duration::from_secs(3);

/// Beyond the grace period, for storing the last events and whatever else ends by itself.
const LAST_TASKS: Duration = Duration::from_secs(6);

/// Interval between removals of old audit entries and events.
const PRUNE_EVERY: Duration = Duration::from_hours(1);

/// Interval at which the metrics recorder folds its samples.
const UPKEEP_EVERY: Duration = Duration::from_secs(5);

/// The parts of the chassis that contexts use. Clones share them.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Chassis {
    pub store: Arc<dyn Store>,
    pub clock: Arc<dyn Clock>,
    pub audit: AuditLog,
    pub events: EventBus,
    pub tokens: Arc<Tokens>,
    pub readiness: Readiness,
    pub ca: Arc<Ca>,
    pub tasks: Tasks,
    pub proxies: Arc<Proxies>,
}

/// The retention of audit entries and events.
#[derive(Debug, Clone, Copy)]
pub struct Retentions {
    pub audit: Retention,
    pub events: Retention,
}

impl Default for Retentions {
    fn default() -> Self {
        let days = |days: u64| Duration::from_hours(24 * days);
        Self {
            audit: Retention { max_age: days(400), max_bytes: 512 << 20 },
            events: Retention { max_age: days(7), max_bytes: 128 << 20 },
        }
    }
}

/// A server before it runs: [`Server::builder`].
#[derive(Debug)]
pub struct Server;

/// Everything a server needs, from outside.
pub struct ServerBuilder {
    data_dir: PathBuf,
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    plain: Option<SocketAddr>,
    tls: Option<SocketAddr>,
    names: Vec<ServerName>,
    policy: Policy,
    limits: Limits,
    retentions: Retentions,
    jwks: Option<JwksConfig>,
    proxies: Proxies,
    write_scope: WriteScope,
    members: Arc<dyn Members>,
    routes: Vec<Route>,
}

/// A server with a chassis, before it listens. The contexts are made with the chassis, and their
/// routes are added here.
#[derive(Debug)]
pub struct PreparedServer {
    builder: ServerBuilder,
    chassis: Chassis,
}

/// A running server. Dropping it does not stop it: call [`RunningServer::stop`].
#[derive(Debug)]
pub struct RunningServer {
    acceptors: AcceptorThreads,
    plain_addr: Option<SocketAddr>,
    tls_addr: Option<SocketAddr>,
    access_classes: String,
    open_routes: String,
    chassis: Chassis,
    connections: TaskTracker,
    abort: CancellationToken,
    grace: Duration,
}

/// The result of a stop.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct StopReport {
    /// Connections that were cut because they did not finish within the grace period.
    pub cut: usize,
    /// Background tasks that panicked during the server's life.
    pub panicked: Vec<&'static str>,
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    #[error("cannot use the data directory")]
    DataDir(#[source] io::Error),
    #[error("the admin token cannot be used")]
    AdminToken(#[from] AdminTokenError),
    #[error("the certificates cannot be used")]
    Ca(#[from] CaError),
    #[error("the routes contradict each other")]
    Routes(#[from] RouteError),
    #[error("cannot listen on {addr}")]
    Listen { addr: SocketAddr, source: io::Error },
    #[error("the threads for connections do not start")]
    AcceptorThreads(#[source] io::Error),
}

impl Server {
    pub fn builder(data_dir: impl Into<PathBuf>, store: Arc<dyn Store>) -> ServerBuilder {
        ServerBuilder {
            data_dir: data_dir.into(),
            store,
            clock: Arc::new(SystemClock),
            plain: None,
            tls: None,
            names: Vec::new(),
            policy: Policy::default(),
            limits: Limits::default(),
            retentions: Retentions::default(),
            jwks: None,
            proxies: Proxies::default(),
            write_scope: no_scope,
            members: Arc::new(NoMembers),
            routes: Vec::new(),
        }
    }
}

impl ServerBuilder {
    #[must_use]
    pub fn listen_plain(mut self, addr: SocketAddr) -> Self {
        self.plain = Some(addr);
        self
    }

    #[must_use]
    pub fn listen_tls(mut self, addr: SocketAddr) -> Self {
        self.tls = Some(addr);
        self
    }

    /// Names and addresses this server is reached by, for its certificate.
    #[must_use]
    pub fn names(mut self, names: impl IntoIterator<Item = ServerName>) -> Self {
        self.names.extend(names);
        self
    }

    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    #[must_use]
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policy = policy;
        self
    }

    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    #[must_use]
    pub fn retentions(mut self, retentions: Retentions) -> Self {
        self.retentions = retentions;
        self
    }

    #[must_use]
    pub fn jwks(mut self, config: JwksConfig) -> Self {
        self.jwks = Some(config);
        self
    }

    /// The proxies that may forward the address of a client.
    #[must_use]
    pub fn proxies(mut self, proxies: Proxies) -> Self {
        self.proxies = proxies;
        self
    }

    /// Every write runs inside of this scope.
    #[must_use]
    pub fn write_scope(mut self, scope: WriteScope) -> Self {
        self.write_scope = scope;
        self
    }

    /// The members of the cluster; none by default.
    #[must_use]
    pub fn members(mut self, members: Arc<dyn Members>) -> Self {
        self.members = members;
        self
    }

    /// Adds routes that need nothing of the chassis.
    #[must_use]
    pub fn routes(mut self, routes: Vec<Route>) -> Self {
        self.routes.extend(routes);
        self
    }

    /// As [`PreparedServer::start`], for a server without contexts.
    pub async fn start(self) -> Result<RunningServer, StartError> {
        self.prepare().await?.start().await
    }

    /// Makes the chassis: opens certificates and tokens. Nothing listens yet.
    pub async fn prepare(mut self) -> Result<PreparedServer, StartError> {
        // Contexts register their counters as soon as they have the chassis. A counter that is
        // registered before the recorder is installed counts nothing.
        telemetry::metrics();
        secret::ensure_dir(&self.data_dir).map_err(StartError::DataDir)?;
        let admin_hash = ensure_admin_token(&self.data_dir)?;
        let names = std::mem::take(&mut self.names);
        let ca = Ca::open(&self.data_dir, names, Arc::clone(&self.clock))?;
        let store = Arc::clone(&self.store);
        let clock = Arc::clone(&self.clock);
        let audit = AuditLog::new(Arc::clone(&store), Arc::clone(&clock));
        let tokens = Tokens::new(Arc::clone(&store), Arc::clone(&clock), audit.clone(), admin_hash);
        let chassis = Chassis {
            events: EventBus::new(Arc::clone(&store), Arc::clone(&clock)),
            tokens: Arc::new(tokens),
            readiness: Readiness::default(),
            ca: Arc::new(ca),
            tasks: Tasks::default(),
            proxies: Arc::new(std::mem::take(&mut self.proxies)),
            store,
            clock,
            audit,
        };
        let loaded = tokio::time::timeout(LOAD_TOKENS, chassis.tokens.load()).await;
        if !matches!(loaded, Ok(Ok(_))) {
            tracing::warn!("tokens not loaded yet; only the admin token works until then");
        }
        let store = Arc::clone(&chassis.store);
        chassis.readiness.add("store", move || check_store(Arc::clone(&store)));
        Ok(PreparedServer { builder: self, chassis })
    }
}

impl PreparedServer {
    /// The services that contexts take.
    pub fn chassis(&self) -> &Chassis {
        &self.chassis
    }

    /// Adds the routes of a context.
    pub fn add_routes(&mut self, routes: Vec<Route>) {
        self.builder.routes.extend(routes);
    }

    /// As [`ServerBuilder::members`], for a membership that is made with the chassis.
    pub fn set_members(&mut self, members: Arc<dyn Members>) {
        self.builder.members = members;
    }

    /// Binds, starts everything and returns. Nothing listens when this fails.
    pub async fn start(mut self) -> Result<RunningServer, StartError> {
        let AssembledRoutes { jwks, app, access_classes, open_routes } = self.assemble()?;
        let Self { builder, chassis } = self;
        let app = Arc::new(app);
        let bind = async |addr: Option<SocketAddr>| match addr {
            None => Ok(None),
            Some(addr) => match TcpListener::bind(addr).await {
                Ok(tcp) => {
                    let bound = tcp.local_addr();
                    bound.map(|bound| Some((tcp, bound)))
                }
                Err(error) => Err(error),
            }
            .map_err(|source| StartError::Listen { addr, source }),
        };
        let plain = bind(builder.plain).await?;
        let tls = bind(builder.tls).await?;
        let acceptor = TlsAcceptor::from(Arc::new(chassis.ca.server_config()?));

        let limits = Arc::new(builder.limits);
        let running = RunningServer {
            acceptors: AcceptorThreads::start().map_err(StartError::AcceptorThreads)?,
            plain_addr: plain.as_ref().map(|(_, addr)| *addr),
            tls_addr: tls.as_ref().map(|(_, addr)| *addr),
            connections: TaskTracker::new(),
            abort: CancellationToken::new(),
            grace: limits.grace,
            access_classes,
            open_routes,
            chassis,
        };
        let tasks = &running.chassis.tasks;
        let listeners = plain
            .map(|(tcp, _)| (tcp, None))
            .into_iter()
            .chain(tls.map(|(tcp, _)| (tcp, Some(acceptor))));
        for (tcp, tls) in listeners {
            let on_threads = tls.is_none();
            let host = Arc::new(Host {
                tls,
                app: Arc::clone(&app),
                slots: Arc::new(Semaphore::new(limits.max_connections)),
                clients: Clients::new(limits.max_per_address),
                proxies: Arc::clone(&running.chassis.proxies),
                places: Arc::default(),
                limits: Arc::clone(&limits),
                connections: running.connections.clone(),
                stopping: tasks.stopping().clone(),
                abort: running.abort.clone(),
            });
            if on_threads {
                listen_on_threads(&running.acceptors, tasks, tcp, &host)
                    .map_err(StartError::AcceptorThreads)?;
            } else {
                let listener = tcp.into_std().and_then(|tcp| Listener::new(tcp, host));
                tasks.spawn("listener", listener.map_err(StartError::AcceptorThreads)?.run());
            }
        }
        start_background(&running.chassis, jwks, builder.retentions);
        Ok(running)
    }

    /// Only the routes, without sockets and background tasks: for tests that call them directly.
    pub fn into_router(mut self) -> Result<Router, StartError> {
        Ok(self.assemble()?.app.router)
    }

    /// Everything but the sockets and the background tasks.
    fn assemble(&mut self) -> Result<AssembledRoutes, StartError> {
        let Self { builder, chassis } = self;
        let mut routes = admin::routes(chassis);
        routes.append(&mut builder.routes);
        let named = builder.policy.bss == BssAuth::Jwks;
        let jwks = builder.jwks.take().map(|config| {
            let named = config.named || named;
            Arc::new(Jwks::new(JwksConfig { named, ..config }))
        });
        if let Some(jwks) = &jwks {
            jwks.warn_of_gaps();
        }
        let table = finish_table(routes)?;
        table.check(&builder.policy)?;
        let access_classes = table.access_classes();
        let open_routes = table.open_routes();
        let ways = Ways { direct: table.direct(&builder.policy), files: table.files() };
        let gate = Gate {
            write_scope: builder.write_scope,
            policy: builder.policy.clone(),
            verifier: Verifier {
                tokens: Arc::clone(&chassis.tokens),
                jwks: jwks.clone(),
                members: Arc::clone(&builder.members),
                root: chassis.ca.root().clone(),
                clock: Arc::clone(&chassis.clock),
            },
            audit: chassis.audit.clone(),
            tasks: chassis.tasks.clone(),
            body_limit: builder.limits.max_body_bytes,
            request_timeout: builder.limits.request_timeout,
            failures: Failures::default(),
            hosts: HostNames::new(chassis.ca.names()),
            failure_lines: LogLimit::per_second(),
        };
        let router = table
            .into_router(&Arc::new(gate))
            .layer(from_fn(crate::observe::observe))
            .layer(from_fn(compress::whole))
            .layer(compress::for_token_holders())
            .layer(compress::for_everybody());
        Ok(AssembledRoutes {
            jwks,
            app: App { router, ways, workers: Handle::current() },
            access_classes,
            open_routes,
        })
    }
}

struct AssembledRoutes {
    jwks: Option<Arc<Jwks>>,
    app: App,
    access_classes: String,
    open_routes: String,
}

/// Adds the route that serves the document about all routes, itself among them.
fn finish_table(mut routes: Vec<Route>) -> Result<RouteTable, RouteError> {
    routes.push(admin::openapi_route().with_state(Arc::default()));
    let table = RouteTable::new(routes)?;
    let document = compress::Constant::new(openapi::document(&table).to_string());
    Ok(table.replace(admin::openapi_route().with_state(Arc::new(document))))
}

async fn check_store(store: Arc<dyn Store>) -> CheckResult {
    match store.health().await {
        Ok(health) if health.full => {
            CheckResult::degraded("the store has no space left; writes fail, reads go on")
        }
        Ok(health) => CheckResult::ok(health.backend),
        Err(error) => {
            tracing::debug!(error = %hoist_diagnostic::chain(&error), "store is not well");
            CheckResult::degraded(format!("{}; reads go on from memory", error.public_reason()))
        }
    }
}

fn start_background(chassis: &Chassis, jwks: Option<Arc<Jwks>>, retentions: Retentions) {
    let tasks = &chassis.tasks;
    let stopping = || tasks.stopping().clone();
    tasks.spawn("tokens", Arc::clone(&chassis.tokens).follow(stopping()));
    tasks.spawn("event writer", chassis.events.clone().flush());
    if let Some(jwks) = jwks {
        tasks.spawn("jwks", jwks.follow(stopping()));
    }
    let ca = Arc::clone(&chassis.ca);
    tasks.spawn(
        "certificate renewal",
        every(ca::CHECK_EVERY, stopping(), async move || {
            let ca = Arc::clone(&ca);
            // Reads and writes files, rarely and little.
            match tokio::task::spawn_blocking(move || ca.renew_if_due()).await {
                Ok(Err(error)) => {
                    tracing::error!(error = %hoist_diagnostic::chain(&error), "server certificate not renewed");
                }
                Ok(Ok(_)) => {}
                Err(error) => tracing::error!(%error, "server certificate not renewed"),
            }
        }),
    );
    let audit = chassis.audit.clone();
    let events = chassis.events.clone();
    tasks.spawn(
        "retention",
        every(PRUNE_EVERY, stopping(), async move || {
            if let Err(error) = audit.prune(retentions.audit).await {
                tracing::warn!(error = %hoist_diagnostic::chain(&error), "old audit entries not removed");
            }
            if let Err(error) = events.prune(retentions.events).await {
                tracing::warn!(error = %hoist_diagnostic::chain(&error), "old events not removed");
            }
        }),
    );
    tasks.spawn(
        "metrics upkeep",
        every(UPKEEP_EVERY, stopping(), async || telemetry::metrics().run_upkeep()),
    );
}

/// Does `work` now and then every `period`, until `stopping`.
async fn every<W>(period: Duration, stopping: CancellationToken, work: W)
where
    W: AsyncFn(),
{
    let mut beat = tokio::time::interval(period);
    beat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stopping.cancelled() => return,
            _ = beat.tick() => {}
        }
        tokio::select! {
            () = stopping.cancelled() => return,
            () = work() => {}
        }
    }
}

impl RunningServer {
    pub fn plain_addr(&self) -> Option<SocketAddr> {
        self.plain_addr
    }

    pub fn tls_addr(&self) -> Option<SocketAddr> {
        self.tls_addr
    }

    /// Every route and who may call it, one per line.
    pub fn access_classes(&self) -> &str {
        &self.access_classes
    }

    /// The routes that need no token, as a table for people.
    pub fn open_routes(&self) -> &str {
        &self.open_routes
    }

    pub fn chassis(&self) -> &Chassis {
        &self.chassis
    }

    /// Stops accepting, finishes running requests within the grace period, ends streams, stores
    /// the last events and joins every task.
    pub async fn stop(self) -> StopReport {
        let tasks = &self.chassis.tasks;
        tasks.stopping().cancel();
        self.connections.close();
        let mut cut = 0;
        if tokio::time::timeout(self.grace, self.connections.wait()).await.is_err() {
            cut = self.connections.len();
            self.abort.cancel();
            self.connections.wait().await;
        }
        // Last, since finishing requests still publish.
        self.chassis.events.close();
        let panicked = tasks.join(self.grace + LAST_TASKS).await;
        StopReport { cut, panicked }
    }
}

/// Every acceptor accepts from the one socket.
fn listen_on_threads(
    acceptors: &AcceptorThreads,
    tasks: &Tasks,
    tcp: TcpListener,
    host: &Arc<Host>,
) -> io::Result<()> {
    let socket = tcp.into_std()?;
    defer_silent(&socket);
    for acceptor in acceptors.handles() {
        let socket = socket.try_clone()?;
        let host = Arc::clone(host);
        let listening = acceptor.spawn(async move {
            match Listener::new(socket, host) {
                Ok(listener) => listener.run().await,
                Err(error) => tracing::error!(%error, "a thread cannot listen"),
            }
        });
        tasks.spawn("listener", async move {
            if let Err(error) = listening.await
                && error.is_panic()
            {
                std::panic::resume_unwind(error.into_panic());
            }
        });
    }
    Ok(())
}

impl fmt::Debug for ServerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerBuilder")
            .field("data_dir", &self.data_dir)
            .field("plain", &self.plain)
            .field("tls", &self.tls)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer::Peer;
    use hoist_testkit::stores::test_store;

    /// Every route with its access class. A changed line changes access: review it carefully.
    #[tokio::test]
    async fn the_access_class_of_every_route_is_known() {
        let dir = tempfile::tempdir().unwrap();
        let mut server = Server::builder(dir.path(), test_store()).prepare().await.unwrap();
        let assembled = server.assemble().unwrap();
        insta::assert_snapshot!(assembled.access_classes, @r"
        GET    /admin/v1/audit                  admin admin:read
        GET    /admin/v1/tokens                 admin admin:read
        POST   /admin/v1/tokens                 admin admin:write
        DELETE /admin/v1/tokens/{id}            admin admin:write
        GET    /events/v1                       admin events:read
        GET    /healthz                         open
        GET    /metrics                         lockable metrics
        GET    /openapi.json                    open
        GET    /readyz                          open
        ");
    }

    #[tokio::test]
    async fn plain_administration_is_for_this_machine_only() {
        use tower::ServiceExt;
        let dir = tempfile::tempdir().unwrap();
        let token = |dir: &std::path::Path| {
            let text = fs_err::read_to_string(dir.join("admin.token")).unwrap();
            format!("Bearer {}", text.trim())
        };
        for (addr, secure, allowed, expected) in [
            ("127.0.0.1:9", false, false, 200),
            ("[::1]:9", false, false, 200),
            ("192.0.2.1:9", false, false, 403),
            ("[2001:db8::1]:9", false, false, 403),
            ("192.0.2.1:9", true, false, 200),
            ("192.0.2.1:9", false, true, 200),
        ] {
            let policy = Policy { allow_plain_admin: allowed, ..Policy::default() };
            let builder = Server::builder(dir.path(), test_store()).policy(policy);
            let app = builder.prepare().await.unwrap().into_router().unwrap();
            let mut request = http::Request::get("/admin/v1/tokens")
                .header("authorization", token(dir.path()))
                .header("host", "localhost")
                .body(axum::body::Body::empty())
                .unwrap();
            let addr = addr.parse().unwrap();
            request.extensions_mut().insert(Peer::new(addr, secure));
            let status = app.oneshot(request).await.unwrap().status();
            assert_eq!(status, expected, "{addr} {secure} {allowed}");
        }
    }

    #[test]
    fn routes_need_a_summary_a_reason_and_a_unique_path() {
        use crate::route::AccessClass;
        let route = || Route::<()>::get("/a", AccessClass::Open, async || "");
        assert!(matches!(RouteTable::new(vec![route()]), Err(RouteError::NoSummary { .. })));
        let bare = vec![route().summary("a")];
        assert!(matches!(RouteTable::new(bare), Err(RouteError::NoReason { .. })));
        let twice = ["a", "b"].map(|text| route().summary(text).reason("a test")).into();
        assert!(matches!(RouteTable::new(twice), Err(RouteError::Twice { .. })));
    }
}
