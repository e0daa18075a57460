//! Planning of provisioning: pure functions from documents and facts to plans.
//!
//! Inputs are a document (the desired state) and [`facts`] (the observed machine). Results are
//! bound disks, partition tables, steps and refusals. The same inputs give the same results on the
//! node, on the controller and in tests. The formats that are written to disks are here too, as
//! bytes.
//!
//! Must never know: devices, an HTTP client, FAT, the store, the site, boot scripts, metadata, HTTP
//! routes, an async runtime. `hoist-device` carries the plans out.

pub mod backup;
pub mod bind;
pub mod boot_entries;
pub mod claim;
pub mod diagnostic;
pub mod digest;
pub mod document;
pub mod driver;
pub mod facts;
pub mod fat_names;
pub mod image_table;
pub mod layout;
pub mod manifest;
pub mod metadata_area;
pub mod partition_table;
pub mod plan;
pub mod read_at;
pub mod steps;
pub mod volume;
