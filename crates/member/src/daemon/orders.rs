//! Which orders of a controller count: those of this cluster, and none that are older than the last
//! ones.

use hoist_api::cluster::MemberOrders;
use hoist_cluster::id::ClusterId;

use crate::state::RoleFile;

/// Why orders are ignored.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OrdersRefusal {
    #[error("the controller is of cluster {0}, not of the cluster of this member")]
    OtherCluster(String),
    #[error(
        "the controller has plan {theirs}, and this member works by plan {ours}; the older plan is \
         ignored"
    )]
    OlderPlan { ours: u64, theirs: u64 },
}

/// The role by new orders. The caller stores it if it differs from the one before.
pub fn accept_orders(
    cluster: ClusterId,
    last: Option<&RoleFile>,
    orders: &MemberOrders,
) -> Result<RoleFile, OrdersRefusal> {
    if orders.cluster.uid.parse() != Ok(cluster) {
        return Err(OrdersRefusal::OtherCluster(orders.cluster.uid.clone()));
    }
    let ours = last.map_or(0, |last| last.plan_generation);
    if orders.plan_generation < ours {
        return Err(OrdersRefusal::OlderPlan { ours, theirs: orders.plan_generation });
    }
    Ok(RoleFile {
        cluster,
        plan_generation: orders.plan_generation,
        role: orders.role.clone(),
        scale: orders.scale.clone(),
        members: orders.members,
        draining: orders.draining,
        stale_since: None,
    })
}

#[cfg(test)]
mod tests {
    use hoist_api::cluster::{Hello, PROTOCOL};
    use jiff::Timestamp;

    use super::*;

    fn orders(cluster: ClusterId, plan_generation: u64) -> MemberOrders {
        MemberOrders {
            cluster: Hello {
                name: "lab".parse().unwrap(),
                uid: cluster.to_string(),
                protocol: PROTOCOL,
                now: Timestamp::UNIX_EPOCH,
            },
            plan_generation,
            role: Some("edge".to_owned()),
            scale: "small".to_owned(),
            members: 2,
            report_after_seconds: 5,
            draining: false,
        }
    }

    #[test]
    fn older_plans_and_other_clusters_are_refused() {
        let cluster = ClusterId::from_random([1; 16]);
        let role = accept_orders(cluster, None, &orders(cluster, 7)).unwrap();
        assert_eq!((role.plan_generation, role.role.as_deref()), (7, Some("edge")));
        let stale = RoleFile { stale_since: Some(Timestamp::UNIX_EPOCH), ..role.clone() };
        assert_eq!(accept_orders(cluster, Some(&stale), &orders(cluster, 7)), Ok(role.clone()));
        assert_eq!(
            accept_orders(cluster, Some(&role), &orders(cluster, 6)),
            Err(OrdersRefusal::OlderPlan { ours: 7, theirs: 6 })
        );
        let other = ClusterId::from_random([2; 16]);
        let refused = accept_orders(cluster, Some(&role), &orders(other, 9)).unwrap_err();
        assert_eq!(refused, OrdersRefusal::OtherCluster(other.to_string()));
    }
}
