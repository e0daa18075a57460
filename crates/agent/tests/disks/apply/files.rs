//! Files of the installed system, in whatever file system they are.

use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_flag,
    fsconfig_set_string, fsmount, fsopen,
};

use super::{Bench, agent, run};

/// The walk-through with files: in the root, which is an image, in a new file system, and in FAT.
fn document(bench: &Bench, motd: &str, more: &[(&str, &str)]) -> PathBuf {
    let section = format!(
        "  files:
    - {{on: root-fs, path: /etc/fstab, content: fstab}}
    - {{on: root-fs, path: /etc/motd, content: {{text: '{motd}'}}, mode: '0640', uid: 1, gid: 2}}
    - {{on: data-fs, path: /a/b/c, content: {{text: deep}}}}
    - {{on: esp-fs, path: /note.txt, content: {{text: fat}}}}
  images:"
    );
    bench.document(&[&[("  images:", section.as_str())], more].concat())
}

/// Reads a partition without attaching the mount to a path. A mount namespace that is made
/// meanwhile, as for plug-ins, would keep a copy of the mount, and the disk would stay in use.
fn mounted<T>(bench: &Bench, number: u32, look: impl FnOnce(&Path) -> T) -> T {
    let node = bench.node(number);
    let fs = fsopen(super::blkid(&node, "TYPE"), FsOpenFlags::FSOPEN_CLOEXEC).expect("known");
    fsconfig_set_string(&fs, "source", &node).expect("taken");
    fsconfig_set_flag(&fs, "ro").expect("taken");
    fsconfig_create(&fs).expect("it is one");
    let mount = fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::MOUNT_ATTR_RDONLY);
    let mount = mount.expect("mounted");
    look(Path::new(&format!("/proc/self/fd/{}", mount.as_raw_fd())))
}

#[test]
fn files_and_fstab_reach_images_and_new_file_systems() {
    for kind in ["ext4", "xfs", "btrfs"] {
        let size = if kind == "ext4" { 128 } else { 500 };
        let bench = Bench::sized(512, size);
        bench.pack_image();
        let made = format!("kind: {kind}, mount: /srv");
        let more = [("kind: ext4, mount: /srv", made.as_str()), ("label: hoist-", "label: ")];
        let more = if kind == "ext4" { &more[..0] } else { &more[..1] };
        let first = document(&bench, "one", more);
        let applied = agent("apply", &first, &[]);
        assert_eq!(applied.code, 0, "{}", applied.err);
        let uuid = super::blkid(&bench.node(4), "UUID");
        let swap = super::blkid(&bench.node(3), "UUID");
        mounted(&bench, 2, |root| {
            let motd = root.join("etc/motd");
            assert_eq!(fs_err::read_to_string(&motd).expect("it is there"), "one");
            let about = fs_err::metadata(&motd).expect("it is there");
            assert_eq!((about.mode() & 0o7777, about.uid(), about.gid()), (0o640, 1, 2));
            let fstab = fs_err::read_to_string(root.join("etc/fstab")).expect("it is there");
            let lines: Vec<&str> = fstab.lines().filter(|line| !line.starts_with('#')).collect();
            assert!(
                lines[0].starts_with("PARTUUID=") && lines[0].ends_with(" / ext4 defaults 0 1")
            );
            let pass = if kind == "ext4" { 2 } else { 0 };
            assert_eq!(lines[1], format!("UUID={uuid} /srv {kind} defaults 0 {pass}"));
            assert_eq!(lines[2], format!("UUID={swap} none swap sw 0 0"));
            assert_eq!(lines.len(), 3, "{fstab}");
        });
        mounted(&bench, 4, |data| {
            assert_eq!(fs_err::read_to_string(data.join("a/b/c")).expect("it is there"), "deep");
        });
        assert_eq!(agent("verify", &first, &[]).code, 0);

        let second = document(&bench, "two", more);
        assert_eq!(agent("verify", &second, &[]).code, 1);
        let again = agent("apply", &second, &["--only", "files"]);
        assert_eq!(again.code, 0, "{}", again.err);
        assert!(!again.err.contains("into data-fs"), "what is there stays: {}", again.err);
        mounted(&bench, 2, |root| {
            assert_eq!(fs_err::read_to_string(root.join("etc/motd")).expect("it is there"), "two");
        });
        assert_eq!(agent("verify", &second, &[]).code, 0, "images and files are still known");
    }
}

#[test]
fn links_in_an_image_do_not_lead_out_of_it() {
    let bench = Bench::new(512);
    let outside = bench.path("outside");
    fs_err::create_dir(&outside).expect("made");
    let tree = bench.path("tree");
    fs_err::create_dir(&tree).expect("made");
    symlink(&outside, tree.join("etc")).expect("linked");
    let mut mke2fs = Command::new("mke2fs");
    mke2fs.args(["-q", "-F", "-t", "ext4", "-L", "installed", "-d"]).arg(&tree);
    run(mke2fs.arg(bench.path("root.img")));
    bench.pack_image();
    let document = document(&bench, "x", &[]);
    let failed = agent("apply", &document, &[]);
    assert_eq!(failed.code, 1, "{}", failed.err);
    assert!(failed.err.contains("`etc/fstab` cannot be written"), "{}", failed.err);
    assert_eq!(fs_err::read_dir(&outside).expect("it is there").count(), 0);
    assert_eq!(agent("verify", &document, &[]).code, 1);
}

#[test]
fn invalid_files_are_refused_before_any_write() {
    let bench = Bench::new(512);
    bench.pack_image();
    let before = bench.digest();
    for (from, to, told) in [
        ("path: /a/b/c", "path: /a/../../c", "is no path of a file"),
        ("path: /a/b/c", "path: a/b", "is no path of a file"),
        ("path: /note.txt", "path: '/what?'", "FAT has no name"),
        ("content: {text: fat}", "content: {text: fat}, mode: '0600'", "FAT keeps neither"),
        ("content: {text: deep}", "content: {secret: 'secret://join'}", "is not known here"),
        ("content: {text: fat}", "content: {secret: 'secret://join'}", "every user of the machine"),
        ("on: data-fs, path", "on: swap-fs, path", "swap has no files"),
        ("on: data-fs, path", "on: none, path", "file system `none` not found"),
        ("path: /etc/motd", "path: /etc/fstab", "is there twice"),
    ] {
        let refused = agent("apply", &document(&bench, "x", &[(from, to)]), &[]);
        assert_eq!(refused.code, 2, "{to}: {}", refused.err);
        assert!(refused.err.contains(told), "{}", refused.err);
    }
    assert!(before == bench.digest());
}
