//! Provisioning drivers for the input of other provisioners. Each driver implements
//! [`DataDriver`](hoist_provision::driver::DataDriver) for one format.
//!
//! The format of hoist itself is read by [`Native`](hoist_provision::driver::Native), which belongs
//! to `hoist-provision`.

mod curtin;
mod document_builder;
mod ironic;
mod nailgun;

pub use curtin::Curtin;
pub use ironic::Ironic;
pub use nailgun::Nailgun;

#[cfg(test)]
mod tests;
