//! What boots an image: taken from the packages of this machine, or made of them.

use std::io;
use std::path::{Path, PathBuf};

use crate::pe::{self, PeError};
use crate::tool::{self, GRUB_MKIMAGE, ToolError};

/// Where systemd's boot programs are, and the package that brings them.
const SYSTEMD: &str = "/usr/lib/systemd/boot/efi";
const SYSTEMD_PACKAGE: &str = "systemd-boot-efi";

const GRUB: &str = "/usr/lib/grub";

/// Largest kernel and initial RAM disk that become one program.
const MAX_PART: u64 = 1 << 30;

/// What every GRUB image has in it, so that it needs no file but its configuration.
const MODULES: [&str; 21] = [
    "part_gpt",
    "part_msdos",
    "fat",
    "ext2",
    "search",
    "search_fs_file",
    "search_fs_uuid",
    "search_label",
    "configfile",
    "normal",
    "linux",
    "boot",
    "echo",
    "test",
    "serial",
    "terminal",
    "sleep",
    "reboot",
    "halt",
    "minicmd",
    "gzio",
];

/// Finds the partition that has the configuration, whatever the disk is called.
const GRUB_CONFIG: &str = "search --no-floppy --file --set=root /hoist/grub.cfg\n\
    set prefix=($root)/hoist\n\
    configfile ($root)/hoist/grub.cfg\n";

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoaderError {
    #[error(transparent)]
    Tool(#[from] ToolError),
    #[error("`{}` is missing; install the package `{package}`", path.display())]
    Missing { path: PathBuf, package: &'static str },
    #[error("`{}` cannot become a part of a unified kernel image: {why}", path.display())]
    Part { path: PathBuf, why: String },
    #[error("cannot use systemd's stub")]
    Stub(#[from] PeError),
    #[error("cannot write the boot loaders")]
    Io(#[from] io::Error),
}

/// Something of a package that is used as it is.
fn of_package(path: PathBuf, package: &'static str) -> Result<PathBuf, LoaderError> {
    if path.is_file() { Ok(path) } else { Err(LoaderError::Missing { path, package }) }
}

pub(crate) fn systemd_boot() -> Result<PathBuf, LoaderError> {
    of_package(Path::new(SYSTEMD).join("systemd-bootx64.efi"), SYSTEMD_PACKAGE)
}

fn stub() -> Result<PathBuf, LoaderError> {
    of_package(Path::new(SYSTEMD).join("linuxx64.efi.stub"), SYSTEMD_PACKAGE)
}

/// Kernel, its words and its initial RAM disk as one EFI program.
pub(crate) fn uki(
    kernel: &Path,
    initrd: Option<&Path>,
    words: &[String],
    to: &Path,
) -> Result<(), LoaderError> {
    let stub = fs_err::read(stub()?)?;
    let words = words.join(" ");
    let kernel = part(kernel)?;
    let initrd = initrd.map(part).transpose()?;
    let mut sections = vec![(".cmdline", words.as_bytes())];
    if let Some(initrd) = &initrd {
        sections.push((".initrd", initrd));
    }
    // Last: systemd's stub unpacks it in place, and it needs room behind it.
    sections.push((".linux", &kernel));
    Ok(fs_err::write(to, pe::append(&stub, &sections)?)?)
}

fn part(path: &Path) -> Result<Vec<u8>, LoaderError> {
    let length = fs_err::metadata(path)?.len();
    if length > MAX_PART {
        let why = format!("{length} bytes, more than the limit of {MAX_PART}");
        return Err(LoaderError::Part { path: path.to_owned(), why });
    }
    Ok(fs_err::read(path)?)
}

/// Which machines a GRUB image is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Platform {
    Uefi,
    Bios,
}

impl Platform {
    fn name(self) -> &'static str {
        match self {
            Self::Uefi => "x86_64-efi",
            Self::Bios => "i386-pc",
        }
    }

    fn package(self) -> &'static str {
        match self {
            Self::Uefi => "grub-efi-amd64-bin",
            Self::Bios => "grub-pc-bin",
        }
    }

    /// How it reaches disks and shows something.
    fn modules(self) -> &'static [&'static str] {
        match self {
            Self::Uefi => &["efi_gop", "all_video"],
            Self::Bios => &["biosdisk"],
        }
    }
}

/// Makes GRUB as one file for a platform. `work` is a directory for temporary files.
pub(crate) fn grub(
    platform: Platform,
    to: &Path,
    work: &Path,
    epoch: u32,
) -> Result<(), LoaderError> {
    let directory = grub_directory(platform)?;
    let config = work.join("grub.cfg");
    fs_err::write(&config, GRUB_CONFIG)?;
    let mut command = GRUB_MKIMAGE.command(epoch)?;
    command.args(["-O", platform.name(), "-p", "/hoist"]);
    command.arg("-d").arg(directory).arg("-c").arg(&config).arg("-o").arg(to);
    command.args(MODULES).args(platform.modules());
    Ok(tool::run(&mut command, &work.join("grub.log"))?)
}

/// The boot sector that the BIOS loads.
pub(crate) fn grub_boot() -> Result<PathBuf, LoaderError> {
    of_package(grub_directory(Platform::Bios)?.join("boot.img"), Platform::Bios.package())
}

fn grub_directory(platform: Platform) -> Result<PathBuf, LoaderError> {
    let directory = Path::new(GRUB).join(platform.name());
    of_package(directory.join("moddep.lst"), platform.package())?;
    Ok(directory)
}

/// Checks that this machine has the packages of these loaders, before anything is built.
pub(crate) fn check(loaders: &[crate::document::Loader]) -> Result<(), LoaderError> {
    use crate::document::Loader;
    for loader in loaders {
        match loader {
            Loader::SystemdBoot => drop(systemd_boot()?),
            Loader::Uki => drop(stub()?),
            Loader::Grub => {
                GRUB_MKIMAGE.find()?;
                grub_directory(Platform::Uefi)?;
                grub_boot()?;
            }
        }
    }
    Ok(())
}
