//! Where a request came from: request extensions that the listener sets.

use std::convert::Infallible;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::extract::FromRequestParts;
use http::HeaderValue;
use http::request::Parts;
use rustls_pki_types::CertificateDer;

use crate::failure::Failure;
use crate::secret;

/// The other end of the connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    pub addr: SocketAddr,
    /// Over TLS.
    pub secure: bool,
    /// What the client presented, leaf first; verified to be of this site. Empty without one.
    pub certificates: Arc<[CertificateDer<'static>]>,
}

/// What stood in front of the path and was taken away: gateways route BSS by a prefix, and its
/// clients know both forms. URLs that a node is to ask next have to carry it again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GatewayPrefix(&'static str);

/// Ties an answer to the log lines about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestId(HeaderValue);

/// Longest request id we take from a client.
const MAX_REQUEST_ID: usize = 64;

impl Peer {
    /// From this very machine. An IPv4 address may come wrapped in IPv6.
    pub fn is_loopback(&self) -> bool {
        self.addr.ip().to_canonical().is_loopback()
    }
}

impl GatewayPrefix {
    /// What `OpenCHAMI`'s gateway puts in front of BSS.
    pub(crate) const BSS: Self = Self("/apis/bss");

    /// Empty, or a path without a slash at its end.
    pub fn as_str(self) -> &'static str {
        self.0
    }
}

impl RequestId {
    /// The client's own id when it is short and plain, else a new one.
    pub(crate) fn accept_or_make(offered: Option<&HeaderValue>) -> Self {
        offered.and_then(Self::accept).unwrap_or_else(|| {
            let made = secret::random_text(16);
            Self(HeaderValue::from_str(&made).expect("letters and digits"))
        })
    }

    /// The client's own id when it is short and plain.
    pub(crate) fn accept(offered: &HeaderValue) -> Option<Self> {
        let plain = (1..=MAX_REQUEST_ID).contains(&offered.len())
            && offered.as_bytes().iter().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(b));
        plain.then(|| Self(offered.clone()))
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
    fn wrapped_loopback_is_loopback() {
        for (addr, expected) in [
            ("127.0.0.1:1", true),
            ("[::1]:1", true),
            ("[::ffff:127.0.0.1]:1", true),
            ("10.0.0.1:1", false),
        ] {
            let peer = Peer { addr: addr.parse().unwrap(), secure: false, certificates: [].into() };
            assert_eq!(peer.is_loopback(), expected, "{addr}");
        }
    }
}
