//! The end of a run on finished disks: the report, and its secrets. By hand, as root, on loop
//! devices; virtual machines test the restart.

use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

use hoist_device::kernel;
use hoist_testkit::agent_controller::AgentController;
use hoist_testkit::loop_disk::LoopDisk;
use serde_json::{Value, json};

const MIB: u64 = 1 << 20;

struct Bench {
    server: AgentController,
    disk: LoopDisk,
    dir: tempfile::TempDir,
}

impl Drop for Bench {
    fn drop(&mut self) {
        // A loop device that is used again would still have them.
        let _ = kernel::set_partitions(self.disk.path(), &[]);
    }
}

impl Bench {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let server = AgentController::start(&dir.path().join("ca.pem"));
        let secrets = dir.path().join("secrets/report");
        fs_err::create_dir_all(&secrets).expect("created");
        fs_err::write(secrets.join("token"), "s1\n").expect("written");
        let bench = Self { server, disk: LoopDisk::new(64 * MIB, 512), dir };
        bench.chmod(0o600);
        bench
    }

    fn chmod(&self, mode: u32) {
        let path = self.dir.path().join("secrets/report/token");
        fs_err::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("changed");
    }

    fn document(&self, txn: &str) -> Value {
        let name = self.disk.path().file_name().expect("a name").to_string_lossy().into_owned();
        let port = self.server.port;
        json!({
            "api": "hoist/v1",
            "txn": txn,
            "sections": {
                "node": {"id": "n1"},
                "policy": {"allow_kernel_names": true},
                "disks": {"os": {"match": {"kernel_name": name}}},
                "storage": [{"part": {"id": "swap", "on": "os", "size": "20 MiB"}},
                            {"fs": {"id": "swap-fs", "on": "swap", "kind": "swap"}}],
                "report": {
                    "url": format!("https://127.0.0.1:{port}/provision/v1/agent/runs/r1/report"),
                    "token": "secret://report/token",
                },
            },
        })
    }

    fn agent(&self, verb: &str, document: &Value, more: &[&str]) -> Output {
        let path = self.dir.path().join("node.json");
        fs_err::write(&path, document.to_string()).expect("written");
        let mut agent = Command::new(env!("CARGO_BIN_EXE_hoist-agent"));
        agent.arg(verb).arg("-f").arg(path).arg("--ca").arg(self.dir.path().join("ca.pem"));
        agent.arg("--secrets").arg(self.dir.path().join("secrets")).args(more);
        agent.output().expect("it starts")
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn report_url_gets_the_outcome_and_the_state() {
    let bench = Bench::new();
    let document = bench.document("5d1b6d5e-6f3a-4a7e-9d0c-2f6b1c0a9e21");
    let shown = bench.agent("plan", &document, &[]);
    assert_eq!(shown.status.code(), Some(20), "{shown:?}");
    let told = text(&shown.stdout);
    assert!(told.contains("afterwards: send the report to `https://127.0.0.1:"), "{told}");

    // Before the first apply the report says that the disks differ.
    let before = bench.agent("apply", &document, &["--only", "report"]);
    assert_eq!(before.status.code(), Some(0), "{before:?}");
    let done = bench.agent("apply", &document, &[]);
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    let after = bench.agent("apply", &document, &["--only", "report"]);
    assert_eq!(after.status.code(), Some(0), "{after:?}");
    let reports = bench.server.reports();
    let outcomes: Vec<_> = reports
        .iter()
        .map(|report| (report["outcome"].clone(), report["changed"].clone()))
        .collect();
    let expected = [("failed", false), ("done", true), ("done", false)];
    assert_eq!(outcomes, expected.map(|(word, changed)| (json!(word), json!(changed))));
    for report in &reports {
        assert_eq!((&report["node"], &report["txn"]), (&json!("n1"), &document["txn"]), "{report}");
    }
    assert_eq!(reports[0]["problems"][0]["code"], "differs");
}

#[test]
fn refusal_is_reported_and_failing_receiver_is_named() {
    let bench = Bench::new();
    let mut document = bench.document("5d1b6d5e-6f3a-4a7e-9d0c-2f6b1c0a9e22");
    document["sections"]["storage"][0]["part"]["size"] = json!("2 TiB");
    let refused = bench.agent("apply", &document, &[]);
    assert_eq!(refused.status.code(), Some(3), "{refused:?}");
    let report = bench.server.reports().pop().expect("a report");
    assert_eq!(
        (&report["outcome"], &report["problems"][0]["code"]),
        (&json!("refused"), &json!("no-room"))
    );

    let mut document = bench.document("5d1b6d5e-6f3a-4a7e-9d0c-2f6b1c0a9e23");
    let url = format!("https://127.0.0.1:{}/elsewhere?x=1", bench.server.port);
    document["sections"]["report"]["url"] = json!(url);
    let ended = bench.agent("apply", &document, &[]);
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    let said = text(&ended.stderr);
    assert!(
        said.contains("cannot send the report")
            && said.contains("the receiver answered 404")
            && !said.contains("x=1")
            && said.contains("--only report"),
        "{said}"
    );
}

#[test]
fn erasures_are_reported_and_printed_even_if_the_report_fails() {
    let bench = Bench::new();
    let mut document = bench.document("5d1b6d5e-6f3a-4a7e-9d0c-2f6b1c0a9e25");
    document["sections"]["storage"] = json!([]);
    document["sections"]["erase"] = json!({"disks": ["os"], "method": "overwrite"});
    let done = bench.agent("apply", &document, &["-o", "json"]);
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    let report = bench.server.reports().pop().expect("a report");
    let erased = &report["erased"][0];
    assert_eq!((&erased["disk"], &erased["verdict"]), (&json!("os"), &json!("erased")), "{report}");

    let url = format!("https://127.0.0.1:{}/elsewhere", bench.server.port);
    document["sections"]["report"]["url"] = json!(url);
    let untold = bench.agent("apply", &document, &["-o", "json"]);
    assert_eq!(untold.status.code(), Some(1), "{untold:?}");
    let said: Value = serde_json::from_slice(&untold.stdout).expect("one document");
    let why = said["problems"][0]["message"].as_str().expect("a reason");
    assert!(
        why.contains("cannot send the report") && text(&untold.stderr).contains(why),
        "{untold:?}"
    );
    assert_eq!(
        (&said["erased"][0]["disk"], &said["erased"][0]["samples"]),
        (&json!("os"), &json!(64))
    );
}

#[test]
fn unusable_report_receiver_is_refused_before_any_write() {
    let bench = Bench::new();
    let before = bench.disk.bytes();
    let document = bench.document("5d1b6d5e-6f3a-4a7e-9d0c-2f6b1c0a9e24");
    let change = |url: &str, token: Value| {
        let mut document = document.clone();
        document["sections"]["report"] = json!({"url": url, "token": token});
        document
    };
    let mut nobody = document.clone();
    nobody["sections"].as_object_mut().expect("sections").remove("report");
    nobody["sections"]["flow"] = json!({"actions": ["disks", "report"]});
    for (document, says) in [
        (change("http://127.0.0.1/x", json!("secret://report/token")), "would disclose the token"),
        (change("file:///tmp/x", Value::Null), "not an HTTP URL"),
        (change("https://127.0.0.1/x", json!("secret://other")), "`secret://other` does not exist"),
        (nobody, "no receiver of the report"),
    ] {
        let refused = bench.agent("apply", &document, &[]);
        assert_eq!(refused.status.code(), Some(2), "{refused:?}");
        assert!(text(&refused.stderr).contains(says), "{refused:?}");
    }
    bench.chmod(0o644);
    let refused = bench.agent("apply", &document, &[]);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    assert!(text(&refused.stderr).contains("allows others to read it"), "{refused:?}");
    assert!(bench.disk.bytes() == before);
}
