//! Programs that create and assemble stacks, as argument lists. Arguments are never split, and
//! never contain a secret.

use std::path::Path;

use uuid::Uuid;

use crate::document::size::MIB;
use crate::document::{Bytes, Luks, Md, MdLevel, Pv};
use crate::layout::{EXTENT, LUKS_HEADER, MD_DATA_OFFSET};

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// As mdadm writes it: the bytes of the UUID, in four groups.
fn in_four(uuid: Uuid) -> String {
    let text = uuid.simple().to_string();
    [&text[..8], &text[8..16], &text[16..24], &text[24..]].join(":")
}

/// Creates an array. The kernel synchronises its devices in the background, also in the installed
/// system; `--assume-clean` is never used. A name without a host is the same on every host.
pub fn array(md: &Md, uuid: Uuid) -> Vec<String> {
    let spares = md.spares as usize;
    let mut program = words(&["mdadm", "--create", "--run", "--config=none", "--metadata=1.2"]);
    program.extend([
        format!("--uuid={}", in_four(uuid)),
        "--homehost=any".to_owned(),
        format!("--name={}", md.name()),
        format!("--level={}", md.level.as_str()),
        format!("--raid-devices={}", md.on.len().saturating_sub(spares)),
    ]);
    if spares > 0 {
        program.push(format!("--spare-devices={spares}"));
    }
    program.push(format!("--data-offset={}M", MD_DATA_OFFSET / MIB));
    if md.level != MdLevel::Raid0 {
        program.push("--bitmap=internal".to_owned());
    }
    program
}

/// Assembles an existing array.
pub fn assemble(uuid: Uuid) -> Vec<String> {
    let mut program = words(&["mdadm", "--assemble", "--run", "--config=none"]);
    program.push(format!("--uuid={}", in_four(uuid)));
    program
}

/// LVM's ids are 32 characters; those of a UUID are among the ones that it takes.
fn physical_id(uuid: Uuid) -> String {
    let text = uuid.simple().to_string();
    let cuts = [0, 6, 10, 14, 18, 22, 26, 32];
    cuts.windows(2).map(|cut| &text[cut[0]..cut[1]]).collect::<Vec<_>>().join("-")
}

pub fn physical(pv: &Pv, uuid: Uuid) -> Vec<String> {
    let mut program = words(&["lvm", "pvcreate", "--yes", "-ff", "--norestorefile", "--uuid"]);
    program.push(physical_id(uuid));
    program.extend(words(&["--dataalignment", "1m"]));
    if let Some(Bytes(bytes)) = pv.metadata_size {
        program.extend(["--metadatasize".to_owned(), format!("{bytes}b")]);
    }
    program
}

pub fn group(name: &str) -> Vec<String> {
    let mut program = words(&["lvm", "vgcreate", "--yes", "--physicalextentsize"]);
    program.extend([format!("{}m", EXTENT / MIB), name.to_owned()]);
    program
}

/// The tag of groups and volumes that hoist created.
fn mark(uuid: Uuid) -> String {
    format!("hoist-{}", uuid.simple())
}

/// Arguments that add the tag.
pub fn marked(uuid: Uuid) -> [String; 2] {
    ["--addtag".to_owned(), mark(uuid)]
}

/// Removes the group of an interrupted attempt. A foreign group has no tag, and stays.
pub fn remove_group(name: &str, uuid: Uuid) -> Vec<String> {
    let only = format!("vg_tags={}", mark(uuid));
    words(&["lvm", "vgremove", "--yes", "-ff", "--select", &only, name])
}

/// Creates a volume. hoist wiped its place before, so lvcreate does not ask about signatures.
pub fn volume(group: &str, name: &str, size: u64) -> Vec<String> {
    let mut program =
        words(&["lvm", "lvcreate", "--yes", "-Wn", "-Zn", "--type", "linear", "--extents"]);
    program.extend([(size / EXTENT).to_string(), "--name".to_owned(), name.to_owned()]);
    program.push(group.to_owned());
    program
}

pub fn remove_volume(group: &str, name: &str, uuid: Uuid) -> Vec<String> {
    let only = format!("lv_tags={}", mark(uuid));
    words(&["lvm", "lvremove", "--yes", "-ff", "--select", &only, &format!("{group}/{name}")])
}

pub fn activate(group: &str) -> Vec<String> {
    words(&["lvm", "vgchange", "-ay", group])
}

/// Settings that restrict LVM to these devices, whatever the configuration of the machine is. LVM
/// does not wait for udev and keeps no archives outside of the disks.
pub fn settings(devices: &[&Path]) -> [String; 2] {
    let accept = devices.iter().map(|device| format!("\"a|^{}$|\"", device.display()));
    let filter = accept.chain(["\"r|.*|\"".to_owned()]).collect::<Vec<_>>().join(",");
    let settings = format!(
        "devices{{use_devicesfile=0 filter=[{filter}] global_filter=[{filter}] scan_lvs=1 \
         md_chunk_alignment=0 data_alignment_detection=0 data_alignment_offset_detection=0 \
         obtain_device_list_from_udev=0 external_device_info_source=\"none\"}} \
         activation{{udev_sync=0 udev_rules=0 monitoring=0}} backup{{backup=0 archive=0}} \
         global{{use_lvmpolld=0 use_lvmlockd=0 event_activation=0}}"
    );
    ["--config".to_owned(), settings]
}

/// Creates an encrypted device. cryptsetup chooses the cost of the key derivation.
pub fn sealed(luks: &Luks, uuid: Uuid) -> Vec<String> {
    let mut program = words(&["cryptsetup", "luksFormat", "--batch-mode", "--type", "luks2"]);
    program.extend(["--uuid".to_owned(), uuid.to_string()]);
    // In sectors of 512 bytes, whatever the device has.
    program.extend(["--offset".to_owned(), (LUKS_HEADER / 512).to_string()]);
    if let Some(label) = &luks.label {
        program.push(format!("--label={label}"));
    }
    program.push("--key-file=-".to_owned());
    program
}

pub fn unseal() -> Vec<String> {
    words(&["cryptsetup", "open", "--type", "luks2", "--key-file=-"])
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: Uuid = Uuid::from_u128(0x1122_3344_5566_4788_99aa_bbcc_ddee_ff00);

    fn md(level: MdLevel, spares: u32) -> Md {
        let on = ["a", "b", "c"].map(|id| id.parse().expect("an id")).to_vec();
        let id = "mirror".parse().expect("an id");
        Md { id, on, level, spares, name: Some("m 1; x".to_owned()), retain: false }
    }

    #[test]
    fn array_program_has_data_offset_and_unsplit_name() {
        let program = array(&md(MdLevel::Raid1, 1), UUID);
        assert_eq!(
            program.join("|"),
            "mdadm|--create|--run|--config=none|--metadata=1.2\
             |--uuid=11223344:55664788:99aabbcc:ddeeff00|--homehost=any|--name=m 1; x|--level=raid1\
             |--raid-devices=2|--spare-devices=1|--data-offset=2M|--bitmap=internal"
        );
        let stripe = array(&md(MdLevel::Raid0, 0), UUID).join(" ");
        assert!(stripe.contains("--raid-devices=3") && !stripe.contains("bitmap"), "{stripe}");
        assert!(!stripe.contains("assume-clean"));
    }

    #[test]
    fn lvm_gets_valid_ids_and_only_our_devices() {
        let pv = Pv {
            id: "p".parse().expect("an id"),
            on: "a".parse().expect("an id"),
            metadata_size: Some(Bytes(3 * MIB)),
            retain: false,
        };
        let program = physical(&pv, UUID).join(" ");
        assert!(program.contains("--uuid 112233-4455-6647-8899-aabb-ccdd-eeff00 "), "{program}");
        assert!(program.ends_with("--metadatasize 3145728b"), "{program}");
        let [option, settings] = settings(&[Path::new("/dev/md127"), Path::new("/dev/sda2")]);
        assert_eq!(option, "--config");
        let filter = "=[\"a|^/dev/md127$|\",\"a|^/dev/sda2$|\",\"r|.*|\"]";
        assert_eq!(settings.matches(filter).count(), 2, "{settings}");
        let made = volume("data", "pg", 80 * MIB).join(" ");
        assert!(made.ends_with("--extents 20 --name pg data"), "{made}");
    }

    #[test]
    fn no_key_is_an_argument_of_a_program() {
        let luks = Luks {
            id: "s".parse().expect("an id"),
            on: "a".parse().expect("an id"),
            key: "secret://disks/data".parse().expect("a reference"),
            label: Some("-x y".to_owned()),
            retain: false,
        };
        let program = sealed(&luks, UUID).join("|");
        assert!(program.ends_with("--offset|32768|--label=-x y|--key-file=-"), "{program}");
        assert!(!program.contains("disks/data") && unseal().join("|").ends_with("|--key-file=-"));
    }
}
