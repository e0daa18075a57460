//! Requests of `ochami smd`, coresmd, BSS and `OpenCHAMI`'s cloud-init server, and the fields that
//! they read of the answers.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::hsm::{COMPONENTS, INTERFACES, ip, mac, open, small, xname};
use crate::site::Answer;

fn bare(n: u32) -> String {
    mac(n).replace(':', "")
}

fn component(n: u32) -> Value {
    json!({
        "ID": xname(n), "Type": "Node", "State": "Unknown", "Flag": "OK", "Enabled": true,
        "Role": "Compute", "NID": n, "Arch": "X86",
    })
}

#[tokio::test]
async fn client_requests_are_answered_as_smd_does() {
    let site = small().await;
    let membership =
        json!({"id": xname(1), "groupLabels": ["compute", "rack-a"], "partitionName": "p1"});
    let all = json!([xname(1), xname(2), xname(3)]);
    let compute =
        json!({"label": "compute", "description": "works", "members": {"ids": all.clone()}});
    let p1 = json!({"name": "p1", "description": "production", "members": {"ids": all.clone()}});
    let table = [
        // ochami smd component get
        (format!("{COMPONENTS}/{}", xname(1)), component(1)),
        (format!("{COMPONENTS}/X1000C0S01B0N0"), component(1)),
        (format!("{COMPONENTS}/ByNID/1"), component(1)),
        (
            format!("{COMPONENTS}?type=Node&nid=1&nid=2"),
            json!({"Components": [component(1), component(2)]}),
        ),
        // ochami smd group get, group member get
        (
            "/hsm/v2/groups".to_owned(),
            json!([
                compute.clone(),
                {"label": "odd", "description": "", "members": {"ids": ["spare"]}},
                {"label": "rack-a", "description": "", "members": {"ids": all.clone()}},
            ]),
        ),
        ("/hsm/v2/groups?group=compute".to_owned(), json!([compute.clone()])),
        ("/hsm/v2/groups?tag=x".to_owned(), json!([])),
        ("/hsm/v2/groups/labels".to_owned(), json!(["compute", "odd", "rack-a"])),
        ("/hsm/v2/groups/Compute".to_owned(), compute),
        ("/hsm/v2/groups/compute/members".to_owned(), json!({"ids": all.clone()})),
        ("/hsm/v2/groups/compute/members?partition=p1".to_owned(), json!({"ids": all.clone()})),
        ("/hsm/v2/groups/compute/members?partition=NULL".to_owned(), json!({"ids": []})),
        ("/hsm/v2/partitions".to_owned(), json!([p1.clone()])),
        ("/hsm/v2/partitions/names".to_owned(), json!(["p1"])),
        ("/hsm/v2/partitions/p1".to_owned(), p1),
        ("/hsm/v2/partitions/p1/members".to_owned(), json!({"ids": all})),
        // OpenCHAMI's cloud-init server, for every node
        (format!("/hsm/v2/memberships/{}", xname(1)), membership.clone()),
        ("/hsm/v2/memberships?type=Node&nid=1".to_owned(), json!([membership])),
        (
            "/hsm/v2/memberships/spare".to_owned(),
            json!({"id": "spare", "groupLabels": ["odd"], "partitionName": ""}),
        ),
        ("/hsm/v2/service/ready".to_owned(), json!({"code": 0, "message": "HSM is healthy"})),
        (
            "/hsm/v2/service/values/subrole".to_owned(),
            json!({"SubRole": ["Master", "Worker", "Storage"]}),
        ),
    ];
    for (path, expected) in table {
        assert_eq!(site.get(&path).await.expect(200).json(), expected, "{path}");
    }
    let values = open(&site, "/hsm/v2/service/values").await.expect(200).json();
    assert_eq!(values.as_object().expect("an object").len(), 8);
    assert!(open(&site, "/hsm/v2/service/liveness").await.expect(204).body.is_empty());
    site.stop().await;
}

/// coresmd joins the two lists by `ComponentID` and makes host names of nids.
#[tokio::test]
async fn interfaces_lead_to_their_component() {
    let site = small().await;
    let found =
        open(&site, &format!("{INTERFACES}/?MACAddress={}", mac(1))).await.expect(200).json();
    let stamp = found[0]["LastUpdate"].as_str().expect("a time").to_owned();
    assert!(stamp.parse::<jiff::Timestamp>().is_ok(), "{stamp}");
    assert_eq!(
        found,
        json!([{
            "ID": bare(1), "Description": "eth0", "MACAddress": mac(1), "LastUpdate": stamp,
            "ComponentID": xname(1), "Type": "Node",
            "IPAddresses": [{"IPAddress": ip(1), "Network": "nmn"}],
        }])
    );
    let single = site.get(&format!("{INTERFACES}/{}", bare(1))).await.expect(200).json();
    assert_eq!(single, found[0]);
    let components = open(&site, COMPONENTS).await.expect(200).json();
    let known: Vec<_> = components["Components"].as_array().expect("a list").iter().collect();
    let all = open(&site, &format!("{INTERFACES}?type=Node")).await.expect(200).json();
    let all = all.as_array().expect("an array");
    assert_eq!(all.len(), 7);
    for interface in all {
        assert!(known.iter().any(|component| component["ID"] == interface["ComponentID"]));
        assert!(interface["IPAddresses"].is_array());
    }
    let bmcs = open(&site, &format!("{INTERFACES}?type=NodeBMC")).await.expect(200).json();
    assert_eq!(bmcs[0]["ComponentID"], "x1000c0s1b0");
    site.stop().await;
}

/// BSS learns from the first answer whether it needs a token, and fetches three lists then.
#[tokio::test]
async fn bss_finds_every_mac_of_a_node() {
    let site = small().await;
    open(&site, "/hsm/v2/Inventory/RedfishEndpoints").await.problem(401, "unauthenticated");
    let bmcs = site.get("/hsm/v2/Inventory/RedfishEndpoints").await.expect(200).json();
    assert_eq!(bmcs["RedfishEndpoints"].as_array().expect("a list").len(), 3);
    let path = "/hsm/v2/Inventory/ComponentEndpoints?type=Node";
    let listed = site.get(path).await.expect(200).json();
    let listed = listed["ComponentEndpoints"].as_array().expect("a list");
    assert_eq!(listed.len(), 4);
    let one = site.get(&format!("/hsm/v2/Inventory/ComponentEndpoints/{}", xname(1))).await;
    let one = one.expect(200).json();
    assert_eq!(one, listed[0]);
    assert_eq!((&one["ID"], &one["Enabled"]), (&json!(xname(1)), &json!(true)));
    assert_eq!(
        (&one["MACAddr"], &one["RedfishEndpointID"]),
        (&json!(mac(1)), &json!("x1000c0s1b0"))
    );
    let nics = one["RedfishSystemInfo"]["EthernetNICInfo"].as_array().expect("interfaces");
    let macs: Vec<_> = nics.iter().map(|nic| nic["MACAddress"].as_str().expect("a MAC")).collect();
    assert_eq!(macs, [mac(1), mac(0x0100_0001)]);
    site.stop().await;
}

/// `base.Component` and `sm.CompEthInterfaceV2` of SMD's own library, as Go would fill them: a
/// member of another type is an error there, one that is missing is not.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
#[expect(dead_code, reason = "only their parsing is tested")]
struct Component {
    #[serde(rename = "ID")]
    id: String,
    r#type: String,
    state: Option<String>,
    flag: Option<String>,
    enabled: Option<bool>,
    software_status: Option<String>,
    role: Option<String>,
    sub_role: Option<String>,
    #[serde(rename = "NID")]
    nid: Option<i64>,
    subtype: Option<String>,
    net_type: Option<String>,
    arch: Option<String>,
    class: Option<String>,
    reservation_disabled: Option<bool>,
    locked: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Components {
    components: Vec<Component>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
#[expect(dead_code, reason = "only their parsing is tested")]
struct EthernetInterface {
    #[serde(rename = "ID")]
    id: String,
    description: String,
    #[serde(rename = "MACAddress")]
    mac: String,
    last_update: String,
    #[serde(rename = "ComponentID")]
    component_id: String,
    r#type: String,
    #[serde(rename = "IPAddresses")]
    addresses: Vec<Address>,
}

#[derive(Debug, Deserialize)]
struct Address {
    #[serde(rename = "IPAddress")]
    ip: String,
    #[serde(rename = "Network")]
    network: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ComponentEndpoints {
    component_endpoints: Vec<ComponentEndpoint>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ComponentEndpoint {
    #[serde(rename = "ID")]
    id: String,
    #[serde(rename = "FQDN")]
    fqdn: Option<String>,
    #[serde(rename = "MACAddr")]
    mac: Option<String>,
    enabled: Option<bool>,
    #[serde(rename = "RedfishEndpointID")]
    redfish_endpoint_id: String,
    #[serde(rename = "ComponentEndpointType")]
    of_type: String,
    /// BSS goes into it without a look for those of this type.
    redfish_system_info: SystemInfo,
}

#[derive(Debug, Deserialize)]
struct SystemInfo {
    #[serde(rename = "EthernetNICInfo")]
    nics: Vec<Nic>,
}

#[derive(Debug, Deserialize)]
struct Nic {
    #[serde(rename = "MACAddress")]
    mac: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Membership {
    id: String,
    group_labels: Vec<String>,
    partition_name: String,
}

#[derive(Debug, Deserialize)]
struct Group {
    label: String,
    description: String,
    tags: Option<Vec<String>>,
    #[serde(rename = "exclusiveGroup")]
    exclusive: Option<String>,
    members: Members,
}

#[derive(Debug, Deserialize)]
struct Members {
    ids: Vec<String>,
}

fn read<T: DeserializeOwned>(answer: Answer) -> T {
    let answer = answer.expect(200);
    assert_eq!(answer.header("content-type"), "application/json");
    serde_json::from_slice(&answer.body).unwrap_or_else(|error| panic!("{error}: {answer:?}"))
}

/// coresmd: both lists, without a token; interfaces are known by MAC then, components by id.
#[tokio::test]
async fn coresmd_knows_a_lease_for_every_mac() {
    let site = small().await;
    let interfaces: Vec<EthernetInterface> = read(open(&site, INTERFACES).await);
    let Components { components } = read(open(&site, COMPONENTS).await);
    let node = interfaces.iter().find(|interface| interface.mac == mac(2)).expect("by its MAC");
    assert_eq!(node.addresses[0].ip, ip(2));
    let component = components.iter().find(|component| component.id == node.component_id);
    assert_eq!(component.expect("by its id").nid, Some(2));
    // Without a component an interface gets no lease.
    for interface in &interfaces {
        let id = &interface.component_id;
        assert!(components.iter().any(|component| component.id == *id), "{id}");
    }
    let bmc = interfaces.iter().find(|interface| interface.mac == mac(0x0200_0002)).expect("a BMC");
    assert_eq!((bmc.r#type.as_str(), bmc.component_id.as_str()), ("NodeBMC", "x1000c0s2b0"));
    site.stop().await;
}

/// BSS: whether it needs a token, then three lists with it, each on a connection of its own.
#[tokio::test]
async fn bss_reads_its_three_lists() {
    let site = small().await;
    assert_eq!(open(&site, "/hsm/v2/Inventory/RedfishEndpoints").await.status, 401);
    let get = async |path: &str| {
        let request = site.ask("GET", path).header("connection", "close");
        request.header("user-agent", "boot-script-service").send().await
    };
    let Components { components } = read(get(&format!("{COMPONENTS}?type=Node")).await);
    let path = "/hsm/v2/Inventory/ComponentEndpoints?type=Node";
    let ComponentEndpoints { component_endpoints } = read(get(path).await);
    let interfaces: Vec<EthernetInterface> = read(get(&format!("{INTERFACES}?type=Node")).await);
    assert_eq!((components.len(), component_endpoints.len(), interfaces.len()), (4, 4, 7));
    for endpoint in &component_endpoints {
        let component = components.iter().find(|component| component.id == endpoint.id);
        let component = component.expect("they are joined by id");
        assert_eq!(endpoint.enabled, component.enabled);
        assert_eq!(endpoint.of_type, "ComponentEndpointComputerSystem");
        assert_eq!(endpoint.fqdn.as_deref().unwrap_or_default(), "");
        let mut macs: Vec<_> =
            endpoint.redfish_system_info.nics.iter().map(|nic| &nic.mac).collect();
        assert!(macs.contains(&endpoint.mac.as_ref().expect("the one it boots from")));
        let own = interfaces.iter().filter(|interface| interface.component_id == endpoint.id);
        macs.retain(|mac| !own.clone().any(|interface| interface.mac == **mac));
        assert!(macs.is_empty(), "{macs:?}");
        let placed = endpoint.id != "spare";
        assert_eq!(placed, !endpoint.redfish_endpoint_id.is_empty());
    }
    site.stop().await;
}

/// `OpenCHAMI`'s cloud-init server: it has no token yet and says so in an empty one; after a 401 it
/// gets one, and after a second one it ends.
#[tokio::test]
async fn openchamis_cloud_init_finds_a_node_by_its_address() {
    let site = small().await;
    let anew = async |path: &str, token: &str| {
        let request = site.ask_as_nobody("GET", path);
        request.header("authorization", &format!("Bearer {token}")).send().await
    };
    for token in ["", "stale"] {
        let all: Vec<EthernetInterface> = read(anew(&format!("{INTERFACES}/"), token).await);
        let of_address = |ip: &str| {
            let has = |interface: &&EthernetInterface| {
                interface.addresses.first().is_some_and(|address| address.ip == ip)
            };
            all.iter().find(has).map(|interface| interface.component_id.clone())
        };
        assert_eq!(of_address(&ip(3)), Some(xname(3)));
        let membership = format!("/hsm/v2/memberships/{}", xname(3));
        assert_eq!(anew(&membership, token).await.status, 401);
    }
    let own: Membership = read(site.get(&format!("/hsm/v2/memberships/{}", xname(3))).await);
    assert_eq!((own.id, own.partition_name), (xname(3), "p1".to_owned()));
    assert_eq!(own.group_labels, ["compute", "rack-a"]);
    let node: Component = read(site.get(&format!("{COMPONENTS}/{}", xname(3))).await);
    assert_eq!((node.nid, node.role.as_deref()), (Some(3), Some("Compute")));
    site.stop().await;
}

/// `ochami smd … get`, with the flags that become filters.
#[tokio::test]
async fn ochami_gets_what_its_flags_say() {
    let site = small().await;
    // component get, without and with --xname and --nid
    let Components { components } = read(open(&site, COMPONENTS).await);
    assert_eq!(components.len(), 7, "four nodes and three BMCs");
    let bmc: Component = read(site.get(&format!("{COMPONENTS}/x1000c0s1b0")).await);
    assert_eq!((bmc.id.as_str(), bmc.r#type.as_str()), ("x1000c0s1b0", "NodeBMC"));
    for path in [format!("{COMPONENTS}/{}", xname(1)), format!("{COMPONENTS}/ByNID/1")] {
        let one: Component = read(site.get(&path).await);
        assert_eq!(one.id, xname(1));
    }
    // iface get, without and with filters; --id, and --id --by-ip
    for (query, expected) in [
        (String::new(), 10),
        (format!("?MACAddress={}&MACAddress={}", mac(1), mac(2)), 2),
        (format!("?IPAddress={}", ip(1)), 1),
        ("?Network=nmn".to_owned(), 3),
        (format!("?ComponentID={}&Type=Node", xname(1)), 2),
        ("?NewerThan=2020-01-01T00%3A00%3A00Z&OlderThan=2120-01-01T00%3A00%3A00Z".to_owned(), 10),
    ] {
        let found: Vec<EthernetInterface> =
            read(open(&site, &format!("{INTERFACES}{query}")).await);
        assert_eq!(found.len(), expected, "{query}");
    }
    let one: EthernetInterface = read(site.get(&format!("{INTERFACES}/{}", bare(1))).await);
    assert_eq!(one.mac, mac(1));
    let path = format!("{INTERFACES}/{}/IPAddresses", bare(1));
    let addresses: Vec<Address> = read(site.get(&path).await);
    assert_eq!((&addresses[0].ip, addresses[0].network.as_deref()), (&ip(1), Some("nmn")));
    site.get(&format!("{INTERFACES}/000000000000/IPAddresses")).await.problem(404, "not-found");
    // rfe get
    for (query, expected) in [
        ("", 3),
        ("?id=x1000c0s1b0&id=x1000c0s2b0", 2),
        ("?fqdn=x1000c0s1b0", 1),
        ("?type=NodeBMC&uuid=66666666-0042-3510-8057-b4c04f4a5931", 0),
        ("?macaddr=02%3A00%3A02%3A00%3A00%3A01", 1),
        ("?ipaddress=10.9.9.9", 0),
    ] {
        let path = format!("/hsm/v2/Inventory/RedfishEndpoints{query}");
        let found = site.get(&path).await.expect(200).json();
        assert_eq!(
            found["RedfishEndpoints"].as_array().expect("a list").len(),
            expected,
            "{query}"
        );
    }
    // compep get, without and with xnames
    let path = "/hsm/v2/Inventory/ComponentEndpoints";
    let ComponentEndpoints { component_endpoints } = read(site.get(path).await);
    assert_eq!(component_endpoints.len(), 4);
    let one: ComponentEndpoint = read(site.get(&format!("{path}/{}", xname(1))).await);
    assert_eq!(one.id, xname(1));
    // group get --name, group member get, group membership
    for path in
        ["groups?group=!compute", "partitions?partition=!p1", "groups/compute?partition=!p1"]
    {
        site.get(&format!("/hsm/v2/{path}")).await.problem(400, "bad-parameter");
    }
    let groups: Vec<Group> = read(site.get("/hsm/v2/groups?group=compute&group=odd").await);
    let labels: Vec<_> = groups.iter().map(|group| group.label.as_str()).collect();
    assert_eq!(labels, ["compute", "odd"]);
    assert_eq!((groups[0].description.as_str(), groups[0].members.ids.len()), ("works", 3));
    assert!(groups.iter().all(|group| group.tags.is_none() && group.exclusive.is_none()));
    let members: Members = read(site.get("/hsm/v2/groups/odd/members").await);
    assert_eq!(members.ids, ["spare"]);
    let path = "/hsm/v2/memberships?arch=X86&nid_end=3&nid_start=2&type=Node&enabled=true";
    let found: Vec<Membership> = read(site.get(path).await);
    assert_eq!(found.len(), 2);
    site.stop().await;
}

#[tokio::test]
async fn wrong_or_missing_resources_are_problems() {
    let site = small().await;
    for (path, status, code) in [
        (format!("{COMPONENTS}?type=Kettle"), 400, "bad-parameter"),
        (format!("{COMPONENTS}?state=Boiling"), 400, "bad-parameter"),
        (format!("{COMPONENTS}?group=a&group=b"), 400, "bad-parameter"),
        (format!("{COMPONENTS}?partition=a&partition=b"), 400, "bad-parameter"),
        ("/hsm/v2/memberships?role=Kettle".to_owned(), 400, "bad-parameter"),
        (format!("{INTERFACES}?Type=Kettle"), 400, "bad-parameter"),
        (format!("{INTERFACES}?NewerThan=now"), 400, "bad-parameter"),
        (format!("{COMPONENTS}/{}", xname(9)), 404, "not-found"),
        (format!("{COMPONENTS}/n1"), 404, "not-found"),
        (format!("{COMPONENTS}/ByNID/99"), 404, "not-found"),
        (format!("{COMPONENTS}/ByNID/0"), 404, "not-found"),
        (format!("{COMPONENTS}/ByNID/99999999999"), 404, "not-found"),
        (format!("{COMPONENTS}/ByNID/x"), 400, "bad-parameter"),
        (format!("{INTERFACES}/000000000000"), 404, "not-found"),
        (format!("{INTERFACES}/kettle"), 404, "not-found"),
        (format!("/hsm/v2/memberships/{}", xname(9)), 404, "not-found"),
        ("/hsm/v2/memberships/a%20b".to_owned(), 400, "bad-parameter"),
        ("/hsm/v2/groups/nowhere".to_owned(), 404, "not-found"),
        ("/hsm/v2/groups/a%20b".to_owned(), 400, "bad-parameter"),
        ("/hsm/v2/groups/compute?partition=a%20b".to_owned(), 400, "bad-parameter"),
        ("/hsm/v2/partitions/default".to_owned(), 404, "not-found"),
        ("/hsm/v2/partitions/nowhere/members".to_owned(), 404, "not-found"),
        ("/hsm/v2/service/values/kettle".to_owned(), 404, "not-found"),
    ] {
        site.get(&path).await.problem(status, code);
    }
    // As SMD does: unknown parameters are ignored.
    let all = open(&site, &format!("{INTERFACES}?ipaddr=10.0.0.1")).await.expect(200).json();
    assert_eq!(all.as_array().expect("an array").len(), 10);
    site.stop().await;
}
