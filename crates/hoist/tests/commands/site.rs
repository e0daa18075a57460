//! The commands against a whole controller in this process.

use std::path::PathBuf;
use std::process::Output;

use hoist_model::Exit;
use hoist_server::controller::{Config, Controller};

struct Site {
    controller: Controller,
    data_dir: PathBuf,
    dir: tempfile::TempDir,
}

impl Site {
    async fn start() -> Self {
        let dir = tempfile::tempdir().expect("a directory for temporary files");
        let data_dir = dir.path().join("data");
        let mut config = Config::new(&data_dir);
        config.listen = Some("127.0.0.1:0".parse().expect("an address"));
        config.tls_listen = Some("127.0.0.1:0".parse().expect("an address"));
        let controller = Controller::start(config).await.expect("the controller starts");
        Self { controller, data_dir, dir }
    }

    fn file(&self, name: &str, text: &str) -> String {
        let path = self.dir.path().join(name);
        fs_err::write(&path, text).expect("a file can be written");
        path.display().to_string()
    }

    async fn run(&self, words: &[&str]) -> Output {
        tokio::process::Command::new(env!("CARGO_BIN_EXE_hoist"))
            .args(words)
            .env_clear()
            .env("HOIST_DATA_DIR", &self.data_dir)
            .output()
            .await
            .expect("the binary was built for this test")
    }

    /// Runs a command that must end with this code, and returns its output.
    async fn ends(&self, exit: Exit, words: &[&str]) -> String {
        let output = self.run(words).await;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(i32::from(exit.code())), "{words:?}: {text}{told}");
        if exit == Exit::Done || exit == Exit::WouldChange { text } else { told }
    }

    async fn does(&self, words: &[&str]) -> String {
        self.ends(Exit::Done, words).await
    }
}

const SITE: &str = "\
api: hoist/v1
kind: Network
name: boot
spec: {subnets: [{cidr: 10.1.0.0/16}]}
---
api: hoist/v1
kind: Node
name: n1
spec:
  role: compute
  nid: 1
  interfaces: [{name: eth0, kind: boot, mac: '52:54:00:00:00:01', addresses: [10.1.0.1/16]}]
---
api: hoist/v1
kind: Node
name: n2
spec: {role: login}
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn documents_are_applied_shown_changed_and_removed() {
    let site = Site::start().await;
    let file = site.file("site.yaml", SITE);

    site.ends(Exit::Failed, &["diff", "-f", &file]).await;
    let plan = site.ends(Exit::WouldChange, &["apply", "-f", &file, "--dry-run"]).await;
    assert!(plan.contains("+ Node n1\n"), "{plan}");
    assert_eq!(site.does(&["node", "list", "-o", "name"]).await, "", "a dry run changes nothing");
    site.does(&["apply", "-f", &file]).await;
    site.does(&["apply", "-f", &file]).await;
    site.does(&["diff", "-f", &file]).await;

    assert_eq!(site.does(&["node", "list", "compute", "-o", "name"]).await, "n1\n");
    let table = site.does(&["node", "list"]).await;
    assert!(
        table.contains("n1    1    compute  default    52:54:00:00:00:01  10.1.0.1"),
        "{table}"
    );
    for word in ["n1", "52:54:00:00:00:01", "1", "10.1.0.1", "nid:1"] {
        assert_eq!(site.does(&["node", "show", word, "-o", "name"]).await, "n1\n", "{word}");
    }
    site.ends(Exit::Failed, &["node", "show", "n9"]).await;

    // The output of `get` and `export` can be applied again.
    let node = site.does(&["get", "node", "n1", "-o", "yaml"]).await;
    site.does(&["diff", "-f", &site.file("node.yaml", &node)]).await;
    let lines = site.does(&["export", "-o", "json"]).await;
    site.does(&["diff", "-f", &site.file("all.ndjson", &lines)]).await;
    let yaml = site.does(&["export"]).await;
    site.does(&["diff", "-f", &site.file("all.yaml", &yaml)]).await;
    let one = site.does(&["export", "node:n2", "-o", "name"]).await;
    assert_eq!(one, "Node/n2\n");
    assert_eq!(site.does(&["export", "-l", "node:n2", "-o", "name"]).await, one);
    site.ends(Exit::Usage, &["export", "node:n1", "-l", "node:n2"]).await;

    let told = site.ends(Exit::Usage, &["delete", "node/n2", "node/n9"]).await;
    assert_eq!(told, "error: Node n9: it does not exist\n");
    site.ends(Exit::WouldChange, &["delete", "node/n2", "--dry-run"]).await;
    site.does(&["delete", "node/n2"]).await;
    assert_eq!(site.does(&["get", "nodes", "-o", "name"]).await, "Node/n1\n");
    site.controller.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_and_groups_are_edited_by_commands() {
    let site = Site::start().await;
    let add = ["node", "add", "n1", "--mac", "52:54:00:00:00:01", "--ip", "10.1.0.1/16"];
    site.does(&add).await;
    site.ends(Exit::Refused, &add).await;
    site.does(&["node", "add", "n2", "--role", "compute"]).await;
    let taken = ["node", "add", "n3", "--mac", "52:54:00:00:00:01"];
    let told = site.ends(Exit::Refused, &taken).await;
    assert!(told.contains("n1"), "{told}");

    site.does(&["group", "add", "gpu", "--member", "n1"]).await;
    let set =
        ["node", "set", "n1", "n2", "--role", "login", "--label", "rack=7", "--group", "+gpu"];
    site.ends(Exit::WouldChange, &[&set[..], &["--dry-run"]].concat()).await;
    site.does(&set).await;
    assert_eq!(site.does(&["node", "list", "gpu & rack=7", "-o", "name"]).await, "n1\nn2\n");
    site.does(&["group", "set", "gpu", "--member", "-n2", "--priority", "5"]).await;
    let group = site.does(&["group", "show", "gpu"]).await;
    assert!(group.contains("  n1\n") && !group.contains("n2"), "{group}");
    site.does(&["node", "set", "-l", "rack=7", "--label", "rack-"]).await;
    assert_eq!(site.does(&["node", "list", "rack=7", "-o", "name"]).await, "");

    site.ends(Exit::WouldChange, &["node", "protect", "n1", "--dry-run"]).await;
    site.does(&["node", "protect", "n1", "--reason", "mine"]).await;
    site.ends(Exit::Refused, &["node", "remove", "n1", "-y"]).await;
    site.does(&["node", "protect", "n1", "--off"]).await;
    let on = ["node", "maintenance", "on", "n1", "--reason", "dimm", "--until", "4h"];
    site.ends(Exit::WouldChange, &[&on[..], &["--dry-run"]].concat()).await;
    site.does(&on).await;
    let table = site.does(&["node", "list"]).await;
    assert!(table.contains("maintenance"), "{table}");
    site.does(&["node", "maintenance", "off", "n1"]).await;
    let swap = ["node", "swap", "n1", "--mac", "52:54:00:00:00:01=52:54:00:00:00:99"];
    site.ends(Exit::WouldChange, &[&swap[..], &["--dry-run"]].concat()).await;
    site.does(&swap).await;
    assert_eq!(site.does(&["node", "show", "52:54:00:00:00:99", "-o", "name"]).await, "n1\n");

    let subnet = "10.1.0.0/16,gateway=10.1.0.254";
    site.does(&["network", "add", "boot", "--vlan", "10", "--subnet", subnet]).await;
    site.does(&["partition", "add", "p1", "--boot-network", "boot"]).await;
    assert!(site.does(&["network", "list"]).await.contains("10.1.0.0/16"));
    assert!(site.does(&["partition", "show", "p1"]).await.contains("boot"));
    site.does(&["partition", "remove", "p1"]).await;
    site.does(&["network", "remove", "boot"]).await;
    site.does(&["node", "remove", "n1", "n2", "-y"]).await;
    site.controller.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_audit_events_and_status() {
    let site = Site::start().await;
    assert!(site.does(&["status"]).await.starts_with("ok\n"));
    let secret = site.data_dir.join("ci.token").display().to_string();
    let create = ["token", "create", "ci", "--scope", "read:inventory", "--expires", "1d"];
    site.ends(Exit::WouldChange, &[&create[..], &["--dry-run"]].concat()).await;
    site.does(&[&create[..], &["--out", &secret]].concat()).await;
    site.does(&["node", "list", "--token-file", &secret]).await;
    site.ends(Exit::Refused, &["node", "add", "n1", "--token-file", &secret]).await;

    // Over TLS, with the site's own authority and no other.
    let tls = format!("https://{}", site.controller.tls_addr().expect("it listens"));
    site.does(&["node", "list", "--server", &tls, "--token-file", &secret]).await;
    let told = site.ends(Exit::Usage, &["status", "--server", &tls, "--ca", &secret]).await;
    assert!(told.contains("hint: "), "{told}");

    let id = site.does(&["token", "list", "-o", "name"]).await.trim().to_owned();
    site.does(&["token", "revoke", &id]).await;
    site.ends(Exit::Refused, &["node", "list", "--token-file", &secret]).await;
    assert!(site.does(&["audit", "list"]).await.contains("token/"));
    assert_eq!(site.does(&["audit", "export"]).await.lines().count(), 2);
    assert!(site.does(&["audit", "verify"]).await.starts_with("intact: "));
    let events = site.does(&["events", "--since", "0.0", "-o", "json"]).await;
    assert!(events.contains("\"reset\""), "{events}");
    site.controller.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inventory_of_another_service_is_imported() {
    let site = Site::start().await;
    let table = "name,mac,role,groups\nn1,52:54:00:00:00:01,compute,gpu\nn2,,login,\n";
    let file = site.file("m.csv", table);
    let import = ["node", "import", "csv", file.as_str()];
    let plan = site.ends(Exit::WouldChange, &[&import[..], &["--dry-run"]].concat()).await;
    assert!(plan.contains("+ Node n1\n") && plan.contains("+ Group default/gpu\n"), "{plan}");
    site.does(&import).await;
    assert_eq!(site.does(&["node", "list", "gpu", "-o", "name"]).await, "n1\n");

    // Importing again changes nothing, whatever people have said meanwhile.
    site.does(&["group", "set", "gpu", "--priority", "7"]).await;
    assert_eq!(site.does(&[&import[..], &["-o", "name"]].concat()).await, "");

    // Where there is no SMD, nothing happens, and that is said.
    let unused = std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr();
    let url = format!("http://{}", unused.expect("an address"));
    site.ends(Exit::Failed, &["node", "import", "smd", "--url", &url]).await;
    let told = site.ends(Exit::Refused, &["node", "release", "n1", "role"]).await;
    assert!(told.starts_with("error: node n1 was not imported\n"), "{told}");
    site.controller.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn import_alarm_has_its_exit_code_and_can_be_forced() {
    use hoist_testkit::smd::{Smd, SmdSet};
    let site = Site::start().await;
    let smd = Smd::start(SmdSet::synthetic(20)).await;
    let url = smd.url();
    let import = ["node", "import", "smd", "--url", url.strip_prefix("smd+").unwrap_or(&url)];
    site.does(&import).await;
    smd.edit(|set| (10..20).for_each(|n| set.remove(n)));
    site.does(&import).await;
    let told = site.ends(Exit::Degraded, &import).await;
    assert!(told.contains("10 of 20 nodes are gone") && told.contains("--force"), "{told}");
    assert_eq!(site.does(&["node", "list", "-o", "name"]).await.lines().count(), 20);
    let report = site.does(&[&import[..], &["--force"]].concat()).await;
    assert!(report.contains("10 removed"), "{report}");
    let names = site.does(&["node", "list", "-l", "nid:1-10", "-o", "name"]).await;
    assert_eq!(names.lines().count(), 10);
    smd.stop().await;
    site.controller.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_are_removed_without_a_terminal_only_on_request() {
    let site = Site::start().await;
    for name in ["n1", "n2", "n10"] {
        site.does(&["node", "add", name]).await;
    }
    assert_eq!(site.does(&["node", "list", "-o", "name"]).await, "n1\nn2\nn10\n");
    let told = site.ends(Exit::Refused, &["node", "remove", "n2"]).await;
    assert!(told.contains("`-y`"), "{told}");
    site.ends(Exit::WouldChange, &["node", "remove", "n2", "--dry-run"]).await;
    site.does(&["node", "remove", "n2", "-y"]).await;
    assert_eq!(site.does(&["node", "list", "-o", "name"]).await, "n1\nn10\n");
    let events = site.does(&["events", "--kind", "inventory", "-o", "name"]).await;
    assert_eq!(events.lines().count(), 4, "three nodes were added and one was removed: {events}");
    let events = site.does(&["events", "--last", "1", "-o", "json"]).await;
    assert!(events.lines().count() == 1 && events.contains("\"removed\":1"), "{events}");
    site.controller.stop().await;
}

/// A token may precede its partition, so a misspelt one is no error.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn token_for_an_unknown_partition_is_made_with_a_warning() {
    let site = Site::start().await;
    site.does(&["partition", "add", "p1"]).await;
    let create = ["token", "create", "ci", "--scope"];
    for (scope, warning) in [
        ("read:inventory:partition:p2", Some("partition `p2` does not exist; did you mean `p1`?")),
        ("read:inventory:p1/kettle", Some("group `kettle` does not exist")),
        ("read:inventory:partition:p1", None),
        ("read:inventory", None),
    ] {
        let output = site.run(&[&create[..], &[scope]].concat()).await;
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() && !output.stdout.is_empty(), "{scope}: {told}");
        assert_eq!(told.contains("does not exist"), warning.is_some(), "{scope}: {told}");
        assert!(told.contains(warning.unwrap_or_default()), "{scope}: {told}");
    }
    site.controller.stop().await;
}
