//! The words of hoist as types: nodes, names, addresses, selectors, documents.
//!
//! Everything here is a pure function of values. No I/O, no async, no clock, no randomness: a
//! value of these types is valid because it could not have been built otherwise, and the same
//! input gives the same answer in the server, the command line and the agent.
//!
//! Does not belong here: wire types (`hoist-api`), the records of a site and their indexes
//! (`hoist-site`).

mod exit;
mod id;
mod mac;
mod name;
mod nid;
mod text;
mod xname;

pub mod artifact;
pub mod boot;
pub mod boot_config;
pub mod boot_parameters;
pub mod boot_state;
pub mod bss;
pub mod document;
pub mod group;
pub mod image;
pub mod metadata_layer;
pub mod network;
pub mod node;
pub mod partition;
pub mod provision_profile;
pub mod selector;
mod suggestion;

pub use artifact::{Artifact, ArtifactSpec, Digest};
pub use boot::{Boot, BootRules, SelectedBy};
pub use boot_config::{BootConfig, BootConfigSpec, ConfigMode};
pub use boot_parameters::{BootParameters, ParseParametersError};
pub use boot_state::{
    BootAction, BootMode, BootState, Provisioning, RemovedMachine, ServedBoot, ServedConfig,
};
pub use bss::{BssImage, BssImageKey, BssKey, BssRecord, CloudInit, ImageKind, PhoneHome};
pub use document::{Document, Kind};
pub use exit::Exit;
pub use group::{Group, GroupKey, GroupSpec};
pub use id::{NodeId, ParseNodeIdError};
pub use image::{ImageFile, ImageIndex};
pub use mac::Mac;
pub use metadata_layer::{MetadataLayer, MetadataLayerSpec, Secret};
pub use name::{ArtifactName, GroupName, LabelKey, Name, Role};
pub use network::{Network, NetworkSpec, Subnet};
pub use nid::Nid;
pub use node::{
    Arch, BootChoice, Firmware, Interface, InterfaceKind, Lifecycle, Maintenance, Node, NodeSpec,
    NodeState, Protection, Provenance,
};
pub use partition::{Partition, PartitionSpec};
pub use provision_profile::{ProvisionProfile, ProvisionProfileSpec};
pub use selector::Selector;
pub use suggestion::nearest;
pub use xname::{Xname, XnameKind};
