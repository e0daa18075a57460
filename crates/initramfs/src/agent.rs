//! The image that provisions machines: the agent as the first program, drivers, tools, and the
//! authority of the controllers that it trusts.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use fs_err as fs;

use crate::cpio;
use crate::modules::{Modules, ModulesError, SelectedModules};
use crate::programs::{self, ProgramError};
use crate::{Tree, TreeError, pack};

/// The content of an image.
#[derive(Debug)]
pub struct Recipe {
    /// The program `hoist-agent`.
    pub agent: PathBuf,
    /// `lib/modules/<release>` of the kernel.
    pub modules: PathBuf,
    /// Drivers beyond [`DRIVERS`].
    pub more_modules: Vec<String>,
    /// Programs by their names, beyond [`TOOLS`].
    pub tools: Vec<String>,
    /// Directories like `/lib/firmware`; files that the drivers ask for are taken from the first
    /// that has them.
    pub firmware: Vec<PathBuf>,
    /// Certificates as PEM.
    pub authority: Option<Vec<u8>>,
    /// Archives that are put behind the image as they are.
    pub archives: Vec<PathBuf>,
    /// Compression level.
    pub level: i32,
}

/// An image is made once and fetched by every node; above this the kernel cannot unpack it.
pub const SMALLEST: i32 = 19;

/// Programs of every image: file systems of ext and swap, which also grow.
pub const TOOLS: [&str; 4] = ["mke2fs", "mkswap", "e2fsck", "resize2fs"];

/// Drivers of disks and networks. Drivers that a kernel lacks are skipped.
pub const DRIVERS: [&str; 58] = [
    // Disks.
    "nvme",
    "vmd",
    "ahci",
    "ata_piix",
    "sd_mod",
    "virtio_blk",
    "virtio_scsi",
    "mpt3sas",
    "mpi3mr",
    "mptsas",
    "isci",
    "megaraid_sas",
    "smartpqi",
    "hpsa",
    "aacraid",
    "hv_storvsc",
    "vmw_pvscsi",
    "xen_blkfront",
    // Networks.
    "virtio_net",
    "e1000",
    "e1000e",
    "igb",
    "igc",
    "ixgbe",
    "ixgbevf",
    "i40e",
    "iavf",
    "ice",
    "tg3",
    "bnxt_en",
    "bnx2",
    "bnx2x",
    "cxgb4",
    "enic",
    "be2net",
    "mlx4_en",
    "mlx5_core",
    "qede",
    "sfc",
    "r8169",
    "atlantic",
    "vmxnet3",
    "ena",
    "gve",
    "hv_netvsc",
    "xen_netfront",
    "8139cp",
    // Buses and randomness of virtual machines.
    "virtio_pci",
    "virtio_mmio",
    "virtio_rng",
    "hv_vmbus",
    // File systems without a disk of their own.
    "efivarfs",
    "vfat",
    "nls_cp437",
    "nls_ascii",
    // The file system that files are written to; the kernel loads its checksums by name, so they
    // are no dependency.
    "ext4",
    "crc32c_generic",
    "crc32c_intel",
];

/// Drivers that only some layouts need, with their descriptions.
pub const EXTRAS: [(&str, &[&str]); 4] = [
    ("md", &["md_mod", "raid0", "raid1", "raid10", "raid456"]),
    ("dm", &["dm_mod", "dm_snapshot", "dm_mirror", "dm_thin_pool"]),
    ("crypt", &["dm_mod", "dm_crypt", "aesni_intel", "xts", "algif_skcipher"]),
    ("xfs", &["xfs"]),
];

/// The image, and what of it takes how much.
#[derive(Debug)]
pub struct Image {
    pub bytes: Vec<u8>,
    pub parts: Vec<Part>,
    /// Of the kernel that the modules are for.
    pub release: String,
    /// Drivers that were asked for and are in the kernel itself.
    pub built_in: Vec<String>,
    /// Drivers that were asked for by name and are nowhere.
    pub absent: Vec<String>,
    /// The programs in it, by name.
    pub tools: Vec<String>,
    /// Files from the directories of firmware.
    pub firmware: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    pub name: String,
    /// As files.
    pub unpacked: u64,
    /// In the image.
    pub packed: u64,
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    #[error(transparent)]
    Modules(#[from] ModulesError),
    #[error(transparent)]
    Program(#[from] ProgramError),
    #[error(transparent)]
    Tree(#[from] TreeError),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("`{0}` is not an initramfs archive; make it with `cpio -H newc`, compressed or not")]
    NoArchive(PathBuf),
    #[error("`{0}` is not a directory of firmware; name one like `/lib/firmware`")]
    NoFirmware(PathBuf),
    #[error(
        "the authority contains no certificate; name a file that begins with `-----BEGIN CERTIFICATE-----`"
    )]
    NoAuthority,
}

/// Where the agent looks for the authority of its controllers.
pub const AUTHORITY: &str = "etc/hoist/ca.pem";

/// Settings files without which tools behave differently.
const SETTINGS: [(&str, &str); 1] = [("mke2fs", "/etc/mke2fs.conf")];

/// Mount points and directories that programs expect.
const PLACES: [&str; 8] = ["dev", "etc", "proc", "root", "run", "sys", "tmp", "var"];

/// Magic bytes of archives: not packed, with zstd, gzip and xz.
const ARCHIVES: [&[u8]; 4] = [cpio::MAGIC, b"\x28\xb5\x2f\xfd", b"\x1f\x8b", b"\xfd7zXZ"];

/// The words in `--with` as drivers; a word that is none is a driver itself.
pub fn drivers(word: &str) -> Vec<String> {
    let extra = EXTRAS.iter().find(|(name, _)| *name == word);
    extra.map_or_else(
        || vec![word.to_owned()],
        |(_, names)| names.iter().map(|name| (*name).to_owned()).collect(),
    )
}

/// Each part is an archive of its own, so that its size is known and a change in one leaves the
/// others alone.
pub fn build(recipe: &Recipe) -> Result<Image, ImageError> {
    let modules = Modules::of(&recipe.modules)?;
    let chosen = choose(&modules, recipe)?;
    let mut program = Tree::new();
    for place in PLACES {
        program.directory(place)?;
    }
    programs::put(&mut program, &recipe.agent, "init")?;
    // Whom the kernel asks for file systems and the like.
    program.link("sbin/modprobe", "/init")?;
    program.link("bin/hoist-agent", "/init")?;
    if let Some(authority) = &recipe.authority {
        if !String::from_utf8_lossy(authority).contains("-----BEGIN CERTIFICATE-----") {
            return Err(ImageError::NoAuthority);
        }
        program.file(AUTHORITY, authority.clone())?;
    }
    let names = tools_of(recipe);
    let tools = tools(&program, &names)?;
    let mut drivers = Tree::new();
    chosen.put(&mut drivers, modules.release())?;
    let firmware = firmware(&chosen, &recipe.firmware)?;
    let mut image = Image {
        bytes: Vec::new(),
        parts: Vec::new(),
        release: modules.release().to_owned(),
        built_in: chosen.built_in,
        absent: chosen.absent,
        tools: names,
        firmware: firmware.files(),
    };
    image.add("agent", &program, recipe.level)?;
    image.add("tools", &tools, recipe.level)?;
    image.add("modules", &drivers, recipe.level)?;
    if !recipe.firmware.is_empty() {
        image.add("firmware", &firmware, recipe.level)?;
    }
    for path in &recipe.archives {
        let archive = fs::read(path)?;
        if !ARCHIVES.iter().any(|magic| archive.starts_with(magic)) {
            return Err(ImageError::NoArchive(path.clone()));
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        image.append(name, archive.len() as u64, &archive);
    }
    Ok(image)
}

/// All programs of an image, each once.
fn tools_of(recipe: &Recipe) -> Vec<String> {
    let mut names: Vec<String> = TOOLS.map(str::to_owned).to_vec();
    for name in &recipe.tools {
        if !names.contains(name) {
            names.push(name.clone());
        }
    }
    names
}

/// The programs with their settings, without the files that the image has anyway.
fn tools(program: &Tree, names: &[String]) -> Result<Tree, ImageError> {
    let mut tools = program.clone();
    for tool in names {
        programs::put(&mut tools, &programs::find(tool)?, &format!("sbin/{tool}"))?;
        let settings =
            SETTINGS.iter().filter(|(of, _)| of == tool).map(|(_, path)| Path::new(path));
        for path in settings.filter(|path| path.is_file()) {
            tools.file(&path.to_string_lossy(), fs::read(path)?)?;
        }
    }
    Ok(tools.without(program))
}

/// The files that the drivers name, as they are or packed as the kernel unpacks them. Drivers name
/// files for hardware of every age, so one that no directory has is no error.
fn firmware(chosen: &SelectedModules, directories: &[PathBuf]) -> Result<Tree, ImageError> {
    let mut tree = Tree::new();
    for directory in directories {
        if !directory.is_dir() {
            return Err(ImageError::NoFirmware(directory.clone()));
        }
    }
    let names: BTreeSet<&String> =
        chosen.modules.iter().flat_map(|module| &module.firmware).collect();
    for name in names {
        let files = directories.iter().flat_map(|directory| {
            ["", ".xz", ".zst"].map(|end| (end, directory.join(format!("{name}{end}"))))
        });
        if let Some((end, file)) = files.into_iter().find(|(_, file)| file.is_file()) {
            tree.file(&format!("lib/firmware/{name}{end}"), fs::read(file)?)?;
        }
    }
    Ok(tree)
}

/// Modules requested by name must exist.
fn choose(modules: &Modules, recipe: &Recipe) -> Result<SelectedModules, ImageError> {
    let more = recipe.more_modules.iter().map(String::as_str);
    let mut chosen = modules.choose(DRIVERS.into_iter().chain(more))?;
    chosen
        .absent
        .retain(|absent| recipe.more_modules.iter().any(|name| name.replace('-', "_") == *absent));
    chosen.built_in.sort();
    chosen.built_in.dedup();
    Ok(chosen)
}

impl Image {
    fn add(&mut self, name: &str, tree: &Tree, level: i32) -> Result<(), ImageError> {
        let packed = pack(&tree.archive(), level)?;
        self.append(name.to_owned(), tree.size(), &packed);
        Ok(())
    }

    fn append(&mut self, name: String, unpacked: u64, packed: &[u8]) {
        self.parts.push(Part { name, unpacked, packed: packed.len() as u64 });
        self.bytes.extend_from_slice(packed);
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}
