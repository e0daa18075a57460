//! The provisioning agent as a boot outcome: its kernel, its images and the provision token on its
//! command line.
//!
//! The token is a function of the boot state and the site's key, so no lookup is needed for it.

use hoist_model::boot_config::ARTIFACT_SCHEME;
use hoist_model::provision_profile::agent_artifacts;
use hoist_model::{Arch, Artifact, ArtifactName, Node, ProvisionProfileSpec, Provisioning};
use hoist_site::{Roster, SiteKey};

use crate::command_line::{Line, Origin, initrd_name, resolve};
use crate::outcome::Images;

/// In the place of a token where people look.
const HIDDEN: &str = "(token)";

/// Why a node that is to be provisioned cannot be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoAgent {
    #[error("artifact {0} does not exist; add it with hoist agent image --add")]
    Artifact(String),
    #[error("no artifact contains the plug-in for {0}; add one with hoist plugin pack --add")]
    Plugin(String),
    #[error("this controller has no TLS address for agents; set `agent_server`")]
    Server,
}

/// An archive of plug-ins, and what of a profile is in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Archive<'r> {
    pub name: &'r ArtifactName,
    pub has: Vec<&'r str>,
}

/// The archives with the plug-ins that a profile needs on machines of an architecture, or the
/// plug-ins that no artifact provides. Plug-ins inside the agent's image need no archive.
pub fn archives<'r>(
    roster: &'r Roster,
    profile: &'r ProvisionProfileSpec,
    arch: Arch,
) -> Result<Vec<Archive<'r>>, (String, &'r str)> {
    let [_, initrd] = agent_artifacts(arch);
    let in_agent = |name: &str| roster.artifact(&initrd).is_some_and(|image| image.spec.has(name));
    let is_for = |of: Arch| of == Arch::Unknown || arch == Arch::Unknown || of == arch;
    let mut found: Vec<(&Artifact, Archive<'r>)> = Vec::new();
    for (place, needed) in profile.of_plugins() {
        if in_agent(needed) {
            continue;
        }
        if let Some((_, archive)) = found.iter_mut().find(|(archive, _)| archive.spec.has(needed)) {
            archive.has.push(needed);
            continue;
        }
        let all = roster.artifacts().filter(|archive| is_for(archive.spec.arch));
        let archive = all.filter(|archive| archive.spec.has(needed)).find(|archive| {
            // That of another architecture says so by its name.
            !archive.name.as_str().starts_with("agent-")
        });
        let archive = archive.ok_or((place, needed))?;
        found.push((archive, Archive { name: &archive.name, has: vec![needed] }));
    }
    Ok(found.into_iter().map(|(_, archive)| archive).collect())
}

/// Of which architecture a node is that asked with `buildarch`.
pub fn arch(node: &Node, buildarch: Option<&str>) -> Arch {
    match node.spec.arch {
        Arch::Unknown => arch_of(buildarch),
        arch => arch,
    }
}

/// The kernel and the initrds of the agent, for a node that asked with `buildarch`.
pub fn images(
    roster: &Roster,
    base: &str,
    node: &Node,
    provisioning: &Provisioning,
    buildarch: Option<&str>,
) -> Result<Images, NoAgent> {
    let arch = arch(node, buildarch);
    let [kernel, initrd] = agent_artifacts(arch);
    if let Some(missing) =
        [&kernel, &initrd].into_iter().find(|name| roster.artifact(name).is_none())
    {
        return Err(NoAgent::Artifact(missing.clone()));
    }
    let url = |name: &str| resolve(roster, base, &format!("{ARTIFACT_SCHEME}{name}"));
    let mut initrds = vec![url(&initrd)];
    if let Some(profile) = roster.provision_profile(&provisioning.profile) {
        let archives = archives(roster, &profile.spec, arch);
        let archives = archives.map_err(|(_, needed)| NoAgent::Plugin(needed.to_owned()))?;
        initrds.extend(archives.iter().map(|archive| url(archive.name.as_str())));
    }
    Ok(Images { kernel: url(&kernel), initrd: initrds })
}

/// As iPXE calls them.
fn arch_of(buildarch: Option<&str>) -> Arch {
    match buildarch {
        Some("arm64") => Arch::Aarch64,
        Some("riscv64") => Arch::Riscv64,
        _ => Arch::X86_64,
    }
}

/// The command line for so many initrds, without a token unless there is a key to make it with.
pub fn line(
    roster: &Roster,
    server: &str,
    node: &Node,
    provisioning: &Provisioning,
    initrds: usize,
    key: Option<&SiteKey>,
) -> Line {
    let token = key.map(|key| key.provision(node.id, node.generation, &provisioning.nonce));
    let token = token.as_ref().map_or(HIDDEN, |token| token.as_str());
    let mut line = Line::default();
    for i in 0..initrds.max(1) {
        line.push(format!("initrd={}", initrd_name(i)), Origin::Initrd);
    }
    line.push(
        format!("hoist.server={server} hoist.node={} hoist.token={token}", node.id),
        Origin::Node,
    );
    // The interface that iPXE booted from, as iPXE has it, and who knows the names of controllers and
    // mirrors.
    line.push(
        "ip=${netX/ip}::${netX/gateway}:${netX/netmask}:::none:${netX/dns} \
         BOOTIF=01-${netX/mac:hexhyp}",
        Origin::BootRequest,
    );
    if let Some(profile) = roster.provision_profile(&provisioning.profile) {
        line.push(profile.spec.agent_params.trim(), Origin::Params);
    }
    line
}

/// The TLS address of a controller that is reached at `base`, where it listens on `port`.
pub fn secure(base: &str, port: Option<u16>) -> Option<String> {
    if base.starts_with("https://") {
        return Some(base.to_owned());
    }
    let authority = base.strip_prefix("http://")?.split('/').next()?;
    let host = match authority.rsplit_once(':') {
        // The colons of an IPv6 address are not that of a port.
        Some((host, port)) if !port.contains(']') => host,
        _ => authority,
    };
    let port = port.filter(|_| !host.is_empty())?;
    Some(format!("https://{host}:{port}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tls_address_is_on_the_host_that_the_machine_asked() {
        let secure = |base, port| secure(base, port);
        assert_eq!(secure("https://a.example/x", None).as_deref(), Some("https://a.example/x"));
        assert_eq!(secure("http://10.0.2.2:80", Some(27),).as_deref(), Some("https://10.0.2.2:27"));
        assert_eq!(
            secure("http://boot.example", Some(1)).as_deref(),
            Some("https://boot.example:1")
        );
        assert_eq!(secure("http://[::1]:80", Some(1)).as_deref(), Some("https://[::1]:1"));
        assert_eq!(secure("http://[::1]", Some(1)).as_deref(), Some("https://[::1]:1"));
        assert_eq!(secure("http://10.0.2.2", None), None);
        assert_eq!(secure("", Some(1)), None);
    }

    #[test]
    fn an_agent_is_of_the_architecture_that_asks() {
        assert_eq!(arch_of(Some("arm64")), Arch::Aarch64);
        for usual in [None, Some("i386"), Some("x86_64")] {
            assert_eq!(arch_of(usual), Arch::X86_64);
        }
    }
}
