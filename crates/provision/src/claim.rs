//! Claims: partitions that actions need, added to the document before the layout.
//!
//! The layout does not know about config drives: the action that makes a config drive claims a
//! partition, and the claim becomes a storage node like the declared ones.

use std::collections::BTreeMap;

use hoist_engine::action::{Contribution, Description, Document as Shared, Failure, Planner};
use hoist_engine::contribute::{ContributeError, merge};
use hoist_engine::record::FailureKind;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::diagnostic::{Code, ProvisionDiagnostic};
use crate::document::size::MIB;
use crate::document::{
    Boot, BootFirmware, BootLoader, Bytes, ConfigDrive, Content, Document, Fs, FsKind, Id, Part,
    PartRole, Sections, Size, StorageNode, check,
};
use crate::facts::{Facts, Firmware};
use crate::layout::disks_of_mount;

/// The section that claims are entries of. No document has it: it exists between asking and
/// resolving.
const CLAIMS: &str = "claims";

/// Smallest config drive, including the tables of FAT.
const CONFIG_DRIVE_LEAST: u64 = 8 * MIB;
/// Most bytes that a file or a directory occupies beyond its size.
const FAT_CLUSTER: u64 = 32 * 1024;
/// Kernels and initramfs of two systems have room in it, and FAT32 enough clusters on 4Kn disks.
const ESP_SIZE: u64 = 512 * MIB;
/// GRUB's core has 100 KiB.
const BIOS_BOOT_SIZE: u64 = MIB;

/// A partition that an action needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StorageClaim {
    pub role: PartRole,
    pub size: Bytes,
    /// In the table; the claim's id unless said otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    pub placement: Placement,
    pub order: Order,
    /// The file system on the partition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fs: Option<ClaimedFs>,
}

/// On which disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Placement {
    /// The disk of the file system with this mount point; of several disks the first by id.
    OnDiskOf(String),
    Disk(Id),
}

/// The position relative to the declared partitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    First,
    Last,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClaimedFs {
    pub id: Id,
    pub kind: FsKind,
    pub label: String,
}

/// The built-in actions that claim partitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BuiltinClaim {
    ConfigDrive,
    Boot,
}

impl BuiltinClaim {
    pub const ALL: [Self; 2] = [Self::ConfigDrive, Self::Boot];

    fn name(self) -> &'static str {
        match self {
            Self::ConfigDrive => "config_drive",
            Self::Boot => "boot",
        }
    }
}

impl Planner for BuiltinClaim {
    fn describe(&self) -> Description {
        let name = self.name();
        let contributes: &[&str] = match self {
            Self::ConfigDrive => &[CLAIMS, "images"],
            Self::Boot => &[CLAIMS],
        };
        let owned = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        Description {
            name: name.to_owned(),
            reads: owned(&[name, "storage", "disks", "policy", "images"]),
            contributes: owned(contributes),
            ..Description::default()
        }
    }

    fn contribute(&self, document: &Shared, facts: &Value) -> Result<Vec<Contribution>, Failure> {
        let sections = sections(document).map_err(|error| failure(&error.to_string()))?;
        match self {
            Self::ConfigDrive => config_drive(&sections),
            Self::Boot => {
                let firmware = Firmware::deserialize(&facts["firmware"]).unwrap_or_default();
                boot(&sections, firmware)
            }
        }
    }
}

fn failure(reason: &str) -> Failure {
    Failure { kind: FailureKind::Precheck, reason: reason.to_owned() }
}

fn sections(document: &Shared) -> Result<Sections, serde_json::Error> {
    let mut sections = document.0.clone();
    sections.remove(CLAIMS);
    serde_json::from_value(Value::Object(sections.into_iter().collect()))
}

fn claim(id: &str, claim: &StorageClaim) -> Contribution {
    let value = serde_json::to_value(claim).expect("plain values");
    Contribution { section: CLAIMS.to_owned(), id: id.to_owned(), value }
}

fn part_of(sections: &Sections, role: PartRole) -> Option<&Part> {
    sections.storage.iter().find_map(|node| match node {
        StorageNode::Part(part) if part.role == role => Some(part),
        _ => None,
    })
}

fn has_root(sections: &Sections) -> bool {
    let mut fss = sections.storage.iter().filter_map(StorageNode::as_fs);
    fss.any(|fs| fs.mount.as_deref() == Some("/"))
}

/// A volume behind all other partitions on the disk of the root, and the image that fills it.
fn config_drive(sections: &Sections) -> Result<Vec<Contribution>, Failure> {
    let Some(drive) = &sections.config_drive else { return Ok(Vec::new()) };
    let size = Bytes(config_drive_size(drive));
    let mut asked = Vec::new();
    let target = match part_of(sections, PartRole::ConfigDrive) {
        Some(part) => part.id.to_string(),
        None if !has_root(sections) => {
            return Err(failure(
                "no file system is mounted at `/`, so nothing says which disk the config drive is \
                 on; add a partition of role `config_drive`",
            ));
        }
        None => {
            let wanted = StorageClaim {
                role: PartRole::ConfigDrive,
                size,
                name: Some("config-2".to_owned()),
                placement: Placement::OnDiskOf("/".to_owned()),
                order: Order::Last,
                fs: None,
            };
            asked.push(claim("config-drive", &wanted));
            "config-drive".to_owned()
        }
    };
    let image = json!({
        "made_by": "config_drive", "target": target,
        "format": "raw", "compression": "none", "size": size,
    });
    let section = "images".to_owned();
    let id = "config-drive".to_owned();
    asked.push(Contribution { section, id, value: image });
    Ok(asked)
}

/// With room for every file and every directory on the way to it.
fn config_drive_size(drive: &ConfigDrive) -> u64 {
    let of = |(path, content): (&String, &Content)| {
        let bytes = match content {
            Content::Text(text) => text.len() as u64,
            Content::Secret(_) | Content::Fstab | Content::Crypttab => 0,
        };
        let directories = path.split('/').count() as u64;
        bytes.div_ceil(FAT_CLUSTER) * FAT_CLUSTER + directories * FAT_CLUSTER
    };
    let content: u64 = drive.files.iter().map(of).sum();
    (content + CONFIG_DRIVE_LEAST).div_ceil(MIB) * MIB
}

/// The partitions that the firmware needs, before all other partitions on the disk of the root.
fn boot(sections: &Sections, firmware: Firmware) -> Result<Vec<Contribution>, Failure> {
    let Some(boot) = &sections.boot else { return Ok(Vec::new()) };
    // An image of a whole system brings its own boot files.
    if !has_root(sections) {
        return Ok(Vec::new());
    }
    let (bios, uefi) = started_by(boot, firmware);
    if bios && !uefi && matches!(boot.loader, Some(BootLoader::SystemdBoot | BootLoader::Uki)) {
        return Err(failure("BIOS starts neither systemd-boot nor a UKI; take `grub`"));
    }
    let first = |role, size, fs| StorageClaim {
        role,
        size,
        name: None,
        placement: Placement::OnDiskOf("/".to_owned()),
        order: Order::First,
        fs,
    };
    let mut asked = Vec::new();
    if bios && part_of(sections, PartRole::BiosBoot).is_none() {
        asked.push(claim("bios-boot", &first(PartRole::BiosBoot, Bytes(BIOS_BOOT_SIZE), None)));
    }
    if uefi && part_of(sections, PartRole::Esp).is_none() {
        let id = "esp-fs".parse().map_err(|_| failure("`esp-fs` is an id"))?;
        let fs = ClaimedFs { id, kind: FsKind::Vfat, label: "ESP".to_owned() };
        let size = boot.esp_size.unwrap_or(Bytes(ESP_SIZE));
        asked.push(claim("esp", &first(PartRole::Esp, size, Some(fs))));
    }
    let has_volume =
        [PartRole::Boot, PartRole::Esp].into_iter().any(|role| part_of(sections, role).is_some());
    // GRUB's core alone has no room for a kernel.
    if bios && !uefi && !has_volume && boot.files.kernel.is_some() {
        let id = "boot-fs".parse().map_err(|_| failure("`boot-fs` is an id"))?;
        let fs = ClaimedFs { id, kind: FsKind::Vfat, label: "BOOT".to_owned() };
        let size = boot.esp_size.unwrap_or(Bytes(ESP_SIZE));
        asked.push(claim("boot", &first(PartRole::Boot, size, Some(fs))));
    }
    Ok(asked)
}

/// By BIOS, by UEFI, or by both.
pub fn started_by(boot: &Boot, firmware: Firmware) -> (bool, bool) {
    match (boot.firmware, firmware) {
        (BootFirmware::Bios, _) | (BootFirmware::AsStarted, Firmware::Bios) => (true, false),
        (BootFirmware::Uefi, _) | (BootFirmware::AsStarted, Firmware::Uefi) => (false, true),
        (BootFirmware::Both, _) => (true, true),
    }
}

/// The document with the claims of these actions.
pub fn resolve<'a, C: Planner + ?Sized + 'a>(
    document: &Document,
    claiming: impl IntoIterator<Item = &'a C>,
    facts: &Facts,
) -> Result<Document, Vec<ProvisionDiagnostic>> {
    let bug = |error: serde_json::Error| {
        vec![ProvisionDiagnostic::new(Code::Contribution, "", error.to_string())]
    };
    let value = serde_json::to_value(&document.sections).map_err(bug)?;
    let shared: Shared = serde_json::from_value(value).map_err(bug)?;
    let facts = serde_json::to_value(facts).map_err(bug)?;
    let merged = merge(&shared, claiming, &facts).map_err(|error| vec![of_merging(&error)])?;
    let wrong = |error: serde_json::Error| {
        let what = format!("what actions ask for cannot be read: {error}");
        vec![ProvisionDiagnostic::new(Code::Contribution, CLAIMS, what)]
    };
    let claims = merged.0.get(CLAIMS).cloned().unwrap_or_else(|| json!({}));
    let claims: BTreeMap<Id, StorageClaim> = serde_json::from_value(claims).map_err(wrong)?;
    let mut resolved = Document { sections: sections(&merged).map_err(wrong)?, ..document.clone() };
    let mut found = Vec::new();
    for (id, claim) in &claims {
        if let Err(diagnostic) = put(&mut resolved, document, id, claim) {
            found.push(diagnostic);
        }
    }
    found.extend(check(&resolved));
    if found.is_empty() { Ok(resolved) } else { Err(found) }
}

fn of_merging(error: &ContributeError) -> ProvisionDiagnostic {
    let what = match error {
        ContributeError::Failed { action, source } => format!("action `{action}`: {source}"),
        other => other.to_string(),
    };
    ProvisionDiagnostic::new(Code::Contribution, "flow.actions", what)
}

/// Turns a claim into a node. The original document decides its position, so that claims do not
/// depend on each other.
fn put(
    resolved: &mut Document,
    written: &Document,
    id: &Id,
    claim: &StorageClaim,
) -> Result<(), ProvisionDiagnostic> {
    let wrong =
        |what: String| ProvisionDiagnostic::new(Code::Contribution, format!("{CLAIMS}.{id}"), what);
    let disk = match &claim.placement {
        Placement::Disk(disk) => disk.clone(),
        Placement::OnDiskOf(mount) => disks_of_mount(written, mount)
            .into_iter()
            .next()
            .ok_or_else(|| wrong(format!("nothing is mounted at `{mount}`")))?,
    };
    let part = Part {
        id: id.clone(),
        on: disk,
        size: Size::Exact(claim.size),
        role: claim.role,
        type_guid: None,
        name: claim.name.clone(),
        attributes: Vec::new(),
        retain: None,
    };
    let storage = &mut resolved.sections.storage;
    let node = StorageNode::Part(part);
    match claim.order {
        Order::First => {
            // Behind the claims that were first before it.
            let is_written = |node: &StorageNode| written.storage(node.id()).is_some();
            let at = storage.iter().position(is_written).unwrap_or(storage.len());
            storage.insert(at, node);
        }
        Order::Last => storage.push(node),
    }
    if let Some(ClaimedFs { id: fs, kind, label }) = &claim.fs {
        storage.push(StorageNode::Fs(Fs {
            id: fs.clone(),
            on: id.clone(),
            kind: *kind,
            label: Some(label.clone()),
            mount: None,
            options: Vec::new(),
            no_fstab: false,
            retain: None,
        }));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::read;
    use crate::facts::DiskFacts;
    use crate::layout::{Work, plan};

    fn document(sections: &Value) -> Document {
        let mut all = json!({
            "node": {"id": "n1"},
            "disks": {
                "a": {"match": {"serial": "S-sda"}},
                "b": {"match": {"serial": "S-sdb"}},
            },
            "storage": [
                {"part": {"id": "other", "on": "a", "size": "rest"}},
                {"part": {"id": "root", "on": "b", "size": "rest"}},
                {"part": {"id": "swap", "on": "b", "size": "1 GiB"}},
                {"fs": {"id": "root-fs", "on": "root", "kind": "ext4", "mount": "/"}},
            ],
        });
        for (name, section) in sections.as_object().expect("an object") {
            all[name] = section.clone();
        }
        let txn = "00000000-0000-0000-0000-000000000001";
        let text = json!({"api": "hoist/v1", "txn": txn, "sections": all}).to_string();
        read("doc", text.as_bytes()).unwrap_or_else(|found| panic!("{found:#?}"))
    }

    fn facts(firmware: Firmware) -> Facts {
        let disk = |name: &str| DiskFacts {
            kernel_name: name.to_owned(),
            serial: Some(format!("S-{name}")),
            size: 8 << 30,
            logical_sector: 512,
            ..DiskFacts::default()
        };
        Facts { firmware, disks: vec![disk("sda"), disk("sdb")], ..Facts::default() }
    }

    fn resolved(
        sections: &Value,
        firmware: Firmware,
    ) -> Result<Document, Vec<ProvisionDiagnostic>> {
        resolve(&document(sections), &BuiltinClaim::ALL, &facts(firmware))
    }

    /// Partitions of the root's disk, in the order of the table.
    fn on_root_disk(document: &Document, firmware: Firmware) -> Vec<String> {
        let layout = plan(document, &facts(firmware)).unwrap_or_else(|found| panic!("{found:#?}"));
        let Work::Table(table) = &layout.disks[1].work else { panic!("a table") };
        let mut parts = table.partitions.clone();
        parts.sort_by_key(|part| part.start);
        parts.into_iter().map(|part| part.id.to_string()).collect()
    }

    fn drive() -> Value {
        json!({"config_drive": {"files": {"openstack/latest/meta_data.json": {"text": "{}"}}}})
    }

    #[test]
    fn config_drive_is_the_last_partition_of_the_root_disk() {
        let document = resolved(&drive(), Firmware::Bios).expect("a document");
        assert_eq!(on_root_disk(&document, Firmware::Bios), ["root", "swap", "config-drive"]);
        let (id, image) = document.sections.images.iter().next().expect("an image");
        assert_eq!((id.as_str(), image.target.as_str()), ("config-drive", "config-drive"));
        assert_eq!(image.made_by.as_deref(), Some("config_drive"));
    }

    #[test]
    fn document_without_the_section_claims_nothing() {
        let written = document(&json!({}));
        assert_eq!(resolved(&json!({}), Firmware::Uefi).expect("a document"), written);
    }

    #[test]
    fn actions_that_are_not_queued_keep_their_claims() {
        let mut sections = drive();
        sections["boot"] = json!({});
        sections["flow"] = json!({"actions": ["disks"]});
        let resolved = resolved(&sections, Firmware::Bios).expect("a document");
        let expected = ["bios-boot", "root", "swap", "config-drive"];
        assert_eq!(on_root_disk(&resolved, Firmware::Bios), expected);
    }

    #[test]
    fn declared_partition_satisfies_the_claim() {
        let mut sections = drive();
        sections["storage"] = json!([
            {"part": {"id": "mine", "on": "a", "size": "16 MiB", "role": "config_drive"}},
        ]);
        let document = resolved(&sections, Firmware::Bios).expect("a document");
        assert_eq!(document.sections.storage.len(), 1);
        let (_, image) = document.sections.images.iter().next().expect("an image");
        assert_eq!(image.target.as_str(), "mine");
    }

    #[test]
    fn config_drive_size_follows_from_its_files() {
        let with = |bytes: usize| {
            let text = Content::Text("x".repeat(bytes));
            ConfigDrive { files: [("a/b".to_owned(), text)].into() }
        };
        assert_eq!(config_drive_size(&ConfigDrive::default()), 8 * MIB);
        assert_eq!(config_drive_size(&with(3_000_000)), 11 * MIB);
    }

    #[test]
    fn boot_claims_firmware_partitions_first() {
        for (firmware, boot, first) in [
            (Firmware::Bios, json!({}), &["bios-boot"][..]),
            (Firmware::Uefi, json!({}), &["esp"][..]),
            (Firmware::Bios, json!({"firmware": "both"}), &["bios-boot", "esp"][..]),
            (Firmware::Uefi, json!({"firmware": "uefi"}), &["esp"][..]),
        ] {
            let mut sections = drive();
            sections["boot"] = boot;
            let document = resolved(&sections, firmware).expect("a document");
            let expected = [first, &["root", "swap", "config-drive"]].concat();
            assert_eq!(on_root_disk(&document, firmware), expected);
            let has_fs = document.storage(&"esp-fs".parse().unwrap()).is_some();
            assert_eq!(has_fs, first.contains(&"esp"));
        }
    }

    #[test]
    fn impossible_claim_is_reported_with_its_claimant() {
        let told = |sections: &Value| {
            let found = resolved(sections, Firmware::Bios).expect_err("refused");
            assert_eq!(found[0].code, Code::Contribution, "{}", found[0]);
            found[0].diagnostic.message.clone()
        };
        let mut rootless = drive();
        rootless["storage"] = json!([]);
        assert!(told(&rootless).contains("`config_drive`"));
        assert!(told(&json!({"boot": {"loader": "uki"}})).contains("`boot`"));
        // The document uses this id for another node.
        let mut taken = drive();
        taken["images"] = json!({"config-drive": {"sources": ["https://h/i"], "target": "other"}});
        assert!(told(&taken).contains("where the document has another value"));
    }

    #[test]
    fn action_run_alone_finds_its_claim_or_asks_for_disks() {
        let mut alone = drive();
        alone["flow"] = json!({"actions": ["config_drive", "images"]});
        let alone = resolved(&alone, Firmware::Bios).expect("a document");
        let found = plan(&alone, &facts(Firmware::Bios)).expect_err("empty disks");
        assert!(found.iter().all(|found| found.code == Code::NotAsRetained), "{found:#?}");
        assert!(found[0].diagnostic.hint.as_deref().expect("a hint").starts_with("needs: disks"));
        // Once the tables exist, only the claimed volumes are written.
        let whole = resolved(&drive(), Firmware::Bios).expect("a document");
        let mut later = facts(Firmware::Bios);
        let made = plan(&whole, &later).expect("a plan");
        for (disk, made) in later.disks.iter_mut().zip(&made.disks) {
            let Work::Table(table) = &made.work else { panic!("a table") };
            disk.table = Some(table.written());
        }
        let layout = plan(&alone, &later).unwrap_or_else(|found| panic!("{found:#?}"));
        let (_, drive) = layout.partition(&"config-drive".parse().unwrap()).expect("it");
        let area = crate::metadata_area::MetadataArea::before(None).expect("it has room").range();
        assert_eq!(layout.disks[1].writable, [area.clone(), drive.range()]);
        assert_eq!(layout.disks[0].writable.as_slice(), std::slice::from_ref(&area));
        assert!(layout.stack.iter().all(|plan| plan.retained));
    }

    #[test]
    fn conflicting_claims_name_both_actions() {
        struct Other;
        impl Planner for Other {
            fn describe(&self) -> Description {
                Description {
                    name: "vendor".to_owned(),
                    contributes: vec![CLAIMS.to_owned()],
                    ..Description::default()
                }
            }
            fn contribute(&self, _: &Shared, _: &Value) -> Result<Vec<Contribution>, Failure> {
                let wanted = StorageClaim {
                    role: PartRole::Data,
                    size: Bytes(MIB),
                    name: None,
                    placement: Placement::Disk("a".parse().unwrap()),
                    order: Order::First,
                    fs: None,
                };
                Ok(vec![claim("config-drive", &wanted)])
            }
        }
        let queued: [&dyn Planner; 2] = [&BuiltinClaim::ConfigDrive, &Other];
        let found = resolve(&document(&drive()), queued, &facts(Firmware::Bios));
        let found = found.expect_err("a conflict");
        assert!(
            found[0].diagnostic.message.contains("`config_drive` and `vendor`"),
            "{}",
            found[0]
        );
        let alone: [&dyn Planner; 1] = [&Other];
        let document = resolve(&document(&drive()), alone, &facts(Firmware::Bios)).expect("alone");
        assert_eq!(document.sections.storage[0].id().as_str(), "config-drive");
    }
}
