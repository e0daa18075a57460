//! Packages of this machine's Debian, fetched and unpacked below a directory; nothing is installed.

use std::io;
use std::path::{Path, PathBuf};

use crate::tool::{self, APT_CACHE, APT_GET, DPKG_DEB, ToolError};

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PackageError {
    #[error(transparent)]
    Tool(#[from] ToolError),
    #[error("cannot unpack `{package}`")]
    Io { package: String, source: io::Error },
    #[error("package `{package}` has no {what}; name another one")]
    Without { package: String, what: &'static str },
}

/// An unpacked package.
#[derive(Debug)]
pub(crate) struct Package {
    pub(crate) directory: PathBuf,
    /// With its version, as its file is called.
    pub(crate) file: String,
}

/// Fetches and unpacks a package below `directory`.
pub(crate) fn fetch(
    name: &str,
    directory: &Path,
    epoch: u32,
    log: &Path,
) -> Result<Package, PackageError> {
    let wrong = |source| PackageError::Io { package: name.to_owned(), source };
    let place = directory.join(name);
    let fetched = directory.join(format!("{name}.deb"));
    fs_err::create_dir_all(&fetched).map_err(wrong)?;
    // For every caller: the download needs no rights, and apt cannot switch to its own user without
    // them.
    let mut download = APT_GET.command(epoch)?;
    download.args(["-qq", "-o", "APT::Sandbox::User=root", "download", "--", name]);
    tool::run(download.current_dir(&fetched), log)?;
    let entries = fs_err::read_dir(&fetched).map_err(wrong)?;
    let files = entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<Vec<_>, _>>();
    let files = files.map_err(wrong)?;
    let [file] = files.as_slice() else {
        return Err(PackageError::Without { package: name.to_owned(), what: "file" });
    };
    let mut unpack = DPKG_DEB.command(epoch)?;
    tool::run(unpack.arg("--extract").arg(file).arg(&place), log)?;
    let file = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    Ok(Package { directory: place, file })
}

/// The package with a kernel in it: `linux-image-cloud-amd64` only depends on the newest one.
pub(crate) fn kernel_of(name: &str, epoch: u32) -> Result<String, PackageError> {
    let mut depends = APT_CACHE.command(epoch)?;
    let text = tool::ask(depends.args(["depends", "--important", "--", name]))?;
    Ok(first_image(&text).unwrap_or(name).to_owned())
}

fn first_image(depends: &str) -> Option<&str> {
    let names = depends.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
    names.map(str::trim).find(|name| name.starts_with("linux-image-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meta_package_leads_to_its_kernel() {
        let meta = "linux-image-cloud-amd64\n  Depends: linux-image-6.1.0-54-cloud-amd64\n";
        assert_eq!(first_image(meta), Some("linux-image-6.1.0-54-cloud-amd64"));
        let real =
            "linux-image-6.1.0-54-cloud-amd64\n  Depends: kmod\n |Depends: initramfs-tools\n";
        assert_eq!(first_image(real), None);
    }
}
