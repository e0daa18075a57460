//! Finding the server and the token.
//!
//! The choice is a pure function of the options, the environment and the file that a local `hoist
//! serve` leaves; only [`client`] reads files.

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use hoist_api::client::{Access, Client, Url};
use secrecy::SecretString;
use serde::Deserialize;

use crate::cli::Connection;
use crate::failure::Failure;

/// BSS's own port, on this machine.
const DEFAULT_SERVER: &str = "http://127.0.0.1:27778";
const SYSTEM_DATA_DIR: &str = "/var/lib/hoist";
/// A token is a line, not a file of any size.
const MAX_TOKEN_BYTES: usize = 64 * 1024;

/// The environment, apart from the variables that clap reads into the options.
#[derive(Debug, Default)]
pub(crate) struct Surroundings {
    pub(crate) root: bool,
    pub(crate) home: Option<PathBuf>,
    pub(crate) state_home: Option<PathBuf>,
    /// `HOIST_TOKEN`.
    pub(crate) token: Option<SecretString>,
}

/// `<data-dir>/server.json`, written by a running `hoist serve`.
#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct LocalServer {
    pub(crate) url: Option<String>,
    pub(crate) tls_url: Option<String>,
    /// File with the site's authority.
    pub(crate) ca: Option<PathBuf>,
}

/// The server and the token.
#[derive(Debug)]
struct Target {
    url: Url,
    token: TokenSource,
    ca: Option<PathBuf>,
}

#[derive(Debug)]
enum TokenSource {
    None,
    Value(SecretString),
    File(PathBuf),
    /// The admin token of the local server, if we may read it.
    Local(PathBuf),
}

impl Surroundings {
    pub(crate) fn of_process() -> Self {
        let path = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(Into::into);
        let token = std::env::var("HOIST_TOKEN").ok().filter(|token| !token.trim().is_empty());
        Self {
            root: rustix::process::geteuid().is_root(),
            home: path("HOME"),
            state_home: path("XDG_STATE_HOME"),
            token: token.map(|token| token.trim().into()),
        }
    }
}

/// Where `hoist serve` keeps its state.
pub(crate) fn data_dir(connection: &Connection, surroundings: &Surroundings) -> PathBuf {
    if let Some(dir) = &connection.data_dir {
        return dir.clone();
    }
    if surroundings.root {
        return SYSTEM_DATA_DIR.into();
    }
    // The specification says that a relative path there is to be ignored.
    let state_home = surroundings.state_home.clone().filter(|path| path.is_absolute());
    let state_home = state_home
        .or_else(|| surroundings.home.as_ref().map(|home| home.join(".local").join("state")));
    state_home.map_or_else(|| SYSTEM_DATA_DIR.into(), |dir| dir.join("hoist"))
}

/// The client for what these options and this environment name.
pub(crate) fn client(connection: &Connection) -> Result<Client, Failure> {
    let surroundings = Surroundings::of_process();
    let data_dir = data_dir(connection, &surroundings);
    let running = match &connection.server {
        Some(_) => read_running(&data_dir).unwrap_or_default(),
        None => read_running(&data_dir)?,
    };
    let target = choose(connection, surroundings, &data_dir, running.as_ref())?;
    let token = match target.token {
        TokenSource::None => None,
        TokenSource::Value(token) => Some(token),
        TokenSource::File(path) => Some(read_token(&path)?),
        TokenSource::Local(path) => match read_token(&path) {
            Ok(token) => Some(token),
            // The server reports the missing token, if it needs one.
            Err(Failure::File(error)) if is_out_of_reach(&error) => None,
            Err(failure) => return Err(failure),
        },
    };
    if token.is_some() {
        check_plain(&target.url, connection.insecure_plain)?;
    }
    let authorities = match &target.ca {
        Some(path) => Some(fs_err::read(path).map_err(Failure::File)?),
        None => None,
    };
    Ok(Client::new(target.url, Access { token, authorities })?)
}

/// The file of the site's certificate authority; by default that of this machine's controller.
pub(crate) fn authority(connection: &Connection) -> Result<PathBuf, Failure> {
    let data_dir = data_dir(connection, &Surroundings::of_process());
    let running = read_running(&data_dir)?.and_then(|running| running.ca);
    let made = Some(data_dir.join("ca").join("root.pem")).filter(|path| path.is_file());
    connection.ca.clone().or(running).or(made).ok_or_else(|| {
        Failure::usage("the certificate authority of the site is unknown").with_hint(
            "give it with `--ca FILE`; the controller has it in `<data-dir>/ca/root.pem`",
        )
    })
}

/// Host and port of the controller's TLS listener, for a node that trusts a pin.
pub(crate) fn tls_authority(connection: &Connection) -> Result<String, Failure> {
    let data_dir = data_dir(connection, &Surroundings::of_process());
    let is_tls = |server: &String| server.starts_with("https://");
    let running = match connection.server.as_ref().filter(|server| is_tls(server)) {
        Some(_) => None,
        // A local server may be named by its plain address.
        None => read_running(&data_dir)?.and_then(|running| running.tls_url),
    };
    let url = running.or_else(|| connection.server.clone()).ok_or_else(|| {
        Failure::missing("a running controller")
            .with_hint("start `hoist serve`, or name its TLS address with `--server`")
    })?;
    let url = address(&url)?;
    match (url.scheme(), url.host_str(), url.port_or_known_default()) {
        ("https", Some(host), Some(port)) => Ok(format!("{host}:{port}")),
        _ => Err(Failure::usage(format!("{url} is not the TLS address of a controller"))
            .with_hint("nodes join over TLS; write it as `https://controller:27443`")),
    }
}

fn choose(
    connection: &Connection,
    surroundings: Surroundings,
    data_dir: &Path,
    running: Option<&LocalServer>,
) -> Result<Target, Failure> {
    let url = match &connection.server {
        Some(server) => address(server)?,
        None => match running.and_then(LocalServer::preferred) {
            Some(url) => address(&url)?,
            None => address(DEFAULT_SERVER)?,
        },
    };
    // The local admin token is for the local server. Sending it to the server of `--server` would
    // hand this site to the operator of that one.
    let ours = is_loopback(&url)
        || connection.data_dir.is_some()
        || running.is_some_and(|running| running.is_at(&url));
    let token = match (&connection.token_file, surroundings.token) {
        (Some(path), _) => TokenSource::File(path.clone()),
        (None, Some(token)) => TokenSource::Value(token),
        (None, None) if ours => TokenSource::Local(data_dir.join("admin.token")),
        (None, None) => TokenSource::None,
    };
    let ca = if url.scheme() == "https" {
        let running = running.and_then(|running| running.ca.clone());
        let made = Some(data_dir.join("ca").join("root.pem")).filter(|path| path.is_file());
        let ca = connection.ca.clone().or(running).or(made);
        Some(ca.ok_or_else(|| {
            Failure::usage(format!("the certificate authority of {url} is unknown"))
                .with_hint("give it with `--ca FILE` or `HOIST_CA`; the controller has it in `<data-dir>/ca/root.pem`")
        })?)
    } else {
        None
    };
    Ok(Target { url, token, ca })
}

impl LocalServer {
    /// The plain listener when it is on this machine only, the one with TLS otherwise.
    fn preferred(&self) -> Option<String> {
        let local = |text: &&String| address(text).is_ok_and(|url| is_loopback(&url));
        let plain = self.url.as_ref();
        plain.filter(local).or(self.tls_url.as_ref()).or(plain).cloned()
    }

    fn is_at(&self, url: &Url) -> bool {
        let mut ours = self.url.iter().chain(&self.tls_url).filter_map(|text| address(text).ok());
        ours.any(|known| known.origin() == url.origin())
    }
}

/// Missing is an answer: no server runs on this data directory.
fn read_running(data_dir: &Path) -> Result<Option<LocalServer>, Failure> {
    let path = data_dir.join("server.json");
    match fs_err::read(&path) {
        Ok(text) => match serde_json::from_slice(&text) {
            Ok(running) => Ok(Some(running)),
            Err(source) => Err(Failure::Record { path, source }),
        },
        Err(error) if is_out_of_reach(&error) => Ok(None),
        Err(error) => Err(Failure::File(error)),
    }
}

fn is_out_of_reach(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied | io::ErrorKind::NotADirectory
    )
}

pub(crate) fn read_token(path: &Path) -> Result<SecretString, Failure> {
    let text = fs_err::read_to_string(path).map_err(Failure::File)?;
    let token = text.trim();
    let plain = token.bytes().all(|byte| byte.is_ascii_graphic());
    if token.is_empty() || token.len() > MAX_TOKEN_BYTES || !plain {
        let message = format!("`{}` contains no token", path.display());
        return Err(Failure::usage(message).with_hint("a token is one line of text"));
    }
    Ok(token.into())
}

pub(crate) fn address(text: &str) -> Result<Url, Failure> {
    let wrong = || {
        Failure::usage(format!("`{text}` is not a server address"))
            .with_hint("write it as `https://controller:27443` or `http://127.0.0.1:27778`")
    };
    let mut url: Url = text.parse().map_err(|_| wrong())?;
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
        return Err(wrong());
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(Failure::usage("a server address must not contain a user name or password")
            .with_hint("give tokens with `--token-file`, `HOIST_TOKEN_FILE` or `HOIST_TOKEN`"));
    }
    // A listener on all addresses is reached on this machine's own.
    if let Some(ip) = ip_of(&url).filter(IpAddr::is_unspecified) {
        let own = if ip.is_ipv4() { "127.0.0.1" } else { "[::1]" };
        url.set_host(Some(own)).map_err(|_| wrong())?;
    }
    Ok(url)
}

fn ip_of(url: &Url) -> Option<IpAddr> {
    url.host_str()?.trim_matches(['[', ']']).parse().ok()
}

pub(crate) fn is_loopback(url: &Url) -> bool {
    url.host_str() == Some("localhost") || ip_of(url).is_some_and(|ip| ip.is_loopback())
}

fn check_plain(url: &Url, allowed: bool) -> Result<(), Failure> {
    if url.scheme() == "https" || is_loopback(url) || allowed {
        return Ok(());
    }
    Err(Failure::refused(format!("refusing to send the token to {url} over plain HTTP")).with_hint(
        "use the server's https address with `--ca FILE`; `--insecure-plain` sends it anyway",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use secrecy::ExposeSecret;

    fn pick(connection: &Connection, token: Option<&str>, running: Option<&LocalServer>) -> String {
        let surroundings = Surroundings {
            token: token.map(Into::into),
            home: Some("/home/u".into()),
            ..Surroundings::default()
        };
        let dir = data_dir(connection, &surroundings);
        match choose(connection, surroundings, &dir, running) {
            Err(failure) => format!("error: {failure}"),
            Ok(target) => {
                let token = match target.token {
                    TokenSource::None => "none".to_owned(),
                    TokenSource::Value(token) => format!("value {}", token.expose_secret()),
                    TokenSource::File(path) => format!("file {}", path.display()),
                    TokenSource::Local(path) => format!("local {}", path.display()),
                };
                let ca = target.ca.map(|ca| format!(" ca {}", ca.display())).unwrap_or_default();
                format!("{} {token}{ca}", target.url)
            }
        }
    }

    fn server(url: &str) -> Connection {
        Connection { server: Some(url.into()), ..Connection::default() }
    }

    fn running() -> LocalServer {
        LocalServer {
            url: Some("http://127.0.0.1:4000".into()),
            tls_url: Some("https://controller:4443".into()),
            ca: Some("/d/ca/root.pem".into()),
        }
    }

    #[test]
    fn server_is_named_else_running_else_default() {
        let local = "local /home/u/.local/state/hoist/admin.token";
        let none = Connection::default();
        assert_eq!(pick(&none, None, None), format!("http://127.0.0.1:27778/ {local}"));
        assert_eq!(pick(&none, None, Some(&running())), format!("http://127.0.0.1:4000/ {local}"));
        let named = pick(&server("http://localhost:1"), None, Some(&running()));
        assert_eq!(named, format!("http://localhost:1/ {local}"));
        let named = pick(&server("http://0.0.0.0:1"), None, None);
        assert_eq!(named, format!("http://127.0.0.1:1/ {local}"));
    }

    #[test]
    fn a_server_that_listens_elsewhere_is_reached_over_tls() {
        let running = LocalServer { url: Some("http://10.0.0.1:4000".into()), ..running() };
        let local = "local /home/u/.local/state/hoist/admin.token";
        let picked = pick(&Connection::default(), None, Some(&running));
        assert_eq!(picked, format!("https://controller:4443/ {local} ca /d/ca/root.pem"));
    }

    #[test]
    fn token_is_the_named_then_the_given_then_the_local_one() {
        let mut connection = server("http://127.0.0.1:1");
        assert!(pick(&connection, Some("t"), None).ends_with(" value t"));
        connection.token_file = Some("/t".into());
        assert!(pick(&connection, Some("t"), None).ends_with(" file /t"));
    }

    #[test]
    fn local_token_is_not_sent_to_other_servers() {
        let mut connection = server("http://elsewhere:27778");
        assert!(pick(&connection, None, Some(&running())).ends_with(" none"));
        connection.data_dir = Some("/d".into());
        assert!(pick(&connection, None, None).ends_with(" local /d/admin.token"));
        let own = server("https://controller:4443");
        assert!(pick(&own, None, Some(&running())).contains(" local /home/u/"));
    }

    #[test]
    fn tls_needs_an_authority() {
        let mut connection = server("https://elsewhere");
        let picked = pick(&connection, None, None);
        assert!(picked.starts_with("error: the certificate authority of "), "{picked}");
        connection.ca = Some("/ca.pem".into());
        assert_eq!(pick(&connection, None, Some(&running())), "https://elsewhere/ none ca /ca.pem");
    }

    #[test]
    fn addresses_are_checked() {
        for text in ["controller", "ftp://x", "", "http://", "localhost:27778"] {
            assert!(address(text).is_err(), "{text}");
        }
        let failure = address("http://admin:kettle@x").unwrap_err();
        assert!(!failure.to_string().contains("kettle"));
    }

    #[test]
    fn a_token_travels_plainly_only_on_this_machine_or_when_told() {
        let plain = |text: &str, allowed| check_plain(&text.parse().unwrap(), allowed).is_ok();
        assert!(plain("http://127.0.0.1", false));
        assert!(plain("http://127.8.8.8", false));
        assert!(plain("http://[::1]:1", false));
        assert!(plain("http://localhost", false));
        assert!(plain("https://elsewhere", false));
        assert!(!plain("http://10.0.0.1", false));
        assert!(!plain("http://localhost.elsewhere", false));
        assert!(plain("http://10.0.0.1", true));
    }

    #[test]
    fn the_data_directory_follows_the_user() {
        let connection = Connection::default();
        let at = |s: Surroundings| data_dir(&connection, &s).display().to_string();
        let home = || Some(PathBuf::from("/home/u"));
        let root = Surroundings { root: true, home: home(), ..Surroundings::default() };
        assert_eq!(at(root), "/var/lib/hoist");
        let state_home = Some("/state".into());
        let user = Surroundings { home: home(), state_home, ..Surroundings::default() };
        assert_eq!(at(user), "/state/hoist");
        let state_home = Some("relative".into());
        let user = Surroundings { home: home(), state_home, ..Surroundings::default() };
        assert_eq!(at(user), "/home/u/.local/state/hoist");
        assert_eq!(at(Surroundings::default()), "/var/lib/hoist");
    }

    #[test]
    fn a_token_file_holds_one_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t");
        fs_err::write(&path, "hoist_x_y\n").unwrap();
        assert_eq!(read_token(&path).unwrap().expose_secret(), "hoist_x_y");
        for text in ["", "\n", "two words", "a\nb"] {
            fs_err::write(&path, text).unwrap();
            assert!(matches!(read_token(&path), Err(Failure::Usage { .. })), "{text}");
        }
    }
}
