//! `/inventory/v1`: nodes, groups, partitions and networks over HTTP.
//!
//! Reads answer from one roster and never touch the store. Writes go through the registry, which
//! makes them durable together with their audit entry before they are answered.

pub(crate) mod etag;
mod import;
mod maintenance;
mod members;
mod nodes;
mod refusal;
mod snapshots;
mod status;
mod watch;
mod write;

use std::sync::Arc;
use std::time::Instant;

use hoist_api::admin::{Context, Verb};
use hoist_api::inventory::{
    ApplyResult, DeleteRequest, Group, ImportReport, ImportRequest, Listing, MaintainRequest,
    NetworkObject, Node, NodeList, PartitionObject, ProtectRequest, ReleaseRequest, RenewRequest,
    Status, SwapRequest,
};
use hoist_model::NodeState;
use hoist_site::{Registry, Roster, States};
use rustls_pki_types::CertificateDer;

use crate::node_lookup::complete_roster;
use crate::site::{Site, Source};
use hoist_chassis::Chassis;
use hoist_chassis::failure::Failure;
use hoist_chassis::route::{AccessClass, Route, with_state};

pub use import::{SourceConfig, committer};
pub(crate) use maintenance::end_expired;
pub(crate) use nodes::{bad_parameter, bind};
pub(crate) use refusal::write_failure;
pub(crate) use status::STALE_AFTER;
pub(crate) use write::{WriteQuery, read_documents};

/// A bulk change is read line by line, so this bounds time, not memory.
pub(crate) const MAX_APPLY_BYTES: usize = 4 << 30;

const NDJSON: &str = "application/x-ndjson";

/// State shared by the handlers.
#[derive(Debug, Clone)]
pub struct Inventory {
    chassis: Chassis,
    registry: Registry,
    states: States,
    snapshots: Arc<snapshots::Snapshots>,
    source: Option<Source>,
    import_authorities: Vec<CertificateDer<'static>>,
    backend: &'static str,
    started: Instant,
}

/// Everything that the inventory needs besides the chassis.
#[derive(Debug)]
pub struct Dependencies {
    pub site: Site,
    /// The only authorities trusted for sources that an import names.
    pub import_authorities: Vec<CertificateDer<'static>>,
}

impl Inventory {
    pub fn new(chassis: &Chassis, dependencies: Dependencies) -> Self {
        let Dependencies { site, import_authorities } = dependencies;
        let Site { registry, states, source, backend, started, .. } = site;
        Self {
            chassis: chassis.clone(),
            registry,
            states,
            snapshots: Arc::default(),
            source,
            import_authorities,
            backend,
            started,
        }
    }

    fn roster(&self) -> Arc<Roster> {
        self.registry.roster()
    }

    /// The roster, for answers that say that a node does not exist.
    fn complete_roster(&self) -> Result<Arc<Roster>, Failure> {
        complete_roster(&self.registry)
    }
}

const READ: AccessClass = AccessClass::Admin { context: Context::Inventory, verb: Verb::Read };
const WRITE: AccessClass = AccessClass::Admin { context: Context::Inventory, verb: Verb::Write };

/// All routes of the inventory.
pub fn routes(inventory: &Inventory) -> Vec<Route> {
    let mut routes = node_routes();
    routes.extend(detail_routes());
    routes.extend(set_routes());
    routes.extend(bulk_routes());
    with_state(routes, inventory)
}

fn node_routes() -> Vec<Route<Inventory>> {
    vec![
        Route::get("/inventory/v1/nodes", READ, nodes::list)
            .summary("Nodes: a page, a stream (NDJSON) or a watch")
            .query("selector", "which nodes; all by default")
            .query("fields", "only these members, separated by commas")
            .query("limit", "most nodes in one page")
            .query("continue", "where the last page ended")
            .flag("state", "with the last seen state of each node")
            .flag("watch", "stream what changes after `since`")
            .query("since", "`since` of the last listing, bookmark or poll")
            .query("wait", "with `since`: answer when something changed, or after this long")
            .streaming()
            .selective()
            .gives::<NodeList>(200)
            .gives_media(200, NDJSON)
            .gives_nothing(304),
        Route::post("/inventory/v1/nodes", WRITE, write::create_node)
            .summary("Create a node")
            .flag("dry_run", "change nothing, say what would change")
            .takes::<Node>()
            .gives::<Node>(201)
            .selective(),
        Route::get("/inventory/v1/nodes/{id}", READ, nodes::get)
            .summary("One node by its id")
            .flag("state", "with its last seen state")
            .gives::<Node>(200)
            .gives_nothing(304)
            .selective(),
        Route::put("/inventory/v1/nodes/{id}", WRITE, write::put_node)
            .summary("Replace the declaration of a node")
            .flag("dry_run", "change nothing, say what would change")
            .query("affects", "how many nodes the change may affect")
            .takes::<Node>()
            .gives::<Node>(200)
            .selective(),
        Route::delete("/inventory/v1/nodes/{id}", WRITE, write::delete_node)
            .summary("Remove a node")
            .flag("dry_run", "change nothing, say what would change")
            .gives::<ApplyResult>(200)
            .selective(),
        Route::get("/inventory/v1/nodes/by/{key}/{value}", READ, nodes::get_by)
            .summary("One node by name, mac, xname, nid, ip or uuid")
            .flag("state", "with its last seen state")
            .query("network", "with an `ip`: the network of the address")
            .gives::<Node>(200)
            .gives_nothing(304)
            .selective(),
        Route::put("/inventory/v1/nodes/by/{key}/{value}", WRITE, write::put_node_by)
            .summary("Create or replace the node with this key")
            .flag("dry_run", "change nothing, say what would change")
            .query("affects", "how many nodes the change may affect")
            .takes::<Node>()
            .gives::<Node>(200)
            .gives::<Node>(201)
            .selective(),
    ]
}

fn detail_routes() -> Vec<Route<Inventory>> {
    vec![
        Route::get("/inventory/v1/nodes/{id}/state", READ, nodes::get_state)
            .summary("The observed state of a node")
            .gives::<NodeState>(200)
            .selective(),
        Route::put("/inventory/v1/nodes/{id}/state", WRITE, write::put_state)
            .summary("Report the observed state of a node; makes no revision")
            .takes::<NodeState>()
            .gives::<NodeState>(200)
            .selective(),
        Route::put("/inventory/v1/nodes/{id}/protection", WRITE, write::protect)
            .summary("Protect a node against wiping, power control, reinstallation and removal")
            .flag("dry_run", "change nothing")
            .takes::<ProtectRequest>()
            .gives::<Node>(200)
            .selective(),
        Route::delete("/inventory/v1/nodes/{id}/protection", WRITE, write::unprotect)
            .summary("End the protection of a node")
            .flag("dry_run", "change nothing")
            .gives::<Node>(200)
            .selective(),
        Route::put("/inventory/v1/nodes/{id}/maintenance", WRITE, write::maintain)
            .summary("Start the maintenance of a node")
            .flag("dry_run", "change nothing")
            .takes::<MaintainRequest>()
            .gives::<Node>(200)
            .selective(),
        Route::delete("/inventory/v1/nodes/{id}/maintenance", WRITE, write::end_maintenance)
            .summary("End the maintenance of a node")
            .flag("dry_run", "change nothing")
            .gives::<Node>(200)
            .selective(),
        Route::put("/inventory/v1/nodes/{id}/released", WRITE, write::release)
            .summary("Release fields of an imported node from its source")
            .flag("dry_run", "change nothing")
            .takes::<ReleaseRequest>()
            .gives::<Node>(200)
            .selective(),
        Route::post("/inventory/v1/nodes/{id}/swap", WRITE, write::swap)
            .summary("Change the hardware identity of a node whose machine was replaced")
            .flag("dry_run", "change nothing")
            .takes::<SwapRequest>()
            .gives::<Node>(200)
            .selective(),
    ]
}

fn set_routes() -> Vec<Route<Inventory>> {
    vec![
        Route::get("/inventory/v1/groups", READ, members::list_groups)
            .summary("All groups with their members")
            .gives::<Listing<Group>>(200)
            .selective(),
        Route::get("/inventory/v1/groups/{partition}/{name}", READ, members::get_group)
            .summary("One group with its members")
            .gives::<Group>(200)
            .selective(),
        Route::put("/inventory/v1/groups/{partition}/{name}", WRITE, write::put_group)
            .summary("Create or replace a group")
            .flag("dry_run", "change nothing")
            .query("affects", "how many nodes the change may affect")
            .takes::<Group>()
            .gives::<Group>(200)
            .selective(),
        Route::delete("/inventory/v1/groups/{partition}/{name}", WRITE, write::delete_group)
            .summary("Remove a group; its nodes leave it")
            .flag("dry_run", "change nothing")
            .query("affects", "how many nodes the change may affect")
            .gives::<ApplyResult>(200)
            .selective(),
        Route::get("/inventory/v1/partitions", READ, members::list_partitions)
            .summary("All partitions")
            .gives::<Listing<PartitionObject>>(200)
            .selective(),
        Route::get("/inventory/v1/partitions/{name}", READ, members::get_partition)
            .summary("One partition")
            .gives::<PartitionObject>(200)
            .selective(),
        Route::put("/inventory/v1/partitions/{name}", WRITE, write::put_partition)
            .summary("Create or replace a partition")
            .flag("dry_run", "change nothing")
            .query("affects", "how many nodes the change may affect")
            .takes::<PartitionObject>()
            .gives::<PartitionObject>(200),
        Route::delete("/inventory/v1/partitions/{name}", WRITE, write::delete_partition)
            .summary("Remove a partition that no node is in")
            .flag("dry_run", "change nothing")
            .gives::<ApplyResult>(200),
        Route::get("/inventory/v1/networks", READ, members::list_networks)
            .summary("All networks")
            .gives::<Listing<NetworkObject>>(200)
            .selective(),
        Route::get("/inventory/v1/networks/{name}", READ, members::get_network)
            .summary("One network")
            .gives::<NetworkObject>(200)
            .selective(),
        Route::put("/inventory/v1/networks/{name}", WRITE, write::put_network)
            .summary("Create or replace a network")
            .flag("dry_run", "change nothing")
            .takes::<NetworkObject>()
            .gives::<NetworkObject>(200),
        Route::delete("/inventory/v1/networks/{name}", WRITE, write::delete_network)
            .summary("Remove a network that no interface is on")
            .flag("dry_run", "change nothing")
            .gives::<ApplyResult>(200),
    ]
}

fn bulk_routes() -> Vec<Route<Inventory>> {
    vec![
        Route::post("/inventory/v1/apply", WRITE, write::apply)
            .summary("Apply documents (YAML, JSON or NDJSON) in one transaction")
            .flag("dry_run", "change nothing, say what would change")
            .query("affects", "how many nodes the change may affect")
            .query("set", "remember the documents under this name")
            .flag("prune", "remove what the set contained before and does not any more")
            .body_limit(MAX_APPLY_BYTES)
            .streaming()
            .gives::<ApplyResult>(200)
            .selective(),
        Route::post("/inventory/v1/delete", WRITE, write::delete)
            .summary("Remove documents in one transaction")
            .flag("dry_run", "change nothing, say what would change")
            .query("affects", "how many nodes the change may affect")
            .takes::<DeleteRequest>()
            .gives::<ApplyResult>(200)
            .selective(),
        Route::post("/inventory/v1/renew", WRITE, write::renew)
            .summary("Start the next generation of nodes: their tokens end, and cloud-init sees a new instance")
            .flag("dry_run", "change nothing, say what would change")
            .query("affects", "how many nodes the change may affect")
            .takes::<RenewRequest>()
            .gives::<ApplyResult>(200)
            .selective(),
        Route::get("/inventory/v1/export", READ, members::export)
            .summary("All declared documents, one per line")
            .query("selector", "only these nodes, and nothing else")
            .streaming()
            .gives_media(200, NDJSON)
            .selective(),
        Route::post("/inventory/v1/refresh", WRITE, import::refresh)
            .summary("Import from the configured source now")
            .flag("force", "remove nodes that are gone from the source, however many they are")
            .streaming()
            .gives::<ImportReport>(200),
        Route::post("/inventory/v1/import", WRITE, import::import)
            .summary("Run one import cycle from the source named in the body")
            .takes::<ImportRequest>()
            .streaming()
            .gives::<ImportReport>(200),
        Route::get("/inventory/v1/status", READ, status::get)
            .summary("The roster revision and its age")
            .gives::<Status>(200)
            .selective(),
    ]
}
