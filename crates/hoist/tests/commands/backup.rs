//! `hoist backup` and `hoist db` as people use them: commands, files, exit codes.

#![expect(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use hoist_testkit::controller_process::Controller;
use hoist_testkit::etcd::EtcdServer;
use hoist_testkit::stores::fresh_name;

fn hoist(dir: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_hoist"))
        .args(args)
        .env_clear()
        .env("HOIST_DATA_DIR", dir)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

/// Standard output of a command that ends with this code.
fn ends(dir: &Path, code: i32, args: &[&str]) -> String {
    let ended = hoist(dir, args);
    let out = String::from_utf8_lossy(&ended.stdout);
    let err = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(code), "{args:?}\n{out}\n{err}");
    if code == 0 { out.into_owned() } else { format!("{out}{err}") }
}

/// `hoist serve`, killed with the test if it is not stopped.
struct Server(Child);

impl Server {
    fn start(dir: &Path) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_hoist"))
            .args(["serve", "--listen", "127.0.0.1:0", "--tls-listen", "off"])
            .env_clear()
            .env("HOIST_DATA_DIR", dir)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with("listening"), "{line}");
        Self(child)
    }

    fn stop(mut self) {
        let pid = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        assert!(self.0.wait().unwrap().success());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn site_is_backed_up_verified_restored_and_moved() {
    let scratch = tempfile::tempdir().unwrap();
    let at = |name: &str| scratch.path().join(name);
    let text = |name: &str| at(name).to_str().unwrap().to_owned();
    let one = at("one");
    let two = at("two");
    std::fs::write(at("pass"), "kettle\n").unwrap();
    std::fs::write(at("wrong"), "teapot\n").unwrap();
    let file = text("site.backup");
    let pass = text("pass");
    let wrong = text("wrong");

    // Without a server there is no answer, and without a directory nothing to open.
    ends(&one, 1, &["db", "status", "--offline"]);
    assert!(!one.exists(), "asking makes nothing");

    let server = Server::start(&one);
    ends(&one, 0, &["node", "add", "n1", "--mac", "52:54:00:00:00:01"]);
    let status = ends(&one, 0, &["db", "status", "-o", "json"]);
    assert!(status.contains("\"backend\": \"embedded\""), "{status}");
    let said = ends(&one, 2, &["backup", "create", "--out", &file]);
    assert!(said.contains("--no-encryption"), "{said}");
    assert!(!at("site.backup").exists() && !at("site.backup.partial").exists());
    ends(&one, 0, &["backup", "create", "--out", &file, "--passphrase-file", &pass]);
    let mode = std::fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    ends(&one, 3, &["backup", "create", "--out", &file, "--passphrase-file", &pass]);
    let said = ends(
        &one,
        11,
        &["backup", "create", "--offline", "--force", "--out", &file, "--passphrase-file", &pass],
    );
    assert!(said.contains("in use"), "{said}");
    ends(&one, 0, &["backup", "verify", &file, "--passphrase-file", &pass]);
    ends(&one, 2, &["backup", "verify", &file, "--passphrase-file", &wrong]);
    ends(&one, 2, &["backup", "verify", &file]);
    ends(&one, 2, &["backup", "verify", &pass]);
    let export = text("site.jsonl");
    ends(&one, 0, &["db", "export", "--out", &export]);
    server.stop();

    ends(&one, 3, &["backup", "restore", &file, "--passphrase-file", &pass]);
    let said = ends(&two, 0, &["backup", "restore", &file, "--passphrase-file", &pass]);
    assert!(said.contains("restored to"), "{said}");
    let server = Server::start(&two);
    assert!(ends(&two, 0, &["node", "list", "-o", "name"]).contains("n1"));
    server.stop();

    // Offline, the same things work without a server.
    let plain = text("plain.backup");
    ends(&two, 0, &["backup", "create", "--offline", "--no-encryption", "--out", &plain]);
    ends(&two, 0, &["backup", "verify", &plain]);
    assert_eq!(ends(&two, 0, &["db", "export", "--offline"]).lines().next().unwrap().len(), 36);
    ends(&two, 3, &["db", "import", &export]);
    ends(&two, 0, &["db", "import", &export, "--overwrite"]);
    ends(&two, 2, &["db", "import", &pass, "--overwrite"]);
    let said = ends(&two, 0, &["db", "upgrade"]);
    assert!(said.contains("schema 1 is the newest"), "{said}");

    let store = EtcdServer::shared().url(&fresh_name());
    let said = ends(&two, 20, &["db", "migrate", "--to", &store, "--dry-run"]);
    assert!(said.contains("would be copied"), "{said}");
    let said = ends(&two, 0, &["db", "status", "--store", &store]);
    assert!(said.contains("the store is unused"), "a dry run writes nothing: {said}");
    ends(&two, 0, &["db", "migrate", "--to", &store]);
    ends(&two, 3, &["db", "migrate", "--to", &store]);
    ends(&two, 0, &["db", "migrate", "--to", &store, "--overwrite"]);
    let said = ends(&two, 0, &["db", "status", "--store", &store]);
    assert!(said.contains("etcd"), "{said}");
}

#[test]
fn keys_are_checked_before_anything_is_written() {
    let scratch = tempfile::tempdir().unwrap();
    let out = scratch.path().join("b");
    let out = out.to_str().unwrap();
    let secret = "AGE-SECRET-KEY-1KETTLE";
    let said = ends(scratch.path(), 2, &["backup", "create", "--out", out, "--recipient", secret]);
    assert!(said.contains("public part") && !said.contains("KETTLE"), "{said}");
    assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 0);
}

/// The command in a note after a restore.
fn start_command(restored: &Output) -> String {
    let told = String::from_utf8_lossy(&restored.stderr);
    let command = told.split("start it with `").nth(1).and_then(|rest| rest.split('`').next());
    command.unwrap_or_else(|| panic!("{told}")).to_owned()
}

#[test]
fn restore_names_the_command_that_serves_the_site() {
    let scratch = tempfile::tempdir().unwrap();
    let [one, two, three] = ["one", "two", "three"].map(|name| scratch.path().join(name));
    let file = scratch.path().join("site.backup").display().to_string();
    let server = Server::start(&one);
    ends(&one, 0, &["node", "add", "n1"]);
    ends(&one, 0, &["backup", "create", "--out", &file, "--no-encryption"]);
    server.stop();
    let restored = hoist(&two, &["backup", "restore", &file]);
    assert_eq!(start_command(&restored), format!("hoist serve --data-dir {}", two.display()));
    let store = EtcdServer::shared().url(&fresh_name());
    let restored = hoist(&three, &["backup", "restore", &file, "--store", &store]);
    let command = start_command(&restored);
    let expected = format!("hoist serve --data-dir {} --store {store}", three.display());
    assert_eq!(command, expected);
    // Without the store in the command, an empty site would be served.
    let served = Controller::start(&three, &["--store", &store]);
    assert_eq!(served.nodes(), ["n1"]);
}

#[test]
fn watch_of_nodes_starts_again_after_a_restore() {
    let scratch = tempfile::tempdir().unwrap();
    let [one, two] = ["one", "two"].map(|name| scratch.path().join(name));
    let file = scratch.path().join("site.backup").display().to_string();
    let unused = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = unused.local_addr().unwrap().port();
    drop(unused);
    let controller = Controller::start_on(port, &one, &[]);
    controller.does(&["node", "add", "n1"]);
    controller.does(&["backup", "create", "--out", &file, "--no-encryption"]);
    controller.does(&["node", "add", "n2"]);

    let mut watch = Server(
        Command::new(env!("CARGO_BIN_EXE_hoist"))
            .args(["node", "list", "--watch", "-o", "json"])
            .env_clear()
            .env("HOIST_DATA_DIR", &one)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap(),
    );
    let lines = BufReader::new(watch.0.stdout.take().unwrap()).lines();
    let mut lines = lines.map(|line| {
        let line: serde_json::Value = serde_json::from_str(&line.unwrap()).unwrap();
        (line["type"].as_str().unwrap().to_owned(), line)
    });
    let mut next = || lines.find(|(kind, _)| kind != "bookmark").unwrap();
    let names = [next(), next()].map(|(_, line)| line["node"]["name"].clone());
    assert_eq!(names, ["n1", "n2"]);

    controller.terminate();
    let restored = hoist(&two, &["backup", "restore", &file]);
    assert!(restored.status.success(), "{restored:?}");
    // The watcher goes on with the token that it has.
    std::fs::copy(one.join("admin.token"), two.join("admin.token")).unwrap();
    let controller = Controller::start_on(port, &two, &[]);
    let (kind, gone) = next();
    assert_eq!(kind, "delete", "the node that the backup does not have: {gone}");
    let (kind, line) = next();
    assert_eq!((kind.as_str(), &line["node"]["name"]), ("put", &"n1".into()), "{line}");
    controller.does(&["node", "add", "n3"]);
    let (kind, line) = next();
    assert_eq!((kind.as_str(), &line["node"]["name"]), ("put", &"n3".into()), "{line}");
}
