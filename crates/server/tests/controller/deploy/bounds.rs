//! Tasks that want more than there is for them.

use std::path::Path;
use std::process::Command;

use hoist_server::controller::Config;
use serde_json::{Value, json};

use crate::deploy::{
    RUNS, document, eventually, file, mac, plan, put, site, start, step, until, with,
};
use crate::site::{Answer, Site};

fn tasks(may_use: &str, command: &str) -> Value {
    let text = format!(
        "hoist: 1\ntasks:\n  greedy:\n    on: node:n1\n    may_use: {may_use}\n    run: {{shell: {command:?}}}\n"
    );
    json!({"title": "bounds", "files": [{"name": "tasks.yaml", "text": text}]})
}

/// The failure of the task, and its output.
async fn failure(site: &Site, may_use: &str, command: &str) -> (String, String) {
    let run = site.post(RUNS, &tasks(may_use, command)).await.expect(201).json();
    let ended = until(site, run["id"].as_str().expect("an id"), "ended").await;
    assert_eq!(ended["outcome"], "failed", "{ended:#}");
    let failure = &ended["failures"][0];
    let reason = failure["reason"].as_str().expect("a reason").to_owned();
    (reason, failure["output"].to_string())
}

#[tokio::test]
async fn memory_filling_task_is_killed_and_named() {
    let site = site().await;
    // Without a single line end, `tail` keeps all of it.
    let command = "echo $$ > pid; head -c 900M /dev/zero | tail -n 1 | head -c 0; sleep 60";
    let (reason, _) = failure(&site, "{memory: 64M}", command).await;
    assert!(reason.starts_with("limit: the step used "), "{reason}");
    assert!(reason.contains("MiB of memory; the limit is 64 MiB"), "{reason}");
    is_gone(&file(&site, 1, "pid")).await;
    site.stop().await;
}

#[tokio::test]
async fn endlessly_forking_task_is_killed_and_named() {
    let site = site().await;
    // Up to four thousand, each with two children, in sessions of their own.
    fs_err::create_dir_all(file(&site, 1, "")).expect("a directory");
    let script = "echo $$ >> pid; [ \"$1\" -gt 11 ] && exec sleep 60; \
        setsid sh bomb $(($1 + 1)) & setsid sh bomb $(($1 + 1)) & wait";
    fs_err::write(file(&site, 1, "bomb"), script).expect("a script");
    let (reason, _) = failure(&site, "{processes: 40}", "sh bomb 0").await;
    assert!(reason.starts_with("limit: the step had "), "{reason}");
    assert!(reason.ends_with("processes at once; the limit is 40"), "{reason}");
    is_gone(&file(&site, 1, "pid")).await;
    site.stop().await;
}

#[tokio::test]
async fn files_are_bounded_and_nothing_is_dumped() {
    let site = site().await;
    let command = "head -c 3M /dev/zero > big; exit $?";
    let (reason, _) = failure(&site, "{file_size: 1M}", command).await;
    assert!(reason.starts_with("limit: it wrote a larger file than it may"), "{reason}");
    assert_eq!(fs_err::metadata(file(&site, 1, "big")).expect("a file").len(), 1 << 20);
    let command = "ulimit -n; ulimit -c; exit 1";
    let (_, said) = failure(&site, "{open_files: 64}", command).await;
    assert_eq!(said, r#"["64","0"]"#, "open files, and a dump of nothing");
    let (_, said) = failure(&site, "{}", "ulimit -n; ulimit -c; exit 1").await;
    assert!(!said.starts_with(r#"["64""#) && said.ends_with(r#""0"]"#), "{said}");
    site.stop().await;
}

#[tokio::test]
async fn task_inputs_are_checked_before_the_run() {
    let site = site().await;
    for (wrong, said) in [
        ("{memory: 2GB}", "is no size"),
        ("{memory: 0}", "nothing can be done with 0 bytes"),
        ("{processes: 0}", "nothing can be done with 0"),
        ("{memroy: 2G}", "did you mean `memory`?"),
        ("2G", "is a map, not a text"),
    ] {
        let answer = site.post("/deploy/v1/plans", &tasks(wrong, "true")).await.expect(200).json();
        let found = answer["diagnostics"][0].to_string();
        assert!(found.contains(said) && found.contains("tasks.yaml:5:"), "{wrong}: {found}");
        assert_eq!(answer["plan"], Value::Null);
    }
    site.stop().await;
}

#[tokio::test]
async fn task_that_fills_the_disk_pauses_the_run_by_name() {
    let dir = tempfile::tempdir().expect("a directory");
    let disk = Disk::mount(dir.path(), "24m");
    let mut config = Config::new(dir.path());
    config.listen = Some((std::net::Ipv4Addr::LOCALHOST, 0).into());
    config.deploy.local = Some("*".parse().expect("a selector"));
    let site = Site::start_on(dir, config).await.expect("the controller starts");
    let spec = json!({"interfaces": [{"name": "eth0", "mac": mac(1)}]});
    site.apply(&[document("Node", "n1", &spec)]).await;
    let fill = "test -e calm || cat /dev/zero > filler; true";
    let mut steps = vec![with(step("fill@n1", 1, fill, &[]), "repeat", json!("safe"))];
    // More than the allocated space of the journal.
    steps.extend((1..80).map(|n| step(&format!("s{n}@n1"), 1, "true", &[n - 1])));
    let mut draft = plan(&steps);
    draft["subjects"] = json!(["n1"]);
    let run = start(&site, &draft).await;
    // The first writer notices: the journal, or the ledger.
    let rests = |answer: &Answer| {
        ["broken", "ended"].contains(&answer.json()["state"].as_str().unwrap_or_default())
    };
    let stands = site.eventually(&format!("{RUNS}/{run}"), rests).await.json();
    let reason = match stands["broken"].as_str() {
        Some(broken) => broken.to_owned(),
        None => stands["failures"][0]["reason"].to_string(),
    };
    let is_named = ["the journal has no space left; free some", "cannot save progress"];
    assert!(is_named.iter().any(|text| reason.contains(text)), "{stands:#}");

    // Another one is not begun, and leaves nothing that takes room.
    let body = json!({"title": "test", "plan": draft, "allow_concurrent": true});
    let full = site.post(RUNS, &body).await.problem(507, "store-full");
    assert_eq!(full.remedy.as_deref(), Some("make room on the data disk"), "{}", full.detail);
    let left = fs_err::read_dir(site.data_dir().join("journal")).expect("a directory").flatten();
    let left: Vec<_> = left.map(|entry| entry.file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().starts_with("new-")), "{left:?}");

    fs_err::remove_file(file(&site, 1, "filler")).expect("the file");
    put(&site, 1, "calm");
    site.post(&format!("{RUNS}/{run}/resume"), &json!({})).await.expect(200);
    let ended = until(&site, &run, "ended").await;
    assert_eq!(ended["outcome"], "succeeded", "{ended:#}");
    site.stop().await;
    drop(disk);
}

/// A small disk in place of a directory.
struct Disk(std::path::PathBuf);

impl Disk {
    fn mount(at: &Path, size: &str) -> Self {
        let options = format!("size={size},mode=0700");
        let mut mount = Command::new("mount");
        let mounted = mount.args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(at).status();
        assert!(mounted.is_ok_and(|status| status.success()), "this test mounts a tmpfs as root");
        Self(at.to_owned())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

/// Waits until the processes whose numbers are in a file have ended.
async fn is_gone(path: &Path) {
    let pids = fs_err::read_to_string(path).expect("numbers");
    let is_over = |pid: &str| {
        let stat = fs_err::read_to_string(format!("/proc/{pid}/stat"));
        stat.map_or(true, |stat| stat.contains(") Z "))
    };
    assert!(!pids.is_empty());
    eventually("programs have ended", || pids.lines().all(is_over)).await;
}
