//! `hoist-agent provision` on a running machine: jobs over TLS, on loop devices. As root.

use std::process::{Command, Output};

use hoist_device::kernel;
use hoist_provision::digest::Digest;
use hoist_testkit::agent_controller::AgentController;
use hoist_testkit::eventually;
use hoist_testkit::loop_disk::LoopDisk;
use serde_json::{Value, json};

const MIB: u64 = 1 << 20;
const HOST: &str = "127.0.0.1";

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
    fn new(txn: &str) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let server = AgentController::start(&dir.path().join("ca.pem"));
        let bench = Self { server, disk: LoopDisk::new(64 * MIB, 512), dir };
        let image = vec![7; 16 << 20];
        let packed = zstd::encode_all(&image[..], 1).expect("packed");
        let digest = Digest::of(&packed).to_string();
        let source = bench.server.file(HOST, "root.img.zst", packed);
        bench.server.set_job(bench.document(txn, &source, &digest));
        bench
    }

    fn document(&self, txn: &str, source: &str, digest: &str) -> Value {
        let name = self.disk.path().file_name().expect("a name").to_string_lossy().into_owned();
        json!({
            "api": "hoist/v1",
            "txn": txn,
            "sections": {
                "node": {"id": "n1"},
                "policy": {"allow_kernel_names": true},
                "disks": {"os": {"match": {"kernel_name": name}}},
                "storage": [{"part": {"id": "root", "on": "os", "size": "20 MiB"}}],
                "images": {"root": {
                    "sources": [source], "digest": digest, "target": "root",
                    "compression": "zstd", "size": "16 MiB",
                }},
            },
        })
    }

    fn agent(&self, more: &[&str]) -> Output {
        let port = self.server.port;
        let arguments = self.dir.path().join("kernel-arguments");
        let line = format!(
            "hoist.server=https://{HOST}:{port} hoist.node=01ARZ3NDEKTSV4RRFFQ69G5FAV \
             hoist.token=hunter2\n"
        );
        fs_err::write(&arguments, line).expect("written");
        let mut agent = Command::new(env!("CARGO_BIN_EXE_hoist-agent"));
        agent.arg("provision").arg("--command-line").arg(&arguments);
        agent.arg("--ca").arg(self.dir.path().join("ca.pem")).args(more);
        agent.output().expect("it starts")
    }
}

#[test]
fn job_is_shown_and_then_carried_out_once() {
    let bench = Bench::new("5d1b6d5e-6f3a-4a7e-9d0c-2f6b1c0a9e01");
    let before = bench.disk.bytes();
    let shown = bench.agent(&["--dry-run"]);
    assert_eq!(shown.status.code(), Some(20), "{shown:?}");
    assert!(String::from_utf8_lossy(&shown.stdout).contains("\nplan "), "{shown:?}");
    assert!(bench.disk.bytes() == before && bench.server.reports().is_empty());

    let done = bench.agent(&["--stay"]);
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    assert!(!format!("{done:?}").contains("hunter2"), "the token is nowhere");
    assert!(bench.disk.bytes()[2 << 20..].starts_with(&[7; 4096]));
    let again = bench.agent(&["--stay"]);
    assert_eq!(again.status.code(), Some(0), "{again:?}");
    let changed = bench.server.reports().into_iter().map(|report| report["changed"].clone());
    assert_eq!(changed.collect::<Vec<_>>(), [true, false]);
}

#[test]
fn aborted_agent_ends_and_reports_it() {
    let bench = Bench::new("5d1b6d5e-6f3a-4a7e-9d0c-2f6b1c0a9e02");
    bench.server.abort();
    let ended = bench.agent(&["--stay"]);
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    let report = bench.server.reports().pop().expect("a report");
    assert_eq!(report["outcome"], "aborted", "{report}");
    assert_eq!(report["problems"][0]["code"], "aborted", "{report}");
    assert_eq!(report["problems"][0]["step"].as_str().map(str::is_empty), Some(false), "{report}");
    // Told to go on, the same job goes on from there.
    bench.server.answer("continue", "stay");
    let done = bench.agent(&["--stay"]);
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    assert_eq!(bench.server.reports().pop().expect("a report")["outcome"], "done");
}

#[test]
fn abort_ends_an_agent_that_waits_for_a_silent_server() {
    let txn = "5d1b6d5e-6f3a-4a7e-9d0c-2f6b1c0a9e08";
    let bench = Bench::new(txn);
    let before = bench.disk.bytes();
    // Connections wait in the backlog; no server accepts them.
    let silent = std::net::TcpListener::bind((HOST, 0)).expect("a port");
    let url = format!("http://{}/list", silent.local_addr().expect("an address"));
    let mut document = bench.document(txn, &url, "");
    let stream = json!({"sources": [url], "target": "root"});
    let chunks = json!({"sources": [url], "manifest": url, "target": "root"});
    for image in [stream, chunks] {
        document["sections"]["images"]["root"] = image;
        bench.server.set_job(document.clone());
        bench.server.abort();
        let begun = std::time::Instant::now();
        let ended = bench.agent(&["--stay"]);
        // It asks every ten seconds; the server would be waited for longer than half a minute.
        assert!(begun.elapsed().as_secs() < 25, "{:?}", begun.elapsed());
        assert_eq!(ended.status.code(), Some(1), "{ended:?}");
        let report = bench.server.reports().pop().expect("a report");
        assert_eq!((&report["outcome"], &report["changed"]), (&json!("aborted"), &json!(false)));
        assert_eq!(report["problems"][0]["code"], "aborted", "{report}");
        assert!(
            String::from_utf8_lossy(&ended.stdout).contains("waiting for `http://"),
            "{ended:?}"
        );
    }
    assert!(bench.disk.bytes() == before);
}

#[test]
fn attempt_over_ends_the_agent_and_forbidden_does_not() {
    for (txn, code, outcome) in [
        ("5d1b6d5e-6f3a-4a7e-9d0c-2f6b1c0a9e06", "attempt-over", "aborted"),
        ("5d1b6d5e-6f3a-4a7e-9d0c-2f6b1c0a9e07", "forbidden", "done"),
    ] {
        let bench = Bench::new(txn);
        bench.server.refuse(code);
        let ended = bench.agent(&["--stay"]);
        let report = bench.server.reports().pop().expect("a report");
        assert_eq!(report["outcome"], outcome, "{report} {ended:?}");
    }
}

#[test]
fn refusal_lists_all_reasons_and_writes_nothing() {
    let bench = Bench::new("5d1b6d5e-6f3a-4a7e-9d0c-2f6b1c0a9e03");
    let before = bench.disk.bytes();
    let mut document = bench.document("5d1b6d5e-6f3a-4a7e-9d0c-2f6b1c0a9e03", "file:///x", "");
    document["sections"]["storage"][0]["part"]["size"] = json!("2 TiB");
    document["sections"]["images"] = json!({});
    bench.server.set_job(document);
    let refused = bench.agent(&["--stay"]);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    let report = bench.server.reports().pop().expect("a report");
    assert_eq!((&report["outcome"], &report["changed"]), (&json!("refused"), &json!(false)));
    assert_eq!(report["problems"][0]["code"], "no-room", "{report}");
    assert!(bench.disk.bytes() == before);
}

#[test]
fn disk_backup_is_sent_before_writes_and_restored_on_request() {
    let bench = Bench::new("5d1b6d5e-6f3a-4a7e-9d0c-2f6b1c0a9e05");
    let before = bench.disk.bytes();
    let done = bench.agent(&["--stay"]);
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    let kept = bench.server.backups();
    assert_eq!(
        (kept.len(), &kept[0]["disk"], &kept[0]["size"]),
        (1, &json!("os"), &json!(64 * MIB))
    );
    assert!(kept[0].to_string().len() < 64 << 10, "it is packed");
    assert_ne!(before[..1 << 20], bench.disk.bytes()[..1 << 20]);

    bench.server.undo();
    let undone = bench.agent(&["--stay"]);
    assert_eq!(undone.status.code(), Some(0), "{undone:?}");
    let report = bench.server.reports().pop().expect("a report");
    assert_eq!(
        (&report["outcome"], &report["changed"]),
        (&json!("done"), &json!(true)),
        "{report}"
    );
    let after = bench.disk.bytes();
    assert!(before[..1 << 20] == after[..1 << 20], "its first MiB is as it was");
    assert!(before[63 << 20..] == after[63 << 20..], "and its last");
    // The disk has another owner by now.
    fs_err::write(bench.disk.path(), vec![9; 4096]).expect("written");
    let refused = bench.agent(&["--stay"]);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    let report = bench.server.reports().pop().expect("a report");
    assert_eq!(report["outcome"], "refused", "{report}");
    assert_eq!(report["problems"][0]["code"], "cannot-undo", "{report}");
}

#[test]
fn undo_of_an_erased_disk_is_refused() {
    let txn = "5d1b6d5e-6f3a-4a7e-9d0c-2f6b1c0a9e06";
    let bench = Bench::new(txn);
    let mut document = bench.document(txn, "file:///x", "");
    document["sections"]["images"] = json!({});
    document["sections"]["erase"] = json!({"disks": ["os"], "method": "overwrite"});
    document["sections"]["flow"] = json!({"actions": ["erase"]});
    bench.server.set_job(document);
    let done = bench.agent(&["--stay"]);
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    assert!(bench.server.backups().is_empty());

    bench.server.undo();
    let refused = bench.agent(&["--stay"]);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    let report = bench.server.reports().pop().expect("a report");
    assert_eq!(report["outcome"], "refused", "{report}");
    let problem = &report["problems"][0];
    assert_eq!((&problem["code"], &problem["at"]), (&json!("cannot-undo"), &json!("disks.os")));
}

#[test]
fn undo_of_an_unstarted_job_changes_nothing() {
    let bench = Bench::new("5d1b6d5e-6f3a-4a7e-9d0c-2f6b1c0a9e07");
    let before = bench.disk.bytes();
    bench.server.undo();
    let undone = bench.agent(&["--stay"]);
    assert_eq!(undone.status.code(), Some(0), "{undone:?}");
    let report = bench.server.reports().pop().expect("a report");
    assert_eq!((&report["outcome"], &report["changed"]), (&json!("done"), &json!(false)));
    assert!(bench.disk.bytes() == before);
}

#[test]
fn controller_with_foreign_authority_is_not_trusted() {
    let bench = Bench::new("5d1b6d5e-6f3a-4a7e-9d0c-2f6b1c0a9e04");
    // The authority of another site.
    let other = tempfile::tempdir().expect("a temporary directory");
    let _other = AgentController::start(&other.path().join("ca.pem"));
    fs_err::copy(other.path().join("ca.pem"), bench.dir.path().join("ca.pem")).expect("copied");
    let arguments = bench.dir.path().join("kernel-arguments");
    let port = bench.server.port;
    let line = format!(
        "hoist.server=https://{HOST}:{port} hoist.node=01ARZ3NDEKTSV4RRFFQ69G5FAV hoist.token=t"
    );
    fs_err::write(&arguments, line).expect("written");
    let mut agent = Command::new(env!("CARGO_BIN_EXE_hoist-agent"));
    agent.arg("provision").arg("--stay").arg("--command-line").arg(&arguments);
    agent.arg("--ca").arg(bench.dir.path().join("ca.pem"));
    let said = tempfile::NamedTempFile::new().expect("a file");
    let mut agent = agent.stdout(said.reopen().expect("a file")).spawn().expect("it starts");
    let says = || fs_err::read_to_string(said.path()).expect("text");
    eventually("agent does not trust the controller", || {
        let output = says();
        if output.contains("the controller is not trusted") { Ok(()) } else { Err(output) }
    });
    agent.kill().and_then(|()| agent.wait()).expect("it ends");
    assert!(bench.server.job_requests().is_empty());
}
