//! The deployment documents of bareon's driver for Ironic.

use serde::Deserialize;

use super::document_builder::{DocumentBuilder, FsInput, LOADER, add_link, limit};
use hoist_provision::diagnostic::{Code, ProvisionDiagnostic};
use hoist_provision::document::size::{MAX_SIZE, MIB, ParseSizeError};
use hoist_provision::document::{
    Bytes, Compression, DiskMatch, Document, Id, PartRole, Size, Wipe,
};
use hoist_provision::driver::{Confidence, DataDriver, DriverInfo, Options, tree, typed};

/// The driver `bareon-ironic`.
#[derive(Debug)]
pub struct Ironic;

#[derive(Deserialize)]
struct Input {
    images: Vec<ImageOf>,
    partitions: Vec<Space>,
    #[serde(default)]
    partitions_policy: Policy,
    #[serde(default)]
    deploy_data: DeployData,
    #[serde(default)]
    image_deploy_flags: DeployFlags,
}

#[derive(Deserialize)]
struct ImageOf {
    name: String,
    image_pull_url: String,
    target: String,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Policy {
    /// The existing tables must match the input, and only file systems without `keep` are made
    /// again. No image is written.
    #[default]
    Verify,
    Clean,
    /// As bareon's other driver: tables stay if anything is kept.
    NailgunLegacy,
}

#[derive(Default, Deserialize)]
struct DeployData {
    #[serde(default)]
    kernel_params: String,
}

#[derive(Default, Deserialize)]
struct DeployFlags {
    #[serde(default)]
    rsync_flags: String,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Space {
    Disk {
        id: DiskId,
        #[serde(default)]
        name: Option<String>,
        size: String,
        volumes: Vec<Volume>,
    },
    Vg {
        id: String,
        volumes: Vec<Volume>,
    },
}

#[derive(Deserialize)]
struct DiskId {
    #[serde(rename = "type")]
    kind: DiskIdKind,
    value: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum DiskIdKind {
    Name,
    Path,
    Scsi,
}

#[derive(Deserialize)]
struct Volume {
    #[serde(rename = "type")]
    kind: VolumeKind,
    size: String,
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
    lvm_meta_size: Option<String>,
    #[serde(default)]
    fstab_options: Option<String>,
    #[serde(default)]
    fstab_enabled: Option<bool>,
    /// The systems that mount it; the first unless said otherwise.
    #[serde(default)]
    images: Option<Vec<String>>,
    #[serde(default)]
    keep_data: Option<bool>,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum VolumeKind {
    Pv,
    Raid,
    Partition,
    Boot,
    LvmMetaPool,
    Lv,
}

impl DataDriver for Ironic {
    fn describe(&self) -> DriverInfo {
        let about = "deployment documents of bareon's driver for Ironic";
        DriverInfo { name: "bareon-ironic", version: 1, about }
    }

    fn sniff(&self, input: &[u8]) -> Confidence {
        let Some(tree) = tree(input) else { return Confidence::No };
        let is_list = |name: &str| tree.get(name).is_some_and(serde_json::Value::is_array);
        match (is_list("partitions"), is_list("images")) {
            (true, true) => Confidence::Sure,
            (true, false) => Confidence::Maybe,
            _ => Confidence::No,
        }
    }

    fn parse(&self, input: &[u8], options: &Options) -> Result<Document, Vec<ProvisionDiagnostic>> {
        let input: Input = typed("input", input)?;
        let things = input.partitions.iter().map(|space| match space {
            Space::Disk { volumes, .. } | Space::Vg { volumes, .. } => 1 + volumes.len(),
        });
        limit("partitions", things.sum())?;
        limit("images", input.images.len())?;
        let mut reader = Reader::new(&input, options);
        reader.spaces();
        reader.builder.assemble();
        reader.wipes();
        reader.images();
        reader.builder.kernel_args(&input.deploy_data.kernel_params);
        reader.builder.finish(options)
    }
}

struct Reader<'a> {
    input: &'a Input,
    options: &'a Options,
    builder: DocumentBuilder,
    /// Tables stay as they are.
    adopts: bool,
    disks: Vec<Id>,
    /// Volumes to keep although the policy cleans the disks.
    spared: Vec<Id>,
}

impl<'a> Reader<'a> {
    fn new(input: &'a Input, options: &'a Options) -> Self {
        let volumes = input.partitions.iter().flat_map(|space| match space {
            Space::Disk { volumes, .. } | Space::Vg { volumes, .. } => volumes,
        });
        let is_kept = |volume: &Volume| volume.kind.holds() && volume.keep_data.unwrap_or(true);
        let adopts = match input.partitions_policy {
            Policy::Verify => true,
            Policy::Clean => false,
            Policy::NailgunLegacy => volumes.into_iter().any(is_kept),
        };
        let mut builder = DocumentBuilder::new(options);
        if adopts {
            builder.adopt();
        }
        Self { input, options, builder, adopts, disks: Vec::new(), spared: Vec::new() }
    }

    fn spaces(&mut self) {
        let input = self.input;
        let is_disk = |space: &Space| matches!(space, Space::Disk { .. });
        if !input.partitions.iter().any(is_disk) {
            self.builder.say(Code::Missing, "partitions", "the list has no disk", "add one");
        }
        if !input.image_deploy_flags.rsync_flags.trim().is_empty() {
            let what = "images are written as they are, and not by rsync";
            let place = "image_deploy_flags.rsync_flags";
            self.builder.say(Code::Unsupported, place, what, "leave the flags out");
        }
        self.systems();
        for (at, space) in input.partitions.iter().enumerate() {
            let place = format!("partitions[{at}]");
            match space {
                Space::Disk { id, name, size, volumes } => {
                    self.disk(&place, id, name.as_deref(), size, volumes);
                }
                Space::Vg { id, volumes } => self.group(&place, id, volumes),
            }
        }
    }

    /// Several systems beside each other would share mount points.
    fn systems(&mut self) {
        let input = self.input;
        let known: Vec<&str> = input.images.iter().map(|image| image.name.as_str()).collect();
        let mut bound: Vec<&str> = Vec::new();
        for (at, space) in input.partitions.iter().enumerate() {
            let (Space::Disk { volumes, .. } | Space::Vg { volumes, .. }) = space;
            for (number, volume) in volumes.iter().enumerate() {
                for name in volume.images.iter().flatten() {
                    let place = format!("partitions[{at}].volumes[{number}].images");
                    if !known.contains(&name.as_str()) {
                        let what = format!("image `{name}` not found");
                        let hint = format!("the images are {}", known.join(", "));
                        self.builder.say(Code::NoSuchThing, &place, what, &hint);
                    } else if !bound.contains(&name.as_str()) {
                        bound.push(name);
                    }
                }
            }
        }
        if bound.len() > 1 {
            let what = format!("systems `{}` would be beside each other", bound.join("`, `"));
            let hint = "several systems on one machine are not supported; leave one";
            self.builder.say(Code::Unsupported, "images", what, hint);
        }
    }

    fn disk(
        &mut self,
        place: &str,
        id: &DiskId,
        name: Option<&str>,
        size: &str,
        volumes: &[Volume],
    ) {
        let mut matches = DiskMatch::default();
        match id.kind {
            DiskIdKind::Name => {
                let name = id.value.trim_start_matches("/dev/");
                matches.kernel_name = Some(name.to_owned());
            }
            DiskIdKind::Path => add_link(&mut matches, &id.value),
            DiskIdKind::Scsi => matches.hctl = Some(id.value.clone()),
        }
        if let Err(what) = read_size(size) {
            self.builder.say(Code::BadValue, &format!("{place}.size"), what, "");
        }
        let called = id.value.rsplit('/').next().unwrap_or(&id.value);
        let disk = self.builder.disk(name.unwrap_or(called), matches);
        self.disks.push(disk.clone());
        self.builder.part(&disk, "bios-boot", Size::Exact(Bytes(LOADER)), PartRole::BiosBoot);
        for (number, volume) in volumes.iter().enumerate() {
            self.volume(&format!("{place}.volumes[{number}]"), &disk, volume);
        }
    }

    fn size(&mut self, place: &str, text: &str) -> Option<Size> {
        match read_size(text) {
            Ok(size) => Some(size),
            Err(what) => {
                self.builder.say(Code::BadValue, &format!("{place}.size"), what, "");
                None
            }
        }
    }

    fn volume(&mut self, place: &str, disk: &Id, volume: &Volume) {
        if volume.kind == VolumeKind::LvmMetaPool {
            return;
        }
        let Some(size) = self.size(place, &volume.size) else { return };
        let called = volume.name.as_deref().or(volume.mount.as_deref()).unwrap_or("data");
        let called = if called == "/" { "root" } else { called };
        match volume.kind {
            VolumeKind::Partition | VolumeKind::Boot => {
                let part = self.builder.part(disk, called, size, PartRole::Data);
                self.fs(place, &part, volume);
            }
            VolumeKind::Raid => {
                let part = self.builder.part(disk, called, size, PartRole::Data);
                if volume.mount.as_deref().is_none_or(|mount| mount.eq_ignore_ascii_case("none")) {
                    let what = "the array has no `mount`, which identifies it";
                    return self.builder.say(Code::Missing, place, what, "add its `mount`");
                }
                let fs = self.fs_of(volume);
                if volume.keep_data == Some(true) && !self.adopts {
                    self.spared.push(part.clone());
                }
                self.builder.mirrored(place, part, fs);
            }
            VolumeKind::Pv => self.pv(place, disk, volume, size),
            VolumeKind::Lv | VolumeKind::LvmMetaPool => {
                let what = "a logical volume lies on a group, and this is a disk";
                self.builder.say(Code::BadValue, place, what, "move it to its group");
            }
        }
    }

    fn pv(&mut self, place: &str, disk: &Id, volume: &Volume, size: Size) {
        let Some(group) = &volume.vg else {
            return self.builder.say(Code::Missing, place, "`vg` is missing", "name its group");
        };
        let is_group = |space: &Space| matches!(space, Space::Vg { id, .. } if id == group);
        if !self.input.partitions.iter().any(is_group) {
            let what = format!("volume group `{group}` not found");
            return self.builder.say(Code::NoSuchThing, place, what, "add it to the partitions");
        }
        let meta = match volume.lvm_meta_size.as_deref().map(read_size) {
            None => None,
            Some(Ok(Size::Exact(bytes))) => Some(bytes),
            Some(_) => {
                let what = "LVM's notes have a size of their own";
                return self.builder.say(Code::BadValue, place, what, "write it like `64 MiB`");
            }
        };
        let part = self.builder.part(disk, &format!("pv-{group}"), size, PartRole::Lvm);
        if volume.keep_data == Some(true) && !self.adopts {
            self.spared.push(part.clone());
        }
        self.builder.pv(&part, group, meta);
    }

    fn group(&mut self, place: &str, id: &str, volumes: &[Volume]) {
        self.builder.group(id);
        for (number, volume) in volumes.iter().enumerate() {
            let place = format!("{place}.volumes[{number}]");
            if volume.kind != VolumeKind::Lv {
                let what = "a group holds logical volumes, and this is something else";
                self.builder.say(Code::BadValue, &place, what, "make its type `lv`");
                continue;
            }
            let Some(name) = &volume.name else {
                self.builder.say(Code::Missing, &place, "`name` is missing", "give it one");
                continue;
            };
            let Some(size) = self.size(&place, &volume.size) else { continue };
            let lv = self.builder.lv(id, name, size);
            self.fs(&place, &lv, volume);
        }
    }

    fn fs(&mut self, place: &str, on: &Id, volume: &Volume) {
        let fs = self.fs_of(volume);
        if volume.keep_data == Some(true) && !self.adopts {
            self.spared.push(on.clone());
        }
        self.builder.fs(place, on, &fs);
    }

    /// Kept are those of which nothing is said, too, but only where tables stay.
    fn fs_of(&self, volume: &Volume) -> FsInput {
        FsInput {
            kind: volume.file_system.as_ref().map(|kind| kind.to_lowercase()),
            mount: volume.mount.clone().filter(|mount| !mount.eq_ignore_ascii_case("none")),
            label: volume.disk_label.clone(),
            options: volume.fstab_options.clone(),
            no_fstab: volume.fstab_enabled == Some(false),
            keep: self.adopts && volume.keep_data.unwrap_or(true),
        }
    }

    /// The policy `clean` wipes all disks except those with a volume to keep.
    fn wipes(&mut self) {
        let is_clean = self.input.partitions_policy == Policy::Clean;
        let spared: Vec<Id> =
            self.spared.iter().flat_map(|id| self.builder.disks_below(id, self.options)).collect();
        for disk in &self.disks {
            let is_wiped = is_clean && !spared.contains(disk);
            self.builder.wipe(disk, if is_wiped { &Wipe::ANY } else { &self.options.wipe });
        }
    }

    fn images(&mut self) {
        // The policy `verify` writes no image.
        if self.input.partitions_policy == Policy::Verify {
            return;
        }
        let input = self.input;
        for (at, image) in input.images.iter().enumerate() {
            let place = format!("images[{at}]");
            let on = self.builder.mounted(&image.target).map(|fs| fs.on.clone());
            if on.is_some_and(|on| self.spared.contains(&on)) {
                let target = &image.target;
                let what = format!("image for `{target}` would overwrite data to keep");
                let hint = "say `keep_data: false` of it, or leave out the image";
                self.builder.say(Code::Contradiction, &place, what, hint);
                continue;
            }
            let target = &image.target;
            let url = &image.image_pull_url;
            self.builder.image(&place, target, url, Compression::Detect);
        }
    }
}

impl VolumeKind {
    /// Whether it can have anything to keep.
    fn holds(self) -> bool {
        self != Self::LvmMetaPool
    }
}

/// `20 GiB`, `80%`, `remaining`; a number alone is MiB, and `s` are sectors.
fn read_size(text: &str) -> Result<Size, String> {
    /// What bareon takes a sector to be, whatever the disk has.
    const SECTOR: u64 = 512;
    let text = text.trim();
    if text == "remaining" {
        return Ok(Size::Rest);
    }
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let unit = unit.trim();
    let scaled = |scale: u64| {
        let bytes = number.parse::<u64>().ok().and_then(|number| number.checked_mul(scale));
        let bytes = bytes.filter(|bytes| (1..=MAX_SIZE).contains(bytes));
        bytes.map(|bytes| Size::Exact(Bytes(bytes)))
    };
    match unit {
        "" if number.contains('.') => {
            format!("{number} MiB").parse().map_err(|error| of_size(&error))
        }
        "" => scaled(MIB).ok_or_else(|| format!("`{text}` is no size")),
        "s" => scaled(SECTOR).ok_or_else(|| format!("`{text}` is no size")),
        "ZB" | "YB" | "ZiB" | "YiB" => Err(format!("`{text}` is no size: no disk is that large")),
        _ => text.parse().map_err(|error| of_size(&error)),
    }
}

fn of_size(error: &ParseSizeError) -> String {
    error.to_string().replace("`rest`", "`remaining`")
}
