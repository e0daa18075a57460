//! What is asked for and not there: it is said while the disks are as they were.

use std::process::Command;

use crate::loop_device::run;
use crate::{Bench, MIB, agent};

#[test]
fn an_image_that_nobody_has_is_said_before_anything_is_written() {
    let bench = Bench::new(512);
    let before = bench.digest();
    let document = bench.document(&[]);
    for verb in ["plan", "apply"] {
        let ended = agent(verb, &document, &[]);
        assert_eq!(ended.code, 3, "{}", ended.err);
        let said = "images.root.sources: `file://";
        assert!(ended.err.contains(said) && ended.err.contains("[unreachable]"), "{}", ended.err);
    }
    assert_eq!(bench.digest(), before);
    // What was written is not asked for again.
    bench.pack_image();
    let ended = agent("apply", &document, &[]);
    assert_eq!(ended.code, 0, "{}", ended.err);
    fs_err::remove_file(bench.path("root.img.zst")).expect("it was there");
    let ended = agent("verify", &document, &[]);
    assert_eq!(ended.code, 0, "{}", ended.err);
}

#[test]
fn what_somebody_added_to_a_disk_of_hoists_is_not_destroyed_by_the_next_installation() {
    let bench = Bench::new(512);
    bench.pack_image();
    let room = ("size: rest", "size: 16 MiB");
    let applied = agent("apply", &bench.document(&[room]), &[]);
    assert_eq!(applied.code, 0, "{}", applied.err);
    // Behind everything that hoist made.
    let at = 100 * MIB;
    let sectors = format!("5:{}:+16M", at / 512);
    run(Command::new("sgdisk").args(["-n", &sectors]).arg(bench.disk.path()));
    let offset = format!("offset={at}");
    let made = ["-q", "-F", "-E", &offset, "-L", "precious"];
    run(Command::new("mke2fs").args(made).arg(bench.disk.path()).arg("16M"));
    let before = bench.digest();
    let again = bench.document(&[room, ("txn: 5", "txn: 6")]);
    let refused = agent("apply", &again, &[]);
    assert_eq!(refused.code, 3, "{}", refused.err);
    assert!(refused.err.contains("[foreign-data]"), "{}", refused.err);
    assert!(refused.err.contains("`precious`") && !refused.err.contains("`hoist-data`"));
    assert!(before == bench.digest());
    let wipe = ("}}\n  storage", "}, wipe: [ext, gpt]}\n  storage");
    let applied = agent("apply", &bench.document(&[room, ("txn: 5", "txn: 6"), wipe]), &[]);
    assert_eq!(applied.code, 0, "{}", applied.err);
}

#[test]
fn a_document_is_looked_at_without_a_machine() {
    let bench = Bench::new(512);
    // No such disk is here.
    let document = bench.document(&[("match: {", "match: {serial: S-1, ")]);
    let ended = agent("validate", &document, &[]);
    assert_eq!((ended.code, ended.out.as_str()), (0, "the document is without fault\n"));
    let shown = agent("validate", &document, &["-o", "json"]);
    fs_err::write(&document, &shown.out).expect("it is written");
    assert_eq!(agent("validate", &document, &["-o", "json"]).out, shown.out, "it is one again");
    let wrong = bench.document(&[("on: data, kind: ext4", "on: date, kind: ext4")]);
    let ended = agent("validate", &wrong, &[]);
    assert_eq!(ended.code, 2, "{}", ended.err);
    assert!(ended.err.contains("did you mean `data`?"), "{}", ended.err);
}

#[test]
fn a_file_system_that_cannot_be_so_small_is_said_before_anything_is_written() {
    let bench = Bench::new(512);
    bench.pack_image();
    let before = bench.digest();
    let document = bench.document(&[("kind: ext4, mount: /srv", "kind: xfs, mount: /srv")]);
    let refused = agent("apply", &document, &[]);
    assert_eq!(refused.code, 3, "{}", refused.err);
    assert!(refused.err.contains("xfs needs 300 MiB"), "{}", refused.err);
    assert!(before == bench.digest());
}
