//! What `ochami smd`, coresmd, BSS and `OpenCHAMI`'s cloud-init server ask, and what they read of the
//! answers.

use serde_json::{Value, json};

use crate::{COMPONENTS, INTERFACES, ip, mac, open, small, xname};

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
async fn what_the_clients_ask_is_answered_as_smd_does() {
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

#[tokio::test]
async fn what_is_wrong_or_not_there_is_a_problem() {
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
    // As SMD: what it does not know, it does not see.
    let all = open(&site, &format!("{INTERFACES}?ipaddr=10.0.0.1")).await.expect(200).json();
    assert_eq!(all.as_array().expect("an array").len(), 10);
    site.stop().await;
}
