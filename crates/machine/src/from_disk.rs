//! A machine that has a disk and no network, as one has that was just provisioned.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;

use crate::alone::{Alone, Drive};
use crate::machine::Firmware;

/// An NVMe disk, by the file that it is.
#[derive(Debug, Clone)]
pub struct NvmeDisk {
    pub image: PathBuf,
    /// Bytes of a sector.
    pub sector: u32,
}

/// Boots from the disk, which stays as it is, until the machine is off, and gives what it said on its
/// console.
pub fn boot_from_disk(firmware: Firmware, disk: &NvmeDisk, within: Duration) -> Result<String> {
    let NvmeDisk { image, sector } = disk;
    let sizes = format!("logical_block_size={sector},physical_block_size={sector}");
    let device = format!("nvme,serial=hoist,bootindex=0,{sizes}");
    let drives = vec![Drive { image: image.clone(), device, keeps: false }];
    Alone { drives, ..Alone::new(firmware) }.run(within)
}
