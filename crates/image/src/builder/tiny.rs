//! A kernel, busybox, some modules and an init: the smallest system that reports its findings.

use std::path::{Path, PathBuf};

use hoist_initramfs::modules::Modules;

use super::{FillError, Site, check_file};
use crate::build::BuildProgress;
use crate::document::{Image, Kernel, Source, Tiny};
use crate::package::{self, PackageError};
use crate::tool::{APT_CACHE, APT_GET, DPKG_DEB};
use crate::tree;

const INIT: &str = include_str!("../init.sh");

/// Where things must be that nothing is in yet.
const DIRECTORIES: [(&str, u32); 11] = [
    ("/bin", 0o755),
    ("/boot", 0o755),
    ("/dev", 0o755),
    ("/etc", 0o755),
    ("/mnt", 0o755),
    ("/proc", 0o555),
    ("/root", 0o700),
    ("/run", 0o755),
    ("/sbin", 0o755),
    ("/sys", 0o555),
    ("/tmp", 0o1777),
];

pub(super) fn check(tiny: &Tiny, beside: &Path) -> Result<(), FillError> {
    if let Some(file) = &tiny.kernel.file {
        check_file(&beside.join(file), "builder.tiny.kernel")?;
    }
    if let Source::File(file) = &tiny.busybox {
        check_file(&beside.join(file), "builder.tiny.busybox")?;
    }
    let is_package = matches!(tiny.busybox, Source::Package(_)) || tiny.kernel.package.is_some();
    if is_package {
        for tool in [APT_CACHE, APT_GET, DPKG_DEB] {
            tool.find()?;
        }
    }
    Ok(())
}

pub(super) fn fill(
    tiny: &Tiny,
    image: &Image,
    site: &Site<'_>,
    progress: &dyn BuildProgress,
) -> Result<Vec<String>, FillError> {
    let mut made_from = Vec::new();
    let (kernel, modules) = kernel(&tiny.kernel, site, progress, &mut made_from)?;
    let busybox = busybox(&tiny.busybox, site, progress, &mut made_from)?;
    progress.stage("filling the tree");
    for (path, mode) in DIRECTORIES {
        site.tree.directory(path, mode)?;
    }
    let put = |path: &str, from: &Path, mode: u32, place: &str| {
        site.tree.copy(path, from, mode).map_err(|source| {
            let place = format!("builder.tiny.{place}");
            let path = from.display().to_string();
            FillError::Put { place, path, source }
        })
    };
    put("/boot/vmlinuz", &kernel, 0o644, "kernel")?;
    put("/bin/busybox", &busybox, 0o755, "busybox")?;
    site.tree.link("/bin/sh", "busybox")?;
    put_modules(&tiny.modules, modules.as_deref(), site)?;
    let init = tiny.init.as_deref().unwrap_or(INIT);
    site.tree.file("/sbin/init", init.as_bytes(), 0o755)?;
    // Where the kernel looks in an initial RAM disk.
    site.tree.link("/init", "sbin/init")?;
    site.tree.file("/etc/hostname", format!("{}\n", image.name).as_bytes(), 0o644)?;
    site.tree.file("/etc/passwd", b"root:x:0:0:root:/root:/bin/sh\n", 0o644)?;
    site.tree.file("/etc/fstab", b"", 0o644)?;
    Ok(made_from)
}

/// In the order in which they can be loaded, which is how init does it.
fn put_modules(
    names: &[String],
    directory: Option<&Path>,
    site: &Site<'_>,
) -> Result<(), FillError> {
    if names.is_empty() {
        return Ok(());
    }
    let modules = Modules::of(directory.ok_or(FillError::NoModulesDirectory)?)?;
    let chosen = modules.choose(names.iter().map(String::as_str))?;
    if !chosen.absent.is_empty() {
        return Err(FillError::NoModules(chosen.absent));
    }
    for (number, module) in chosen.modules.iter().enumerate() {
        let path = format!("/lib/hoist/modules/{number:03}-{}.ko", module.name);
        site.tree.file(&path, &module.content, 0o644)?;
    }
    Ok(())
}

/// The kernel's file, and the directory of its modules.
fn kernel(
    kernel: &Kernel,
    site: &Site<'_>,
    progress: &dyn BuildProgress,
    made_from: &mut Vec<String>,
) -> Result<(PathBuf, Option<PathBuf>), FillError> {
    let Some(name) = &kernel.package else {
        let file = kernel.file.as_deref().unwrap_or_default();
        let modules = kernel.modules.as_deref().map(|modules| site.here(modules));
        return Ok((site.here(file), modules));
    };
    let name = package::kernel_of(name, site.epoch)?;
    progress.stage(&format!("fetching {name}"));
    let fetched = package::fetch(&name, site.work, site.epoch, &site.log())?;
    made_from.push(fetched.file.clone());
    let file = find(&fetched.directory.join("boot"), |name| name.starts_with("vmlinuz-"));
    let file = file?.ok_or(PackageError::Without { package: name, what: "kernel" })?;
    Ok((file, modules_of(&fetched.directory)?))
}

fn busybox(
    source: &Source,
    site: &Site<'_>,
    progress: &dyn BuildProgress,
    made_from: &mut Vec<String>,
) -> Result<PathBuf, FillError> {
    let name = match source {
        Source::File(file) => return Ok(site.here(file)),
        Source::Package(name) => name,
    };
    progress.stage(&format!("fetching {name}"));
    let fetched = package::fetch(name, site.work, site.epoch, &site.log())?;
    made_from.push(fetched.file);
    let file = find(&fetched.directory, |name| name == "busybox")?;
    let package = name.clone();
    let what = "busybox";
    Ok(file.ok_or(PackageError::Without { package, what })?)
}

/// `lib/modules/RELEASE` of a package.
fn modules_of(package: &Path) -> std::io::Result<Option<PathBuf>> {
    let list = find(package, |name| name == "modules.builtin")?;
    Ok(list.and_then(|list| list.parent().map(Path::to_owned)))
}

fn find(below: &Path, is_it: impl Fn(&str) -> bool) -> std::io::Result<Option<PathBuf>> {
    let is_meant = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        is_it(name) && path.is_file() && !path.is_symlink()
    };
    Ok(tree::entries(below)?.into_iter().find(is_meant))
}
