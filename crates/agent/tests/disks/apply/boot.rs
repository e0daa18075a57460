//! What starts the installed system, as far as files go; that it starts is seen in `boots.rs`.

use std::path::{Path, PathBuf};

use hoist_device::ReadIo;
use hoist_device::fat::Volume;
use hoist_provision::digest::Digest;
use hoist_provision::read_at::ReadAt;
use hoist_provision::volume::StoredFile;

use super::{Bench, agent};

const MIB: u64 = 1 << 20;
const KERNEL: &[u8] = b"a kernel";
const LOADER: &[u8] = b"a loader";

/// Writes a file, and names it as a document does.
fn fetched(bench: &Bench, name: &str, bytes: &[u8], digest: &str) -> String {
    let path = bench.path(name);
    fs_err::write(&path, bytes).expect("it is written");
    format!("{{sources: ['file://{}'], digest: '{digest}'}}", path.display())
}

fn of(bytes: &[u8]) -> String {
    Digest::of(bytes).to_string()
}

/// The walk-through, started by systemd-boot with these files.
fn document(bench: &Bench, files: &[(&str, String)], arguments: &str) -> PathBuf {
    bench.document(&[("  images:", section(files, arguments).as_str())])
}

fn section(files: &[(&str, String)], arguments: &str) -> String {
    let files: Vec<_> = files.iter().map(|(name, file)| format!("{name}: {file}")).collect();
    format!(
        "  boot: {{firmware: uefi, kernel_args: [{arguments}], files: {{{}}}}}\n  images:",
        files.join(", ")
    )
}

fn files(bench: &Bench) -> Vec<(&'static str, String)> {
    vec![
        ("kernel", fetched(bench, "kernel", KERNEL, &of(KERNEL))),
        ("loader", fetched(bench, "loader", LOADER, &of(LOADER))),
    ]
}

fn with_volume<T>(
    node: &Path,
    look: impl FnOnce(&Volume<hoist_device::fat::ReadOnly<'_, ReadIo>>) -> T,
) -> T {
    let io = ReadIo::open(node, 512).expect("it is there");
    look(&Volume::read_only(&io, 0..io.size()).expect("a volume"))
}

fn stored(node: &Path, path: &str) -> Option<StoredFile> {
    with_volume(node, |volume| volume.stored(path, MIB).expect("it can be read"))
}

fn paths(node: &Path) -> Vec<String> {
    with_volume(node, |volume| volume.paths().expect("it can be read"))
}

#[test]
fn loader_files_are_written_and_changed_alone() {
    let bench = Bench::new(512);
    bench.pack_image();
    let first = document(&bench, &files(&bench), "quiet");
    let planned = agent("plan", &first, &[]);
    for line in [
        "  + fs   esp-fs on esp, 40 MiB",
        "  + new     esp:/hoist/linux  sha256:",
        "      | linux /hoist/linux",
        "left alone: a loop device is not what this machine boots from; it finds \
         /EFI/BOOT/BOOTX64.EFI by itself",
    ] {
        assert!(planned.out.contains(line), "`{line}` is not in\n{}", planned.out);
    }
    let applied = agent("apply", &first, &[]);
    assert_eq!(applied.code, 0, "{}", applied.err);
    let settled = agent("plan", &first, &[]);
    assert!(settled.out.contains("  = kept    esp:/hoist/linux"), "{}", settled.out);
    assert!(settled.out.contains("  = fs   esp-fs on esp"), "{}", settled.out);
    assert!(!settled.out.contains("  + "), "{}", settled.out);
    let shown: serde_json::Value =
        serde_json::from_str(&agent("plan", &first, &["-o", "json"]).out).expect("JSON");
    assert_eq!(shown["files"][0]["what"], "kept");
    assert!(shown["firmware"]["left_alone"]["why"].as_str().is_some());
    let esp = bench.node(1);
    let all =
        ["EFI/BOOT/BOOTX64.EFI", "hoist/linux", "loader/entries/hoist.conf", "loader/loader.conf"];
    assert_eq!(paths(&esp), all);
    assert_eq!(stored(&esp, "EFI/BOOT/BOOTX64.EFI"), Some(StoredFile::of(LOADER)));
    assert_eq!(stored(&esp, "hoist/linux"), Some(StoredFile::of(KERNEL)));
    assert_eq!(agent("verify", &first, &[]).code, 0);

    let second = document(&bench, &files(&bench), "quiet, debug");
    let kept = fs_err::read(bench.node(4)).expect("it is read");
    let before = stored(&esp, "loader/entries/hoist.conf");
    let again = agent("apply", &second, &["--only", "boot"]);
    assert_eq!(again.code, 0, "{}", again.err);
    assert!(again.err.contains("put loader/entries/hoist.conf"), "{}", again.err);
    assert!(!again.err.contains("hoist/linux"), "what is there stays: {}", again.err);
    assert_ne!(stored(&esp, "loader/entries/hoist.conf"), before);
    assert!(fs_err::read(bench.node(4)).expect("it is read") == kept);
    assert_eq!(agent("verify", &second, &[]).code, 0, "everything else is known as before");
}

#[test]
fn every_esp_of_two_disks_gets_the_boot_files() {
    let bench = Bench::new(512);
    let second = Bench::sized(512, 64);
    bench.pack_image();
    let name = second.disk.path().file_name().expect("a name").to_string_lossy();
    let label = bench.label('F');
    let storage = format!(
        "    two: {{match: {{kernel_name: {name}}}}}\n  storage:\n    \
         - part: {{id: esp-2, on: two, size: 40 MiB, role: esp}}\n    \
         - fs: {{id: esp-2-fs, on: esp-2, kind: vfat, label: {label}}}"
    );
    let section = section(&files(&bench), "quiet");
    let document =
        bench.document(&[("  storage:", storage.as_str()), ("  images:", section.as_str())]);
    let applied = agent("apply", &document, &[]);
    assert_eq!(applied.code, 0, "{}", applied.err);
    let esps = [bench.node(1), second.node(1)];
    for esp in &esps {
        assert_eq!(stored(esp, "EFI/BOOT/BOOTX64.EFI"), Some(StoredFile::of(LOADER)));
        assert_eq!(stored(esp, "hoist/linux"), Some(StoredFile::of(KERNEL)));
    }
    let [first_entry, second_entry] =
        esps.each_ref().map(|esp| stored(esp, "loader/entries/hoist.conf"));
    assert!(first_entry.is_some() && first_entry == second_entry, "both start the same root");
    assert_eq!(agent("verify", &document, &[]).code, 0);
    // An ESP that is lost with its disk is made again, and the other one stays.
    let kept = fs_err::read(bench.node(1)).expect("it is read");
    second.clear(1);
    assert_eq!(agent("verify", &document, &[]).code, 1);
    let again = agent("apply", &document, &[]);
    assert_eq!(again.code, 0, "{}", again.err);
    assert_eq!(stored(&second.node(1), "hoist/linux"), Some(StoredFile::of(KERNEL)));
    assert!(fs_err::read(bench.node(1)).expect("it is read") == kept);
    assert_eq!(agent("verify", &document, &[]).code, 0);
}

#[test]
fn unbootable_layout_is_refused_before_any_write() {
    let bench = Bench::new(512);
    bench.pack_image();
    let before = bench.digest();
    let kernel = || ("kernel", fetched(&bench, "kernel", KERNEL, &of(KERNEL)));
    let gone =
        format!("{{sources: ['file://{}'], digest: '{}'}}", bench.path("no").display(), of(b""));
    let large = vec![1; 41 << 20];
    let cases = [
        (vec![kernel()], 2, "boot.files.loader"),
        (vec![kernel(), ("loader", gone)], 3, "[unreachable]"),
        (vec![kernel(), ("loader", "{sources: ['file:///x']}".to_owned())], 2, "[missing]"),
        (vec![kernel(), ("loader", fetched(&bench, "l", &large, &of(&large)))], 3, "[no-room]"),
        (vec![kernel(), ("loader", fetched(&bench, "m", b"x", "sha256:12"))], 2, "[bad-value]"),
    ];
    for (files, code, told) in cases {
        let refused = agent("apply", &document(&bench, &files, "quiet"), &[]);
        assert_eq!(refused.code, code, "{}", refused.err);
        assert!(refused.err.contains(told), "{}", refused.err);
        assert!(before == bench.digest());
    }
}

#[test]
fn file_with_wrong_digest_is_dropped_and_disk_stays_unfinished() {
    let bench = Bench::new(512);
    bench.pack_image();
    let mut all = files(&bench);
    all[1].1 = fetched(&bench, "loader", b"somebody else", &of(LOADER));
    let document = document(&bench, &all, "quiet");
    let failed = agent("apply", &document, &[]);
    assert_eq!(failed.code, 1, "{}", failed.err);
    assert!(failed.err.contains("the file was discarded"), "{}", failed.err);
    assert_eq!(agent("verify", &document, &[]).code, 1);
    fetched(&bench, "loader", LOADER, "");
    let resumed = agent("apply", &document, &[]);
    assert_eq!(resumed.code, 0, "{}", resumed.err);
    assert!(resumed.out.contains("resumed an interrupted run"), "{}", resumed.out);
    assert_eq!(stored(&bench.node(1), "EFI/BOOT/BOOTX64.EFI"), Some(StoredFile::of(LOADER)));
    assert_eq!(agent("verify", &document, &[]).code, 0);
}
