use super::*;
use crate::document::read;
use crate::facts::{Signature, SignatureKind};

fn seen(tools: &[&str]) -> Seen {
    let disk = DiskFacts {
        kernel_name: "sda".to_owned(),
        size: 64 << 20,
        logical_sector: 512,
        physical_sector: 512,
        serial: Some("A1".to_owned()),
        ..DiskFacts::default()
    };
    let facts = Facts { disks: vec![disk], ..Facts::default() };
    let tools = tools.iter().map(|tool| (*tool).to_owned()).collect();
    Seen { facts, tools, ..Seen::default() }
}

fn document(more: &str) -> Document {
    let text = format!(
        "api: hoist/v1\ntxn: 5d1b6d5e-6f3a-4a7e-9d0c-2f6b1c0a9e41\nsections:\n  \
         node: {{id: n1}}\n  disks: {{os: {{match: {{serial: A1}}}}}}\n  storage:\n  \
         - part: {{id: a, on: os, size: 8 MiB}}\n  - fs: {{id: a-fs, on: a, kind: ext4}}\n  \
         - part: {{id: b, on: os, size: rest}}\n{more}"
    );
    read("doc", text.as_bytes()).unwrap_or_else(|found| panic!("{found:#?}"))
}

fn names(decision: &Decision) -> Vec<String> {
    decision.show().steps.iter().map(|step| step.name.to_owned()).collect()
}

#[test]
fn a_program_that_is_missing_is_named_before_anything_is_done() {
    let document = document("");
    let found = decide(&document, &seen(&["mkswap"])).expect_err("it is not there");
    assert_eq!(found.iter().map(|found| found.code).collect::<Vec<_>>(), [Code::MissingTool]);
    assert!(found[0].what.contains("`mke2fs`"), "{}", found[0]);
    assert!(decide(&document, &seen(&["mke2fs"])).is_ok());
}

#[test]
fn tables_come_last_and_the_hash_is_of_what_is_there_too() {
    let document = document("");
    let seen = seen(&["mke2fs"]);
    let decision = decide(&document, &seen).expect("nothing forbids it");
    assert_eq!(names(&decision), ["wipe os", "make ext4 a-fs in a", "close os"]);
    let again = decide(&document, &seen).expect("nothing forbids it");
    assert_eq!(decision.hash(), again.hash());
    let mut larger = seen;
    larger.facts.disks[0].size += 1 << 20;
    let other = decide(&document, &larger).expect("nothing forbids it");
    assert_ne!(decision.hash(), other.hash());
}

/// A machine that UEFI started, and a document that says what it starts next.
fn booting(order: &str) -> (Document, Seen) {
    let digest = Digest::of(b"");
    let file = format!("{{sources: ['file:///none'], digest: '{digest}'}}");
    let more = format!(
        "  - fs: {{id: b-fs, on: b, kind: ext4, mount: /}}\n  boot: {{loader: uki, esp_size: 16 MiB, \
         order: {order}, kernel_args: [quiet], files: {{uki: {file}}}}}\n"
    );
    let mut seen = seen(&["mke2fs"]);
    seen.facts.firmware = crate::facts::Firmware::Uefi;
    seen.variables = Some(Variables { order: vec![7], ..Variables::default() });
    (document(&more), seen)
}

#[test]
fn the_firmware_is_told_last_and_only_what_the_document_wants() {
    let (document, mut seen) = booting("disk_first");
    let decision = decide(&document, &seen).unwrap_or_else(|found| panic!("{found:#?}"));
    let steps = names(&decision);
    assert_eq!(steps[steps.len() - 2..], ["close os", "tell the firmware what to start"]);
    let shown = serde_json::to_value(decision.show()).expect("a plain value");
    let changes = &shown["firmware"]["changed"];
    assert_eq!((&changes["before"][0], &changes["order"][0]), (&7.into(), &0.into()));
    let arguments = changes["set"][1]["arguments"].as_str().expect("for the kernel in it");
    assert!(arguments.starts_with("root=PARTUUID=") && arguments.ends_with(" quiet"));
    let text = decision.to_string();
    assert!(text.contains("  + entry   Boot0000 is /EFI/BOOT/BOOTX64.EFI"), "{text}");
    assert!(text.contains("  ~ order   0000, was 0007"), "{text}");

    seen.variables = None;
    let text = decide(&document, &seen).expect("nothing forbids it").to_string();
    assert!(text.contains("left alone: there is no efivarfs"), "{text}");
    let (document, seen) = booting("leave");
    let decision = decide(&document, &seen).expect("nothing forbids it");
    assert!(decision.to_string().contains("left alone: the document leaves them alone"));
    assert!(!names(&decision).contains(&"tell the firmware what to start".to_owned()));
}

#[test]
fn secrets_of_files_must_be_known_and_are_in_no_plan() {
    let secret = "  files:\n  - {on: a-fs, path: /k, content: {secret: 'secret://join'}}\n";
    let (document, mut seen) = (document(secret), seen(&["mke2fs"]));
    let found = decide(&document, &seen).expect_err("nobody knows it");
    assert_eq!(found.iter().map(|found| found.code).collect::<Vec<_>>(), [Code::Unsupported]);
    seen.secrets = [("join", "hunter2")].into_iter().collect();
    let decision = decide(&document, &seen).expect("it is known");
    let shown = serde_json::to_string(&decision.show()).expect("a plain value");
    assert!(shown.contains("secret://join") && !shown.contains("hunter2"), "{shown}");
    assert!(!format!("{decision:?}{decision}").contains("hunter2"));
}

#[test]
fn what_no_action_here_does_is_refused_as_a_whole() {
    let strange = document("  flow: {actions: [disks, polish]}\n");
    let found = decide(&strange, &seen(&["mke2fs"])).expect_err("not here");
    assert!(found.iter().all(|found| found.code == Code::Unsupported), "{found:#?}");
}

const STACK: &str = "  - luks: {id: l, on: b, key: 'secret://disk'}\n  - pv: {id: p, on: l}\n  \
                     - vg: {id: v, on: [p]}\n  - lv: {id: x, on: v, size: 8 MiB}\n  \
                     - fs: {id: x-fs, on: x, kind: ext4}\n  files:\n  \
                     - {on: x-fs, path: /k, content: {text: t}}\n";

#[test]
fn what_is_made_of_partitions_comes_from_below_and_is_stopped_before_tables_are_written() {
    let document = document(STACK);
    let mut seen = seen(&["cryptsetup", "lvm", "mke2fs"]);
    seen.secrets = [("disk", "hunter2")].into_iter().collect();
    let decision = decide(&document, &seen).unwrap_or_else(|found| panic!("{found:#?}"));
    assert_eq!(
        names(&decision),
        [
            "wipe os",
            "make ext4 a-fs in a",
            "make luks l of b",
            "make pv p of l",
            "make vg v of p",
            "make lv x of v",
            "make ext4 x-fs in x",
            "put files into x-fs",
            "stop what was made of os",
            "close os"
        ]
    );
    let shown = serde_json::to_string(&decision.show()).expect("a plain value");
    assert!(!format!("{shown}{decision:?}{decision}").contains("hunter2"));
    let text = decision.to_string();
    assert!(text.contains("make vg v of p: lvm vgcreate "), "{text}");
}

#[test]
fn stacks_of_stacks_are_decided_on_without_counting_the_ways_through_them() {
    let mut more = vec!["  - pv: {id: pv, on: b}\n".to_owned()];
    let mut on = vec!["pv".to_owned()];
    for layer in 0..6 {
        more.push(format!("  - vg: {{id: v{layer}, on: [{}]}}\n", on.join(", ")));
        on = (0..20).map(|at| format!("p{layer}-{at}")).collect();
        for (at, pv) in on.iter().enumerate().filter(|_| layer < 5) {
            more.push(format!("  - lv: {{id: l{layer}-{at}, on: v{layer}, size: 5%}}\n"));
            more.push(format!("  - pv: {{id: {pv}, on: l{layer}-{at}}}\n"));
        }
    }
    let mut seen = seen(&["lvm", "mke2fs"]);
    seen.facts.disks[0].size = 1 << 50;
    let decision = decide(&document(&more.concat()), &seen);
    let decision = decision.unwrap_or_else(|found| panic!("{found:#?}"));
    assert_eq!(names(&decision).iter().filter(|name| name.starts_with("make vg")).count(), 6);
}

/// A machine as it is when everything was done.
fn done(decision: &Decision, before: &Seen) -> Seen {
    let Work::Table(table) = &decision.layout.disks[0].work else { panic!("no table") };
    let uuid_of = |id: &str| {
        let plan = decision.layout.stack.iter().find(|plan| plan.id.as_str() == id);
        Some(plan.expect("it is planned").uuid.to_string())
    };
    let inside = |kind, number, uuid| Signature {
        kind,
        offset: table.partitions[number as usize - 1].start,
        place: SignaturePlace::Partition(number),
        label: None,
        uuid,
        members: None,
        ours: None,
    };
    let mut facts = before.facts.clone();
    facts.disks[0].table = Some(table.written());
    facts.disks[0].signatures = vec![
        inside(SignatureKind::Ext, 1, uuid_of("a-fs")),
        inside(SignatureKind::Lvm, 2, Some("vg-1".to_owned())),
    ];
    let made =
        |node: &stacks::Node| stacks::Receipt { made: node.id.clone(), task: node.fingerprint() };
    let marker = Marker {
        node: "n1".to_owned(),
        txn: decision.document.txn,
        plan: String::new(),
        generation: decision.document.generation(),
        is_complete: true,
        of_image: false,
        has_root: false,
        undoing: false,
        emptied: [].into(),
    };
    let built = decision.stacks.nodes.iter().map(made).collect();
    let notes = Notes { marker: Some(marker), built, ..Notes::default() };
    let notes = [("sda".to_owned(), notes)].into();
    Seen { facts, notes, tools: before.tools.clone(), ..Seen::default() }
}

#[test]
fn what_was_made_and_shall_be_another_is_not_made_anew_over_what_it_holds() {
    let group = "  - pv: {id: p, on: b}\n  - vg: {id: v, on: [p]}\n  \
                 - lv: {id: x, on: v, size: 8 MiB}\n  - lv: {id: y, on: v, size: rest}\n";
    let before = seen(&["lvm", "mke2fs"]);
    let decision = decide(&document(group), &before).expect("nothing forbids it");
    let mut later = done(&decision, &before);
    let again = decide(&document(group), &later).unwrap_or_else(|found| panic!("{found:#?}"));
    assert!(again.is_settled(), "{again}");
    let fixed = group.replace("size: rest", "size: 8 MiB");
    for (old, new, at) in [
        // Somebody wants one more, and the rest becomes less.
        (group, format!("{group}  - lv: {{id: z, on: v, size: 4 MiB}}\n"), "storage.y"),
        (group, group.replace("on: [p]", "on: [p], name: w"), "storage.v"),
        (group, group.replace("on: b}", "on: b, metadata_size: 2 MiB}"), "storage.p"),
        (&fixed, fixed.replacen("8 MiB", "4 MiB", 1), "storage.x"),
    ] {
        let decision = decide(&document(old), &before).expect("nothing forbids it");
        later = done(&decision, &before);
        let found = decide(&document(&new), &later).expect_err("data would be lost");
        let codes: Vec<_> = found.iter().map(|found| (found.code, &*found.place)).collect();
        assert!(codes.contains(&(Code::ForeignData, at)), "{new}: {found:#?}");
    }
    // One more where there is room takes nothing away.
    let more = format!("{fixed}  - lv: {{id: z, on: v, size: 4 MiB}}\n");
    let decision = decide(&document(&more), &later).unwrap_or_else(|found| panic!("{found:#?}"));
    let steps = ["make lv z of v", "stop what was made of os", "close os"];
    assert_eq!(names(&decision)[names(&decision).len() - 3..], steps);
}

#[test]
fn only_what_the_journal_says_was_begun_may_be_taken_away_again() {
    use hoist_engine::record::Record;
    let group = "  - pv: {id: p, on: b}\n  - vg: {id: v, on: [p]}\n  \
                 - lv: {id: x, on: v, size: 8 MiB}\n";
    let decision = decide(&document(group), &seen(&["lvm", "mke2fs"])).expect("allowed");
    let at = |name: &str| {
        let step = names(&decision).iter().position(|step| step == name).expect(name);
        StepId(u32::try_from(step).expect("a few"))
    };
    let carried =
        Record::Carried { step: at("make vg v of p"), changed: false, made: vec![], at: 0 };
    let intent = |name| Record::Intent { step: at(name), attempt: 1, at: 0 };
    let records = [carried, intent("wipe os"), intent("make lv x of v")];
    let node = decision.stacks.nodes.iter().find(|node| node.id.as_str() == "x");
    let expected = [node.expect("it is planned").fingerprint()];
    assert_eq!(carry_out::begun(&decision.plan, &records), expected);
}

#[test]
fn programs_and_keys_that_stacks_need_must_be_here() {
    let found = decide(&document(STACK), &seen(&["mke2fs"])).expect_err("they are not");
    let codes: Vec<_> = found.iter().map(|found| (found.code, &*found.place)).collect();
    assert!(codes.contains(&(Code::Unsupported, "storage.l.key")), "{found:#?}");
    let hints: Vec<_> = found.iter().filter_map(|found| found.hint.as_deref()).collect();
    for words in ["--tools cryptsetup --with dm,crypt", "--tools lvm --with dm"] {
        assert!(hints.iter().any(|hint| hint.contains(words)), "{found:#?}");
    }
}
