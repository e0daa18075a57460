//! Builds an image: a document becomes a directory with the outputs of the document and their index.
//! The directory appears whole or not at all.
//!
//! Does not belong here: the shapes of results (`tree`, `whole_disk`), and the builders.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{File, TryLockError};
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use hoist_model::image::{INDEX_FILE, UnpackedContent};
use hoist_model::{ArtifactName, Digest, ImageFile, ImageIndex};
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use crate::builder::{self, FillError, Site};
use crate::cpio;
use crate::document::{DiskOutput, Image, LiveFormat, Loader, WholeDisk};
use crate::ext4::{Ext4, Ext4Error};
use crate::loader::{self, LoaderError, Platform};
use crate::tool::{self, MKE2FS, MKSQUASHFS, ToolError, UNSHARE};
use crate::tree::Tree;
use crate::whole_disk::{self, Parts, WholeDiskError};

/// Compression level of images: high, because an image is packed once and unpacked often.
const LEVEL: i32 = 9;

/// Namespace of the UUIDs of file systems.
const NAMESPACE: Uuid = Uuid::from_u128(0x6a3e_8c55_41f7_4e0b_9d3c_52a6_7f10_b8d4);

/// Receives the progress of a build.
pub trait BuildProgress: Sync {
    fn stage(&self, _what: &str) {}
    fn note(&self, _line: &str) {}
    /// Progress of the stage in bytes; `None` as the total means unknown.
    fn progress(&self, _done: u64, _total: u64) {}
}

impl BuildProgress for () {}

/// The inputs of a build.
#[derive(Debug)]
pub struct Build<'a> {
    pub image: &'a Image,
    pub place: BuildPaths<'a>,
    /// Seconds since 1970; nothing in the image is newer.
    pub epoch: u32,
}

#[derive(Debug, Clone, Copy)]
pub struct BuildPaths<'a> {
    /// Base directory of relative paths in the document.
    pub beside: &'a Path,
    /// The output directory.
    pub out: &'a Path,
    /// The directory of plug-ins.
    pub plugins: &'a Path,
}

/// A file that a build would write.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct OutputFile {
    pub file: &'static str,
    pub artifact: ArtifactName,
}

/// Errors of a build. Nothing remains of the failed image except temporary files beside the
/// directory.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    #[error("`{}` exists and is no image; name another directory with --out", .0.display())]
    Occupied(PathBuf),
    #[error("another build is running in `{}`; wait, or name another directory with --out", .0.display())]
    Locked(PathBuf),
    #[error("the time {0} is in the future; write an earlier one as `epoch` or SOURCE_DATE_EPOCH")]
    Future(u32),
    #[error(transparent)]
    Fill(#[from] FillError),
    #[error(transparent)]
    Ext4(#[from] Ext4Error),
    #[error(transparent)]
    Loader(#[from] LoaderError),
    #[error(transparent)]
    WholeDisk(#[from] WholeDiskError),
    #[error(transparent)]
    Tool(#[from] ToolError),
    #[error(
        "the tree has no kernel in `/boot`; add one, in Debian with the package `linux-image-cloud-amd64`"
    )]
    NoKernel,
    #[error("the tree has several kernels in `/boot`: {}; leave one", .0.join(", "))]
    SeveralKernels(Vec<String>),
    #[error("cannot write the image")]
    Io(#[from] io::Error),
}

const ROOT: &str = "root.ext4.zst";
const MANIFEST: &str = "root.manifest.json";
const KERNEL: &str = "kernel";
const INITRD: &str = "initrd";
const SYSTEMD_BOOT: &str = "systemd-boot.efi";
const UKI: &str = "uki.efi";
const GRUB_EFI: &str = "grub.efi";
const GRUB_BOOT: &str = "grub-boot.img";
const GRUB_CORE: &str = "grub-core.img";
const DISK: &str = "disk.img.zst";
const DISK_MANIFEST: &str = "disk.manifest.json";
const LIVE_SQUASHFS: &str = "live.squashfs";
const LIVE_CPIO: &str = "live.cpio.zst";

impl Build<'_> {
    /// Checks the prerequisites and returns the files that a build would write. Writes nothing.
    pub fn check(&self) -> Result<Vec<OutputFile>, BuildError> {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        if now.is_ok_and(|now| now.as_secs() < self.epoch.into()) {
            return Err(BuildError::Future(self.epoch));
        }
        if !is_free(self.place.out)? {
            return Err(BuildError::Occupied(self.place.out.to_owned()));
        }
        let spec = &self.image.spec;
        builder::check(self.image, self.place.beside, self.place.plugins)?;
        if let Some(disk) = &spec.outputs.disk {
            MKE2FS.find()?;
            if !rustix::process::geteuid().is_root() {
                UNSHARE.find()?;
            }
            loader::check(&disk.loaders)?;
        }
        if spec.outputs.live.as_ref().is_some_and(|live| live.format == LiveFormat::Squashfs) {
            MKSQUASHFS.find()?;
        }
        Ok(self.files().into_iter().map(|file| self.made(file)).collect())
    }

    /// Builds the image.
    pub fn run(&self, progress: &dyn BuildProgress) -> Result<ImageIndex, BuildError> {
        self.check()?;
        let partial = beside(self.place.out, ".partial");
        let _lock = take(&partial)?;
        let work = partial.join("work");
        let files = partial.join("files");
        for directory in [&work, &files] {
            // Left over from an interrupted build.
            remove(directory)?;
            fs_err::create_dir(directory)?;
        }
        let index = self.make(&work, &files, progress)?;
        let text = serde_json::to_string_pretty(&index).map_err(io::Error::from)? + "\n";
        fs_err::write(files.join(INDEX_FILE), text)?;
        remove(self.place.out)?;
        fs_err::rename(&files, self.place.out)?;
        remove(&partial)?;
        Ok(index)
    }

    fn make(
        &self,
        work: &Path,
        files: &Path,
        progress: &dyn BuildProgress,
    ) -> Result<ImageIndex, BuildError> {
        let tree = Tree::create(work.join("tree"))?;
        let BuildPaths { beside, plugins, .. } = self.place;
        let site = Site { tree: &tree, beside, work, plugins, epoch: self.epoch };
        let made_from = {
            let _mask = Mask::usual();
            builder::fill(self.image, &site, progress)?
        };
        tree.settle(self.epoch)?;
        let outputs = &self.image.spec.outputs;
        let booted = BootFiles::of(&tree)?;
        match &booted {
            Some(booted) => booted.copy_out(&tree, files)?,
            None if outputs.disk.is_some() => return Err(BuildError::NoKernel),
            None => {}
        }
        let mut unpacked = BTreeMap::new();
        if let Some(disk) = &outputs.disk {
            unpacked.insert(ROOT, self.disk(disk, &tree, work, files, progress)?);
        }
        if let Some(whole) = &outputs.whole_disk {
            unpacked.insert(DISK, self.whole_disk(whole, work, files, progress)?);
        }
        if let Some(live) = &outputs.live {
            self.live(live.format, &tree, work, files, progress)?;
        }
        progress.stage("taking stock");
        let entries = fs_err::read_dir(files)?
            .map(|entry| entry.map(|entry| entry.file_name()))
            .collect::<Result<Vec<_>, _>>()?;
        let is_made = |file: &&'static str| entries.iter().any(|entry| entry == file);
        let made = self.files().into_iter().filter(is_made);
        Ok(ImageIndex {
            name: self.image.name.clone(),
            kernel_args: self.image.spec.kernel_args.clone(),
            made_from,
            files: made
                .map(|file| self.entry(file, files, unpacked.remove(file)))
                .collect::<io::Result<_>>()?,
        })
    }

    fn disk(
        &self,
        disk: &DiskOutput,
        tree: &Tree,
        work: &Path,
        files: &Path,
        progress: &dyn BuildProgress,
    ) -> Result<UnpackedContent, BuildError> {
        progress.stage("making the file system");
        let image = work.join("root.ext4");
        let ext4 = Ext4 {
            size: disk.size.0,
            label: disk.label.as_deref(),
            uuid: self.uuid()?,
            epoch: self.epoch,
        };
        ext4.make(tree.path(), &image, &work.join("mke2fs.log"))?;
        progress.stage("packing the file system");
        let unpacked = pack(&image, &files.join(ROOT), &files.join(MANIFEST), progress)?;
        progress.stage("making the boot loaders");
        for loader in &disk.loaders {
            self.loader(*loader, work, files)?;
        }
        Ok(unpacked)
    }

    fn loader(&self, loader: Loader, work: &Path, files: &Path) -> Result<(), BuildError> {
        match loader {
            Loader::SystemdBoot => {
                fs_err::copy(loader::systemd_boot()?, files.join(SYSTEMD_BOOT))?;
            }
            Loader::Uki => {
                let initrd = Some(files.join(INITRD)).filter(|initrd| initrd.exists());
                let words = &self.image.spec.kernel_args;
                loader::uki(&files.join(KERNEL), initrd.as_deref(), words, &files.join(UKI))?;
            }
            Loader::Grub => {
                loader::grub(Platform::Uefi, &files.join(GRUB_EFI), work, self.epoch)?;
                loader::grub(Platform::Bios, &files.join(GRUB_CORE), work, self.epoch)?;
                fs_err::copy(loader::grub_boot()?, files.join(GRUB_BOOT))?;
            }
        }
        Ok(())
    }

    fn whole_disk(
        &self,
        wanted: &WholeDisk,
        work: &Path,
        files: &Path,
        progress: &dyn BuildProgress,
    ) -> Result<UnpackedContent, BuildError> {
        progress.stage("making the whole disk");
        let path = |name: &str| files.join(name);
        let initrd = path(INITRD);
        let uki = path(UKI);
        let efi = match wanted.loader {
            Loader::Grub => path(GRUB_EFI),
            Loader::SystemdBoot | Loader::Uki => path(SYSTEMD_BOOT),
        };
        let is_uefi = wanted.firmware.is_uefi();
        let parts = Parts {
            root: &path(ROOT),
            manifest: &path(MANIFEST),
            kernel: &path(KERNEL),
            initrd: initrd.exists().then_some(&initrd),
            efi: is_uefi.then_some(&efi),
            uki: (is_uefi && wanted.loader == Loader::Uki).then_some(&uki),
            grub_boot: &path(GRUB_BOOT),
            grub_core: &path(GRUB_CORE),
        };
        let words = &self.image.spec.kernel_args;
        let disk = whole_disk::make(wanted, &parts, words, self.uuid()?, work)?;
        progress.stage("packing the whole disk");
        Ok(pack(&disk, &files.join(DISK), &files.join(DISK_MANIFEST), progress)?)
    }

    /// Derived from the document: the same document gives the same UUID.
    fn uuid(&self) -> io::Result<Uuid> {
        let text = serde_json::to_vec(self.image).map_err(io::Error::from)?;
        Ok(Uuid::new_v5(&NAMESPACE, &text))
    }

    /// Without `/boot`: the kernel is a file of its own, and a diskless machine has little memory.
    fn live(
        &self,
        format: LiveFormat,
        tree: &Tree,
        work: &Path,
        files: &Path,
        progress: &dyn BuildProgress,
    ) -> Result<(), BuildError> {
        progress.stage("making the live image");
        match format {
            LiveFormat::Squashfs => {
                let mut command = MKSQUASHFS.command(self.epoch)?;
                command.arg(tree.path()).arg(files.join(LIVE_SQUASHFS));
                command.args(["-noappend", "-no-progress", "-comp", "zstd", "-b", "256K"]);
                if !rustix::process::geteuid().is_root() {
                    command.arg("-all-root");
                }
                command.args(["-wildcards", "-e", "boot/*"]);
                tool::run(&mut command, &work.join("mksquashfs.log"))?;
            }
            LiveFormat::Cpio => {
                let file = BufWriter::new(File::create_new(files.join(LIVE_CPIO))?);
                let mut packed = zstd::Encoder::new(file, LEVEL)?;
                cpio::write(tree.path(), Path::new("boot"), &mut packed)?;
                packed.finish()?.flush()?;
            }
        }
        Ok(())
    }

    /// All files that the document may produce; the initial RAM disk is optional.
    fn files(&self) -> Vec<&'static str> {
        let outputs = &self.image.spec.outputs;
        let mut files = Vec::new();
        if let Some(disk) = &outputs.disk {
            files.extend([ROOT, MANIFEST]);
            for loader in &disk.loaders {
                match loader {
                    Loader::SystemdBoot => files.push(SYSTEMD_BOOT),
                    Loader::Uki => files.push(UKI),
                    Loader::Grub => files.extend([GRUB_EFI, GRUB_BOOT, GRUB_CORE]),
                }
            }
        }
        if outputs.whole_disk.is_some() {
            files.extend([DISK, DISK_MANIFEST]);
        }
        match outputs.live.as_ref().map(|live| live.format) {
            Some(LiveFormat::Squashfs) => files.push(LIVE_SQUASHFS),
            Some(LiveFormat::Cpio) => files.push(LIVE_CPIO),
            None => {}
        }
        files.extend([KERNEL, INITRD]);
        files
    }

    fn made(&self, file: &'static str) -> OutputFile {
        OutputFile { file, artifact: self.artifact(file) }
    }

    /// `os-NAME-root` for `root.ext4.zst`: the content without its format, except for firmware
    /// programs, which need their suffix.
    fn artifact(&self, file: &str) -> ArtifactName {
        let what = match file {
            ROOT => "root",
            MANIFEST => "manifest",
            GRUB_BOOT => "grub-boot",
            GRUB_CORE => "grub-core",
            DISK => "disk",
            DISK_MANIFEST => "disk-manifest",
            LIVE_SQUASHFS | LIVE_CPIO => "live",
            file => file,
        };
        let name = format!("os-{}-{what}", self.image.name);
        name.parse().expect("names of images are short, and of the same letters")
    }

    fn entry(
        &self,
        file: &'static str,
        files: &Path,
        unpacked: Option<UnpackedContent>,
    ) -> io::Result<ImageFile> {
        let (size, sha256) = measure(&files.join(file))?;
        let artifact = self.artifact(file);
        Ok(ImageFile { file: file.to_owned(), artifact, size, sha256, unpacked })
    }
}

/// Programs that fill the tree run with a fixed file mode mask, whatever the caller's mask is;
/// otherwise the same document would give other bytes. Files beside the tree are not affected.
struct Mask(rustix::fs::Mode);

impl Mask {
    fn usual() -> Self {
        Self(rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022)))
    }
}

impl Drop for Mask {
    fn drop(&mut self) {
        rustix::process::umask(self.0);
    }
}

/// The kernel of a tree, and its initial RAM disk if it has one.
#[derive(Debug, PartialEq, Eq)]
struct BootFiles {
    kernel: String,
    initrd: Option<String>,
}

impl BootFiles {
    fn of(tree: &Tree) -> Result<Option<Self>, BuildError> {
        let names = tree.names("/boot")?;
        let mut kernels: Vec<&String> =
            names.iter().filter(|name| name.starts_with("vmlinuz")).collect();
        // Debian has a link of this name beside the file that it leads to.
        if kernels.len() > 1 {
            kernels.retain(|name| name.as_str() != "vmlinuz");
        }
        match kernels.as_slice() {
            [] => Ok(None),
            [kernel] => {
                let version = kernel.trim_start_matches("vmlinuz");
                let is_its = |name: &&String| {
                    [format!("initrd{version}"), format!("initrd.img{version}")].contains(*name)
                };
                let initrd = names.iter().find(is_its).cloned();
                Ok(Some(Self { kernel: (*kernel).clone(), initrd }))
            }
            several => {
                Err(BuildError::SeveralKernels(several.iter().map(|n| (*n).clone()).collect()))
            }
        }
    }

    fn copy_out(&self, tree: &Tree, files: &Path) -> io::Result<()> {
        let initrd = self.initrd.as_deref().map(|name| (name, INITRD));
        for (name, file) in [Some((self.kernel.as_str(), KERNEL)), initrd].into_iter().flatten() {
            let mut from = tree.open(&format!("/boot/{name}"))?;
            io::copy(&mut from, &mut File::create_new(files.join(file))?)?;
        }
        Ok(())
    }
}

/// Packs a file in chunks and removes it. Returns the content of the file.
fn pack(
    file: &Path,
    to: &Path,
    list: &Path,
    progress: &dyn BuildProgress,
) -> io::Result<UnpackedContent> {
    let from = File::open(file)?;
    let total = from.metadata()?.len();
    let mut packed = BufWriter::new(File::create_new(to)?);
    let mut counted = CountingReader { file: from, done: 0, total, progress, hash: Sha256::new() };
    let manifest = hoist_device::images::pack(&mut counted, &mut packed, LEVEL)?;
    packed.flush()?;
    fs_err::write(list, serde_json::to_vec(&manifest)?)?;
    fs_err::remove_file(file)?;
    let sha256 = Digest::from_bytes(counted.hash.finalize().into());
    Ok(UnpackedContent { size: manifest.size, sha256 })
}

/// The path with a suffix after its file name.
fn beside(path: &Path, end: &str) -> PathBuf {
    let mut name: OsString = path.as_os_str().to_owned();
    name.push(end);
    name.into()
}

/// The output directory must be missing, empty, or an image of ours.
fn is_free(out: &Path) -> io::Result<bool> {
    match fs_err::symlink_metadata(out) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(error) => Err(error),
        Ok(about) if !about.is_dir() => Ok(false),
        Ok(_) => Ok(out.join(INDEX_FILE).is_file() || fs_err::read_dir(out)?.next().is_none()),
    }
}

/// Locks a directory until the file is dropped.
fn take(directory: &Path) -> Result<File, BuildError> {
    fs_err::create_dir_all(directory)?;
    let lock = File::open(directory)?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => Err(BuildError::Locked(directory.to_owned())),
        Err(TryLockError::Error(error)) => Err(error.into()),
    }
}

fn remove(directory: &Path) -> io::Result<()> {
    match fs_err::remove_dir_all(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn measure(path: &Path) -> io::Result<(u64, Digest)> {
    let mut file = fs_err::File::open(path)?;
    let mut hash = Sha256::new();
    let mut size = 0;
    let mut buffer = vec![0; 1 << 20];
    loop {
        let count = file.read(&mut buffer)?;
        if count == 0 {
            return Ok((size, Digest::from_bytes(hash.finalize().into())));
        }
        hash.update(&buffer[..count]);
        size += count as u64;
    }
}

/// Reports the bytes that were read.
struct CountingReader<'a> {
    file: File,
    done: u64,
    total: u64,
    progress: &'a dyn BuildProgress,
    /// Computes the digest of the bytes that were read.
    hash: Sha256,
}

impl Read for CountingReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read(buffer)?;
        self.hash.update(&buffer[..count]);
        self.done += count as u64;
        self.progress.progress(self.done, self.total);
        Ok(count)
    }
}

#[cfg(test)]
mod tests;
