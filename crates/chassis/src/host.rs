//! The host names under which administration is reached.
//!
//! A web page can make its own name resolve to this server (DNS rebinding) and then send requests
//! from a browser inside the network. The browser still names the page's host, so requests under a
//! name that is not this server's do not reach administration. Machines that boot may use any name.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr};

use hoist_api::Code;
use http::header::HOST;
use http::uri::Authority;
use http::{HeaderMap, Uri};

use crate::ca::ServerName;
use crate::failure::Failure;

/// The names of this server, in lower case. Addresses always count: a browser that names one has
/// resolved nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct HostNames(BTreeSet<String>);

impl HostNames {
    pub(crate) fn new<'a>(names: impl IntoIterator<Item = &'a ServerName>) -> Self {
        let name = |name: &ServerName| match name {
            ServerName::Dns(name) => Some(plain(name)),
            ServerName::Ip(_) => None,
        };
        let names = names.into_iter().filter_map(name);
        Self(names.chain(["localhost".to_owned()]).collect())
    }

    /// Refuses a request that names no host, several, or one that is not this server's. A target
    /// with a host (HTTP/2, or absolute) counts, and so does a `Host` beside it.
    pub(crate) fn check(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), Failure> {
        let mut named = 0;
        if let Some(authority) = uri.authority() {
            self.check_one(authority.as_str())?;
            named += 1;
        }
        let mut lines = headers.get_all(HOST).iter();
        if let Some(line) = lines.next() {
            self.check_one(line.to_str().unwrap_or_default())?;
            named += 1;
        }
        if named == 0 || lines.next().is_some() {
            return Err(Failure::new(Code::WrongHost, "the request must name one host")
                .with_remedy("send one `Host` header"));
        }
        Ok(())
    }

    fn check_one(&self, text: &str) -> Result<(), Failure> {
        let authority = text.parse::<Authority>().ok().filter(|_| !text.contains('@'));
        let host = authority.as_ref().map(|authority| plain(authority.host()));
        if host.as_ref().is_some_and(|host| is_address(host) || self.0.contains(host)) {
            return Ok(());
        }
        metrics::counter!("hoist_wrong_host_total").increment(1);
        let shown: String = text.chars().take(64).collect();
        let detail = format!("host `{shown}` is not a name of this server");
        Err(Failure::new(Code::WrongHost, detail).with_remedy(
            "use its address or a name in its certificate, or add the name to `names`",
        ))
    }
}

/// The form in which names are compared: without a trailing dot.
fn plain(name: &str) -> String {
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

fn is_address(host: &str) -> bool {
    let v6 = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    v6.map_or_else(|| host.parse::<IpAddr>().is_ok(), |v6| v6.parse::<Ipv6Addr>().is_ok())
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn allows(uri: &str, hosts: &[&str]) -> bool {
        let names = ["boot.example".into(), "10.1.0.2".into()];
        let value = |host: &&str| (HOST, HeaderValue::from_bytes(host.as_bytes()).unwrap());
        let headers: HeaderMap = hosts.iter().map(value).collect();
        HostNames::new(&names).check(&uri.parse().unwrap(), &headers).is_ok()
    }

    #[test]
    fn own_names_and_addresses_pass_and_other_names_do_not() {
        for host in [
            "boot.example",
            "boot.example:27443",
            "BOOT.Example.",
            "localhost:1",
            "10.1.0.2",
            "192.0.2.7:80",
            "[::1]",
            "[fd00::1]:27443",
        ] {
            assert!(allows("/", &[host]), "{host}");
            assert!(allows(&format!("http://{host}/"), &[]), "{host}");
        }
        for host in [
            "evil.example",
            "boot.example.evil.example",
            "evil.example:27443",
            "localhost.evil.example",
            "10.1.0.2.evil.example",
            "boot.example@evil.example",
            "evil.example@boot.example",
            "boot.example, evil.example",
            "[boot.example]",
            "",
            "\u{e9}",
        ] {
            assert!(!allows("/", &[host]), "{host}");
        }
    }

    #[test]
    fn every_place_that_names_a_host_counts() {
        assert!(!allows("/", &[]), "nobody is named");
        assert!(!allows("/", &["boot.example", "boot.example"]), "two lines");
        assert!(!allows("http://evil.example/", &["boot.example"]));
        assert!(!allows("http://boot.example/", &["evil.example"]));
        assert!(allows("http://boot.example/", &["localhost"]));
    }
}
