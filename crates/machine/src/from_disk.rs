//! A machine that has a disk and no network, as one has that was just provisioned.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;

use crate::machine::Firmware;
use crate::standalone::{Drive, StandaloneMachine};

/// An NVMe disk, by the file that it is.
#[derive(Debug, Clone)]
pub struct NvmeDisk {
    pub image: PathBuf,
    /// Bytes of a sector.
    pub sector: u32,
}

/// Boots from the disk, which stays unchanged, until the machine is off, and returns its console
/// output.
pub fn boot_from_disk(firmware: Firmware, disk: &NvmeDisk, within: Duration) -> Result<String> {
    let NvmeDisk { image, sector } = disk;
    let sizes = format!("logical_block_size={sector},physical_block_size={sector}");
    let device = format!("nvme,serial=hoist,bootindex=0,{sizes}");
    let drives = vec![Drive { image: image.clone(), device, keeps: false }];
    StandaloneMachine { drives, ..StandaloneMachine::new(firmware) }.run(within)
}
