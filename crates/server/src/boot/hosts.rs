//! `/boot/v1/hosts` and `/boot/v1/dumpstate`: the inventory as BSS shows it.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use hoist_api::Code;
use hoist_api::admin::{Context, Verb};
use hoist_boot::bss::{host_name, node_of_host};
use hoist_boot::parameters as boot_parameters;
use hoist_model::node::{Arch, Power};
use hoist_model::{BootParameters, Mac, Nid, Node};
use hoist_site::{Roster, States};
use http::Uri;
use serde::Serialize;

use super::{Boot, bss_json, json_text, parameters};
use crate::node_lookup::complete_roster;
use hoist_chassis::failure::Failure;
use hoist_chassis::principal::{Principal, Reach};

/// One node. BSS has further members that the inventory does not keep; all of those are optional.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
struct Host {
    #[serde(rename = "ID")]
    id: String,
    r#type: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<&'static str>,
    enabled: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sub_role: Option<String>,
    #[serde(rename = "NID", skip_serializing_if = "Option::is_none")]
    nid: Option<u32>,
    arch: &'static str,
    #[serde(rename = "FQDN")]
    fqdn: &'static str,
    #[serde(rename = "MAC")]
    macs: Vec<Mac>,
    endpoint_enabled: bool,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
struct Dump {
    components: Vec<Host>,
    /// Left out for a caller who may not read boot parameters: an empty list would say that there
    /// are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    params: Option<Vec<BootParameters>>,
}

pub(super) async fn get(State(boot): State<Boot>, uri: Uri) -> Result<Response, Failure> {
    let asked = parameters::by_query(&uri)?;
    let states = boot.states.clone();
    let Some(asked) = asked else {
        return boot.whole_site(move |roster| json_text(&all(roster, &states))).await;
    };
    if !asked.addresses() {
        return Err(Failure::new(Code::BadParameter, "No specified data requested"));
    }
    let roster = complete_roster(&boot.registry)?;
    let found = nodes(&roster, &asked)?;
    Ok(bss_json(&found.into_iter().map(|node| host(node, &states)).collect::<Vec<_>>()))
}

/// Boot parameters hold cloud-init documents and command lines, so they are shown to the callers of
/// `/boot/v1/bootparameters` only.
pub(super) async fn dumpstate(
    State(boot): State<Boot>,
    principal: Principal,
) -> Result<Response, Failure> {
    let states = boot.states.clone();
    let with_params = principal.reach(Verb::Read, Context::Boot) == Reach::All;
    boot.whole_site(move |roster| {
        let components = all(roster, &states);
        let params = with_params.then(|| boot_parameters::all(roster));
        json_text(&Dump { components, params })
    })
    .await
}

fn all(roster: &Roster, states: &States) -> Vec<Host> {
    roster.nodes().map(|node| host(node, states)).collect()
}

/// Those asked for, in the order of names, MACs, nids; the first that is unknown ends it.
fn nodes<'r>(roster: &'r Roster, asked: &BootParameters) -> Result<Vec<&'r Arc<Node>>, Failure> {
    let unknown = |what: &str, text: &str| {
        let text: String = text.chars().take(64).collect();
        Failure::new(Code::NotFound, format!("Not Found - Unknown {what} '{text}'"))
    };
    let by_name =
        |name: &String| node_of_host(roster, name).ok_or_else(|| unknown("host name", name));
    let by_mac = |mac: &String| {
        let found = mac.parse().ok().and_then(|mac| roster.by_mac(mac));
        found.ok_or_else(|| unknown("MAC address", mac))
    };
    let by_nid = |nid: &i32| {
        let found = u32::try_from(*nid).ok().map(Nid::new).and_then(|nid| roster.by_nid(nid));
        found.ok_or_else(|| unknown("NID", &nid.to_string()))
    };
    let names = asked.hosts.iter().map(by_name);
    names.chain(asked.macs.iter().map(by_mac)).chain(asked.nids.iter().map(by_nid)).collect()
}

fn host(node: &Arc<Node>, states: &States) -> Host {
    let spec = &node.spec;
    let state = states.get(node.id).and_then(|state| match state.power {
        Power::On => Some("On"),
        Power::Off => Some("Off"),
        Power::Unknown => None,
    });
    Host {
        id: host_name(node),
        r#type: "Node",
        state,
        enabled: spec.enabled,
        role: spec.role.as_ref().map(ToString::to_string),
        sub_role: spec.subrole.as_ref().map(ToString::to_string),
        nid: spec.nid.map(Nid::get),
        arch: match spec.arch {
            Arch::X86_64 => "X86",
            Arch::Aarch64 => "ARM",
            Arch::Riscv64 => "Other",
            Arch::Unknown => "UNKNOWN",
        },
        fqdn: "",
        macs: spec.interfaces.iter().map(|interface| interface.mac).collect(),
        endpoint_enabled: spec.enabled,
    }
}
