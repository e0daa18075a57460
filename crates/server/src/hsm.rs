//! `/hsm/v2`: the inventory as SMD shows it, for reading. Everything comes from one roster; what
//! machines were last seen doing comes from memory too.

mod list;
mod one;
mod service;
mod sets;

use std::sync::Arc;

use axum::response::{IntoResponse, Response};
use hoist_api::Code;
use hoist_api::admin::{Context, Verb};
use hoist_site::smd_view::FilterError;
use hoist_site::{Registry, Roster, States};
use http::Uri;

use crate::authorisation::Sight;
use crate::inventory::etag;
use crate::node_lookup::complete_roster;
use hoist_chassis::Chassis;
use hoist_chassis::failure::Failure;
use hoist_chassis::large_answer::AnswerPermits;
use hoist_chassis::principal::Principal;
use hoist_chassis::route::{AccessClass, Route, with_state};
use hoist_chassis::tasks::Tasks;

/// State shared by the handlers.
#[derive(Debug, Clone)]
pub struct Hsm {
    tasks: Tasks,
    registry: Registry,
    states: States,
    /// Permits for anonymous readers.
    open: AnswerPermits,
    /// Permits for readers with a token, who do not wait for anonymous ones.
    closed: AnswerPermits,
}

/// Open in SMD, unless the site locks it.
const OPEN: AccessClass = AccessClass::Lockable { context: Context::Inventory };
const READ: AccessClass = AccessClass::Admin { context: Context::Inventory, verb: Verb::Read };

const JSON: &str = "application/json";

/// Everything that the view needs besides the chassis.
#[derive(Debug)]
pub struct Dependencies {
    pub registry: Registry,
    pub states: States,
}

impl Hsm {
    pub fn new(chassis: &Chassis, dependencies: Dependencies) -> Self {
        let Dependencies { registry, states } = dependencies;
        Self {
            tasks: chassis.tasks.clone(),
            registry,
            states,
            open: AnswerPermits::default(),
            closed: AnswerPermits::default(),
        }
    }

    fn roster(&self) -> Result<Arc<Roster>, Failure> {
        complete_roster(&self.registry)
    }

    /// Observed states change without a site revision.
    fn tag(&self, roster: &Roster) -> String {
        let incarnation = roster.incarnation().as_str();
        let revision = roster.revision();
        format!("\"{incarnation}.{revision}.{:x}\"", self.states.version())
    }
}

/// All routes of the view.
pub fn routes(hsm: &Hsm) -> Vec<Route> {
    let all = [list_routes(), one_routes(), set_routes(), service_routes()];
    let lenient = all.into_iter().flatten().map(Route::lenient).collect();
    with_state(lenient, hsm)
}

fn list_routes() -> Vec<Route<Hsm>> {
    let components = Route::get("/hsm/v2/State/Components", OPEN, list::components)
        .summary("SMD: all nodes, or those that match the filters")
        .reason(
            "What `/boot/v1/hosts` shows. SMD has it open and coresmd reads it without a token. \
             The filters `group` and `partition` need a token: memberships do",
        )
        .more_for(READ)
        .query("stateonly", "`true`: only state and flag")
        .query("flagonly", "`true`: only the flag")
        .query("roleonly", "`true`: only role and subrole")
        .query("nidonly", "`true`: only the nid");
    let memberships = Route::get("/hsm/v2/memberships", READ, list::memberships)
        .summary("SMD: groups and partition of each node")
        .selective();
    let endpoints =
        Route::get("/hsm/v2/Inventory/ComponentEndpoints", READ, list::component_endpoints)
            .summary("SMD: component endpoints of all nodes")
            .selective();
    let interfaces = Route::get("/hsm/v2/Inventory/EthernetInterfaces", OPEN, list::interfaces)
        .summary("SMD: the interfaces of all nodes and their BMCs, or those that match the filters")
        .reason(
            "MACs and addresses of all nodes and BMCs. SMD has it open and coresmd answers DHCP \
             from it without a token",
        )
        .query("id", "the MAC without colons")
        .query("MACAddress", "the MAC")
        .query("IPAddress", "one of its addresses")
        .query("Network", "the network of one of its addresses")
        .query("ComponentID", "the node or BMC it belongs to")
        .query("Type", "the type of that")
        .query("OlderThan", "last changed before this time")
        .query("NewerThan", "last changed after this time");
    let filtered = [components, memberships, endpoints].map(with_node_filters);
    let all = filtered.into_iter().chain([interfaces]);
    all.map(|route| route.streaming().gives_media(200, JSON).gives_nothing(304)).collect()
}

fn with_node_filters(route: Route<Hsm>) -> Route<Hsm> {
    route
        .query("id", "an xname, or the name of a node without one; `!` before a value negates it")
        .query("nid", "a nid")
        .query("nid_start", "nids from here")
        .query("nid_end", "nids up to here")
        .query("type", "`Node` or `VirtualNode`")
        .query("state", "such as `On`")
        .query("flag", "such as `OK`")
        .query("enabled", "`true` or `false`")
        .query("role", "a role")
        .query("subrole", "a subrole")
        .query("arch", "such as `X86`")
        .query("class", "no node has one")
        .query("subtype", "no node has one")
        .query("softwarestatus", "no node has one")
        .query("group", "a group, or `NULL` for nodes in none")
        .query("partition", "a partition, or `NULL` for nodes in none")
        .query("locked", "`true`: protected nodes")
        .query("reservation_disabled", "no node is")
}

fn one_routes() -> Vec<Route<Hsm>> {
    let all = vec![
        Route::get("/hsm/v2/State/Components/{xname}", READ, one::component)
            .summary("SMD: one node"),
        Route::get("/hsm/v2/State/Components/ByNID/{nid}", READ, one::by_nid)
            .summary("SMD: the node with a nid"),
        Route::get("/hsm/v2/Inventory/EthernetInterfaces/{id}", READ, one::interface)
            .summary("SMD: one interface, by its MAC without colons"),
        Route::get("/hsm/v2/Inventory/EthernetInterfaces/{id}/IPAddresses", READ, one::addresses)
            .summary("SMD: the addresses of one interface"),
        Route::get("/hsm/v2/Inventory/ComponentEndpoints/{xname}", READ, one::component_endpoint)
            .summary("SMD: component endpoint of one node"),
        Route::get("/hsm/v2/memberships/{xname}", READ, one::membership)
            .summary("SMD: groups and partition of one node"),
    ];
    all.into_iter().map(selective).collect()
}

fn set_routes() -> Vec<Route<Hsm>> {
    let all = vec![
        Route::get("/hsm/v2/groups", READ, sets::groups)
            .summary("SMD: all groups with their members")
            .query("group", "only this one")
            .query("tag", "no group has one"),
        Route::get("/hsm/v2/groups/labels", READ, sets::labels)
            .summary("SMD: the names of all groups"),
        Route::get("/hsm/v2/groups/{label}", READ, sets::group)
            .summary("SMD: one group with its members")
            .query("partition", "only members in this partition, or `NULL`"),
        Route::get("/hsm/v2/groups/{label}/members", READ, sets::group_members)
            .summary("SMD: the members of a group")
            .query("partition", "only members in this partition, or `NULL`"),
        Route::get("/hsm/v2/partitions", READ, sets::partitions)
            .summary("SMD: all partitions but the default one, with their members")
            .query("partition", "only this one")
            .query("tag", "no partition has one"),
        Route::get("/hsm/v2/partitions/names", READ, sets::names)
            .summary("SMD: the names of all partitions but the default one"),
        Route::get("/hsm/v2/partitions/{name}", READ, sets::partition)
            .summary("SMD: one partition with its members"),
        Route::get("/hsm/v2/partitions/{name}/members", READ, sets::partition_members)
            .summary("SMD: the members of a partition"),
        Route::get("/hsm/v2/Inventory/RedfishEndpoints", READ, sets::redfish_endpoints)
            .summary("SMD: the known BMCs of the nodes")
            .query("id", "an xname; `!` before a value negates it")
            .query("type", "such as `NodeBMC`")
            .query("fqdn", "the same as the xname")
            .query("macaddr", "its MAC")
            .query("ipaddress", "its address")
            .query("uuid", "no BMC has one")
            .query("lastdiscoverystatus", "no BMC has one"),
    ];
    all.into_iter().map(selective).collect()
}

fn selective(route: Route<Hsm>) -> Route<Hsm> {
    route.selective().gives_media(200, JSON).gives_nothing(304)
}

fn service_routes() -> Vec<Route<Hsm>> {
    vec![
        Route::get("/hsm/v2/service/ready", OPEN, service::ready)
            .summary("SMD: readiness of the service")
            .reason("A constant")
            .gives_media(200, JSON),
        Route::get("/hsm/v2/service/liveness", OPEN, service::liveness)
            .summary("SMD: liveness of the service")
            .reason("A constant")
            .gives_nothing(204),
        Route::get("/hsm/v2/service/values", OPEN, service::values)
            .summary("SMD: the values of all enumerations")
            .reason("Constants")
            .gives_media(200, JSON),
        Route::get("/hsm/v2/service/values/{list}", OPEN, service::values_of)
            .summary("SMD: the values of one enumeration")
            .reason("Constants")
            .gives_media(200, JSON),
    ]
}

/// The query string, decoded.
fn pairs(uri: &Uri) -> impl Iterator<Item = (String, String)> {
    let query = uri.query().unwrap_or_default();
    form_urlencoded::parse(query.as_bytes()).into_owned()
}

fn sight(principal: &Principal, roster: &Roster) -> Sight {
    Sight::within(principal, Verb::Read, Context::Inventory, roster)
}

fn not_there(what: &str) -> Failure {
    Failure::new(Code::NotFound, format!("{what} not found"))
}

fn not_modified(tag: &str) -> Response {
    etag::not_modified(tag).into_response()
}

#[expect(clippy::needless_pass_by_value, reason = "for `map_err`")]
fn bad_filter(error: FilterError) -> Failure {
    Failure::new(Code::BadParameter, error.to_string())
}
