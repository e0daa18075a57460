//! SMD's enumerations: read in any case, written as they stand here.

/// What SMD lists under `service/values`, by the name of the member and of the path.
pub const LISTS: [(&str, &[&str]); 8] = [
    ("Arch", &ARCHES),
    ("Class", &CLASSES),
    ("Flag", &FLAGS),
    ("NetType", &NET_TYPES),
    ("Role", &ROLES),
    ("SubRole", &SUB_ROLES),
    ("State", &STATES),
    ("Type", &TYPES),
];

pub(super) const ARCHES: [&str; 4] = ["X86", "ARM", "UNKNOWN", "Other"];
pub(super) const CLASSES: [&str; 3] = ["River", "Mountain", "Hill"];
pub(super) const FLAGS: [&str; 5] = ["OK", "Warning", "Alert", "Unknown", "Locked"];
const NET_TYPES: [&str; 5] = ["Sling", "Infiniband", "Ethernet", "OEM", "None"];
pub(super) const ROLES: [&str; 6] =
    ["Compute", "Service", "System", "Application", "Storage", "Management"];
pub(super) const SUB_ROLES: [&str; 3] = ["Master", "Worker", "Storage"];
pub(super) const STATES: [&str; 8] =
    ["Unknown", "Empty", "Populated", "Off", "On", "Standby", "Halt", "Ready"];

/// Everything that may have an xname. The view has nodes only, but a filter for another type is a
/// question with an empty answer and no mistake.
pub(super) const TYPES: [&str; 52] = [
    "CDU",
    "CabinetCDU",
    "CabinetPDUController",
    "CabinetPDU",
    "CabinetPDUNic",
    "CabinetPDUOutlet",
    "CabinetPDUPowerConnector",
    "CabinetBMC",
    "Cabinet",
    "Chassis",
    "ChassisBMC",
    "ChassisBMCNic",
    "CMMRectifier",
    "CMMFpga",
    "CEC",
    "ComputeModule",
    "RouterModule",
    "NodeBMC",
    "NodeBMCNic",
    "NodeEnclosure",
    "NodeEnclosurePowerSupply",
    "HSNBoard",
    "HSNLink",
    "MgmtSwitch",
    "MgmtHLSwitch",
    "MgmtHLSwitchEnclosure",
    "MgmtSwitchConnector",
    "CDUMgmtSwitch",
    "Node",
    "VirtualNode",
    "Processor",
    "NodeNIC",
    "NodeHsnNic",
    "Memory",
    "StorageGroup",
    "Drive",
    "NodeFpga",
    "NodeAccel",
    "NodeAccelRiser",
    "NodePowerConnector",
    "HSNAsic",
    "RouterFpga",
    "RouterTOR",
    "RouterTORFpga",
    "RouterBMC",
    "RouterBMCNic",
    "RouterPowerConnector",
    "HSNConnector",
    "HSNConnectorPort",
    "SMSBox",
    "Partition",
    "System",
];

/// The word in its one spelling.
pub(super) fn find(list: &[&'static str], word: &str) -> Option<&'static str> {
    list.iter().find(|known| known.eq_ignore_ascii_case(word)).copied()
}
