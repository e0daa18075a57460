//! `/hsm/v2` over real sockets: requests of SMD's clients, and their answers.

mod access;
mod clients;
mod round_trip;
mod whole;

use crate::site::{Answer, Site, document, ip, mac};
use serde_json::{Value, json};

const COMPONENTS: &str = "/hsm/v2/State/Components";
const INTERFACES: &str = "/hsm/v2/Inventory/EthernetInterfaces";

fn xname(n: u32) -> String {
    format!("x1000c0s{n}b0n0")
}

/// The `n`th node: in partition p1 and in two groups, with two interfaces and a BMC.
fn node(n: u32) -> Value {
    let spec = json!({
        "xname": xname(n), "nid": n, "partition": "p1", "groups": ["compute", "rack-a"],
        "arch": "x86_64", "role": "Compute",
        "interfaces": [
            {"name": "eth0", "mac": mac(n), "addresses": [format!("{}/32", ip(n))],
             "network": "nmn"},
            {"name": "eth1", "mac": mac(0x0100_0000 + n)},
            {"name": "ipmi", "kind": "bmc", "mac": mac(0x0200_0000 + n)},
        ],
    });
    document("Node", &format!("n{n}"), &spec)
}

fn sets() -> Vec<Value> {
    vec![
        document("Partition", "p1", &json!({"description": "production"})),
        document("Network", "nmn", &json!({})),
        document("Group", "p1/compute", &json!({"description": "works"})),
        document("Group", "p1/rack-a", &json!({})),
        document("Group", "default/odd", &json!({})),
    ]
}

/// Three nodes as above, and one that has only a name.
async fn small() -> Site {
    let site = Site::start().await;
    let spare = json!({
        "groups": ["odd"],
        "interfaces": [{"name": "eth0", "mac": mac(99), "addresses": ["10.0.0.99/32"]}],
    });
    let nodes = (1..=3).map(node).chain([document("Node", "spare", &spare)]);
    site.apply(&sets().into_iter().chain(nodes).collect::<Vec<_>>()).await;
    site
}

async fn open(site: &Site, path: &str) -> Answer {
    site.ask_as_nobody("GET", path).send().await
}
