//! Planner of boot files, boot code and firmware variables.
//!
//! Does not belong here: the formats of firmware variables, and writing them (`hoist-device`).

use std::collections::{BTreeMap, BTreeSet};

use uuid::Uuid;

use super::context::PlanContext;
use super::fragment::{Fragment, PlannedStep};
use super::{ObservedMachine, OpenedDisk, is_kept};
use crate::boot_entries::{self, Changes, Entry};
use crate::claim::started_by;
use crate::diagnostic::{Code, ProvisionDiagnostic};
use crate::document::size::{KIB, MIB};
use crate::document::{
    Boot, BootLoader, BootOrder, Bytes, Document, FetchedFile, Fs, FsKind, Id, PartRole,
    StorageNode,
};
use crate::facts::{Bus, Facts, Firmware};
use crate::layout::{DiskPlan, Layout, PartitionPlan};
use crate::steps::boot::{self, MAX_FILE, RemoteFile, Source, Task};

/// Paths of kernels and of the GRUB configuration on the volume.
pub const KERNEL: &str = "hoist/linux";
pub const INITRD: &str = "hoist/initrd";
const GRUB_CONFIG: &str = "hoist/grub.cfg";
/// Paths of systemd-boot files.
const LOADER_CONFIG: &str = "loader/loader.conf";
const LOADER_ENTRY: &str = "loader/entries/hoist.conf";
const UKI: &str = "EFI/Linux/hoist.efi";
/// Most bytes that a file occupies beyond its size.
const CLUSTER: u64 = 32 * KIB;

/// The desired boot files, boot code and boot entry.
#[derive(Debug)]
pub struct DesiredBoot<'a> {
    pub disk: &'a DiskPlan,
    pub volume: &'a PartitionPlan,
    pub files: BTreeMap<String, Source>,
    /// For BIOS: the partition of the core, `boot.img` and `core.img`.
    pub grub: Option<Grub<'a>>,
    /// The boot entry for UEFI.
    pub entry: Option<Entry>,
    /// Further volumes with the same files, as on the other disks of a mirror.
    pub copies: Vec<BootCopy<'a>>,
    /// Kernel arguments.
    pub arguments: String,
}

/// Another volume that starts the system.
#[derive(Debug)]
pub struct BootCopy<'a> {
    pub disk: &'a DiskPlan,
    pub volume: &'a PartitionPlan,
    pub grub: Option<Grub<'a>>,
    pub entry: Option<Entry>,
}

/// The partition of GRUB's core, `boot.img` and `core.img`.
type Grub<'a> = (&'a PartitionPlan, RemoteFile, RemoteFile);

impl<'a> DesiredBoot<'a> {
    /// All boot volumes, the first one first, each with its disk and its GRUB for BIOS.
    pub fn volumes(
        &self,
    ) -> impl Iterator<Item = (&'a DiskPlan, &'a PartitionPlan, Option<&Grub<'a>>)> {
        let copies = self.copies.iter().map(|copy| (copy.disk, copy.volume, copy.grub.as_ref()));
        std::iter::once((self.disk, self.volume, self.grub.as_ref())).chain(copies)
    }

    /// The boot entries of all volumes, in the same order.
    fn entries(&self) -> Vec<Entry> {
        let copies = self.copies.iter().filter_map(|copy| copy.entry.clone());
        self.entry.iter().cloned().chain(copies).collect()
    }

    /// The files that are fetched.
    pub fn fetched(&self) -> impl Iterator<Item = &RemoteFile> {
        let files = self.files.values().filter_map(|source| match source {
            Source::Fetched(file) => Some(file),
            Source::Text(_) => None,
        });
        files.chain(self.grub.iter().flat_map(|(_, boot, core)| [boot, core]))
    }
}

/// The desired boot files and entries, if the document has any.
pub fn desired<'a>(
    document: &Document,
    layout: &'a Layout,
    facts: &Facts,
) -> Result<Option<DesiredBoot<'a>>, Vec<ProvisionDiagnostic>> {
    let Some(section) = &document.sections.boot else { return Ok(None) };
    if !document.is_queued(boot::NAME) {
        return Ok(None);
    }
    let mut fss = document.sections.storage.iter().filter_map(StorageNode::as_fs);
    let Some(root) = fss.find(|fs| fs.mount.as_deref() == Some("/")) else {
        if section.files.is_empty() {
            return Ok(None);
        }
        let what = "no file system is mounted at `/`, so the boot loader has no system to start";
        return Err(vec![ProvisionDiagnostic::new(Code::Contradiction, "boot.files", what)]);
    };
    let mut builder = BootBuilder { document, layout, section, facts, found: Vec::new() };
    let boot = builder.build(root);
    if builder.found.is_empty() { Ok(boot) } else { Err(builder.found) }
}

/// Derives the boot files from a document, and collects the reasons against them.
struct BootBuilder<'d, 'a> {
    document: &'d Document,
    layout: &'a Layout,
    section: &'d Boot,
    facts: &'d Facts,
    found: Vec<ProvisionDiagnostic>,
}

impl<'a> BootBuilder<'_, 'a> {
    fn build(&mut self, root: &Fs) -> Option<DesiredBoot<'a>> {
        let (bios, uefi) = started_by(self.section, self.facts.firmware);
        let arguments = self.arguments(root);
        let roles: &[PartRole] =
            if uefi { &[PartRole::Esp] } else { &[PartRole::Boot, PartRole::Esp] };
        let volume = self.volume(roles);
        let mut files = BTreeMap::new();
        let mut options = None;
        let has_grub = bios || self.loader() == BootLoader::Grub;
        if uefi {
            options = self.for_uefi(&arguments, &mut files);
        }
        if has_grub || self.loader() == BootLoader::SystemdBoot {
            self.kernel(&mut files);
        }
        if has_grub {
            let config = grub_config(&arguments, files.contains_key(INITRD));
            files.insert(GRUB_CONFIG.to_owned(), Source::Text(config));
        }
        let disk = volume.map(|(disk, _)| &disk.id);
        let grub = if bios { self.grub(disk) } else { None };
        let (disk, volume) = volume?;
        let entry = |disk: &DiskPlan, volume: &PartitionPlan| {
            let sector = u64::from(disk.sector);
            uefi.then(|| Entry {
                partuuid: volume.partuuid,
                number: volume.number,
                start: volume.start / sector,
                sectors: volume.len / sector,
                file: format!("/{}", self.removable()),
                arguments: options.clone(),
            })
        };
        let copies = self.copies(roles, &volume.id).into_iter().map(|(disk, volume)| BootCopy {
            disk,
            volume,
            grub: self.grub_of(&disk.id, grub.as_ref()),
            entry: entry(disk, volume),
        });
        let copies = copies.collect();
        let entry = entry(disk, volume);
        Some(DesiredBoot { disk, volume, files, grub, entry, copies, arguments })
    }

    /// The other partitions of the role of the boot volume that hoist makes with FAT.
    fn copies(&self, roles: &[PartRole], first: &Id) -> Vec<(&'a DiskPlan, &'a PartitionPlan)> {
        let storage = &self.document.sections.storage;
        let parts = || {
            storage.iter().filter_map(|node| match node {
                StorageNode::Part(part) if roles.contains(&part.role) => Some(part),
                _ => None,
            })
        };
        let role = parts().find(|part| part.id == *first).map(|part| part.role);
        let is_fat = |id: &Id| {
            let mut fss = storage.iter().filter_map(StorageNode::as_fs);
            fss.any(|fs| fs.on == *id && fs.kind == FsKind::Vfat && fs.retain.is_none())
        };
        let others = parts().filter(|part| {
            let is_other = part.id != *first && Some(part.role) == role;
            is_other && part.retain.is_none() && is_fat(&part.id)
        });
        others.filter_map(|part| self.layout.partition(&part.id)).collect()
    }

    /// GRUB for another disk, if there is a partition for its core.
    fn grub_of(&self, disk: &Id, first: Option<&Grub<'a>>) -> Option<Grub<'a>> {
        let (_, boot, core) = first?;
        let part = self.grub_part(disk)?;
        Some((part, boot.clone(), core.clone()))
    }

    fn grub_part(&self, disk: &Id) -> Option<&'a PartitionPlan> {
        let is_it = |node: &&StorageNode| {
            matches!(node, StorageNode::Part(part)
                if part.role == PartRole::BiosBoot && part.on == *disk)
        };
        let part = self.document.sections.storage.iter().find(is_it)?;
        Some(self.layout.partition(part.id())?.1)
    }

    /// The default path of firmware without a boot entry.
    fn removable(&self) -> &'static str {
        match self.facts.cpu.arch.as_str() {
            "aarch64" | "arm64" => "EFI/BOOT/BOOTAA64.EFI",
            _ => "EFI/BOOT/BOOTX64.EFI",
        }
    }

    fn loader(&self) -> BootLoader {
        let by_files = || match &self.section.files {
            files if files.uki.is_some() => BootLoader::Uki,
            files if files.loader.is_none() && files.grub_core.is_some() => BootLoader::Grub,
            _ => BootLoader::SystemdBoot,
        };
        self.section.loader.unwrap_or_else(by_files)
    }

    /// The file with this name. A missing file or digest is a diagnostic.
    fn file(&mut self, name: &'static str, why: &str) -> Option<RemoteFile> {
        let named = self.section.files.named();
        let file = named.into_iter().find(|(known, _)| *known == name).and_then(|(_, file)| file);
        let place = format!("boot.files.{name}");
        let Some(FetchedFile { sources, digest }) = file else {
            let found = ProvisionDiagnostic::new(Code::Missing, place, format!("{why} needs it"));
            self.found.push(found.hint("give its `sources` and its `digest`"));
            return None;
        };
        let digest = digest.as_ref().and_then(|digest| digest.parse().ok());
        if digest.is_none() {
            let what = "the file has no digest";
            self.found.push(
                ProvisionDiagnostic::new(Code::Missing, place, what).hint("give its `digest`"),
            );
        }
        Some(RemoteFile { sources: sources.clone(), digest: digest? })
    }

    fn kernel(&mut self, files: &mut BTreeMap<String, Source>) {
        let kernel = self.file("kernel", "the loader");
        files.extend(kernel.map(|file| (KERNEL.to_owned(), Source::Fetched(file))));
        if self.section.files.initrd.is_some() {
            let initrd = self.file("initrd", "the loader");
            files.extend(initrd.map(|file| (INITRD.to_owned(), Source::Fetched(file))));
        }
    }

    /// Adds the files for UEFI. Returns the arguments that the firmware passes to the loader.
    fn for_uefi(
        &mut self,
        arguments: &str,
        files: &mut BTreeMap<String, Source>,
    ) -> Option<String> {
        let removable = self.removable().to_owned();
        let mut entry = |text: String| {
            let config = "default hoist.conf\ntimeout 0\n".to_owned();
            files.insert(LOADER_CONFIG.to_owned(), Source::Text(config));
            files.insert(LOADER_ENTRY.to_owned(), Source::Text(text));
        };
        match self.loader() {
            BootLoader::SystemdBoot => {
                let has_initrd = self.section.files.initrd.is_some();
                let initrd = if has_initrd { format!("initrd /{INITRD}\n") } else { String::new() };
                entry(format!("title hoist\nlinux /{KERNEL}\n{initrd}options {arguments}\n"));
                let loader = self.file("loader", "systemd-boot");
                files.extend(loader.map(|file| (removable, Source::Fetched(file))));
                None
            }
            BootLoader::Grub => {
                let loader = self.file("loader", "GRUB for UEFI");
                files.extend(loader.map(|file| (removable, Source::Fetched(file))));
                None
            }
            // systemd-boot passes arguments to the unified kernel image. Without systemd-boot the
            // arguments come from the image itself or from the boot entry.
            BootLoader::Uki if self.section.files.loader.is_some() => {
                entry(format!("title hoist\nefi /{UKI}\noptions {arguments}\n"));
                let loader = self.file("loader", "it");
                let uki = self.file("uki", "the loader");
                files.extend(loader.map(|file| (removable, Source::Fetched(file))));
                files.extend(uki.map(|file| (UKI.to_owned(), Source::Fetched(file))));
                None
            }
            BootLoader::Uki => {
                let uki = self.file("uki", "the loader `uki`");
                files.extend(uki.map(|file| (removable, Source::Fetched(file))));
                Some(arguments.to_owned())
            }
        }
    }

    /// GRUB for the disk of the boot volume, or for the first disk that has a place for it.
    fn grub(&mut self, disk: Option<&Id>) -> Option<Grub<'a>> {
        let boot = self.file("grub_boot", "BIOS");
        let core = self.file("grub_core", "BIOS");
        // The layout refuses a document without this partition.
        let first = || Some(self.layout.partition(&self.part(&[PartRole::BiosBoot])?)?.1);
        let part = disk.and_then(|disk| self.grub_part(disk)).or_else(first)?;
        Some((part, boot?, core?))
    }

    fn part(&self, roles: &[PartRole]) -> Option<Id> {
        let of = |role: &PartRole| {
            self.document.sections.storage.iter().find_map(|node| match node {
                StorageNode::Part(part) if part.role == *role => Some(part.id.clone()),
                _ => None,
            })
        };
        roles.iter().find_map(of)
    }

    /// The volume for boot files.
    fn volume(&mut self, roles: &[PartRole]) -> Option<(&'a DiskPlan, &'a PartitionPlan)> {
        let part = self.part(roles).and_then(|id| self.layout.partition(&id));
        let Some((disk, part)) = part else {
            let what = "no partition can hold the boot files";
            let hint = "add one of role `esp`, or `boot` for BIOS, with a file system `vfat`";
            self.found.push(ProvisionDiagnostic::new(Code::Missing, "storage", what).hint(hint));
            return None;
        };
        let place = format!("storage.{}", part.id);
        let mut fss = self.document.sections.storage.iter().filter_map(StorageNode::as_fs);
        let kind = fss.find(|fs| fs.on == part.id).map(|fs| fs.kind);
        if kind != Some(FsKind::Vfat) {
            let what = "firmware and loaders read FAT, and it has none";
            let hint = "add a file system of kind `vfat` on it";
            self.found.push(ProvisionDiagnostic::new(Code::Firmware, &place, what).hint(hint));
        }
        let nodes = self.document.sections.storage.iter();
        let is_written_so =
            nodes.into_iter().any(|node| node.id() == &part.id && node.is_retained());
        if is_written_so {
            let what = "it stays as it is, and `boot` puts files there";
            let hint = "leave out its `retain`, or the section `boot`";
            self.found.push(ProvisionDiagnostic::new(Code::Contradiction, place, what).hint(hint));
        }
        Some((disk, part))
    }

    fn arguments(&self, root: &Fs) -> String {
        let by = if let Some((_, part)) = self.layout.partition(&root.on) {
            format!("PARTUUID={}", part.partuuid)
        } else {
            let plan = self.layout.stack.iter().find(|plan| plan.id == root.id);
            let made = plan.filter(|plan| plan.image.is_none()).map(|plan| plan.uuid);
            // A file system from an image has its own UUID.
            let device = || super::files::device(self.document, &root.on).unwrap_or_default();
            made.map_or_else(device, |uuid| format!("UUID={uuid}"))
        };
        let own = [format!("root={by}"), format!("rootfstype={}", root.kind)];
        own.into_iter()
            .chain(self.section.kernel_args.iter().cloned())
            .collect::<Vec<_>>()
            .join(" ")
    }
}

/// The GRUB configuration. Every argument is quoted, so that GRUB does not interpret it.
fn grub_config(arguments: &str, has_initrd: bool) -> String {
    let quoted = arguments.split(' ').map(|word| format!("'{}'", word.replace('\'', r"'\''")));
    let words = quoted.collect::<Vec<_>>().join(" ");
    let initrd = if has_initrd { format!("initrd /{INITRD}\n") } else { String::new() };
    format!("linux /{KERNEL} {words}\n{initrd}boot\n")
}

/// The reason for leaving the firmware variables unchanged, if there is one.
pub(super) fn reason_to_leave_firmware(
    section: &Boot,
    disk: &DiskPlan,
    machine: &ObservedMachine,
) -> Option<&'static str> {
    let facts = machine.disk_facts(disk);
    if section.order == BootOrder::Leave {
        Some("the document leaves them alone")
    } else if facts.is_some_and(|facts| facts.bus == Some(Bus::Loop)) {
        Some("a loop device is not what this machine boots from")
    } else if machine.facts.firmware != Firmware::Uefi {
        Some("this machine was not started by UEFI")
    } else if machine.boot.variables.is_none() {
        Some("efivarfs not found at /sys/firmware/efi/efivars")
    } else {
        None
    }
}

/// Refuses boot files that are missing or do not fit.
fn check(context: &PlanContext<'_>) -> Vec<ProvisionDiagnostic> {
    match desired(context.document, context.layout, &context.machine.facts) {
        Err(diagnostics) => diagnostics,
        Ok(None) => Vec::new(),
        Ok(Some(boot)) => check_room(context, &boot).into_iter().collect(),
    }
}

/// Refuses to clear the boot code of an installed system that this run would not write again.
fn check_boot_code(
    context: &PlanContext<'_>,
    opened: &BTreeMap<Id, OpenedDisk>,
) -> Option<ProvisionDiagnostic> {
    let document = context.document;
    if document.sections.boot.is_none() || document.is_queued(boot::NAME) {
        return None;
    }
    let parts = document.sections.storage.iter().filter_map(|node| match node {
        StorageNode::Part(part) if part.role == PartRole::BiosBoot => Some(&part.id),
        _ => None,
    });
    let mut planned = parts.filter_map(|id| context.layout.partition(id));
    let (disk, _) =
        planned.find(|(disk, part)| opened.contains_key(&disk.id) && is_kept(disk, part))?;
    let what = format!("the boot code of disk `{}` would be cleared without `boot`", disk.id);
    let refused = ProvisionDiagnostic::new(Code::Contradiction, "flow.actions", what);
    Some(refused.hint("queue `boot`, too; it writes the boot code again"))
}

/// The boot files whose sources did not answer.
pub(super) fn unanswered(context: &PlanContext<'_>) -> Vec<ProvisionDiagnostic> {
    let silent = context.machine.boot.unanswered.iter().map(|reason| {
        ProvisionDiagnostic::new(Code::Unreachable, "boot.files", reason)
            .hint("nothing is written before a source answers; check the sources")
    });
    silent.collect()
}

fn check_room(context: &PlanContext<'_>, boot: &DesiredBoot<'_>) -> Option<ProvisionDiagnostic> {
    let sizes = &context.machine.boot.file_sizes;
    let size = |source: &Source| match source {
        Source::Text(text) => text.len() as u64,
        Source::Fetched(file) => sizes.get(&file.digest.to_string()).copied().unwrap_or(0),
    };
    let large = boot.files.iter().find(|(_, source)| size(source) > MAX_FILE);
    if let Some((path, source)) = large {
        let what =
            format!("`{path}` has {}, and {} are the most", Bytes(size(source)), Bytes(MAX_FILE));
        return Some(ProvisionDiagnostic::new(Code::TooLarge, "boot.files", what));
    }
    let all: u64 = boot.files.values().map(|source| size(source) + 2 * CLUSTER).sum();
    // FAT needs a part of the volume for its own tables.
    let room = |volume: &PartitionPlan| (volume.len - volume.len / 128).saturating_sub(MIB / 4);
    let (_, small, _) = boot.volumes().find(|(_, volume, _)| all > room(volume))?;
    let what = format!("{} of files do not fit into {}", Bytes(all), Bytes(small.len));
    let hint = "make it larger, by its `size` or by `boot.esp_size`";
    let place = format!("storage.{}", small.id);
    Some(ProvisionDiagnostic::new(Code::NoRoom, place, what).hint(hint))
}

fn desired_in<'a>(context: &PlanContext<'a>) -> Option<DesiredBoot<'a>> {
    desired(context.document, context.layout, &context.machine.facts).ok().flatten()
}

/// Steps for missing files and missing boot code of each boot disk. Opening a disk clears the boot
/// code of its first sector.
fn missing<'a>(
    context: &PlanContext<'a>,
    boot: &DesiredBoot<'a>,
    is_opened: impl Fn(&Id) -> bool,
) -> Vec<(&'a DiskPlan, Vec<PlannedStep>)> {
    let steps = |(disk, volume, grub): (&'a DiskPlan, &'a PartitionPlan, Option<&Grub<'a>>)| {
        let mut steps = missing_files(context, boot, disk, volume);
        steps.extend(grub.and_then(|grub| missing_grub(context, disk, grub, is_opened(&disk.id))));
        (disk, steps)
    };
    boot.volumes().map(steps).collect()
}

fn missing_files(
    context: &PlanContext<'_>,
    boot: &DesiredBoot<'_>,
    disk: &DiskPlan,
    volume: &PartitionPlan,
) -> Vec<PlannedStep> {
    let keeps_files = is_kept(disk, volume) && !context.is_reformatted(&volume.id);
    let contents = context.machine.disks.contents.get(&volume.id).filter(|_| keeps_files);
    let has_file = |path: &str, source: &Source| {
        let stored = contents.and_then(|contents| contents.files.get(path));
        stored.is_some_and(|stored| stored.digest == source.digest())
    };
    let files = boot.files.iter().filter(|(path, source)| !has_file(path, source));
    let step = |(path, source): (&String, &Source)| {
        let name = format!("put {path} on {}", volume.id);
        let disk = disk.id.clone();
        let partition = volume.id.clone();
        let range = volume.range();
        let path = path.clone();
        let source = source.clone();
        PlannedStep::new(name, boot::NAME, Task::Put { disk, partition, range, path, source })
    };
    files.map(step).collect()
}

fn missing_grub(
    context: &PlanContext<'_>,
    disk: &DiskPlan,
    (part, boot, core): &Grub<'_>,
    is_opened: bool,
) -> Option<PlannedStep> {
    let has_grub = is_kept(disk, part) && context.machine.disks.grub.contains(&part.id);
    if has_grub && !is_opened {
        return None;
    }
    let disk = disk.id.clone();
    let partition = part.id.clone();
    let range = part.range();
    let name = format!("put GRUB into {partition} and the first sector of {disk}");
    let boot = boot.clone();
    let core = core.clone();
    let task = Task::Grub { disk, partition, range, boot, core };
    Some(PlannedStep::new(name, boot::NAME, task))
}

/// Whether boot files are still to be written to this disk.
pub(super) fn is_pending(context: &PlanContext<'_>, disk: &DiskPlan) -> bool {
    let Some(boot) = desired_in(context) else { return false };
    let missing = missing(context, &boot, |_| false);
    missing.iter().any(|(of, steps)| of.id == disk.id && !steps.is_empty())
}

/// Plans boot files and boot code. `opened` has the disks whose first sector is replaced.
pub(super) fn plan(context: &PlanContext<'_>, opened: &BTreeMap<Id, OpenedDisk>) -> Fragment {
    let mut fragment = Fragment { diagnostics: check(context), ..Fragment::default() };
    fragment.diagnostics.extend(check_boot_code(context, opened));
    let Some(boot) = desired_in(context) else { return fragment };
    for (disk, steps) in missing(context, &boot, |disk| opened.contains_key(disk)) {
        fragment.touched.extend((!steps.is_empty()).then(|| disk.id.clone()));
        fragment.steps.extend(steps);
    }
    fragment
}

/// The changes to firmware variables. `None` if the variables are as desired or stay unchanged.
pub(super) fn firmware_changes(context: &PlanContext<'_>) -> Option<Changes> {
    let section = context.document.sections.boot.as_ref()?;
    let boot = desired_in(context)?;
    let entries = boot.entries();
    if reason_to_leave_firmware(section, boot.disk, context.machine).is_some() {
        return None;
    }
    let partuuids = remaining_partuuids(context);
    let variables = context.machine.boot.variables.as_ref()?;
    let has_partition = |partuuid| partuuids.contains(&partuuid);
    boot_entries::decide_all(variables, &entries, section.order, has_partition)
}

/// The PARTUUIDs on the machine after the run. The tables that the run replaces do not count: a
/// boot entry of a partition in them leads nowhere afterwards.
fn remaining_partuuids(context: &PlanContext<'_>) -> BTreeSet<Uuid> {
    let plans = &context.layout.disks;
    let planned = plans.iter().flat_map(|disk| &disk.changes);
    let planned = planned.filter_map(|change| change.after.as_ref()?.partuuid);
    let is_planned = |name: &str| plans.iter().any(|plan| plan.kernel_name == name);
    let disks = context.machine.facts.disks.iter();
    let others = disks.filter(|disk| !is_planned(&disk.kernel_name));
    let tables = others.filter_map(|disk| disk.table.as_ref());
    let existing = tables.flat_map(|table| &table.partitions).filter_map(|part| part.partuuid);
    planned.chain(existing).collect()
}

/// Touches the boot disk if only the firmware variables change: the run needs a disk for its
/// journal.
pub(super) fn reserve_disk(context: &PlanContext<'_>) -> Fragment {
    let changed = firmware_changes(context).and_then(|_| desired_in(context));
    let touched = changed.map(|boot| boot.disk.id.clone()).into_iter().collect();
    Fragment { touched, ..Fragment::default() }
}

/// Plans the firmware variables. They are set last, when the system that they start is durable.
pub(super) fn plan_firmware(context: &PlanContext<'_>) -> Fragment {
    let mut fragment = Fragment::default();
    if let Some(changes) = firmware_changes(context) {
        let name = "tell the firmware what to start".to_owned();
        let step = PlannedStep::new(name, boot::NAME, Task::Remember { changes });
        fragment.steps.push(step);
    }
    fragment
}
