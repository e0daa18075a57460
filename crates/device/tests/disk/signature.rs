//! Signatures found by hoist in foreign file systems, compared with those of `blkid`.

use std::path::{Path, PathBuf};
use std::process::Command;

use hoist_device::signature::{find, wipe};
use hoist_device::{GuardedIo, Identity, Ranges, ReadIo};
use hoist_provision::facts::{Signature, SignatureKind as Kind, SignaturePlace};

use crate::machine::identity;
use hoist_testkit::loop_disk::{LoopDisk, run};

pub(crate) const MIB: u64 = 1 << 20;

pub(crate) fn signatures(path: &Path) -> Vec<Signature> {
    let io = ReadIo::open(path, 512).expect("it is there");
    find(&io, io.identity().sector).expect("it is read")
}

/// Type, label and UUID according to `blkid`.
pub(crate) fn blkid(path: &Path) -> [Option<String>; 3] {
    let said = run(Command::new("blkid").args(["-p", "-o", "export"]).arg(path));
    let value = |key: &str| {
        let line = said.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        line.map(|value| value.replace("\\ ", " "))
    };
    ["TYPE", "LABEL", "UUID"].map(value)
}

fn word(kind: Kind) -> &'static [&'static str] {
    match kind {
        Kind::Ext => &["ext2", "ext3", "ext4"],
        Kind::Lvm => &["LVM2_member"],
        Kind::Md => &["linux_raid_member", "isw_raid_member", "ddf_raid_member"],
        Kind::Luks => &["crypto_LUKS"],
        Kind::Zfs => &["zfs_member"],
        Kind::Ceph => &["ceph_bluestore"],
        Kind::Vmfs => &["VMFS_volume_member", "VMFS"],
        Kind::Xfs => &["xfs"],
        Kind::Btrfs => &["btrfs"],
        Kind::Vfat => &["vfat"],
        Kind::Exfat => &["exfat"],
        Kind::Ntfs => &["ntfs"],
        Kind::Iso9660 => &["iso9660"],
        Kind::Squashfs => &["squashfs"],
        Kind::Erofs => &["erofs"],
        Kind::F2fs => &["f2fs"],
        Kind::Swap => &["swap", "swsuspend"],
        Kind::Bcache => &["bcache"],
        Kind::Gfs2 => &["gfs2"],
        Kind::Ocfs2 => &["ocfs2"],
        Kind::Drbd => &["drbd"],
        Kind::Reiserfs => &["reiserfs", "reiser4"],
        Kind::Jfs => &["jfs"],
        Kind::Nilfs2 => &["nilfs2"],
        Kind::Udf => &["udf"],
        Kind::Minix => &["minix"],
        Kind::Ufs => &["ufs"],
        Kind::Apfs => &["apfs"],
        Kind::Bcachefs => &["bcachefs"],
        Kind::Bitlocker => &["BitLocker"],
        Kind::Lvm1 => &["LVM1_member"],
        Kind::Oracleasm => &["oracleasm"],
        Kind::Stratis => &["stratis"],
        Kind::Vdo => &["vdo"],
        Kind::Gpt | Kind::Mbr | Kind::Gpfs | Kind::Hoist | Kind::Unknown => &[],
    }
}

/// Whether `blkid` has this word for a kind.
pub(crate) fn is_word(kind: Kind, said: &str) -> bool {
    word(kind).contains(&said)
}

pub(crate) struct Bench(tempfile::TempDir);

impl Bench {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().expect("a temporary directory"))
    }

    /// An empty file, formatted by the program.
    pub(crate) fn make(&self, mib: u64, program: &str, arguments: &[&str]) -> PathBuf {
        let path = self.0.path().join(program);
        let file = fs_err::File::create(&path).expect("it is created");
        file.set_len(mib * MIB).expect("it has a size");
        let tree = self.0.path().join("tree");
        fs_err::create_dir_all(&tree).expect("it is created");
        fs_err::write(tree.join("file"), "content").expect("it is written");
        let fill = |argument: &&str| match *argument {
            "FILE" => path.clone(),
            "TREE" => tree.clone(),
            "KEY" => tree.join("file"),
            other => PathBuf::from(other),
        };
        run(Command::new(program).args(arguments.iter().map(fill)));
        path
    }

    /// An empty file with some bytes in it.
    pub(crate) fn plant(&self, size: u64, bytes: &[(u64, &[u8])]) -> PathBuf {
        let path = self.0.path().join("planted");
        let mut content = vec![0; usize::try_from(size).expect("it is small")];
        for (at, bytes) in bytes {
            let at = usize::try_from(*at).expect("it is small");
            content[at..at + bytes.len()].copy_from_slice(bytes);
        }
        fs_err::write(&path, content).expect("it is written");
        path
    }
}

/// Asserts that there is exactly this signature and that `blkid` agrees.
fn check(path: &Path, kind: Kind, knows_label: bool) {
    let found = signatures(path);
    let [signature] = &found[..] else { panic!("{}: {found:#?}", path.display()) };
    assert_eq!(signature.kind, kind);
    assert_eq!(signature.place, SignaturePlace::Disk);
    let [kind_there, label, uuid] = blkid(path);
    let kind_there = kind_there.expect("blkid knows it");
    assert!(is_word(kind, &kind_there), "{kind}: blkid says {kind_there}");
    assert_eq!(signature.uuid, uuid, "{kind}");
    if knows_label {
        assert_eq!(signature.label, label, "{kind}");
    }
}

#[test]
fn foreign_signatures_are_named_as_blkid_does() {
    let bench = Bench::new();
    let made: [(u64, &str, &[&str], Kind); 9] = [
        (8, "mke2fs", &["-q", "-t", "ext4", "-L", "some name", "FILE"], Kind::Ext),
        (320, "mkfs.xfs", &["-q", "-L", "xlabel", "FILE"], Kind::Xfs),
        (128, "mkfs.btrfs", &["-q", "-L", "blabel", "FILE"], Kind::Btrfs),
        (16, "mkfs.vfat", &["-n", "FLABEL", "FILE"], Kind::Vfat),
        (8, "mkswap", &["-q", "-L", "slabel", "FILE"], Kind::Swap),
        (8, "mkfs.ntfs", &["-F", "-Q", "-q", "FILE"], Kind::Ntfs),
        (0, "mksquashfs", &["TREE", "FILE", "-quiet", "-noappend", "-no-progress"], Kind::Squashfs),
        (0, "mkfs.erofs", &["--quiet", "FILE", "TREE"], Kind::Erofs),
        (
            32,
            "cryptsetup",
            &[
                "luksFormat",
                "-q",
                "--type",
                "luks2",
                "--label",
                "llabel",
                "--pbkdf",
                "pbkdf2",
                "--pbkdf-force-iterations",
                "1000",
                "FILE",
                "KEY",
            ],
            Kind::Luks,
        ),
    ];
    for (mib, program, arguments, kind) in made {
        check(&bench.make(mib, program, arguments), kind, true);
    }
    check(&bench.make(300, "mkfs.vfat", &["-F", "32", "FILE"]), Kind::Vfat, true);
    let luks1 =
        ["luksFormat", "-q", "--type", "luks1", "--pbkdf-force-iterations", "1000", "FILE", "KEY"];
    check(&bench.make(8, "cryptsetup", &luks1), Kind::Luks, true);
}

/// A superblock of MD, version 1, with the fields that probes read.
fn md_1(super_offset: u64) -> Vec<u8> {
    let mut block = vec![0; 512];
    block[..4].copy_from_slice(&0xa92b_4efc_u32.to_le_bytes());
    block[4..8].copy_from_slice(&1_u32.to_le_bytes());
    block[16..32].copy_from_slice(&[7; 16]);
    block[32..37].copy_from_slice(b"n1:md");
    block[92..96].copy_from_slice(&2_u32.to_le_bytes());
    block[144..152].copy_from_slice(&(super_offset / 512).to_le_bytes());
    let summed = &block[..256];
    let words = summed.chunks(4).map(|word| u32::from_le_bytes(word.try_into().expect("four")));
    let sum: u64 = words.map(u64::from).sum();
    let sum = u32::try_from((sum & 0xffff_ffff) + (sum >> 32)).expect("it is folded");
    block[216..220].copy_from_slice(&sum.to_le_bytes());
    block
}

fn md_0() -> Vec<u8> {
    let mut words = [0_u32; 1024];
    let set = [(0, 0xa92b_4efc), (2, 90), (5, 0x0102_0304), (10, 2), (13, 5), (14, 6), (15, 7)];
    for (word, value) in set {
        words[word] = value;
    }
    words.map(u32::to_le_bytes).as_flattened().to_vec()
}

#[test]
fn array_members_of_every_version_are_detected() {
    let bench = Bench::new();
    let size = 4 * MIB + 24 * 1024;
    for at in [0, 4096, size - 8192] {
        let path = bench.plant(size, &[(at, &md_1(at))]);
        check(&path, Kind::Md, true);
        let found = &signatures(&path)[0];
        assert_eq!((found.offset, found.members), (at, Some(2)));
    }
    let at = 4 * MIB - 64 * 1024;
    let path = bench.plant(size, &[(at, &md_0())]);
    check(&path, Kind::Md, true);
    assert_eq!(signatures(&path)[0].members, Some(2));
    let big: Vec<u8> =
        md_0().chunks(4).flat_map(|word| [word[3], word[2], word[1], word[0]]).collect();
    check(&bench.plant(size, &[(at, &big)]), Kind::Md, true);
}

/// The pool in a label of ZFS, as XDR.
fn pool(name: &str, id: u64) -> Vec<u8> {
    let text = |text: &str| {
        let length = u32::try_from(text.len()).expect("it is short");
        let mut bytes = [&length.to_be_bytes()[..], text.as_bytes()].concat();
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    };
    let pair = |name: &str, kind: u32, value: &[u8]| {
        let head = [kind.to_be_bytes(), 1_u32.to_be_bytes()].concat();
        let inside = [&text(name)[..], &head, value].concat();
        let length = u32::try_from(inside.len() + 8).expect("it is short");
        [&length.to_be_bytes()[..], &length.to_be_bytes(), &inside].concat()
    };
    let head = [&[1, 1, 0, 0][..], &0_u32.to_be_bytes(), &1_u32.to_be_bytes()].concat();
    let pairs = [
        pair("version", 8, &5000_u64.to_be_bytes()),
        pair("name", 9, &text(name)),
        pair("pool_guid", 8, &id.to_be_bytes()),
        pair("guid", 8, &7_u64.to_be_bytes()),
    ];
    [head, pairs.concat(), vec![0; 8]].concat()
}

#[test]
fn firmware_arrays_are_detected_at_the_disk_end() {
    let bench = Bench::new();
    let size = 4 * MIB;
    let mut intel = b"Intel Raid ISM Cfg Sig. 1.3.00\0\0".to_vec();
    intel.resize(48, 0);
    intel[40..44].copy_from_slice(&0xabcd_1234_u32.to_le_bytes());
    let mut common = vec![0; 512];
    common[..4].copy_from_slice(&0xde11_de11_u32.to_be_bytes());
    common[8..32].copy_from_slice(b"LSI     0123456789abcdef");
    for (at, bytes, uuid) in [
        (size - 1024, &intel, "abcd1234"),
        (size - 8192, &intel, "abcd1234"),
        (size - 512, &common, "4c5349202020202030313233343536373839616263646566"),
    ] {
        let found = signatures(&bench.plant(size, &[(at, bytes)]));
        let [found] = &found[..] else { panic!("{found:#?}") };
        assert_eq!((found.kind, found.uuid.as_deref()), (Kind::Md, Some(uuid)));
    }
    let path = bench.plant(size, &[(size - 1024, &intel)]);
    assert_eq!(blkid(&path)[0].as_deref(), Some("isw_raid_member"));
}

#[test]
fn signature_in_a_logical_partition_is_found() {
    let bench = Bench::new();
    // In an entry, four bytes are the first sector and four the number of sectors.
    let entry = |kind: u8, start: u32, length: u32| {
        let head = [0, 0, 0, 0, kind, 0, 0, 0];
        [&head[..], &start.to_le_bytes(), &length.to_le_bytes()].concat()
    };
    let table = |entries: [Vec<u8>; 2]| [&entries.concat()[..], &[0; 32], b"\x55\xaa"].concat();
    let first = table([entry(0x83, 2048, 4096), entry(0x05, 8192, 16_384)]);
    let outer = table([entry(0x8e, 2048, 4096), entry(0x05, 8192, 8192)]);
    let inner = table([entry(0x83, 64, 8128), vec![0; 16]]);
    let label = b"LABELONE\0\0\0\0\0\0\0\0\0\0\0\0\x20\0\0\0LVM2 001";
    // The superblock is also at the end of its container.
    let end = (8192 + 16_384) * 512 - 8192;
    let path = bench.plant(
        16 * MIB,
        &[
            (446, &first),
            (8192 * 512 + 446, &outer),
            (16_384 * 512 + 446, &inner),
            (10_240 * 512 + 512, label),
            (end, &md_1(0)),
        ],
    );
    let found = signatures(&path);
    let found: Vec<_> = found.iter().map(|found| (found.kind, found.place)).collect();
    let inside = SignaturePlace::Partition;
    let expected =
        [(Kind::Lvm, inside(5)), (Kind::Md, inside(6)), (Kind::Mbr, SignaturePlace::Disk)];
    assert_eq!(found, expected);
}

#[test]
fn table_of_another_sector_size_is_read() {
    let bench = Bench::new();
    let path = bench.plant(16 * MIB, &[]);
    run(Command::new("sgdisk").args(["-n", "1:2048:+8M"]).arg(&path));
    let mut content = fs_err::read(&path).expect("it is there");
    let label = b"LABELONE\0\0\0\0\0\0\0\0\0\0\0\0\x20\0\0\0LVM2 001";
    content[1_049_088..1_049_088 + label.len()].copy_from_slice(label);
    fs_err::write(&path, content).expect("it is written");
    for sector in [512, 4096] {
        let io = ReadIo::open(&path, sector).expect("it is there");
        let found = find(&io, sector).expect("it is read");
        let found: Vec<_> = found.iter().map(|found| (found.kind, found.place)).collect();
        let expected =
            [(Kind::Lvm, SignaturePlace::Partition(1)), (Kind::Gpt, SignaturePlace::Disk)];
        assert_eq!(found, expected, "read with sectors of {sector}");
    }
}

#[test]
fn rare_file_systems_are_known_by_their_superblock() {
    let bench = Bench::new();
    // Size of the systems that `blkid` does not find on smaller devices.
    let size = 64 * MIB;
    let mut bcache = vec![0; 4096];
    bcache[8..16].copy_from_slice(&8_u64.to_le_bytes());
    let magic = [
        0xc6, 0x85, 0x73, 0xf6, 0x4e, 0x1a, 0x45, 0xca, 0x82, 0x65, 0xf5, 0x7f, 0x48, 0xba, 0x6d,
        0x81,
    ];
    bcache[24..40].copy_from_slice(&magic);
    bcache[40..56].copy_from_slice(&[9; 16]);
    bcache[56..72].copy_from_slice(&[5; 16]);
    let found = signatures(&bench.plant(size, &[(4096, &bcache)]));
    assert_eq!(
        (found[0].kind, found.len()),
        (Kind::Bcache, 1),
        "its checksum is nobody's business"
    );
    let set = "05050505-0505-0505-0505-050505050505";
    assert_eq!(found[0].uuid.as_deref(), Some(set), "that of the cache and of what it is for");

    let mut ocfs2 = vec![0; 1024];
    ocfs2[..6].copy_from_slice(b"OCFSV2");
    ocfs2[248..252].copy_from_slice(&10_u32.to_le_bytes());
    ocfs2[272..277].copy_from_slice(b"olabl");
    ocfs2[336..352].copy_from_slice(&[8; 16]);
    check(&bench.plant(size, &[(2048, &ocfs2)]), Kind::Ocfs2, true);

    let mut gfs2 = vec![0; 512];
    gfs2[..8].copy_from_slice(&[1, 0x16, 0x19, 0x70, 0, 0, 0, 1]);
    gfs2[24..28].copy_from_slice(&1801_u32.to_be_bytes());
    gfs2[28..32].copy_from_slice(&1900_u32.to_be_bytes());
    gfs2[160..166].copy_from_slice(b"clu:fs");
    gfs2[256..272].copy_from_slice(&[6; 16]);
    check(&bench.plant(size, &[(65_536, &gfs2)]), Kind::Gfs2, true);

    let uberblock = 0x00ba_b10c_u64.to_le_bytes();
    let ring: Vec<(u64, &[u8])> =
        (0..8).map(|slot| (128 * 1024 + slot * 1024, &uberblock[..])).collect();
    check(&bench.plant(size, &ring), Kind::Zfs, false);
    let far: Vec<(u64, &[u8])> =
        ring.iter().map(|(at, bytes)| (64 * MIB - 256 * 1024 + at, *bytes)).collect();
    check(&bench.plant(size, &far), Kind::Zfs, false);
    let description = pool("tank", 0x1122_3344_5566_7788);
    let mut whole = ring.clone();
    whole.push((16 * 1024, &description));
    check(&bench.plant(size, &whole), Kind::Zfs, true);
    let found = &signatures(&bench.plant(size, &whole))[0];
    assert_eq!(found.uuid.as_deref(), Some("1234605616436508552"), "that of all its disks");
    assert_eq!(found.label.as_deref(), Some("tank"));

    let id = b"bluestore block device\n01234567-89ab-cdef-0123-456789abcdef\n";
    let found = signatures(&bench.plant(size, &[(0, id)]));
    assert_eq!(found[0].kind, Kind::Ceph);
    assert_eq!(found[0].uuid.as_deref(), Some("01234567-89ab-cdef-0123-456789abcdef"));
    assert_eq!(blkid(&bench.plant(size, &[(0, id)]))[0].as_deref(), Some("ceph_bluestore"));

    for (at, magic) in [(MIB, b"\x0d\xd0\x01\xc0"), (2 * MIB, b"\x5e\xf1\xab\x2f")] {
        let path = bench.plant(size, &[(at, magic)]);
        assert_eq!(signatures(&path)[0].kind, Kind::Vmfs);
        assert!(word(Kind::Vmfs).contains(&blkid(&path)[0].clone().expect("known").as_str()));
    }

    let path = bench.plant(size, &[(size - 4096 + 60, &0x8374_026b_u32.to_be_bytes())]);
    assert_eq!(signatures(&path)[0].kind, Kind::Drbd);
    assert_eq!(blkid(&path)[0].as_deref(), Some("drbd"));

    let mut iso = vec![0x20; 2048];
    iso[..7].copy_from_slice(b"\x01CD001\x01");
    iso[40..47].copy_from_slice(b"INSTALL");
    let path = bench.plant(size, &[(32_768, &iso)]);
    assert_eq!(
        (signatures(&path)[0].kind, signatures(&path)[0].label.as_deref()),
        (Kind::Iso9660, Some("INSTALL"))
    );
    assert_eq!(blkid(&path)[..2], [Some("iso9660".to_owned()), Some("INSTALL".to_owned())]);

    let mut f2fs = vec![0; 512];
    f2fs[..8].copy_from_slice(&[0x10, 0x20, 0xf5, 0xf2, 1, 0, 14, 0]);
    f2fs[108..124].copy_from_slice(&[5; 16]);
    check(&bench.plant(size, &[(1024, &f2fs)]), Kind::F2fs, false);
}

/// As written by `pvcreate` and `vgcreate`: a label in the second sector, and a description that
/// wraps around the end of its area.
#[test]
fn volume_group_member_names_group_and_size() {
    let bench = Bench::new();
    let mut label = vec![0; 512];
    label[..8].copy_from_slice(b"LABELONE");
    label[8..16].copy_from_slice(&1_u64.to_le_bytes());
    label[20..24].copy_from_slice(&32_u32.to_le_bytes());
    label[24..32].copy_from_slice(b"LVM2 001");
    label[32..64].copy_from_slice(b"jR4D7bdo2LGksXbetbk95nbBgwOQP3lP");
    label[72..80].copy_from_slice(&MIB.to_le_bytes());
    // Behind the data area and its terminating pair of zeros.
    label[104..112].copy_from_slice(&4096_u64.to_le_bytes());
    label[112..120].copy_from_slice(&8192_u64.to_le_bytes());
    let text = "vg data {\nid = \"S0LMjz-Cq9r\"\nphysical_volumes {\n\n\tpv0 {\n\t}\n\tpv1 {\n\t}\n\tpv2 {\n}\n}\n}";
    let at = 8192 - 40;
    let mut area = vec![0; 8192];
    area[4..20].copy_from_slice(b"\x20LVM2\x20x[5A%r0N*>");
    area[40..48].copy_from_slice(&(at as u64).to_le_bytes());
    area[48..56].copy_from_slice(&(text.len() as u64).to_le_bytes());
    area[at..].copy_from_slice(&text.as_bytes()[..40]);
    area[512..512 + text.len() - 40].copy_from_slice(&text.as_bytes()[40..]);
    let found = signatures(&bench.plant(8 * MIB, &[(512, &label), (4096, &area)]));
    let [member] = &found[..] else { panic!("{found:?}") };
    assert_eq!((member.kind, member.offset, member.members), (Kind::Lvm, 536, Some(3)));
    assert_eq!(member.label.as_deref(), Some("vg data"));
    assert_eq!(member.uuid.as_deref(), Some("S0LMjz-Cq9r"));
    // Without a description it is still recognised as a member.
    let found = signatures(&bench.plant(8 * MIB, &[(0, &label)]));
    assert_eq!((found[0].kind, found[0].offset, &found[0].label), (Kind::Lvm, 24, &None));
}

#[test]
fn signature_names_its_partition_and_wiped_range_is_empty() {
    let disk = LoopDisk::new(32 * MIB, 512);
    let mut sgdisk = Command::new("sgdisk");
    sgdisk.args([
        "--clear",
        "--new=1:1M:+8M",
        "--new=3:16M:0",
        "--typecode=1:37affc90-ef7d-4e96-91c3-2d7ae055b174",
    ]);
    run(sgdisk.arg(disk.path()));
    let offset = (16 * MIB).to_string();
    run(Command::new("mkfs.vfat")
        .args(["--offset", &(16 * MIB / 512).to_string(), "-n", "INSIDE"])
        .arg(disk.path())
        .arg("8192"));
    let found = signatures(disk.path());
    let seen: Vec<_> = found.iter().map(|one| (one.kind, one.place)).collect();
    let inside = SignaturePlace::Partition(3);
    let wanted = [
        (Kind::Gpfs, SignaturePlace::Partition(1)),
        (Kind::Vfat, inside),
        (Kind::Gpt, SignaturePlace::Disk),
    ];
    assert_eq!(seen, wanted, "{offset}");
    assert_eq!((found[1].offset, found[1].label.as_deref()), (16 * MIB + 510, Some("INSIDE")));

    let identity = identity(&disk);
    let allow = Ranges::from(0..32 * MIB);
    let retain = Ranges::from(MIB..9 * MIB);
    let io = GuardedIo::open(disk.path(), &identity, &allow, &retain).expect("nobody uses it");
    assert!(wipe(&io, 0..32 * MIB).is_err(), "something of it is retained");
    assert_eq!(signatures(disk.path()).len(), 3, "nothing was wiped");
    wipe(&io, 16 * MIB..31 * MIB).expect("it is allowed");
    assert_eq!(signatures(disk.path()).len(), 2);
    drop(io);
    let io = GuardedIo::open(disk.path(), &identity, &allow, &Ranges::default())
        .expect("nobody uses it");
    wipe(&io, 0..32 * MIB).expect("it is allowed");
    assert_eq!(signatures(disk.path()), []);
    let middle = &disk.bytes()[usize::try_from(10 * MIB).expect("small")..][..100];
    assert_eq!(middle, [0xff; 100], "what says nothing is not wiped");
    let again = Identity::of(disk.path(), 512).expect("it is there");
    assert_eq!(again, identity);
}
