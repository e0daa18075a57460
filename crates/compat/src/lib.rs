//! Formats of other tools, converted to documents of hoist.
//!
//! [`fuel`] converts deployment tasks of Fuel to a task file. [`driver`] holds the provisioning
//! drivers for input of nailgun, bareon-ironic and curtin.
//!
//! All of it are functions from text to values. The core (`hoist-deploy`, `hoist-provision`) must not
//! depend on this crate: it defines the traits and the document types, and a program's composition
//! root registers the drivers of this crate.
//!
//! Does not belong here: rules of hoist's own documents, I/O, and clients of other tools'
//! services.

pub mod driver;
pub mod fuel;
