//! The certificates of members: issued once for each serial, and stored.

use std::sync::Arc;

use hoist_api::Code;
use hoist_chassis::certificate_request::CertificateRequest;
use hoist_chassis::cluster_authority::{ClusterAuthority, MemberSubject};
use hoist_chassis::failure::Failure;
use hoist_cluster::id::NodeId;
use hoist_cluster::membership::{Member, MembershipRefusal};
use hoist_diagnostic::chain;
use jiff::{SignedDuration, Timestamp};

use super::Cluster;
use super::failure::of_membership;
use super::records::{RecordChange, StoredCertificate};
use super::view::Write;

/// A member renews when so much of its certificate is left. From then on the same key gets another
/// certificate too.
const RENEWED_BEFORE: SignedDuration = SignedDuration::from_hours(30 * 24);

/// A member that was off for longer has to join as a new node.
const REJOIN_WINDOW: SignedDuration = SignedDuration::from_hours(365 * 24);

impl StoredCertificate {
    /// Whether the same key should get another certificate.
    pub(super) fn is_due(&self, now: Timestamp) -> bool {
        self.ends < now + RENEWED_BEFORE
    }

    /// A node that was off proves by its key who it is, for a limited time.
    pub(super) fn check_rejoin(&self, now: Timestamp) -> Result<(), Failure> {
        if now.duration_since(self.ends) < REJOIN_WINDOW {
            return Ok(());
        }
        let detail = format!("the certificate of this member ended at {}", self.ends);
        Err(Failure::new(Code::JoinRefused, detail).with_remedy(
            "expel the member, run `hoist identity reset` on the node, and join with a new token",
        ))
    }
}

impl Cluster {
    /// The certificate of a member for its present serial: the stored one, or a new one. The
    /// acceptance must be durable; `request` must have the member's present key.
    pub(super) async fn certificate(
        &self,
        node: NodeId,
        request: &CertificateRequest,
        authority: &ClusterAuthority,
    ) -> Result<Arc<StoredCertificate>, Failure> {
        let now = self.chassis.clock.now();
        self.view
            .write(None, |snapshot| {
                let member = snapshot.member(node).filter(|member| member.may_connect());
                let member =
                    member.ok_or_else(|| of_membership(&MembershipRefusal::NotMember(node)))?;
                if let Some(stored) = snapshot.certificate(member) {
                    return Ok(Write { changes: Vec::new(), result: Arc::clone(stored) });
                }
                let issued = Arc::new(issue(member, request, authority, now)?);
                let change = RecordChange::Certificate(node, Arc::clone(&issued));
                Ok(Write { changes: vec![change], result: issued })
            })
            .await
    }
}

fn issue(
    member: &Member,
    request: &CertificateRequest,
    authority: &ClusterAuthority,
    now: Timestamp,
) -> Result<StoredCertificate, Failure> {
    let registration = &member.registration;
    // Another request of the same node was faster, with another key.
    if registration.key.to_string() != format!("sha256:{}", request.spki_sha256()) {
        return Err(of_membership(&MembershipRefusal::OtherKey { node: registration.node }));
    }
    let node = registration.node.to_string();
    let subject = MemberSubject {
        node: &node,
        common_name: registration.name.as_str(),
        serial: member.serial,
    };
    let issued = authority.issue(request, &subject, now).map_err(|error| {
        tracing::error!(error = %chain(&error), "no certificate for a member");
        Failure::new(Code::NotAuthority, chain(&error))
            .with_remedy("correct the authority of the cluster, and send the request again")
    })?;
    Ok(StoredCertificate { serial: issued.serial, chain: issued.chain_pem, ends: issued.not_after })
}
