//! Volumes made by hoist, checked with the tools of other projects.

use std::ops::Range;
use std::process::Command;

use hoist_device::fat::{FatError, Volume, make, repair};
use hoist_device::fault::{Fault, FaultEffect, FaultTrigger};
use hoist_device::{GuardedIo, Identity, Ranges};
use hoist_provision::fat_names::{NameError, check_names};
use hoist_provision::volume::StoredFile;

const MIB: u64 = 1 << 20;

/// A file that stands for a disk, with old bytes in it.
struct Disk(tempfile::NamedTempFile);

impl Disk {
    fn new(size: u64) -> Self {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        file.as_file().set_len(size).expect("it has a size");
        Self(file)
    }

    fn io(&self, sector: u32) -> GuardedIo {
        let meant = Identity::of(self.0.path(), sector).expect("it is there");
        let allow = Ranges::from(0..meant.size);
        GuardedIo::open(self.0.path(), &meant, &allow, &Ranges::default()).expect("it is free")
    }

    /// Asserts that dosfstools find no fault in the volume, which fills the disk.
    fn check(&self) {
        let checked = Command::new("fsck.vfat").arg("-n").arg(self.0.path()).output();
        let checked = checked.expect("`fsck.vfat` is there; run `make setup-test`");
        let said = String::from_utf8_lossy(&checked.stdout).into_owned();
        assert!(checked.status.success(), "{said}");
        assert!(!said.contains("differ") && !said.contains("Dirty"), "{said}");
    }
}

fn fill(io: &GuardedIo, size: u64, files: &[(&str, Vec<u8>)]) {
    make(io, &(0..size), Some("config-2"), 0x1234_ABCD).expect("it is made");
    let volume = Volume::open(io, 0..size).expect("it is there");
    for (path, bytes) in files {
        volume.put_bytes(path, bytes).expect("it is written");
    }
    volume.finish().expect("it is finished");
}

#[test]
fn fat_volumes_of_any_size_hold_files_and_pass_fsck() {
    let files = [
        ("openstack/latest/meta_data.json", b"{}".to_vec()),
        ("openstack/latest/user_data", vec![7; 300_000]),
        ("A long name with spaces.txt", Vec::new()),
        ("empty", Vec::new()),
    ];
    let sizes = [(512, 8), (512, 64), (512, 300), (512, 600), (4096, 8), (4096, 64), (4096, 300)];
    for (sector, mib) in sizes.into_iter().chain([(4096, 600)]) {
        let disk = Disk::new(mib * MIB);
        let io = disk.io(sector);
        fill(&io, mib * MIB, &files);
        let volume = Volume::read_only(&io, 0..mib * MIB).expect("it is there");
        assert_eq!(volume.label().as_deref(), Some("CONFIG-2"));
        assert_eq!(volume.serial(), 0x1234_ABCD);
        let mut paths: Vec<&str> = files.iter().map(|(path, _)| *path).collect();
        paths.sort_unstable();
        assert_eq!(volume.paths().expect("it can be read"), paths);
        for (path, bytes) in &files {
            let stored = volume.stored(path, MIB).expect("it can be read");
            assert_eq!(stored, Some(StoredFile::of(bytes)), "{path} in {mib} MiB of {sector}");
        }
        let most = volume.stored("openstack/latest/user_data", 100_000).expect("read");
        assert!((100_001..300_000).contains(&most.expect("it is there").size));
        assert_eq!(volume.stored("no/such/file", MIB).expect("read"), None);
        drop(volume);
        disk.check();
    }
}

#[test]
fn the_same_files_make_the_same_bytes() {
    let bytes = |_| {
        let disk = Disk::new(8 * MIB);
        fill(&disk.io(512), 8 * MIB, &[("a/b", vec![1; 9000]), ("c", b"x".to_vec())]);
        fs_err::read(disk.0.path()).expect("it is there")
    };
    assert!(bytes(0) == bytes(1));
}

#[test]
fn rewritten_fat_file_has_only_the_new_content() {
    let disk = Disk::new(8 * MIB);
    let io = disk.io(512);
    fill(&io, 8 * MIB, &[("boot/linux", vec![1; 100_000]), ("boot/other", vec![2; 10])]);
    let volume = Volume::open(&io, 0..8 * MIB).expect("it is there");
    volume.put_bytes("BOOT/linux", b"short").expect("it is written");
    volume.remove("boot/other").expect("it is removed");
    volume.finish().expect("it is finished");
    let volume = Volume::read_only(&io, 0..8 * MIB).expect("it is there");
    assert_eq!(volume.paths().expect("it can be read"), ["boot/linux"]);
    assert_eq!(volume.stored("boot/linux", MIB).expect("read"), Some(StoredFile::of(b"short")));
    drop(volume);
    disk.check();
}

/// Writes a new file, a directory and a longer version of an existing file.
fn change(io: &GuardedIo, size: u64) -> Result<(), FatError> {
    let volume = Volume::open(io, 0..size)?;
    volume.put_bytes("EFI/BOOT/a name longer than eight.efi", &vec![5; 700_000])?;
    volume.put_bytes("loader/entry.conf", &vec![6; 90_000])?;
    volume.finish()
}

#[test]
fn interrupted_fat_volume_is_clean_after_repair() {
    let mut repaired = 0;
    for (sector, mib) in [(512, 8), (512, 64), (512, 300), (4096, 64)] {
        let disk = Disk::new(mib * MIB);
        let kept = vec![4; 200_000];
        let files = [("loader/entry.conf", vec![3; 5000]), ("loader/kept", kept.clone())];
        fill(&disk.io(sector), mib * MIB, &files);
        let before = fs_err::read(disk.0.path()).expect("it is there");
        let io = disk.io(sector);
        assert!(!repair(&io, &(0..mib * MIB)).expect("it is read"), "it has no fault");
        drop(io);
        for seed in 1..20_u64 {
            fs_err::write(disk.0.path(), &before).expect("it is written");
            let at = FaultTrigger::AtWrite(seed % 13);
            let io = disk.io(sector).with_fault(Fault::new(at, FaultEffect::CutPower(seed * 7919)));
            if change(&io, mib * MIB)
                .and_then(|()| io.sync().map_err(|e| FatError::Finish(e.into())))
                .is_ok()
            {
                continue;
            }
            drop(io);
            let io = disk.io(sector);
            repaired += usize::from(repair(&io, &(0..mib * MIB)).expect("it is repaired"));
            disk.check();
            change(&io, mib * MIB).expect("nothing is wrong any more");
            let volume = Volume::read_only(&io, 0..mib * MIB).expect("it is there");
            let stored = volume.stored("loader/kept", MIB).expect("it can be read");
            assert_eq!(stored, Some(StoredFile::of(&kept)), "seed {seed}, {mib} MiB");
            let stored = volume.stored("loader/entry.conf", MIB).expect("it can be read");
            assert_eq!(stored, Some(StoredFile::of(&vec![6; 90_000])));
            drop(volume);
            disk.check();
        }
    }
    assert!(repaired > 15, "{repaired}");
}

#[test]
fn full_or_too_small_fat_volume_is_reported() {
    let disk = Disk::new(8 * MIB);
    let io = disk.io(4096);
    make(&io, &(0..8 * MIB), None, 1).expect("it is made");
    let volume = Volume::open(&io, 0..8 * MIB).expect("it is there");
    let full = volume.put_bytes("linux", &vec![3; 9 << 20]).expect_err("it is larger");
    assert!(matches!(full, FatError::Full { .. }), "{full}");
    drop(volume);
    let tiny = make(&io, &(0..16 * 1024), None, 1).expect_err("the volume is too small");
    assert!(matches!(tiny, FatError::Make { .. }), "{tiny}");
    let nothing = Disk::new(MIB);
    let io = nothing.io(512);
    assert!(matches!(Volume::read_only(&io, 0..MIB), Err(FatError::Open(_))));
}

#[test]
fn fat_writes_stay_inside_the_range() {
    let disk = Disk::new(10 * MIB);
    fs_err::write(disk.0.path(), vec![0xAA; 10 << 20]).expect("it is written");
    let io = disk.io(512);
    make(&io, &(MIB..9 * MIB), Some("X"), 1).expect("it is made");
    let volume = Volume::open(&io, MIB..9 * MIB).expect("it is there");
    volume.put_bytes("a", &vec![1; 9 << 20]).expect_err("it is larger");
    drop(volume);
    let bytes = fs_err::read(disk.0.path()).expect("it is there");
    let is_old = |range: Range<usize>| bytes[range].iter().all(|byte| *byte == 0xAA);
    assert!(is_old(0..1 << 20) && is_old(9 << 20..10 << 20));
}

#[test]
fn invalid_fat_names_are_refused() {
    assert_eq!(check_names(["a/b", "a/c", "Ä ü.txt", "user-data"]), []);
    for bad in ["a:b", "x/what?", "dot.", "space ", "q\"", "tab\tx", &"n".repeat(256), "😀"] {
        assert!(matches!(check_names([bad])[..], [NameError::Bad { .. }]), "{bad}");
    }
    assert_eq!(check_names([&*"n".repeat(255)]), []);
    assert!(matches!(check_names(["A/b", "a/B"])[..], [NameError::Same { .. }]));
    assert!(matches!(check_names(["a", "A/b"])[..], [NameError::Inside { .. }]));
}
