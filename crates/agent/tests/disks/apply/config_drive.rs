//! A volume that tells the installed system who it is.

use std::path::Path;
use std::process::Command;

use hoist_device::ReadIo;
use hoist_device::fat::Volume;
use hoist_provision::volume::StoredFile;

use super::{Bench, agent, blkid, run};

const MIB: u64 = 1 << 20;

/// The walk-through with two files for a config drive, of which this is one.
fn document(bench: &Bench, user_data: &str, more: &[(&str, &str)]) -> std::path::PathBuf {
    let section = format!(
        "  config_drive:\n    files:\n      openstack/latest/meta_data.json: {{text: '{{}}'}}\n      \
         openstack/latest/user_data: {{text: '{user_data}'}}\n  images:"
    );
    bench.document(&[&[("  images:", section.as_str())], more].concat())
}

fn stored(node: &Path, path: &str) -> Option<StoredFile> {
    let io = ReadIo::open(node, 512).expect("it is there");
    let size = hoist_provision::read_at::ReadAt::size(&io);
    let volume = Volume::read_only(&io, 0..size).expect("a volume");
    volume.stored(path, MIB).expect("it can be read")
}

#[test]
fn config_drive_is_remade_only_when_its_content_changes() {
    for sector in [512, 4096] {
        let bench = Bench::new(sector);
        bench.pack_image();
        let planned = document(&bench, "first", &[]);
        let alone = agent("apply", &planned, &["--only", "config_drive"]);
        assert_eq!(alone.code, 3, "{}", alone.err);
        assert!(alone.err.contains("needs: disks"), "{}", alone.err);
        let applied = agent("apply", &planned, &[]);
        assert_eq!(applied.code, 0, "{}", applied.err);
        assert!(applied.err.contains("make config drive"), "{}", applied.err);
        let node = bench.node(5);
        assert_eq!(blkid(&node, "LABEL"), "CONFIG-2");
        run(Command::new("fsck.vfat").arg("-n").arg(&node));
        let user_data = "openstack/latest/user_data";
        assert_eq!(stored(&node, user_data), Some(StoredFile::of(b"first")));
        assert_eq!(agent("verify", &planned, &[]).code, 0);

        let kept = fs_err::read(bench.node(4)).expect("it is read");
        let other = document(&bench, "second", &[]);
        assert_eq!(agent("verify", &other, &[]).code, 1);
        let again = agent("apply", &other, &["--only", "config_drive"]);
        assert_eq!(again.code, 0, "{}", again.err);
        assert!(!again.err.contains("make ext4"), "{}", again.err);
        assert_eq!(stored(&node, user_data), Some(StoredFile::of(b"second")));
        assert!(fs_err::read(bench.node(4)).expect("it is read") == kept);
        assert_eq!(agent("verify", &other, &[]).code, 0, "the image is still known");
    }
}

#[test]
fn config_drive_files_beyond_fat_are_refused_before_any_write() {
    let bench = Bench::new(512);
    bench.pack_image();
    let before = bench.digest();
    for (name, told) in [
        ("'a:b'", "FAT has no name"),
        ("OPENSTACK/latest/user_data", "are one name in FAT"),
        ("../escape", "is no path of a file"),
        ("/absolute", "is no path of a file"),
    ] {
        let more = format!("{name}: {{text: x}}\n  images:");
        let refused =
            agent("plan", &document(&bench, "x", &[("images:", &format!("    {more}"))]), &[]);
        assert_eq!(refused.code, 2, "{}", refused.err);
        assert!(refused.err.contains(told), "{}", refused.err);
    }
    let small = (
        "- part: {id: data",
        "- part: {id: cd, on: os, size: 2 MiB, role: config_drive}\n    - part: {id: data",
    );
    let refused = agent("plan", &document(&bench, "x", &[small]), &[]);
    assert_eq!(refused.code, 3, "{}", refused.err);
    assert!(refused.err.contains("[image-too-large]"), "{}", refused.err);
    assert!(before == bench.digest());
}
