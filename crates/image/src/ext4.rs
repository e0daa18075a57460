//! Makes an ext4 file system from a directory without mounting it: `mke2fs -d`, with the times of
//! the building machine replaced by those of the image.
//!
//! mke2fs 1.47.0 copies the change time of each inode of the *directory*, which cannot be set. So
//! that the same tree gives the same bytes, this module overwrites these times and the checksums of
//! their inodes.

use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use uuid::Uuid;

use crate::tool::{self, MKE2FS, ToolError, UNSHARE};

/// How it shall be.
#[derive(Debug, Clone)]
pub(crate) struct Ext4<'a> {
    pub(crate) size: u64,
    pub(crate) label: Option<&'a str>,
    pub(crate) uuid: Uuid,
    pub(crate) epoch: u32,
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Ext4Error {
    #[error(transparent)]
    Tool(#[from] ToolError),
    #[error("cannot write the file system")]
    Io(#[from] io::Error),
    #[error("mke2fs made an unsupported ext4: {0}")]
    Unknown(&'static str),
}

impl Ext4<'_> {
    /// Makes `file` from `tree`.
    pub(crate) fn make(&self, tree: &Path, file: &Path, log: &Path) -> Result<(), Ext4Error> {
        let made = fs_err::File::create_new(file)?;
        made.set_len(self.size)?;
        let seed = Uuid::new_v5(&self.uuid, b"hash seed");
        let mut command = if rustix::process::geteuid().is_root() {
            MKE2FS.command(self.epoch)?
        } else {
            // In a namespace where the caller's files belong to root.
            let mut command = UNSHARE.command(self.epoch)?;
            command.arg("--map-root-user").arg(MKE2FS.find()?);
            command
        };
        command.args(["-q", "-F", "-t", "ext4", "-b", "4096", "-I", "256", "-m", "1"]);
        command.args(["-O", "metadata_csum,64bit", "-U", &self.uuid.to_string()]);
        let extended = format!(
            "hash_seed={seed},root_owner=0:0,lazy_itable_init=0,lazy_journal_init=0,nodiscard"
        );
        command.args(["-E", &extended]);
        if let Some(label) = self.label {
            command.args(["-L", label]);
        }
        tool::run(command.arg("-d").arg(tree).arg(file), log)?;
        let file = fs_err::File::options().read(true).write(true).open(file)?;
        settle_times(file.file())
    }
}

const SUPERBLOCK: u64 = 1024;
const MAGIC: u16 = 0xef53;
const INCOMPAT_64BIT: u32 = 0x80;
const INCOMPAT_CSUM_SEED: u32 = 0x2000;
const RO_METADATA_CSUM: u32 = 0x400;

/// Where the fields are in an inode.
const LINKS: usize = 0x1a;
const GENERATION: usize = 0x64;
const CHECKSUM_LOW: usize = 0x7c;
const EXTRA_SIZE: usize = 0x80;
const CHECKSUM_HIGH: usize = 0x82;
const ACCESSED: usize = 0x08;
const CHANGED: usize = 0x0c;
const MODIFIED: usize = 0x10;
const CHANGED_EXTRA: usize = 0x84;
const MODIFIED_EXTRA: usize = 0x88;
const ACCESSED_EXTRA: usize = 0x8c;

/// Makes every inode changed and read when it was written.
fn settle_times(file: &std::fs::File) -> Result<(), Ext4Error> {
    let mut super_block = [0; 1024];
    file.read_exact_at(&mut super_block, SUPERBLOCK)?;
    let table = Geometry::of(&super_block)?;
    let inodes = usize::try_from(table.inodes_a_group).map_err(|_| Ext4Error::Unknown("inodes"))?;
    let mut bytes = vec![0; inodes * table.inode_size];
    for group in 0..table.groups {
        let at = table.inode_table(file, group)?;
        file.read_exact_at(&mut bytes, at)?;
        for (number, inode) in (1..).zip(bytes.chunks_exact_mut(table.inode_size)) {
            if half(inode, LINKS) > 0 {
                table.settle(group * table.inodes_a_group + number, inode);
            }
        }
        file.write_all_at(&bytes, at)?;
    }
    Ok(file.sync_all()?)
}

/// What of a superblock leads to the inodes.
struct Geometry {
    block: u64,
    groups: u32,
    inodes_a_group: u32,
    inode_size: usize,
    descriptor_size: u64,
    descriptors: u64,
    /// Of every checksum, from the UUID.
    seed: u32,
}

impl Geometry {
    fn of(block: &[u8; 1024]) -> Result<Self, Ext4Error> {
        let unknown = |what| Err(Ext4Error::Unknown(what));
        if half(block, 0x38) != MAGIC {
            return unknown("wrong magic number");
        }
        let incompat = word(block, 0x60);
        let read_only = word(block, 0x64);
        if incompat & INCOMPAT_64BIT == 0 || read_only & RO_METADATA_CSUM == 0 {
            return unknown("no checksums");
        }
        if incompat & INCOMPAT_CSUM_SEED != 0 {
            return unknown("the checksums have a seed of their own");
        }
        let block_size = 1024_u64 << word(block, 0x18).min(6);
        let inodes = word(block, 0x00);
        let inodes_a_group = word(block, 0x28);
        let inode_size = usize::from(half(block, 0x58));
        if inodes_a_group == 0 || inode_size < 0xa0 {
            return unknown("impossible sizes");
        }
        Ok(Self {
            block: block_size,
            groups: inodes / inodes_a_group,
            inodes_a_group,
            inode_size,
            descriptor_size: half(block, 0xfe).into(),
            descriptors: (u64::from(word(block, 0x14)) + 1) * block_size,
            seed: checksum(!0, &block[0x68..0x78]),
        })
    }

    fn inode_table(&self, file: &std::fs::File, group: u32) -> io::Result<u64> {
        let mut descriptor = [0; 64];
        let at = self.descriptors + u64::from(group) * self.descriptor_size;
        file.read_exact_at(&mut descriptor, at)?;
        let low = word(&descriptor, 0x08);
        let high = word(&descriptor, 0x28);
        Ok((u64::from(high) << 32 | u64::from(low)) * self.block)
    }

    fn settle(&self, number: u32, inode: &mut [u8]) {
        for (from, to) in [
            (MODIFIED, CHANGED),
            (MODIFIED, ACCESSED),
            (MODIFIED_EXTRA, CHANGED_EXTRA),
            (MODIFIED_EXTRA, ACCESSED_EXTRA),
        ] {
            inode.copy_within(from..from + 4, to);
        }
        inode[CHECKSUM_LOW..CHECKSUM_LOW + 2].fill(0);
        let has_high = half(inode, EXTRA_SIZE) >= 4;
        if has_high {
            inode[CHECKSUM_HIGH..CHECKSUM_HIGH + 2].fill(0);
        }
        let sum = checksum(self.seed, &number.to_le_bytes());
        let sum = checksum(sum, &inode[GENERATION..GENERATION + 4]);
        let [low0, low1, high0, high1] = checksum(sum, inode).to_le_bytes();
        inode[CHECKSUM_LOW..CHECKSUM_LOW + 2].copy_from_slice(&[low0, low1]);
        if has_high {
            inode[CHECKSUM_HIGH..CHECKSUM_HIGH + 2].copy_from_slice(&[high0, high1]);
        }
    }
}

/// ext4's CRC-32C, which turns its bits around neither before nor after.
fn checksum(before: u32, bytes: &[u8]) -> u32 {
    !crc32c::crc32c_append(!before, bytes)
}

fn half(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}
