//! `hoist agent image`, from the outside, with the kernel that `make setup-test` has unpacked.

#[path = "support/controller.rs"]
mod controller;

use std::path::Path;

use controller::{Controller, hoist};
use hoist_model::Exit;
use hoist_testkit::machine::guest;
use serde_json::Value;

/// Any program will do; a level that does not take a minute.
const OTHER: [&str; 6] = ["--agent", "/bin/true", "--level", "1", "--tools", "mke2fs"];

fn text(path: &Path) -> &str {
    path.to_str().expect("paths of tests are UTF-8")
}

fn words(out: &Path, more: &[&str]) -> Vec<String> {
    let (kernel, modules) = (guest::kernel().expect("set up"), guest::modules().expect("set up"));
    let named = ["--kernel", text(&kernel), "--modules", text(&modules), "--out", text(out)];
    let all = [&["agent", "image", "-o", "json"][..], &named, &OTHER, more].concat();
    all.into_iter().map(str::to_owned).collect()
}

#[test]
fn an_image_is_made_and_brought_to_the_controller() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("agent");
    let controller = Controller::start(&dir.path().join("data"), &[]);
    let run = |more: &[&str]| {
        let words = words(&out, more);
        controller.hoist(&words.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let dry = run(&["--dry-run"]);
    assert_eq!(dry.status.code(), Some(i32::from(Exit::WouldChange.code())), "{dry:?}");
    assert!(!out.exists());
    let planned: Value = serde_json::from_slice(&dry.stdout).unwrap();

    let made = run(&["--add"]);
    assert_eq!(made.status.code(), Some(0), "{made:?}");
    // The same input gave the same bytes.
    let mut values = serde_json::Deserializer::from_slice(&made.stdout).into_iter::<Value>();
    let made = values.next().unwrap().unwrap();
    assert_eq!(made, planned);
    let names: Vec<&str> = made["files"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|file| file["artifact"].as_str())
        .collect();
    assert_eq!(names, ["agent-x86_64-kernel", "agent-x86_64-initrd"]);
    let parts: Vec<&str> =
        made["parts"].as_array().unwrap().iter().filter_map(|part| part["part"].as_str()).collect();
    assert_eq!(parts, ["agent", "tools", "modules"]);
    let listed = controller.does(&["artifact", "list", "-o", "name"]);
    assert!(names.iter().all(|name| listed.contains(name)), "{listed}");
    let size = fs_err::metadata(out.join("agent.cpio.zst")).unwrap().len();
    assert_eq!(made["files"][1]["size"], size);

    let refused = run(&["--with", "no_such_driver"]);
    assert_eq!(refused.status.code(), Some(i32::from(Exit::Usage.code())), "{refused:?}");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("has no driver `no_such_driver`"));
}

#[test]
fn an_image_without_an_authority_is_not_made() {
    let dir = tempfile::tempdir().unwrap();
    let words = words(&dir.path().join("agent"), &[]);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let refused = hoist(&dir.path().join("data"), &words);
    assert_eq!(refused.status.code(), Some(i32::from(Exit::Usage.code())), "{refused:?}");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("give it with `--ca FILE`"));
}
