//! The real cloud-init of two Debian releases, told by a real controller what it is.
//!
//! Each test is on a network of its own, so ports are free and nothing of the host is touched.

#[path = "support/controller.rs"]
mod controller;

use std::path::Path;

use controller::{Controller, eventually};
use hoist_testkit::etcd::EtcdServer;
use hoist_testkit::machine::cloud_init::{self, Booted, Client, RELEASES};
use serde_json::Value;

const PORT: u16 = 27778;
/// Of another controller, which others send their nodes to.
const OTHER: u16 = 27779;

const MAC: &str = "02:00:00:00:00:01";
const KEYS: [&str; 2] = ["ssh-ed25519 AAAA site", "ssh-ed25519 BBBB node"];

/// What the site, a group and the node say. The files of the first two are merged into one list.
const LAYERS: &str = r#"
api: hoist/v1
kind: MetadataLayer
name: site
spec:
  selector: "*"
  public_keys: [ssh-ed25519 AAAA site]
  user_data:
    write_files:
    - {path: /etc/hoist/site, content: "everybody {{ node.name }}"}
    runcmd: [[sh, -c, "echo ran >> /etc/hoist/ran"]]
---
api: hoist/v1
kind: MetadataLayer
name: compute
spec:
  selector: group:compute
  user_data:
    write_files:
    - {path: /etc/hoist/group, content: compute}
---
api: hoist/v1
kind: MetadataLayer
name: one
spec:
  selector: "node:n1"
  public_keys: [ssh-ed25519 BBBB node]
  vendor_data:
    write_files:
    - {path: /etc/hoist/vendor, content: hidden by user-data}
"#;

const REPORT: &str = r#"
api: hoist/v1
kind: MetadataLayer
name: report
spec:
  selector: "*"
  user_data:
    phone_home:
      url: "http://127.0.0.1:27778/meta/v1/phone-home/{{ node.id }}/{{ token }}"
      post: [instance_id, hostname]
      tries: 1
"#;

const GROUP_AND_BOOT: &str = r#"
api: hoist/v1
kind: Group
name: default/compute
spec: {}
---
api: hoist/v1
kind: BootConfig
name: live
spec: {selector: "*", kernel: "http://k/live"}
"#;

/// It asks from loopback, and is known by that address where no token says who it is.
const NODE: &str = r#"
api: hoist/v1
kind: Node
name: n1
spec:
  nid: 1
  groups: [compute]
  interfaces: [{name: eth0, mac: "02:00:00:00:00:01", addresses: [127.0.0.1/8]}]
"#;

/// Runs `scenario` for the client of every release, each on a network of its own.
fn with_every_release(scenario: impl Fn(&str) + Sync) {
    for release in RELEASES {
        std::thread::scope(|scope| {
            let alone = scope.spawn(|| {
                cloud_init::enter_own_network().expect("a network of its own");
                scenario(release);
            });
            if let Err(panic) = alone.join() {
                std::panic::resume_unwind(panic);
            }
        });
    }
}

fn start(port: u16, dir: &Path, metadata: &str, more: &[&str]) -> Controller {
    std::fs::create_dir_all(dir).expect("a directory");
    let config = dir.join("hoist.toml");
    std::fs::write(&config, format!("[metadata]\n{metadata}\n")).expect("a file");
    let (config, advertise) = (config.display().to_string(), format!("http://127.0.0.1:{port}"));
    let words = ["--config", &config, "--advertise", &advertise];
    Controller::start_on(port, &dir.join("data"), &[&words, more].concat())
}

fn apply(controller: &Controller, dir: &Path, documents: &[&str]) {
    let file = dir.join("site.yaml");
    std::fs::write(&file, documents.join("\n---\n")).expect("a file");
    controller.does(&["apply", "-f", &file.display().to_string()]);
}

/// What the kernel would be started with, as the boot script says it.
fn command_line(controller: &Controller) -> String {
    let script = controller.get(&format!("/boot/v1/bootscript?mac={MAC}")).body;
    let kernel = script.lines().find(|line| line.starts_with("kernel "));
    let line = kernel.unwrap_or_else(|| panic!("{script}")).to_owned();
    assert!(line.contains("ds=nocloud;s=http://127.0.0.1:"), "{line}");
    line.trim_start_matches("kernel ").trim_end_matches(" || goto boot_retry").to_owned()
}

/// The id under which the node is known to the client: that of the node here, and its generation.
fn instance_id(controller: &Controller) -> String {
    let node: Value = serde_json::from_str(&controller.does(&["node", "show", "n1", "-o", "json"]))
        .expect("JSON");
    format!("{}-g0", node["id"].as_str().expect("an id"))
}

/// Everything that the layers say has come to pass.
fn assert_configured(client: &Client, booted: &Booted, instance: &str, code: &[i32]) {
    assert!(code.contains(&booted.code), "{booted:#?}");
    assert!(booted.status.contains("status: done"), "{booted:#?}");
    assert_eq!(booted.hostname, "n1", "{booted:#?}");
    let known: Value = serde_json::from_str(&booted.instance).expect("JSON");
    assert_eq!(known["v1"]["instance_id"], instance);
    assert_eq!(known["v1"]["public_ssh_keys"], serde_json::json!(KEYS));
    for (path, content) in [("/etc/hoist/site", "everybody n1"), ("/etc/hoist/group", "compute")] {
        assert_eq!(client.read(path).expect("it was written").trim(), content, "{booted:#?}");
    }
    assert!(client.read("/etc/hoist/vendor").is_err(), "lists of vendor-data are hidden");
}

#[test]
fn a_client_becomes_what_the_layers_say_and_stays_it_over_a_restart_of_the_server() {
    with_every_release(|release| {
        let dir = tempfile::tempdir().expect("a directory");
        let controller = start(PORT, dir.path(), "", &[]);
        apply(&controller, dir.path(), &[GROUP_AND_BOOT, NODE, LAYERS, REPORT]);
        let (line, instance) = (command_line(&controller), instance_id(&controller));
        let client = Client::new(release).expect("a client");
        let booted = client.boot(&line).expect("it boots");
        assert_configured(&client, &booted, &instance, &[0]);
        assert_eq!(client.read("/etc/hoist/ran").expect("it ran"), "ran\n", "{booted:#?}");

        let log = client.read("/var/log/cloud-init.log").expect("a log");
        let mut reports = log.lines().filter(|line| line.contains("/meta/v1/phone-home/"));
        assert!(reports.any(|line| line.contains("(200, ")), "its report was taken: {booted:#?}");

        assert_eq!(controller.terminate(), Some(0));
        let controller = start(PORT, dir.path(), "", &[]);
        assert_eq!(command_line(&controller), line, "the seed of a node stays the same");
        let booted = client.boot(&line).expect("it boots again");
        assert_configured(&client, &booted, &instance, &[0]);
        let ran = client.read("/etc/hoist/ran").expect("it ran before");
        assert_eq!(ran, "ran\n", "the same instance: not again");
    });
}

#[test]
fn a_client_is_told_although_the_store_is_stopped() {
    with_every_release(|release| {
        let dir = tempfile::tempdir().expect("a directory");
        let etcd = EtcdServer::start();
        let controller = start(PORT, dir.path(), "", &["--store", &etcd.url("site")]);
        apply(&controller, dir.path(), &[GROUP_AND_BOOT, NODE, LAYERS]);
        let instance = instance_id(&controller);
        etcd.stop();
        let client = Client::new(release).expect("a client");
        let booted = client.boot(&command_line(&controller)).expect("it boots");
        assert_configured(&client, &booted, &instance, &[0]);
    });
}

#[test]
fn another_service_tells_it_in_redirect_and_in_proxy_mode() {
    with_every_release(|release| {
        let dir = tempfile::tempdir().expect("a directory");
        let other = start(OTHER, &dir.path().join("other"), "", &[]);
        apply(&other, dir.path(), &[GROUP_AND_BOOT, NODE, LAYERS]);
        let instance = instance_id(&other);
        for mode in ["redirect", "proxy"] {
            let url = format!("http://127.0.0.1:{OTHER}/meta/v1/seed");
            let metadata = format!("mode = '{mode}'\nurl = '{url}'");
            let here = start(PORT, &dir.path().join(mode), &metadata, &[]);
            apply(&here, dir.path(), &[GROUP_AND_BOOT, NODE]);
            let client = Client::new(release).expect("a client");
            let booted = client.boot(&command_line(&here)).expect("it boots");
            assert_configured(&client, &booted, &instance, &[0]);
            assert_eq!(here.terminate(), Some(0), "{mode}");
        }
    });
}

#[test]
fn a_client_that_is_not_known_yet_is_held_and_then_told() {
    with_every_release(|release| {
        let dir = tempfile::tempdir().expect("a directory");
        let controller = start(PORT, dir.path(), "unknown = 'hold'", &[]);
        // Nobody can speak of a node that is not there; the order stays the same.
        let layers = LAYERS.replace("\"node:n1\"", "\"*\"\n  priority: 9");
        apply(&controller, dir.path(), &[GROUP_AND_BOOT, &layers]);
        let token = controller.admin_token();
        let is_held = || {
            let metrics = controller.ask("GET", "/metrics", Some(&token), "").body;
            let held = metrics.lines().find(|line| line.contains("outcome=\"held\""));
            held.is_some_and(|line| !line.ends_with(" 0"))
        };
        let client = Client::new(release).expect("a client");
        let line = format!("ro ds=nocloud;s=http://127.0.0.1:{PORT}/meta/v1/seed/;dsmode=net");
        let booted = std::thread::scope(|scope| {
            scope.spawn(|| {
                eventually("the client is held", is_held);
                apply(&controller, dir.path(), &[NODE]);
            });
            client.boot(&line).expect("it boots")
        });
        // Those who know what 503 means complain about it.
        assert_configured(&client, &booted, &instance_id(&controller), &[0, 2]);
    });
}
