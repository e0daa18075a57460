//! Moving from BSS with the real program: parameters copied from a running one and from its dump.

#[path = "support/controller.rs"]
mod controller;

use controller::Controller;
use hoist_model::Exit;
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
fn a_running_bss_and_its_dump_are_carried_over() {
    let dir = tempfile::tempdir().expect("a directory");
    let (old_dir, new_dir) = (dir.path().join("old"), dir.path().join("new"));
    let (old, new) = (Controller::start(&old_dir, &[]), Controller::start(&new_dir, &[]));
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
    assert!(told.contains("no boot parameters in this dump"), "{told}");
    let dump = old.ask("GET", "/boot/v1/dumpstate", Some(token.trim()), "");
    let mut dump: Value = serde_json::from_str(&dump.body).expect("a dump");
    let broken =
        serde_json::json!({"hosts": ["x0c0s2b0n0"], "kernel": "http://h/k", "params": "a\nb"});
    dump["Params"].as_array_mut().expect("a list").push(broken);
    let file = dir.path().join("dump.json");
    fs_err::write(&file, dump.to_string()).expect("a file");
    let file = file.to_str().expect("a path");
    let partly = new.hoist(&["boot", "import-bss", "--file", file]);
    let told = String::from_utf8_lossy(&partly.stdout).into_owned();
    assert_eq!(partly.status.code(), Some(Exit::Degraded.code().into()), "{told}");
    assert!(told.contains("2 the same already"), "{told}");
    assert!(told.contains("element 3 (x0c0s2b0n0): params: "), "{told}");

    let nobody = new.hoist(&["boot", "import-bss", "--url", "http://127.0.0.1:1"]);
    assert_eq!(nobody.status.code(), Some(Exit::Failed.code().into()), "{nobody:?}");
}
