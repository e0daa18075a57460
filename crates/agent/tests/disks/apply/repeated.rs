//! The same installation again: in parts, and with a changed document.

use std::process::Command;

use hoist_testkit::loop_disk::run;

use super::{Bench, agent};

const DRIVE: &str = "  config_drive: {files: {openstack/latest/meta_data.json: {text: '{}'}}}\n  \
                     images:";

const DATA: &str = "{id: data, on: os, size: rest}";

#[test]
fn disks_alone_keep_a_finished_installation() {
    let bench = Bench::new(512);
    bench.pack_image();
    let document = bench.document(&[("  images:", DRIVE)]);
    let applied = agent("apply", &document, &[]);
    assert_eq!(applied.code, 0, "{}", applied.err);
    let before = bench.digest();
    let again = agent("apply", &document, &["--only", "disks"]);
    assert_eq!(again.code, 0, "{}", again.err);
    assert!(again.out.contains("nothing to do"), "{}{}", again.out, again.err);
    assert!(before == bench.digest(), "nothing is written");
    // Without its signature, a part may be data of another kind.
    run(Command::new("wipefs").arg("--all").arg(bench.node(3)));
    let before = bench.digest();
    let refused = agent("apply", &document, &["--only", "disks"]);
    assert_eq!(refused.code, 3, "{}{}", refused.out, refused.err);
    assert!(refused.err.contains("holds unknown data"), "{}", refused.err);
    assert!(before == bench.digest(), "nothing is written");
    // A blank part is made again, and the others stay.
    let kept = [2, 4, 5].map(|number| fs_err::read(bench.node(number)).expect("it is read"));
    bench.clear(3);
    let remade = agent("apply", &document, &["--only", "disks"]);
    assert_eq!(remade.code, 0, "{}", remade.err);
    let now = [2, 4, 5].map(|number| fs_err::read(bench.node(number)).expect("it is read"));
    assert!(now == kept, "{}", remade.err);
    let verified = agent("verify", &document, &[]);
    assert_eq!(verified.code, 0, "{}{}", verified.out, verified.err);
}

#[test]
fn renamed_partition_keeps_every_byte() {
    let bench = Bench::new(512);
    bench.pack_image();
    assert_eq!(agent("apply", &bench.document(&[]), &[]).code, 0);
    let kept = [2, 4].map(|number| fs_err::read(bench.node(number)).expect("it is read"));
    let renamed = "{id: data, on: os, size: rest, name: store, role: srv}";
    let document = bench.document(&[(DATA, renamed)]);
    let planned = agent("plan", &document, &[]);
    assert_eq!(planned.code, 20, "{}", planned.err);
    assert!(planned.out.contains("  ~ renamed   4  at"), "{}", planned.out);
    assert!(!planned.out.contains("make ext4"), "{}", planned.out);
    let applied = agent("apply", &document, &[]);
    assert_eq!(applied.code, 0, "{}", applied.err);
    let now = [2, 4].map(|number| fs_err::read(bench.node(number)).expect("it is read"));
    assert!(now == kept, "{}", applied.err);
    let table = run(Command::new("sgdisk").args(["-i", "4"]).arg(bench.disk.path()));
    assert!(table.contains("Partition name: 'store'"), "{table}");
    assert_eq!(agent("verify", &document, &[]).code, 0);
}

#[test]
fn lost_data_is_shown_and_needs_wipe() {
    let bench = Bench::new(512);
    bench.pack_image();
    assert_eq!(agent("apply", &bench.document(&[]), &[]).code, 0);
    let before = bench.digest();
    let wipe = ("}}\n  storage", "}, wipe: any}\n  storage");
    for (changes, shown) in [
        (vec![(DATA, "{id: data, on: os, size: 16 MiB}")], "! recreated, data lost"),
        (vec![(DATA, "{id: store, on: os, size: rest}"), ("on: data,", "on: store,")], "- deleted"),
        (vec![("kind: swap,", "kind: ext4,")], "! destroys swap in partition 3"),
    ] {
        let refused = agent("apply", &bench.document(&changes), &[]);
        assert_eq!(refused.code, 3, "{}{}", refused.out, refused.err);
        assert!(refused.err.contains("[foreign-data]"), "{}", refused.err);
        assert!(before == bench.digest());
        let planned = agent("plan", &bench.document(&[&changes[..], &[wipe]].concat()), &[]);
        assert_eq!(planned.code, 20, "{}", planned.err);
        assert!(planned.out.contains(shown), "{}", planned.out);
    }
    let changes = [(DATA, "{id: data, on: os, size: 16 MiB}"), wipe];
    let document = bench.document(&changes);
    let applied = agent("apply", &document, &[]);
    assert_eq!(applied.code, 0, "{}", applied.err);
    assert_eq!(agent("verify", &document, &[]).code, 0);
}

#[test]
fn verify_compares_labels_and_kinds() {
    let bench = Bench::new(512);
    bench.pack_image();
    let document = bench.document(&[]);
    assert_eq!(agent("apply", &document, &[]).code, 0);
    run(Command::new("e2label").arg(bench.node(4)).arg("other"));
    let before = bench.digest();
    let verified = agent("verify", &document, &[]);
    assert_eq!(verified.code, 3, "{}", verified.err);
    assert!(verified.err.contains("label `other`"), "{}", verified.err);
    assert_eq!(agent("apply", &document, &[]).code, 3);
    assert!(before == bench.digest());
    run(Command::new("e2label").arg(bench.node(4)).arg(bench.label('d')));
    assert_eq!(agent("verify", &document, &[]).code, 0);
    // The image brought another file system than the document says now.
    for change in
        [("root, kind: ext4", "root, kind: xfs"), ("ext4, mount: /}", "ext4, label: x, mount: /}")]
    {
        let document = bench.document(&[change]);
        let verified = agent("verify", &document, &[]);
        assert_ne!(verified.code, 0, "{}", verified.out);
        assert!(verified.err.contains("label `installed`"), "{}", verified.err);
    }
}

#[test]
fn document_without_actions_changes_nothing() {
    let bench = Bench::new(512);
    bench.pack_image();
    let before = bench.digest();
    let document = bench.document(&[("  images:", "  flow: {actions: []}\n  images:")]);
    let applied = agent("apply", &document, &[]);
    assert_eq!(applied.code, 0, "{}", applied.err);
    assert!(applied.out.contains("nothing to do"), "{}", applied.out);
    assert!(before == bench.digest());
}
