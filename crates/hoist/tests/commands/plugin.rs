//! `hoist plugin`, from the outside.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use hoist_model::Exit;
use hoist_testkit::eventually;
use serde_json::Value;

fn hoist(words: &[&str]) -> Output {
    let nowhere = tempfile::tempdir().expect("a directory for temporary files");
    Command::new(env!("CARGO_BIN_EXE_hoist"))
        .args(words)
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .env("HOIST_DATA_DIR", nowhere.path())
        .output()
        .expect("the binary was built for this test")
}

#[track_caller]
fn ends(output: &Output, exit: Exit) -> String {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(exit.code().into()), "{text}{errors}");
    text
}

fn text(path: &Path) -> &str {
    path.to_str().expect("paths of tests are UTF-8")
}

#[test]
fn generated_plug_ins_keep_all_rules_in_every_language() {
    for language in ["sh", "python"] {
        let dir = tempfile::tempdir().unwrap();
        let into = text(dir.path());
        let words = ["plugin", "new", "fresh", "--language", language, "--into", into];
        let dry = hoist(&[&words[..], &["--dry-run"]].concat());
        assert!(ends(&dry, Exit::WouldChange).starts_with("#!"));
        let path = dir.path().join("hoist-action-fresh");
        assert!(!path.exists(), "a dry run writes nothing");
        ends(&hoist(&words), Exit::Done);
        let report = ends(&hoist(&["plugin", "check", text(&path), "-o", "json"]), Exit::Done);
        let report: Value = serde_json::from_str(&report).unwrap();
        let results = report["results"].as_array().unwrap();
        assert!(results.iter().all(|found| found["verdict"] == "followed"), "{report:#}");
        assert!(results.iter().any(|found| found["rule"] == "undo"), "{report:#}");
        ends(&hoist(&words), Exit::Failed);
    }
}

#[test]
fn invalid_plug_in_names_are_refused() {
    for name in ["Big", "../x", "", "a b"] {
        ends(&hoist(&["plugin", "new", name]), Exit::Usage);
    }
}

#[test]
fn plug_ins_are_listed_and_unusable_ones_reported() {
    let dir = tempfile::tempdir().unwrap();
    ends(&hoist(&["plugin", "new", "fresh", "--into", text(dir.path())]), Exit::Done);
    let words = ["plugin", "list", "--plugins", text(dir.path())];
    let listed = ends(&hoist(&words), Exit::Done);
    let row = listed.lines().find(|line| line.starts_with("fresh ")).expect("it is listed");
    assert!(row.contains("verify,check,undo"), "{listed}");
    assert!(listed.lines().any(|line| line.starts_with("shell ")), "those of hoist, too: {listed}");
    fs_err::write(dir.path().join("hoist-action-data"), "no program").unwrap();
    takes_a_name(dir.path());
    let output = hoist(&[&words[..], &["-o", "json"]].concat());
    let listing: Value = serde_json::from_str(&ends(&output, Exit::Degraded)).unwrap();
    assert!(listing["refused"][0].as_str().unwrap().contains("not executable"), "{listing:#}");
    assert!(listing["refused"][1].as_str().unwrap().contains("of an action of hoist"));
    assert!(listing["isolation"].is_string());
    let fresh = listing["actions"].as_array().unwrap().iter().find(|one| one["name"] == "fresh");
    assert_eq!(fresh.unwrap()["path"], text(&dir.path().join("hoist-action-fresh")));
}

/// Makes of `hoist-action-fresh` one that takes the name of an action of hoist.
fn takes_a_name(dir: &Path) -> PathBuf {
    let fresh = dir.join("hoist-action-fresh");
    let shell = dir.join("hoist-action-shell");
    fs_err::copy(&fresh, &shell).expect("a copy");
    let named = fs_err::read_to_string(&fresh).expect("a text").replace("fresh", "shell");
    fs_err::write(&shell, named).expect("a file");
    shell
}

#[test]
fn name_of_a_built_in_action_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let new = |name: &str| hoist(&["plugin", "new", name, "--into", text(dir.path())]);
    ends(&new("shell"), Exit::Usage);
    assert!(!dir.path().join("hoist-action-shell").exists());
    ends(&new("fresh"), Exit::Done);
    let shell = takes_a_name(dir.path());
    let report = ends(&hoist(&["plugin", "check", text(&shell)]), Exit::Failed);
    assert!(report.contains("`shell` is an action of hoist"), "{report}");
}

#[test]
fn plug_in_output_does_not_steer_the_terminal() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("hoist-action-evil");
    let said = r#"{"t":"result","ok":false,"error":"\u001b[2J evil\nviolated  forged"}"#;
    fs_err::write(&path, format!("#!/bin/sh\ncat <<'END'\n{said}\nEND\n")).unwrap();
    fs_err::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    let report = ends(&hoist(&["plugin", "check", text(&path)]), Exit::Failed);
    assert!(report.contains(r"\u{1b}[2J evil\nviolated  forged"), "{report}");
    assert!(!report.contains('\u{1b}') && !report.contains("\nviolated  forged"), "{report}");
    let listed = hoist(&["plugin", "list", "--plugins", text(dir.path())]);
    let warned = String::from_utf8_lossy(&listed.stderr).into_owned();
    assert!(warned.contains("evil") && !warned.contains('\u{1b}'), "{warned}");
}

#[test]
fn plug_in_that_violates_a_rule_ends_with_1_and_a_remedy() {
    let dir = tempfile::tempdir().unwrap();
    ends(&hoist(&["plugin", "new", "fresh", "--into", text(dir.path())]), Exit::Done);
    let path = dir.path().join("hoist-action-fresh");
    let good = fs_err::read_to_string(&path).unwrap();
    let spoilt = [
        ("no unsupported", "ok", "verbs"),
        ("\"changed\":false", "\"changed\":true", "run.again"),
        ("rm -f \"$path\"", ":", "undo"),
        ("*) [ -e \"$path\" ] && ok ',\"undone\":false' ;;", "", "undo.no_receipt"),
        ("*'\"receipt\":{\"made\":false}'*) ;;", "*null*) exit 1 ;;", "undo.no_receipt"),
        ("[ \"$path\" ] && ok", "ok", "validate"),
        ("\"version\":\"0.1\"", "\"version\":\"'$(date +%N)'\"", "describe.stable"),
        ("[ -e \"$path\" ] && ok ',\"holds\":true'", "", "verify"),
        ("IFS= read -r request", "IFS= read -r request; echo hello", "describe"),
        ("#!/bin/sh", "#!/bin/false", "describe"),
    ];
    for (from, to, rule) in spoilt {
        assert!(good.contains(from), "the template has `{from}`");
        fs_err::write(&path, good.replace(from, to)).unwrap();
        let report = ends(&hoist(&["plugin", "check", text(&path)]), Exit::Failed);
        let mut lines = report.lines();
        let violated = lines.find(|line| line.starts_with("violated")).expect("a violation");
        assert_eq!(violated.split_whitespace().nth(1), Some(rule), "{report}");
        assert!(lines.next().is_some_and(|remedy| remedy.starts_with("       ")), "{report}");
    }
}

#[test]
fn changing_verbs_without_example_need_an_input() {
    let dir = tempfile::tempdir().unwrap();
    ends(&hoist(&["plugin", "new", "fresh", "--into", text(dir.path())]), Exit::Done);
    let path = dir.path().join("hoist-action-fresh");
    let plain = fs_err::read_to_string(&path).unwrap();
    fs_err::write(&path, plain.replace(",\"example\":{\"path\":\"example\"}", "")).unwrap();
    let report = ends(&hoist(&["plugin", "check", text(&path)]), Exit::Done);
    assert!(report.contains("untried   run"), "{report}");
    let input = dir.path().join("input.json");
    fs_err::write(&input, "{\"path\": \"other\"}").unwrap();
    let words = ["plugin", "check", text(&path), "--input", text(&input)];
    assert!(ends(&hoist(&words), Exit::Done).contains("followed  undo"));
    fs_err::write(&input, "{").unwrap();
    ends(&hoist(&words), Exit::Usage);
}

#[test]
fn plug_in_ends_with_the_process_that_started_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("hoist-action-lasting");
    let word = "8642.97531";
    fs_err::write(&path, format!("#!/bin/sh\nsleep {word}\n")).unwrap();
    fs_err::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    let mut hoist = Command::new(env!("CARGO_BIN_EXE_hoist"))
        .args(["plugin", "check", text(&path)])
        .spawn()
        .expect("the binary was built for this test");
    eventually("plug-in runs", || runs(word));
    hoist.kill().expect("it is ours");
    hoist.wait().expect("it is ours");
    eventually("plug-in is gone", || !runs(word));
}

/// Whether a process has this word in its command line.
fn runs(word: &str) -> bool {
    let entries = fs_err::read_dir("/proc").expect("a proc").flatten();
    let lines = entries.filter_map(|entry| fs_err::read(entry.path().join("cmdline")).ok());
    lines.into_iter().any(|line| String::from_utf8_lossy(&line).contains(word))
}

#[test]
fn disk_examples_keep_all_rules_that_need_no_disk() {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/plugins");
    for name in ["hoist-action-identity", "hoist-action-readahead"] {
        let path = examples.join(name);
        let report = ends(&hoist(&["plugin", "check", text(&path), "-o", "json"]), Exit::Done);
        let report: Value = serde_json::from_str(&report).unwrap();
        let results = report["results"].as_array().unwrap();
        for rule in ["validate", "contribute", "plan", "verbs"] {
            let found = results.iter().find(|found| found["rule"] == rule).unwrap();
            assert_eq!(found["verdict"], "followed", "{report:#}");
        }
    }
}

#[test]
fn packed_plug_ins_hold_their_programs_reproducibly() {
    let dir = tempfile::tempdir().unwrap();
    let plugins = dir.path().join("plugins");
    let more = dir.path().join("more");
    fs_err::create_dir(&plugins).unwrap();
    fs_err::create_dir(&more).unwrap();
    fs_err::write(more.join("table"), "1 2 3\n").unwrap();
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/plugins");
    let name = "hoist-action-readahead";
    fs_err::copy(examples.join(name), plugins.join(name)).unwrap();
    let driver = plugins.join("hoist-driver-plain");
    let about = r#"{"proto":[1],"name":"plain","version":"1"}"#;
    let said = format!(r#"{{"t":"result","ok":true,"description":{about}}}"#);
    fs_err::write(&driver, format!("#!/bin/sh\ncat >/dev/null\necho '{said}'\n")).unwrap();
    fs_err::set_permissions(&driver, PermissionsExt::from_mode(0o755)).unwrap();
    let pack = |out: &Path, words: &[&str]| {
        let with = ["plugin", "pack", text(&plugins), "--with", text(&more), "--out", text(out)];
        hoist(&[&with, words].concat())
    };
    let one = dir.path().join("one.cpio");
    let two = dir.path().join("two.cpio");
    ends(&pack(&one, &["--dry-run"]), Exit::WouldChange);
    assert!(!one.exists());
    let said: Value =
        serde_json::from_str(&ends(&pack(&one, &["-o", "json"]), Exit::Done)).unwrap();
    assert_eq!(said["plugins"], serde_json::json!([name, "hoist-driver-plain"]));
    ends(&pack(&two, &[]), Exit::Done);
    let archive = fs_err::read(&one).unwrap();
    assert!(archive == fs_err::read(&two).unwrap());
    assert_eq!(said["bytes"], archive.len());
    let unpacked = dir.path().join("unpacked");
    fs_err::create_dir(&unpacked).unwrap();
    let ended = Command::new("sh")
        .args(["-c", "cpio -i -d --quiet < \"$0\"", text(&one)])
        .current_dir(&unpacked)
        .status()
        .expect("`cpio` is needed");
    assert!(ended.success());
    let place = unpacked.join("usr/lib/hoist/plugins").join(name);
    assert_eq!(fs_err::read(place).unwrap(), fs_err::read(examples.join(name)).unwrap());
    assert!(unpacked.join(text(&more).trim_start_matches('/')).join("table").exists());
    // With the programs and libraries of the archive alone it starts, and so does what encloses it.
    for words in [
        vec!["/usr/bin/setpriv", "--version"],
        vec!["/usr/bin/unshare", "--version"],
        vec!["/bin/sh", "-c", "echo '{\"verb\":\"plan\"}' | /usr/lib/hoist/plugins/$0", name],
    ] {
        let alone = Command::new("chroot").arg(&unpacked).args(&words).output().expect("as root");
        let said = String::from_utf8_lossy(&alone.stdout).into_owned();
        let error = String::from_utf8_lossy(&alone.stderr);
        assert!(alone.status.success(), "{words:?}: {said}{error}");
        assert!(words.len() < 4 || said.contains(r#""steps":[]"#), "{said}{error}");
    }
    fs_err::write(plugins.join("hoist-action-data"), "no program").unwrap();
    let refused = pack(&two, &[]);
    ends(&refused, Exit::Usage);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("not executable"));
}

/// `hoist plugin list` of a directory with one plug-in, through another program.
fn listed_through(dir: &Path, outer: &[&str], isolation: Option<&str>) -> (Output, Value) {
    // Where it was built another user may not come.
    let built = env!("CARGO_BIN_EXE_hoist");
    let program = dir.join("program");
    if !program.exists() {
        let linked = fs_err::hard_link(built, &program);
        linked.or_else(|_| fs_err::copy(built, &program).map(drop)).expect("a copy");
    }
    let mut command = Command::new(outer[0]);
    command.args(&outer[1..]).arg(program);
    command.args(["plugin", "list", "-o", "json", "--data-dir"]).arg(dir.join("none"));
    command.arg("--plugins").arg(dir);
    command.env_remove("HOIST_CONFIG").env_remove("HOIST_PLUGINS_ISOLATION");
    if let Some(isolation) = isolation {
        command.env("HOIST_PLUGINS_ISOLATION", isolation);
    }
    let output = command.output().expect("it can be started");
    let listing = serde_json::from_slice(&output.stdout).unwrap_or_default();
    (output, listing)
}

fn with_one_plugin() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    let open = PermissionsExt::from_mode(0o755);
    fs_err::set_permissions(dir.path(), open).expect("it is ours");
    ends(&hoist(&["plugin", "new", "fresh", "--into", text(dir.path())]), Exit::Done);
    dir
}

fn has_fresh(listing: &Value) -> bool {
    let mut actions = listing["actions"].as_array().expect("actions").iter();
    actions.any(|action| action["name"] == "fresh")
}

#[test]
fn plug_ins_are_refused_where_namespaces_are_not_permitted() {
    let dir = with_one_plugin();
    let forbidden = [
        "unshare",
        "--user",
        "--map-root-user",
        "/bin/sh",
        "-c",
        "echo 0 >/proc/sys/user/max_mnt_namespaces && exec \"$@\"",
        "sh",
    ];
    let (output, listing) = listed_through(dir.path(), &forbidden, None);
    assert_eq!(output.status.code(), Some(i32::from(Exit::Degraded.code())), "{output:?}");
    assert!(!has_fresh(&listing), "{listing:#}");
    let refused = listing["refused"][0].as_str().expect("a reason");
    assert!(refused.contains("cannot be isolated") && refused.contains("`none`"), "{refused}");
    let (output, listing) = listed_through(dir.path(), &forbidden, Some("none"));
    assert_eq!(output.status.code(), Some(i32::from(Exit::Done.code())), "{output:?}");
    assert!(has_fresh(&listing), "{listing:#}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("without isolation"), "{output:?}");
    let (output, _) = listed_through(dir.path(), &forbidden, Some("perhaps"));
    assert_eq!(output.status.code(), Some(i32::from(Exit::Usage.code())), "{output:?}");
}

/// The values of a directive of the shipped unit, split at spaces.
fn directive(name: &str) -> Vec<String> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../dist/systemd/hoist.service");
    let unit = fs_err::read_to_string(path).expect("the unit");
    let lines = unit.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    lines.flat_map(str::split_whitespace).map(str::to_owned).collect()
}

/// Under systemd itself this was tried by hand: its manager needs a machine of its own.
#[test]
fn shipped_unit_lets_plug_ins_be_isolated() {
    let spaces = directive("RestrictNamespaces");
    for needed in ["user", "mnt", "pid", "net"] {
        assert!(spaces.iter().any(|space| space == needed), "{needed}: {spaces:?}");
    }
    let calls = directive("SystemCallFilter");
    assert_eq!(
        calls,
        ["@system-service", "@mount"],
        "unshare(2) is in the first, mount(2) in the other"
    );
    // These cover parts of /proc, and then an unprivileged process may not mount another one.
    for covering in ["ProtectKernelTunables", "ProtectKernelLogs", "ProcSubset", "PrivateUsers"] {
        assert!(directive(covering).is_empty(), "{covering}");
    }
    assert_eq!(directive("CapabilityBoundingSet"), Vec::<String>::new());
    // A user without rights, who can get none.
    let dir = with_one_plugin();
    let as_unit = [
        "setpriv",
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
        "--no-new-privs",
        "--inh-caps=-all",
        "--bounding-set=-all",
        "--",
    ];
    let (output, listing) = listed_through(dir.path(), &as_unit, None);
    assert_eq!(output.status.code(), Some(i32::from(Exit::Done.code())), "{output:?}");
    assert_eq!(listing["isolation"], "mounts, processes, network and users of its own");
    assert!(has_fresh(&listing), "{listing:#}");
}
