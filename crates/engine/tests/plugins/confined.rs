//! Plug-ins that reach beyond their rights: kernel settings, secrets of the controller, and files
//! during calls that must change nothing.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hoist_engine::action::{Action, Catalog, Document, Planner};
use hoist_engine::plugin::{self, Driver, Isolation, IsolationPolicy, PluginError, UnknownPolicy};
use serde_json::{Value, json};

use crate::stage::{Stage, opened, private};

/// A plug-in that makes these attempts on every request, and answers with those that succeeded.
fn attempting(stage: &Stage, name: &str, attempts: &[(&str, &str)]) -> PathBuf {
    let mut tries = String::new();
    for (what, command) in attempts {
        writeln!(tries, "( {command} ) >/dev/null 2>&1 && done=\"$done {what}\"").expect("a text");
    }
    let text = format!(
        r#"#!/bin/sh
IFS= read -r request
done=
{tries}
case $request in
*'"verb":"describe"'*) answer='"description":{{"proto":[1],"name":"{name}","version":"1","about":"did:'$done'","contributes":["x"]}}' ;;
*'"verb":"validate"'*) answer='"diagnostics":[{{"at":"","message":"did:'$done'"}}]' ;;
*'"verb":"contribute"'*) answer='"contributions":[{{"section":"x","id":"i","value":"did:'$done'"}}]' ;;
*'"verb":"plan"'*) answer='"steps":[{{"call":{{"action":"{name}","input":"did:'$done'"}}}}]' ;;
*) answer='"receipt":"did:'$done'"' ;;
esac
echo '{{"t":"result","ok":true,'"$answer"'}}'
"#
    );
    stage.put(name, &text)
}

/// The attempts that succeeded during each request that must change nothing.
fn by_questions(path: &Path, isolation: &Arc<Isolation>) -> Vec<(&'static str, String)> {
    let plugin = opened(path, isolation);
    let document = Document::default();
    let said = |value: Value| value.to_string();
    vec![
        ("describe", plugin.describe().about),
        ("validate", plugin.validate(&Value::Null)[0].message.clone()),
        (
            "contribute",
            said(plugin.contribute(&document, &Value::Null).expect("some")[0].value.clone()),
        ),
        ("plan", said(plugin.plan(&document, &Value::Null).expect("some")[0].call.input.clone())),
    ]
}

/// The attempts that succeeded during a run.
fn by_running(stage: &Stage, path: &Path, isolation: &Arc<Isolation>) -> String {
    let plugin = opened(path, isolation);
    let done = stage.with(Value::Null, |step, ctx| plugin.apply(step, ctx)).expect("it runs");
    done.receipt.as_str().expect("a text").to_owned()
}

/// Each attempt is harmless where it succeeds.
const AT_THE_KERNEL: [(&str, &str); 8] = [
    ("sysctl", "value=$(cat /proc/sys/kernel/panic); echo $value >/proc/sys/kernel/panic"),
    (
        "sysrq",
        "echo h >/proc/sysrq-trigger && [ -s /proc/sysrq-trigger -o -f /proc/sysrq-trigger ]",
    ),
    ("proc", "touch -c /proc/sys"),
    ("sys", "touch -c /sys/kernel"),
    ("cgroup", "mkdir /sys/fs/cgroup/hoist-test && rmdir /sys/fs/cgroup/hoist-test"),
    ("remount", "mount -o remount,rw /proc || mount -o remount,bind,rw /proc"),
    ("uncover", "umount /proc/kcore || umount /proc"),
    (
        "anew",
        "cd \"$(mktemp -d)\" && unshare --user --map-root-user --mount --pid --fork mount -t proc x .",
    ),
];

#[test]
fn plug_in_cannot_set_the_kernel() {
    let stage = Stage::new();
    let path = attempting(&stage, "kernel", &AT_THE_KERNEL);
    assert_eq!(by_running(&stage, &path, &private()), "did:");
    for (verb, did) in by_questions(&path, &private()) {
        assert_eq!(did.trim_matches('"'), "did:", "{verb}");
    }
}

#[test]
fn plug_in_does_not_see_private_files_of_the_controller() {
    let stage = Stage::new();
    let dir = stage.work();
    let dir = dir.parent().expect("it has one");
    let data = dir.join("data");
    let key = dir.join("ssh.key");
    fs_err::create_dir_all(data.join("deploy/local/n1")).expect("a directory");
    fs_err::write(data.join("admin.token"), "hoist-admin").expect("a file");
    fs_err::write(data.join("deploy/journal"), "hoist-journal").expect("a file");
    fs_err::write(&key, "hoist-key").expect("a file");
    let isolation = Arc::new(Isolation::required([data.clone(), key.clone()]));
    let read = |path: &Path| format!("cat {} | grep hoist", path.display());
    let token = data.join("admin.token");
    let journal = data.join("deploy/journal");
    let attempts = [
        ("token", read(&token)),
        ("journal", read(&journal)),
        ("key", read(&key)),
        ("list", format!("ls {} | grep .", data.join("admin.token").display())),
        ("write", format!("echo x >{}", data.join("mark").display())),
        ("uncover", format!("umount {}", data.display())),
        ("root", format!("cat /proc/1/root{} | grep hoist", token.display())),
    ];
    let attempts = attempts.each_ref().map(|(what, command)| (*what, command.as_str()));
    let path = attempting(&stage, "thief", &attempts);
    assert_eq!(by_running(&stage, &path, &isolation), "did:");
    for (verb, did) in by_questions(&path, &isolation) {
        assert_eq!(did.trim_matches('"'), "did:", "{verb}");
    }
    assert!(!data.join("mark").exists());
}

#[test]
fn step_works_in_its_directory_below_hidden_ones() {
    let stage = Stage::new();
    let hidden = stage.work().parent().expect("it has one").to_owned();
    let isolation = Arc::new(Isolation::required([hidden]));
    let body = "echo made >mark; echo '{\"t\":\"result\",\"ok\":true}'";
    let plugin = opened(&stage.put_shell("inside", body), &isolation);
    stage.with(Value::Null, |step, ctx| plugin.apply(step, ctx)).expect("it runs");
    assert_eq!(fs_err::read_to_string(stage.work().join("mark")).expect("a file"), "made\n");
}

#[test]
fn pure_requests_cannot_write_files() {
    let stage = Stage::new();
    let name = format!("hoist-mark-{}", std::process::id());
    let places =
        [stage.work(), stage.work().join(".."), "/etc".into(), "/var/lib".into(), "/".into()];
    let commands = places.map(|place| format!("echo x >{}", place.join(&name).display()));
    let own = "echo '#' >>\"$0\"";
    let mut attempts: Vec<(&str, &str)> = commands.iter().map(|c| ("file", c.as_str())).collect();
    attempts.push(("itself", own));
    let path = attempting(&stage, "writer", &attempts);
    let before = fs_err::read(&path).expect("a file");
    for (verb, did) in by_questions(&path, &private()) {
        assert_eq!(did.trim_matches('"'), "did:", "{verb}");
    }
    assert_eq!(fs_err::read(&path).expect("a file"), before);
    // Temporary directories are private, and are gone afterwards.
    let private_places = ["/tmp", "/var/tmp", "/run", "/dev/shm"];
    let commands = private_places.map(|place| format!("echo x >{place}/{name}"));
    let attempts =
        private_places.iter().zip(&commands).map(|(at, command)| (*at, command.as_str()));
    let path = attempting(&stage, "notes", &attempts.collect::<Vec<_>>());
    for (verb, did) in by_questions(&path, &private()) {
        assert_eq!(did.trim_matches('"'), "did: /tmp /var/tmp /run /dev/shm", "{verb}");
    }
    for place in private_places {
        assert!(!Path::new(place).join(&name).exists(), "{place}");
    }
    // A run may change the machine.
    let attempts = [("work", "echo x >mark"), ("temporary", "f=$(mktemp) && rm $f")];
    assert_eq!(
        by_running(&stage, &attempting(&stage, "works", &attempts), &private()),
        "did: work temporary"
    );
}

#[test]
fn plug_in_that_cannot_be_isolated_is_refused() {
    let stage = Stage::new();
    let path = stage.put_shell("lonely", "touch ran; result");
    let missing = Arc::new(Isolation::Missing { why: "not permitted".to_owned() });
    let error = hoist_engine::plugin::Plugin::open(&path, &missing).expect_err("it is refused");
    assert!(matches!(error, PluginError::NotIsolated { .. }), "{error}");
    let said = error.to_string();
    assert!(said.contains("not permitted") && said.contains("`plugins.isolation`"), "{said}");
    let dir = path.parent().expect("it has one");
    let (plugins, refused) = plugin::load(dir, &missing, &Catalog::default());
    assert_eq!((plugins.len(), refused.len()), (0, 1));
    let driver = dir.join("hoist-driver-lonely");
    fs_err::copy(&path, &driver).expect("a copy");
    let error = Driver::open(dir, "lonely", &missing).expect_err("it is refused");
    assert!(matches!(error, PluginError::NotIsolated { .. }), "{error}");
    // Only the operator's policy permits it.
    let none = Isolation::find(IsolationPolicy::None, None);
    assert!(matches!(none, Isolation::None { .. }), "{none}");
    opened(&path, &Arc::new(none));
    assert_eq!("".parse::<IsolationPolicy>(), Err(UnknownPolicy));
    assert_eq!(json!(private().is_private()), json!(true));
}
