//! The settings of this machine's apt: its mirrors and how they are reached. Debian trees are made
//! from the same mirrors.

use std::process::Command;

use anyhow::{Context, Result, ensure};

/// Debian's own, for machines whose apt names no other.
const MIRROR: &str = "http://deb.debian.org/debian";

/// Ways that also work from inside of a tree.
const WAYS: [&str; 3] = ["http://", "https://", "file:///"];

/// Settings below `Acquire::` that describe the connection to mirrors.
const REACHED_BY: [&str; 5] = ["Check-Valid-Until", "ftp", "http", "https", "Retries"];

/// The archive that packages come from, whatever the release.
pub(crate) fn mirror() -> Result<String> {
    Ok(archive(&targets()?))
}

/// Every Debian archive that apt of this machine uses, as lines of a `sources.list`.
pub(crate) fn sources() -> Result<Vec<String>> {
    let lines = lines(&targets()?);
    ensure!(!lines.is_empty(), "apt knows no archive of Debian; run `apt-get update`");
    Ok(lines)
}

/// Proxies and the like, as apt's options for a tree.
pub(crate) fn options() -> Result<Vec<String>> {
    Ok(reached_by(&asked("apt-config", &["dump", "Acquire"])?))
}

/// Of each archive its label, its address, the release and the component, with tabs between them.
fn targets() -> Result<String> {
    let format = "$(LABEL)\t$(REPO_URI)\t$(RELEASE)\t$(COMPONENT)";
    let wanted = ["Created-By: Packages", "Origin: Debian"];
    asked("apt-get", &[&["indextargets", "--format", format][..], &wanted].concat())
}

fn asked(program: &str, words: &[&str]) -> Result<String> {
    let output = Command::new(program).args(words).output();
    let output = output.with_context(|| format!("{program}: does not start"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program} {}: {}", words.join(" "), said.trim());
    Ok(String::from_utf8(output.stdout)?)
}

fn archive(targets: &str) -> String {
    let of_debian = targets.lines().filter_map(|line| line.strip_prefix("Debian\t"));
    let mut addresses = of_debian.filter_map(|line| line.split('\t').next());
    let usable = addresses.find(|address| WAYS.iter().any(|way| address.starts_with(way)));
    usable.unwrap_or(MIRROR).trim_end_matches('/').to_owned()
}

fn lines(targets: &str) -> Vec<String> {
    let line = |target: &str| {
        let (_, place) = target.split_once('\t')?;
        Some(format!("deb {}", place.replace('\t', " ")))
    };
    let mut lines: Vec<String> = targets.lines().filter_map(line).collect();
    // One for every architecture.
    lines.dedup();
    lines
}

fn reached_by(dump: &str) -> Vec<String> {
    let is_one = |line: &&str| {
        let name = line.strip_prefix("Acquire::").unwrap_or_default();
        let name = name.split([':', ' ']).next().unwrap_or_default();
        REACHED_BY.contains(&name) && !line.ends_with("\"\";")
    };
    dump.lines().filter(is_one).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGETS: &str = "\
Debian-Security\thttp://mirror.example/debian-security/\tbookworm-security\tmain
Debian\tmirror+file:/etc/apt/mirrors/debian.list\tbookworm\tmain
Debian\thttps://mirror.example/debian/\tbookworm\tmain
Debian\thttps://mirror.example/debian/\tbookworm\tmain
";

    #[test]
    fn trees_come_from_the_mirror_that_apt_uses() {
        assert_eq!(archive(TARGETS), "https://mirror.example/debian");
        assert_eq!(archive(""), MIRROR);
        let lines = lines(TARGETS);
        assert_eq!(lines.len(), 3);
        assert_eq!(lines[0], "deb http://mirror.example/debian-security/ bookworm-security main");
    }

    #[test]
    fn trees_reach_the_mirror_as_apt_does() {
        let dump = "Acquire \"\";\nAcquire::http \"\";\nAcquire::http::Proxy \"http://p:3142\";\n\
                    Acquire::IndexTargets::deb::DEP-11::MetaKey \"x\";\nAcquire::Retries \"3\";\n";
        let options = ["Acquire::http::Proxy \"http://p:3142\";", "Acquire::Retries \"3\";"];
        assert_eq!(reached_by(dump), options);
    }
}
