//! `hoist serve`: settings in, a running controller out, until a signal says stop.

mod boot;
mod deploy;
mod discovery;
mod metadata;

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use hoist_chassis::audit::Retention;
use hoist_chassis::auth::{BssAuth, Policy};
use hoist_chassis::ca::ServerName;
use hoist_chassis::jwks::{JwksConfig, JwksSource};
use hoist_chassis::peer::Proxies;
use hoist_chassis::telemetry::{LogFormat, init_logging};
use hoist_chassis::{Limits, Retentions, open_files, systemd};
use hoist_engine::plugin::Isolation;
use hoist_model::Exit;
use hoist_server::controller::{Config, Controller, ControllerError};
use hoist_server::data_dir::DataDirError;
use hoist_server::inventory::SourceConfig;
use hoist_site::registry::{ChangeGuard, Horizon};
use hoist_store::StoreError;
use rustls_pki_types::CertificateDer;
use tokio::signal::unix::{SignalKind, signal};

use crate::cli::Connection;
use crate::commands::Shell;
use crate::connect::{self, Surroundings};
use crate::failure::Failure;
use crate::settings::{SettingError, Settings, Takeover};

/// Looked for in the data directory and here, when `--config` does not name another.
const SYSTEM_CONFIG: &str = "/etc/hoist/hoist.toml";

/// How long threads are waited for that nothing waits for any more.
const LAST_THREADS: Duration = Duration::from_secs(2);

/// Run the controller
#[derive(Debug, Args)]
#[command(
    long_about = "Run the controller: one process, state in one directory.\n\n\
    Settings come from hoist.toml (--config, else <data-dir>/hoist.toml, else \
    /etc/hoist/hoist.toml), then HOIST_… variables, then flags; the later one wins.",
    after_help = "Examples:\n  hoist serve --data-dir /var/lib/hoist --listen 0.0.0.0:27778\n  \
    hoist serve --store etcd://h1:2379,h2:2379/hoist --inventory smd+https://smd:27779\n  \
    hoist serve --print-config"
)]
pub(crate) struct ServeArgs {
    /// Plain HTTP listener, or `off`
    #[arg(long, value_name = "ADDR:PORT|off")]
    listen: Option<String>,
    /// TLS listener, or `off`
    #[arg(long, value_name = "ADDR:PORT|off")]
    tls_listen: Option<String>,
    /// `embedded`, `etcd://h1:2379,h2:2379/prefix` or `postgres://…`
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// Where nodes come from: `store`, `smd+http://…`, `smd+https://…`, `file:…` or `store+etcd://…`
    #[arg(long, value_name = "URL")]
    inventory: Option<String>,
    /// The URL under which nodes reach this controller, and, given again, those of the others
    #[arg(long, value_name = "URL")]
    advertise: Vec<String>,
    /// Configuration file
    #[arg(long, value_name = "FILE", env = "HOIST_CONFIG")]
    config: Option<PathBuf>,
    /// Print the configuration that would be used, with the origin of each value, and end
    #[arg(long)]
    print_config: bool,
}

pub(crate) fn run(args: &ServeArgs, shell: &mut Shell) -> Result<Exit, Failure> {
    let (settings, takeover) = gather(args, &shell.connection)?;
    let config = if args.print_config { Ok(None) } else { config(&settings).map(Some) };
    if !matches!(config, Ok(Some(_))) {
        // There is no log yet.
        for (name, reason) in takeover.ignored(&settings) {
            shell.printer.warn(&format!("{name} of BSS's environment is ignored: {reason}"));
        }
    }
    let Some(mut config) = config? else {
        shell.printer.text(&settings.print())?;
        return Ok(Exit::Done);
    };
    config.metadata.variables = metadata::variables(std::env::vars_os());
    let terminal = std::io::stderr().is_terminal();
    let color = terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let format = match settings.text("log.format") {
        "human" => LogFormat::Human { color },
        "json" => LogFormat::Json,
        _ if terminal => LogFormat::Human { color },
        _ => LogFormat::Json,
    };
    init_logging(format, settings.text("log.level"))
        .map_err(|error| settings.wrong("log.level", error.to_string()))?;
    takeover.log(&settings);
    config.limits = config.limits.within(open_files::raise());
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(Failure::Runtime)?;
    let done = runtime.block_on(serve(config, shell));
    // Threads with abandoned work must not keep the process from ending.
    runtime.shutdown_timeout(LAST_THREADS);
    done
}

async fn serve(config: Config, shell: &mut Shell) -> Result<Exit, Failure> {
    // Before anything listens, so that no signal finds us unprepared.
    let mut terminate = signal(SignalKind::terminate()).map_err(Failure::Runtime)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Failure::Runtime)?;
    let data_dir = config.data_dir.clone();
    let controller = tokio::select! {
        started = Controller::start(config) => started.map_err(start_failure)?,
        _ = terminate.recv() => return Ok(Exit::Done),
        _ = interrupt.recv() => return Ok(Exit::Done),
    };
    greet(&controller, &data_dir, shell)?;
    systemd::ready("serving");
    systemd::start_watchdog(&controller.chassis().tasks);
    tokio::select! {
        _ = terminate.recv() => tracing::info!("terminating on a signal"),
        _ = interrupt.recv() => tracing::info!("interrupted"),
    }
    systemd::stopping();
    let stopped = controller.stop().await;
    if stopped.cut > 0 {
        tracing::warn!(connections = stopped.cut, "closed connections that did not end in time");
    }
    if stopped.panicked.is_empty() {
        return Ok(Exit::Done);
    }
    tracing::error!(tasks = ?stopped.panicked, "tasks panicked");
    Ok(Exit::Degraded)
}

/// The first information for people and scripts.
fn greet(controller: &Controller, data_dir: &Path, shell: &mut Shell) -> Result<(), Failure> {
    let roster = controller.registry().roster();
    if let Some(addr) = controller.plain_addr() {
        shell.printer.line(format!("listening on http://{addr}"))?;
    }
    if let Some(addr) = controller.tls_addr() {
        shell.printer.line(format!("listening on https://{addr}"))?;
    }
    shell.printer.line(format!(
        "{} nodes at revision {}; admin token in {}",
        roster.len(),
        roster.revision(),
        data_dir.join("admin.token").display()
    ))?;
    shell.printer.flush()
}

fn start_failure(error: ControllerError) -> Failure {
    let exit = match &error {
        ControllerError::DataDir(DataDirError::InUse { .. })
        | ControllerError::Store { source: StoreError::InUse { .. }, .. } => Exit::Locked,
        ControllerError::DataDir(_) => Exit::Usage,
        _ => Exit::Failed,
    };
    Failure::start(exit, error)
}

/// The data directory and the store that `hoist serve` would use, for commands that work on them
/// while it does not run.
pub(crate) fn store_location(
    store: Option<String>,
    connection: &Connection,
) -> Result<(PathBuf, String), Failure> {
    let settings = settings(store, connection)?;
    Ok((settings.text("data_dir").into(), settings.text("store").to_owned()))
}

/// Where `hoist serve` would look for plug-ins.
pub(crate) fn plugin_directory(connection: &Connection) -> Result<PathBuf, Failure> {
    Ok(settings(None, connection)?.text("plugins.directory").into())
}

/// How `hoist serve` would run plug-ins here.
pub(crate) fn plugin_isolation(connection: &Connection) -> Result<Isolation, Failure> {
    let settings = settings(None, connection)?;
    let policy = settings.parse("plugins.isolation")?;
    let mut hidden = settings.secret_files();
    hidden.push(settings.text("data_dir").into());
    hidden.extend(connection.token_file.clone());
    Ok(Isolation::find(policy, hidden))
}

/// The settings that `hoist serve` would use, without its flags.
fn settings(store: Option<String>, connection: &Connection) -> Result<Settings, Failure> {
    let config = std::env::var_os("HOIST_CONFIG").filter(|path| !path.is_empty());
    let args = ServeArgs {
        listen: None,
        tls_listen: None,
        store,
        inventory: None,
        advertise: Vec::new(),
        config: config.map(PathBuf::from),
        print_config: false,
    };
    Ok(gather(&args, connection)?.0)
}

/// BSS's environment, file, environment, flags.
fn gather(args: &ServeArgs, connection: &Connection) -> Result<(Settings, Takeover), Failure> {
    let mut settings = Settings::new();
    let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
        Some((name.into_string().ok()?, value.into_string().ok()?))
    };
    let environment: BTreeMap<_, _> = std::env::vars_os().filter_map(text).collect();
    let takeover = settings.read_bss(&environment);
    let data_dir = connect::data_dir(connection, &Surroundings::of_process());
    let own = data_dir.join("hoist.toml");
    match &args.config {
        Some(path) => settings.read_file(path)?,
        None if own.is_file() => settings.read_file(&own)?,
        None if Path::new(SYSTEM_CONFIG).is_file() => {
            settings.read_file(Path::new(SYSTEM_CONFIG))?;
        }
        None => {}
    }
    settings.read_environment(|name| environment.get(name).cloned());
    settings.settle_bss();
    let advertise = (!args.advertise.is_empty()).then(|| args.advertise.join(","));
    let flags = [
        ("listen", "--listen", &args.listen),
        ("tls_listen", "--tls-listen", &args.tls_listen),
        ("store", "--store", &args.store),
        ("inventory", "--inventory", &args.inventory),
        ("advertise", "--advertise", &advertise),
    ];
    for (key, flag, value) in flags {
        settings.set_flag(key, flag, value.clone());
    }
    let named = connection.data_dir.as_ref().map(|dir| dir.display().to_string());
    settings.set_flag("data_dir", "--data-dir", named);
    if settings.given("data_dir").is_none() {
        settings.set_flag("data_dir", "the default place", Some(data_dir.display().to_string()));
    }
    Ok((settings, takeover))
}

fn config(settings: &Settings) -> Result<Config, SettingError> {
    let mut config = Config::new(settings.text("data_dir"));
    config.listen = address(settings, "listen")?;
    config.tls_listen = address(settings, "tls_listen")?;
    settings.text("store").clone_into(&mut config.store);
    config.import_authorities = settings.authorities("import.ca")?;
    config.source = source(settings, &config.import_authorities)?;
    config.names = names(settings)?;
    config.policy = policy(settings)?;
    config.jwks = jwks(settings)?;
    config.proxies = proxies(settings)?;
    config.boot = boot::settings(settings)?;
    config.metadata = metadata::settings(settings)?;
    config.deploy = deploy::settings(settings)?;
    config.discovery = discovery::settings(settings)?;
    config.change_guard = ChangeGuard {
        nodes: settings.parse("change_guard.nodes")?,
        percent: settings.parse("change_guard.percent")?,
        ..ChangeGuard::default()
    };
    config.horizon = Horizon {
        age: settings.duration("retention.revisions_age")?,
        removals: settings.parse("retention.revisions")?,
    };
    let seconds = |key| settings.parse(key).map(Duration::from_secs);
    config.limits = Limits {
        max_connections: settings.parse("limits.connections")?,
        max_per_address: settings.parse("limits.connections_per_address")?,
        max_body_bytes: settings.parse("limits.body_bytes")?,
        request_timeout: seconds("limits.request_seconds")?,
        grace: seconds("limits.grace_seconds")?,
        ..Limits::default()
    };
    config.retentions = Retentions {
        events: Retention {
            max_age: settings.duration("retention.events_age")?,
            max_bytes: settings.parse("retention.events_bytes")?,
        },
        audit: Retention {
            max_age: settings.duration("retention.audit_age")?,
            max_bytes: settings.parse("retention.audit_bytes")?,
        },
    };
    Ok(config)
}

/// `HOST:PORT`, `:PORT` for every address, or `off`.
fn address(settings: &Settings, key: &'static str) -> Result<Option<SocketAddr>, SettingError> {
    let text = settings.text(key);
    if text == "off" {
        return Ok(None);
    }
    let text = if text.starts_with(':') { format!("[::]{text}") } else { text.to_owned() };
    let mut found =
        text.to_socket_addrs().map_err(|error| settings.wrong(key, error.to_string()))?;
    found.next().map(Some).ok_or_else(|| settings.wrong(key, "the name has no address".to_owned()))
}

fn source(
    settings: &Settings,
    authorities: &[CertificateDer<'static>],
) -> Result<Option<SourceConfig>, SettingError> {
    let Some(mut source) = SourceConfig::new(settings.parse("inventory")?) else { return Ok(None) };
    source.every = settings.duration("import.every")?;
    source.smd.token_file = settings.given("import.token_file").map(PathBuf::from);
    source.smd.authorities = authorities.to_vec();
    source.smd.join.repair_bmc_nics = settings.parse("import.repair_bmc_nics")?;
    source.reconcile.max_prune_percent = settings.parse("import.max_prune_percent")?;
    source.reconcile.adopt = settings.parse("import.adopt")?;
    Ok(Some(source))
}

/// The machine's own name, the advertised hosts, and the configured names.
fn names(settings: &Settings) -> Result<Vec<ServerName>, SettingError> {
    let mut names: Vec<ServerName> = settings.list("names").map(server_name).collect();
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    names.push(server_name(&host));
    for url in boot::advertised(settings)? {
        let host = url.split_once("://").map_or(url.as_str(), |(_, rest)| rest);
        let host = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((v6, _)) => v6,
            None => host.split_once(':').map_or(host, |(host, _)| host),
        };
        names.push(server_name(host));
    }
    Ok(names)
}

fn server_name(text: &str) -> ServerName {
    text.parse::<IpAddr>().map_or_else(|_| ServerName::Dns(text.to_owned()), ServerName::Ip)
}

fn policy(settings: &Settings) -> Result<Policy, SettingError> {
    let mut policy = Policy {
        allow_plain_admin: settings.parse("auth.allow_plain_admin")?,
        locked: std::collections::HashSet::new(),
        bss: boot::auth(settings)?,
        ..Policy::default()
    };
    for word in settings.list("auth.locked") {
        // `/boot/v1/dumpstate`, or `POST /boot/v1/hosts`.
        if word.contains('/') {
            policy.locked_paths.insert(word.to_owned());
            continue;
        }
        let context = serde_json::from_value(word.into())
            .map_err(|error| settings.wrong("auth.locked", error.to_string()))?;
        policy.locked.insert(context);
    }
    Ok(policy)
}

fn proxies(settings: &Settings) -> Result<Proxies, SettingError> {
    let one = |text: &str| {
        let network = text.parse().or_else(|_| text.parse::<IpAddr>().map(Into::into));
        let reason = "write networks like 10.1.0.0/24, or addresses";
        network.map_err(|_| settings.wrong("http.trusted_proxies", reason.to_owned()))
    };
    settings.list("http.trusted_proxies").map(one).collect()
}

fn jwks(settings: &Settings) -> Result<Option<JwksConfig>, SettingError> {
    let Some(text) = settings.given("auth.jwks") else { return Ok(None) };
    let source = if text.starts_with("http://") || text.starts_with("https://") {
        JwksSource::Url { url: text.to_owned(), roots: settings.authorities("auth.jwks_ca")? }
    } else {
        JwksSource::File(text.into())
    };
    let mut config = JwksConfig::new(source);
    config.issuer = settings.given("auth.issuer").map(str::to_owned);
    config.audience = settings.given("auth.audience").map(str::to_owned);
    // BSS compares no audience, and its clients have tokens of any; they open nothing else.
    if config.audience.is_none() && boot::auth(settings)? != BssAuth::Jwks {
        let reason = "JWTs need an audience, or a token for any other service would be good here; \
                      set it to the `aud` of tokens for this site";
        return Err(settings.wrong("auth.audience", reason.to_owned()));
    }
    Ok(Some(config))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retention_of_revisions_becomes_the_horizon() {
        let mut settings = Settings::new();
        settings.read_environment(|name| match name {
            "HOIST_RETENTION_REVISIONS" => Some("7".to_owned()),
            "HOIST_RETENTION_REVISIONS_AGE" => Some("2h".to_owned()),
            _ => None,
        });
        let horizon = config(&settings).unwrap().horizon;
        assert_eq!((horizon.removals, horizon.age), (7, Duration::from_hours(2)));
    }
}
