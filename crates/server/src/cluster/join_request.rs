//! A request to join, checked as far as that is possible without the records of the cluster.
//!
//! Nothing in it is believed: the certificate request proves a key, everything else is a claim.

use std::net::IpAddr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hoist_api::Code;
use hoist_api::cluster::{JoinRequest, JoinWithdrawal, PROTOCOL};
use hoist_chassis::certificate_request::CertificateRequest;
use hoist_chassis::failure::Failure;
use hoist_chassis::peer::Peer;
use hoist_cluster::id::{ClusterId, NodeId, Pin};
use hoist_cluster::join_token::{Binding, EXPORTER_BYTES, Proof, TokenId};
use hoist_cluster::membership::{Claims, RequestId};
use hoist_cluster::pre_check::{MAX_CLOCK_SKEW, TOLERATED_CLOCK_SKEW};
use hoist_model::{Arch, Name, Role};
use jiff::{SignedDuration, Timestamp};

use super::inventory_link;
use super::records::ClusterState;

/// Longest text of a fact.
const MAX_TEXT: usize = 255;

#[derive(Debug)]
pub(super) struct CheckedRequest {
    pub(super) node: NodeId,
    pub(super) request: RequestId,
    pub(super) key: Pin,
    pub(super) certificate_request: CertificateRequest,
    /// As it was sent: the proof of a token covers the bytes.
    der: Vec<u8>,
    pub(super) token: Option<PresentedToken>,
    /// The first label of the host name.
    pub(super) name: Name,
    pub(super) hostname: String,
    pub(super) arch: Arch,
    pub(super) claims: Claims,
    pub(super) preferred: Option<Role>,
    pub(super) installed_as: Option<String>,
    pub(super) from: IpAddr,
    /// How far the node's clock is ahead, if it is worth a warning.
    pub(super) skew: Option<SignedDuration>,
}

/// A token as a node presents it, and the connection that its proof has to be valid for.
#[derive(Debug)]
pub(super) struct PresentedToken {
    pub(super) id: TokenId,
    pub(super) proof: Proof,
    exporter: [u8; EXPORTER_BYTES],
}

impl CheckedRequest {
    pub(super) fn check(
        request: JoinRequest,
        state: &ClusterState,
        peer: &Peer,
        now: Timestamp,
    ) -> Result<Self, Failure> {
        check_tls(peer)?;
        check_protocol(request.protocol)?;
        check_cluster(&request.cluster, state)?;
        let skew = check_clock(request.facts.now, now)?;
        let ProvenKey { der, certificate_request, key } =
            ProvenKey::read(&request.certificate_request)?;
        let node = request.node.parse().map_err(|e| invalid("node", &format!("{e}")))?;
        let request_id =
            request.request.parse().map_err(|e| invalid("request", &format!("{e}")))?;
        let token = match &request.token {
            None => None,
            Some(token) => Some(PresentedToken::read(&token.id, &token.proof, peer)?),
        };
        let facts = request.facts;
        let preferred = match &facts.preferred {
            None => None,
            Some(role) => {
                Some(role.parse::<Role>().map_err(|e| invalid("preferred", &format!("{e}")))?)
            }
        };
        let claims =
            Claims { resources: facts.resources, preferred: preferred_role(preferred.as_ref())? };
        Ok(Self {
            node,
            request: request_id,
            key,
            certificate_request,
            der,
            token,
            name: name(&facts.hostname)?,
            hostname: facts.hostname,
            arch: inventory_link::architecture(&facts.architecture),
            claims,
            preferred,
            installed_as: facts.installed_as.filter(|text| text.len() <= MAX_TEXT),
            from: peer.addr.ip().to_canonical(),
            skew,
        })
    }

    /// A node that joins for the first time is named after the key that it proves to have.
    pub(super) fn check_first_key(&self) -> Result<(), Failure> {
        if self.key.to_string() == format!("sha256:{}", self.node) {
            return Ok(());
        }
        Err(invalid("node", "it is not the hash of the key of the certificate request"))
    }

    /// The values that the proof of a token is for.
    pub(super) fn binding<'a>(&'a self, token: &'a PresentedToken) -> Binding<'a> {
        Binding { exporter: &token.exporter, request: &self.der, node: &self.node }
    }
}

/// The withdrawal of a request to join, by the node that made it.
#[derive(Debug)]
pub(super) struct CheckedWithdrawal {
    pub(super) node: NodeId,
    pub(super) request: RequestId,
    pub(super) key: Pin,
}

impl CheckedWithdrawal {
    pub(super) fn check(
        withdrawal: &JoinWithdrawal,
        state: &ClusterState,
        peer: &Peer,
    ) -> Result<Self, Failure> {
        check_tls(peer)?;
        check_cluster(&withdrawal.cluster, state)?;
        let ProvenKey { key, .. } = ProvenKey::read(&withdrawal.certificate_request)?;
        let node = withdrawal.node.parse().map_err(|e| invalid("node", &format!("{e}")))?;
        let request =
            withdrawal.request.parse().map_err(|e| invalid("request", &format!("{e}")))?;
        Ok(Self { node, request, key })
    }
}

/// A key whose holder has signed a certificate request.
struct ProvenKey {
    /// As it was sent.
    der: Vec<u8>,
    certificate_request: CertificateRequest,
    key: Pin,
}

impl ProvenKey {
    fn read(base64: &str) -> Result<Self, Failure> {
        let der = STANDARD
            .decode(base64)
            .map_err(|_| invalid("certificate_request", "it is not base64"))?;
        let certificate_request = CertificateRequest::verify(&der)
            .map_err(|error| invalid("certificate_request", &error.to_string()))?;
        let key: Pin = format!("sha256:{}", certificate_request.spki_sha256())
            .parse()
            .map_err(|_| Failure::new(Code::Internal, "the hash of a key is not one"))?;
        Ok(Self { der, certificate_request, key })
    }
}

impl PresentedToken {
    fn read(id: &str, proof: &str, peer: &Peer) -> Result<Self, Failure> {
        let id = id.parse().map_err(|error| invalid("token.id", &format!("{error}")))?;
        let proof = proof.parse().map_err(|error| invalid("token.proof", &format!("{error}")))?;
        let binding = peer.channel_binding().ok_or_else(|| {
            Failure::new(Code::PlainSecret, "a join token needs TLS 1.3")
                .with_remedy("connect with TLS 1.3, without a proxy in between")
        })?;
        Ok(Self { id, proof, exporter: *binding.as_bytes() })
    }
}

fn check_tls(peer: &Peer) -> Result<(), Failure> {
    if peer.secure {
        return Ok(());
    }
    Err(Failure::new(Code::PlainSecret, "joining needs TLS")
        .with_remedy("use the TLS address of the controller"))
}

fn check_protocol(offered: u32) -> Result<(), Failure> {
    if offered == PROTOCOL {
        return Ok(());
    }
    let detail =
        format!("the node speaks version {offered} of the protocol, the controller {PROTOCOL}");
    Err(Failure::new(Code::ProtocolVersion, detail)
        .with_remedy("install the same version of hoist on both"))
}

fn check_cluster(offered: &str, state: &ClusterState) -> Result<(), Failure> {
    if offered.parse::<ClusterId>() == Ok(state.uid) {
        return Ok(());
    }
    let detail =
        format!("this is the cluster `{}` ({}), not the one asked for", state.name, state.uid);
    Err(Failure::new(Code::JoinRefused, detail)
        .with_remedy("check the address of the controller and the token"))
}

/// The skew, if it is worth a warning. Certificates and tokens would be judged wrongly with more.
fn check_clock(node: Timestamp, now: Timestamp) -> Result<Option<SignedDuration>, Failure> {
    let ahead = node.duration_since(now);
    let skew = ahead.abs();
    if skew > MAX_CLOCK_SKEW {
        let word = if ahead.is_negative() { "behind" } else { "ahead of" };
        let detail = format!(
            "the clock of the node is {} s {word} the clock of the controller, which says {now}",
            skew.as_secs()
        );
        return Err(Failure::new(Code::ClockSkew, detail)
            .with_remedy("set the clocks, for instance by NTP, and try again"));
    }
    Ok((skew > TOLERATED_CLOCK_SKEW).then_some(ahead))
}

/// Host names come from the machine: only a plain name is accepted.
fn name(hostname: &str) -> Result<Name, Failure> {
    let label = hostname.split('.').next().unwrap_or_default();
    let is_plain = hostname.len() <= MAX_TEXT
        && hostname.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(&byte));
    if !is_plain {
        return Err(invalid("facts.hostname", "use letters, digits, dashes and dots"));
    }
    label.parse().map_err(|error| invalid("facts.hostname", &format!("{error}")))
}

/// The planner's own roles are the only ones that a node can ask for.
fn preferred_role(preferred: Option<&Role>) -> Result<Option<hoist_cluster::role::Role>, Failure> {
    let Some(preferred) = preferred else { return Ok(None) };
    let text = serde_json::Value::String(preferred.as_str().to_ascii_lowercase());
    serde_json::from_value(text).map(Some).map_err(|_| {
        invalid("facts.preferred", "a node can ask for monolith, edge, core, data or compute")
    })
}

pub(super) fn invalid(field: &str, message: &str) -> Failure {
    let diagnostic = hoist_diagnostic::Diagnostic::new(format!("$.{field}"), message);
    hoist_api::Problem::new(Code::InvalidBody, format!("`{field}`: {message}"))
        .with_diagnostic(diagnostic)
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_host_names_are_refused() {
        for text in [
            "",
            ".",
            "-a",
            "a/b",
            "../x",
            "a b",
            "a\n",
            "ä",
            "a_b",
            "a\0b",
            &"a".repeat(64),
            "$(id)",
        ] {
            assert!(name(text).is_err(), "{text:?}");
        }
        assert_eq!(name("Web1.example.org").unwrap().as_str(), "web1");
        assert!(name(&format!("web1.{}", "x".repeat(300))).is_err());
    }

    #[test]
    fn clocks_may_differ_by_five_minutes() {
        let now = Timestamp::from_second(1_000_000).unwrap();
        let skew = |seconds: i64| {
            check_clock(now + SignedDuration::from_secs(seconds), now)
                .map(|skew| skew.map(|skew| skew.as_secs()))
                .map_err(|failure| failure.problem().code.clone())
        };
        assert_eq!(skew(30), Ok(None));
        assert_eq!(skew(-31), Ok(Some(-31)));
        assert_eq!(skew(300), Ok(Some(300)));
        assert_eq!(skew(301), Err(Code::ClockSkew));
        assert_eq!(skew(-600), Err(Code::ClockSkew));
    }

    #[test]
    fn nodes_ask_for_roles_of_the_planner_only() {
        let ask = |text: &str| preferred_role(Some(&text.parse().unwrap()));
        assert_eq!(ask("Data").unwrap(), Some(hoist_cluster::role::Role::Data));
        assert!(ask("login").is_err());
    }
}
