//! `hoist bench` against the real program.

use std::process::Output;

use hoist_testkit::controller_process::{Controller, hoist};

const NODES: u32 = 20;

/// A controller with a few nodes that boot something.
struct Site {
    controller: Controller,
    dir: tempfile::TempDir,
}

impl Site {
    fn start() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let controller = Controller::start(dir.path(), &[]);
        let site = Self { controller, dir };
        site.fill();
        site
    }

    fn fill(&self) {
        let config = r#"{"api":"hoist/v1","kind":"BootConfig","name":"all","spec":{"selector":"*","kernel":"http://10.0.0.1/vmlinuz"}}"#;
        let node = |n: u32| {
            format!(
                r#"{{"api":"hoist/v1","kind":"Node","name":"n{n}","spec":{{"interfaces":[{{"name":"eth0","mac":"52:54:00:00:00:{n:02x}"}}]}}}}"#
            )
        };
        let documents: Vec<String> =
            std::iter::once(config.to_owned()).chain((0..NODES).map(node)).collect();
        let file = self.dir.path().join("site.ndjson");
        std::fs::write(&file, documents.join("\n")).expect("a file to apply");
        let file = file.display().to_string();
        self.controller.does(&["apply", "-f", &file]);
    }

    fn hoist(&self, words: &[&str]) -> Output {
        self.controller.hoist(words)
    }

    fn storm(&self, words: &[&str]) -> (Option<i32>, serde_json::Value) {
        let output = self.hoist(&[&["bench", "storm", "-o", "json"], words].concat());
        let report = serde_json::from_slice(&output.stdout);
        (output.status.code(), report.unwrap_or_else(|error| panic!("{error}: {output:?}")))
    }
}

#[test]
fn bench_measures_its_own_site() {
    let site = Site::start();
    for words in [
        ["--nodes", "50", "--clients", "4", "--scripts"].as_slice(),
        &["--nodes", "50", "--rate", "1000"],
        &["--nodes", "50", "--unknown-machines"],
        &["--nodes", "50", "--selector", "node:n1"],
    ] {
        let (code, report) = site.storm(words);
        assert_eq!(code, Some(0), "{words:?}: {report}");
        assert_eq!(report["answered"], 50, "{words:?}: {report}");
        assert_eq!(report["failed"], 0, "{words:?}: {report}");
        let histogram = report["histogram"].as_array().expect("a list");
        let counted: u64 = histogram.iter().filter_map(|b| b["answers"].as_u64()).sum();
        assert_eq!(counted, 50, "{words:?}: {report}");
        let times = &report["milliseconds"];
        assert!(times["p50"].as_f64() <= times["p99"].as_f64(), "{report}");
    }
    let shown = site.hoist(&["bench", "storm", "--nodes", "50"]);
    let shown = String::from_utf8(shown.stdout).expect("text");
    assert!(shown.starts_with("50 answers in ") && shown.contains('█'), "{shown}");
}

#[test]
fn bench_requests_keep_their_schedule_and_end_in_time() {
    let site = Site::start();
    let (code, report) = site.storm(&["--nodes", "1000", "--rate", "100", "--duration", "1s"]);
    assert_eq!(code, Some(0), "{report}");
    let answered = report["answered"].as_u64().expect("a number");
    assert!((1..=101).contains(&answered), "{report}");
    assert_eq!(report["not_asked"], 1000 - answered, "{report}");
}

#[test]
fn failed_answers_are_counted_and_decide_the_exit_code() {
    let scratch = tempfile::tempdir().expect("a directory");
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", nobody.local_addr().expect("bound"));
    drop(nobody);
    let words =
        ["bench", "storm", "--server", &url, "--unknown-machines", "--nodes", "7", "-o", "json"];
    let output = hoist(scratch.path(), &words);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("a report");
    assert_eq!(report["failed"], 7, "{report}");
    // Without a server the nodes are unknown.
    let output = hoist(scratch.path(), &["bench", "storm", "--server", &url]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
}

#[test]
fn bench_of_another_machine_needs_permission() {
    let scratch = tempfile::tempdir().expect("a directory");
    let words = ["bench", "storm", "--server", "http://192.0.2.1:1", "--unknown-machines"];
    let output = hoist(scratch.path(), &words);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("--allow-remote"), "{output:?}");
}

#[test]
fn bench_arguments_have_limits() {
    let scratch = tempfile::tempdir().expect("a directory");
    for words in [
        ["--nodes", "0"],
        ["--nodes", "1000001"],
        ["--clients", "0"],
        ["--clients", "1025"],
        ["--rate", "0"],
        ["--rate", "1000001"],
        ["--duration", "601s"],
        ["--duration", "0s"],
    ] {
        let output = hoist(scratch.path(), &[&["bench", "storm"], words.as_slice()].concat());
        assert_eq!(output.status.code(), Some(2), "{words:?}: {output:?}");
    }
}
