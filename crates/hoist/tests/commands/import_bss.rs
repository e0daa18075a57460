//! Moving from BSS with the real program: parameters copied from a running one and from its dump.

use hoist_model::Exit;
use hoist_testkit::controller_process::Controller;
use serde_json::Value;

const PARAMETERS: &str = "/boot/v1/bootparameters";

/// A server that answers as BSS: hoist itself does, and it wants a token.
fn filled(controller: &Controller, token: &str) {
    for body in [
        r#"{"hosts":["x0c0s1b0n0"],"kernel":"http://h/k","params":"quiet"}"#,
        r#"{"hosts":["Default"],"kernel":"http://h/d"}"#,
        r#"{"kernel":"http://h/k","params":"from=image"}"#,
    ] {
        assert_eq!(controller.ask("PUT", PARAMETERS, Some(token), body).status, 200);
    }
}

#[test]
fn running_bss_and_its_dump_are_imported() {
    let dir = tempfile::tempdir().expect("a directory");
    let old_dir = dir.path().join("old");
    let new_dir = dir.path().join("new");
    let old = Controller::start(&old_dir, &[]);
    let new = Controller::start(&new_dir, &[]);
    let token_file = old_dir.join("admin.token");
    let token = fs_err::read_to_string(&token_file).expect("a token");
    filled(&old, token.trim());
    let url = format!("http://127.0.0.1:{}", old.port());

    let import = ["boot", "import-bss", "--url", &url];
    let refused = new.hoist(&import);
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(Exit::Refused.code().into()), "{told}");
    assert!(told.contains("--bss-token-file"), "{told}");

    let token_file = token_file.to_str().expect("a path");
    let import = [&import[..], &["--bss-token-file", token_file]].concat();
    let dry = new.hoist(&[&import[..], &["--dry-run"]].concat());
    assert_eq!(dry.status.code(), Some(Exit::WouldChange.code().into()), "{dry:?}");
    assert_eq!(new.does(&["boot", "export"]).trim(), "[]", "nothing was changed");
    let told = new.does(&import);
    assert!(told.contains("2 records created, 0 changed"), "{told}");
    assert!(told.contains("parameters of 1 images set"), "{told}");
    let exported = new.does(&["boot", "export"]);
    assert_eq!(exported, old.does(&["boot", "export"]));
    assert_eq!(
        serde_json::from_str::<Value>(&exported).expect("JSON").as_array().map(Vec::len),
        Some(3)
    );

    // The same again from a dump with something in it that cannot be taken.
    let hidden = dir.path().join("hidden.json");
    fs_err::write(&hidden, old.ask("GET", "/boot/v1/dumpstate", None, "").body).expect("a file");
    let refused = new.hoist(&["boot", "import-bss", "--file", hidden.to_str().expect("a path")]);
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(Exit::Usage.code().into()), "{told}");
    assert!(told.contains("the dump contains no boot parameters"), "{told}");
    let dump = old.ask("GET", "/boot/v1/dumpstate", Some(token.trim()), "");
    let mut dump: Value = serde_json::from_str(&dump.body).expect("a dump");
    let broken =
        serde_json::json!({"hosts": ["x0c0s2b0n0"], "kernel": "http://h/k", "params": "a\nb"});
    dump["Params"].as_array_mut().expect("a list").push(broken);
    let file = dir.path().join("dump.json");
    fs_err::write(&file, dump.to_string()).expect("a file");
    let file = file.to_str().expect("a path");
    let dry = new.hoist(&["boot", "import-bss", "--file", file, "--dry-run"]);
    assert_eq!(dry.status.code(), Some(Exit::Degraded.code().into()), "as without --dry-run");
    let partly = new.hoist(&["boot", "import-bss", "--file", file]);
    let told = String::from_utf8_lossy(&partly.stdout).into_owned();
    assert_eq!(partly.status.code(), Some(Exit::Degraded.code().into()), "{told}");
    assert!(told.contains("2 the same already"), "{told}");
    assert!(told.contains("element 3 (x0c0s2b0n0): params: "), "{told}");

    let nobody = new.hoist(&["boot", "import-bss", "--url", "http://127.0.0.1:1"]);
    assert_eq!(nobody.status.code(), Some(Exit::Failed.code().into()), "{nobody:?}");
    let told = String::from_utf8_lossy(&nobody.stderr).into_owned();
    assert!(told.contains("BSS at http://127.0.0.1:1") && told.contains("--url"), "{told}");
    assert!(!told.contains("--server"), "{told}");
}

#[test]
fn boot_parameters_are_listed_and_shown_with_configurations() {
    let dir = tempfile::tempdir().expect("a directory");
    let site = Controller::start(&dir.path().join("data"), &[]);
    filled(&site, &site.admin_token());
    let names = site.does(&["boot", "list", "-o", "name"]);
    assert_eq!(names, "bss:image\nbss:x0c0s1b0n0\nbss:Default\n");
    let table = site.does(&["boot", "list", "-o", "wide"]);
    assert!(table.contains("bss:Default") && table.contains("http://h/d"), "{table}");
    let shown = site.does(&["boot", "show", "bss:x0c0s1b0n0"]);
    assert!(shown.contains("params: quiet"), "{shown}");
    let missing = site.hoist(&["boot", "show", "bss:nothing"]);
    assert_eq!(missing.status.code(), Some(Exit::Failed.code().into()), "{missing:?}");
}

const NODES: &str = "\
api: hoist/v1
kind: Node
name: n1
spec: {xname: x0c0s1b0n0, interfaces: [{name: eth0, mac: '52:54:00:00:00:01'}]}
---
api: hoist/v1
kind: Node
name: n2
spec: {xname: x0c0s2b0n0, subrole: UAN, interfaces: [{name: eth0, mac: '52:54:00:00:00:02'}]}
";

#[test]
fn import_keeps_cloud_init_and_lists_records_that_come_alive() {
    let dir = tempfile::tempdir().expect("a directory");
    let site = Controller::start(&dir.path().join("data"), &[]);
    let nodes = dir.path().join("nodes.yaml");
    fs_err::write(&nodes, NODES).expect("a file");
    site.does(&["apply", "-f", nodes.to_str().expect("a path")]);
    let token = site.admin_token();
    let stored = r#"{"hosts":["x0c0s1b0n0"],"kernel":"http://h/old",
        "cloud-init":{"meta-data":{"a":1},"user-data":{"b":2}}}"#;
    assert_eq!(site.ask("PUT", PARAMETERS, Some(&token), stored).status, 200);
    let dump = dir.path().join("dump.json");
    let params = serde_json::json!({"Components": [], "Params": [
        {"hosts": ["x0c0s1b0n0"], "kernel": "http://h/new"},
        {"hosts": ["x9c0s0b0n0"], "kernel": "http://h/lost"},
        {"hosts": ["UAN"], "kernel": "http://h/uan"},
        {"hosts": ["Default"], "kernel": "http://h/d"},
    ]});
    fs_err::write(&dump, params.to_string()).expect("a file");
    let output = site.hoist(&["boot", "import-bss", "--file", dump.to_str().expect("a path")]);
    let warned = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(warned.contains("no cloud-init data"), "{warned}");
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(told.contains("1 keep their cloud-init data:\n  element 0 (x0c0s1b0n0)"), "{told}");
    assert!(told.contains("2 not served by BSS"), "{told}");
    for revived in ["element 1 (x9c0s0b0n0)", "element 2 (UAN)"] {
        assert!(told.contains(revived), "{told}");
    }
    let kept = site.does(&["boot", "show", "bss:x0c0s1b0n0", "-o", "json"]);
    let kept: Value = serde_json::from_str(&kept).expect("JSON");
    assert_eq!(kept["kernel"], "http://h/new");
    assert_eq!(kept["cloud-init"]["user-data"], serde_json::json!({"b": 2}));
}

#[test]
fn compare_shows_the_nodes_that_boot_differently() {
    let dir = tempfile::tempdir().expect("a directory");
    let nodes = dir.path().join("nodes.yaml");
    fs_err::write(&nodes, NODES).expect("a file");
    let [old, new] = ["old", "new"].map(|name| {
        // Otherwise each would name its own address in `ds=`.
        let environment = [("HOIST_BOOT_DS_ADDRESS", "http://10.1.0.2")];
        let listen = ["--listen", "127.0.0.1:0"];
        let site = Controller::start_with(&dir.path().join(name), &environment, &listen);
        site.does(&["apply", "-f", nodes.to_str().expect("a path")]);
        filled(&site, &site.admin_token());
        site
    });
    let url = format!("http://127.0.0.1:{}", old.port());
    let compare = ["boot", "import-bss", "--url", &url, "--compare"];
    let told = new.does(&compare);
    assert!(told.contains("2 nodes compared, 0 boot differently"), "{told}");

    let changed = r#"{"hosts":["x0c0s1b0n0"],"kernel":"http://h/k","params":"debug"}"#;
    assert_eq!(new.ask("PUT", PARAMETERS, Some(&new.admin_token()), changed).status, 200);
    let differing = new.hoist(&compare);
    let told = String::from_utf8_lossy(&differing.stdout).into_owned();
    assert_eq!(differing.status.code(), Some(Exit::Failed.code().into()), "{told}");
    for expected in ["n1:\n", "  - quiet\n", "  + debug\n", "2 nodes compared"] {
        assert!(told.contains(expected), "{expected} is not in {told}");
    }
    assert!(!told.contains("not compared"), "{told}");
}

#[test]
fn compare_lists_hosts_that_only_bss_knows() {
    let dir = tempfile::tempdir().expect("a directory");
    let nodes = dir.path().join("nodes.yaml");
    let [old, new] = ["old", "new"].map(|name| {
        // Otherwise each would name its own address in `ds=`.
        let environment = [("HOIST_BOOT_DS_ADDRESS", "http://10.1.0.2")];
        let site = Controller::start_with(
            &dir.path().join(name),
            &environment,
            &["--listen", "127.0.0.1:0"],
        );
        fs_err::write(&nodes, NODES).expect("a file");
        site.does(&["apply", "-f", nodes.to_str().expect("a path")]);
        site
    });
    let more = "api: hoist/v1\nkind: Node\nname: n3\nspec: {xname: x0c0s3b0n0}\n";
    fs_err::write(&nodes, more).expect("a file");
    old.does(&["apply", "-f", nodes.to_str().expect("a path")]);
    // The same machine under another xname.
    new.does(&["node", "set", "n2", "--xname", "x0c0s8b0n0"]);
    let url = format!("http://127.0.0.1:{}", old.port());
    let compare = ["boot", "import-bss", "--url", &url, "--compare"];
    let output = new.hoist(&compare);
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(Exit::Failed.code().into()), "{told}");
    let expected =
        "1 hosts of BSS are not in this inventory and were not compared:\n  x0c0s3b0n0\n";
    assert!(told.ends_with(expected), "{told}");
    let output = new.hoist(&[&compare[..], &["-o", "json"]].concat());
    let warned = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(warned.contains("were not compared: x0c0s3b0n0"), "{warned}");
    assert!(serde_json::from_slice::<Value>(&output.stdout).expect("JSON").is_array());
}
