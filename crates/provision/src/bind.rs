//! Binding the disks of a document to the disks of a machine. A disk is bound if all its attributes
//! match exactly one disk; it is never chosen for being the only one left.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use crate::diagnostic::{Code, ProvisionDiagnostic};
use crate::document::{DiskMatch, Document, Id};
use crate::facts::{Bus, DiskFacts, Facts};

/// Disks of the document, each with the one of the machine that it is.
pub type Binding<'a> = BTreeMap<Id, &'a DiskFacts>;

/// Binds all disks of a document, or returns every reason against it.
pub fn bind<'a>(
    document: &Document,
    facts: &'a Facts,
) -> Result<Binding<'a>, Vec<ProvisionDiagnostic>> {
    let policy = &document.sections.policy;
    let mut bound = Binding::new();
    let mut found = Vec::new();
    for (id, disk) in document.sections.disks.iter() {
        let place = format!("disks.{id}.match");
        match one(&place, &disk.matches, facts, policy.allow_kernel_names) {
            Ok(facts) => drop(bound.insert(id.clone(), facts)),
            Err(diagnostic) => found.push(diagnostic),
        }
    }
    let mut owners: BTreeMap<&str, &Id> = BTreeMap::new();
    for (id, disk) in &bound {
        if let Some(other) = owners.insert(&disk.kernel_name, id) {
            let what = format!("it is the same disk as `{other}`");
            let place = format!("disks.{id}.match");
            let diagnostic =
                ProvisionDiagnostic::new(Code::Twice, place, what).evidence([identity(disk)]);
            found.push(diagnostic.hint("name each disk once"));
        }
    }
    if found.is_empty() { Ok(bound) } else { Err(found) }
}

fn one<'a>(
    place: &str,
    wanted: &DiskMatch,
    facts: &'a Facts,
    allow_kernel_names: bool,
) -> Result<&'a DiskFacts, ProvisionDiagnostic> {
    if is_weak(wanted) && !allow_kernel_names {
        let what = "a kernel name alone may be another disk the next time";
        let hint = "add its wwn, eui, serial or by_path, or set `policy.allow_kernel_names`";
        return Err(ProvisionDiagnostic::new(Code::WeakMatch, place, what).hint(hint));
    }
    // Disks that are never written to count, too: otherwise leaving them out would choose.
    let matching: Vec<_> =
        facts.disks.iter().filter(|disk| differences(wanted, disk).is_empty()).collect();
    match matching.as_slice() {
        [disk] => {
            if !allow_kernel_names {
                is_known_without_its_name(place, wanted, disk, facts)?;
            }
            is_target(place, wanted, disk, &facts.disks)?;
            Ok(disk)
        }
        [] => Err(nothing(place, wanted, facts)),
        several => {
            let names: Vec<_> = several.iter().map(|disk| disk.kernel_name.as_str()).collect();
            let what = format!("it is `{}`", names.join("` as well as `"));
            let seen = several.iter().map(|disk| identity(disk));
            let hint = "say more about the one that is meant: its serial or by_path";
            Err(ProvisionDiagnostic::new(Code::SeveralDisks, place, what).evidence(seen).hint(hint))
        }
    }
}

fn nothing(place: &str, wanted: &DiskMatch, facts: &Facts) -> ProvisionDiagnostic {
    let why = |disk: &DiskFacts| {
        format!("`{}` differs in {}", disk.kernel_name, differences(wanted, disk).join(", "))
    };
    let seen: Vec<_> = facts.disks.iter().map(why).collect();
    let what = "no disk matches";
    let found = ProvisionDiagnostic::new(Code::NoDisk, place, what);
    if seen.is_empty() {
        return found.evidence(["there is no disk at all".to_owned()]);
    }
    found.evidence(seen).hint("compare it with the facts of the machine")
}

/// Whether the match has only a kernel name.
fn is_weak(wanted: &DiskMatch) -> bool {
    wanted.kernel_name.is_some()
        && DiskMatch { kernel_name: None, ..wanted.clone() } == DiskMatch::default()
}

/// A kernel name must agree with the other attributes; it does not choose among several disks.
fn is_known_without_its_name(
    place: &str,
    wanted: &DiskMatch,
    disk: &DiskFacts,
    facts: &Facts,
) -> Result<(), ProvisionDiagnostic> {
    let lasting = DiskMatch { kernel_name: None, ..wanted.clone() };
    let others = facts.disks.iter().filter(|other| {
        other.kernel_name != disk.kernel_name && differences(&lasting, other).is_empty()
    });
    let others: Vec<&DiskFacts> = others.collect();
    if wanted.kernel_name.is_none() || others.is_empty() {
        return Ok(());
    }
    let names: Vec<_> = others.iter().map(|other| other.kernel_name.as_str()).collect();
    let what = format!(
        "only its kernel name tells `{}` from `{}`, and may be another disk's the next time",
        disk.kernel_name,
        names.join("` and `")
    );
    let seen = std::iter::once(disk).chain(others).map(identity);
    let hint = "add its wwn, eui, serial or by_path, or set `policy.allow_kernel_names`";
    Err(ProvisionDiagnostic::new(Code::WeakMatch, place, what).evidence(seen).hint(hint))
}

/// The lasting identities of disks, independent of their slots and kernel names. Disks without one
/// are left out.
pub fn lasting(ids: &BTreeSet<Id>, document: &Document, facts: &Facts) -> Vec<DiskMatch> {
    let bound = bind(document, facts).unwrap_or_default();
    ids.iter().filter_map(|id| bound.get(id)).filter_map(|disk| lasting_of(disk)).collect()
}

fn lasting_of(disk: &DiskFacts) -> Option<DiskMatch> {
    let said = |text: &Option<String>| {
        text.clone().filter(|text| !text.trim().is_empty() && !text.contains(char::is_control))
    };
    let none = DiskMatch::default();
    if let wwn @ Some(_) = said(&disk.wwn) {
        return Some(DiskMatch { wwn, ..none });
    }
    if let eui @ Some(_) = said(&disk.eui) {
        return Some(DiskMatch { eui, ..none });
    }
    // Makers number their disks each for themselves.
    let serial = said(&disk.serial)?;
    Some(DiskMatch { serial: Some(serial), model: said(&disk.model), ..none })
}

/// The attributes that a disk does not have as they are wanted.
pub fn differences(wanted: &DiskMatch, disk: &DiskFacts) -> Vec<&'static str> {
    fn same(is: Option<&String>, wanted: &str, normal: fn(&str) -> String) -> bool {
        is.is_some_and(|is| normal(is) == normal(wanted) && !normal(wanted).is_empty())
    }
    let mut differ = Vec::new();
    let mut compare = |name, is_same: Option<bool>| {
        if is_same == Some(false) {
            differ.push(name);
        }
    };
    let text = |wanted: &Option<String>, is: &Option<String>, normal: fn(&str) -> String| {
        wanted.as_ref().map(|wanted| same(is.as_ref(), wanted, normal))
    };
    compare("wwn", text(&wanted.wwn, &disk.wwn, world_wide));
    compare("eui", text(&wanted.eui, &disk.eui, world_wide));
    compare("serial", text(&wanted.serial, &disk.serial, words));
    compare("by_path", text(&wanted.by_path, &disk.by_path, path));
    compare("hctl", text(&wanted.hctl, &disk.hctl, words));
    compare("model", text(&wanted.model, &disk.model, words));
    let name = Some(disk.kernel_name.clone());
    compare("kernel_name", text(&wanted.kernel_name, &name, below_dev));
    compare("links", (!wanted.links.is_empty()).then(|| has_link(&wanted.links, disk)));
    compare("rotational", wanted.rotational.map(|wanted| wanted == disk.rotational));
    compare("bus", wanted.bus.map(|wanted| Some(wanted) == disk.bus));
    let in_range = wanted.size.map(|range| {
        range.min.is_none_or(|min| disk.size >= min.0)
            && range.max.is_none_or(|max| disk.size <= max.0)
    });
    compare("size", in_range);
    differ
}

/// Without udev links, compares the attributes that udev would have used.
fn has_link(wanted: &[String], disk: &DiskFacts) -> bool {
    wanted.iter().map(|link| below_dev(link)).any(|link| {
        disk.links.iter().any(|is| below_dev(is) == link)
            || link.strip_prefix("by-id/").is_some_and(|id| is_id(id, disk))
            || link
                .strip_prefix("by-path/")
                .is_some_and(|wanted| disk.by_path.as_deref().is_some_and(|is| path(is) == wanted))
    })
}

/// A name below `/dev/disk/by-id`: of a number that is the disk's alone, or of its model and
/// serial.
fn is_id(id: &str, disk: &DiskFacts) -> bool {
    const NUMBERS: [&str; 4] = ["wwn-", "nvme-eui.", "nvme-nvme.", "scsi-3"];
    const KINDS: [&str; 6] = ["ata-", "nvme-", "scsi-SATA_", "scsi-S", "usb-", "virtio-"];
    let mut numbers = disk.wwn.iter().chain(&disk.eui).map(|is| world_wide(is));
    let is_number = NUMBERS.iter().filter_map(|kind| id.strip_prefix(kind)).any(|number| {
        let number = world_wide(number);
        !number.is_empty() && numbers.any(|is| is == number)
    });
    let serial = disk.serial.as_deref().map(words).filter(|serial| !serial.is_empty());
    let model = disk.model.as_deref().map(words).unwrap_or_default();
    let is_named = KINDS.iter().filter_map(|kind| id.strip_prefix(kind)).any(|name| {
        let name = words(name);
        let before = serial.as_deref().and_then(|serial| name.strip_suffix(serial));
        // Of long models the kernel keeps the beginning.
        before.is_some_and(|before| {
            before.is_empty() || (before.ends_with(' ') && before.contains(&model))
        })
    });
    is_number || is_named
}

/// `0x5000C500…`, `naa.5000c500…` and `wwn-0x5000c500…` are one number.
fn world_wide(text: &str) -> String {
    let mut text = text.trim().to_ascii_lowercase();
    for prefix in ["wwn-", "naa.", "eui.", "nvme.", "t10.", "0x"] {
        if let Some(rest) = text.strip_prefix(prefix) {
            text = rest.to_owned();
        }
    }
    text.retain(|c| !"-: ".contains(c));
    text
}

/// Firmware pads with blanks, and udev writes underscores for them.
fn words(text: &str) -> String {
    text.replace('_', " ").split_whitespace().collect::<Vec<_>>().join(" ")
}

fn below_dev(text: &str) -> String {
    let text = text.trim();
    let text = text.strip_prefix("/dev/").unwrap_or(text);
    let text = text.strip_prefix("disk/").unwrap_or(text);
    text.to_owned()
}

fn path(text: &str) -> String {
    let text = below_dev(text);
    text.strip_prefix("by-path/").map(str::to_owned).unwrap_or(text)
}

/// Of disks that are never written to this one is none (S3, and legs of multipath).
fn is_target(
    place: &str,
    wanted: &DiskMatch,
    disk: &DiskFacts,
    all: &[DiskFacts],
) -> Result<(), ProvisionDiagnostic> {
    let name = &disk.kernel_name;
    let never = |why: &str, hint: &str| {
        let what = format!("disk `{name}` {why}");
        Err(ProvisionDiagnostic::new(Code::NeverTarget, place, what)
            .evidence([identity(disk)])
            .hint(hint))
    };
    if let Some(reason) = &disk.unreadable {
        let what = format!("disk `{name}` cannot be read: {reason}");
        let found = ProvisionDiagnostic::new(Code::NoDisk, place, what).evidence([identity(disk)]);
        return Err(found.hint("repair or replace the disk; no other disk is used in its place"));
    }
    if disk.is_boot_medium {
        return never("is the boot device of the running system", "start it from something else");
    }
    if disk.removable {
        return never("is removable", "removable disks are never written to");
    }
    if disk.read_only {
        return never("is read-only", "read-only disks are left alone");
    }
    if disk.is_virtual {
        return never("is a virtual medium", "virtual media are never written to");
    }
    if disk.bus == Some(Bus::Usb) && wanted.bus != Some(Bus::Usb) {
        return never("is connected by USB", "if it is meant, say `bus: usb`");
    }
    if ![512, 4096].contains(&disk.logical_sector) {
        let sector = disk.logical_sector;
        let what = format!("disk `{name}` has sectors of {sector} bytes, and I know 512 and 4096");
        return Err(
            ProvisionDiagnostic::new(Code::Firmware, place, what).evidence([identity(disk)])
        );
    }
    is_no_leg(place, disk, all)
}

fn is_no_leg(place: &str, disk: &DiskFacts, all: &[DiskFacts]) -> Result<(), ProvisionDiagnostic> {
    let name = &disk.kernel_name;
    let hint = "paths of multipath are no targets; take away the other paths while installing";
    if !disk.multipath_maps.is_empty() {
        let maps = disk.multipath_maps.join("`, `");
        let what = format!("disk `{name}` is a path of multipath map `{maps}`");
        let found = ProvisionDiagnostic::new(Code::MultipathLeg, place, what);
        return Err(found.evidence([identity(disk)]).hint(hint));
    }
    let twins: Vec<_> = all.iter().filter(|other| is_twin(disk, other)).collect();
    if twins.is_empty() {
        return Ok(());
    }
    let names: Vec<_> = twins.iter().map(|twin| twin.kernel_name.as_str()).collect();
    let what = format!("disks `{name}` and `{}` may be one and the same", names.join("`, `"));
    let seen = twins.iter().map(|twin| identity(twin));
    let found = ProvisionDiagnostic::new(Code::MultipathLeg, place, what);
    Err(found.evidence([identity(disk)]).evidence(seen).hint(hint))
}

/// Nothing that a disk says of itself tells the two apart.
fn is_twin(disk: &DiskFacts, other: &DiskFacts) -> bool {
    let normal = |text: &Option<String>, normal: fn(&str) -> String| text.as_deref().map(normal);
    let wwn = |disk: &DiskFacts| normal(&disk.wwn, world_wide).or(normal(&disk.eui, world_wide));
    let serial = |disk: &DiskFacts| normal(&disk.serial, words);
    let is_alike = disk.kernel_name != other.kernel_name
        && serial(disk) == serial(other)
        && disk.size == other.size;
    let has_one_number = wwn(disk).is_some() && wwn(disk) == wwn(other);
    is_alike && (has_one_number || has_lost_its_number(disk, other))
}

/// Of NVMe disks with one number the kernel leaves it to the one that it found first, and makes the
/// others one of what else they say: the next time, another one may be first. Namespaces of one
/// controller are not meant, they have their own.
fn has_lost_its_number(disk: &DiskFacts, other: &DiskFacts) -> bool {
    let is_made_up =
        |disk: &DiskFacts| disk.wwn.as_deref().is_some_and(|wwn| wwn.starts_with("nvme."));
    let controller = |disk: &DiskFacts| {
        disk.by_path
            .as_deref()
            .and_then(|path| path.rsplit_once("-nvme-"))
            .map(|(pci, _)| pci.to_owned())
    };
    (is_made_up(disk) || is_made_up(other))
        && disk.serial.is_some()
        && disk.model == other.model
        && controller(disk) != controller(other)
}

/// A disk in one line.
pub fn identity(disk: &DiskFacts) -> String {
    let mut text = format!("`{}`, {} bytes", disk.kernel_name, disk.size);
    let more = [
        ("wwn", &disk.wwn),
        ("eui", &disk.eui),
        ("serial", &disk.serial),
        ("model", &disk.model),
        ("by_path", &disk.by_path),
    ];
    for (name, value) in more {
        if let Some(value) = value {
            write!(text, ", {name} {value}").expect("writing to memory");
        }
    }
    text
}

#[cfg(test)]
#[expect(clippy::needless_pass_by_value, reason = "literals read better by value")]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::document::Entries;

    fn disk(name: &str) -> DiskFacts {
        DiskFacts {
            kernel_name: name.to_owned(),
            size: 1 << 40,
            logical_sector: 512,
            physical_sector: 4096,
            wwn: Some(format!("0x5000c500{name}")),
            serial: Some(format!("S-{name}")),
            model: Some("Model A".to_owned()),
            by_path: Some(format!("pci-{name}")),
            bus: Some(Bus::Sas),
            ..DiskFacts::default()
        }
    }

    #[test]
    fn stable_disk_id_is_the_first_unique_maker_id() {
        let of = |disk: DiskFacts| serde_json::to_value(lasting_of(&disk)).expect("plain");
        let bare = DiskFacts { wwn: None, ..disk("sda") };
        assert_eq!(of(disk("sda")), json!({"wwn": "0x5000c500sda"}));
        let eui = DiskFacts { eui: Some("0025".to_owned()), ..bare.clone() };
        assert_eq!(of(eui), json!({"eui": "0025"}));
        assert_eq!(of(bare.clone()), json!({"serial": "S-sda", "model": "Model A"}));
        assert_eq!(of(DiskFacts { serial: Some(" ".to_owned()), ..bare }), Value::Null);
    }

    fn machine(disks: impl IntoIterator<Item = DiskFacts>) -> Facts {
        Facts { disks: disks.into_iter().collect(), ..Facts::default() }
    }

    /// The binding of the only disk of a document.
    fn bound(matches: Value, facts: &Facts) -> Result<String, ProvisionDiagnostic> {
        bound_by(matches, &json!({}), facts)
    }

    fn bound_by(
        matches: Value,
        policy: &Value,
        facts: &Facts,
    ) -> Result<String, ProvisionDiagnostic> {
        let document = document(json!({"os": {"match": matches}}), policy);
        let mut found = match bind(&document, facts) {
            Ok(bound) => return Ok(bound.values().next().expect("one").kernel_name.clone()),
            Err(found) => found,
        };
        assert_eq!(found.len(), 1, "{found:#?}");
        Err(found.remove(0))
    }

    fn document(disks: Value, policy: &Value) -> Document {
        let document = json!({
            "api": "hoist/v1",
            "txn": "00000000-0000-0000-0000-000000000001",
            "sections": {"disks": disks, "policy": policy},
        });
        serde_json::from_value(document).expect("a document")
    }

    fn refused(matches: Value, facts: &Facts, code: Code) -> ProvisionDiagnostic {
        let found = bound(matches, facts).expect_err("refused");
        assert_eq!(found.code, code, "{found}");
        found
    }

    #[test]
    fn disk_is_bound_if_all_attributes_match() {
        let facts = machine([disk("sda"), disk("sdb")]);
        for matches in [
            json!({"wwn": "0x5000c500sdb"}),
            json!({"wwn": "naa.5000C500SDB"}),
            json!({"serial": " S-sdb "}),
            json!({"by_path": "/dev/disk/by-path/pci-sdb"}),
            json!({"by_path": "pci-sdb"}),
            json!({"wwn": "wwn-0x5000c500sdb", "model": "Model_A", "kernel_name": "/dev/sdb"}),
            json!({"links": ["by-id/gone", "disk/by-id/wwn-0x5000c500sdb"]}),
            json!({"serial": "S-sdb", "size": {"min": "1 TiB", "max": "1 TiB"}}),
        ] {
            assert_eq!(bound(matches.clone(), &facts), Ok("sdb".to_owned()), "{matches}");
        }
    }

    #[test]
    fn links_are_resolved_without_udev() {
        let facts = machine([
            DiskFacts { model: Some("WDC WD40EFRX-68W".to_owned()), ..disk("sda") },
            DiskFacts { model: Some("SAMSUNG MZ".to_owned()), ..disk("sdb") },
            DiskFacts { eui: Some("eui.0025385b71b0f5a2".to_owned()), ..disk("nvme0n1") },
        ]);
        for (link, name) in [
            ("by-id/ata-WDC_WD40EFRX-68WT0N0_S-sda", "sda"),
            ("disk/by-id/scsi-SATA_SAMSUNG_MZ_S-sdb", "sdb"),
            ("by-id/virtio-S-sdb", "sdb"),
            ("by-id/scsi-35000c500sdb", "sdb"),
            ("by-id/nvme-eui.0025385b71b0f5a2", "nvme0n1"),
            ("by-path/pci-sda", "sda"),
        ] {
            let found = bound(json!({"links": [link]}), &facts);
            assert_eq!(found, Ok(name.to_owned()), "{link}");
        }
        for link in [
            "by-id/ata-OTHER_MODEL_S-sda",
            "by-id/ata-SAMSUNG_MZ_xS-sdb",
            "by-id/ata-SAMSUNG_MZ_S-sdc",
            "by-id/wwn-",
            "by-id/ata-",
            "by-label/S-sda",
        ] {
            refused(json!({"links": [link]}), &facts, Code::NoDisk);
        }
    }

    #[test]
    fn kernel_name_does_not_choose_among_equal_disks() {
        let facts = machine([disk("sda"), disk("sdb")]);
        for alike in [json!({"bus": "sas"}), json!({"rotational": false, "model": "Model A"})] {
            let mut wanted = alike;
            wanted["kernel_name"] = json!("sdb");
            let found = bound(wanted.clone(), &facts).expect_err("it is a choice");
            assert_eq!(found.code, Code::WeakMatch, "{found}");
            assert_eq!(found.evidence.len(), 2, "{found}");
            let allowed = json!({"allow_kernel_names": true});
            assert_eq!(bound_by(wanted.clone(), &allowed, &facts), Ok("sdb".to_owned()));
            wanted["serial"] = json!("S-sdb");
            assert_eq!(bound(wanted, &facts), Ok("sdb".to_owned()));
        }
    }

    #[test]
    fn unreadable_disk_is_not_replaced_by_another() {
        let mut broken = disk("sda");
        broken.unreadable = Some("input/output error".to_owned());
        let facts = machine([broken, disk("sdb")]);
        let found = bound(json!({"bus": "sas"}), &facts).expect_err("it might be either");
        assert_eq!(found.code, Code::SeveralDisks, "{found}");
        let found = bound(json!({"serial": "S-sda"}), &facts).expect_err("nobody knows it");
        assert_eq!(found.code, Code::NoDisk, "{found}");
        assert!(found.diagnostic.message.contains("input/output error"), "{found}");
        assert_eq!(bound(json!({"serial": "S-sdb"}), &facts), Ok("sdb".to_owned()));
    }

    #[test]
    fn one_mismatching_attribute_refuses_the_disk() {
        let facts = machine([disk("sda"), disk("sdb")]);
        let found =
            refused(json!({"wwn": "0x5000c500sdb", "kernel_name": "sda"}), &facts, Code::NoDisk);
        assert_eq!(found.evidence, ["`sda` differs in wwn", "`sdb` differs in kernel_name"]);
        refused(json!({"serial": "S-sdb", "size": {"max": "1 GiB"}}), &facts, Code::NoDisk);
        refused(json!({"serial": "S-sdb", "bus": "nvme"}), &facts, Code::NoDisk);
        refused(json!({"eui": "1"}), &machine([]), Code::NoDisk);
    }

    #[test]
    fn duplicate_wwn_names_both_disks() {
        let mut twin = disk("sdb");
        twin.wwn = disk("sda").wwn;
        let facts = machine([disk("sda"), twin]);
        let found = refused(json!({"wwn": "0x5000c500sda"}), &facts, Code::SeveralDisks);
        assert!(found.diagnostic.message.contains("`sda` as well as `sdb`"), "{found}");
        assert_eq!(found.evidence.len(), 2);
        let told_apart = json!({"wwn": "0x5000c500sda", "serial": "S-sdb"});
        assert_eq!(bound(told_apart, &facts), Ok("sdb".to_owned()));
    }

    #[test]
    fn contradicting_path_and_name_match_no_disk() {
        // Two drives with one WWN, of which the name says one and the path the other.
        let nvme = |name: &str, path: &str| DiskFacts {
            wwn: Some("eui.0025385000000001".to_owned()),
            by_path: Some(path.to_owned()),
            ..disk(name)
        };
        let facts = machine([
            nvme("nvme0n1", "pci-0000:04:00.0-nvme-1"),
            nvme("nvme1n1", "pci-0000:05:00.0-nvme-1"),
        ]);
        let matches = json!({"by_path": "pci-0000:05:00.0-nvme-1", "kernel_name": "nvme0n1"});
        refused(matches, &facts, Code::NoDisk);
    }

    #[test]
    fn kernel_name_alone_needs_the_policy() {
        let facts = machine([disk("sda")]);
        refused(json!({"kernel_name": "sda"}), &facts, Code::WeakMatch);
        let allowed = json!({"allow_kernel_names": true});
        assert_eq!(bound_by(json!({"kernel_name": "sda"}), &allowed, &facts), Ok("sda".to_owned()));
    }

    #[test]
    fn unwritable_disk_is_an_error_and_not_skipped() {
        let removable = DiskFacts { removable: true, ..disk("sdb") };
        let facts = machine([disk("sda"), removable]);
        refused(json!({"model": "Model A"}), &facts, Code::SeveralDisks);
        refused(json!({"bus": "sas", "rotational": false}), &facts, Code::SeveralDisks);
    }

    #[test]
    fn boot_removable_read_only_and_virtual_disks_are_never_bound() {
        let of = |change: fn(&mut DiskFacts)| {
            let mut disk = disk("sda");
            change(&mut disk);
            machine([disk])
        };
        for facts in [
            of(|disk| disk.is_boot_medium = true),
            of(|disk| disk.removable = true),
            of(|disk| disk.read_only = true),
            of(|disk| disk.is_virtual = true),
            of(|disk| disk.bus = Some(Bus::Usb)),
        ] {
            refused(json!({"serial": "S-sda"}), &facts, Code::NeverTarget);
            let allowed = json!({"allow_kernel_names": true, "allow_root_change": true});
            let found = bound_by(json!({"kernel_name": "sda"}), &allowed, &facts);
            assert_eq!(found.expect_err("never").code, Code::NeverTarget);
        }
        let usb = of(|disk| disk.bus = Some(Bus::Usb));
        assert_eq!(bound(json!({"serial": "S-sda", "bus": "usb"}), &usb), Ok("sda".to_owned()));
        let odd = of(|disk| disk.logical_sector = 520);
        refused(json!({"serial": "S-sda"}), &odd, Code::Firmware);
    }

    #[test]
    fn paths_of_multipath_are_no_targets() {
        let leg = DiskFacts { multipath_maps: vec!["mpatha".to_owned()], ..disk("sda") };
        refused(json!({"serial": "S-sda"}), &machine([leg]), Code::MultipathLeg);
        let one = disk("sda");
        let other = DiskFacts {
            kernel_name: "sdb".to_owned(),
            by_path: Some("pci-other".to_owned()),
            ..disk("sda")
        };
        let facts = machine([one, other]);
        let found = refused(json!({"by_path": "pci-other"}), &facts, Code::MultipathLeg);
        assert!(found.diagnostic.message.contains("`sdb` and `sda`"), "{found}");
    }

    #[test]
    fn unstable_disk_number_does_not_identify_a_disk() {
        let nvme = |at: u8, wwn: &str| DiskFacts {
            wwn: Some(wwn.to_owned()),
            serial: Some("SAME".to_owned()),
            by_path: Some(format!("pci-0000:00:0{at}.0-nvme-1")),
            ..disk(&format!("nvme{at}n1"))
        };
        let made_up = "nvme.1b36-53414d45-51454d55-00000001";
        let facts = machine([nvme(4, "uuid.1"), nvme(5, made_up), nvme(6, made_up)]);
        refused(json!({"wwn": "uuid.1"}), &facts, Code::MultipathLeg);
        let spaces = machine([
            nvme(4, "eui.1"),
            DiskFacts {
                by_path: Some("pci-0000:00:04.0-nvme-2".to_owned()),
                ..nvme(5, "nvme.1b36-53414d45-51454d55-00000002")
            },
        ]);
        assert_eq!(bound(json!({"wwn": "eui.1"}), &spaces), Ok("nvme4n1".to_owned()));
    }

    #[test]
    fn two_document_disks_bind_to_distinct_disks() {
        let disks =
            json!({"a": {"match": {"serial": "S-sda"}}, "b": {"match": {"by_path": "pci-sda"}}});
        let document = document(disks, &json!({}));
        let facts = machine([disk("sda")]);
        let found = bind(&document, &facts).expect_err("one disk");
        assert_eq!((found.len(), found[0].code), (1, Code::Twice));
    }

    /// Disks that share many attributes, as in a purchase of one model.
    fn any_disk() -> impl Strategy<Value = DiskFacts> {
        let flags = (any::<[bool; 5]>(), 0..3_u8, 0..3_u8, 0..2_u8);
        flags.prop_map(|([removable, read_only, boot, is_virtual, leg], wwn, serial, path)| {
            DiskFacts {
                wwn: (wwn > 0).then(|| wwn.to_string()),
                serial: (serial > 0).then(|| serial.to_string()),
                by_path: Some(path.to_string()),
                removable,
                read_only,
                is_boot_medium: boot,
                is_virtual,
                multipath_maps: if leg { vec!["m".to_owned()] } else { Vec::new() },
                ..disk("x")
            }
        })
    }

    proptest! {
        #[test]
        fn bound_disk_matches_uniquely_and_is_writable(
            disks in proptest::collection::vec(any_disk(), 0..6),
            wwn in proptest::option::of(0..3_u8),
            serial in proptest::option::of(0..3_u8),
            path in proptest::option::of(0..2_u8),
            turn in 0..6_usize,
        ) {
            let named = |(at, disk): (usize, DiskFacts)| DiskFacts { kernel_name: format!("sd{at}"), ..disk };
            let mut facts = machine(disks.into_iter().enumerate().map(named));
            let text = |value: Option<u8>| value.map(|value| value.to_string());
            let matches = DiskMatch {
                wwn: text(wwn), serial: text(serial), by_path: text(path), ..DiskMatch::default()
            };
            let mut document = document(json!({}), &json!({}));
            let id: Id = "os".parse().expect("an id");
            let disk = crate::document::Disk { matches: matches.clone(), wipe: crate::document::Wipe::default() };
            document.sections.disks = Entries([(id.clone(), disk)].into());
            let agreeing: Vec<_> = facts.disks.iter().filter(|disk| {
                (wwn.is_none() || disk.wwn == matches.wwn)
                    && (serial.is_none() || disk.serial == matches.serial)
                    && (path.is_none() || disk.by_path == matches.by_path)
            }).map(|disk| disk.kernel_name.clone()).collect();
            let first = bind(&document, &facts).map(|bound| bound[&id].clone());
            if let Ok(disk) = &first {
                prop_assert_eq!(&agreeing, &vec![disk.kernel_name.clone()]);
                prop_assert!(!disk.removable && !disk.read_only && !disk.is_boot_medium && !disk.is_virtual);
                prop_assert!(disk.multipath_maps.is_empty());
            }
            // The order in which disks are found says nothing.
            let turn = turn % facts.disks.len().max(1);
            facts.disks.rotate_left(turn);
            let second = bind(&document, &facts).map(|bound| bound[&id].clone());
            prop_assert_eq!(first.ok(), second.ok());
        }
    }
}
