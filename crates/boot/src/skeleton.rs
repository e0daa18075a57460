//! Scripts of one configuration differ only in the machine and the host it asked. A script is
//! rendered once for a machine that does not exist and cut at the names of that machine and host;
//! for every real machine the gaps are filled.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::Arc;

use arc_swap::ArcSwap;
use hoist_model::{BootConfig, Mac, Name, Node};
use hoist_site::{Roster, SeedProvider};

use crate::answer::JOIN_TOKEN;
use crate::presign::is_s3;

/// No machine has it: it is a group address.
pub(crate) const NOBODY: Mac = Mac::from_octets([0xff, 0xff, 0xff, 0xff, 0xff, 0xfe]);

/// A host that is nowhere, and the URL of a controller on it.
pub(crate) const NOWHERE: &str = "nowhere.invalid";
const NOWHERE_URL: &str = "http://nowhere.invalid";

/// What [`NOBODY`] has on its command line for its seed.
pub(crate) const NO_SEED: &str = "ds=seed.nowhere.invalid";

/// A node's words for the kernel about its seed, made for [`NOWHERE_URL`]: where the node reaches
/// the controller is filled in for every answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seed(Box<str>);

impl Seed {
    /// `None` where the provider has nothing to say.
    pub(crate) fn of(provider: &dyn SeedProvider, roster: &Roster, node: &Node) -> Option<Self> {
        let words = provider.seed_ref(roster, node, NOWHERE_URL).kernel_args;
        (!words.is_empty()).then(|| Self(words.into()))
    }

    /// Nothing if they need a URL and there is none: cloud-init cannot do with a path.
    pub(crate) fn at(&self, base: &str) -> String {
        if base.is_empty() && self.0.contains(NOWHERE_URL) {
            return String::new();
        }
        self.0.replace(NOWHERE_URL, base)
    }
}

/// What gaps are filled with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ScriptValues<'a> {
    pub(crate) mac: Mac,
    /// The MAC as the machine wrote it.
    pub(crate) spelled: Option<&'a str>,
    pub(crate) retry: u32,
    /// The URL where it asked.
    pub(crate) base: &'a str,
    pub(crate) seed: Option<&'a Seed>,
}

/// A script with gaps.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Skeleton {
    pieces: Vec<(String, Gap)>,
    rest: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Gap {
    /// `01-ff-ff-ff-ff-ff-fe`
    Bootif,
    /// `mac=ff:ff:ff:ff:ff:fe&retry=1`
    Query,
    /// [`NOWHERE_URL`]
    Base,
    /// [`NO_SEED`], with the blank in front of it
    Seed,
}

impl Skeleton {
    /// Cuts the script of [`NOBODY`], who asked [`NOWHERE`] or an advertised URL; `None` if the
    /// script cannot be made from gaps alone.
    pub(crate) fn cut(script: &str, config: &BootConfig) -> Option<Self> {
        let mac = NOBODY.to_string();
        let dashed = NOBODY.to_string().replace(':', "-");
        let bootif = format!("01-{dashed}");
        let query = format!("mac={mac}&retry=1");
        let seed = format!(" {NO_SEED}");
        let spec = &config.spec;
        let mut given = [&spec.kernel, &spec.params].into_iter().chain(&spec.initrd);
        let mut given = given.by_ref().map(String::as_str).chain(spec.cloud_init.as_deref());
        let named =
            |text: &str| text.contains(&mac) || text.contains(&dashed) || text.contains(NOWHERE);
        // A signature has a time in it, a token is for one node.
        let varies = |text: &str| named(text) || is_s3(text);
        if given.any(varies) || script.contains(JOIN_TOKEN) {
            return None;
        }
        let mut pieces = Vec::new();
        let mut rest = script;
        loop {
            let bootif = rest.find(&bootif).map(|at| (at, bootif.len(), Gap::Bootif));
            let query = rest.find(&query).map(|at| (at, query.len(), Gap::Query));
            let base = rest.find(NOWHERE_URL).map(|at| (at, NOWHERE_URL.len(), Gap::Base));
            let seed = rest.find(&seed).map(|at| (at, seed.len(), Gap::Seed));
            let gaps = bootif.into_iter().chain(query).chain(base).chain(seed);
            let Some((at, length, gap)) = gaps.min_by_key(|gap| gap.0) else {
                break;
            };
            pieces.push((rest[..at].to_owned(), gap));
            rest = &rest[at + length..];
        }
        (!named(rest)).then(|| Self { pieces, rest: rest.to_owned() })
    }

    pub(crate) fn fill(&self, with: &ScriptValues<'_>) -> String {
        let ScriptValues { mac, spelled, retry, base, seed } = *with;
        let length = self.pieces.iter().map(|(text, _)| text.len() + 64).sum::<usize>();
        let length = length + seed.map_or(0, |seed| seed.0.len());
        let mut out = String::with_capacity(length + self.rest.len());
        for (text, gap) in &self.pieces {
            out.push_str(text);
            let wrote = match gap {
                Gap::Bootif => {
                    out.push_str("01-");
                    let canonical = spelled.is_none().then(|| mac.to_string());
                    let spelled = spelled.or(canonical.as_deref()).unwrap_or_default();
                    out.extend(spelled.chars().map(|c| if c == ':' { '-' } else { c }));
                    Ok(())
                }
                Gap::Base => {
                    out.push_str(base);
                    Ok(())
                }
                Gap::Seed => {
                    let words = seed.map(|seed| seed.at(base)).filter(|words| !words.is_empty());
                    words.map_or(Ok(()), |words| write!(out, " {words}"))
                }
                Gap::Query => write!(out, "mac={mac}&retry={}", retry.saturating_add(1)),
            };
            wrote.expect("writing to a string");
        }
        out.push_str(&self.rest);
        out
    }
}

/// The skeletons of one table: for each configuration one for each way to reach us. Of these there
/// are as many as URLs are advertised, with a gateway and without; what machines call us is a gap.
#[derive(Debug, Default)]
pub(crate) struct Skeletons {
    /// In the order of the configurations.
    ways: Vec<Ways>,
    by_name: HashMap<Name, usize>,
}

#[derive(Debug)]
struct Ways {
    config: Arc<BootConfig>,
    kept: ArcSwap<Vec<CachedSkeleton>>,
}

#[derive(Debug, Clone)]
struct CachedSkeleton {
    /// Index of the advertised URL.
    own_place: usize,
    prefix: String,
    skeleton: Option<Arc<Skeleton>>,
}

impl<'a> FromIterator<&'a Arc<BootConfig>> for Skeletons {
    fn from_iter<I: IntoIterator<Item = &'a Arc<BootConfig>>>(configs: I) -> Self {
        let mut skeletons = Self::default();
        for config in configs {
            skeletons.by_name.insert(config.name.clone(), skeletons.ways.len());
            skeletons.ways.push(Ways { config: Arc::clone(config), kept: ArcSwap::default() });
        }
        skeletons
    }
}

impl Skeletons {
    /// Uses the cached skeleton of the configuration for a host and a protocol.
    pub(crate) fn kept<T>(
        &self,
        config: usize,
        own_place: usize,
        prefix: &str,
        fill: impl FnOnce(&Skeleton) -> T,
    ) -> Option<T> {
        let all = self.ways.get(config)?.kept.load();
        find(&all, own_place, prefix)?.skeleton.as_deref().map(fill)
    }

    /// Uses the cached skeleton, or the one that `make` returns.
    pub(crate) fn with<T>(
        &self,
        config: &Arc<BootConfig>,
        own_place: usize,
        prefix: &str,
        make: impl FnOnce() -> Option<Skeleton>,
        fill: impl FnOnce(&Skeleton) -> T,
    ) -> Option<T> {
        let ways = self.ways(config)?;
        let all = ways.kept.load();
        if let Some(kept) = find(&all, own_place, prefix) {
            return kept.skeleton.as_deref().map(fill);
        }
        let skeleton = make().map(Arc::new);
        let kept =
            CachedSkeleton { own_place, prefix: prefix.to_owned(), skeleton: skeleton.clone() };
        // Another thread may do the same now; then one of the two skeletons is made once more.
        ways.kept.store(Arc::new([all.as_slice(), &[kept]].concat()));
        skeleton.as_deref().map(fill)
    }

    fn ways(&self, config: &Arc<BootConfig>) -> Option<&Ways> {
        let ways = self.ways.get(*self.by_name.get(&config.name)?);
        ways.filter(|ways| Arc::ptr_eq(&ways.config, config))
    }
}

fn find<'k>(
    all: &'k [CachedSkeleton],
    own_place: usize,
    prefix: &str,
) -> Option<&'k CachedSkeleton> {
    all.iter().find(|kept| kept.own_place == own_place && kept.prefix == prefix)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn every_way_of_every_configuration_is_made_once() {
        let configs: Vec<Arc<BootConfig>> = (0..100)
            .map(|n| {
                let spec = serde_json::json!({"selector": "*", "kernel": "http://h/k"});
                let spec = serde_json::from_value(spec).unwrap();
                Arc::new(BootConfig { name: format!("c{n}").parse().unwrap(), spec, revision: 1 })
            })
            .collect();
        let skeletons: Skeletons = configs.iter().collect();
        let made = Cell::new(0);
        for _ in 0..3 {
            for config in &configs {
                for (own_place, prefix) in [(0, ""), (0, "/apis/bss"), (1, "")] {
                    let make = || {
                        made.set(made.get() + 1);
                        Skeleton::cut("#!ipxe\nchain http://nowhere.invalid/x\n", config)
                    };
                    let base = "https://there";
                    let with =
                        ScriptValues { mac: NOBODY, spelled: None, retry: 0, base, seed: None };
                    let fill = |kept: &Skeleton| kept.fill(&with);
                    let filled = skeletons.with(config, own_place, prefix, make, fill);
                    assert_eq!(filled.unwrap(), "#!ipxe\nchain https://there/x\n");
                }
            }
        }
        assert_eq!(made.get(), 300);
    }
}
