//! Metadata of nodes over real sockets: a whole controller, asked by machines, with other services
//! behind it.

mod conformance;
mod ec2;
mod elsewhere;
mod keys;
mod layers;
mod openchami;
mod phone_home;
mod proxy;
mod seeds;
mod unlock;

use crate::site::{Answer, Site, document, mac};
use hoist_model::NodeId;
use hoist_server::controller::Config;
use hoist_server::metadata::{Mode, Unknown};
use hoist_site::SiteKey;
use serde_json::{Value, json};

const DOCUMENTS: [&str; 4] = ["meta-data", "user-data", "vendor-data", "network-config"];

/// `n1` at 10.0.0.1 and `n2` at 10.0.0.2; everything boots `http://k/live`.
async fn site(change: impl FnOnce(&mut Config)) -> Site {
    let site = Site::start_with(|config| {
        config.proxies = ["127.0.0.1/32".parse().expect("a network")].into_iter().collect();
        change(config);
    })
    .await;
    let config = json!({"selector": "*", "kernel": "http://k/live"});
    site.apply(&[
        document("Node", "n1", &spec(1, "10.0.0.1/8")),
        document("Node", "n2", &spec(2, "10.0.0.2/8")),
        document("BootConfig", "live", &config),
    ])
    .await;
    site
}

fn spec(n: u32, address: &str) -> Value {
    json!({"interfaces": [{"name": "eth0", "mac": mac(n), "addresses": [address]}]})
}

fn policy(unknown: Unknown) -> impl FnOnce(&mut Config) {
    move |config| config.metadata.unknown = unknown
}

fn mode(word: &'static str, url: String) -> impl FnOnce(&mut Config) {
    move |config| {
        let argument = "ds=nocloud;s={base}/;dsmode=net";
        config.metadata.mode = Mode::parse(word, Some(&url), argument).expect("a mode");
    }
}

/// A request of a machine, forwarded by a proxy for this address.
async fn ask_from(site: &Site, address: &str, path: &str) -> Answer {
    site.ask_as_nobody("GET", path).header("x-forwarded-for", address).send().await
}

async fn ask(site: &Site, path: &str) -> Answer {
    site.ask_as_nobody("GET", path).send().await
}

/// The words for the kernel about the seed, from the node's boot script.
async fn argument(site: &Site, n: u32) -> Option<String> {
    let query = format!("/boot/v1/bootscript?mac={}", mac(n));
    let script = ask(site, &query).await.expect(200).text();
    let kernel = script.lines().find(|line| line.starts_with("kernel ")).expect("a kernel");
    kernel.split(' ').find(|word| word.starts_with("ds=")).map(str::to_owned)
}

/// The path of a node's seed, with a slash at its end, as its boot script has it.
async fn seed(site: &Site, n: u32) -> String {
    let argument = argument(site, n).await.expect("a seed");
    let url = argument.strip_prefix("ds=nocloud;s=").expect("NoCloud");
    let url = url.strip_suffix(";dsmode=net").expect("over the network");
    url.strip_prefix(&site.url("")).expect("where it asked").to_owned()
}

async fn id(site: &Site, name: &str) -> NodeId {
    let node = site.get(&format!("/inventory/v1/nodes/by/name/{name}")).await.expect(200).json();
    node["id"].as_str().expect("an id").parse().expect("a node id")
}

fn key(site: &Site) -> SiteKey {
    hoist_server::site_key::open(site.data_dir()).expect("the site's key")
}

async fn metric(site: &Site, line: &str) -> f64 {
    let metrics = site.get("/metrics").await.expect(200).text();
    let found = metrics.lines().find_map(|at| at.strip_prefix(line)).unwrap_or(" 0");
    found.trim().parse().expect("a number")
}
