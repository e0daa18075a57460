//! Unknown machines that requested a boot script or metadata: list, forget, adopt.

use std::net::IpAddr;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use hoist_api::Code;
use hoist_api::admin::{Context, Verb};
use hoist_api::boot::{AdoptRequest, DiscoveredMachine};
use hoist_api::inventory::{DerivedFields, Listing, Node};
use hoist_diagnostic::Diagnostic;
use hoist_model::node::InterfaceKind;
use hoist_model::{Arch, Interface, Kind, Mac, Name, NodeSpec};
use hoist_site::plan::{Reason, Refusal};
use hoist_site::registry::{Terms, WriteError, mint_id};
use hoist_site::{Resource, Roster};
use http::StatusCode;
use ipnet::IpNet;
use serde::Deserialize;

use super::native::{READ, WRITE};
use super::unknown_addresses::UnknownAddress;
use super::{Boot, UnknownMachine};
use crate::authorisation::ScopedCommit;
use crate::inventory::{bad_parameter, write_failure};
use hoist_chassis::auth::AuditContext;
use hoist_chassis::extract::{Flag, Json, Path, Query};
use hoist_chassis::failure::Failure;
use hoist_chassis::principal::Principal;
use hoist_chassis::route::{AccessClass, Route};

/// Who adopts makes a node: that is a right of the inventory, and may be limited to some nodes.
const ADOPT: AccessClass = AccessClass::Admin { context: Context::Inventory, verb: Verb::Write };

pub(super) fn routes() -> Vec<Route<Boot>> {
    vec![
        Route::get("/boot/v2/discovered", READ, list)
            .summary(
                "Machines that asked for a boot script or metadata and are not in the inventory",
            )
            .gives::<Listing<DiscoveredMachine>>(200),
        Route::delete("/boot/v2/discovered/{mac}", WRITE, forget)
            .summary("Remove an unknown machine, by its MAC or address, until its next request")
            .gives_nothing(204),
        Route::post("/boot/v2/discovered/{mac}/adopt", ADOPT, adopt)
            .summary("Adopt an unknown machine as a node")
            .flag("dry_run", "change nothing, say what would become of it")
            .takes::<AdoptRequest>()
            .gives::<Node>(200)
            .gives::<Node>(201)
            .selective(),
    ]
}

async fn list(State(boot): State<Boot>) -> Response {
    let roster = boot.registry.roster();
    let machines = boot.log.unknown_machines().into_iter();
    // A machine declared since is not unknown.
    let unknown = machines.filter(|machine| roster.by_mac(machine.mac).is_none());
    let mut items: Vec<DiscoveredMachine> = unknown.map(object).collect();
    let addresses = boot.log.unknown_addresses().into_iter();
    items.extend(addresses.filter_map(|address| held(&roster, address)));
    Json(Listing { revision: roster.revision(), items }).into_response()
}

fn object(machine: UnknownMachine) -> DiscoveredMachine {
    let UnknownMachine { mac, arch, from, agent, first, last, count, booted } = machine;
    let mac = Some(mac);
    DiscoveredMachine { mac, arch, from, agent, first, last, count, booted, node: None }
}

/// An address that asked for metadata, unless it has become the one of an enabled node since.
fn held(roster: &Roster, address: UnknownAddress) -> Option<DiscoveredMachine> {
    let speaking = roster.speaking_from(address.from);
    if speaking.iter().any(|node| node.spec.enabled) {
        return None;
    }
    let UnknownAddress { from, agent, first, last, count } = address;
    let node = speaking.first().map(|node| node.name.clone());
    let machine = DiscoveredMachine {
        mac: None,
        arch: None,
        from,
        agent,
        first,
        last,
        count,
        booted: false,
        node,
    };
    Some(machine)
}

async fn forget(State(boot): State<Boot>, Path(mac): Path<String>) -> Result<StatusCode, Failure> {
    if let Ok(address) = mac.parse::<IpAddr>() {
        if !boot.log.forget_address(address) {
            let detail = format!("no unknown machine asked for metadata from {address}");
            return Err(Failure::new(Code::NotFound, detail));
        }
        return Ok(StatusCode::NO_CONTENT);
    }
    boot.log.forget(seen(&boot, &mac)?.mac);
    Ok(StatusCode::NO_CONTENT)
}

fn seen(boot: &Boot, mac: &str) -> Result<UnknownMachine, Failure> {
    let parsed: Mac = mac
        .parse()
        .map_err(|error| bad_parameter("mac", &format!("{error}"), "check its spelling"))?;
    let found = boot.log.unknown_machines().into_iter().find(|machine| machine.mac == parsed);
    found.ok_or_else(|| {
        Failure::new(Code::NotFound, format!("no machine asked with MAC {parsed}"))
            .with_remedy("`hoist node add` declares nodes that were not seen yet")
    })
}

#[derive(Debug, Deserialize)]
struct AdoptQuery {
    #[serde(default)]
    dry_run: Flag,
}

async fn adopt(
    State(boot): State<Boot>,
    principal: Principal,
    audit: AuditContext,
    Path(mac): Path<String>,
    Query(query): Query<AdoptQuery>,
    Json(request): Json<AdoptRequest>,
) -> Result<Response, Failure> {
    let machine = seen(&boot, &mac)?;
    let name = request.name.clone();
    let address = seen_address(&boot, &machine).filter(|_| !request.no_address);
    let spec = spec(&machine, request, address);
    if let Some(diagnostic) = spec.check().into_iter().next() {
        return Err(bad_parameter(
            &diagnostic.at,
            &diagnostic.message,
            diagnostic.hint.as_deref().unwrap_or(""),
        ));
    }
    let dry_run = query.dry_run.0;
    let terms = Terms { dry_run, ..Terms::default() };
    let by = principal.who().to_string();
    let commit = ScopedCommit::new(&boot.chassis.audit, principal, &audit);
    let id = mint_id();
    let written = boot
        .registry
        .write(terms, &commit, |draft| {
            if draft.id_of(&name).is_some() {
                let diagnostic =
                    Diagnostic::new("name", format!("there is a node `{name}` already"))
                        .hint("choose another name; `hoist node swap` replaces a machine");
                let refusal = Refusal::of(Reason::Clash, Kind::Node, &name, diagnostic);
                return Err(WriteError::Refused(vec![refusal]));
            }
            draft.put_node(id, name.clone(), spec.clone());
            Ok(())
        })
        .await
        .map_err(write_failure)?;
    let after = written.plan.outcome(&boot.registry.roster());
    let made = written.plan.puts.iter().find_map(|put| match put {
        Resource::Node(node) if node.id == id => Some(node),
        _ => None,
    });
    let node = made.ok_or_else(|| Failure::new(Code::Internal, "the node was not made"))?;
    let derived = DerivedFields {
        boot: after.boot(node),
        groups: after.groups_of(node),
        ..DerivedFields::default()
    };
    if !dry_run {
        boot.log.forget(machine.mac);
        let told = serde_json::json!({"mac": machine.mac, "by": by, "from": machine.from});
        boot.chassis.events.publish("node.adopted", &format!("node/{name}"), told);
    }
    Ok((StatusCode::CREATED, Json(Node::from_stored(node, derived))).into_response())
}

/// An address, and the network that it is in, if one is declared.
struct SeenAddress {
    address: IpNet,
    network: Option<Name>,
}

/// The address that a machine asked from, if it tells this machine from all others: no node has it,
/// and no other machine asked from there.
fn seen_address(boot: &Boot, machine: &UnknownMachine) -> Option<SeenAddress> {
    let from = machine.from;
    let roster = boot.registry.roster();
    let is_special = from.is_loopback() || from.is_unspecified() || from.is_multicast();
    let machines = boot.log.unknown_machines();
    let mut others = machines.iter().filter(|other| other.mac != machine.mac);
    if is_special || !roster.by_ip(from).is_empty() || others.any(|other| other.from == from) {
        return None;
    }
    let subnets = roster
        .networks()
        .flat_map(|network| network.spec.subnets.iter().map(|subnet| (&network.name, subnet.cidr)));
    let mut around = subnets.filter(|(_, cidr)| cidr.contains(&from));
    // With several matching networks the right one is unknown.
    let network = around.next().filter(|_| around.next().is_none());
    let length = match (network, from) {
        (Some((_, cidr)), _) => cidr.prefix_len(),
        (None, IpAddr::V4(_)) => 32,
        (None, IpAddr::V6(_)) => 128,
    };
    let address = IpNet::new(from, length).ok()?;
    Some(SeenAddress { address, network: network.map(|(name, _)| name.clone()) })
}

fn spec(machine: &UnknownMachine, request: AdoptRequest, seen: Option<SeenAddress>) -> NodeSpec {
    let AdoptRequest { partition, groups, role, subrole, nid, xname, labels, arch, .. } = request;
    let interface = Interface {
        name: "eth0".parse().expect("a name"),
        kind: InterfaceKind::Boot,
        mac: machine.mac,
        addresses: seen.iter().map(|seen| seen.address).collect(),
        network: seen.and_then(|seen| seen.network),
        vlan: None,
        mtu: None,
    };
    NodeSpec {
        xname,
        nid,
        partition: partition.unwrap_or_else(Name::default_partition),
        groups: groups.into_iter().collect(),
        interfaces: vec![interface],
        arch: arch.or_else(|| arch_of(machine.arch.as_deref()?)).unwrap_or_default(),
        role,
        subrole,
        labels,
        ..NodeSpec::default()
    }
}

/// What iPXE calls them.
fn arch_of(buildarch: &str) -> Option<Arch> {
    match buildarch {
        "x86_64" | "i386" => Some(Arch::X86_64),
        "arm64" | "aarch64" => Some(Arch::Aarch64),
        "riscv64" => Some(Arch::Riscv64),
        _ => None,
    }
}
