//! `hoist metadata`, with the real program against a whole controller in this process.

use std::path::PathBuf;

use hoist_model::Exit;
use hoist_server::controller::{Config, Controller};
use hoist_server::metadata::Mode;
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

    /// What is printed, on both sides, where the command ends as it should.
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

    /// What a node is told.
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
async fn a_node_is_armed_with_a_token_that_only_its_owner_reads() {
    use std::os::unix::fs::PermissionsExt;
    let site = Site::start().await;
    let (text, _) = site.ends(Exit::WouldChange, &["provision", "arm", "n1", "--dry-run"]).await;
    assert_eq!(text, "would arm node n1 (generation 0)\n");
    assert_eq!(site.does(&["provision", "armed", "-o", "name"]).await, "");
    let file = site.dir.path().join("n1.token");
    let path = file.display().to_string();
    let (text, told) = site.ends(Exit::Done, &["provision", "arm", "n1", "--out", &path]).await;
    let token = fs_err::read_to_string(&file).expect("it was written");
    assert_eq!((text.as_str(), token.trim().len()), ("", 32), "{told}");
    assert!(!told.contains(token.trim()), "{told}");
    assert_eq!(fs_err::metadata(&file).expect("a file").permissions().mode() & 0o777, 0o600);
    site.ends(Exit::Refused, &["provision", "arm", "n1", "--out", &path]).await;
    let printed = site.does(&["provision", "arm", "n1"]).await;
    assert_ne!(printed, token, "each arming has its own");
    let armed: Value =
        serde_json::from_str(&site.does(&["provision", "armed", "-o", "json"]).await)
            .expect("JSON");
    assert_eq!((&armed[0]["node"], &armed[0]["outdated"]), (&"n1".into(), &false.into()));
    assert!(!armed.to_string().contains(printed.trim()), "{armed}");
    site.ends(Exit::WouldChange, &["provision", "disarm", "n1", "--dry-run"]).await;
    assert_eq!(site.does(&["provision", "armed", "-o", "name"]).await, "n1\n");
    let (text, _) = site.ends(Exit::WouldChange, &["node", "renew", "n1", "--dry-run"]).await;
    assert_eq!(text, "~ Node n1\n    generation: 0 -> 1\n");
    let renewed = site.does(&["node", "renew", "-l", "node:n1", "-o", "json"]).await;
    let renewed: Value = serde_json::from_str(&renewed).expect("JSON");
    assert_eq!((&renewed["changed"], &renewed["affected"]), (&1.into(), &1.into()));
    let armed: Value =
        serde_json::from_str(&site.does(&["provision", "armed", "-o", "json"]).await)
            .expect("JSON");
    assert_eq!(armed[0]["outdated"], true);
    let disarmed = site.does(&["provision", "disarm", "n1", "-o", "json"]).await;
    let disarmed: Value = serde_json::from_str(&disarmed).expect("JSON");
    assert_eq!((&disarmed[0]["node"], disarmed[0]["id"].is_string()), (&"n1".into(), true));
    assert_eq!(site.does(&["provision", "armed", "-o", "name"]).await, "");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_node_is_told_is_printed_with_where_it_comes_from() {
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
async fn what_a_node_is_served_instead_is_printed_and_said() {
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
    let key = hoist_server::metadata::key::open(&site.data_dir).expect("the site's key");
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
async fn documents_from_elsewhere_are_said_to_be_that() {
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
async fn a_layer_that_fails_is_refused_with_its_place() {
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
async fn the_example_applies() {
    let site = Site::start().await;
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/metadata/site.yaml");
    site.does(&["apply", "-f", example]).await;
    let text = site.does(&["metadata", "render", "n1"]).await;
    assert!(text.contains("#cloud-config"), "{text}");
}
