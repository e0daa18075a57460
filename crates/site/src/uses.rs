//! Which documents name which artifacts. Every decision about removing an artifact uses this.

use std::collections::{BTreeSet, HashMap, HashSet};

use hoist_model::boot_config::{artifact_name_length, artifacts_in};
use hoist_model::{Artifact, BootConfig, BssImage, BssRecord, Digest, Name, ProvisionProfile};

use crate::roster::Roster;

/// Where content is served, as it stands in URLs.
const SERVED: &str = "/artifacts/";

#[derive(Debug, PartialEq, Eq, Hash)]
enum Reference<'r> {
    Name(&'r str),
    Digest(Digest),
    /// A plug-in that some archive must provide.
    Plugin(&'r str),
}

/// Who names an artifact.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ArtifactUsers {
    pub configs: BTreeSet<Name>,
    pub profiles: BTreeSet<Name>,
    /// Of BSS, those of images included.
    pub records: usize,
}

/// All names of artifacts and digests of contents that documents mention.
#[derive(Debug, Default)]
pub struct Uses<'r>(HashMap<Reference<'r>, ArtifactUsers>);

impl<'r> Uses<'r> {
    pub fn of(roster: &'r Roster) -> Self {
        Self::new(
            roster.boot_configs().map(AsRef::as_ref),
            roster.bss_records().map(AsRef::as_ref),
            roster.bss_images().map(AsRef::as_ref),
            roster.provision_profiles().map(AsRef::as_ref),
        )
    }

    pub(crate) fn new(
        configs: impl Iterator<Item = &'r BootConfig>,
        records: impl Iterator<Item = &'r BssRecord>,
        images: impl Iterator<Item = &'r BssImage>,
        profiles: impl Iterator<Item = &'r ProvisionProfile>,
    ) -> Self {
        let mut uses = Self::default();
        for config in configs {
            for reference in found_in(texts(config)) {
                uses.0.entry(reference).or_default().configs.insert(config.name.clone());
            }
        }
        for record in records {
            let texts = [&record.kernel, &record.initrd, &record.params];
            for reference in found_in(texts.into_iter().map(String::as_str)) {
                uses.0.entry(reference).or_default().records += 1;
            }
        }
        for image in images {
            let texts = [image.image.path.as_str(), image.params.as_str()];
            for reference in found_in(texts.into_iter()) {
                uses.0.entry(reference).or_default().records += 1;
            }
        }
        for profile in profiles {
            let named: HashSet<_> =
                profile.spec.artifacts().into_iter().map(|(_, name)| name).collect();
            for name in named {
                let users = uses.0.entry(Reference::Name(name)).or_default();
                users.profiles.insert(profile.name.clone());
            }
            for (_, needed) in profile.spec.of_plugins() {
                let users = uses.0.entry(Reference::Plugin(needed)).or_default();
                users.profiles.insert(profile.name.clone());
            }
        }
        uses
    }

    pub fn users(&self, artifact: &'r Artifact) -> ArtifactUsers {
        let by_digest = self.0.get(&Reference::Digest(artifact.spec.sha256));
        let by_name = self.0.get(&Reference::Name(artifact.name.as_str()));
        let provided = artifact.spec.provides.iter();
        let by_plugins = provided.filter_map(|name| self.0.get(&Reference::Plugin(name)));
        by_digest.into_iter().chain(by_name).chain(by_plugins).fold(
            ArtifactUsers::default(),
            |mut all, users| {
                all.configs.extend(users.configs.iter().cloned());
                all.profiles.extend(users.profiles.iter().cloned());
                all.records += users.records;
                all
            },
        )
    }

    pub fn names(&self, artifact: &'r Artifact) -> bool {
        self.users(artifact) != ArtifactUsers::default()
    }

    /// Content that is named by itself, in a URL.
    pub fn contents(&self) -> impl Iterator<Item = Digest> {
        self.0.keys().filter_map(|reference| match reference {
            Reference::Digest(digest) => Some(*digest),
            Reference::Name(_) | Reference::Plugin(_) => None,
        })
    }
}

fn texts(config: &BootConfig) -> impl Iterator<Item = &str> {
    let spec = &config.spec;
    let initrds = spec.initrd.iter().map(String::as_str);
    let rest = [spec.kernel.as_str(), spec.params.as_str()];
    initrds.chain(rest).chain(spec.template.as_deref())
}

/// Each once.
fn found_in<'r>(texts: impl Iterator<Item = &'r str>) -> HashSet<Reference<'r>> {
    texts.flat_map(|text| artifacts_in(text).map(Reference::Name).chain(urls_in(text))).collect()
}

fn urls_in(text: &str) -> impl Iterator<Item = Reference<'_>> {
    text.match_indices(SERVED).filter_map(|(at, _)| {
        let rest = &text[at + SERVED.len()..];
        if let Some(name) = rest.strip_prefix("by-name/") {
            return Some(Reference::Name(&name[..artifact_name_length(name)]));
        }
        let digits = rest.strip_prefix("sha256:").unwrap_or(rest).get(..64)?;
        digits.parse().ok().map(Reference::Digest)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn artifact_names_and_digests_are_found_in_texts() {
        let digest: Digest = "ab".repeat(32).parse().unwrap();
        let line = format!(
            "root=live:artifact:image.squashfs a=http://c/artifacts/{digest}/vmlinuz \
             b=http://c/artifacts/by-name/initrd.img?x c=http://c/artifacts/short"
        );
        let found = found_in([line.as_str(), "artifact:kernel"].into_iter());
        let expected = [
            Reference::Name("image.squashfs"),
            Reference::Name("initrd.img"),
            Reference::Name("kernel"),
            Reference::Digest(digest),
        ];
        assert_eq!(found, expected.into());
    }
}
