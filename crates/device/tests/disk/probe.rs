use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use hoist_device::ReadIo;
use hoist_device::kernel::set_partitions;
use hoist_device::probe::Machine;
use hoist_provision::facts::{Bus, Busy, BusyReason, DiskFacts, Firmware, SignatureKind};
use hoist_provision::partition_table::{TableOnDisk, read};

use hoist_testkit::loop_disk::{LoopDisk, run};

const MIB: u64 = 1 << 20;

fn here(disk: &LoopDisk) -> DiskFacts {
    let name = disk.path().file_name().expect("it has a name").to_string_lossy().into_owned();
    let disks = Machine::here().probe().facts.disks;
    disks.into_iter().find(|found| found.kernel_name == name).expect("it was seen")
}

#[test]
fn probe_reports_table_and_users_of_a_disk() {
    let disk = LoopDisk::new(32 * MIB, 512);
    let seen = here(&disk);
    assert_eq!((seen.size, seen.logical_sector, seen.bus), (32 * MIB, 512, Some(Bus::Loop)));
    assert_eq!((&seen.table, &seen.signatures[..], &seen.busy[..]), (&None, &[][..], &[][..]));
    assert!(!seen.is_boot_medium && !seen.is_virtual && !seen.read_only);

    run(Command::new("sgdisk")
        .args(["--clear", "--new=2:1M:+8M", "--change-name=2:data"])
        .arg(disk.path()));
    let io = ReadIo::open(disk.path(), 512).expect("it is there");
    let TableOnDisk::Gpt { table, .. } = read(&io, 512).expect("it is read") else {
        panic!("no table")
    };
    let known = set_partitions(disk.path(), &table.partitions).expect("it is told");
    let partition = Path::new("/dev").join(&known[0].kernel_name);
    run(Command::new("mke2fs").args(["-q", "-F", "-L", "inside"]).arg(&partition));
    let dir = tempfile::Builder::new().prefix("with blank ").tempdir().expect("a directory");
    run(Command::new("mount").arg(&partition).arg(dir.path()));
    let seen = here(&disk);
    run(Command::new("umount").arg(dir.path()));
    let found = seen.table.as_ref().expect("it has a table").partitions[0].clone();
    assert_eq!((found.number, found.start, found.len), (2, MIB, 8 * MIB));
    assert_eq!(found.kernel_name.as_ref(), Some(&known[0].kernel_name));
    let reason = BusyReason::Mount(dir.path().display().to_string());
    assert_eq!(seen.busy, [Busy { device: known[0].kernel_name.clone(), reason }]);
    let kinds: Vec<_> =
        seen.signatures.iter().map(|one| (one.kind, one.label.as_deref())).collect();
    assert_eq!(kinds, [(SignatureKind::Ext, Some("inside")), (SignatureKind::Gpt, None)]);
    assert_eq!(here(&disk).busy, []);
    set_partitions(disk.path(), &[]).expect("it is told");
}

/// The files of an invented machine.
struct FakeMachine(tempfile::TempDir);

impl FakeMachine {
    fn write(&self, path: &str, text: impl AsRef<[u8]>) -> &Self {
        let path = self.0.path().join(path);
        fs_err::create_dir_all(path.parent().expect("it is below")).expect("it is created");
        fs_err::write(path, text).expect("it is written");
        self
    }

    fn link(&self, from: &str, to: &str) -> &Self {
        let from = self.0.path().join(from);
        fs_err::create_dir_all(from.parent().expect("it is below")).expect("it is created");
        fs_err::create_dir_all(self.0.path().join(to)).expect("it is created");
        symlink(self.0.path().join(to), from).expect("it is linked");
        self
    }

    /// Adds a disk at a place on a bus, and the file that stands for it.
    fn disk(&self, name: &str, place: &str, mib: u64) -> String {
        let sys = format!("sys/devices/{place}/block/{name}");
        self.link(&format!("sys/block/{name}"), &sys);
        self.link(&format!("{sys}/device"), &format!("sys/devices/{place}"));
        self.write(&format!("{sys}/size"), format!("{}\n", mib * 2048));
        self.write(&format!("dev/{name}"), vec![0; usize::try_from(mib * MIB).expect("small")]);
        sys
    }
}

#[test]
fn probe_describes_a_machine_from_sysfs() {
    let made = FakeMachine(tempfile::tempdir().expect("a temporary directory"));
    made.write("proc/meminfo", "MemTotal:       16384 kB\nMemFree: 1 kB\n");
    let cpu = "processor : 0\nmodel name : Fast One\nphysical id : 0\n\nprocessor : 1\nmodel name : Fast One\nphysical id : 1\n";
    made.write("proc/cpuinfo", cpu);
    made.write("sys/firmware/efi/fw_platform_size", "64");
    made.write("sys/class/dmi/id/product_serial", " S-1 \n")
        .write("sys/class/dmi/id/product_uuid", "ABCD");
    let nic = "sys/devices/pci0000:00/0000:00:1c.0/0000:05:00.0";
    made.link("sys/class/net/eth0/device", nic)
        .link(&format!("{nic}/driver"), "sys/bus/pci/drivers/fastnic");
    made.write("sys/class/net/eth0/address", "52:54:00:AA:00:01\n")
        .write("sys/class/net/eth0/carrier", "1");
    made.write("sys/class/net/eth0/speed", "25000")
        .write("sys/class/net/lo/address", "00:00:00:00:00:00");

    let nvme = made.disk("nvme0n1", "pci0000:00/0000:04:00.0/nvme/nvme0", 4);
    made.write(&format!("{nvme}/wwid"), "eui.0025385000000001\n")
        .write(&format!("{nvme}/nsid"), "1");
    made.write(&format!("{nvme}/queue/logical_block_size"), "4096");
    made.write(&format!("{nvme}/device/serial"), "S5G  \n")
        .write(&format!("{nvme}/device/model"), "SSD 970  ");
    made.write(&format!("{nvme}/dev"), "259:0").write(&format!("{nvme}/nvme0n1p1/dev"), "259:1");
    made.write(&format!("{nvme}/nvme0n1p1/partition"), "1")
        .write(&format!("{nvme}/nvme0n1p1/start"), "2048");
    made.link(&format!("{nvme}/nvme0n1p1/holders/dm-0"), "sys/class/block/dm-0");
    made.write("sys/class/block/dm-0/dm/uuid", "LVM-abc")
        .write("sys/class/block/dm-0/dev", "253:0");

    let sata = made.disk("sda", "pci0000:00/0000:00:1f.2/ata3/host2/target2:0:0/2:0:0:0", 4);
    made.write(&format!("{sata}/device/wwid"), "naa.5000c500aaaa0001");
    made.write(&format!("{sata}/device/vpd_pg80"), b"\0\x80\0\x08WD-12345".as_slice());
    made.write("sys/devices/pci0000:00/0000:00:1f.2/ata3/ata_port/ata3/port_no", "3");
    made.write(&format!("{sata}/queue/rotational"), "1").write(&format!("{sata}/ro"), "1");
    made.link(&format!("{sata}/holders/dm-1"), "sys/class/block/dm-1");
    made.write("sys/class/block/dm-1/dm/uuid", "mpath-3600")
        .write("sys/class/block/dm-1/dm/name", "mpatha");
    fs_err::create_dir_all(made.0.path().join("dev/disk/by-id")).expect("it is created");
    symlink("../../sda", made.0.path().join("dev/disk/by-id/ata-WD")).expect("it is linked");

    let shown = made.disk("sdb", "pci0000:00/0000:00:14.0/usb1/1-1/host3/target3:0:0/3:0:0:0", 1);
    made.write(&format!("{shown}/device/model"), "Virtual HDisk0")
        .write(&format!("{shown}/removable"), "1");
    let gone = made.disk("sdc", "pci0000:00/0000:00:1f.2/ata4/host4/target4:0:0/4:0:0:0", 1);
    fs_err::remove_file(made.0.path().join("dev/sdc")).expect("it was there");
    made.disk("zram0", "virtual", 1);
    made.write("proc/self/mountinfo", "36 35 253:0 / / rw - ext4 /dev/mapper/vg-root rw\n37 35 0:44 / /data rw - btrfs /dev/sda rw\n");
    made.write("proc/swaps", "Filename Type Size Used Priority\n/dev/nvme0n1p1 partition 1 0 -2\n");

    let probed = Machine::at(made.0.path()).probe();
    assert_eq!(probed.failures.len(), 1, "{gone}");
    let told = probed.failures[0].to_string();
    assert!(told.starts_with("disk `sdc` cannot be probed and is not used: "), "{told}");
    let facts = probed.facts;
    assert_eq!((facts.firmware, facts.memory), (Firmware::Uefi, 16 * MIB));
    assert_eq!(
        (facts.cpu.sockets, facts.cpu.threads, facts.cpu.model.as_str()),
        (2, 2, "Fast One")
    );
    assert_eq!(
        (facts.dmi.serial.as_deref(), facts.dmi.uuid.as_deref()),
        (Some("S-1"), Some("abcd"))
    );
    let [nic] = &facts.nics[..] else { panic!("{:?}", facts.nics) };
    assert_eq!(
        (nic.name.as_str(), nic.mac.as_str(), nic.speed),
        ("eth0", "52:54:00:aa:00:01", Some(25_000))
    );
    assert_eq!(
        (nic.path.as_deref(), nic.driver.as_deref()),
        (Some("0000:05:00.0"), Some("fastnic"))
    );

    let [nvme, sata, shown, gone] = &facts.disks[..] else { panic!("{:#?}", facts.disks) };
    assert!(gone.kernel_name == "sdc" && gone.unreadable.is_some(), "no other is taken for it");
    assert_eq!((&nvme.unreadable, gone.hctl.as_deref()), (&None, Some("4:0:0:0")));
    assert_eq!(nvme.wwn.as_deref(), Some("eui.0025385000000001"));
    assert_eq!((nvme.eui.as_ref(), nvme.bus), (nvme.wwn.as_ref(), Some(Bus::Nvme)));
    assert_eq!((nvme.serial.as_deref(), nvme.model.as_deref()), (Some("S5G"), Some("SSD 970")));
    assert_eq!((nvme.size, nvme.logical_sector), (4 * MIB, 4096));
    assert_eq!(nvme.by_path.as_deref(), Some("pci-0000:04:00.0-nvme-1"));
    assert!(nvme.is_boot_medium, "the system runs from a volume on it");
    let used = |reason| Busy { device: "nvme0n1p1".to_owned(), reason };
    // The holder is in use, so the disk is.
    let above = [BusyReason::Holder("dm-0".to_owned()), BusyReason::Mount("/".to_owned())];
    let [map, root] = above.map(used);
    assert_eq!(nvme.busy, [used(BusyReason::Swap), map, root]);

    assert_eq!(sata.wwn.as_deref(), Some("naa.5000c500aaaa0001"));
    assert_eq!((sata.serial.as_deref(), sata.hctl.as_deref()), (Some("WD-12345"), Some("2:0:0:0")));
    assert_eq!(
        (sata.bus, sata.by_path.as_deref()),
        (Some(Bus::Ata), Some("pci-0000:00:1f.2-ata-3"))
    );
    assert_eq!((sata.rotational, sata.read_only, sata.is_boot_medium), (true, true, false));
    assert_eq!(sata.multipath_maps, ["mpatha"]);
    assert_eq!(sata.links, ["by-id/ata-WD", "by-path/pci-0000:00:1f.2-scsi-2:0:0:0"]);
    assert_eq!(sata.busy[0].reason, BusyReason::Mount("/data".to_owned()));
    assert_eq!((shown.bus, shown.is_virtual, shown.removable), (Some(Bus::Usb), true, true));
}

#[test]
fn disks_have_the_paths_that_udev_gives_them() {
    let made = FakeMachine(tempfile::tempdir().expect("a temporary directory"));
    let hba = "pci0000:00/0000:00:01.0/0000:03:00.0/host0";
    let of_class = |place: &str, class: &str, file: &str, value: &str| {
        let name = place.rsplit('/').next().expect("a name");
        made.write(&format!("sys/devices/{place}/{class}/{name}/{file}"), value);
    };
    let sas = |name: &str, port: &str, end: &str, phys: &str, target: u32| {
        let end = format!("{port}/{end}");
        of_class(port, "sas_port", "num_phys", phys);
        of_class(&end, "sas_device", "sas_address", "0x5000c50012345678");
        of_class(&end, "sas_device", "phy_identifier", "4");
        made.disk(name, &format!("{end}/target0:0:{target}/0:0:{target}:0"), 1);
    };
    sas("sda", &format!("{hba}/port-0:0"), "end_device-0:0", "1", 0);
    let expander = format!("{hba}/port-0:1/expander-0:0");
    of_class(&expander, "sas_device", "sas_address", "0x500304801234567f");
    sas("sdb", &format!("{expander}/port-0:0:3"), "end_device-0:0:3", "1", 1);
    sas("sdc", &format!("{hba}/port-0:2"), "end_device-0:2", "2", 2);
    // Logical volumes of a RAID controller with two hosts, and a second disk on a port of ATA.
    made.disk("sdd", "pci0000:00/0000:04:00.0/host6/target6:2:1/6:2:1:0", 1);
    made.disk("sde", "pci0000:00/0000:04:00.0/host7/target7:0:0/7:0:0:3", 1);
    made.disk("sdf", "pci0000:00/0000:00:1f.1/ata2/host9/target9:0:1/9:0:1:0", 1);
    of_class("pci0000:00/0000:00:1f.1/ata2", "ata_port", "port_no", "2");

    let address = "sas-0x5000c50012345678-lun-0";
    let expected = [
        ("pci-0000:03:00.0-sas-phy4-lun-0", Some(format!("pci-0000:03:00.0-{address}"))),
        (
            "pci-0000:03:00.0-sas-exp0x500304801234567f-phy4-lun-0",
            Some(format!("pci-0000:03:00.0-{address}")),
        ),
        ("pci-0000:03:00.0-sas-0x5000c50012345678-lun-0", None),
        ("pci-0000:04:00.0-scsi-0:2:1:0", None),
        ("pci-0000:04:00.0-scsi-1:0:0:3", None),
        ("pci-0000:00:1f.1-ata-2.1", Some("pci-0000:00:1f.1-scsi-1:0:1:0".to_owned())),
    ];
    let disks = Machine::at(made.0.path()).probe().facts.disks;
    assert_eq!(disks.len(), expected.len());
    for (disk, (path, other)) in disks.iter().zip(expected) {
        assert_eq!(disk.by_path.as_deref(), Some(path), "{}", disk.kernel_name);
        let other: Vec<_> = other.iter().map(|path| format!("by-path/{path}")).collect();
        assert_eq!(disk.links, other, "{}", disk.kernel_name);
    }
}
