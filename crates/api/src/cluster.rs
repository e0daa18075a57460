//! Bodies of `/cluster/v1`: founding, join tokens, joining, members and their roles.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

pub use hoist_cluster::membership::MembershipEnd;
use hoist_cluster::planner::{Mode, Reason, RolePlan};
use hoist_cluster::resources::Resources;
use hoist_model::Name;
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Largest request to join; the certificate request is the most of it.
pub const MAX_JOIN_REQUEST: usize = 64 * 1024;

/// The version of the messages between a node and the controller. A node of another version is
/// refused before anything changes.
pub const PROTOCOL: u32 = 1;

/// `POST /cluster/v1/found`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FoundRequest {
    pub name: Name,
    /// Who assigns roles.
    #[serde(default)]
    pub assignment: Assignment,
    /// Move members to where they fit better when another one joins.
    #[serde(default)]
    pub rebalance_on_join: bool,
}

/// Who assigns the roles of the members.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Assignment {
    /// The planner: `monolith`, `edge`, `core`, `data`, `compute`.
    #[default]
    Automatic,
    /// The site, by the role of each node.
    Declared,
}

/// `GET /cluster/v1`: the cluster of this site.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct ClusterStatus {
    pub name: Name,
    /// Random, made when the cluster was founded.
    pub uid: String,
    /// `sha256:…` of the public key of the site's root certificate.
    pub pin: String,
    #[schemars(with = "String")]
    pub founded: Timestamp,
    pub assignment: Assignment,
    pub mode: Mode,
    /// Rises with every change of who is a member.
    pub membership_generation: u64,
    /// Rises with every change of a role.
    pub plan_generation: u64,
    pub scale: String,
    pub counts: MemberCounts,
    /// What an operator should look at.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MemberCounts {
    /// Confirmed members, those that are draining included.
    pub members: usize,
    /// Accepted, and not confirmed by the node yet.
    pub accepted: usize,
    /// Requests that wait for an operator.
    pub pending: usize,
    /// Members that have not reported for a while.
    pub silent: usize,
}

/// A member as it is listed.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct ClusterMember {
    /// The hash of the node's first key.
    pub id: String,
    /// The inventory node that this member is.
    pub node: Name,
    pub state: MemberState,
    pub join_order: u64,
    /// Absent until the first plan with this member.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<String>,
    pub resources: Resources,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preferred: Option<String>,
    #[schemars(with = "String")]
    pub accepted: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub certificate_ends: Option<Timestamp>,
    /// The last report of the node's agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub last_seen: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    /// The plan that the node works by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan_generation: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum MemberState {
    /// Accepted; the node has not confirmed yet.
    Accepted,
    /// Accepted long ago, and never confirmed.
    Stalled,
    Member,
    Draining,
    Left,
    Expelled,
    Replaced,
}

/// `POST /cluster/v1/tokens`.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct JoinTokenRequest {
    /// Seconds that the token is valid; one hour if left out.
    pub ttl_seconds: Option<u64>,
    /// Nodes that may join with it; one if left out.
    pub uses: Option<u32>,
    /// Roles that a node may ask for; every role if empty.
    pub roles: BTreeSet<String>,
    /// Names of nodes, with `*` for any characters.
    pub names: Option<String>,
    /// Networks that requests may come from, as `10.0.0.0/24`.
    pub networks: Vec<String>,
    /// Nodes wait for `hoist cluster accept` in spite of the token.
    pub manual: bool,
}

/// A join token as it is listed: everything but the secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct JoinTokenEntry {
    pub id: String,
    #[schemars(with = "String")]
    pub created: Timestamp,
    #[schemars(with = "String")]
    pub expires: Timestamp,
    pub uses_left: u32,
    /// Nodes that joined with it, by member id.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub used_by: Vec<String>,
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub roles: BTreeSet<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub names: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub networks: Vec<String>,
    pub manual: bool,
    pub revoked: bool,
}

/// The answer to a [`JoinTokenRequest`]: the only time the token is shown.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
pub struct NewJoinToken {
    #[serde(flatten)]
    pub entry: JoinTokenEntry,
    /// `hj1.…`: for a file on the node, never for a command line.
    pub token: String,
}

impl fmt::Debug for NewJoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewJoinToken").field("entry", &self.entry).finish_non_exhaustive()
    }
}

/// `GET /cluster/v1/hello`, open: what a node checks before it sends anything about itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Hello {
    pub name: Name,
    pub uid: String,
    pub protocol: u32,
    /// The clock of the controller.
    #[schemars(with = "String")]
    pub now: Timestamp,
}

/// `POST /cluster/v1/join`, over TLS.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct JoinRequest {
    pub protocol: u32,
    /// Made by the node; a request that is repeated with the same id is the same request.
    pub request: String,
    /// The cluster that the node means to join.
    pub cluster: String,
    /// The hash of the node's first key.
    pub node: String,
    /// PKCS #10, DER, in base64. Its key is the node's key.
    pub certificate_request: String,
    /// The token's id and the proof that the node has its secret. Without them the request waits
    /// for an operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<TokenProof>,
    pub facts: JoinFacts,
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenProof {
    pub id: String,
    /// HMAC-SHA256 over the TLS session, the certificate request and the node id, in hexadecimal
    /// digits.
    pub proof: String,
}

/// What a node says about itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct JoinFacts {
    pub hostname: String,
    pub version: String,
    pub architecture: String,
    pub resources: Resources,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preferred: Option<String>,
    /// The clock of the node when it sent the request.
    #[schemars(with = "String")]
    pub now: Timestamp,
    /// The inventory node that hoist installed this system as.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub installed_as: Option<String>,
}

impl fmt::Debug for JoinRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinRequest")
            .field("request", &self.request)
            .field("node", &self.node)
            .field("facts", &self.facts)
            .finish_non_exhaustive()
    }
}

/// The answer to a [`JoinRequest`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "result", rename_all = "lowercase")]
pub enum JoinAnswer {
    /// Wait for an operator, and send the same request again.
    Pending {
        /// The words that the operator compares.
        fingerprint: String,
        retry_after_seconds: u64,
    },
    Accepted(Box<JoinBundle>),
}

/// Everything that a member needs, made when it is accepted. A repeated request gets the same one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct JoinBundle {
    pub cluster: Hello,
    /// The member's id.
    pub id: String,
    /// The inventory node that the member is.
    pub node: Name,
    pub join_order: u64,
    /// The member's certificate and its intermediate, PEM.
    pub certificate: String,
    /// The root certificates to trust, PEM.
    pub authorities: String,
    /// URLs of controllers.
    pub controllers: Vec<String>,
    #[schemars(with = "String")]
    pub certificate_ends: Timestamp,
}

/// `POST /cluster/v1/confirm`, by the member: it has stored everything and works. And
/// `POST /cluster/v1/withdraw`: it gives up before it has confirmed.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ConfirmRequest {
    pub request: String,
}

/// `POST /cluster/v1/join/withdraw`, over TLS: a node gives up its request to join, or the
/// acceptance that it did not confirm.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct JoinWithdrawal {
    /// The id of the request to join.
    pub request: String,
    pub cluster: String,
    pub node: String,
    /// PKCS #10 with the key of the request to join, DER, in base64.
    pub certificate_request: String,
}

/// `POST /cluster/v1/renew`, by the member.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "CertificateRenewal")]
pub struct RenewRequest {
    /// PKCS #10 with the new key, DER, in base64.
    pub certificate_request: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RenewedCertificate {
    /// The member's certificate and its intermediate, PEM.
    pub certificate: String,
    #[schemars(with = "String")]
    pub certificate_ends: Timestamp,
}

/// `POST /agent/v1/report`, by the member: its health, every few seconds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MemberReport {
    pub version: String,
    pub resources: Resources,
    /// The plan that the node works by; 0 before the first.
    pub plan_generation: u64,
    /// Random, made at each start of the agent. Two live ones mean that a disk was cloned.
    pub session: String,
}

/// The answer to a [`MemberReport`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MemberOrders {
    pub cluster: Hello,
    pub plan_generation: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    pub scale: String,
    pub members: usize,
    /// The next report, in seconds.
    pub report_after_seconds: u64,
    pub draining: bool,
}

/// An entry of `GET /cluster/v1/prometheus-sd`, in the format of Prometheus' HTTP discovery.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PrometheusTarget {
    /// `address:port`.
    pub targets: Vec<String>,
    pub labels: BTreeMap<String, String>,
}

/// A request that waits for an operator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PendingJoin {
    /// The member id to be.
    pub id: String,
    pub hostname: String,
    pub fingerprint: String,
    pub from: IpAddr,
    #[schemars(with = "String")]
    pub since: Timestamp,
    pub resources: Resources,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preferred: Option<String>,
}

/// `POST /cluster/v1/pending/{id}/accept`.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AcceptRequest {
    /// The inventory node that the machine is; by its host name if left out.
    pub node: Option<Name>,
}

/// `POST /cluster/v1/members/{id}/{drain|leave|expel}` and `…/pending/{id}/reject`.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ReasonRequest {
    /// For the audit log.
    pub reason: Option<String>,
}

/// `POST /cluster/v1/replace`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplaceRequest {
    pub old: String,
    /// A pending request or a member.
    pub new: String,
}

/// `PUT /cluster/v1/members/{id}/roles`: what the planner must respect.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RoleWishes {
    pub pin: Option<String>,
    pub forbid: BTreeSet<String>,
}

/// `GET /cluster/v1/plan` and `POST /cluster/v1/plan`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ClusterPlanView {
    pub generation: u64,
    /// The names of the members by id.
    pub names: BTreeMap<String, Name>,
    /// The roles with reasons, moves, and what is missing.
    pub plan: RolePlan,
    /// Roles from the site, which the planner leaves alone, by member id.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub declared: BTreeMap<String, String>,
    /// Members without a role, with the reason.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub held: BTreeMap<String, String>,
    /// Members whose move waits for consent: `POST /cluster/v1/plan?consent=MEMBER`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waiting: Vec<String>,
    /// True if the plan was not stored: a dry run, or no change.
    pub dry_run: bool,
}

/// The reasons for a role, as sentences.
pub fn reason_texts(reasons: &[Reason]) -> Vec<String> {
    reasons.iter().map(ToString::to_string).collect()
}
