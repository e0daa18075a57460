//! Disks that erase themselves: a real command to a controller that is emulated.

use serde_json::{Value, json};

use crate::{Bench, PATIENCE, TXN, random, run};
use std::process::Command;

fn order(method: &str, more: &Value) -> Value {
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
fn a_disk_erases_itself_and_the_controller_has_the_proof() {
    let bench = Bench::with_disk(48);
    let before = noise(&bench);
    bench.server.answer("on", "power_off");
    let boot = |document: Value| {
        bench.server.order(document);
        let mut machine = bench.power_on();
        machine.wait_for("switching the machine off", PATIENCE).expect("it says so");
        machine.wait_until_off(PATIENCE).expect("it goes off");
        bench.server.reports().pop().expect("a report")
    };

    // What the disk does not offer is not done in another way.
    let report = boot(order("crypto", &json!({})));
    assert_eq!(report["outcome"], "refused", "{report}");
    assert!(report.get("erased").is_none(), "{report}");
    assert!(fs_err::read(bench.disk()).expect("there") == before, "nothing was written");
    let facts = bench.server.orders().pop().expect("an order")["facts"].clone();
    assert_eq!(facts["disks"][0]["erase"], json!(["format_user_data"]), "{facts}");

    // Before a table comes to it: what says that somebody is at work is there afterwards.
    let table = json!({"storage": [{"part": {"id": "a", "on": "os", "size": "rest"}}]});
    let report = boot(order("strongest", &table));
    assert_eq!(report["outcome"], "done", "{report}");
    assert_eq!(report["erased"][0]["method"], "format_user_data", "{report}");
    let verified = run(Command::new("sgdisk").arg("-v").arg(bench.disk()));
    assert!(verified.contains("No problems found"), "{verified}");
    let now = fs_err::read(bench.disk()).expect("there");
    let (mib, end) = (1 << 20, now.len() - (1 << 20));
    assert!(now[mib..end].iter().all(|byte| *byte == 0), "nothing of what was there");

    // And alone.
    noise(&bench);
    let report = boot(order("strongest", &json!({"flow": {"actions": ["erase"]}})));
    assert_eq!(report["outcome"], "done", "{report}");
    let erased = &report["erased"][0];
    assert_eq!((&erased["verdict"], &erased["serial"]), (&json!("erased"), &json!("HOIST1")));
    assert_eq!((&erased["samples"], &erased["held"]), (&json!(64), &json!(64)), "{report}");
    assert_eq!(erased["says"], "format status 0x000", "{report}");
    assert!(fs_err::read(bench.disk()).expect("there").iter().all(|byte| *byte == 0));
}
