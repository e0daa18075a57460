//! What starts the installed system: what shall be where, and what of it is not there.

use std::collections::BTreeMap;

use super::{Planning, Seen, is_kept};
use crate::actions::boot::{self, Fetching, MAX_FILE, Source, Task};
use crate::claim::started_by;
use crate::device::efivars::{self, Changes, Entry};
use crate::diagnostic::{Code, Diagnostic};
use crate::document::size::{KIB, MIB};
use crate::document::{
    Boot, BootLoader, BootOrder, Bytes, Document, Fetched, Fs, FsKind, PartRole, StorageNode,
};
use crate::facts::{Bus, Facts, Firmware};
use crate::layout::{DiskPlan, Layout, PartitionPlan};

/// Where kernels and GRUB's configuration are, on the volume.
pub(super) const KERNEL: &str = "hoist/linux";
pub(super) const INITRD: &str = "hoist/initrd";
const GRUB_CONFIG: &str = "hoist/grub.cfg";
/// Of systemd-boot.
const LOADER_CONFIG: &str = "loader/loader.conf";
const LOADER_ENTRY: &str = "loader/entries/hoist.conf";
const UKI: &str = "EFI/Linux/hoist.efi";
/// What a file takes beside its bytes, at most.
const CLUSTER: u64 = 32 * KIB;

/// All that starts the system.
#[derive(Debug)]
pub(super) struct Wanted<'a> {
    pub disk: &'a DiskPlan,
    pub volume: &'a PartitionPlan,
    pub files: BTreeMap<String, Source>,
    /// For BIOS: the partition of the core, `boot.img` and `core.img`.
    pub grub: Option<(&'a PartitionPlan, Fetching, Fetching)>,
    /// For UEFI.
    pub entry: Option<Entry>,
    /// Words for the kernel.
    pub arguments: String,
}

impl Wanted<'_> {
    /// Of each file that is fetched, where it is.
    pub(super) fn fetched(&self) -> impl Iterator<Item = &Fetching> {
        let files = self.files.values().filter_map(|source| match source {
            Source::Fetched(file) => Some(file),
            Source::Text(_) => None,
        });
        files.chain(self.grub.iter().flat_map(|(_, boot, core)| [boot, core]))
    }
}

/// What is wanted, if anything is.
pub(super) fn wanted<'a>(
    document: &Document,
    layout: &'a Layout,
    facts: &Facts,
) -> Result<Option<Wanted<'a>>, Vec<Diagnostic>> {
    let Some(section) = &document.sections.boot else { return Ok(None) };
    if !document.is_queued(boot::NAME) {
        return Ok(None);
    }
    let mut fss = document.sections.storage.iter().filter_map(StorageNode::as_fs);
    let Some(root) = fss.find(|fs| fs.mount.as_deref() == Some("/")) else {
        if section.files.is_empty() {
            return Ok(None);
        }
        let what = "nothing is mounted at `/`, so there is nothing to start";
        return Err(vec![Diagnostic::new(Code::Contradiction, "boot.files", what)]);
    };
    let mut asking = Asking { document, layout, section, facts, found: Vec::new() };
    let wanted = asking.all(root);
    if asking.found.is_empty() { Ok(wanted) } else { Err(asking.found) }
}

struct Asking<'d, 'a> {
    document: &'d Document,
    layout: &'a Layout,
    section: &'d Boot,
    facts: &'d Facts,
    found: Vec<Diagnostic>,
}

impl<'a> Asking<'_, 'a> {
    fn all(&mut self, root: &Fs) -> Option<Wanted<'a>> {
        let (bios, uefi) = started_by(self.section, self.facts.firmware);
        let arguments = self.arguments(root);
        let roles: &[PartRole] =
            if uefi { &[PartRole::Esp] } else { &[PartRole::Boot, PartRole::Esp] };
        let volume = self.volume(roles);
        let (mut files, mut options) = (BTreeMap::new(), None);
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
        let grub = if bios { self.grub() } else { None };
        let (disk, volume) = volume?;
        let sector = u64::from(disk.sector);
        let entry = uefi.then(|| Entry {
            partuuid: volume.partuuid,
            number: volume.number,
            start: volume.start / sector,
            sectors: volume.len / sector,
            file: format!("/{}", self.removable()),
            arguments: options,
        });
        Some(Wanted { disk, volume, files, grub, entry, arguments })
    }

    /// Where firmware looks that remembers nothing.
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

    /// A file by its name in the document, which must be there.
    fn file(&mut self, name: &'static str, why: &str) -> Option<Fetching> {
        let named = self.section.files.named();
        let file = named.into_iter().find(|(known, _)| *known == name).and_then(|(_, file)| file);
        let place = format!("boot.files.{name}");
        let Some(Fetched { sources, digest }) = file else {
            let found = Diagnostic::new(Code::Missing, place, format!("{why} needs it"));
            self.found.push(found.hint("give its `sources` and its `digest`"));
            return None;
        };
        let digest = digest.as_ref().and_then(|digest| digest.parse().ok());
        if digest.is_none() {
            let what = "nobody says what it is to be";
            self.found.push(Diagnostic::new(Code::Missing, place, what).hint("give its `digest`"));
        }
        Some(Fetching { sources: sources.clone(), digest: digest? })
    }

    fn kernel(&mut self, files: &mut BTreeMap<String, Source>) {
        let kernel = self.file("kernel", "the loader");
        files.extend(kernel.map(|file| (KERNEL.to_owned(), Source::Fetched(file))));
        if self.section.files.initrd.is_some() {
            let initrd = self.file("initrd", "the loader");
            files.extend(initrd.map(|file| (INITRD.to_owned(), Source::Fetched(file))));
        }
    }

    /// Gives what the firmware itself hands to what it starts.
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
            // With systemd-boot before it, it is handed its arguments; alone it has those that are in
            // it, or that the firmware remembers.
            BootLoader::Uki if self.section.files.loader.is_some() => {
                entry(format!("title hoist\nefi /{UKI}\noptions {arguments}\n"));
                let (loader, uki) = (self.file("loader", "it"), self.file("uki", "the loader"));
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

    fn grub(&mut self) -> Option<(&'a PartitionPlan, Fetching, Fetching)> {
        let boot = self.file("grub_boot", "BIOS");
        let core = self.file("grub_core", "BIOS");
        // That there is one is checked with the layout.
        let part = self.part(&[PartRole::BiosBoot])?;
        Some((self.layout.partition(&part)?.1, boot?, core?))
    }

    fn part(&self, roles: &[PartRole]) -> Option<crate::document::Id> {
        let of = |role: &PartRole| {
            self.document.sections.storage.iter().find_map(|node| match node {
                StorageNode::Part(part) if part.role == *role => Some(part.id.clone()),
                _ => None,
            })
        };
        roles.iter().find_map(of)
    }

    /// Where files go.
    fn volume(&mut self, roles: &[PartRole]) -> Option<(&'a DiskPlan, &'a PartitionPlan)> {
        let part = self.part(roles).and_then(|id| self.layout.partition(&id));
        let Some((disk, part)) = part else {
            let what = "there is no partition for what the machine is started with";
            let hint = "add one of role `esp`, or `boot` for BIOS, with a file system `vfat`";
            self.found.push(Diagnostic::new(Code::Missing, "storage", what).hint(hint));
            return None;
        };
        let place = format!("storage.{}", part.id);
        let mut fss = self.document.sections.storage.iter().filter_map(StorageNode::as_fs);
        let kind = fss.find(|fs| fs.on == part.id).map(|fs| fs.kind);
        if kind != Some(FsKind::Vfat) {
            let what = "firmware and loaders read FAT, and it has none";
            let hint = "add a file system of kind `vfat` on it";
            self.found.push(Diagnostic::new(Code::Firmware, &place, what).hint(hint));
        }
        let nodes = self.document.sections.storage.iter();
        let is_written_so =
            nodes.into_iter().any(|node| node.id() == &part.id && node.is_retained());
        if is_written_so {
            let what = "it stays as it is, and `boot` puts files there";
            let hint = "leave out its `retain`, or the section `boot`";
            self.found.push(Diagnostic::new(Code::Contradiction, place, what).hint(hint));
        }
        Some((disk, part))
    }

    fn arguments(&self, root: &Fs) -> String {
        let by = if let Some((_, part)) = self.layout.partition(&root.on) {
            format!("PARTUUID={}", part.partuuid)
        } else {
            let plan = self.layout.stack.iter().find(|plan| plan.id == root.id);
            let made = plan.filter(|plan| plan.image.is_none()).map(|plan| plan.uuid);
            // What came in an image has a UUID of its own.
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

/// As GRUB reads it: each word in quotes, so that nothing in it means anything.
fn grub_config(arguments: &str, has_initrd: bool) -> String {
    let quoted = arguments.split(' ').map(|word| format!("'{}'", word.replace('\'', r"'\''")));
    let words = quoted.collect::<Vec<_>>().join(" ");
    let initrd = if has_initrd { format!("initrd /{INITRD}\n") } else { String::new() };
    format!("linux /{KERNEL} {words}\n{initrd}boot\n")
}

/// Why the firmware is told nothing, where that is so.
pub(super) fn left_alone(section: &Boot, disk: &DiskPlan, seen: &Seen) -> Option<&'static str> {
    let facts = seen.facts.disks.iter().find(|facts| facts.kernel_name == disk.kernel_name);
    if section.order == BootOrder::Leave {
        Some("the document leaves them alone")
    } else if facts.is_some_and(|facts| facts.bus == Some(Bus::Loop)) {
        Some("a loop device is not what this machine boots from")
    } else if seen.facts.firmware != Firmware::Uefi {
        Some("this machine was not started by UEFI")
    } else if seen.variables.is_none() {
        Some("there is no efivarfs at /sys/firmware/efi/efivars")
    } else {
        None
    }
}

impl Planning<'_> {
    /// What is asked for and cannot be.
    pub(super) fn refused_boot(&self) -> Vec<Diagnostic> {
        match wanted(self.document, self.layout, &self.seen.facts) {
            Err(found) => found,
            Ok(None) => Vec::new(),
            Ok(Some(wanted)) => self.without_room(&wanted).into_iter().collect(),
        }
    }

    fn without_room(&self, wanted: &Wanted<'_>) -> Option<Diagnostic> {
        let size = |source: &Source| match source {
            Source::Text(text) => text.len() as u64,
            Source::Fetched(file) => {
                self.seen.sizes.get(&file.digest.to_string()).copied().unwrap_or(0)
            }
        };
        let place = format!("storage.{}", wanted.volume.id);
        let large = wanted.files.iter().find(|(_, source)| size(source) > MAX_FILE);
        if let Some((path, source)) = large {
            let what = format!(
                "`{path}` has {}, and {} are the most",
                Bytes(size(source)),
                Bytes(MAX_FILE)
            );
            return Some(Diagnostic::new(Code::TooLarge, "boot.files", what));
        }
        let all: u64 = wanted.files.values().map(|source| size(source) + 2 * CLUSTER).sum();
        // Its tables are there, too.
        let room = (wanted.volume.len - wanted.volume.len / 128).saturating_sub(MIB / 4);
        (all > room).then(|| {
            let what =
                format!("{} of files do not fit into {}", Bytes(all), Bytes(wanted.volume.len));
            let hint = "make it larger, by its `size` or by `boot.esp_size`";
            Diagnostic::new(Code::NoRoom, place, what).hint(hint)
        })
    }

    fn wanted_boot(&self) -> Option<Wanted<'_>> {
        wanted(self.document, self.layout, &self.seen.facts).ok().flatten()
    }

    /// Files and code that are not where they shall be.
    fn missing_boot(&self) -> Vec<(String, Task)> {
        let Some(wanted) = self.wanted_boot() else { return Vec::new() };
        let Wanted { disk, volume, files, grub, .. } = wanted;
        let is_there = is_kept(disk, volume) && !self.is_made_anew(&volume.id);
        let contents = self.seen.contents.get(&volume.id).filter(|_| is_there);
        let has = |path: &str, source: &Source| {
            let stored = contents.and_then(|contents| contents.files.get(path));
            stored.is_some_and(|stored| stored.digest == source.digest())
        };
        let missing = files.into_iter().filter(|(path, source)| !has(path, source));
        let (on, at) = (&disk.id, &volume.id);
        let mut steps: Vec<_> = missing
            .map(|(path, source)| {
                let (disk, partition, range) = (on.clone(), at.clone(), volume.range());
                let name = format!("put {path} on {at}");
                (name, Task::Put { disk, partition, range, path, source })
            })
            .collect();
        if let Some((part, boot, core)) = grub {
            let has = is_kept(disk, part) && self.seen.grub.contains(&part.id);
            // Whoever begins with a disk takes away what its first sector starts.
            if !has || self.opened.contains_key(on) {
                let (disk, partition, range) = (on.clone(), part.id.clone(), part.range());
                let name = format!("put GRUB into {partition} and the first sector of {disk}");
                steps.push((name, Task::Grub { disk, partition, range, boot, core }));
            }
        }
        steps
    }

    pub(super) fn needs_boot(&self, disk: &DiskPlan) -> bool {
        let is_on = self.wanted_boot().is_some_and(|wanted| wanted.disk.id == disk.id);
        is_on && !self.missing_boot().is_empty()
    }

    pub(super) fn boot(&mut self) {
        for (name, task) in self.missing_boot() {
            if let Task::Put { disk, .. } | Task::Grub { disk, .. } = &task {
                self.touched.insert(disk.clone());
            }
            self.step(name, boot::NAME, task, true);
        }
    }

    /// What the firmware is to be told, and whether it is told anything.
    pub(super) fn variables(&self) -> Option<Result<Changes, &'static str>> {
        let section = self.document.sections.boot.as_ref()?;
        let wanted = self.wanted_boot()?;
        let entry = wanted.entry?;
        if let Some(why) = left_alone(section, wanted.disk, self.seen) {
            return Some(Err(why));
        }
        let will = self.layout.disks.iter().flat_map(|disk| &disk.changes);
        let will = will.filter_map(|change| change.after.as_ref()?.partuuid);
        let tables = self.seen.facts.disks.iter().filter_map(|disk| disk.table.as_ref());
        let has = tables.flat_map(|table| &table.partitions).filter_map(|part| part.partuuid);
        let there: Vec<_> = will.chain(has).collect();
        let now = self.seen.variables.as_ref()?;
        let is_there = |partuuid| there.contains(&partuuid);
        efivars::decide(now, &entry, section.order, is_there).map(Ok)
    }

    /// What only changes the firmware's memory has a journal, too.
    pub(super) fn touch(&mut self) {
        if let Some(Ok(_)) = self.variables() {
            let disk = self.wanted_boot().map(|wanted| wanted.disk.id.clone());
            self.touched.extend(disk);
        }
    }

    /// When everything else is durable.
    pub(super) fn remember(&mut self) {
        let Some(Ok(changes)) = self.variables() else { return };
        let name = "tell the firmware what to start".to_owned();
        self.step(name, boot::NAME, Task::Remember { changes }, true);
    }
}
