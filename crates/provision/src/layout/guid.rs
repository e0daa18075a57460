//! GUIDs: partition types, and derived identities.

use uuid::{Uuid, uuid};

use crate::document::{Id, PartRole};

const LINUX_DATA: Uuid = uuid!("0fc63daf-8483-4772-8e79-3d69d8477de4");
const ROOT_X86_64: Uuid = uuid!("4f68bce3-e8cd-4db1-96e7-fbcaf984b709");
const ROOT_ARM64: Uuid = uuid!("b921b045-1df0-41c3-af44-4c6f280d3fae");
const ESP: Uuid = uuid!("c12a7328-f81f-11d2-ba4b-00a0c93ec93b");
const BIOS_BOOT: Uuid = uuid!("21686148-6449-6e6f-744e-656564454649");
const XBOOTLDR: Uuid = uuid!("bc13c2ff-59e6-4262-a352-b275fd6f7172");
const HOME: Uuid = uuid!("933ac7e1-2eb4-4f13-b844-0e14e2aef915");
const SRV: Uuid = uuid!("3b8f8425-20e0-4f3b-907f-1a25a76f98e8");
const VAR: Uuid = uuid!("4d21b016-b534-45c2-a9fb-5c16e091fd2d");
const TMP: Uuid = uuid!("7ec6f557-3bc5-4aca-b293-16ef5df639d1");
const SWAP: Uuid = uuid!("0657fd6d-a4ab-43c4-84e5-0933c84b4f4f");
const LVM: Uuid = uuid!("e6d6d379-f507-44c2-a23c-238f2a3df928");
const RAID: Uuid = uuid!("a19d880f-05fc-4d3b-a006-743f0f84911e");
const LUKS: Uuid = uuid!("ca7d7ccb-63ed-4c53-861c-1742536059cc");
/// hoist's own type of a config drive.
const CONFIG_DRIVE: Uuid = uuid!("6f2b8c1e-53d7-4a0b-9c64-0d1f7e5a92b3");

/// The type of a partition that is for this, on a machine of this architecture.
pub fn type_of(role: PartRole, arch: &str) -> Uuid {
    match role {
        PartRole::Data => LINUX_DATA,
        PartRole::Root => match arch {
            "x86_64" | "amd64" => ROOT_X86_64,
            "aarch64" | "arm64" => ROOT_ARM64,
            _ => LINUX_DATA,
        },
        PartRole::Esp => ESP,
        PartRole::BiosBoot => BIOS_BOOT,
        PartRole::Boot => XBOOTLDR,
        PartRole::Home => HOME,
        PartRole::Srv => SRV,
        PartRole::Var => VAR,
        PartRole::Tmp => TMP,
        PartRole::Swap => SWAP,
        PartRole::Lvm => LVM,
        PartRole::Raid => RAID,
        PartRole::Luks => LUKS,
        PartRole::ConfigDrive => CONFIG_DRIVE,
    }
}

/// The name of a type; an unknown type is written as its GUID.
pub(super) fn name_of(kind: Uuid) -> String {
    let name = match kind {
        LINUX_DATA => "data",
        ROOT_X86_64 | ROOT_ARM64 => "root",
        ESP => "esp",
        BIOS_BOOT => "bios_boot",
        XBOOTLDR => "boot",
        HOME => "home",
        SRV => "srv",
        VAR => "var",
        TMP => "tmp",
        SWAP => "swap",
        LVM => "lvm",
        RAID => "raid",
        LUKS => "luks",
        CONFIG_DRIVE => "config_drive",
        other => return other.to_string(),
    };
    name.to_owned()
}

/// A derived GUID: the same for every installation with the same inputs, and unique otherwise.
pub fn derive(txn: Uuid, node: &str, claim: &Id) -> Uuid {
    // No id has this between its characters, so no two pairs make one text.
    Uuid::new_v5(&txn, format!("{node}\0{claim}").as_bytes())
}

/// Whether a GUID is derived. Other programs use random GUIDs.
pub(super) fn is_derived(guid: Uuid) -> bool {
    guid.get_version() == Some(uuid::Version::Sha1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_role_has_a_named_type() {
        use PartRole as R;
        for role in [
            R::Data,
            R::Root,
            R::Esp,
            R::BiosBoot,
            R::Boot,
            R::Home,
            R::Srv,
            R::Var,
            R::Tmp,
            R::Swap,
            R::Lvm,
            R::Raid,
            R::Luks,
            R::ConfigDrive,
        ] {
            let name = serde_json::to_value(role).unwrap();
            assert_eq!(name, name_of(type_of(role, "x86_64")));
        }
        assert_eq!(name_of(Uuid::nil()), Uuid::nil().to_string());
    }

    #[test]
    fn guids_follow_from_transaction_and_node_and_claim() {
        let id = |text: &str| text.parse::<Id>().unwrap();
        let one = Uuid::from_u128(1);
        let two = Uuid::from_u128(2);
        let guid = derive(one, "n1", &id("root"));
        assert_eq!(guid, derive(one, "n1", &id("root")));
        assert!(is_derived(guid) && !is_derived(LINUX_DATA) && !is_derived(Uuid::nil()));
        for other in [
            derive(two, "n1", &id("root")),
            derive(one, "n2", &id("root")),
            derive(one, "n1", &id("swap")),
        ] {
            assert_ne!(guid, other);
        }
    }
}
