use super::*;
use crate::boot_entries::Variables;
use crate::document::{StorageNode, read};
use crate::facts::{DiskFacts, Facts, Signature, SignatureKind, SignaturePlace};
use crate::steps::stack;

fn machine(tools: &[&str]) -> ObservedMachine {
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
    let programs = AvailablePrograms { tools, ..AvailablePrograms::default() };
    ObservedMachine { facts, programs, ..ObservedMachine::default() }
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

fn names(decision: &ProvisionPlan) -> Vec<String> {
    decision.show().steps.iter().map(|step| step.name.to_owned()).collect()
}

#[test]
fn missing_program_refuses_the_plan() {
    let document = document("");
    let found = decide(&document, &machine(&["mkswap"])).expect_err("it is not there");
    assert_eq!(found.iter().map(|found| found.code).collect::<Vec<_>>(), [Code::MissingTool]);
    assert!(found[0].diagnostic.message.contains("`mke2fs`"), "{}", found[0]);
    assert!(decide(&document, &machine(&["mke2fs"])).is_ok());
}

#[test]
fn tables_come_last_and_hash_covers_the_machine() {
    let document = document("");
    let machine = machine(&["mke2fs"]);
    let decision = decide(&document, &machine).expect("nothing forbids it");
    assert_eq!(names(&decision), ["wipe os", "make ext4 a-fs in a", "close os"]);
    let again = decide(&document, &machine).expect("nothing forbids it");
    assert_eq!(decision.hash(), again.hash());
    let mut larger = machine;
    larger.facts.disks[0].size += 1 << 20;
    let other = decide(&document, &larger).expect("nothing forbids it");
    assert_ne!(decision.hash(), other.hash());
}

/// A machine started by UEFI, and a document with a boot entry.
fn booting(order: &str) -> (Document, ObservedMachine) {
    let digest = Digest::of(b"");
    let file = format!("{{sources: ['file:///none'], digest: '{digest}'}}");
    let more = format!(
        "  - fs: {{id: b-fs, on: b, kind: ext4, mount: /}}\n  boot: {{loader: uki, esp_size: 16 MiB, \
         order: {order}, kernel_args: [quiet], files: {{uki: {file}}}}}\n"
    );
    let mut machine = machine(&["mke2fs"]);
    machine.facts.firmware = crate::facts::Firmware::Uefi;
    machine.boot.variables = Some(Variables { order: vec![7], ..Variables::default() });
    (document(&more), machine)
}

#[test]
fn firmware_variables_change_last_and_as_desired() {
    let (document, mut machine) = booting("disk_first");
    let decision = decide(&document, &machine).unwrap_or_else(|found| panic!("{found:#?}"));
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

    machine.boot.variables = None;
    let text = decide(&document, &machine).expect("nothing forbids it").to_string();
    assert!(text.contains("left alone: efivarfs not found"), "{text}");
    let (document, machine) = booting("leave");
    let decision = decide(&document, &machine).expect("nothing forbids it");
    assert!(decision.to_string().contains("left alone: the document leaves them alone"));
    assert!(!names(&decision).contains(&"tell the firmware what to start".to_owned()));
}

#[test]
fn entry_of_a_replaced_table_is_replaced() {
    let (mut document, mut machine) = booting("disk_first");
    let first = decide(&document, &machine).unwrap_or_else(|found| panic!("{found:#?}"));
    let Some(FirmwareChange::Changed(changes)) = &first.changes.firmware else {
        panic!("no change: {first}")
    };
    let (number, entry) = changes.set.clone().expect("an entry");
    machine.boot.variables = Some(Variables {
        entries: [(number, entry.option().encode())].into(),
        order: vec![number],
    });
    let Work::Table(table) = &first.layout.disks[0].work else { panic!("no table") };
    machine.facts.disks[0].table = Some(table.written());
    document.txn = uuid::Uuid::from_u128(77);
    let second = decide(&document, &machine).unwrap_or_else(|found| panic!("{found:#?}"));
    let Some(FirmwareChange::Changed(changes)) = &second.changes.firmware else {
        panic!("no change: {second}")
    };
    let (again, now) = changes.set.clone().expect("an entry");
    assert!(again == number && now.partuuid != entry.partuuid, "{second}");
    assert_eq!((&changes.remove[..], &changes.order[..]), (&[][..], &[number][..]));
    // The partition on another disk, which stays, keeps its entry.
    let mut other = machine.facts.disks[0].clone();
    (other.kernel_name, other.serial) = ("sdb".to_owned(), Some("B2".to_owned()));
    machine.facts.disks[0].table = None;
    machine.facts.disks.push(other);
    let beside = decide(&document, &machine).unwrap_or_else(|found| panic!("{found:#?}"));
    let Some(FirmwareChange::Changed(changes)) = &beside.changes.firmware else {
        panic!("no change: {beside}")
    };
    assert_eq!(changes.order.len(), 2, "{beside}");
}

#[test]
fn disks_alone_keep_partitions_of_other_actions() {
    let drive = "  - fs: {id: b-fs, on: b, kind: ext4, mount: /}\n  \
                 config_drive: {files: {openstack/latest/user_data: {text: x}}}\n";
    let whole = document(drive);
    let before = machine(&["mke2fs"]);
    let decision = decide(&whole, &before).unwrap_or_else(|found| panic!("{found:#?}"));
    let mut later = done(&decision, &before);
    let place = &mut later.facts.disks[0].signatures[1];
    place.kind = SignatureKind::Ext;
    let fs = decision.layout.stack.iter().find(|plan| plan.id.as_str() == "b-fs");
    place.uuid = fs.map(|fs| fs.uuid.to_string());
    let alone = with_actions(whole, &["disks".to_owned()]);
    let again = decide(&alone, &later).unwrap_or_else(|found| panic!("{found:#?}"));
    assert!(again.is_settled(), "{again}");
    let id = "config-drive".parse().expect("an id");
    let partition = |plan: &ProvisionPlan| plan.layout.partition(&id).map(|(_, part)| part.range());
    assert!(partition(&again).is_some() && partition(&again) == partition(&decision), "{again}");
}

#[test]
fn boot_code_is_not_cleared_without_its_action() {
    let file = format!("{{sources: ['file:///none'], digest: '{}'}}", Digest::of(b""));
    let whole = document(&format!(
        "  - part: {{id: g, on: os, size: 1 MiB, role: bios_boot}}\n  \
         - part: {{id: boot, on: os, size: 16 MiB, role: boot}}\n  \
         - fs: {{id: boot-fs, on: boot, kind: vfat}}\n  \
         - fs: {{id: b-fs, on: b, kind: ext4, mount: /}}\n  \
         boot: {{loader: grub, files: {{kernel: {file}, grub_boot: {file}, grub_core: {file}}}}}\n"
    ));
    let before = machine(&["mke2fs"]);
    let decision = decide(&whole, &before).unwrap_or_else(|found| panic!("{found:#?}"));
    let alone = with_actions(whole.clone(), &["disks".to_owned()]);
    decide(&alone, &before).unwrap_or_else(|found| panic!("{found:#?}"));
    let Work::Table(table) = &decision.layout.disks[0].work else { panic!("no table") };
    let mut later = machine(&["mke2fs"]);
    later.facts.disks[0].table = Some(table.written());
    let found = decide(&alone, &later).expect_err("no system would start");
    let codes: Vec<_> = found.iter().map(|found| (found.code, &*found.diagnostic.at)).collect();
    assert_eq!(codes, [(Code::Contradiction, "flow.actions")]);
    decide(&whole, &later).unwrap_or_else(|found| panic!("{found:#?}"));
}

#[test]
fn empty_list_of_actions_does_nothing() {
    let document = document("  flow: {actions: []}\n");
    let decision = decide(&document, &machine(&[])).unwrap_or_else(|found| panic!("{found:#?}"));
    assert!(decision.is_settled() && names(&decision).is_empty(), "{decision}");
}

#[test]
fn boot_files_are_on_every_esp_of_a_mirror() {
    let digest = Digest::of(b"");
    let file = format!("{{sources: ['file:///none'], digest: '{digest}'}}");
    let text = format!(
        "api: hoist/v1\ntxn: 5d1b6d5e-6f3a-4a7e-9d0c-2f6b1c0a9e41\nsections:\n  \
         node: {{id: n1}}\n  disks: {{one: {{match: {{serial: A1}}}}, two: {{match: {{serial: \
         B2}}}}}}\n  storage:\n  \
         - part: {{id: esp-1, on: one, size: 16 MiB, role: esp}}\n  \
         - part: {{id: esp-2, on: two, size: 16 MiB, role: esp}}\n  \
         - fs: {{id: e1, on: esp-1, kind: vfat}}\n  - fs: {{id: e2, on: esp-2, kind: vfat}}\n  \
         - part: {{id: r1, on: one, size: rest}}\n  - part: {{id: r2, on: two, size: rest}}\n  \
         - md: {{id: r, on: [r1, r2], level: raid1}}\n  - fs: {{id: fs, on: r, kind: ext4, mount: \
         /}}\n  boot: {{loader: uki, kernel_args: [quiet], files: {{uki: {file}}}}}\n"
    );
    let document = read("doc", text.as_bytes()).unwrap_or_else(|found| panic!("{found:#?}"));
    let (_, mut machine) = booting("disk_first");
    machine.programs.tools.insert("mdadm".to_owned());
    let second = DiskFacts {
        kernel_name: "sdb".to_owned(),
        serial: Some("B2".to_owned()),
        ..machine.facts.disks[0].clone()
    };
    machine.facts.disks.push(second);
    let decision = decide(&document, &machine).unwrap_or_else(|found| panic!("{found:#?}"));
    let steps = names(&decision);
    for esp in ["esp-1", "esp-2"] {
        let put = format!("put EFI/BOOT/BOOTX64.EFI on {esp}");
        assert!(steps.contains(&put), "{put}: {steps:#?}");
    }
    let Some(FirmwareChange::Changed(changes)) = &decision.changes.firmware else {
        panic!("{:?}", decision.changes.firmware)
    };
    let of = |id: &str| {
        let id = id.parse().expect("an id");
        decision.layout.partition(&id).expect("it is planned").1.partuuid
    };
    let entries: Vec<_> =
        changes.entries().map(|(number, entry)| (*number, entry.partuuid)).collect();
    assert_eq!(entries, [(0, of("esp-1")), (1, of("esp-2"))]);
    assert_eq!(changes.order, [0, 1]);
}

#[test]
fn secrets_of_files_must_be_known_and_are_in_no_plan() {
    let secret = "  files:\n  - {on: a-fs, path: /k, content: {secret: 'secret://join'}}\n";
    let document = document(secret);
    let mut machine = machine(&["mke2fs"]);
    let found = decide(&document, &machine).expect_err("nobody knows it");
    assert_eq!(found.iter().map(|found| found.code).collect::<Vec<_>>(), [Code::Unsupported]);
    machine.secrets = [("join", "hunter2")].into_iter().collect();
    let decision = decide(&document, &machine).expect("it is known");
    let shown = serde_json::to_string(&decision.show()).expect("a plain value");
    assert!(shown.contains("secret://join") && !shown.contains("hunter2"), "{shown}");
    assert!(!format!("{decision:?}{decision}").contains("hunter2"));
}

#[test]
fn file_under_another_mount_point_is_warned_about() {
    let with = |on: &str, path: &str| {
        let text = format!(
            "  - fs: {{id: b-fs, on: b, kind: ext4, mount: /srv}}\n  files:\n  \
             - {{on: {on}, path: {path}, content: {{text: x}}}}\n"
        );
        let mut document = document(&text);
        let StorageNode::Fs(root) = &mut document.sections.storage[1] else { panic!("a-fs") };
        root.mount = Some("/".to_owned());
        decide(&document, &machine(&["mke2fs"])).expect("nothing forbids it").show().warnings
    };
    let warned = with("a-fs", "/srv/www/index.html");
    let [warning] = &warned[..] else { panic!("{warned:?}") };
    assert!(warning.contains("`/srv/www/index.html` on `a-fs`"), "{warning}");
    assert!(warning.contains("`b-fs` is mounted at `/srv`"), "{warning}");
    for (on, path) in [("b-fs", "/www/index.html"), ("a-fs", "/srv2/x"), ("a-fs", "/etc/x")] {
        assert_eq!(with(on, path), [""; 0], "{path} on {on}");
    }
}

#[test]
fn section_without_action_refuses_the_document() {
    let strange = document("  flow: {actions: [disks, polish]}\n");
    let found = decide(&strange, &machine(&["mke2fs"])).expect_err("not here");
    assert!(found.iter().all(|found| found.code == Code::Unsupported), "{found:#?}");
}

const STACK: &str = "  - luks: {id: l, on: b, key: 'secret://disk'}\n  - pv: {id: p, on: l}\n  \
                     - vg: {id: v, on: [p]}\n  - lv: {id: x, on: v, size: 8 MiB}\n  \
                     - fs: {id: x-fs, on: x, kind: ext4}\n  files:\n  \
                     - {on: x-fs, path: /k, content: {text: t}}\n";

#[test]
fn stacks_are_built_bottom_up_and_stopped_before_tables() {
    let document = document(STACK);
    let mut machine = machine(&["cryptsetup", "lvm", "mke2fs"]);
    machine.secrets = [("disk", "hunter2")].into_iter().collect();
    let decision = decide(&document, &machine).unwrap_or_else(|found| panic!("{found:#?}"));
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
fn nested_stacks_are_planned_in_linear_time() {
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
    let mut machine = machine(&["lvm", "mke2fs"]);
    machine.facts.disks[0].size = 1 << 50;
    let decision = decide(&document(&more.concat()), &machine);
    let decision = decision.unwrap_or_else(|found| panic!("{found:#?}"));
    assert_eq!(names(&decision).iter().filter(|name| name.starts_with("make vg")).count(), 6);
}

/// A machine as it is when everything was done.
fn done(decision: &ProvisionPlan, before: &ObservedMachine) -> ObservedMachine {
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
    let made = |node: &stack::StackNode| stack::Receipt {
        made: node.id.clone(),
        task: node.fingerprint(),
    };
    let marker = Marker {
        node: "n1".to_owned(),
        txn: decision.document.txn,
        plan: String::new(),
        generation: decision.document.generation(),
        is_complete: true,
        of_image: false,
        has_root: false,
        undoing: false,
        detached: [].into(),
    };
    let stacks = decision.inputs.stacks.nodes.iter().map(made).collect();
    let metadata = DiskMetadata { marker: Some(marker), stacks, ..DiskMetadata::default() };
    let mut after = machine(&[]);
    after.facts = facts;
    after.disks.metadata.insert("sda".to_owned(), metadata);
    after.programs.tools.clone_from(&before.programs.tools);
    after
}

#[test]
fn changed_definition_does_not_overwrite_data() {
    let group = "  - pv: {id: p, on: b}\n  - vg: {id: v, on: [p]}\n  \
                 - lv: {id: x, on: v, size: 8 MiB}\n  - lv: {id: y, on: v, size: rest}\n";
    let before = machine(&["lvm", "mke2fs"]);
    let decision = decide(&document(group), &before).expect("nothing forbids it");
    let mut later = done(&decision, &before);
    let again = decide(&document(group), &later).unwrap_or_else(|found| panic!("{found:#?}"));
    assert!(again.is_settled(), "{again}");
    let fixed = group.replace("size: rest", "size: 8 MiB");
    for (old, new, at) in [
        // One more volume leaves less for the rest.
        (group, format!("{group}  - lv: {{id: z, on: v, size: 4 MiB}}\n"), "storage.y"),
        (group, group.replace("on: [p]", "on: [p], name: w"), "storage.v"),
        (group, group.replace("on: b}", "on: b, metadata_size: 2 MiB}"), "storage.p"),
        (&fixed, fixed.replacen("8 MiB", "4 MiB", 1), "storage.x"),
    ] {
        let decision = decide(&document(old), &before).expect("nothing forbids it");
        later = done(&decision, &before);
        let found = decide(&document(&new), &later).expect_err("data would be lost");
        let codes: Vec<_> = found.iter().map(|found| (found.code, &*found.diagnostic.at)).collect();
        assert!(codes.contains(&(Code::ForeignData, at)), "{new}: {found:#?}");
    }
    let data = |label: &str| format!("{fixed}  - fs: {{id: x-fs, on: x, kind: ext4{label}}}\n");
    let decision = decide(&document(&data("")), &before).expect("nothing forbids it");
    later = done(&decision, &before);
    let made = decision.plan.order().iter().filter_map(|id| {
        let input = &decision.plan.step(*id)?.call.input;
        let task = Task::deserialize(input).ok()?;
        let Task::Make { ref fs, place: crate::steps::FsLocation::Device(_) } = task else {
            return None;
        };
        Some(stack::Receipt { made: fs.id.clone(), task: task.fingerprint() })
    });
    later.disks.metadata.get_mut("sda").expect("it is known").stacks.extend(made);
    assert!(decide(&document(&data("")), &later).is_ok_and(|again| again.is_settled()));
    let found = decide(&document(&data(", label: l")), &later).expect_err("data would be lost");
    assert_eq!((found[0].code, &*found[0].diagnostic.at), (Code::ForeignData, "storage.x-fs"));
    let decision = decide(&document(&fixed), &before).expect("nothing forbids it");
    later = done(&decision, &before);
    // One more where there is room takes nothing away.
    let more = format!("{fixed}  - lv: {{id: z, on: v, size: 4 MiB}}\n");
    let decision = decide(&document(&more), &later).unwrap_or_else(|found| panic!("{found:#?}"));
    let steps = ["make lv z of v", "stop what was made of os", "close os"];
    assert_eq!(names(&decision)[names(&decision).len() - 3..], steps);
}

#[test]
fn only_nodes_with_recorded_intents_may_be_removed() {
    let group = "  - pv: {id: p, on: b}\n  - vg: {id: v, on: [p]}\n  \
                 - lv: {id: x, on: v, size: 8 MiB}\n";
    let decision = decide(&document(group), &machine(&["lvm", "mke2fs"])).expect("allowed");
    let at = |name: &str| {
        let step = names(&decision).iter().position(|step| step == name).expect(name);
        StepId(u32::try_from(step).expect("a few"))
    };
    let carried =
        Record::Carried { step: at("make vg v of p"), changed: false, made: vec![], at: 0 };
    let intent = |name| Record::Intent { step: at(name), attempt: 1, at: 0 };
    let records = [carried, intent("wipe os"), intent("make lv x of v")];
    let node = decision.inputs.stacks.nodes.iter().find(|node| node.id.as_str() == "x");
    let expected = [node.expect("it is planned").fingerprint()];
    assert_eq!(started_nodes(&decision.plan, &records), expected);
}

#[test]
fn stack_without_program_or_key_is_refused() {
    let found = decide(&document(STACK), &machine(&["mke2fs"])).expect_err("they are not");
    let codes: Vec<_> = found.iter().map(|found| (found.code, &*found.diagnostic.at)).collect();
    assert!(codes.contains(&(Code::Unsupported, "storage.l.key")), "{found:#?}");
    let hints: Vec<_> = found.iter().filter_map(|found| found.diagnostic.hint.as_deref()).collect();
    for words in ["--tools cryptsetup --with dm,crypt", "--tools lvm --with dm"] {
        assert!(hints.iter().any(|hint| hint.contains(words)), "{found:#?}");
    }
}

/// Documents that reach every planner, on machines before and after a run.
fn rich_plans() -> Vec<(&'static str, ProvisionPlan)> {
    let digest = Digest::of(b"");
    let file = format!("{{sources: ['file:///none'], digest: '{digest}'}}");
    let image = format!("sources: ['file:///none'], digest: '{digest}', size: 1 MiB");
    let mut plans = Vec::new();
    let mut add = |name, document: &Document, machine: &ObservedMachine| {
        let plan = decide(document, machine).unwrap_or_else(|found| panic!("{name}: {found:#?}"));
        plans.push((name, plan));
    };
    let mut tools = machine(&["cryptsetup", "e2fsck", "lvm", "mke2fs", "resize2fs"]);
    tools.secrets = [("disk", "hunter2")].into_iter().collect();
    add("table", &document(""), &tools);
    let stack = document(STACK);
    add("stack", &stack, &tools);
    let built = decide(&stack, &tools).expect("nothing forbids it");
    let luks = built.layout.stack.iter().find(|plan| plan.id.as_str() == "l").map(|luks| luks.uuid);
    let mut built = done(&built, &tools);
    let leg = &mut built.facts.disks[0].signatures[1];
    (leg.kind, leg.uuid) = (SignatureKind::Luks, luks.map(|uuid| uuid.to_string()));
    built.secrets = tools.secrets.clone();
    add("file into an existing stack", &stack, &built);
    let image = document(&format!(
        "  - fs: {{id: b-fs, on: b, kind: ext4, mount: /}}\n  \
         images: {{root: {{target: b-fs, grow: true, {image}}}}}\n  \
         config_drive: {{files: {{openstack/latest/user_data: {{text: x}}}}}}\n  \
         files:\n  - {{on: a-fs, path: /etc/fstab, content: fstab}}\n"
    ));
    add("image", &image, &tools);
    let only = with_actions(image, &["images".to_owned(), "disks".to_owned()]);
    add("only images and disks", &only, &tools);
    let (uki, uefi) = booting("disk_first");
    add("uki", &uki, &uefi);
    let bios = document(&format!(
        "  - part: {{id: g, on: os, size: 1 MiB, role: bios_boot}}\n  \
         - part: {{id: boot, on: os, size: 16 MiB, role: boot}}\n  \
         - fs: {{id: boot-fs, on: boot, kind: vfat}}\n  \
         - fs: {{id: b-fs, on: b, kind: ext4, mount: /}}\n  \
         boot: {{loader: grub, firmware: bios, files: {{kernel: {file}, grub_boot: {file}, \
         grub_core: {file}}}}}\n"
    ));
    add("grub", &bios, &tools);
    add("erase before", &document("  erase: {disks: [os], method: overwrite}\n"), &tools);
    let text = |sections: &str| {
        let text = format!(
            "api: hoist/v1\ntxn: 5d1b6d5e-6f3a-4a7e-9d0c-2f6b1c0a9e41\nsections:\n  \
             node: {{id: n1}}\n{sections}"
        );
        read("doc", text.as_bytes()).unwrap_or_else(|found| panic!("{found:#?}"))
    };
    let whole = format!(
        "  disks: {{os: {{match: {{serial: A1}}}}}}\n  images: {{disk: {{target: os, sources: \
         ['file:///none'], digest: '{digest}', size: 8 MiB, table: gpt}}}}\n"
    );
    add("image of a disk", &text(&whole), &tools);
    let erase = "  disks: {os: {match: {serial: A1}, wipe: any}}\n  erase: {disks: [os]}\n";
    add("erase", &text(erase), &tools);
    // An array with a second leg on a disk that nothing else is done to.
    let mut mirrored = machine(&["mke2fs"]);
    let leg = |start| Signature {
        kind: SignatureKind::Md,
        offset: start,
        place: SignaturePlace::Disk,
        label: None,
        uuid: Some("5d1b6d5e-0000-4a7e-9d0c-2f6b1c0a9e41".to_owned()),
        members: None,
        ours: None,
    };
    let mut second = mirrored.facts.disks[0].clone();
    (second.kernel_name, second.serial) = ("sdb".to_owned(), Some("B2".to_owned()));
    mirrored.facts.disks.push(second);
    mirrored.facts.disks.iter_mut().for_each(|disk| disk.signatures = vec![leg(4096)]);
    let detached = "  disks: {os: {match: {serial: A1}, wipe: any}, old: {match: {serial: B2}, \
                    wipe: any}}\n  storage:\n  - part: {id: a, on: os, size: rest}\n";
    add("detached leg", &text(detached), &mirrored);
    plans
}

/// A run resumes only under the hash of its plan, so the order of planners must not change a plan.
#[test]
fn plans_and_their_hashes_are_stable() {
    let plans = rich_plans();
    let found: Vec<(&str, &str)> =
        plans.iter().map(|(name, plan)| (*name, &plan.hash()[..16])).collect();
    let steps: Vec<_> = plans.iter().map(|(name, plan)| (name, names(plan))).collect();
    let expected = [
        ("table", "7d8914d941e9c92b"),
        ("stack", "ffb83f5446becc11"),
        ("file into an existing stack", "46dcfb305d834933"),
        ("image", "8eb84597934492d2"),
        ("only images and disks", "4bdf8ca3f6c63e24"),
        ("uki", "a0fbc839ed4382e3"),
        ("grub", "2057539ccc4f45be"),
        ("erase before", "17160ef649b7e325"),
        ("image of a disk", "18ed21757ff07d29"),
        ("erase", "2424ec3ad65ee5e6"),
        ("detached leg", "f9dee0b350219e78"),
    ];
    assert_eq!(found, expected, "{steps:#?}");
}

#[test]
fn programs_of_a_document_are_known_without_a_machine() {
    let of = |more: &str| {
        let needed = needed_tools(&document(more));
        needed.into_iter().map(|(tool, id)| format!("{tool} for {id}")).collect::<Vec<_>>()
    };
    assert_eq!(of(""), ["mke2fs for a-fs"]);
    let image = "  images: {root: {sources: ['file:///x'], target: a-fs, grow: true}}\n";
    assert_eq!(of(image), ["e2fsck for a-fs", "resize2fs for a-fs"]);
    let volume = "  - pv: {id: p, on: b}\n  - vg: {id: g, on: [p]}\n  \
                  - lv: {id: v, on: g, size: rest}\n  - fs: {id: v-fs, on: v, kind: xfs}\n";
    assert_eq!(of(volume), ["lvm for v", "mke2fs for a-fs", "mkfs.xfs for v-fs"]);
    let only = format!("{image}  flow: {{actions: [images]}}\n");
    assert_eq!(of(&only), ["e2fsck for a-fs", "resize2fs for a-fs"]);
}
