//! The controller's settings: `hoist.toml`, then the environment, then flags; the later one wins.
//!
//! Every setting stands once in [`SETTINGS`], with its default and purpose. That table is the
//! reference, `hoist serve --print-config` prints it with the current values, and each value
//! remembers its origin.

mod bss;

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use hoist_model::nearest;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;

pub(crate) use bss::Takeover;

/// One setting.
#[derive(Debug)]
pub(crate) struct Setting {
    /// Dotted path in the file. The environment variable is `HOIST_` and the path in capitals.
    key: &'static str,
    default: &'static str,
    about: &'static str,
}

const fn setting(key: &'static str, default: &'static str, about: &'static str) -> Setting {
    Setting { key, default, about }
}

pub(crate) const SETTINGS: [Setting; 77] = [
    setting("data_dir", "", "where state is kept; /var/lib/hoist for root"),
    setting("listen", "0.0.0.0:27778", "plain HTTP, or `off`"),
    setting("tls_listen", "0.0.0.0:27443", "HTTPS, or `off`"),
    setting("store", "embedded", "`embedded`, `etcd://…` or `postgres://…`"),
    setting(
        "inventory",
        "store",
        "the source of nodes: `store`, `smd+http(s)://…`, `file:…`, `store+etcd://…`",
    ),
    setting("advertise", "", "URLs under which nodes reach the controllers, by commas"),
    setting("names", "", "further host names and addresses for the certificate, by commas"),
    setting("import.every", "5m", "how often the inventory source is read"),
    setting("import.token_file", "", "bearer token for the inventory source"),
    setting("import.ca", "", "PEM file of the only authority trusted for sources"),
    setting("import.max_prune_percent", "10", "of 100 imported nodes, how many may go at once"),
    setting("import.repair_bmc_nics", "false", "adopt node interfaces that are filed under a BMC"),
    setting("import.adopt", "false", "adopt declared nodes with the same xname or MAC"),
    setting("change_guard.nodes", "50", "changes that affect more nodes must say how many"),
    setting("change_guard.percent", "10", "changes that affect a larger share must say how many"),
    setting("auth.allow_plain_admin", "false", "take tokens over plain HTTP from other machines"),
    setting("auth.locked", "metrics", "contexts and paths that need a token, by commas"),
    setting("auth.jwks", "", "file or URL of the key set for JWT bearer tokens"),
    setting("auth.jwks_ca", "", "PEM file of the only authority trusted for that URL"),
    setting("auth.issuer", "", "`iss` that a JWT must have"),
    setting("auth.audience", "", "`aud` that a JWT must have"),
    setting("http.trusted_proxies", "", "networks whose `X-Forwarded-For` is believed, by commas"),
    setting("boot.retry_delay", "30s", "pause before a machine whose boot failed asks again"),
    setting("boot.ask_delay", "10s", "first pause of a machine without a boot configuration"),
    setting("boot.max_ask_delay", "60s", "longest pause of a machine without a boot configuration"),
    setting("boot.chain_base", "", "URL in front of `/boot/v1` for retries"),
    setting("boot.agent_server", "", "https URL where agents reach this controller"),
    setting("boot.ds_address", "", "address in the `ds=` argument of BSS records"),
    setting("boot.notify_url", "", "gets a POST for every requested boot script"),
    setting("boot.spire_url", "", "server of the join tokens for `${SPIRE_JOIN_TOKEN}`"),
    setting("boot.ca", "", "PEM file of the only authority trusted for these two"),
    setting("bss.auth", "token", "who may use bootparameters: `token`, `jwks` or `open`"),
    setting("bss.dialect", "openchami", "whose `service/status/all`: `openchami` or `hpe`"),
    setting("bss.portable_ds", "false", "write `ds=` of BSS records as every cloud-init takes it"),
    setting("bss.keep_kernel", "false", "refuse a PUT that would take a record's kernel away"),
    setting("metadata.mode", "builtin", "the provider of the nodes' documents"),
    setting("metadata.url", "", "the other service: of `external`, `redirect` and `proxy`"),
    setting("metadata.argument", "ds=nocloud;s={base}/;dsmode=net", "argument of `external`"),
    setting("metadata.groups", "", "other modes, by commas: `PARTITION/GROUP=MODE URL`"),
    setting("metadata.unknown", "hold", "unknown machines: `hold`, `default` or `deny`"),
    setting("metadata.ca", "", "PEM file of the only authority trusted for `proxy`"),
    setting("s3.endpoint", "", "URL of the service that `s3://` names are signed for"),
    setting("s3.region", "us-east-1", "its region"),
    setting("s3.bucket", "", "the bucket of names without one"),
    setting("s3.access_key_file", "", "file with the access key; else HOIST_S3_ACCESS_KEY"),
    setting("s3.secret_key_file", "", "file with the secret key; else HOIST_S3_SECRET_KEY"),
    setting("plugins.directory", "/usr/lib/hoist/plugins", "directory of plug-ins"),
    setting("plugins.isolation", "required", "`required`, or `none`: run plug-ins unconfined"),
    setting("deploy.local", "", "selector of nodes that are directories on this machine"),
    setting("deploy.ssh", "", "selector of nodes that are reached by ssh"),
    setting("deploy.ssh_user", "root", "user of the ssh login"),
    setting("deploy.ssh_key", "", "file with the ssh key; else ssh's default"),
    setting("deploy.ssh_port", "", "port of sshd; else ssh's default"),
    setting("deploy.ssh_known_hosts", "", "file of host keys; else ssh's default"),
    setting("deploy.ssh_keys", "", "directory of the ssh keys that nodes name"),
    setting("deploy.ssh_jump", "", "jump host of ssh: `[USER@]HOST[:PORT]`"),
    setting("deploy.ssh_become", "", "user that `sudo` makes of the one that logged in"),
    setting("deploy.ssh_program", "", "program for nodes, with `{arch}`; else this one"),
    setting("cluster.discovery", "on", "answer machines that search for clusters: `on` or `off`"),
    setting("cluster.discovery_interfaces", "", "answer only on these interfaces, by commas"),
    setting("cluster.discovery_port", "14647", "UDP port of discovery"),
    setting("limits.connections", "16384", "open connections per listener"),
    setting("limits.connections_per_address", "8192", "open connections of one address"),
    setting("limits.body_bytes", "8388608", "largest request body"),
    setting("limits.request_seconds", "30", "longest time for one request"),
    setting("limits.grace_seconds", "15", "how long a stop waits for running requests"),
    setting("retention.events_age", "7d", "how long events are kept"),
    setting("retention.events_bytes", "134217728", "how much of them"),
    setting("retention.audit_age", "400d", "how long the audit log is kept"),
    setting("retention.audit_bytes", "536870912", "how much of it"),
    setting("retention.revisions_age", "24h", "how far back changes of nodes can be asked for"),
    setting("retention.revisions", "1000000", "how many of them"),
    setting("retention.runs_age", "90d", "how long ended runs are kept"),
    setting("retention.runs_bytes", "4294967296", "how much of them"),
    setting("retention.runs", "1000", "how many of them"),
    setting("log.level", "info", "`error`, `warn`, `info`, `debug`, `trace`, or a filter"),
    setting("log.format", "auto", "`human`, `json`, or `auto`: human on a terminal"),
];

/// Where a value came from; the later one wins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Origin {
    Default,
    /// A variable of the Boot Script Service.
    Bss(&'static str),
    File {
        path: PathBuf,
    },
    Environment(String),
    Flag(&'static str),
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum SettingError {
    #[error("cannot read the configuration")]
    Read(#[from] std::io::Error),
    #[error("`{}` is not TOML: {message}", path.display())]
    Syntax { path: PathBuf, message: String },
    #[error("{place}: unknown setting `{key}`{}", suggestion(key))]
    Unknown { place: String, key: String },
    #[error("{origin}: `{key}` cannot be `{value}`: {reason}")]
    Value { origin: String, key: &'static str, value: String, reason: String },
}

fn suggestion(key: &str) -> String {
    nearest(key, SETTINGS.iter().map(|setting| setting.key))
        .map(|close| format!("; did you mean `{close}`?"))
        .unwrap_or_default()
}

/// The values in force.
#[derive(Debug, Clone)]
pub(crate) struct Settings(BTreeMap<&'static str, (String, Origin)>);

impl Settings {
    /// Only defaults.
    pub(crate) fn new() -> Self {
        let default =
            |setting: &Setting| (setting.key, (setting.default.to_owned(), Origin::Default));
        Self(SETTINGS.iter().map(default).collect())
    }

    /// Reads the settings of a file. Unknown keys are errors: a typo must not silently do nothing.
    pub(crate) fn read_file(&mut self, path: &Path) -> Result<(), SettingError> {
        let text = fs_err::read_to_string(path)?;
        let table: toml::Table = text.parse().map_err(|error: toml::de::Error| {
            SettingError::Syntax { path: path.to_owned(), message: error.to_string() }
        })?;
        let mut found = Vec::new();
        flatten("", &table, &mut found);
        for (key, value) in found {
            let known = SETTINGS.iter().find(|setting| setting.key == key);
            let known = known.ok_or_else(|| SettingError::Unknown {
                place: path.display().to_string(),
                key: key.clone(),
            })?;
            self.0.insert(known.key, (value, Origin::File { path: path.to_owned() }));
        }
        Ok(())
    }

    /// Takes `HOIST_…` variables. Those of the command line itself (`HOIST_SERVER`, …) are passed over.
    pub(crate) fn read_environment(&mut self, variable: impl Fn(&str) -> Option<String>) {
        for setting in &SETTINGS {
            let name = setting.variable();
            if let Some(value) = variable(&name).filter(|value| !value.is_empty()) {
                self.0.insert(setting.key, (value, Origin::Environment(name)));
            }
        }
    }

    pub(crate) fn set_flag(
        &mut self,
        key: &'static str,
        flag: &'static str,
        value: Option<String>,
    ) {
        debug_assert!(self.0.contains_key(key), "flags set known settings");
        if let Some(value) = value {
            self.0.insert(key, (value, Origin::Flag(flag)));
        }
    }

    pub(crate) fn text(&self, key: &'static str) -> &str {
        &self.0.get(key).expect("only settings of the table are asked for").0
    }

    /// The text, unless it is empty.
    pub(crate) fn given(&self, key: &'static str) -> Option<&str> {
        Some(self.text(key)).filter(|value| !value.is_empty())
    }

    /// Files with secrets of the controller: those that are named for one, and configuration files,
    /// in which a store address may have a password.
    pub(crate) fn secret_files(&self) -> Vec<PathBuf> {
        let is_secret = |key: &str| key.ends_with("_file") || key.starts_with("deploy.ssh_key");
        let mut files = Vec::new();
        for (key, (value, origin)) in &self.0 {
            if is_secret(key) && !value.is_empty() {
                files.push(PathBuf::from(value));
            }
            if let Origin::File { path } = origin {
                files.push(path.clone());
            }
        }
        files.sort();
        files.dedup();
        files
    }

    /// The parts between commas.
    pub(crate) fn list(&self, key: &'static str) -> impl Iterator<Item = &str> {
        self.text(key).split(',').map(str::trim).filter(|part| !part.is_empty())
    }

    pub(crate) fn parse<T: FromStr<Err: fmt::Display>>(
        &self,
        key: &'static str,
    ) -> Result<T, SettingError> {
        self.text(key).parse().map_err(|error: T::Err| self.wrong(key, error.to_string()))
    }

    pub(crate) fn duration(&self, key: &'static str) -> Result<Duration, SettingError> {
        humantime::parse_duration(self.text(key))
            .map_err(|error| self.wrong(key, error.to_string()))
    }

    /// A PEM file of certificates; none when it is not given.
    pub(crate) fn authorities(
        &self,
        key: &'static str,
    ) -> Result<Vec<CertificateDer<'static>>, SettingError> {
        let Some(path) = self.given(key) else { return Ok(Vec::new()) };
        let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
        read.map_err(|error| self.wrong(key, error.to_string()))
    }

    pub(crate) fn wrong(&self, key: &'static str, reason: String) -> SettingError {
        let (value, origin) = self.0.get(key).expect("only settings of the table are asked for");
        // A store address may hold a password.
        let value = if key == "store" { "…".to_owned() } else { value.clone() };
        SettingError::Value { origin: origin.to_string(), key, value, reason }
    }

    /// As a configuration file, each value with its origin.
    pub(crate) fn print(&self) -> String {
        let mut text = String::new();
        let mut section = "";
        for setting in &SETTINGS {
            let (table, key) = setting.key.rsplit_once('.').unwrap_or(("", setting.key));
            if table != section {
                writeln!(text, "\n[{table}]").expect("writing to a string");
                section = table;
            }
            let (value, origin) = &self.0[setting.key];
            let shown = match key {
                "store" => redact(value),
                _ => value.clone(),
            };
            let shown = toml::Value::String(shown);
            writeln!(text, "# {}; {origin}\n{key} = {shown}", setting.about)
                .expect("writing to a string");
        }
        text
    }
}

impl Setting {
    fn variable(&self) -> String {
        format!("HOIST_{}", self.key.replace('.', "_").to_uppercase())
    }
}

/// Nested tables to dotted keys, every value as text.
fn flatten(at: &str, table: &toml::Table, out: &mut Vec<(String, String)>) {
    for (key, value) in table {
        let path = if at.is_empty() { key.clone() } else { format!("{at}.{key}") };
        match value {
            toml::Value::Table(table) => flatten(&path, table, out),
            toml::Value::Array(items) => {
                let items: Vec<_> = items.iter().map(plain).collect();
                out.push((path, items.join(",")));
            }
            value => out.push((path, plain(value))),
        }
    }
}

fn plain(value: &toml::Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// A store's address without the password in it.
pub(crate) fn redact(url: &str) -> String {
    match (url.find("://"), url.rfind('@')) {
        (Some(scheme), Some(at)) if at > scheme => {
            let user = &url[scheme + 3..at];
            let user = user.split_once(':').map_or(user, |(user, _)| user);
            format!("{}{user}{}", &url[..scheme + 3], &url[at..])
        }
        _ => url.to_owned(),
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::Bss(name) => write!(f, "from BSS's {name}"),
            Self::File { path } => write!(f, "from {}", path.display()),
            Self::Environment(name) => write!(f, "from {name}"),
            Self::Flag(flag) => write!(f, "from {flag}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        file
    }

    #[test]
    fn flags_beat_environment_beats_file_beats_defaults() {
        let mut settings = Settings::new();
        let file = file("listen = 'a:1'\nstore = 'b'\n[change_guard]\nnodes = 7\n");
        settings.read_file(file.path()).unwrap();
        settings.read_environment(|name| (name == "HOIST_LISTEN").then(|| "c:2".to_owned()));
        settings.set_flag("store", "--store", Some("d".to_owned()));
        settings.set_flag("listen", "--listen", None);
        assert_eq!(settings.text("listen"), "c:2");
        assert_eq!(settings.text("store"), "d");
        assert_eq!(settings.parse::<usize>("change_guard.nodes").unwrap(), 7);
        assert_eq!(settings.text("tls_listen"), "0.0.0.0:27443");
        let printed = settings.print();
        assert!(printed.contains("from HOIST_LISTEN"), "{printed}");
        assert!(printed.contains("from --store"), "{printed}");
        let mut again = Settings::new();
        again.read_file(self::file(&printed).path()).expect("what is printed can be read");
    }

    #[test]
    fn typos_and_wrong_values_are_told_with_their_place() {
        let mut settings = Settings::new();
        let error = settings.read_file(file("lisen = 'a'").path()).unwrap_err().to_string();
        assert!(error.contains("did you mean `listen`?"), "{error}");
        let error = settings.read_file(file("listen = ").path()).unwrap_err().to_string();
        assert!(error.contains("not TOML"), "{error}");
        settings.set_flag("change_guard.nodes", "--guard", Some("many".to_owned()));
        let error = settings.parse::<usize>("change_guard.nodes").unwrap_err().to_string();
        assert!(
            error.starts_with("from --guard: `change_guard.nodes` cannot be `many`"),
            "{error}"
        );
    }

    #[test]
    fn passwords_are_never_printed() {
        let mut settings = Settings::new();
        let url = "postgres://hoist:hunter2@db/hoist".to_owned();
        settings.set_flag("store", "--store", Some(url));
        assert!(!settings.print().contains("hunter2"));
        assert!(!settings.wrong("store", "no".into()).to_string().contains("hunter2"));
    }
}
