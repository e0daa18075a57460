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
    let wanted = &decisive(wanted, facts);
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
            let hint = "add its `serial` or `by_path`";
            Err(ProvisionDiagnostic::new(Code::SeveralDisks, place, what).evidence(seen).hint(hint))
        }
    }
}

/// The attributes that must agree: with `links_first`, links below `by-id` that lead to one disk
/// only replace the names that change.
fn decisive(wanted: &DiskMatch, facts: &Facts) -> DiskMatch {
    let mut wanted = wanted.clone();
    if !wanted.links_first {
        return wanted;
    }
    let is_by_id = |link: &&String| below_dev(link).starts_with("by-id/");
    let by_id: Vec<String> = wanted.links.iter().filter(is_by_id).cloned().collect();
    let linked = facts.disks.iter().filter(|disk| has_link(&by_id, disk)).count();
    if linked == 1 {
        let is_known = |path: &String| facts.disks.iter().any(|disk| has_path(path, disk));
        wanted.by_path = wanted.by_path.filter(is_known);
        wanted.kernel_name = None;
        wanted.links = by_id;
    }
    wanted
}

fn nothing(place: &str, wanted: &DiskMatch, facts: &Facts) -> ProvisionDiagnostic {
    let why = |disk: &DiskFacts| {
        format!("`{}` differs in {}", disk.kernel_name, differences(wanted, disk).join(", "))
    };
    let seen: Vec<_> = facts.disks.iter().map(why).collect();
    let what = "no disk matches";
    let found = ProvisionDiagnostic::new(Code::NoDisk, place, what);
    let is_array = |name: &String| below_dev(name).starts_with("md");
    if wanted.kernel_name.as_ref().is_some_and(is_array) {
        let hint = "arrays of firmware RAID are not disks here: turn firmware RAID off and name the \
                    disks below it";
        return found.evidence(seen).hint(hint);
    }
    if seen.is_empty() {
        return found.evidence(["the machine has no disk".to_owned()]);
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
    compare("by_path", wanted.by_path.as_ref().map(|wanted| has_path(wanted, disk)));
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
            || (link.starts_with("by-path/") && has_path(&link, disk))
    })
}

/// A name below `/dev/disk/by-id`: of a number that is the disk's alone, or of its model and
/// serial.
fn is_id(id: &str, disk: &DiskFacts) -> bool {
    const NUMBERS: [&str; 6] =
        ["wwn-", "nvme-eui.", "nvme-nvme.", "nvme-uuid.", "scsi-2", "scsi-3"];
    const KINDS: [&str; 9] = [
        "ata-",
        "nvme-",
        "scsi-SATA_",
        "scsi-S",
        "scsi-0",
        "scsi-1ATA_",
        "mmc-",
        "usb-",
        "virtio-",
    ];
    let mut numbers = disk.wwn.iter().chain(&disk.eui).map(|is| world_wide(is));
    let is_number = NUMBERS.iter().filter_map(|kind| id.strip_prefix(kind)).any(|number| {
        let number = world_wide(number);
        !number.is_empty() && numbers.any(|is| is == number)
    });
    let serial = disk.serial.as_deref().map(as_udev).filter(|serial| !serial.is_empty());
    let model = disk.model.as_deref().map(as_udev).unwrap_or_default();
    let is_named = KINDS.iter().filter_map(|kind| id.strip_prefix(kind)).any(|name| {
        let name = as_udev(name);
        let is_nvme = id.starts_with("nvme-");
        // udev also writes the number of an NVMe namespace.
        let namespace = disk.kernel_name.rsplit_once('n').filter(|_| is_nvme).map(|(_, n)| n);
        let before = serial.as_deref().and_then(|serial| {
            let numbered = namespace.and_then(|n| name.strip_suffix(n)?.strip_suffix(' '));
            let plain = name.strip_suffix(serial);
            plain.or_else(|| numbered?.strip_suffix(serial))
        });
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

/// As udev writes it in links, with blanks for its underscores.
fn as_udev(text: &str) -> String {
    let is_kept = |c: char| c.is_alphanumeric() || "#+-.:=@".contains(c);
    words(&text.chars().map(|c| if is_kept(c) { c } else { ' ' }).collect::<String>())
}

fn below_dev(text: &str) -> String {
    let text = text.trim();
    let text = text.strip_prefix("/dev/").unwrap_or(text);
    let text = text.strip_prefix("disk/").unwrap_or(text);
    text.to_owned()
}

/// A name below `/dev/disk/by-path`, in one of the spellings of udev.
fn path(text: &str) -> String {
    let text = below_dev(text);
    let text = text.strip_prefix("by-path/").unwrap_or(&text);
    let text = text.strip_prefix("virtio-").unwrap_or(text);
    // The first device of an ATA port: `ata-1.0`, and `ata-1` of older versions.
    let is_first = text.rsplit_once("-ata-").is_some_and(|(_, port)| port.ends_with(".0"));
    let text = if is_first { text.strip_suffix(".0") } else { None }.unwrap_or(text);
    text.to_owned()
}

/// Whether a disk is at this path, by its own name or by a link.
fn has_path(wanted: &str, disk: &DiskFacts) -> bool {
    let wanted = path(wanted);
    let links = disk.links.iter().map(|link| below_dev(link));
    let links = links.filter(|link| link.starts_with("by-path/")).map(|link| path(&link));
    !wanted.is_empty() && disk.by_path.iter().map(|is| path(is)).chain(links).any(|is| is == wanted)
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
        return never("is connected by USB", "to use it, write `bus: usb`");
    }
    if ![512, 4096].contains(&disk.logical_sector) {
        let sector = disk.logical_sector;
        let what =
            format!("disk `{name}` has sectors of {sector} bytes; only 512 and 4096 are supported");
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
mod tests;
