//! `hoist metadata`, with the real program against a whole controller in this process.

use std::path::PathBuf;

use hoist_model::Exit;
use hoist_server::controller::{Config, Controller};
use hoist_server::metadata::Mode;
use hoist_testkit::controller_process::Controller as ControllerProcess;
use hoist_testkit::eventually;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

const SITE: &str = "\
api: hoist/v1
kind: Node
name: n1
spec:
  interfaces: [{name: eth0, mac: '52:54:00:00:00:01', addresses: [10.1.0.1/16]}]
---
api: hoist/v1
kind: MetadataLayer
name: site
spec:
  selector: '*'
  user_data: {timezone: UTC, runcmd: [echo site]}
---
api: hoist/v1
kind: MetadataLayer
name: login
spec:
  selector: node:n1
  user_data: {timezone: Europe/Berlin, runcmd: ['echo {{ node.name }}']}
";

struct Site {
    controller: Controller,
    data_dir: PathBuf,
    dir: tempfile::TempDir,
}

impl Site {
    async fn start() -> Self {
        Self::start_with(|_| {}).await
    }

    async fn start_with(change: impl FnOnce(&mut Config)) -> Self {
        let dir = tempfile::tempdir().expect("a directory for temporary files");
        let data_dir = dir.path().join("data");
        let mut config = Config::new(&data_dir);
        config.listen = Some("127.0.0.1:0".parse().expect("an address"));
        change(&mut config);
        let controller = Controller::start(config).await.expect("the controller starts");
        let site = Self { controller, data_dir, dir };
        let file = site.file("site.yaml", SITE);
        site.ends(Exit::Done, &["apply", "-f", &file]).await;
        site
    }

    fn file(&self, name: &str, text: &str) -> String {
        let path = self.dir.path().join(name);
        fs_err::write(&path, text).expect("a file can be written");
        path.display().to_string()
    }

    /// Runs a command that must end with this code, and returns its standard output and error.
    async fn ends(&self, exit: Exit, words: &[&str]) -> (String, String) {
        let output = tokio::process::Command::new(env!("CARGO_BIN_EXE_hoist"))
            .args(words)
            .env_clear()
            .env("HOIST_DATA_DIR", &self.data_dir)
            .output()
            .await
            .expect("the binary was built for this test");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(i32::from(exit.code())), "{words:?}: {text}{told}");
        (text, told)
    }

    /// The metadata that a node gets.
    async fn fetch(&self, path: &str) -> String {
        let addr = self.controller.plain_addr().expect("an address");
        let mut stream = tokio::net::TcpStream::connect(addr).await.expect("it listens");
        let request = format!("GET {path} HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("it answers");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        body.to_owned()
    }

    async fn does(&self, words: &[&str]) -> String {
        self.ends(Exit::Done, words).await.0
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn enroll_writes_a_token_that_only_its_owner_reads() {
    use std::os::unix::fs::PermissionsExt;
    let site = Site::start().await;
    let (text, _) = site.ends(Exit::WouldChange, &["provision", "enroll", "n1", "--dry-run"]).await;
    assert_eq!(text, "would enroll node n1 (generation 0)\n");
    assert_eq!(site.does(&["provision", "enrollments", "-o", "name"]).await, "");
    let file = site.dir.path().join("n1.token");
    let path = file.display().to_string();
    let (text, told) = site.ends(Exit::Done, &["provision", "enroll", "n1", "--out", &path]).await;
    let token = fs_err::read_to_string(&file).expect("it was written");
    assert_eq!((text.as_str(), token.trim().len()), ("", 32), "{told}");
    assert!(!told.contains(token.trim()), "{told}");
    assert_eq!(fs_err::metadata(&file).expect("a file").permissions().mode() & 0o777, 0o600);
    site.ends(Exit::Refused, &["provision", "enroll", "n1", "--out", &path]).await;
    let by_selector = ["provision", "unenroll", "-l", "node:n1"];
    let dry_run = [&by_selector[..], &["--dry-run"]].concat();
    let (text, _) = site.ends(Exit::WouldChange, &dry_run).await;
    assert_eq!(text, "would unenroll node n1\n");
    site.does(&by_selector).await;
    assert_eq!(site.does(&["provision", "enrollments", "-o", "name"]).await, "");
    let printed = site.does(&["provision", "enroll", "n1"]).await;
    assert_ne!(printed, token, "each enrollment has its own");
    let enrolled: Value =
        serde_json::from_str(&site.does(&["provision", "enrollments", "-o", "json"]).await)
            .expect("JSON");
    assert_eq!((&enrolled[0]["node"], &enrolled[0]["outdated"]), (&"n1".into(), &false.into()));
    assert!(!enrolled.to_string().contains(printed.trim()), "{enrolled}");
    site.ends(Exit::WouldChange, &["provision", "unenroll", "n1", "--dry-run"]).await;
    assert_eq!(site.does(&["provision", "enrollments", "-o", "name"]).await, "n1\n");
    let (text, _) = site.ends(Exit::WouldChange, &["node", "renew", "n1", "--dry-run"]).await;
    assert_eq!(text, "~ Node n1\n    generation: 0 -> 1\n");
    let renewed = site.does(&["node", "renew", "-l", "node:n1", "-o", "json"]).await;
    let renewed: Value = serde_json::from_str(&renewed).expect("JSON");
    assert_eq!((&renewed["changed"], &renewed["affected"]), (&1.into(), &1.into()));
    let enrolled: Value =
        serde_json::from_str(&site.does(&["provision", "enrollments", "-o", "json"]).await)
            .expect("JSON");
    assert_eq!(enrolled[0]["outdated"], true);
    let unenrolled = site.does(&["provision", "unenroll", "n1", "-o", "json"]).await;
    let unenrolled: Value = serde_json::from_str(&unenrolled).expect("JSON");
    assert_eq!((&unenrolled[0]["node"], unenrolled[0]["id"].is_string()), (&"n1".into(), true));
    assert_eq!(site.does(&["provision", "enrollments", "-o", "name"]).await, "");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_metadata_is_printed_with_its_sources() {
    let site = Site::start().await;
    let text = site.does(&["metadata", "render", "n1", "--doc", "user-data"]).await;
    let expected = "#cloud-config\n# layers: site (*), login (node:n1)\nruncmd:\n  - echo site\n  \
                    - echo n1\ntimezone: Europe/Berlin\n";
    assert_eq!(text, expected);
    let all = site.does(&["metadata", "render", "n1"]).await;
    for part in ["==> meta-data <==\n", "==> user-data <==\n", "==> network-config (empty) <==\n"] {
        assert!(all.contains(part), "{part}: {all}");
    }
    let trace = site.does(&["metadata", "render", "n1", "--trace"]).await;
    let row = trace.lines().find(|line| line.contains("timezone")).expect("a row");
    let words: Vec<_> = row.split_whitespace().collect();
    assert_eq!(words, ["user-data", "timezone", "layer:login", "layer:site"]);
    let json = site.does(&["metadata", "render", "n1", "--trace", "-o", "json"]).await;
    let json: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["layers"][1]["name"], "login");

    let listed = site.does(&["metadata", "list"]).await;
    assert!(listed.contains("site   *         0         1      user_data"), "{listed}");
    let yaml = site.does(&["get", "metadatalayer", "login", "-o", "yaml"]).await;
    let again = site.file("again.yaml", &yaml);
    let (same, _) = site.ends(Exit::Done, &["diff", "-f", &again]).await;
    assert!(!same.contains("~ "), "{same}");
    let (_, told) = site.ends(Exit::Failed, &["metadata", "show", "none"]).await;
    assert!(told.contains("hoist metadata list"), "{told}");
    site.ends(Exit::Usage, &["metadata", "render", "n1", "--doc", "x"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fallback_metadata_is_printed_and_marked() {
    let site = Site::start().await;
    let node = |labels: &str| {
        let text = format!(
            "api: hoist/v1\nkind: Node\nname: n1\nspec:\n  labels: {labels}\n  \
             interfaces: [{{name: eth0, mac: '52:54:00:00:00:01', addresses: [10.1.0.1/16]}}]\n"
        );
        site.file("node.yaml", &text)
    };
    let rack = site.file(
        "rack.yaml",
        "api: hoist/v1\nkind: MetadataLayer\nname: rack\nspec:\n  selector: node:n1\n  \
         vendor_data: {motd: '{{ node.labels.rack }}'}\n",
    );
    site.does(&["apply", "-f", &node("{rack: r1}"), "-f", &rack]).await;
    // The node asks for it once.
    let roster = site.controller.registry().roster();
    let id = roster.by_name("n1").expect("a node").id;
    let key = hoist_server::site_key::open(&site.data_dir).expect("the site's key");
    let path = format!("/meta/v1/seed/{id}/{}/vendor-data", key.seed(id, 0).as_str());
    let told = site.fetch(&path).await;
    assert!(told.contains("motd: r1"), "{told}");

    site.does(&["apply", "-f", &node("{}")]).await;
    let render = ["metadata", "render", "n1", "--doc", "vendor-data"];
    let (text, warned) = site.ends(Exit::Done, &render).await;
    assert_eq!(text, told);
    assert!(warned.contains("layer `rack` fails: vendor_data.motd"), "{warned}");
    assert!(warned.contains("is served these, the last documents"), "{warned}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn documents_of_another_service_are_marked() {
    let site = Site::start_with(|config| {
        let mode = Mode::parse("proxy", Some("http://127.0.0.1:9/{name}"), "");
        config.metadata.mode = mode.expect("a mode");
    })
    .await;
    let (text, warned) = site.ends(Exit::Done, &["metadata", "render", "n1"]).await;
    assert!(text.contains("#cloud-config"), "{text}");
    assert!(warned.contains("elsewhere (proxy: http://127.0.0.1:9/n1)"), "{warned}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failing_layer_is_refused_with_its_place() {
    let site = Site::start().await;
    let bad = site.file(
        "bad.yaml",
        "api: hoist/v1\nkind: MetadataLayer\nname: bad\nspec:\n  selector: '*'\n  \
         vendor_data: {motd: '{{ node.labels.rack }}'}\n",
    );
    let (_, told) = site.ends(Exit::Usage, &["apply", "-f", &bad]).await;
    assert!(told.contains("vendor_data.motd") && told.contains("`n1`"), "{told}");
    let wide = site.file(
        "wide.yaml",
        "api: hoist/v1\nkind: MetadataLayer\nname: wide\nspec: {selector: 'role:compute'}\n",
    );
    let (_, told) = site.ends(Exit::Usage, &["apply", "-f", &wide]).await;
    assert!(told.contains("write one of `*`"), "{told}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metadata_example_applies() {
    let site = Site::start().await;
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/metadata/site.yaml");
    let lone = site.file(
        "lone.yaml",
        "api: hoist/v1\nkind: MetadataLayer\nname: lone\nspec: {selector: 'group:gpu'}\n",
    );
    let (_, told) = site.ends(Exit::Usage, &["apply", "-f", &lone]).await;
    assert!(told.contains("group `gpu` does not exist"), "{told}");
    site.does(&["apply", "-f", example]).await;
    let text = site.does(&["metadata", "render", "n1"]).await;
    assert!(text.contains("#cloud-config"), "{text}");
}

#[tokio::test]
async fn hidden_keys_are_told_at_apply_and_in_the_preview() {
    let site = Site::start().await;
    let vendor = "api: hoist/v1\nkind: MetadataLayer\nname: vendor\nspec:\n  selector: '*'\n  \
                  vendor_data: {runcmd: [echo vendor], ntp: {enabled: true}}\n";
    let file = site.file("vendor.yaml", vendor);
    let hidden = "`runcmd` of user-data (layer:site, layer:login) hides `runcmd` of vendor-data \
                  (layer:vendor)";
    let (_, told) = site.ends(Exit::Done, &["apply", "-f", &file]).await;
    assert!(told.contains(hidden) && told.contains("node n1"), "{told}");
    assert!(!told.contains("`ntp`"), "{told}");
    let (_, told) = site.ends(Exit::Done, &["metadata", "render", "n1"]).await;
    assert!(told.contains(hidden), "{told}");
    site.controller.stop().await;
}

#[tokio::test]
async fn seed_and_config_drive_are_there_for_other_boot_loaders() {
    let site = Site::start_with(|config| {
        config.boot.scripts.advertise = vec!["http://10.1.0.254:27778".to_owned()];
    })
    .await;
    let (line, _) = site.ends(Exit::Done, &["metadata", "seed", "n1"]).await;
    let path = line.strip_prefix("ds=nocloud;s=http://10.1.0.254:27778").expect("a seed");
    let path = path.trim_end().strip_suffix(";dsmode=net").expect("the portable form");
    let served = site.fetch(&format!("{path}meta-data")).await;
    assert!(served.contains("hostname: n1"), "{served}");
    let out = site.dir.path().join("n1.iso").display().to_string();
    let drive = ["metadata", "config-drive", "n1", "--out", &out];
    site.ends(Exit::Done, &drive).await;
    let image = fs_err::read(&out).expect("the image");
    let has = |text: &str| image.windows(text.len()).any(|part| part == text.as_bytes());
    assert!(has("config-2") && has("Europe/Berlin") && has("echo n1"), "an image of the documents");
    let mode =
        std::os::unix::fs::PermissionsExt::mode(&fs_err::metadata(&out).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    site.ends(Exit::Refused, &drive).await;
    site.ends(Exit::Failed, &["metadata", "seed", "n9"]).await;
    site.controller.stop().await;
}

#[test]
fn failing_layer_is_in_status_and_metrics() {
    let dir = tempfile::tempdir().expect("a directory for temporary files");
    let controller = ControllerProcess::start(&dir.path().join("data"), &[]);
    let token = controller.admin_token();
    // No request for the readiness comes before those for metrics.
    let gauge = |name: &str| {
        let metrics = controller.ask("GET", "/metrics", Some(&token), "").body;
        let value = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.and_then(|value| value.trim().parse::<f64>().ok())
    };
    eventually("free space is measured", || gauge("hoist_data_disk_free_bytes") > Some(0.0));
    assert_eq!(gauge("hoist_metadata_failing_nodes"), Some(0.0));

    controller.does(&["node", "add", "n1", "--label", "rack=7"]);
    let file = dir.path().join("rack.yaml");
    let layer = "api: hoist/v1\nkind: MetadataLayer\nname: rack\nspec:\n  selector: node:n1\n  \
                 user_data: {motd: '{{ node.labels.rack }}'}\n";
    fs_err::write(&file, layer).expect("a file can be written");
    controller.does(&["apply", "-f", &file.display().to_string()]);
    controller.does(&["status"]);
    controller.does(&["node", "set", "n1", "--label", "rack-"]);
    let argument = controller.does(&["metadata", "seed", "n1"]);
    let path = argument.split("/meta/v1").nth(1).and_then(|rest| rest.split(';').next());
    let path = format!("/meta/v1{}user-data", path.expect("the path of a seed"));
    assert_eq!(controller.get(&path).status, 200);
    eventually("failing node is counted", || gauge("hoist_metadata_failing_nodes") == Some(1.0));
    let status = controller.hoist(&["status"]);
    let told = String::from_utf8_lossy(&status.stdout).into_owned();
    assert_eq!(status.status.code(), Some(Exit::Degraded.code().into()), "{told}");
    assert!(told.contains("metadata layers fail for 1 nodes"), "{told}");
}
