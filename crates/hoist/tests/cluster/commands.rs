//! The commands of an operator, without machines that join.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use hoist_model::Exit;
use hoist_testkit::controller_process::Controller;
use serde_json::Value;

struct Site {
    controller: Controller,
    data_dir: PathBuf,
    dir: tempfile::TempDir,
}

/// A command that has ended: its code, standard output and standard error.
#[derive(Debug)]
struct Ended {
    code: Option<i32>,
    out: String,
    err: String,
}

fn start(data_dir: &Path) -> Controller {
    Controller::start(data_dir, &["--tls-listen", "127.0.0.1:0"])
}

impl Site {
    fn start() -> Self {
        let dir = tempfile::tempdir().expect("a directory for temporary files");
        let data_dir = dir.path().join("data");
        Self { controller: start(&data_dir), data_dir, dir }
    }

    fn founded() -> Self {
        let site = Self::start();
        site.ends(Exit::Done, &["found", "--name", "lab"]);
        site
    }

    fn run(&self, words: &[&str]) -> Ended {
        let output = self.controller.hoist(&[&["cluster"], words].concat());
        Ended {
            code: output.status.code(),
            out: String::from_utf8(output.stdout).expect("output is UTF-8"),
            err: String::from_utf8(output.stderr).expect("messages are UTF-8"),
        }
    }

    fn ends(&self, exit: Exit, words: &[&str]) -> Ended {
        let ended = self.run(words);
        assert_eq!(ended.code, Some(exit.code().into()), "hoist cluster {words:?}: {ended:?}");
        ended
    }

    fn value(&self, words: &[&str]) -> Value {
        let ended = self.ends(Exit::Done, &[words, &["-o", "json"]].concat());
        serde_json::from_str(&ended.out).expect("output is JSON")
    }

    fn file(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }
}

#[test]
fn commands_without_a_cluster_end_with_9_and_the_remedy() {
    let site = Site::start();
    let commands: [&[&str]; 15] = [
        &["status"],
        &["nodes"],
        &["roles"],
        &["roles", "--explain", "n1"],
        &["place", "n1", "--pin", "data"],
        &["plan"],
        &["plan", "--preview"],
        &["pin"],
        &["token", "create"],
        &["token", "create", "--dry-run"],
        &["token", "list"],
        &["pending"],
        &["accept", "aaaa0000"],
        &["expel", "n1", "-y"],
        &["targets"],
    ];
    for command in commands {
        let ended = site.ends(Exit::NoCluster, command);
        assert_eq!(
            ended.err,
            "error: this site has no cluster\nhint: found one with `hoist cluster found --name NAME`\n",
            "{command:?}"
        );
        assert!(ended.out.is_empty(), "{command:?}: {ended:?}");
    }
}

#[test]
fn cluster_is_founded_once() {
    let site = Site::start();
    let dry = site.ends(Exit::WouldChange, &["found", "--name", "lab", "--dry-run"]);
    assert_eq!(dry.out, "would found cluster lab\n");
    site.ends(Exit::NoCluster, &["status"]);
    site.ends(Exit::Usage, &["found", "--name", "not a name"]);
    let contradiction = ["--assignment", "declared", "--rebalance-on-join"];
    site.ends(Exit::Usage, &[&["found", "--name", "lab"], &contradiction[..]].concat());

    let founded = site.ends(Exit::Done, &["found", "--name", "lab"]);
    let status = site.value(&["status"]);
    let uid = status["uid"].as_str().unwrap();
    let pin = status["pin"].as_str().unwrap();
    assert_eq!(founded.out, format!("cluster lab is founded\n  uid  {uid}\n  pin  {pin}\n"));
    assert!(founded.err.contains("`hoist cluster token create`"), "{}", founded.err);
    assert_eq!(site.ends(Exit::Done, &["pin"]).out, format!("{pin}\n"));
    assert_eq!(status["scale"], "empty");
    assert_eq!((&status["degraded"], &status["counts"]["members"]), (&false.into(), &0.into()));
    let shown = site.ends(Exit::Done, &["status"]).out;
    assert!(shown.starts_with("ok\n  cluster  lab, founded "), "{shown}");
    assert!(shown.contains(&format!("\n  pin      {pin}\n")), "{shown}");

    for more in [&[][..], &["--dry-run"]] {
        let again = site.ends(Exit::Refused, &[&["found", "--name", "other"], more].concat());
        assert!(again.err.contains("the cluster `lab`"), "{again:?}");
        assert!(again.err.contains("hint: join nodes to it"), "{again:?}");
    }

    let Site { controller, data_dir, dir } = site;
    assert!(controller.does(&["audit", "verify"]).contains("intact"));
    controller.kill();
    let site = Site { controller: start(&data_dir), data_dir, dir };
    let restarted = site.value(&["status"]);
    assert_eq!((&restarted["uid"], &restarted["pin"]), (&status["uid"], &status["pin"]));
}

#[test]
fn founding_takes_who_assigns_roles() {
    let site = Site::start();
    site.ends(Exit::Done, &["found", "--name", "hpc", "--assignment", "declared", "-o", "name"]);
    assert_eq!(site.value(&["status"])["assignment"], "declared");
    let site = Site::start();
    site.ends(Exit::Done, &["found", "--name", "lab", "--rebalance-on-join"]);
    let status = site.value(&["status"]);
    assert_eq!(
        (&status["assignment"], &status["mode"]),
        (&"automatic".into(), &"rebalance".into())
    );
}

#[test]
fn join_token_is_shown_once() {
    let site = Site::founded();
    let out = site.file("join.token");
    let dry = site.ends(Exit::WouldChange, &["token", "create", "--out", &out, "--dry-run"]);
    assert_eq!(dry.out, "would make a join token for 1 node for 1h\n");
    assert!(!Path::new(&out).exists());
    assert_eq!(site.value(&["token", "list"]), Value::Array(Vec::new()));

    let made = site.ends(Exit::Done, &["token", "create", "--out", &out]);
    let token = std::fs::read_to_string(&out).unwrap();
    let secret = token.trim_end().rsplit('.').next().unwrap();
    assert!(token.starts_with("hj1.") && secret.len() == 40, "{} characters", token.len());
    let pin = site.ends(Exit::Done, &["pin"]).out;
    assert!(token.contains(pin.trim_end().strip_prefix("sha256:").unwrap()));
    let mode = std::fs::metadata(&out).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert!(made.out.is_empty() && !made.err.contains(secret), "{made:?}");

    // A file with a secret is never written over, and no second token is made.
    site.ends(Exit::Refused, &["token", "create", "--out", &out]);
    site.ends(Exit::Refused, &["token", "create", "--out", &out, "--dry-run"]);
    assert_eq!(std::fs::read_to_string(&out).unwrap(), token);
    let listed = site.value(&["token", "list"]);
    assert_eq!(listed.as_array().unwrap().len(), 1);

    let second = site.file("second.token");
    let entry = site.value(&["token", "create", "--out", &second]);
    assert!(entry.get("token").is_none(), "{entry}");
    let shown = site.value(&["token", "create"]);
    assert!(shown["token"].as_str().unwrap().starts_with("hj1."));
    let printed = site.ends(Exit::Done, &["token", "create"]);
    assert!(printed.out.starts_with("hj1.") && printed.out.lines().count() == 1);
    assert!(printed.err.contains("it is not shown again"), "{}", printed.err);

    let audited = site.controller.does(&["audit", "list", "-o", "json"]);
    let listed = site.ends(Exit::Done, &["token", "list", "-o", "wide"]).out;
    let printed_secret = printed.out.trim_end().rsplit('.').next().unwrap();
    for secret in [secret, printed_secret] {
        assert!(!audited.contains(secret) && !listed.contains(secret));
    }
}

#[test]
fn limits_of_a_join_token_are_listed() {
    let site = Site::founded();
    let created = site.value(&[
        "token",
        "create",
        "--ttl",
        "2d",
        "--uses",
        "64",
        "--roles",
        "compute,edge",
        "--names",
        "nid*",
        "--network",
        "10.1.0.0/16",
        "--network",
        "fd00::/64",
        "--manual",
    ]);
    let lifetime = |token: &Value| {
        let at = |key: &str| token[key].as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
        at("expires").duration_since(at("created")).as_hours()
    };
    assert_eq!((lifetime(&created), &created["uses_left"]), (48, &64.into()));
    let listed = site.ends(Exit::Done, &["token", "list"]).out;
    let limits = "role compute, role edge, name nid*, from 10.1.0.0/16, from fd00::/64, manual";
    assert!(listed.contains(limits), "{listed}");

    let wrong: [&[&str]; 7] = [
        &["--ttl", "soon"],
        &["--ttl", "10000d"],
        &["--uses", "0"],
        &["--uses", "10001"],
        &["--network", "10.1.0.0/99"],
        &["--names", "a/b"],
        &["--roles", "a b"],
    ];
    for words in wrong {
        site.ends(Exit::Usage, &[&["token", "create"], words].concat());
    }
    assert_eq!(site.value(&["token", "list"]).as_array().unwrap().len(), 1);
}

#[test]
fn join_tokens_are_revoked_all_or_none() {
    let site = Site::founded();
    let ids: Vec<String> = (0..2)
        .map(|_| site.value(&["token", "create"])["id"].as_str().unwrap().to_owned())
        .collect();
    let [first, second] = [&ids[0], &ids[1]].map(String::as_str);
    let dry = site.ends(Exit::WouldChange, &["token", "revoke", first, "--dry-run"]);
    assert_eq!(dry.out, format!("would revoke join token {first}\n"));
    let unknown = site.ends(Exit::Failed, &["token", "revoke", first, "0123456789abcdef"]);
    assert!(unknown.err.contains("hint: `hoist cluster token list`"), "{unknown:?}");
    let revoked = |id: &str| {
        let listed = site.value(&["token", "list"]);
        let tokens = listed.as_array().unwrap();
        tokens.iter().find(|token| token["id"] == id).unwrap()["revoked"].as_bool().unwrap()
    };
    assert!(!revoked(first) && !revoked(second));

    site.ends(Exit::Done, &["token", "revoke", &first[..8]]);
    assert!(revoked(first) && !revoked(second));
    let again = site.ends(Exit::Done, &["token", "revoke", first]);
    assert!(again.err.contains("is revoked already"), "{again:?}");
    let table = site.ends(Exit::Done, &["token", "list"]).out;
    let line = table.lines().find(|line| line.starts_with(first)).unwrap();
    assert!(line.contains("revoked"), "{table}");
}

#[test]
fn cluster_without_members_answers_every_question() {
    let site = Site::founded();
    for (words, note) in [
        (&["nodes"][..], "no members\n"),
        (&["roles"], "no members\n"),
        (&["pending"], "no machine waits\n"),
        (&["token", "list"], "no join tokens\n"),
    ] {
        let ended = site.ends(Exit::Done, words);
        assert_eq!((ended.out.as_str(), ended.err.as_str()), ("", note), "{words:?}");
        assert_eq!(site.value(words), Value::Array(Vec::new()), "{words:?}");
    }
    let plan = site.ends(Exit::Done, &["plan"]).out;
    assert_eq!(plan, "plan generation 0, scale empty, 0 members\n");
    site.ends(Exit::Done, &["plan", "--preview"]);
    site.ends(Exit::Usage, &["plan", "--dry-run"]);
    assert_eq!(site.ends(Exit::Done, &["targets"]).out, "[]\n");

    let unknown: [&[&str]; 8] = [
        &["roles", "--explain", "n1"],
        &["place", "n1", "--anywhere"],
        &["plan", "--consent", "n1"],
        &["accept", "n1", "--dry-run"],
        &["reject", "n1"],
        &["drain", "n1", "--dry-run"],
        &["expel", "n1", "-y"],
        &["replace", "n1", "n2"],
    ];
    for words in unknown {
        let ended = site.ends(Exit::Failed, words);
        assert!(
            ended.err.contains("`n1` not found\nhint: `hoist cluster "),
            "{words:?}: {ended:?}"
        );
    }
    site.ends(Exit::Usage, &["place", "n1"]);
    site.ends(Exit::Usage, &["place", "n1", "--pin", "kettle"]);
    site.ends(Exit::Usage, &["place", "n1", "--pin", "data", "--forbid", "data"]);
}

#[test]
fn token_without_the_right_is_refused() {
    let site = Site::founded();
    let file = site.file("inventory.token");
    let scope = ["--scope", "read,write:inventory", "--out", &file];
    site.controller.does(&[&["token", "create", "ci"][..], &scope].concat());
    for words in [&["status"][..], &["token", "create"], &["pending"]] {
        site.ends(Exit::Refused, &[words, &["--token-file", &file]].concat());
    }
    let file = site.file("reader.token");
    let scope = ["--scope", "read:cluster", "--out", &file];
    site.controller.does(&[&["token", "create", "reader"][..], &scope].concat());
    site.ends(Exit::Done, &["status", "--token-file", &file]);
    site.ends(Exit::Refused, &["token", "create", "--token-file", &file]);
}
