//! Missing inputs must be reported while the disks are unchanged.

use std::net::TcpListener;
use std::process::Command;

use super::{Bench, MIB, agent};
use hoist_testkit::loop_disk::run;

#[test]
fn missing_image_is_reported_before_any_write() {
    let bench = Bench::new(512);
    let before = bench.digest();
    let document = bench.document(&[]);
    for verb in ["plan", "apply"] {
        let ended = agent(verb, &document, &[]);
        assert_eq!(ended.code, 3, "{}", ended.err);
        let said = "images.root.sources: cannot fetch `file://";
        assert!(ended.err.contains(said) && ended.err.contains("[unreachable]"), "{}", ended.err);
    }
    assert_eq!(bench.digest(), before);
    // Written images are not fetched again.
    bench.pack_image();
    let ended = agent("apply", &document, &[]);
    assert_eq!(ended.code, 0, "{}", ended.err);
    fs_err::remove_file(bench.path("root.img.zst")).expect("it was there");
    let ended = agent("verify", &document, &[]);
    assert_eq!(ended.code, 0, "{}", ended.err);
}

#[test]
fn silent_source_is_warned_about_and_nothing_is_written() {
    let bench = Bench::new(512);
    let before = bench.digest();
    let closed = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let url = format!("http://{}/root.img.zst", closed.expect("a free port"));
    let file = format!("file://{}", bench.path("root.img.zst").display());
    let document = bench.document(&[(&file, &url)]);
    let planned = agent("plan", &document, &[]);
    assert_eq!(planned.code, 20, "{}", planned.err);
    let warning = format!("warning: images.root.sources: cannot fetch `{url}`");
    assert!(planned.out.contains(&warning), "{}", planned.out);
    let refused = agent("apply", &document, &["--source-timeout", "4"]);
    assert_eq!(refused.code, 3, "{}", refused.err);
    let waiting = format!("waiting for `{url}` for 3 s: ");
    assert!(refused.err.contains(&waiting), "{}", refused.err);
    assert!(refused.err.contains("[unreachable]"), "{}", refused.err);
    assert!(before == bench.digest());
}

#[test]
fn image_that_is_not_raw_is_reported_before_any_write() {
    let bench = Bench::new(512);
    let packed = bench.path("root.img.zst");
    let vmdk = ["convert", "-f", "raw", "-O", "vmdk"];
    run(Command::new("qemu-img").args(vmdk).arg(bench.path("root.img")).arg(&packed));
    let before = bench.digest();
    for verb in ["plan", "apply"] {
        let refused = agent(verb, &bench.document(&[]), &[]);
        assert_eq!(refused.code, 2, "{}", refused.err);
        let told = "images.root: the content is VMDK and not a raw image; convert it with";
        assert!(refused.err.contains(told), "{}", refused.err);
    }
    assert!(before == bench.digest());
}

#[test]
fn partition_added_by_hand_survives_the_next_installation() {
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
fn document_is_checked_without_a_machine() {
    let bench = Bench::new(512);
    // No such disk is here.
    let document = bench.document(&[("match: {", "match: {serial: S-1, ")]);
    let ended = agent("validate", &document, &[]);
    assert_eq!((ended.code, ended.out.as_str()), (0, "the document is valid\n"));
    let shown = agent("validate", &document, &["-o", "json"]);
    fs_err::write(&document, &shown.out).expect("it is written");
    assert_eq!(agent("validate", &document, &["-o", "json"]).out, shown.out, "it is one again");
    let wrong = bench.document(&[("on: data, kind: ext4", "on: date, kind: ext4")]);
    let ended = agent("validate", &wrong, &[]);
    assert_eq!(ended.code, 2, "{}", ended.err);
    assert!(ended.err.contains("did you mean `data`?"), "{}", ended.err);
}

#[test]
fn too_small_file_system_is_reported_before_any_write() {
    let bench = Bench::new(512);
    bench.pack_image();
    let before = bench.digest();
    let document = bench.document(&[("kind: ext4, mount: /srv", "kind: xfs, mount: /srv")]);
    let refused = agent("apply", &document, &[]);
    assert_eq!(refused.code, 3, "{}", refused.err);
    assert!(refused.err.contains("xfs needs 300 MiB"), "{}", refused.err);
    assert!(before == bench.digest());
}
