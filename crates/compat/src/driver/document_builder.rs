//! What bareon's two formats have in common: disks with volumes, groups with volumes, file systems
//! on either, put together as storage nodes.

use std::collections::{BTreeMap, BTreeSet};

use hoist_model::document::API;

use hoist_provision::diagnostic::{Code, ProvisionDiagnostic};
use hoist_provision::document::size::MIB;
use hoist_provision::document::{
    Boot, Bytes, Compression, Disk, DiskMatch, Document, Fs, FsKind, FsRetain, Id, Image,
    ImageFormat, Lv, MAX_ID, MAX_STORAGE, Md, MdLevel, NodeSection, Part, PartRole, Pv, Sections,
    Size, StorageNode, Tables, Vg, Wipe, check,
};
use hoist_provision::driver::Options;

/// Where GRUB's core goes, on every disk.
pub(super) const LOADER: u64 = 24 * MIB;

/// Most characters of a partition's name in its table.
const MAX_PART_NAME: usize = 36;

/// A builder of a document, with the diagnostics so far.
pub(super) struct DocumentBuilder {
    sections: Sections,
    kernel_args: Vec<String>,
    pub(super) found: Vec<ProvisionDiagnostic>,
    taken: BTreeSet<String>,
    groups: BTreeMap<String, Group>,
    /// In the order in which they were met.
    arrays: Vec<Array>,
}

/// A volume group: who lies below, and how its node is called.
struct Group {
    id: Id,
    on: Vec<Id>,
}

/// Partitions of several disks that are mirrored, known by where they are mounted.
struct Array {
    place: String,
    mount: String,
    on: Vec<Id>,
    fs: FsInput,
}

/// A file system as bareon describes one.
#[derive(Debug, Clone, Default)]
pub(super) struct FsInput {
    pub(super) kind: Option<String>,
    pub(super) mount: Option<String>,
    pub(super) label: Option<String>,
    pub(super) options: Option<String>,
    pub(super) no_fstab: bool,
    pub(super) keep: bool,
}

/// An input that describes more than a document holds is not gone through: its entries name each
/// other, and each is given an id of its own.
pub(super) fn limit(place: &str, count: usize) -> Result<(), Vec<ProvisionDiagnostic>> {
    const MOST: usize = 2 * MAX_STORAGE;
    if count <= MOST {
        return Ok(());
    }
    let what = format!("{count} things are more than the limit of {MOST}");
    Err(vec![ProvisionDiagnostic::new(Code::TooLarge, place, what)])
}

impl DocumentBuilder {
    pub(super) fn new(options: &Options) -> Self {
        let mut sections = Sections {
            node: Some(NodeSection {
                id: options.node.clone(),
                name: None,
                generation: None,
                last_root: None,
            }),
            ..Sections::default()
        };
        sections.policy.allow_kernel_names = options.allow_kernel_names;
        Self {
            sections,
            kernel_args: Vec::new(),
            found: Vec::new(),
            taken: BTreeSet::new(),
            groups: BTreeMap::new(),
            arrays: Vec::new(),
        }
    }

    pub(super) fn say(&mut self, code: Code, place: &str, what: impl Into<String>, hint: &str) {
        let found = ProvisionDiagnostic::new(code, place, what);
        self.found.push(if hint.is_empty() { found } else { found.hint(hint) });
    }

    /// An unused id, as close as possible to the wanted name.
    pub(super) fn id(&mut self, wanted: &str) -> Id {
        let plain = |c: char| if c.is_ascii_alphanumeric() || "._".contains(c) { c } else { '-' };
        let text: String = wanted.chars().map(plain).take(MAX_ID - 5).collect();
        let text = text.trim_start_matches(['-', '.', '_']).trim_end_matches('-');
        let text = if text.is_empty() { "x" } else { text };
        let mut id = text.to_owned();
        for count in 2.. {
            if self.taken.insert(id.clone()) {
                break;
            }
            id = format!("{text}-{count}");
        }
        id.parse().expect("made of what ids are made of")
    }

    pub(super) fn disk(&mut self, name: &str, matches: DiskMatch) -> Id {
        let id = self.id(name);
        let disk = Disk { matches, wipe: Wipe::default() };
        self.sections.disks.0.insert(id.clone(), disk);
        id
    }

    pub(super) fn part(&mut self, disk: &Id, name: &str, size: Size, role: PartRole) -> Id {
        let id = self.id(&format!("{disk}-{name}"));
        // Names of links are long. The id of the partition is its name unless it has another.
        let is_long = id.as_str().len() > MAX_PART_NAME;
        let plain = || name.chars().filter(|c| !c.is_control() && c.len_utf16() == 1);
        self.sections.storage.push(StorageNode::Part(Part {
            id: id.clone(),
            on: disk.clone(),
            size,
            role,
            type_guid: None,
            name: is_long.then(|| plain().take(MAX_PART_NAME).collect()),
            attributes: Vec::new(),
            retain: None,
        }));
        id
    }

    pub(super) fn node(&mut self, node: StorageNode) {
        self.sections.storage.push(node);
    }

    /// A type of its own for the last partition.
    pub(super) fn type_of_last(&mut self, place: &str, guid: &str) {
        let Ok(guid) = guid.parse() else {
            let what = format!("`{guid}` is no GUID of a type of partitions");
            return self.say(Code::BadValue, place, what, "");
        };
        if let Some(StorageNode::Part(part)) = self.sections.storage.last_mut() {
            part.type_guid = Some(guid);
        }
    }

    /// A file system, if there is one. Bareon's default is XFS.
    pub(super) fn fs(&mut self, place: &str, on: &Id, fs: &FsInput) -> Option<Id> {
        let named = |text: &Option<String>| text.clone().filter(|text| text != "none");
        let kind = named(&fs.kind);
        let mount = named(&fs.mount);
        if kind.is_none() && mount.is_none() {
            return None;
        }
        let kind = kind.unwrap_or_else(|| "xfs".to_owned()).to_lowercase();
        let known = [
            FsKind::Ext2,
            FsKind::Ext3,
            FsKind::Ext4,
            FsKind::Xfs,
            FsKind::Btrfs,
            FsKind::Vfat,
            FsKind::Swap,
        ];
        let Some(kind) = known.into_iter().find(|known| known.as_str() == kind) else {
            let what = format!("file systems of kind `{kind}` are not made here");
            let names = known.map(FsKind::as_str).join(", ");
            self.say(Code::Unsupported, place, what, &format!("there are {names}"));
            return None;
        };
        let id = self.id(&format!("{on}-fs"));
        let options = fs.options.as_deref().unwrap_or_default().split(',').map(str::trim);
        let options = options.filter(|option| !option.is_empty() && *option != "defaults");
        self.sections.storage.push(StorageNode::Fs(Fs {
            id: id.clone(),
            on: on.clone(),
            kind,
            label: fs.label.clone().filter(|label| !label.is_empty()),
            mount: mount.filter(|_| kind != FsKind::Swap),
            options: options.map(str::to_owned).collect(),
            no_fstab: fs.no_fstab,
            retain: fs.keep.then(FsRetain::default),
        }));
        Some(id)
    }

    /// Partitions of several disks with the same mount point become a mirror.
    pub(super) fn mirrored(&mut self, place: &str, part: Id, fs: FsInput) {
        let mount = fs.mount.clone().unwrap_or_default();
        match self.arrays.iter_mut().find(|array| array.mount == mount) {
            Some(array) => array.on.push(part),
            None => self.arrays.push(Array { place: place.to_owned(), mount, on: vec![part], fs }),
        }
    }

    pub(super) fn group(&mut self, name: &str) -> Id {
        if let Some(group) = self.groups.get(name) {
            return group.id.clone();
        }
        let id = self.id(&format!("vg-{name}"));
        let group = Group { id: id.clone(), on: Vec::new() };
        self.groups.insert(name.to_owned(), group);
        id
    }

    pub(super) fn pv(&mut self, part: &Id, group: &str, metadata_size: Option<Bytes>) {
        self.group(group);
        let id = self.id(&format!("{part}-pv"));
        let on = part.clone();
        let retain = false;
        self.sections.storage.push(StorageNode::Pv(Pv {
            id: id.clone(),
            on,
            metadata_size,
            retain,
        }));
        if let Some(group) = self.groups.get_mut(group) {
            group.on.push(id);
        }
    }

    pub(super) fn lv(&mut self, group: &str, name: &str, size: Size) -> Id {
        let on = self.group(group);
        let id = self.id(&format!("lv-{group}-{name}"));
        let lv = Lv { id: id.clone(), on, size, name: Some(name.to_owned()), retain: false };
        self.sections.storage.push(StorageNode::Lv(lv));
        id
    }

    /// The file systems that are mounted there.
    pub(super) fn mounted(&self, mount: &str) -> Option<&Fs> {
        let mut fss = self.sections.storage.iter().filter_map(StorageNode::as_fs);
        fss.find(|fs| fs.mount.as_deref() == Some(mount))
    }

    /// Adds an image for a mount point. A retained file system must not get one.
    pub(super) fn image(
        &mut self,
        place: &str,
        mount: &str,
        source: &str,
        compression: Compression,
    ) {
        let Some((target, keep)) =
            self.mounted(mount).map(|fs| (fs.id.clone(), fs.retain.is_some()))
        else {
            let what = format!("an image is for `{mount}`, and nothing is mounted there");
            return self.say(Code::NoSuchThing, place, what, "add a volume with that mount point");
        };
        if keep {
            let what = format!("image for `{mount}` would overwrite data to keep");
            let hint = "say `keep_data: false` of it, or leave out the image";
            return self.say(Code::Contradiction, place, what, hint);
        }
        if !["http://", "https://", "file:///"].iter().any(|scheme| source.starts_with(scheme)) {
            let what = format!("the image for `{mount}` is nothing that can be fetched");
            let hint = "give a URL of http, https or file; trees for rsync are not supported";
            return self.say(Code::Unsupported, place, what, hint);
        }
        let id = self.id(&format!("image-{}", if mount == "/" { "root" } else { mount }));
        let image = Image {
            unpacked_digest: None,
            sources: vec![source.to_owned()],
            made_by: None,
            target,
            format: ImageFormat::Raw,
            compression,
            size: None,
            digest: None,
            manifest: None,
            sector_size: None,
            table: None,
            grow: true,
            token: None,
        };
        self.sections.images.0.insert(id, image);
    }

    /// Kernel arguments, if there is something to start: bareon runs the boot loader of the image,
    /// so its documents name no boot files.
    pub(super) fn kernel_args(&mut self, kernel_params: &str) {
        self.kernel_args = kernel_params.split_whitespace().map(str::to_owned).collect();
    }

    pub(super) fn adopt(&mut self) {
        self.sections.policy.tables = Tables::Adopt;
    }

    pub(super) fn wipe(&mut self, disk: &Id, wipe: &Wipe) {
        if let Some(disk) = self.sections.disks.0.get_mut(disk) {
            disk.wipe = wipe.clone();
        }
    }

    /// The disks of a document that is as complete as it gets.
    pub(super) fn disks_below(&self, id: &Id, options: &Options) -> BTreeSet<Id> {
        hoist_provision::layout::disks_below(&self.whole(options), id)
    }

    fn whole(&self, options: &Options) -> Document {
        let api = API.to_owned();
        let txn = options.txn;
        Document { api, txn, sections: self.sections.clone() }
    }

    /// Arrays and groups, which are known when all disks were seen.
    pub(super) fn assemble(&mut self) {
        for Array { place, mount, on, fs } in std::mem::take(&mut self.arrays) {
            // A mirror of one device mirrors nothing.
            if let [part] = on.as_slice() {
                self.fs(&place, part, &fs);
                continue;
            }
            let name = format!("md-{}", if mount == "/" { "root" } else { &mount });
            let id = self.id(&name);
            let md = Md {
                id: id.clone(),
                on,
                level: MdLevel::Raid1,
                spares: 0,
                name: None,
                retain: false,
            };
            self.sections.storage.push(StorageNode::Md(md));
            self.fs(&place, &id, &fs);
        }
        for (name, Group { id, on }) in std::mem::take(&mut self.groups) {
            if on.is_empty() {
                let what = format!("volume group `{name}` lies on nothing");
                self.say(Code::NoSuchThing, "", what, "add a volume of type `pv` for it");
            }
            let vg = Vg { id, on, name: Some(name), retain: false };
            self.sections.storage.push(StorageNode::Vg(vg));
        }
    }

    pub(super) fn finish(
        mut self,
        options: &Options,
    ) -> Result<Document, Vec<ProvisionDiagnostic>> {
        self.sections.boot = options.boot.clone().map(|boot| {
            let mut kernel_args = std::mem::take(&mut self.kernel_args);
            kernel_args.extend(boot.kernel_args.iter().cloned());
            Boot { kernel_args, ..boot }
        });
        let document = self.whole(options);
        let mut found = self.found;
        if found.is_empty() {
            found = check(&document);
        }
        if found.is_empty() { Ok(document) } else { Err(found) }
    }
}

/// Adds a name below `/dev` to the criteria of a disk.
pub(super) fn add_link(matches: &mut DiskMatch, link: &str) {
    let link = link.trim().trim_start_matches("/dev/");
    let below = link.strip_prefix("disk/").unwrap_or(link);
    match below.strip_prefix("by-path/") {
        Some(path) => matches.by_path = Some(path.to_owned()),
        None if below.contains('/') => matches.links.push(below.to_owned()),
        None => matches.kernel_name = Some(below.to_owned()),
    }
}
