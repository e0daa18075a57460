//! Storage configuration of curtin, version 1: a list of entries that refer to each other by id.
//! Entries with `preserve` are refused: hoist retains only data that a document describes well
//! enough to verify, and `preserve` does not.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use super::document_builder::{DocumentBuilder, FsInput, add_link, limit};
use hoist_provision::diagnostic::{Code, ProvisionDiagnostic};
use hoist_provision::document::size::MAX_SIZE;
use hoist_provision::document::{
    Bytes, DiskMatch, Document, Id, Luks, Lv, Md, MdLevel, Part, PartRole, Pv, Size, StorageNode,
    Vg, Wipe,
};
use hoist_provision::driver::{Confidence, DataDriver, DriverInfo, Options, tree, typed};

/// The driver `curtin`.
#[derive(Debug)]
pub struct Curtin;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Input {
    storage: Storage,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Storage {
    version: u32,
    config: Vec<Entry>,
}

#[derive(Deserialize)]
struct Entry {
    id: String,
    #[serde(default)]
    preserve: bool,
    #[serde(default)]
    wipe: Option<String>,
    #[serde(flatten)]
    what: What,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
enum What {
    Disk {
        serial: Option<String>,
        wwn: Option<String>,
        path: Option<String>,
        model: Option<String>,
        ptable: Option<String>,
        /// A name for people.
        name: Option<String>,
        /// The boot loader is a section of its own in a document.
        #[serde(rename = "grub_device")]
        _grub_device: Option<bool>,
    },
    Partition {
        device: String,
        size: Value,
        number: Option<usize>,
        flag: Option<String>,
        partition_name: Option<String>,
        partition_type: Option<String>,
    },
    Format {
        volume: String,
        fstype: String,
        label: Option<String>,
    },
    Mount {
        device: String,
        path: Option<String>,
        options: Option<String>,
    },
    Raid {
        name: String,
        raidlevel: Value,
        devices: Vec<String>,
        #[serde(default)]
        spare_devices: Vec<String>,
    },
    LvmVolgroup {
        name: String,
        devices: Vec<String>,
    },
    LvmPartition {
        name: String,
        volgroup: String,
        size: Option<Value>,
    },
    DmCrypt {
        volume: String,
        keyfile: Option<String>,
        /// Secret: must not appear in messages.
        key: Option<Value>,
        dm_name: Option<String>,
    },
}

impl DataDriver for Curtin {
    fn describe(&self) -> DriverInfo {
        DriverInfo { name: "curtin", version: 1, about: "curtin's storage, version 1" }
    }

    fn sniff(&self, input: &[u8]) -> Confidence {
        let tree = tree(input);
        let storage = tree.as_ref().and_then(|tree| tree.get("storage"));
        match storage {
            Some(storage) if storage.get("config").is_some_and(Value::is_array) => {
                let is_said = storage.get("version").is_some();
                if is_said { Confidence::Sure } else { Confidence::Maybe }
            }
            _ => Confidence::No,
        }
    }

    fn parse(&self, input: &[u8], options: &Options) -> Result<Document, Vec<ProvisionDiagnostic>> {
        let Input { storage } = typed("input", input)?;
        if storage.version != 1 {
            let what = format!("version {} of curtin's storage is not known", storage.version);
            let found = ProvisionDiagnostic::new(Code::Unsupported, "storage.version", what);
            return Err(vec![found.hint("write version 1, or a document of hoist's own")]);
        }
        let things = storage.config.iter().map(|entry| match &entry.what {
            What::Raid { devices, spare_devices, .. } => 1 + devices.len() + spare_devices.len(),
            What::LvmVolgroup { devices, .. } => 1 + devices.len(),
            _ => 1,
        });
        limit("storage.config", things.sum())?;
        let mut reading = StorageReader {
            config: &storage.config,
            options,
            builder: DocumentBuilder::new(options),
            known: BTreeMap::new(),
            counts: BTreeMap::new(),
        };
        for (number, entry) in storage.config.iter().enumerate() {
            reading.entry(&format!("storage.config[{number}]"), entry);
        }
        reading.builder.finish(options)
    }
}

struct StorageReader<'a> {
    config: &'a [Entry],
    options: &'a Options,
    builder: DocumentBuilder,
    /// What something is called here, by what curtin calls it.
    known: BTreeMap<&'a str, Id>,
    /// Partitions of each disk so far.
    counts: BTreeMap<Id, usize>,
}

impl<'a> StorageReader<'a> {
    fn entry(&mut self, place: &str, entry: &'a Entry) {
        if entry.preserve {
            let what = format!("`{}` has `preserve`, but its content is not described", entry.id);
            let hint = "write a document of hoist's own with `retain`";
            return self.builder.say(Code::Unsupported, &format!("{place}.preserve"), what, hint);
        }
        let is_wiped = match entry.wipe.as_deref() {
            None => false,
            Some("superblock" | "superblock-recursive") => true,
            Some(other) => {
                let what = format!("`wipe: {other}` is not done here");
                let hint = "write `superblock`, or erase disks by a document of hoist's own";
                return self.builder.say(Code::Unsupported, &format!("{place}.wipe"), what, hint);
            }
        };
        if self.known.contains_key(entry.id.as_str()) {
            let what = format!("there are two `{}`", entry.id);
            return self.builder.say(Code::Twice, place, what, "");
        }
        let id = match &entry.what {
            What::Disk { .. } => self.disk(place, entry, is_wiped),
            What::Partition { .. } => self.partition(place, entry),
            What::Format { .. } => self.format(place, entry),
            // The format entry looks its mount up.
            What::Mount { device, .. } => self.on(&format!("{place}.device"), device),
            What::Raid { .. } => self.raid(place, entry),
            What::LvmVolgroup { .. } | What::LvmPartition { .. } => self.lvm(place, entry),
            What::DmCrypt { .. } => self.crypt(place, entry),
        };
        if let Some(id) = id {
            self.known.insert(&entry.id, id);
        }
    }

    /// The id of an earlier entry.
    fn on(&mut self, place: &str, name: &str) -> Option<Id> {
        let found = self.known.get(name).cloned();
        if found.is_none() {
            // An entry on a refused one gets no diagnostic of its own.
            let is_refused =
                self.config.iter().any(|entry| entry.id == name) && !self.builder.found.is_empty();
            if !is_refused {
                let what = format!("entry `{name}` not found above this one");
                self.builder.say(Code::NoSuchThing, place, what, "");
            }
        }
        found
    }

    fn all_on(&mut self, place: &str, names: &[String]) -> Option<Vec<Id>> {
        let found: Vec<_> = names.iter().map(|name| self.on(place, name)).collect();
        found.into_iter().collect()
    }

    fn disk(&mut self, place: &str, entry: &Entry, is_wiped: bool) -> Option<Id> {
        let What::Disk { serial, wwn, path, model, ptable, name, .. } = &entry.what else {
            return None;
        };
        if let Some(other) = ptable.as_ref().filter(|table| *table != "gpt") {
            let what = format!("tables of kind `{other}` are not made here");
            self.builder.say(Code::Unsupported, &format!("{place}.ptable"), what, "make it `gpt`");
            return None;
        }
        let mut matches =
            DiskMatch { serial: serial.clone(), model: model.clone(), ..DiskMatch::default() };
        match wwn.as_deref().map(|wwn| (wwn, wwn.strip_prefix("eui."))) {
            Some((_, Some(eui))) => matches.eui = Some(eui.to_owned()),
            Some((wwn, None)) => matches.wwn = Some(wwn.to_owned()),
            None => {}
        }
        if let Some(path) = path {
            add_link(&mut matches, path);
        }
        let id = self.builder.disk(name.as_deref().unwrap_or(&entry.id), matches);
        self.builder.wipe(&id, if is_wiped { &Wipe::ANY } else { &self.options.wipe });
        Some(id)
    }

    fn partition(&mut self, place: &str, entry: &Entry) -> Option<Id> {
        let What::Partition { device, size, number, flag, partition_name, partition_type } =
            &entry.what
        else {
            return None;
        };
        let disk = self.on(&format!("{place}.device"), device)?;
        let count = self.counts.entry(disk.clone()).or_default();
        *count += 1;
        let count = *count;
        let role = match flag.as_deref() {
            None | Some("" | "linux") => self.role(&entry.id),
            Some("boot" | "esp") => PartRole::Esp,
            Some("bios_grub") => PartRole::BiosBoot,
            Some("swap") => PartRole::Swap,
            Some("raid") => PartRole::Raid,
            Some("lvm") => PartRole::Lvm,
            Some("home") => PartRole::Home,
            Some(other) => {
                let what = format!("partitions with the flag `{other}` are not made here");
                self.builder.say(Code::Unsupported, &format!("{place}.flag"), what, "");
                return None;
            }
        };
        if number.is_some_and(|number| number != count) {
            let what = "partitions get their numbers in the order in which they are written";
            self.builder.say(Code::Unsupported, &format!("{place}.number"), what, "");
            return None;
        }
        let size = self.size(&format!("{place}.size"), size)?;
        let id = self.builder.id(&entry.id);
        self.builder.node(StorageNode::Part(Part {
            id: id.clone(),
            on: disk,
            size,
            role,
            type_guid: None,
            name: partition_name.clone(),
            attributes: Vec::new(),
            retain: None,
        }));
        if let Some(guid) = partition_type {
            self.builder.type_of_last(&format!("{place}.partition_type"), guid);
        }
        Some(id)
    }

    /// The role of a partition, by the entries on top of it.
    fn role(&self, id: &str) -> PartRole {
        let has = |devices: &[String]| devices.iter().any(|device| device == id);
        let of = |entry: &Entry| match &entry.what {
            What::Raid { devices, spare_devices, .. } => {
                (has(devices) || has(spare_devices)).then_some(PartRole::Raid)
            }
            What::LvmVolgroup { devices, .. } => has(devices).then_some(PartRole::Lvm),
            What::DmCrypt { volume, .. } => (volume == id).then_some(PartRole::Luks),
            What::Format { volume, fstype, .. } => {
                (volume == id && fstype == "swap").then_some(PartRole::Swap)
            }
            _ => None,
        };
        self.config.iter().find_map(of).unwrap_or_default()
    }

    fn format(&mut self, place: &str, entry: &Entry) -> Option<Id> {
        let What::Format { volume, fstype, label } = &entry.what else { return None };
        let on = self.on(&format!("{place}.volume"), volume)?;
        let mounts: Vec<_> = self
            .config
            .iter()
            .filter_map(|other| match &other.what {
                What::Mount { device, path, options } if *device == entry.id => {
                    Some((path.clone(), options.clone()))
                }
                _ => None,
            })
            .collect();
        if mounts.len() > 1 {
            let what = format!("`{}` is mounted at more than one place", entry.id);
            self.builder.say(Code::Unsupported, place, what, "mount it once");
            return None;
        }
        let (mount, options) = mounts.into_iter().next().unwrap_or_default();
        let kind = match fstype.as_str() {
            "fat" | "fat12" | "fat16" | "fat32" => "vfat",
            other => other,
        };
        let fs = FsInput {
            kind: Some(kind.to_owned()),
            mount: mount.filter(|mount| !mount.is_empty()),
            label: label.clone(),
            options,
            no_fstab: false,
            keep: false,
        };
        self.builder.fs(place, &on, &fs)
    }

    fn raid(&mut self, place: &str, entry: &Entry) -> Option<Id> {
        let What::Raid { name, raidlevel, devices, spare_devices } = &entry.what else {
            return None;
        };
        let level = match raidlevel {
            Value::String(level) => level.trim_start_matches("raid").to_owned(),
            other => other.to_string(),
        };
        let known =
            [MdLevel::Raid0, MdLevel::Raid1, MdLevel::Raid5, MdLevel::Raid6, MdLevel::Raid10];
        let found = known.into_iter().find(|known| known.as_str() == format!("raid{level}"));
        let Some(level) = found else {
            let what = "arrays of this level are not made here";
            let place = format!("{place}.raidlevel");
            self.builder.say(Code::Unsupported, &place, what, "there are 0, 1, 5, 6 and 10");
            return None;
        };
        let mut on = self.all_on(&format!("{place}.devices"), devices)?;
        on.extend(self.all_on(&format!("{place}.spare_devices"), spare_devices)?);
        let spares = u32::try_from(spare_devices.len()).unwrap_or(u32::MAX);
        let id = self.builder.id(&entry.id);
        let name = Some(name.clone());
        let retain = false;
        let md = Md { id: id.clone(), on, level, spares, name, retain };
        self.builder.node(StorageNode::Md(md));
        Some(id)
    }

    fn lvm(&mut self, place: &str, entry: &Entry) -> Option<Id> {
        let retain = false;
        match &entry.what {
            What::LvmVolgroup { name, devices } => {
                let mut on = Vec::new();
                for below in self.all_on(&format!("{place}.devices"), devices)? {
                    let id = self.builder.id(&format!("{below}-pv"));
                    on.push(id.clone());
                    let pv = Pv { id, on: below, metadata_size: None, retain };
                    self.builder.node(StorageNode::Pv(pv));
                }
                let id = self.builder.id(&entry.id);
                let vg = Vg { id: id.clone(), on, name: Some(name.clone()), retain };
                self.builder.node(StorageNode::Vg(vg));
                Some(id)
            }
            What::LvmPartition { name, volgroup, size } => {
                let on = self.on(&format!("{place}.volgroup"), volgroup)?;
                let size = match size {
                    None => Size::Rest,
                    Some(size) => self.size(&format!("{place}.size"), size)?,
                };
                let id = self.builder.id(&entry.id);
                let lv = Lv { id: id.clone(), on, size, name: Some(name.clone()), retain };
                self.builder.node(StorageNode::Lv(lv));
                Some(id)
            }
            _ => None,
        }
    }

    fn crypt(&mut self, place: &str, entry: &Entry) -> Option<Id> {
        let What::DmCrypt { volume, keyfile, key, dm_name } = &entry.what else { return None };
        let on = self.on(&format!("{place}.volume"), volume)?;
        // The message repeats neither value: readers of diagnostics may not know the secret.
        let secret = keyfile.as_ref().filter(|_| key.is_none()).and_then(|key| key.parse().ok());
        let Some(key) = secret else {
            let what = "its key is in the input, or in a file of another machine";
            let hint = "leave out `key`, and write `keyfile: secret://NAME`";
            self.builder.say(Code::Unsupported, place, what, hint);
            return None;
        };
        let id = self.builder.id(&entry.id);
        let luks = Luks { id: id.clone(), on, key, label: dm_name.clone(), retain: false };
        self.builder.node(StorageNode::Luks(luks));
        Some(id)
    }

    fn size(&mut self, place: &str, size: &Value) -> Option<Size> {
        let found = read_size(size);
        if found.is_none() {
            let what = "this is no size";
            self.builder.say(Code::BadValue, place, what, "write bytes, or like `10G` or `512M`");
        }
        found
    }
}

/// Bytes, or a number with a unit, where `10G` and `10GB` are 10 GiB; -1 is the remaining space.
fn read_size(size: &Value) -> Option<Size> {
    let text = match size {
        Value::String(text) => text.trim().to_owned(),
        other => other.to_string(),
    };
    if text == "-1" {
        return Some(Size::Rest);
    }
    let text = text.strip_suffix(['B', 'b']).unwrap_or(&text);
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let shift = match unit {
        "" => 0,
        "K" | "k" => 10,
        "M" | "m" => 20,
        "G" | "g" => 30,
        "T" | "t" => 40,
        _ => return None,
    };
    let bytes = number.parse::<u64>().ok()?.checked_mul(1 << shift)?;
    (1..=MAX_SIZE).contains(&bytes).then_some(Size::Exact(Bytes(bytes)))
}
