//! Debian, by mmdebstrap: its packages, and commands of the document in the tree.

use super::{FillError, Site};
use crate::build::BuildProgress;
use crate::document::{Debian, MIRRORS};
use crate::tool::{self, APT_GET, MMDEBSTRAP, UNSHARE};

/// Debian's own, for documents and machines that name no other. Images of documents without a mirror
/// use this one, wherever they were built.
const MIRROR: &str = "http://deb.debian.org/debian";

/// Where the installed system looks for packages, and where mmdebstrap writes a mirror without keys
/// of its own.
const SOURCES: &str = "/etc/apt/sources.list";

/// Caches and logs that building leaves in the tree, with the time of the build.
const LEFT_BEHIND: [&str; 6] = [
    "/var/cache/ldconfig/aux-cache",
    "/var/log/alternatives.log",
    "/var/log/apt/history.log",
    "/var/log/apt/term.log",
    "/var/log/bootstrap.log",
    "/var/log/dpkg.log",
];

/// Files of the building machine that mmdebstrap copies into the tree and does not remove.
const LENT: [&str; 2] = ["/etc/hostname", "/etc/resolv.conf"];

/// What apt gives to the user of this machine that it fetches as, if that one can reach the tree. In
/// the installed system it does so again.
const FETCHED_INTO: [&str; 2] = ["/var/cache/apt/archives/partial", "/var/lib/apt/lists/partial"];

pub(super) fn check() -> Result<(), FillError> {
    MMDEBSTRAP.find()?;
    UNSHARE.find()?;
    if rustix::process::geteuid().is_root() { Ok(()) } else { Err(FillError::NotRoot) }
}

pub(super) fn fill(
    debian: &Debian,
    site: &Site<'_>,
    progress: &dyn BuildProgress,
) -> Result<Vec<String>, FillError> {
    progress.stage(&format!("fetching and unpacking {}", debian.suite));
    let mut command = MMDEBSTRAP.command(site.epoch)?;
    command.args(["--quiet", "--mode=root", "--format=directory"]);
    command.arg(format!("--variant={}", debian.variant.as_str()));
    if !debian.packages.is_empty() {
        command.arg(format!("--include={}", debian.packages.join(",")));
    }
    let mirror = match &debian.mirror {
        Some(mirror) => mirror.clone(),
        None => mirror_of_this_machine(site.epoch),
    };
    progress.note(&format!("from {mirror}"));
    command.arg("--").arg(&debian.suite).arg(site.tree.path()).arg(&mirror);
    tool::run(&mut command, &site.log())?;
    if debian.mirror.is_none() && mirror != MIRROR {
        let line = format!("deb {MIRROR} {} main\n", debian.suite);
        site.tree.file(SOURCES, line.as_bytes(), 0o644)?;
    }
    for path in LENT {
        // A link belongs to a package and leads to a file that the installed system makes.
        if !site.tree.is_link(path) {
            remove(path, site)?;
        }
    }
    for path in FETCHED_INTO {
        site.tree.give_to_root(path)?;
    }
    for words in &debian.run {
        progress.stage(&format!("running {}", words.join(" ")));
        run(words, site)?;
    }
    for path in LEFT_BEHIND {
        remove(path, site)?;
    }
    Ok(packages(site))
}

/// The archive that apt of this machine fetches from, or Debian's own where apt does not say.
fn mirror_of_this_machine(epoch: u32) -> String {
    let format = ["indextargets", "--format", "$(REPO_URI)"];
    let wanted = ["Created-By: Packages", "Origin: Debian", "Label: Debian"];
    let asked = APT_GET.command(epoch).and_then(|mut apt| tool::ask(apt.args(format).args(wanted)));
    first_mirror(&asked.unwrap_or_default()).to_owned()
}

fn first_mirror(addresses: &str) -> &str {
    let mut addresses = addresses.lines().map(|line| line.trim().trim_end_matches('/'));
    let usable = addresses.find(|address| MIRRORS.iter().any(|way| address.starts_with(way)));
    usable.unwrap_or(MIRROR)
}

fn remove(path: &str, site: &Site<'_>) -> Result<(), FillError> {
    match site.tree.remove(path) {
        // In a tree without such a directory nothing was left either.
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}

/// In the tree, with processes and mounts of its own, and without a network.
fn run(words: &[String], site: &Site<'_>) -> Result<(), FillError> {
    let mut command = UNSHARE.command(site.epoch)?;
    command.args(["--mount", "--pid", "--net", "--uts", "--ipc", "--fork", "--kill-child"]);
    command.arg(format!("--mount-proc={}", site.tree.path().join("proc").display()));
    command.arg("--").arg("chroot").arg(site.tree.path()).args(words);
    Ok(tool::run(&mut command, &site.log())?)
}

/// The installed packages with their versions.
fn packages(site: &Site<'_>) -> Vec<String> {
    let status = site.tree.open("/var/lib/dpkg/status").and_then(std::io::read_to_string);
    let status = status.unwrap_or_default();
    let field = |entry: &str, name: &str| {
        entry.lines().find_map(|line| line.strip_prefix(name).map(|value| value.trim().to_owned()))
    };
    let package =
        |entry: &str| Some(format!("{}_{}", field(entry, "Package:")?, field(entry, "Version:")?));
    status.split("\n\n").filter_map(package).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_come_from_the_mirror_that_apt_of_the_machine_uses() {
        let addresses = "mirror+file:/etc/apt/mirrors/debian.list\nhttp://mirror.example/debian/\n";
        assert_eq!(first_mirror(addresses), "http://mirror.example/debian");
        for none in ["", "cdrom:[Debian]/\n"] {
            assert_eq!(first_mirror(none), MIRROR);
        }
    }
}
