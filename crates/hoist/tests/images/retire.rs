//! A node is retired: a real controller, a real agent on a machine that boots over the network, and a
//! disk that erases itself.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use hoist_testkit::controller_process::Controller;
use hoist_testkit::machine::disk::Disk;
use hoist_testkit::machine::{Firmware, HOST, Hardware, Machine, Permit, guest};
use serde_json::{Value, json};

/// Emulated machines on a busy host.
const DEADLINE: Duration = Duration::from_mins(3);

const MAC: &str = "52:54:00:00:00:01";
const MIB: u64 = 1 << 20;

const PROFILE: &str = "api: hoist/v1\nkind: ProvisionProfile\nname: all\nspec:\n  selector: '*'\n  \
    agent_params: console=ttyS0 quiet no_timer_check\n  document:\n    disks:\n      \
    os: {match: {serial: HOIST-1}, wipe: any}\n";

/// The agent, small: what only debuggers read would take longer to send than everything else.
fn agent(dir: &Path) -> PathBuf {
    let built = Path::new(env!("CARGO_BIN_EXE_hoist")).with_file_name("hoist-agent");
    let agent = dir.join("hoist-agent");
    assert!(built.exists(), "{} not found; run `cargo build -p hoist-agent`", built.display());
    let stripped = Command::new("strip").arg("-o").arg(&agent).arg(&built).status();
    assert!(stripped.is_ok_and(|status| status.success()), "`strip` of binutils is needed");
    agent
}

fn text(path: &Path) -> &str {
    path.to_str().expect("paths of tests are UTF-8")
}

#[test]
fn retired_node_has_erased_its_disk_and_boots_nothing() {
    let _permit = Permit::wait().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("hoist.toml");
    let settings = format!("names = ['{HOST}']\n[boot]\nask_delay = '0s'\nretry_delay = '1s'\n");
    fs_err::write(&config, settings).unwrap();
    let more = ["--tls-listen", "127.0.0.1:0", "--config", text(&config)];
    let controller = Controller::start(&dir.path().join("data"), &more);
    controller.does(&["node", "add", "n1", "--mac", MAC]);
    let kernel = guest::kernel().expect("set up");
    let modules = guest::modules().expect("set up");
    let agent = agent(dir.path());
    let out = dir.path().join("agent");
    let from = ["--kernel", text(&kernel), "--modules", text(&modules), "--agent", text(&agent)];
    let small = ["--out", text(&out), "--level", "1", "--tools", "mke2fs", "--add"];
    controller.does(&[&["agent", "image"][..], &from, &small].concat());
    let profile = dir.path().join("profile.yaml");
    fs_err::write(&profile, PROFILE).unwrap();
    controller.does(&["apply", "-f", text(&profile)]);

    let image = dir.path().join("disk.img");
    fs_err::write(
        &image,
        (0..32 * MIB).map(|at| ((at * at) >> 7).to_le_bytes()[0]).collect::<Vec<_>>(),
    )
    .unwrap();
    controller.does(&["node", "retire", "n1"]);
    let port = controller.port();
    let hardware = Hardware {
        firmware: Firmware::Bios,
        mac: MAC.to_owned(),
        boot_url: format!("http://{HOST}:{port}/boot/v1/bootscript?mac={MAC}"),
        disk: Some(Disk::Nvme { image: image.clone(), serial: "HOIST-1".to_owned() }),
        variables: None,
    };
    let mut machine = Machine::power_on(hardware).expect("a machine");
    machine.wait_for("erase os by format_user_data", DEADLINE).expect("it says so");
    machine.wait_until_off(DEADLINE).expect("it goes off by itself");

    assert!(fs_err::read(&image).unwrap().iter().all(|byte| *byte == 0), "all of it is empty");
    let shown = controller.does(&["provision", "status", "n1"]);
    let line = "n1: disk os erased by format_user_data: nvme0n1, serial HOIST-1";
    assert!(shown.contains(line) && shown.contains("64 samples read back"), "{shown}");
    let shown = controller.does(&["provision", "status", "n1", "-o", "json"]);
    let shown: Value = serde_json::from_str(&shown).unwrap();
    let erased = &shown["nodes"][0]["erased"][0];
    assert_eq!((&erased["verdict"], &erased["size"]), (&json!("erased"), &json!(32 * MIB)));
    let facts = controller.does(&["provision", "facts", "n1", "-o", "json"]);
    assert!(facts.contains("format_user_data"), "{facts}");

    let refused = controller.get(&format!("/boot/v1/bootscript?mac={MAC}"));
    assert_eq!(refused.status, 404, "it boots nothing any more");
    assert!(refused.body.contains("disabled"), "{}", refused.body);
}
