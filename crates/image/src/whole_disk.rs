//! A whole disk as a file: the document for provisioning a node is carried out on a machine whose
//! only disk is that file. Partitioning and boot loaders are the same as on nodes.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hoist_device::RunInputs;
use hoist_device::apply::{self, ApplyError, Listener};
use hoist_device::images::Progress;
use hoist_device::metadata_area::MetadataAreaError;
use hoist_device::observe::observe;
use hoist_device::probe::Machine;
use hoist_provision::diagnostic::ProvisionDiagnostic;
use hoist_provision::digest::Digest;
use hoist_provision::document::{API, Id, read};
use hoist_provision::metadata_area::MetadataArea;
use hoist_provision::plan::decide;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::document::{Loader, WholeDisk};

/// Name and serial number of the disk.
const DISK: &str = "disk";
const SERIAL: &str = "hoist-image";

/// Disks with larger ones boot only images that were made for them.
const SECTOR: u32 = 512;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WholeDiskError {
    #[error("outputs.whole_disk: {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Refused(Vec<ProvisionDiagnostic>),
    #[error("outputs.whole_disk: cannot write the disk")]
    Apply(#[from] ApplyError),
    #[error(transparent)]
    Gap(#[from] MetadataAreaError),
    #[error("cannot write the disk")]
    Io(#[from] io::Error),
}

/// The files that a disk is made of, where they are.
#[derive(Debug)]
pub(crate) struct Parts<'a> {
    pub(crate) root: &'a Path,
    pub(crate) manifest: &'a Path,
    pub(crate) kernel: &'a Path,
    pub(crate) initrd: Option<&'a Path>,
    /// What UEFI starts, if it does.
    pub(crate) efi: Option<&'a Path>,
    pub(crate) uki: Option<&'a Path>,
    pub(crate) grub_boot: &'a Path,
    pub(crate) grub_core: &'a Path,
}

/// Makes the disk below `work`, and gives its file.
pub(crate) fn make(
    wanted: &WholeDisk,
    parts: &Parts<'_>,
    kernel_args: &[String],
    txn: Uuid,
    work: &Path,
) -> Result<PathBuf, WholeDiskError> {
    let place = work.join("machine");
    let file = machine(&place, wanted)?;
    let text = document(wanted, parts, kernel_args, txn)?.to_string();
    let document = read("image", text.as_bytes()).map_err(WholeDiskError::Refused)?;
    let machine = Machine::at(&place);
    let given = RunInputs::default();
    let seen = observe(&document, &machine, &given);
    let decision = decide(&document, &seen).map_err(WholeDiskError::Refused)?;
    apply::apply(&document, &decision, &machine, &given, None, Arc::new(Quiet))?;
    forget(&file)?;
    Ok(file)
}

/// A machine with one empty disk, and with the firmware that the disk is for.
fn machine(place: &Path, wanted: &WholeDisk) -> io::Result<PathBuf> {
    let size = wanted.size.0;
    let about = place.join("sys/block").join(DISK);
    fs_err::create_dir_all(about.join("queue"))?;
    fs_err::create_dir_all(place.join("dev"))?;
    if !wanted.firmware.is_bios() {
        fs_err::create_dir_all(place.join("sys/firmware/efi"))?;
    }
    fs_err::write(about.join("size"), (size / 512).to_string())?;
    fs_err::write(about.join("queue/logical_block_size"), SECTOR.to_string())?;
    fs_err::write(about.join("serial"), SERIAL)?;
    let file = place.join("dev").join(DISK);
    fs_err::File::create_new(&file)?.set_len(size)?;
    Ok(file)
}

fn document(
    wanted: &WholeDisk,
    parts: &Parts<'_>,
    kernel_args: &[String],
    txn: Uuid,
) -> io::Result<Value> {
    let mut files = Map::new();
    let mut add = |name: &str, path: Option<&Path>| {
        if let Some(path) = path {
            files.insert(name.to_owned(), fetched(path)?);
        }
        io::Result::Ok(())
    };
    add("kernel", Some(parts.kernel))?;
    add("initrd", parts.initrd)?;
    add("loader", parts.efi)?;
    add("uki", parts.uki)?;
    if wanted.firmware.is_bios() {
        add("grub_boot", Some(parts.grub_boot))?;
        add("grub_core", Some(parts.grub_core))?;
    }
    let mut boot = json!({
        "firmware": wanted.firmware, "kernel_args": kernel_args, "order": "leave", "files": files,
    });
    if let Some(size) = wanted.esp_size {
        boot["esp_size"] = json!(size);
    }
    boot["loader"] = json!(if wanted.firmware.is_uefi() { wanted.loader } else { Loader::Grub });
    let root = json!({
        "sources": [url(parts.root)?],
        "manifest": url(parts.manifest)?,
        "digest": Digest::of(&fs_err::read(parts.manifest)?),
        "target": "root-fs",
    });
    Ok(json!({
        "api": API,
        "txn": txn,
        "sections": {
            "node": {"id": "image"},
            "disks": {"os": {"match": {"serial": SERIAL}}},
            "storage": [
                {"part": {"id": "root", "on": "os", "size": "rest"}},
                {"fs": {"id": "root-fs", "on": "root", "kind": "ext4", "mount": "/"}},
            ],
            "images": {"root": root},
            "boot": boot,
            "flow": {"end": "stay"},
        }
    }))
}

fn fetched(path: &Path) -> io::Result<Value> {
    Ok(json!({"sources": [url(path)?], "digest": Digest::of(&fs_err::read(path)?)}))
}

fn url(path: &Path) -> io::Result<String> {
    let path = fs_err::canonicalize(path)?;
    let text = path.to_str().ok_or_else(|| io::Error::other("the path is not UTF-8"))?;
    Ok(format!("file://{text}"))
}

/// Who made the disk and when is of no use to those who copy it, and would differ every time.
fn forget(file: &Path) -> Result<(), WholeDiskError> {
    let area = MetadataArea::before(None).map_err(MetadataAreaError::from)?.range();
    let file = File::options().write(true).open(file)?;
    let zeros = vec![0; 64 * 1024];
    for at in area.clone().step_by(zeros.len()) {
        let length = (area.end - at).min(zeros.len() as u64);
        file.write_all_at(&zeros[..usize::try_from(length).unwrap_or(0)], at)?;
    }
    Ok(file.sync_all()?)
}

/// The stages of an image are reported elsewhere.
struct Quiet;

impl Listener for Quiet {
    fn begins(&self, _: &str) {}
    fn progress(&self, _: &Id, _: Progress) {}
}
