//! Members of a cluster: their certificates, and their present rights.
//!
//! A certificate says who a member is and nothing about its rights. Whether it still is a member,
//! and of which node it is the agent, is asked of [`Members`] for every request.
//!
//! Does not belong here: issuing certificates (`cluster_authority`), and the membership itself.

use std::fmt;

use axum::extract::FromRequestParts;
use hoist_api::Code;
use hoist_api::admin::{Context, Verb};
use hoist_api::cluster::MembershipEnd;
use hoist_model::{Name, Selector};
use http::request::Parts;
use jiff::Timestamp;
use rustls_pki_types::CertificateDer;
use tokio::sync::watch;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};
use x509_parser::x509::X509Name;

use crate::failure::Failure;
use crate::principal::{Caller, Grant, Principal};

/// The organisation in the subject of every cluster authority. Nothing else that the root signs may
/// have it: together with the uid it is the right to name members of that cluster.
pub(crate) const CLUSTER_ORGANISATION: &str = "hoist cluster";

const SCHEME: &str = "hoist://";

/// Longest uid of a cluster or id of a node, in bytes: a SHA-256 in hexadecimal digits fits.
const MAX_ID: usize = 64;

/// The membership of the cluster. Reads memory only: it is asked for every request of a member.
pub trait Members: Send + Sync + fmt::Debug {
    /// The present rights of the member.
    fn find(&self, cluster: &str, node: &str, serial: u64) -> Result<MemberGrant, NotAdmitted>;

    /// The membership generation. Every change of an answer of [`Members::find`] must be followed
    /// by a new value: open streams and waiting requests of members are checked again then. They
    /// end when the sender is dropped.
    fn generation(&self) -> watch::Receiver<u64>;
}

/// Why a member is not admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotAdmitted {
    /// The membership is not known yet: the same request may be admitted later.
    NotLoaded,
    /// The node was a member, and is none any more.
    Ended(MembershipEnd),
    /// The node is unknown, or its certificate has an older serial than the current one.
    Unknown,
}

/// The membership of a server without a cluster: it knows no member.
#[derive(Debug)]
pub(crate) struct NoMembers;

impl Members for NoMembers {
    fn find(&self, _: &str, _: &str, _: u64) -> Result<MemberGrant, NotAdmitted> {
        Err(NotAdmitted::Unknown)
    }

    fn generation(&self) -> watch::Receiver<u64> {
        watch::Sender::new(0).subscribe()
    }
}

/// The rights of a member besides its own membership.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberGrant {
    /// The node of the inventory whose agent the member is: it gets `write` in the context `agent`
    /// for this node. Without one, only routes for members are open to it.
    pub inventory_node: Option<Name>,
    /// The membership generation that this answer was read from.
    pub generation: u64,
}

/// The URI that is the only name in a member's certificate: `hoist://<cluster uid>/node/<node id>`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberUri {
    cluster: String,
    node: String,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not an id; ids of clusters and nodes have 1 to {MAX_ID} lower-case letters, digits \
     and hyphens"
)]
pub struct IdError(String);

impl MemberUri {
    pub fn new(cluster: &str, node: &str) -> Result<Self, IdError> {
        check_id(cluster)?;
        check_id(node)?;
        Ok(Self { cluster: cluster.to_owned(), node: node.to_owned() })
    }

    fn parse(text: &str) -> Option<Self> {
        let (cluster, node) = text.strip_prefix(SCHEME)?.split_once("/node/")?;
        Self::new(cluster, node).ok()
    }
}

impl fmt::Display for MemberUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}/node/{}", self.cluster, self.node)
    }
}

pub(crate) fn check_id(text: &str) -> Result<(), IdError> {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let is_id = (1..=MAX_ID).contains(&text.len()) && text.bytes().all(is_plain);
    if is_id { Ok(()) } else { Err(IdError(text.chars().take(MAX_ID).collect())) }
}

/// The certificate that a member has authenticated with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberCertificate {
    pub cluster: String,
    pub node: String,
    pub serial: u64,
    pub not_after: Timestamp,
}

impl MemberCertificate {
    /// Reads the certificates that a client presented, which TLS has verified to chain to `root`.
    /// `None` when they are not a member's.
    ///
    /// A member presents exactly two: its own, and that of the cluster authority. A client may
    /// present any certificates besides those of its chain, so the chain is known only when there
    /// is one way through them: the root does not issue the first, and so the second is the
    /// authority whose signature TLS has verified.
    pub(crate) fn read(
        presented: &[CertificateDer<'_>],
        root: &CertificateDer<'_>,
    ) -> Option<Self> {
        let [leaf, authority] = presented else { return None };
        let (_, leaf) = X509Certificate::from_der(leaf).ok()?;
        let (_, authority) = X509Certificate::from_der(authority).ok()?;
        let (_, root) = X509Certificate::from_der(root).ok()?;
        let is_under_authority = leaf.issuer().as_raw() == authority.subject().as_raw();
        let is_under_root = authority.issuer().as_raw() == root.subject().as_raw();
        let is_root = authority.subject().as_raw() == root.subject().as_raw();
        if !is_under_authority || !is_under_root || is_root {
            return None;
        }
        let uri = only_uri(&leaf)?;
        if cluster_of(authority.subject())? != uri.cluster {
            return None;
        }
        let digits = leaf.raw_serial();
        let digits = digits.strip_prefix(&[0]).unwrap_or(digits);
        if digits.len() > size_of::<u64>() {
            return None;
        }
        let serial = digits.iter().fold(0, |serial, digit| serial << 8 | u64::from(*digit));
        let not_after = Timestamp::from_second(leaf.validity().not_after.timestamp()).ok()?;
        Some(Self { cluster: uri.cluster, node: uri.node, serial, not_after })
    }
}

/// The URI in a certificate that has no other name.
fn only_uri(certificate: &X509Certificate<'_>) -> Option<MemberUri> {
    let names = certificate.subject_alternative_name().ok()??;
    match names.value.general_names.as_slice() {
        [GeneralName::URI(uri)] => MemberUri::parse(uri),
        _ => None,
    }
}

/// The uid in the subject of a cluster authority.
pub(crate) fn cluster_of<'a>(subject: &'a X509Name<'_>) -> Option<&'a str> {
    let mut organisations = subject.iter_organization();
    let mut names = subject.iter_common_name();
    let (Some(organisation), None) = (organisations.next(), organisations.next()) else {
        return None;
    };
    let (Some(name), None) = (names.next(), names.next()) else { return None };
    let is_cluster = organisation.as_str().ok()? == CLUSTER_ORGANISATION;
    is_cluster.then(|| name.as_str().ok()).flatten()
}

/// A member that the membership has admitted: an extractor of the routes that members call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    pub certificate: MemberCertificate,
    pub grant: MemberGrant,
}

impl Member {
    pub(crate) fn principal(&self) -> Principal {
        let MemberCertificate { cluster, node, not_after, .. } = self.certificate.clone();
        let grants: Vec<_> = self.grant.inventory_node.iter().map(agent_of).collect();
        Principal::new(Caller::Member { cluster, node }, grants).until(Some(not_after))
    }
}

/// The right of a node's agent.
fn agent_of(node: &Name) -> Grant {
    Grant {
        verbs: vec![Verb::Write],
        contexts: vec![Context::Agent],
        selector: Some(Selector::node(node)),
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Member {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Failure> {
        parts.extensions.get::<Self>().cloned().ok_or_else(|| {
            Failure::new(Code::Forbidden, "this request needs a member certificate")
                .with_remedy("present the certificate that the cluster issued, and no token")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn member_uris_parse_to_themselves() {
        let uri = MemberUri::new("c0ffee", &"ab".repeat(32)).unwrap();
        assert_eq!(uri.to_string(), format!("hoist://c0ffee/node/{}", "ab".repeat(32)));
        assert_eq!(MemberUri::parse(&uri.to_string()), Some(uri));
    }

    #[test]
    fn other_uris_are_no_members() {
        for text in [
            "",
            "hoist://c0ffee",
            "hoist://c0ffee/node/",
            "hoist:///node/n1",
            "hoist://c0ffee/node/n1/node/n2",
            "hoist://c0ffee/node/N1",
            "hoist://c0ffee/node/n1?x",
            "hoist://c0ffee/operator/n1",
            "https://c0ffee/node/n1",
        ] {
            assert_eq!(MemberUri::parse(text), None, "{text}");
        }
        assert!(MemberUri::new("c0ffee", &"a".repeat(MAX_ID + 1)).is_err());
    }
}
