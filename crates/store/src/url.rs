//! Opens the store that a `--store` URL names.
//!
//! | text | store |
//! | --- | --- |
//! | `embedded` | a file in the data directory |
//! | `etcd://h1:2379,h2:2379/prefix?ca=F&cert=F&key=F&user=U&password-file=F` | etcd; `etcds://` or `ca=` means TLS |
//! | `postgres://user@host/db?schema=S&sslmode=verify-full&sslrootcert=F&password-file=F` | `PostgreSQL` |
//!
//! Addresses may hold passwords, so nothing here ever prints one whole.

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use hoist_diagnostic::chain;
use rustls::RootCertStore;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use secrecy::SecretString;

use crate::embedded::{self, EmbeddedStore};
use crate::etcd::{self, EtcdStore};
use crate::postgres::{self, PostgresStore};
use crate::{PasswordFile, Store, StoreError};

/// Opens the store that `address` names. The servers are asked with the first call, and an embedded
/// file that cannot be opened now is opened by a later one, so that a controller can start while its
/// store is down.
pub async fn open(address: &str, data_dir: &Path) -> Result<Arc<dyn Store>, StoreError> {
    open_keeping(address, data_dir, HistoryLimits::default()).await
}

/// History limits of embedded stores and `PostgreSQL`; etcd has its own settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HistoryLimits {
    /// Changed keys, over all commits.
    pub changes: u64,
    pub age: Duration,
}

impl Default for HistoryLimits {
    fn default() -> Self {
        let postgres::Retention { changes, age } = postgres::Retention::default();
        Self { changes, age }
    }
}

/// As [`open`], with other limits of the history.
pub async fn open_keeping(
    address: &str,
    data_dir: &Path,
    limits: HistoryLimits,
) -> Result<Arc<dyn Store>, StoreError> {
    let HistoryLimits { changes, age } = limits;
    Ok(match address.parse::<Address>()? {
        Address::Embedded => {
            let dir = data_dir.to_owned();
            let retention = embedded::Retention { changes, age, ..Default::default() };
            let opened =
                tokio::task::spawn_blocking(move || EmbeddedStore::open_or_later(&dir, retention));
            Arc::new(opened.await.map_err(|panic| StoreError::Damaged {
                detail: format!("{}: {panic}", data_dir.display()),
            })??)
        }
        Address::Etcd(config) => Arc::new(EtcdStore::new(&config)?),
        Address::Postgres(config) => {
            let retention = postgres::Retention { changes, age };
            Arc::new(PostgresStore::new(postgres::Config { retention, ..*config }))
        }
    })
}

/// A checked store address.
#[derive(Debug, Clone)]
pub enum Address {
    Embedded,
    Etcd(etcd::Config),
    Postgres(Box<postgres::Config>),
}

/// The location of a store without its credentials.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Embedded => f.write_str("embedded"),
            Self::Etcd(config) => {
                let scheme = if config.tls.is_some() { "etcds" } else { "etcd" };
                write!(f, "{scheme}://{}/{}", config.endpoints.join(","), config.prefix)
            }
            Self::Postgres(config) => {
                let hosts = config.server.get_hosts().iter().map(|host| match host {
                    tokio_postgres::config::Host::Tcp(name) => name.clone(),
                    tokio_postgres::config::Host::Unix(path) => path.display().to_string(),
                });
                let hosts: Vec<String> = hosts.collect();
                let database = config.server.get_dbname().unwrap_or("postgres");
                write!(f, "postgres://{}/{database}", hosts.join(","))
            }
        }
    }
}

impl FromStr for Address {
    type Err = StoreError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "embedded" {
            return Ok(Self::Embedded);
        }
        let Some((scheme, rest)) = text.split_once("://") else {
            return Err(refused("the store is `embedded`, `etcd://…` or `postgres://…`"));
        };
        match scheme {
            "etcd" => etcd_config(rest, false).map(Self::Etcd),
            "etcds" => etcd_config(rest, true).map(Self::Etcd),
            "postgres" | "postgresql" => postgres_config(rest).map(Box::new).map(Self::Postgres),
            other => Err(refused(format!(
                "`{other}://` is not a store; use `embedded`, `etcd://…` or `postgres://…`"
            ))),
        }
    }
}

/// Prefix in etcd when the address names none.
const DEFAULT_PREFIX: &str = "hoist";
const DEFAULT_SCHEMA: &str = "hoist";
const DEFAULT_ETCD_PORT: u16 = 2379;

fn etcd_config(rest: &str, secure: bool) -> Result<etcd::Config, StoreError> {
    let (place, mut options) = Options::split(rest)?;
    let (hosts, prefix) = place.split_once('/').unwrap_or((place, ""));
    if hosts.contains('@') {
        return Err(refused("etcd takes `user=` and `password-file=`, not `user:password@`"));
    }
    let endpoints = hosts.split(',').map(endpoint).collect::<Result<Vec<_>, _>>()?;
    let ca = options.file("ca")?;
    let cert = options.file("cert")?;
    let key = options.file("key")?;
    let identity = match (cert, key) {
        (Some(cert), Some(key)) => Some((cert, secret(&key, "key")?)),
        (None, None) => None,
        _ => return Err(refused("`cert=` and `key=` go together")),
    };
    let secure = secure || ca.is_some() || identity.is_some();
    let login = match (options.take("user"), options.password_file()) {
        (Some(user), Some(password)) => Some(etcd::Login { user, password }),
        (None, None) => None,
        _ => return Err(refused("`user=` and `password-file=` go together")),
    };
    options.finish()?;
    let prefix = prefix.trim_matches('/');
    Ok(etcd::Config {
        endpoints,
        prefix: if prefix.is_empty() { DEFAULT_PREFIX } else { prefix }.to_owned(),
        tls: secure.then_some(etcd::Tls { ca, identity }),
        login,
    })
}

fn endpoint(text: &str) -> Result<String, StoreError> {
    let ends_with_port = |text: &str| {
        text.rsplit_once(':').is_some_and(|(host, port)| {
            !host.is_empty()
                && (!host.contains(':') || host.ends_with(']'))
                && port.parse::<u16>().is_ok()
        })
    };
    if ends_with_port(text) {
        Ok(text.to_owned())
    } else if !text.is_empty() && (!text.contains(':') || text.ends_with(']')) {
        Ok(format!("{text}:{DEFAULT_ETCD_PORT}"))
    } else {
        Err(refused(format!("`{text}` is not `host:port`; IPv6 addresses need brackets")))
    }
}

fn postgres_config(rest: &str) -> Result<postgres::Config, StoreError> {
    let (place, mut options) = Options::split(rest)?;
    let schema = options.take("schema").unwrap_or_else(|| DEFAULT_SCHEMA.to_owned());
    if !is_identifier(&schema) {
        return Err(refused("`schema=` takes lower case letters, digits and `_`, at most 50"));
    }
    let tls = postgres_tls(&mut options)?;
    let password = options.password_file();
    // The rest is the driver's own. Its errors name options, never values.
    let url = format!("postgres://{place}?{}", options.rest.join("&"));
    let mut server: tokio_postgres::Config =
        url.parse().map_err(|error| refused(format!("postgres: {}", chain(&error))))?;
    if server.get_hosts().is_empty() {
        return Err(refused("the postgres address names no host"));
    }
    let ssl_mode = if tls.is_some() {
        tokio_postgres::config::SslMode::Require
    } else {
        tokio_postgres::config::SslMode::Disable
    };
    server.ssl_mode(ssl_mode);
    server.application_name("hoist");
    server.keepalives_idle(std::time::Duration::from_secs(30));
    let retention = postgres::Retention::default();
    Ok(postgres::Config { server, schema, tls, password, retention })
}

/// Encrypted means verified here: an unverified connection protects against nothing, so `require`
/// is as strict as `verify-full`. `prefer` allows plain connections and gets one.
fn postgres_tls(options: &mut Options) -> Result<Option<Arc<rustls::ClientConfig>>, StoreError> {
    let mode = options.take("sslmode").unwrap_or_else(|| "prefer".to_owned());
    let root = options.file("sslrootcert")?;
    let cert = options.file("sslcert")?;
    let key = options.file("sslkey")?;
    match mode.as_str() {
        "disable" | "allow" | "prefer" if root.is_none() => return Ok(None),
        "disable" => return Err(refused("`sslrootcert=` with `sslmode=disable`")),
        "allow" | "prefer" | "require" | "verify-ca" | "verify-full" => {}
        other => return Err(refused(format!("`sslmode={other}` is unknown"))),
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| refused(error.to_string()))?
        .with_root_certificates(roots(root.as_deref())?);
    let config = match (cert, key) {
        (Some(cert), Some(key)) => {
            let key = PrivateKeyDer::from_pem_slice(&key)
                .map_err(|_| refused("`sslkey=` is not a PEM private key"))?;
            builder.with_client_auth_cert(certificates(&cert, "sslcert")?, key)
        }
        (None, None) => Ok(builder.with_no_client_auth()),
        _ => return Err(refused("`sslcert=` and `sslkey=` go together")),
    };
    config.map(Arc::new).map(Some).map_err(|error| refused(error.to_string()))
}

fn roots(pem: Option<&[u8]>) -> Result<RootCertStore, StoreError> {
    let mut roots = RootCertStore::empty();
    let certificates = match pem {
        Some(pem) => certificates(pem, "sslrootcert")?,
        None => rustls_native_certs::load_native_certs().certs,
    };
    roots.add_parsable_certificates(certificates);
    if roots.is_empty() {
        return Err(refused("no root certificate to verify the server with; give `sslrootcert=`"));
    }
    Ok(roots)
}

fn certificates(pem: &[u8], option: &str) -> Result<Vec<CertificateDer<'static>>, StoreError> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    all.ok()
        .filter(|all| !all.is_empty())
        .ok_or_else(|| refused(format!("`{option}=` holds no PEM certificate")))
}

/// The query options, taken out one by one so that a misspelt option is noticed.
struct Options {
    rest: Vec<String>,
}

impl Options {
    fn split(rest: &str) -> Result<(&str, Self), StoreError> {
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let rest: Vec<String> =
            query.split('&').filter(|part| !part.is_empty()).map(str::to_owned).collect();
        if rest.iter().any(|part| !part.contains('=')) {
            return Err(refused("options of a store address are `name=value`, joined by `&`"));
        }
        Ok((place, Self { rest }))
    }

    fn take(&mut self, name: &str) -> Option<String> {
        let found = self.rest.iter().position(|part| part.split('=').next() == Some(name))?;
        self.rest.remove(found).split_once('=').map(|(_, value)| value.to_owned())
    }

    fn file(&mut self, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let Some(path) = self.take(name) else { return Ok(None) };
        let read = fs_err::read(path).map_err(|error| refused(format!("`{name}=`: {error}")))?;
        Ok(Some(read))
    }

    fn password_file(&mut self) -> Option<PasswordFile> {
        self.take("password-file").map(PasswordFile::new)
    }

    fn finish(self) -> Result<(), StoreError> {
        match self.rest.first().and_then(|part| part.split('=').next()) {
            Some(name) => Err(refused(format!("`{name}=` is not an option of this store"))),
            None => Ok(()),
        }
    }
}

fn is_identifier(text: &str) -> bool {
    let first = text.bytes().next().is_some_and(|b| b.is_ascii_lowercase() || b == b'_');
    let rest = text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
    first && rest && text.len() <= 50
}

fn secret(raw: &[u8], option: &str) -> Result<SecretString, StoreError> {
    let text = std::str::from_utf8(trim_newline(raw))
        .map_err(|_| refused(format!("`{option}=` is not text")))?;
    Ok(SecretString::from(text))
}

fn trim_newline(raw: &[u8]) -> &[u8] {
    raw.strip_suffix(b"\n").map_or(raw, |raw| raw.strip_suffix(b"\r").unwrap_or(raw))
}

fn refused(detail: impl Into<String>) -> StoreError {
    StoreError::Refused { detail: detail.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Address, String> {
        text.parse::<Address>().map_err(|error| error.to_string())
    }

    fn shown(text: &str) -> String {
        parse(text).unwrap().to_string()
    }

    #[test]
    fn addresses_are_understood() {
        assert_eq!(shown("embedded"), "embedded");
        assert_eq!(shown("etcd://a:1,b/site/x"), "etcd://a:1,b:2379/site/x");
        assert_eq!(shown("etcds://[::1]"), "etcds://[::1]:2379/hoist");
        assert_eq!(shown("postgres://u:p@db/site?schema=s"), "postgres://db/site");
        // The file is read with each login; it may be missing now.
        assert_eq!(shown("etcd://a?user=u&password-file=/nonexistent"), "etcd://a:2379/hoist");
        assert_eq!(shown("postgres://db/site?password-file=/nonexistent"), "postgres://db/site");
    }

    #[test]
    fn mistakes_are_named() {
        for (text, said) in [
            ("sqlite://x", "`sqlite://` is not a store"),
            ("/tmp/x", "the store is `embedded`"),
            ("etcd://", "`` is not `host:port`"),
            ("etcd://::1:2379", "IPv6 addresses need brackets"),
            ("etcd://a?cert=/nonexistent", "`cert=`"),
            ("etcd://a?prefx=x", "`prefx=` is not an option"),
            ("etcd://a?user=x", "go together"),
            ("etcd://u:p@a", "not `user:password@`"),
            ("postgres://db/x?schema=Robert'", "`schema=`"),
            ("postgres://db/x?sslmode=maybe", "`sslmode=maybe` is unknown"),
            ("postgres://db/x?colour=red", "colour"),
            ("postgres:///x", "names no host"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(said), "{text}: {error}");
        }
    }

    #[test]
    fn passwords_are_never_printed() {
        let address = parse("postgres://u:sesame@db/x").unwrap();
        assert!(!format!("{address:?} {address}").contains("sesame"));
        for broken in ["postgres://u:sesame@db:port/x", "postgres://u:sesame@db/x?sslmode=no"] {
            assert!(!parse(broken).unwrap_err().contains("sesame"));
        }
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("password");
        std::fs::write(&file, "sesame\n").unwrap();
        let address = parse(&format!("etcd://a?user=u&password-file={}", file.display())).unwrap();
        assert!(!format!("{address:?} {address}").contains("sesame"));
    }
}
