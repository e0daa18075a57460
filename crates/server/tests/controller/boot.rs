//! Booting as hoist itself has it (`/boot/v2`), over real sockets: a whole controller, asked by
//! machines and by people.

mod discovered;
mod native;
mod once;
mod states;

use crate::site::{Answer, Site, document, ip, mac, spec, with};
use hoist_server::controller::Config;
use serde_json::{Value, json};

/// Machines can be told apart by their addresses.
fn behind_a_proxy(config: &mut Config) {
    config.proxies = ["127.0.0.1/32".parse().expect("a network")].into_iter().collect();
}

/// A request of a machine.
async fn bootscript(site: &Site, query: &str) -> Answer {
    site.ask_as_nobody("GET", &format!("/boot/v1/bootscript?{query}")).send().await
}

/// The request of the `n`th node, from its address where the site can see that.
async fn bootscript_of(site: &Site, n: u32, more: &str) -> String {
    let path = format!("/boot/v1/bootscript?mac={}{more}", mac(n));
    let ask = site.ask_as_nobody("GET", &path).header("x-forwarded-for", &ip(n));
    ask.send().await.expect(200).text()
}

/// The script of the `n`th node.
async fn script(site: &Site, n: u32) -> String {
    bootscript_of(site, n, "").await
}

fn config(name: &str, members: &Value) -> Value {
    let base = json!({"selector": "*", "kernel": format!("http://k/{name}")});
    document("BootConfig", name, &with(base, members))
}

fn node(n: u32, members: &Value) -> Value {
    document("Node", &format!("n{n}"), &with(spec(n), members))
}

async fn explain(site: &Site, node: &str) -> Value {
    site.get(&format!("/boot/v2/explain/{node}")).await.expect(200).json()
}

async fn set(site: &Site, node: &str, request: &Value) -> Answer {
    site.put(&format!("/boot/v2/state/{node}"), request).await
}
