//! Fuel's provisioning documents. The driver adds what bareon adds: 24 MiB for GRUB and 200 MiB "for
//! UEFI later" on each disk, `/boot` on one disk, a partition for a config drive, Ceph's journals.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use super::document_builder::{DocumentBuilder, FsInput, LOADER, add_link, limit};
use hoist_provision::diagnostic::{Code, ProvisionDiagnostic};
use hoist_provision::document::size::{MAX_SIZE, MIB};
use hoist_provision::document::{Bytes, Compression, DiskMatch, Document, Id, PartRole, Size};
use hoist_provision::driver::{Confidence, DataDriver, DriverInfo, Options, tree, typed};

/// "For UEFI later": nothing is in it, and no firmware looks for it.
const UEFI_LATER: u64 = 200 * MIB;
const CONFIG_DRIVE: u64 = 20 * MIB;
/// MiB of one of Ceph's journals, at most.
const MAX_JOURNAL: u64 = 10_240;
/// MiB for LVM's notes, and fewest.
const LVM_META: u64 = 64;
const LEAST_LVM_META: u64 = 10;
/// Most MiB that anything has.
const MAX_MIB: u64 = MAX_SIZE / MIB;

/// The driver `nailgun`.
#[derive(Debug)]
pub struct Nailgun;

#[derive(Deserialize)]
struct Input {
    ks_meta: KsMeta,
}

#[derive(Deserialize)]
struct KsMeta {
    pm_data: PmData,
    #[serde(default)]
    image_data: BTreeMap<String, ImageData>,
}

#[derive(Deserialize)]
struct PmData {
    ks_spaces: Vec<Space>,
    #[serde(default)]
    kernel_params: String,
}

#[derive(Deserialize)]
struct ImageData {
    uri: String,
    #[serde(default)]
    container: Option<String>,
}

/// A disk or a volume group. Sizes are MiB.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Space {
    Disk {
        id: String,
        name: String,
        size: i64,
        extra: Vec<String>,
        #[serde(rename = "free_space")]
        _free_space: i64,
        volumes: Vec<Volume>,
        #[serde(default)]
        bootable: bool,
    },
    Vg {
        id: String,
        volumes: Vec<Volume>,
    },
}

#[derive(Deserialize)]
struct Volume {
    #[serde(rename = "type")]
    kind: String,
    size: i64,
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    vg: Option<String>,
    #[serde(default)]
    mount: Option<String>,
    #[serde(default)]
    file_system: Option<String>,
    #[serde(default)]
    disk_label: Option<String>,
    #[serde(default)]
    partition_guid: Option<String>,
    #[serde(default)]
    lvm_meta_size: Option<i64>,
    #[serde(default)]
    keep_data: bool,
}

/// A disk of the input that something is made on.
struct DiskOf<'a> {
    place: String,
    id: &'a str,
    name: &'a str,
    extra: &'a [String],
    volumes: &'a [Volume],
    bootable: bool,
}

impl DataDriver for Nailgun {
    fn describe(&self) -> DriverInfo {
        DriverInfo { name: "nailgun", version: 1, about: "Fuel's provisioning documents" }
    }

    fn sniff(&self, input: &[u8]) -> Confidence {
        let Some(tree) = tree(input) else { return Confidence::No };
        match &tree["ks_meta"]["pm_data"]["ks_spaces"] {
            Value::Array(_) => Confidence::Sure,
            Value::Null if tree.get("ks_meta").is_some() => Confidence::Maybe,
            _ => Confidence::No,
        }
    }

    fn parse(&self, input: &[u8], options: &Options) -> Result<Document, Vec<ProvisionDiagnostic>> {
        let input: Input = typed("input", input)?;
        let KsMeta { pm_data: PmData { ks_spaces, kernel_params }, image_data } = input.ks_meta;
        let things = ks_spaces.iter().map(|space| match space {
            Space::Disk { volumes, .. } | Space::Vg { volumes, .. } => 1 + volumes.len(),
        });
        limit("ks_spaces", things.sum())?;
        limit("ks_meta.image_data", image_data.len())?;
        let mut reader = Reader::new(&ks_spaces, options);
        reader.disks();
        reader.groups();
        reader.builder.assemble();
        for (mount, ImageData { uri, container }) in &image_data {
            let place = format!("ks_meta.image_data.{mount}");
            let compression = match container.as_deref() {
                Some("gzip") => Compression::Gzip,
                Some("raw") => Compression::None,
                None => Compression::Detect,
                Some(other) => {
                    let what = format!("images in a container `{other}` are not known");
                    reader.builder.say(Code::Unsupported, &place, what, "there are raw and gzip");
                    continue;
                }
            };
            reader.builder.image(&place, mount, uri, compression);
        }
        reader.builder.kernel_args(&kernel_params);
        reader.builder.finish(options)
    }
}

struct Reader<'a> {
    spaces: &'a [Space],
    options: &'a Options,
    builder: DocumentBuilder,
    /// Something is kept, so tables stay as they are.
    keeps: bool,
    /// Groups of which everything is kept, because something below them is.
    kept_groups: Vec<&'a str>,
}

fn mib(count: u64) -> Size {
    Size::Exact(Bytes(count.saturating_mul(MIB)))
}

impl Volume {
    fn is_mounted_at(&self, mount: &str) -> bool {
        self.mount.as_deref() == Some(mount)
    }

    fn is_plain(&self) -> bool {
        ["partition", "raid"].contains(&self.kind.as_str())
    }

    fn fs(&self, default: Option<&str>, keep: bool) -> FsInput {
        FsInput {
            kind: self.file_system.clone().or_else(|| default.map(str::to_owned)),
            mount: self.mount.clone(),
            label: self.disk_label.clone(),
            options: None,
            no_fstab: false,
            keep,
        }
    }
}

impl<'a> Reader<'a> {
    fn new(spaces: &'a [Space], options: &'a Options) -> Self {
        let volumes = spaces.iter().flat_map(|space| match space {
            Space::Disk { volumes, .. } | Space::Vg { volumes, .. } => volumes,
        });
        let keeps = volumes.clone().any(|volume| volume.keep_data && volume.size > 0);
        let kept_pvs = volumes.filter(|volume| volume.keep_data && volume.kind == "pv");
        let kept_groups = kept_pvs.filter_map(|volume| volume.vg.as_deref()).collect();
        Self { spaces, options, builder: DocumentBuilder::new(options), keeps, kept_groups }
    }

    /// Those that have a size.
    fn sized(&self) -> Vec<DiskOf<'a>> {
        let disks = self.spaces.iter().enumerate().filter_map(|(at, space)| match space {
            Space::Disk { id, name, size, extra, volumes, bootable, .. } if *size > 0 => {
                let place = format!("ks_spaces[{at}]");
                Some(DiskOf { place, id, name, extra, volumes, bootable: *bootable })
            }
            _ => None,
        });
        disks.collect()
    }

    fn disks(&mut self) {
        let all = self.sized();
        let boot = boot_disk(&all).map_err(|what| {
            self.builder.say(Code::Contradiction, "ks_spaces", what, "mark one disk as bootable");
        });
        let count = |name: &str| {
            let volumes = all.iter().flat_map(|disk| disk.volumes);
            volumes.filter(|v| v.name.as_deref() == Some(name) && v.size > 0).count() as u64
        };
        let mut journals = Journals { osds: count("ceph"), devices: count("cephjournal"), left: 0 };
        journals.left = journals.osds;
        let has_boot = all.iter().any(|disk| disk.volumes.iter().any(is_boot));
        let mut boot_done = false;
        let mut drive_done = false;
        for (at, disk) in all.iter().enumerate().filter(|(_, disk)| is_used(disk)) {
            let id = self.disk(disk);
            for (number, volume) in disk.volumes.iter().enumerate() {
                let place = format!("{}.volumes[{number}]", disk.place);
                let Some(size) = self.size(&place, volume) else { continue };
                if volume.name.as_deref() == Some("cephjournal") {
                    self.journals(&place, &id, volume, size, &mut journals);
                } else if is_boot(volume) {
                    // One disk has it, whatever the others say.
                    if boot == Ok(Some(at)) && !boot_done {
                        boot_done = true;
                        let part = self.builder.part(&id, "boot", mib(size), PartRole::Data);
                        let default = if volume.kind == "raid" { "ext2" } else { "xfs" };
                        let fs = volume.fs(Some(default), volume.keep_data);
                        self.builder.fs(&place, &part, &fs);
                    }
                } else {
                    self.volume(&place, &id, volume, size);
                }
            }
            if !drive_done && disk.volumes.iter().any(is_system) {
                drive_done = true;
                let size = Size::Exact(Bytes(CONFIG_DRIVE));
                self.builder.part(&id, "config-drive", size, PartRole::ConfigDrive);
            }
        }
        if has_boot && !boot_done && boot.is_ok() {
            let what = "`/boot` is wanted, and no disk can have it";
            let hint = "add it to a disk that has other volumes";
            self.builder.say(Code::Unsupported, "ks_spaces", what, hint);
        }
        if !drive_done {
            let what = "no disk has the system, so the config drive has no place";
            let hint = "add a volume for `/`, or a `pv` of the group `os`";
            self.builder.say(Code::Missing, "ks_spaces", what, hint);
        }
        if self.keeps {
            self.builder.adopt();
        }
    }

    /// Volumes of no size are left out, silently, as bareon does.
    fn size(&mut self, place: &str, volume: &Volume) -> Option<u64> {
        let size = u64::try_from(volume.size).ok().filter(|size| *size > 0)?;
        if size > MAX_MIB {
            let what = format!("no disk has {size} MiB");
            self.builder.say(Code::BadValue, place, what, "sizes are MiB");
            return None;
        }
        Some(size)
    }

    fn disk(&mut self, disk: &DiskOf<'_>) -> Id {
        let mut matches = DiskMatch::default();
        for link in disk.extra {
            add_link(&mut matches, link);
        }
        // An id that is no path below `/dev` says nothing of its own.
        if disk.id.contains('/') {
            add_link(&mut matches, disk.id);
        }
        matches.kernel_name = Some(disk.name.to_owned());
        // The name is that of the day when the document was made.
        matches.links_first = !matches.links.is_empty();
        let id = self.builder.disk(disk.name, matches);
        self.builder.wipe(&id, &self.options.wipe);
        let size = Size::Exact(Bytes(LOADER));
        self.builder.part(&id, "bios-boot", size, PartRole::BiosBoot);
        self.builder.part(&id, "uefi-later", Size::Exact(Bytes(UEFI_LATER)), PartRole::Data);
        id
    }

    fn volume(&mut self, place: &str, disk: &Id, volume: &Volume, size: u64) {
        let name = volume.mount.as_deref().filter(|mount| *mount != "none");
        let name = match name.or(volume.name.as_deref()).unwrap_or(&volume.kind) {
            "/" => "root",
            name => name,
        };
        match volume.kind.as_str() {
            "boot" | "lvm_meta_pool" => {}
            "partition" => {
                let part = self.builder.part(disk, name, mib(size), PartRole::Data);
                if let Some(guid) = &volume.partition_guid {
                    self.builder.type_of_last(place, guid);
                }
                self.builder.fs(place, &part, &volume.fs(None, volume.keep_data));
            }
            "raid" => {
                let part = self.builder.part(disk, name, mib(size), PartRole::Data);
                if volume.mount.as_deref().is_some_and(|mount| mount != "none") {
                    self.builder.mirrored(place, part, volume.fs(None, volume.keep_data));
                }
            }
            "pv" => self.pv(place, disk, volume, size),
            other => {
                let what = format!("unknown volume type `{other}`");
                let hint = "the types are partition, raid, pv, boot and lvm_meta_pool";
                self.builder.say(Code::BadValue, place, what, hint);
            }
        }
    }

    fn pv(&mut self, place: &str, disk: &Id, volume: &Volume, size: u64) {
        let Some(group) = &volume.vg else {
            return self.builder.say(Code::Missing, place, "`vg` is missing", "name its group");
        };
        let meta = volume.lvm_meta_size.map_or(LVM_META, |meta| u64::try_from(meta).unwrap_or(0));
        if !(LEAST_LVM_META..=MAX_MIB).contains(&meta) {
            let what = format!("{meta} MiB are too few or too many for LVM's notes");
            let hint = format!("`lvm_meta_size` is at least {LEAST_LVM_META}");
            return self.builder.say(Code::BadValue, place, what, &hint);
        }
        let part = self.builder.part(disk, &format!("pv-{group}"), mib(size), PartRole::Lvm);
        // Bareon keeps two copies, and 8 MiB for the remainder of an extent.
        self.builder.pv(&part, group, Some(Bytes((meta - 8) / 2 * MIB)));
    }

    /// One journal for each OSD, spread over the devices for journals.
    fn journals(&mut self, place: &str, disk: &Id, volume: &Volume, size: u64, of: &mut Journals) {
        let share = of.osds.div_ceil(of.devices.max(1));
        let count = share.min(of.left);
        if volume.kind != "partition" || count == 0 {
            return;
        }
        of.left -= count;
        // Each has a part of the volume.
        let each = (size / share).min(MAX_JOURNAL);
        if each == 0 {
            let what = format!("{size} MiB are too few for {share} journals");
            return self.builder.say(Code::NoRoom, place, what, "make it larger");
        }
        for _ in 0..count {
            self.builder.part(disk, "cephjournal", mib(each), PartRole::Data);
            if let Some(guid) = &volume.partition_guid {
                self.builder.type_of_last(place, guid);
            }
        }
    }

    fn groups(&mut self) {
        for (at, space) in self.spaces.iter().enumerate() {
            let Space::Vg { id, volumes } = space else { continue };
            // A group that no disk has a part of is left out like its volumes of no size.
            if volumes.iter().any(|volume| volume.size > 0) {
                self.builder.group(id);
            }
            for (number, volume) in volumes.iter().enumerate() {
                let place = format!("ks_spaces[{at}].volumes[{number}]");
                let Some(size) = self.size(&place, volume) else { continue };
                if volume.kind != "lv" {
                    let what = format!("volume type `{}` cannot be in a volume group", volume.kind);
                    self.builder.say(Code::BadValue, &place, what, "use lv");
                    continue;
                }
                let Some(name) = &volume.name else {
                    self.builder.say(Code::Missing, &place, "`name` is missing", "give it one");
                    continue;
                };
                let lv = self.builder.lv(id, name, mib(size));
                // A volume of a kept group is kept, too.
                let keep = volume.keep_data || self.kept_groups.contains(&id.as_str());
                if volume.mount.as_deref().is_some_and(|mount| mount != "none") {
                    self.builder.fs(&place, &lv, &volume.fs(None, keep));
                }
            }
        }
    }
}

struct Journals {
    osds: u64,
    devices: u64,
    left: u64,
}

fn is_boot(volume: &Volume) -> bool {
    volume.is_plain() && volume.is_mounted_at("/boot")
}

fn is_system(volume: &Volume) -> bool {
    let is_os = volume.kind == "pv" && volume.vg.as_deref() == Some("os") && volume.size > 0;
    is_os || (volume.is_plain() && volume.is_mounted_at("/"))
}

/// More than what booting needs is made on it.
fn is_used(disk: &DiskOf<'_>) -> bool {
    let is_only_for_boot = |volume: &Volume| {
        ["boot", "lvm_meta_pool"].contains(&volume.kind.as_str()) || volume.is_mounted_at("/boot")
    };
    disk.volumes.iter().any(|volume| volume.size > 0 && !is_only_for_boot(volume))
}

/// Which disk has `/boot`: the one that is marked, else the first that anything is made on. Disks
/// that every BIOS can read are before NVMe, and arrays of the firmware before others.
fn boot_disk(disks: &[DiskOf<'_>]) -> Result<Option<usize>, String> {
    let has_boot = |at: &usize| disks[*at].volumes.iter().any(is_boot) && is_used(&disks[*at]);
    let (nvme, others): (Vec<usize>, Vec<usize>) =
        (0..disks.len()).filter(has_boot).partition(|at| disks[*at].name.contains("nvme"));
    let suitable = if others.is_empty() { nvme } else { others };
    let is_array = |at: &&usize| {
        let disk = &disks[**at];
        let is_os = |v: &Volume| v.kind == "pv" && v.vg.as_deref() == Some("os") && v.size > 0;
        disk.name.starts_with("md") && disk.volumes.iter().any(is_os)
    };
    let arrays: Vec<usize> = suitable.iter().filter(is_array).copied().collect();
    let candidates = if arrays.is_empty() { suitable } else { arrays };
    let marked: Vec<usize> = candidates.iter().copied().filter(|at| disks[*at].bootable).collect();
    if marked.len() > 1 {
        let names: Vec<_> = marked.iter().map(|at| disks[*at].name).collect();
        return Err(format!("disks `{}` are all bootable", names.join("`, `")));
    }
    let candidates = if marked.is_empty() { candidates } else { marked };
    Ok(candidates.into_iter().next())
}
