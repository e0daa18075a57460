//! The real cloud-init of two Debian releases, configured by a real controller.
//!
//! Each test is on a network of its own, so ports are free and the host is not touched.

use std::path::Path;

use hoist_testkit::controller_process::Controller;
use hoist_testkit::etcd::EtcdServer;
use hoist_testkit::eventually;
use hoist_testkit::machine::cloud_init::{self, BootResult, Client, RELEASES};
use serde_json::Value;

const PORT: u16 = 27778;
/// Of another controller, which others send their nodes to.
const OTHER: u16 = 27779;

const MAC: &str = "02:00:00:00:00:01";
const KEYS: [&str; 2] = ["ssh-ed25519 AAAA site", "ssh-ed25519 BBBB node"];

/// The layers of the site, a group and the node. The files of the first two are merged into one
/// list.
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

/// Scripts beside the configurations, which make user-data a message of several parts: one as it is,
/// one compressed, one in a message of its own; a template that is left to the client; a secret,
/// which is not for seeds.
const PARTS: &str = r#"
api: hoist/v1
kind: MetadataLayer
name: script
spec:
  selector: "*"
  parts:
  - document: user-data
    type: text/x-shellscript
    content: |
      #!/bin/sh
      echo "script of {{ node.name }}" >> /etc/hoist/script
  - document: user-data
    type: application/gzip
    content: H4sIAAAAAAAAA1NW1E/KzNMvzuBKTc7IV0grys9VSK/KLFCwU9BPLUnWz8jPLC7RB4lwAQA2GIO8KwAAAA==
  - document: user-data
    type: multipart/mixed
    content: |
      Content-Type: multipart/mixed; boundary="==inner"
      MIME-Version: 1.0

      --==inner
      Content-Type: text/x-shellscript; charset="us-ascii"
      MIME-Version: 1.0
      Content-Transfer-Encoding: 7bit
      Content-Disposition: attachment; filename="inner.sh"

      #!/bin/sh
      echo from a message > /etc/hoist/message

      --==inner--
---
api: hoist/v1
kind: MetadataLayer
name: client
spec:
  selector: "*"
  client_templates: true
  user_data:
    write_files:
    - path: /etc/hoist/client
      content: "{{ v1.local_hostname }} in {{ ds.meta_data.hoist.partition }}"
---
api: hoist/v1
kind: MetadataLayer
name: secret
spec:
  selector: "*"
  user_data:
    chpasswd: {users: [{name: root, type: text, password: {secret: {file: root}}}]}
"#;

const SECRET: &str = "correct-horse-battery";

/// Another node, on a network with a gateway and name servers, with its address as an import gives
/// it: without a prefix length.
const NETWORK: &str = r#"
api: hoist/v1
kind: Network
name: mgmt
spec:
  subnets: [{cidr: 10.9.0.0/24, gateway: 10.9.0.254}]
  dns: [10.9.0.53]
  domain: mgmt.example.org
---
api: hoist/v1
kind: Node
name: n2
spec:
  interfaces:
  - {name: mgmt0, mac: "02:00:00:00:00:02", network: mgmt, addresses: [10.9.0.2/32]}
  - {name: bmc, kind: bmc, mac: "02:00:00:00:00:03", network: mgmt, addresses: [10.9.0.3/24]}
---
api: hoist/v1
kind: MetadataLayer
name: network
spec: {selector: "node:n2", network_config: true}
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

fn start(port: u16, dir: &Path, settings: &str, more: &[&str]) -> Controller {
    std::fs::create_dir_all(dir).expect("a directory");
    let config = dir.join("hoist.toml");
    std::fs::write(&config, settings).expect("a file");
    let config = config.display().to_string();
    let advertise = format!("http://127.0.0.1:{port}");
    let words = ["--config", &config, "--advertise", &advertise];
    Controller::start_on(port, &dir.join("data"), &[&words, more].concat())
}

fn apply(controller: &Controller, dir: &Path, documents: &[&str]) {
    let file = dir.join("site.yaml");
    std::fs::write(&file, documents.join("\n---\n")).expect("a file");
    controller.does(&["apply", "-f", &file.display().to_string()]);
}

/// The kernel arguments of the boot script.
fn command_line(controller: &Controller, mac: &str) -> String {
    let script = controller.get(&format!("/boot/v1/bootscript?mac={mac}")).body;
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

/// Everything that the layers say has come to pass, and the client has no complaint.
fn assert_done(client: &Client, booted: &BootResult, instance: &str) {
    assert_eq!(booted.code, 0, "{booted:#?}");
    assert_configured(client, booted, instance);
}

/// Everything that the layers say has come to pass.
fn assert_configured(client: &Client, booted: &BootResult, instance: &str) {
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

/// A script, a template and a secret besides, each as it is meant.
fn assert_parts(client: &Client, booted: &BootResult, instance: &str) {
    let said = format!("/var/lib/cloud/instances/{instance}/user-data.txt");
    let said = client.read(&said).expect("user-data");
    assert!(said.contains("multipart/mixed") && said.contains("{{ v1.local_hostname }}"), "{said}");
    for (path, content) in [
        ("/etc/hoist/script", "script of n1\n"),
        ("/etc/hoist/client", "n1 in default"),
        ("/etc/hoist/gzip", "from gzip\n"),
        ("/etc/hoist/message", "from a message\n"),
    ] {
        assert_eq!(client.read(path).expect("it was written"), content, "{booted:#?}");
    }
    assert!(!client.wrote("n1 in default").expect("a search").is_empty());
    let secret = client.wrote(SECRET).expect("a search");
    assert!(secret.is_empty() && !booted.instance.contains(SECRET), "{secret:?}");
}

/// The same in the manner of EC2.
fn assert_ec2(client: &Client, instance: &str) {
    let read = client.read_ec2(&format!("http://127.0.0.1:{PORT}")).expect("it is there");
    let read: Value = serde_json::from_str(&read).expect("JSON");
    let meta = &read["meta"];
    assert_eq!((&meta["instance-id"], &meta["local-hostname"]), (&instance.into(), &"n1".into()));
    assert_eq!(meta["public-keys"], serde_json::json!({"key-0": KEYS[0], "key-1": KEYS[1]}));
    assert!(read["user"].as_str().expect("a text").contains("multipart/mixed"), "{read}");
}

/// The network of `n2` as the client understands it.
fn assert_network(controller: &Controller, client: &Client) {
    let line = command_line(controller, "02:00:00:00:00:02");
    let seed = line.split(['=', ';']).find_map(|word| word.strip_prefix("http://127.0.0.1:27778"));
    let config = controller.get(&format!("{}network-config", seed.expect("a seed")));
    assert_eq!(config.status, 200, "{config:?}");
    let files = client.network_of(&config.body).expect("the client takes it");
    let names: Vec<_> = files.keys().map(String::as_str).collect();
    assert_eq!(names, ["10-cloud-init-mgmt0.network"], "{files:#?}");
    let lines: Vec<_> = files.values().flat_map(|file| file.lines()).collect();
    for expected in [
        "MACAddress=02:00:00:00:00:02",
        "Address=10.9.0.2/24",
        "Gateway=10.9.0.254",
        "DNS=10.9.0.53",
        "Domains=mgmt.example.org",
    ] {
        assert!(lines.contains(&expected), "{expected}: {files:#?}");
    }
}

#[test]
fn client_follows_the_layers_across_a_server_restart() {
    with_every_release(|release| {
        let dir = tempfile::tempdir().expect("a directory");
        let controller = start(PORT, dir.path(), "", &[]);
        let secrets = dir.path().join("data/secrets");
        std::fs::create_dir_all(&secrets).expect("a directory");
        std::fs::write(secrets.join("root"), SECRET).expect("a file");
        let site = [GROUP_AND_BOOT, NODE, LAYERS, PARTS, REPORT, NETWORK];
        apply(&controller, dir.path(), &site);
        let line = command_line(&controller, MAC);
        let instance = instance_id(&controller);
        let client = Client::new(release).expect("a client");
        let booted = client.boot(&line).expect("it boots");
        assert_done(&client, &booted, &instance);
        assert_eq!(client.read("/etc/hoist/ran").expect("it ran"), "ran\n", "{booted:#?}");

        let log = client.read("/var/log/cloud-init.log").expect("a log");
        let mut reports = log.lines().filter(|line| line.contains("/meta/v1/phone-home/"));
        assert!(reports.any(|line| line.contains("(200, ")), "its report was taken: {booted:#?}");
        assert_parts(&client, &booted, &instance);
        assert_network(&controller, &client);
        assert_ec2(&client, &instance);

        assert_eq!(controller.terminate(), Some(0));
        let controller = start(PORT, dir.path(), "", &[]);
        assert_eq!(command_line(&controller, MAC), line, "the seed of a node stays the same");
        let booted = client.boot(&line).expect("it boots again");
        assert_done(&client, &booted, &instance);
        let ran = client.read("/etc/hoist/ran").expect("it ran before");
        assert_eq!(ran, "ran\n", "the same instance: not again");
    });
}

/// A client that must rename an interface which is not in the machine stops in its first stage.
#[test]
fn client_boots_without_an_interface_of_the_inventory() {
    const MORE: &str = r#"
api: hoist/v1
kind: MetadataLayer
name: network
spec: {selector: "*", network_config: true}
"#;
    with_every_release(|release| {
        let dir = tempfile::tempdir().expect("a directory");
        let link = ["link", "add", "eth0", "address", MAC, "type", "veth", "peer", "name", "far0"];
        let made = std::process::Command::new("ip").args(link).status().expect("iproute2");
        assert!(made.success(), "the machine has its boot interface");
        let controller = start(PORT, dir.path(), "", &[]);
        let absent = r#"{name: hsn0, mac: "02:00:00:00:00:09", addresses: [10.8.0.1/24]}"#;
        let node = NODE.replace("[127.0.0.1/8]}]", &format!("[127.0.0.1/8]}}, {absent}]"));
        let node = format!("{node}  boot: {{interface: eth0}}\n");
        apply(&controller, dir.path(), &[GROUP_AND_BOOT, &node, LAYERS, MORE]);
        let instance = instance_id(&controller);
        let client = Client::new(release).expect("a client");
        let booted = client.boot(&command_line(&controller, MAC)).expect("it boots");
        assert_configured(&client, &booted, &instance);
        let log = client.read("/var/log/cloud-init.log").expect("a log");
        assert!(!log.contains("Not all expected physical devices present"), "{booted:#?}");
        // Older clients do not ask for it.
        let asked = log.contains("/network-config");
        assert!(asked || release == "bookworm", "{booted:#?}");
    });
}

#[test]
fn client_is_configured_while_the_store_is_stopped() {
    with_every_release(|release| {
        let dir = tempfile::tempdir().expect("a directory");
        let etcd = EtcdServer::start();
        let controller = start(PORT, dir.path(), "", &["--store", &etcd.url("site")]);
        apply(&controller, dir.path(), &[GROUP_AND_BOOT, NODE, LAYERS]);
        let instance = instance_id(&controller);
        etcd.stop();
        let client = Client::new(release).expect("a client");
        let booted = client.boot(&command_line(&controller, MAC)).expect("it boots");
        assert_done(&client, &booted, &instance);
    });
}

#[test]
fn client_is_configured_by_redirect_and_by_proxy() {
    with_every_release(|release| {
        let dir = tempfile::tempdir().expect("a directory");
        let other = dir.path().join("other");
        let other = start(OTHER, &other, "[http]\ntrusted_proxies = ['127.0.0.1']\n", &[]);
        // The other service knows nodes by their addresses alone. With a redirect the node itself
        // asks from loopback. A proxy asks from loopback too, and must forward the address of the
        // node, because loopback belongs to another node there.
        for (mode, address, elsewhere) in
            [("redirect", "127.0.0.1/8", "10.9.0.7/8"), ("proxy", "10.9.0.7/8", "127.0.0.1/8")]
        {
            let node = NODE.replace("127.0.0.1/8", address);
            let decoy = NODE.replace("n1", "decoy").replace("nid: 1", "nid: 2");
            let decoy = decoy.replace(MAC, "02:00:00:00:00:02").replace("127.0.0.1/8", elsewhere);
            apply(&other, dir.path(), &[GROUP_AND_BOOT, &node, &decoy, LAYERS]);
            let instance = instance_id(&other);
            let url = format!("http://127.0.0.1:{OTHER}/meta/v1/seed");
            let settings = format!("[metadata]\nmode = '{mode}'\nurl = '{url}'\n");
            let here = start(PORT, &dir.path().join(mode), &settings, &[]);
            apply(&here, dir.path(), &[GROUP_AND_BOOT, &node]);
            let client = Client::new(release).expect("a client");
            let booted = client.boot(&command_line(&here, MAC)).expect("it boots");
            assert_done(&client, &booted, &instance);
            assert_eq!(here.terminate(), Some(0), "{mode}");
        }
    });
}

/// How long a client waited each time before it asked again, in seconds.
fn pauses(log: &str) -> Vec<f64> {
    // Lines begin with `2026-01-31 12:00:00,000`.
    let time = |line: &str| -> f64 {
        let time = line.split([' ', ',']).nth(1).expect("a time");
        let parts = time.split(':').map(|part| part.parse::<f64>().expect("a number"));
        parts.fold(0.0, |all, part| all * 60.0 + part)
    };
    let lines: Vec<_> = log.lines().filter(|line| line.contains("url_helper.py[")).collect();
    let waits = lines.windows(2).filter(|pair| pair[0].contains("Please wait "));
    waits.map(|pair| (time(pair[1]) - time(pair[0])).rem_euclid(86_400.0)).collect()
}

#[test]
fn unknown_client_is_held_until_it_is_declared() {
    with_every_release(|release| {
        let dir = tempfile::tempdir().expect("a directory");
        let controller = start(PORT, dir.path(), "", &[]);
        // A selector cannot name a missing node; the order of the layers stays the same.
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
                eventually("client is held", is_held);
                apply(&controller, dir.path(), &[NODE]);
            });
            client.boot(&line).expect("it boots")
        });
        assert_configured(&client, &booted, &instance_id(&controller));
        let paused = pauses(&client.read("/var/log/cloud-init.log").expect("a log"));
        assert!(!paused.is_empty(), "it was not held: {booted:#?}");
        // One release asks each second, gives up after ten, and ends without warnings if it got an
        // answer by then. The other waits as long as the server says, without a limit, and warns.
        let (code, pause) = match release {
            "bookworm" => (0, 1.0..9.0),
            "trixie" => (2, 10.0..f64::INFINITY),
            other => panic!("what does the client of {other} do?"),
        };
        assert_eq!(booted.code, code, "{booted:#?}");
        assert!(paused.iter().all(|seconds| pause.contains(seconds)), "{paused:?}");
        assert_eq!(booted.status.contains("503"), code == 2, "{booted:#?}");
    });
}
