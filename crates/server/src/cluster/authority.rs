//! The authority of the cluster in this controller's data directory, if it has one.

use std::sync::Arc;

use arc_swap::ArcSwap;
use hoist_api::Code;
use hoist_chassis::ca::Ca;
use hoist_chassis::cluster_authority::{ClusterAuthority, ClusterAuthorityError};
use hoist_chassis::failure::Failure;
use hoist_cluster::id::ClusterId;
use hoist_diagnostic::chain;

use super::records::ClusterState;

#[derive(Debug)]
pub(super) struct Authority(ArcSwap<Files>);

#[derive(Debug)]
enum Files {
    Absent,
    Opened(Arc<ClusterAuthority>),
    /// They are there, and cannot be used: they are never taken for absent.
    Unusable {
        reason: String,
    },
}

impl Authority {
    pub(super) fn open(ca: &Ca) -> Self {
        let files = match ClusterAuthority::open(ca) {
            Ok(None) => Files::Absent,
            Ok(Some(authority)) => Files::Opened(Arc::new(authority)),
            Err(error) => {
                let reason = chain(&error);
                tracing::error!(error = reason, "no member can get a certificate");
                Files::Unusable { reason }
            }
        };
        Self(ArcSwap::from_pointee(files))
    }

    /// The authority that signs for the cluster of the store.
    pub(super) fn issuer(&self, state: &ClusterState) -> Result<Arc<ClusterAuthority>, Failure> {
        let detail = match &**self.0.load() {
            Files::Opened(authority) if authority.uid() == state.uid.to_string() => {
                return Ok(Arc::clone(authority));
            }
            Files::Opened(_) => "this controller has the authority of another cluster".to_owned(),
            Files::Absent => "another controller has the authority of the cluster".to_owned(),
            Files::Unusable { reason } => {
                format!("the authority of the cluster cannot be used: {reason}")
            }
        };
        let remedy = match state.authority.as_slice() {
            [] => "send the request to the controller that founded the cluster".to_owned(),
            urls => format!("send the request to {}", urls.join(" or ")),
        };
        Err(Failure::new(Code::NotAuthority, detail).with_remedy(remedy))
    }

    pub(super) fn can_issue(&self, state: &ClusterState) -> bool {
        self.issuer(state).is_ok()
    }

    /// The id of the cluster that this data directory has the authority of. A founding that did not
    /// end left one, and the next founding goes on with it.
    pub(super) fn uid(&self) -> Result<Option<ClusterId>, Failure> {
        match &**self.0.load() {
            Files::Absent => Ok(None),
            Files::Opened(authority) => Ok(authority.uid().parse().ok()),
            Files::Unusable { reason } => Err(Failure::new(Code::Conflict, reason.clone())
                .with_remedy("restore `ca/cluster.key` and `ca/cluster.pem` from a backup")),
        }
    }

    /// Makes the authority of a new cluster.
    pub(super) async fn create(&self, ca: &Arc<Ca>, uid: ClusterId) -> Result<(), Failure> {
        let ca = Arc::clone(ca);
        // It waits for the disk.
        let creating =
            tokio::task::spawn_blocking(move || ClusterAuthority::create(&ca, &uid.to_string()));
        let created = creating
            .await
            .map_err(|_| Failure::new(Code::Internal, "the authority could not be made"))?;
        let authority = created.map_err(|error| create_failure(&error))?;
        self.0.store(Arc::new(Files::Opened(Arc::new(authority))));
        Ok(())
    }
}

fn create_failure(error: &ClusterAuthorityError) -> Failure {
    let failure = Failure::new(Code::Conflict, chain(error));
    match error {
        ClusterAuthorityError::RootAway { .. } => failure.with_remedy(
            "found the cluster on the controller that has `ca/root.key`, or put the key back for \
             the time of founding",
        ),
        _ => failure.with_remedy("nothing was changed; correct the cause and try again"),
    }
}
