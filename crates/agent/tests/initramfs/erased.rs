//! Disks that erase themselves: a real command to a controller that is emulated.

use std::process::Command;

use hoist_machine::{Drive, Firmware, StandaloneMachine};
use serde_json::{Value, json};

use crate::script::{Scenario, digest};
use crate::{Bench, DEADLINE, MIB, TXN, random, run};

fn job(method: &str, more: &Value) -> Value {
    let mut sections = json!({
        "node": {"id": "n1"},
        "disks": {"os": {"match": {"serial": "HOIST1"}, "wipe": "any"}},
        "erase": {"disks": ["os"], "method": method},
    });
    let more = more.as_object().cloned().unwrap_or_default();
    sections.as_object_mut().expect("an object").extend(more);
    json!({"api": "hoist/v1", "txn": TXN, "sections": sections})
}

fn noise(bench: &Bench) -> Vec<u8> {
    let size = fs_err::metadata(bench.disk()).expect("there").len();
    let noise = random(size);
    fs_err::write(bench.disk(), &noise).expect("written");
    noise
}

#[test]
fn erase_command_is_proven_to_the_controller() {
    let bench = Bench::with_disk(48);
    let before = noise(&bench);
    bench.server.answer("continue", "power_off");
    let boot = |document: Value| {
        bench.server.set_job(document);
        let mut machine = bench.power_on();
        machine.wait_for("powering off the machine", DEADLINE).expect("it says so");
        machine.wait_until_off(DEADLINE).expect("it goes off");
        bench.server.reports().pop().expect("a report")
    };

    // A method that the disk does not offer has no fallback.
    let report = boot(job("crypto", &json!({})));
    assert_eq!(report["outcome"], "refused", "{report}");
    assert!(report.get("erased").is_none(), "{report}");
    assert!(fs_err::read(bench.disk()).expect("there") == before, "nothing was written");
    let facts = bench.server.job_requests().pop().expect("a job")["facts"].clone();
    assert_eq!(facts["disks"][0]["erase"], json!(["format_user_data"]), "{facts}");

    // The erase comes before the table, so the marker of work in progress is written after it.
    let table = json!({"storage": [{"part": {"id": "a", "on": "os", "size": "rest"}}]});
    let report = boot(job("strongest", &table));
    assert_eq!(report["outcome"], "done", "{report}");
    assert_eq!(report["erased"][0]["method"], "format_user_data", "{report}");
    let verified = run(Command::new("sgdisk").arg("-v").arg(bench.disk()));
    assert!(verified.contains("No problems found"), "{verified}");
    let now = fs_err::read(bench.disk()).expect("there");
    let mib = 1 << 20;
    let end = now.len() - (1 << 20);
    assert!(now[mib..end].iter().all(|byte| *byte == 0), "nothing of what was there");

    // And alone.
    noise(&bench);
    let report = boot(job("strongest", &json!({"flow": {"actions": ["erase"]}})));
    assert_eq!(report["outcome"], "done", "{report}");
    let erased = &report["erased"][0];
    assert_eq!((&erased["verdict"], &erased["serial"]), (&json!("erased"), &json!("HOIST1")));
    // One of these places is beside the table, where nothing is left when erasing begins.
    assert_eq!((&erased["samples"], &erased["held"]), (&json!(64), &json!(63)), "{report}");
    assert_eq!(erased["says"], "format status 0x000", "{report}");
    assert!(fs_err::read(bench.disk()).expect("there").iter().all(|byte| *byte == 0));
}

#[test]
fn erase_leaves_other_namespaces_alone() {
    let mut scenario = Scenario::new();
    scenario.disk("a", 16 * MIB, 0x77);
    scenario.disk("b", 24 * MIB, 0x5a);
    let before = digest(&scenario.path("b"));
    let document = "api: hoist/v1\ntxn: 9d1b6d5e-6f3a-4a7e-9d0c-2f6b1c0a9e32\nsections:\n  \
        node: {id: n1}\n  policy: {allow_kernel_names: true}\n  \
        disks: {os: {match: {kernel_name: nvme0n1}, wipe: any}}\n  erase: {disks: [os]}\n";
    scenario.file("erase.yaml", document);
    let mut machine = StandaloneMachine::new(Firmware::Bios);
    machine.devices.push("nvme,id=c0,serial=TWO,addr=4".to_owned());
    for (number, name) in [(1, "a"), (2, "b")] {
        let device = format!("nvme-ns,bus=c0,nsid={number}");
        machine.drives.push(Drive { image: scenario.path(name), device, keeps: true });
    }
    let script = "disks 2\ntry plan hoist-agent plan -f /erase.yaml\n\
        try apply hoist-agent apply -f /erase.yaml\n";
    let said = scenario.run(machine, script);
    let (code, text) = said.of("plan");
    assert!(code == 20 && text.contains("erase os by format_user_data"), "{code}\n{text}");
    let (code, text) = said.of("apply");
    assert!(code == 0 && text.contains("os: erased; 64 samples read back"), "{code}\n{text}");
    assert!(fs_err::read(scenario.path("a")).expect("there").iter().all(|byte| *byte == 0));
    assert!(digest(&scenario.path("b")) == before, "the other one was written to");
}
