//! The parts of SMD's answers that hoist reads. Fields that SMD may omit are optional; fields that
//! it always sends are required, so that the answer of another program is not taken for an empty
//! SMD.

use compact_str::CompactString;
use serde::{Deserialize, Deserializer, Serialize};

/// `GET /State/Components`.
#[derive(Debug, Deserialize)]
pub struct Components {
    #[serde(rename = "Components", deserialize_with = "nullable")]
    pub components: Vec<Component>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Component {
    #[serde(rename = "ID", alias = "Id", alias = "id")]
    pub id: CompactString,
    #[serde(default)]
    pub r#type: CompactString,
    #[serde(default)]
    pub state: CompactString,
    #[serde(default)]
    pub enabled: Option<bool>,
    #[serde(default)]
    pub role: CompactString,
    #[serde(default)]
    pub sub_role: CompactString,
    /// A number; absent when there is none, or -1.
    #[serde(default, rename = "NID", alias = "Nid")]
    pub nid: Option<NidValue>,
    #[serde(default)]
    pub arch: CompactString,
}

/// Old records and hand-written files have text where SMD has a number.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(untagged)]
pub enum NidValue {
    Number(i64),
    Text(CompactString),
}

/// One element of `GET /Inventory/EthernetInterfaces`. `LastUpdate` is left out on purpose: it
/// changes without anything changing.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct EthernetInterface {
    #[serde(rename = "MACAddress")]
    pub mac: CompactString,
    #[serde(default, rename = "ComponentID")]
    pub component_id: CompactString,
    #[serde(default, rename = "IPAddresses", deserialize_with = "nullable")]
    pub addresses: Vec<Address>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Address {
    #[serde(default, rename = "IPAddress")]
    pub ip: CompactString,
    #[serde(default, rename = "Network")]
    pub network: CompactString,
}

/// One element of `GET /memberships`.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Membership {
    pub id: CompactString,
    #[serde(default, deserialize_with = "nullable")]
    pub group_labels: Vec<CompactString>,
    #[serde(default, deserialize_with = "nullable")]
    pub partition_name: CompactString,
}

/// One element of `GET /groups`, without its members: memberships have them.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Group {
    pub label: CompactString,
    #[serde(default, deserialize_with = "nullable")]
    pub description: String,
    #[serde(default, deserialize_with = "nullable")]
    pub exclusive_group: CompactString,
}

/// A Go program writes an empty list as `null` when it never made one.
fn nullable<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(d: D) -> Result<T, D::Error> {
    Ok(Option::<T>::deserialize(d)?.unwrap_or_default())
}
