//! The origin of a request: request extensions that the listener sets.

use std::convert::Infallible;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use axum::extract::FromRequestParts;
use http::request::Parts;
use http::{HeaderName, HeaderValue};
use ipnet::IpNet;
use rustls::{ProtocolVersion, ServerConnection};
use rustls_pki_types::CertificateDer;
use zeroize::Zeroize;

use crate::direct::Fields;
use crate::failure::Failure;
use crate::secret;

/// The other end of the connection.
#[derive(Debug, Clone)]
pub struct Peer {
    pub addr: SocketAddr,
    /// Over TLS.
    pub secure: bool,
    /// The certificates of the client, leaf first; verified to be of this site. Empty without one.
    pub certificates: Arc<[CertificateDer<'static>]>,
    channel_binding: Option<Arc<ChannelBinding>>,
}

/// Keying material that only the two ends of one TLS connection can compute. A proof that covers it
/// is worthless on any other connection, so it cannot be relayed.
pub struct ChannelBinding([u8; CHANNEL_BINDING_BYTES]);

/// The label under which both ends export their [`ChannelBinding`]; there is no context.
pub const CHANNEL_BINDING_LABEL: &[u8] = b"EXPORTER-hoist-join-1";

pub const CHANNEL_BINDING_BYTES: usize = 32;

/// What stood in front of the path and was taken away: gateways route BSS by a prefix, and its
/// clients know both forms. URLs that a node is to ask next have to carry it again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GatewayPrefix(&'static str);

/// Ties an answer to the log lines about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestId(HeaderValue);

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The networks of trusted proxies. Forwarding headers of other clients are ignored.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Proxies(Vec<IpNet>);

/// In the place of an address that cannot be told.
const NOBODY: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// Longest request id we take from a client.
const MAX_REQUEST_ID: usize = 64;

impl Peer {
    /// A client without certificates.
    pub fn new(addr: SocketAddr, secure: bool) -> Self {
        Self { addr, secure, certificates: Arc::default(), channel_binding: None }
    }

    /// The same client, after the TLS handshake of `session`.
    ///
    /// The connection takes the session away, so the channel binding is computed here, once for
    /// each connection, and not when a handler asks for it.
    pub(crate) fn after_handshake(self, session: &ServerConnection) -> Self {
        let certificates = session.peer_certificates().unwrap_or_default();
        Self {
            certificates: certificates.iter().map(|one| one.clone().into_owned()).collect(),
            channel_binding: ChannelBinding::of(session).map(Arc::new),
            ..self
        }
    }

    /// `None` on a plain connection, and below TLS 1.3.
    pub fn channel_binding(&self) -> Option<&ChannelBinding> {
        self.channel_binding.as_deref()
    }

    /// Whether the request comes from this machine. An IPv4 address may be mapped to IPv6.
    pub fn is_loopback(&self) -> bool {
        self.addr.ip().to_canonical().is_loopback()
    }
}

impl ChannelBinding {
    /// Earlier versions of TLS export the same material for two sessions unless both ends use an
    /// extension, so they get none.
    fn of(session: &ServerConnection) -> Option<Self> {
        if session.protocol_version() != Some(ProtocolVersion::TLSv1_3) {
            return None;
        }
        let exported = session.export_keying_material(
            Self([0; CHANNEL_BINDING_BYTES]),
            CHANNEL_BINDING_LABEL,
            None,
        );
        exported
            .inspect_err(|error| tracing::warn!(%error, "TLS session exports no keying material"))
            .ok()
    }

    pub fn as_bytes(&self) -> &[u8; CHANNEL_BINDING_BYTES] {
        &self.0
    }
}

impl AsMut<[u8]> for ChannelBinding {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

impl Drop for ChannelBinding {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl fmt::Debug for ChannelBinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ChannelBinding(..)")
    }
}

impl FromIterator<IpNet> for Proxies {
    fn from_iter<I: IntoIterator<Item = IpNet>>(networks: I) -> Self {
        Self(networks.into_iter().collect())
    }
}

impl Proxies {
    pub(crate) fn contains(&self, ip: IpAddr) -> bool {
        let ip = ip.to_canonical();
        self.0.iter().any(|network| network.contains(&ip))
    }

    /// The address of the client: the last one in `X-Forwarded-For` that is not a trusted proxy, as
    /// long as every one behind it is. An entry that is not an address yields `NOBODY`: the
    /// rights of the proxy's own address must not go to its clients.
    pub fn client<'a>(&self, peer: &Peer, fields: impl Into<Fields<'a>>) -> IpAddr {
        let mut client = peer.addr.ip().to_canonical();
        if self.0.is_empty() {
            return client;
        }
        let lines = fields.into().all(&FORWARDED_FOR);
        let mut named = lines.iter().rev().flat_map(|line| line.rsplit(','));
        while self.0.iter().any(|network| network.contains(&client)) {
            let Some(before) = named.next() else { break };
            let Ok(before) = before.trim().parse::<IpAddr>() else { return NOBODY };
            client = before.to_canonical();
        }
        client
    }
}

impl GatewayPrefix {
    /// The path prefix of `OpenCHAMI`'s gateway for BSS.
    pub(crate) const BSS: Self = Self("/apis/bss");

    /// Empty, or a path without a slash at its end.
    pub fn as_str(self) -> &'static str {
        self.0
    }
}

impl RequestId {
    /// The client's own id when it is short and plain, else a new one.
    pub(crate) fn accept_or_make(offered: Option<&HeaderValue>) -> Self {
        let plain = offered.filter(|offered| Self::is_plain(offered.as_bytes()));
        Self(plain.cloned().unwrap_or_else(|| {
            let made = secret::random_text(16);
            HeaderValue::from_str(&made).expect("letters and digits")
        }))
    }

    /// Whether the value is short and plain, so that an answer may repeat it.
    pub(crate) fn is_plain(offered: &[u8]) -> bool {
        (1..=MAX_REQUEST_ID).contains(&offered.len())
            && offered.iter().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(b))
    }

    pub fn as_str(&self) -> &str {
        self.0.to_str().expect("checked when it was made")
    }

    pub(crate) fn into_header(self) -> HeaderValue {
        self.0
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Peer {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Failure> {
        parts.extensions.get::<Self>().cloned().ok_or_else(|| {
            Failure::new(hoist_api::Code::Internal, "the listener did not say who is asking")
        })
    }
}

impl<S: Send + Sync> FromRequestParts<S> for GatewayPrefix {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(parts.extensions.get::<Self>().copied().unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channel_binding_is_not_shown() {
        let mut peer = Peer::new(([192, 0, 2, 1], 1).into(), true);
        peer.channel_binding = Some(Arc::new(ChannelBinding([7; CHANNEL_BINDING_BYTES])));
        let shown = format!("{peer:?}");
        assert!(shown.contains("ChannelBinding(..)") && !shown.contains('7'), "{shown}");
    }

    #[test]
    fn only_plain_request_ids_are_taken_over() {
        let take = |text: &[u8]| {
            let offered = HeaderValue::from_bytes(text).unwrap();
            RequestId::accept_or_make(Some(&offered)).as_str().to_owned()
        };
        assert_eq!(take(b"trace-1.2_3"), "trace-1.2_3");
        assert_ne!(take(b"a b"), "a b");
        assert_ne!(take(b"\xff\xfe"), "");
        assert_eq!(take(&[b'a'; 64]).len(), 64);
        assert_eq!(take(&[b'a'; 65]).len(), 16);
    }

    #[test]
    fn only_listed_proxies_say_for_whom_they_ask() {
        let proxies: Proxies =
            ["10.0.0.0/24".parse().unwrap(), "fd00::/64".parse().unwrap()].into_iter().collect();
        let client = |proxies: &Proxies, peer: &str, lines: &[&str]| {
            let addr = SocketAddr::new(peer.parse().unwrap(), 1);
            let peer = Peer::new(addr, false);
            let value = |line: &&str| HeaderValue::from_bytes(line.as_bytes()).unwrap();
            let lines = lines.iter().map(|line| (FORWARDED_FOR, value(line)));
            proxies.client(&peer, &lines.collect::<http::HeaderMap>()).to_string()
        };
        for (peer, lines, expected) in [
            ("10.0.0.9", &["192.0.2.1"][..], "192.0.2.1"),
            ("::ffff:10.0.0.9", &["192.0.2.1"], "192.0.2.1"),
            ("fd00::9", &["2001:db8::1"], "2001:db8::1"),
            // Entries that the client wrote come first and do not count.
            ("10.0.0.9", &["203.0.113.5, 192.0.2.1"], "192.0.2.1"),
            ("10.0.0.9", &["203.0.113.5", "192.0.2.1"], "192.0.2.1"),
            // Through two of ours.
            ("10.0.0.9", &["192.0.2.1, 10.0.0.8"], "192.0.2.1"),
            ("10.0.0.9", &["who knows"], "0.0.0.0"),
            ("10.0.0.9", &["192.0.2.1", "who knows"], "0.0.0.0"),
            ("10.0.0.9", &["192.0.2.1, who knows, 10.0.0.8"], "0.0.0.0"),
            ("10.0.0.9", &["192.0.2.1:80"], "0.0.0.0"),
            ("10.0.0.9", &[""], "0.0.0.0"),
            ("10.0.0.9", &["192.0.2.1", "\u{e9}"], "0.0.0.0"),
            // Headers of a client that is no trusted proxy do not count.
            ("192.0.2.77", &["who knows"], "192.0.2.77"),
            ("10.0.0.9", &[], "10.0.0.9"),
            ("192.0.2.77", &["192.0.2.1"], "192.0.2.77"),
        ] {
            assert_eq!(client(&proxies, peer, lines), expected, "{peer} {lines:?}");
        }
        assert_eq!(client(&Proxies::default(), "10.0.0.9", &["192.0.2.1"]), "10.0.0.9");
    }

    #[test]
    fn wrapped_loopback_is_loopback() {
        for (addr, expected) in [
            ("127.0.0.1:1", true),
            ("[::1]:1", true),
            ("[::ffff:127.0.0.1]:1", true),
            ("10.0.0.1:1", false),
        ] {
            let peer = Peer::new(addr.parse().unwrap(), false);
            assert_eq!(peer.is_loopback(), expected, "{addr}");
        }
    }
}
