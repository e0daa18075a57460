//! The real program, as processes: started, killed, started again, side by side, on a full disk.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use hoist_testkit::controller_process::{Controller, hoist, share_key};
use hoist_testkit::etcd::EtcdServer;
use hoist_testkit::eventually;
use hoist_testkit::stores::fresh_name;

fn write_nodes(path: &Path, range: std::ops::Range<u32>) -> String {
    let node = |i: u32| {
        format!(r#"{{"api":"hoist/v1","kind":"Node","name":"n{i}","spec":{{"nid":{}}}}}"#, i + 1)
    };
    let text: Vec<_> = range.map(node).collect();
    fs::write(path, text.join("\n")).expect("a file to apply");
    path.display().to_string()
}

#[test]
fn killed_controller_loses_nothing() {
    let scratch = tempfile::tempdir().unwrap();
    let data_dir = scratch.path().join("data");
    let controller = Controller::start(&data_dir, &[]);
    let file = write_nodes(&scratch.path().join("site.ndjson"), 0..50);
    controller.does(&["apply", "-f", &file]);
    controller.does(&["node", "protect", "n7", "--reason", "precious"]);
    let before = controller.does(&["export"]);
    let token = fs::read(data_dir.join("admin.token")).unwrap();
    controller.kill();

    let controller = Controller::start(&data_dir, &[]);
    assert_eq!(controller.does(&["export"]), before);
    assert_eq!(fs::read(data_dir.join("admin.token")).unwrap(), token);
    assert_eq!(controller.hoist(&["node", "remove", "n7", "--yes"]).status.code(), Some(3));
    assert!(controller.does(&["audit", "verify"]).contains("intact"));

    // The same directory cannot be used twice, and the first one does not mind.
    let second = hoist(&data_dir, &["serve", "--listen", "127.0.0.1:0", "--tls-listen", "off"]);
    assert_eq!(second.status.code(), Some(11), "{second:?}");
    assert_eq!(controller.nodes().len(), 50);
    assert_eq!(controller.terminate(), Some(0), "told to stop, it ends well");
    assert!(!data_dir.join("server.json").exists());
}

#[test]
fn serve_raises_its_limit_of_open_files() {
    let scratch = tempfile::tempdir().unwrap();
    // The soft limit of shells is often too low for a site.
    let mut child = Command::new("sh")
        .args(["-c", "ulimit -S -n 256 && exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_hoist")])
        .args(["serve", "--listen", "127.0.0.1:0", "--tls-listen", "off", "--data-dir"])
        .arg(scratch.path().join("data"))
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut said = std::io::BufReader::new(child.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut said, &mut line).unwrap();
    let limits = fs::read_to_string(format!("/proc/{}/limits", child.id())).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(line.starts_with("listening on"), "{line}");
    let files = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
    let files: Vec<&str> = files.split_whitespace().collect();
    let [soft, hard] = [files[0], files[1]].map(|text| text.parse::<u64>().unwrap_or(u64::MAX));
    assert_eq!(soft, hard.min(524_288), "{limits}");
}

/// A layer of expensive templates for many nodes: its validation takes long.
#[test]
fn stop_does_not_wait_for_the_validation_of_a_layer() {
    let scratch = tempfile::tempdir().unwrap();
    let data_dir = scratch.path().join("data");
    let controller = Controller::start(&data_dir, &[]);
    let file = write_nodes(&scratch.path().join("site.ndjson"), 0..1000);
    controller.does(&["apply", "-f", &file]);
    let work = "{% for a in node.id %}{% for b in node.id %}{% if a == b %}x{% endif %}\
                {% endfor %}{% endfor %}";
    let texts: Vec<_> = (0..100).map(|i| format!("'{work} {i}'")).collect();
    let layer = scratch.path().join("slow.yaml");
    let text = format!(
        "api: hoist/v1\nkind: MetadataLayer\nname: slow\nspec: {{selector: '*', user_data: {{a: [{}]}}}}\n",
        texts.join(", ")
    );
    fs::write(&layer, text).unwrap();
    let path = layer.display().to_string();
    let applying = std::thread::spawn({
        let data_dir = data_dir.clone();
        move || hoist(&data_dir, &["apply", "-f", &path])
    });
    for node in ["n1", "n2", "n3", "n4", "n5", "n6", "n7"] {
        controller.does(&["node", "protect", node, "--reason", "precious"]);
    }
    assert!(!applying.is_finished(), "that was not slow");
    let told = Instant::now();
    assert_eq!(controller.terminate(), Some(0));
    assert!(told.elapsed() < Duration::from_secs(10), "{:?}", told.elapsed());
    let given_up = applying.join().unwrap();
    let said = String::from_utf8(given_up.stderr).unwrap();
    assert!(said.contains("cancelled before it was committed"), "{said}");
}

#[test]
fn directory_with_foreign_files_is_refused() {
    let scratch = tempfile::tempdir().unwrap();
    let serve =
        |dir: &Path| hoist(dir, &["serve", "--listen", "127.0.0.1:0", "--tls-listen", "off"]);
    let home = scratch.path().join("home");
    fs::create_dir(&home).unwrap();
    fs::write(home.join("letter.txt"), "dear").unwrap();
    let refused = serve(&home);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(said.contains("name an empty one"), "{said}");
    assert_eq!(fs::read_dir(&home).unwrap().count(), 1);

    let file = scratch.path().join("file");
    fs::write(&file, "").unwrap();
    assert_eq!(serve(&file).status.code(), Some(2));

    // A store that is not a store, and no last-good copy to serve.
    let broken = scratch.path().join("broken");
    Controller::start(&broken, &[]).terminate();
    fs::remove_file(broken.join("roster.snapshot")).unwrap();
    fs::write(broken.join("hoist.redb"), vec![7; 100_000]).unwrap();
    let refused = serve(&broken);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(said.contains("hoist.redb"), "{said}");
}

#[test]
fn controllers_on_one_etcd_see_each_other() {
    let scratch = tempfile::tempdir().unwrap();
    let url = EtcdServer::shared().url(&fresh_name());
    let dirs = ["one", "two"].map(|name| scratch.path().join(name));
    let one = Controller::start(&dirs[0], &["--store", &url]);
    share_key(&dirs[0], &dirs[1]);
    let two = Controller::start(&dirs[1], &["--store", &url]);
    let file = write_nodes(&scratch.path().join("site.ndjson"), 0..300);
    one.does(&["apply", "-f", &file]);
    eventually("second controller has the nodes", || two.nodes().len() == 300);
    two.does(&["node", "set", "n3", "--role", "login"]);
    eventually("change reaches the first controller", || {
        !one.does(&["node", "list", "role:login", "-o", "name"]).is_empty()
    });
    let clash = two.hoist(&["node", "add", "other", "--nid", "1"]);
    assert_eq!(clash.status.code(), Some(3), "{clash:?}");
    one.kill();
    two.does(&["node", "remove", "n5", "--yes"]);
    let one = Controller::start(&scratch.path().join("one"), &["--store", &url]);
    assert_eq!(one.nodes().len(), 299);
}

#[test]
fn controller_with_another_key_is_refused_until_adopted() {
    let scratch = tempfile::tempdir().unwrap();
    let url = EtcdServer::shared().url(&fresh_name());
    let [one, two] = ["one", "two"].map(|name| scratch.path().join(name));
    let first = Controller::start(&one, &["--store", &url]);
    let serve = ["serve", "--listen", "127.0.0.1:0", "--tls-listen", "off", "--store", &url];
    let refused = hoist(&two, &serve);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(said.contains("ca/site.key") && said.contains("hoist db adopt-key"), "{said}");
    let adopt = |more: &[&str]| {
        let words = [&["db", "adopt-key", "--store", &url], more].concat();
        hoist(&two, &words).status.code()
    };
    assert_ne!(adopt(&[]), Some(0), "not while another one runs");
    assert_eq!(first.terminate(), Some(0));
    assert_eq!(
        (adopt(&["--dry-run"]), adopt(&[]), adopt(&["--dry-run"])),
        (Some(20), Some(0), Some(0))
    );
    Controller::start(&two, &["--store", &url]).terminate();

    // A store that has none yet: looking leaves it so.
    let unused = EtcdServer::shared().url(&fresh_name());
    let adopt = |more: &[&str]| {
        let words = [&["db", "adopt-key", "--store", &unused, "-o", "json"], more].concat();
        let done = hoist(&two, &words);
        (done.status.code(), String::from_utf8(done.stdout).unwrap())
    };
    for _ in 0..2 {
        assert_eq!(adopt(&["--dry-run"]).0, Some(20));
    }
    for changed in [true, false] {
        let (code, text) = adopt(&[]);
        let told: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!((code, &told["changed"]), (Some(0), &changed.into()), "{text}");
    }
}

#[test]
fn prepared_controller_starts_beside_the_first() {
    use std::os::unix::fs::PermissionsExt as _;

    let scratch = tempfile::tempdir().unwrap();
    let url = EtcdServer::shared().url(&fresh_name());
    let [one, two, foreign] = ["one", "two", "foreign"].map(|name| scratch.path().join(name));
    let key = one.join("ca/site.key").display().to_string();
    let join = |dir: &std::path::Path, key: &str, more: &[&str]| {
        let words = [&["db", "join", "--store", &url, "--site-key", key], more].concat();
        let done = hoist(dir, &words);
        (done.status.code(), String::from_utf8(done.stderr).unwrap())
    };
    let early = scratch.path().join("early.key");
    fs_err::write(&early, [7; 32]).unwrap();
    let early = early.display().to_string();
    assert!(join(&two, &early, &[]).1.contains("no controller has started"));
    let first = Controller::start(&one, &["--store", &url]);
    let (code, said) = join(&foreign, &early, &[]);
    assert!(code == Some(3) && said.contains("not the one"), "{code:?} {said}");
    assert!(!foreign.exists(), "nothing is left of it");
    assert_eq!(join(&two, &key, &["--dry-run"]).0, Some(20));
    for _ in 0..2 {
        assert_eq!(join(&two, &key, &[]), (Some(0), String::new()));
    }
    let mode = fs_err::metadata(two.join("ca/site.key")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let second = Controller::start(&two, &["--store", &url]);
    first.does(&["node", "add", "n1"]);
    eventually("second controller has the node", || second.nodes() == ["n1"]);
    assert!(join(&two, &key, &[]).0 != Some(0), "its directory is in use");
}

#[test]
fn store_outage_may_span_a_restart() {
    let scratch = tempfile::tempdir().unwrap();
    let data_dir = scratch.path().join("data");
    let etcd = EtcdServer::start();
    let url = etcd.url(&fresh_name());
    let start = || Controller::start(&data_dir, &["--store", &url]);
    let controller = start();
    let file = write_nodes(&scratch.path().join("site.ndjson"), 0..20);
    controller.does(&["apply", "-f", &file]);
    eventually("last-good copy is written", || data_dir.join("roster.snapshot").exists());

    etcd.stop();
    assert_eq!(controller.nodes().len(), 20, "reads go on");
    let refused = controller.hoist(&["node", "set", "n1", "--role", "login"]);
    assert_eq!(refused.status.code(), Some(5), "whether it landed is not known: {refused:?}");
    eventually("status reports the outage", || {
        controller.hoist(&["status"]).status.code() == Some(7)
    });

    controller.kill();
    let controller = start();
    assert_eq!(controller.nodes().len(), 20, "also after a restart");
    let refused = controller.hoist(&["node", "set", "n1", "--role", "login"]);
    assert_eq!(refused.status.code(), Some(1), "nothing was sent: {refused:?}");

    etcd.resume();
    eventually("write succeeds again", || {
        controller.hoist(&["node", "set", "n1", "--role", "login"]).status.success()
    });
    eventually("status is good", || controller.hoist(&["status"]).status.success());
}

#[test]
fn full_disk_stops_writes_only() {
    let scratch = tempfile::tempdir().unwrap();
    let disk = Disk::mount(&scratch.path().join("disk"), "8m");
    let data_dir = disk.0.join("data");
    let controller = Controller::start(&data_dir, &[]);
    let file = write_nodes(&scratch.path().join("site.ndjson"), 0..100);
    controller.does(&["apply", "-f", &file]);

    let ballast = disk.0.join("ballast");
    fs::write(&ballast, vec![0; 16 << 20]).expect_err("the disk is full now");
    let mut next = 1000;
    eventually("write is refused", || {
        next += 2000;
        let file = write_nodes(&scratch.path().join("more.ndjson"), next..next + 2000);
        let refused = controller.hoist(&["apply", "-f", &file]);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        if !refused.status.success() {
            assert!(said.contains("no space left"), "{said}");
        }
        !refused.status.success()
    });
    let held = controller.nodes().len();
    assert!(held >= 100, "reads go on");
    eventually("status reports the full disk", || {
        let status = controller.hoist(&["status"]);
        let said = String::from_utf8_lossy(&status.stdout).into_owned();
        status.status.code() == Some(7) && said.contains("MiB free")
    });
    controller.kill();
    let controller = Controller::start(&data_dir, &[]);
    let served = controller.nodes().len();
    assert!(served >= 100, "a start needs no space: {served} nodes");
    fs::remove_file(&ballast).unwrap();
    eventually("write succeeds again", || {
        controller.hoist(&["node", "add", "after", "--nid", "900000"]).status.success()
    });
    controller.kill();
    let controller = Controller::start(&data_dir, &[]);
    assert_eq!(controller.nodes().len(), held + 1, "what was refused left no trace");
}

/// A small disk of its own.
struct Disk(PathBuf);

impl Disk {
    fn mount(at: &Path, size: &str) -> Self {
        fs::create_dir(at).expect("a mount point");
        let options = format!("size={size}");
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(at).status();
        assert!(
            mounted.is_ok_and(|status| status.success()),
            "this test mounts a tmpfs and needs root"
        );
        Self(at.to_owned())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

#[test]
fn configuration_names_the_source_of_each_value() {
    let scratch = tempfile::tempdir().unwrap();
    let config = scratch.path().join("hoist.toml");
    fs::write(&config, "listen = '127.0.0.1:1'\n[change_guard]\nnodes = 7\n").unwrap();
    let config = config.display().to_string();
    let words = ["serve", "--config", &config, "--listen", "127.0.0.1:2", "--print-config"];
    let printed = hoist(scratch.path(), &words);
    let text = String::from_utf8(printed.stdout).unwrap();
    assert!(text.contains("from --listen\nlisten = \"127.0.0.1:2\""), "{text}");
    assert!(text.contains("nodes = \"7\""), "{text}");

    fs::write(scratch.path().join("hoist.toml"), "lisen = ':1'\n").unwrap();
    let refused = hoist(scratch.path(), &["serve", "--config", &config]);
    assert_eq!(refused.status.code(), Some(2));
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(said.contains("did you mean `listen`?"), "{said}");
}
