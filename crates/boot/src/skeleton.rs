//! Scripts of one configuration or BSS record differ only in the machine and the host it asked. A
//! script is rendered once for a machine that does not exist and cut at the names of that machine
//! and host; for every real machine the placeholders are filled.

use std::fmt::Write as _;
use std::sync::Arc;

use arc_swap::ArcSwap;
use hoist_model::{Mac, Nid, Node};
use hoist_site::{Roster, SeedProvider};

use crate::answer::JOIN_TOKEN;
use crate::bss::host_name;
use crate::command_line::Names;
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

/// The names of [`NOBODY`] on the command line of a BSS record.
pub(crate) const NO_NAMES: Names<'static> = Names { host: NO_HOST, nid: Some(NO_NID) };
const NO_HOST: &str = "host.nowhere.invalid";
const NO_NID: &str = "nid.nowhere.invalid";

/// The names of a node on the command line of a BSS record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NodeNames {
    host: Box<str>,
    nid: Option<Nid>,
}

impl NodeNames {
    pub(crate) fn of(node: &Node) -> Self {
        Self { host: host_name(node).into(), nid: node.spec.nid }
    }
}

/// What only one node has on its command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum OwnWords {
    Nothing,
    /// With a configuration.
    Seed(Seed),
    /// With a BSS record.
    Names(NodeNames),
}

/// What placeholders are filled with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ScriptValues<'a> {
    pub(crate) mac: Mac,
    /// The MAC as the machine wrote it.
    pub(crate) spelled: Option<&'a str>,
    pub(crate) retry: u32,
    /// The URL where it asked.
    pub(crate) base: &'a str,
    pub(crate) own: &'a OwnWords,
}

/// A script with placeholders.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Skeleton {
    pieces: Vec<(String, Placeholder)>,
    rest: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Placeholder {
    /// `01-ff-ff-ff-ff-ff-fe`
    Bootif,
    /// `mac=ff:ff:ff:ff:ff:fe&retry=1`
    Query,
    /// [`NOWHERE_URL`]
    Base,
    /// [`NO_SEED`], with the blank in front of it
    Seed,
    /// [`NO_HOST`]
    Host,
    /// The word with [`NO_NID`], with the blank in front of it
    Nid,
}

impl Skeleton {
    /// Cuts the script of [`NOBODY`], who asked [`NOWHERE`] or an advertised URL; `None` if the
    /// script cannot be made from placeholders alone. `given` is everything in the script that was written
    /// by people.
    pub(crate) fn cut<'a>(script: &str, given: impl IntoIterator<Item = &'a str>) -> Option<Self> {
        let mac = NOBODY.to_string();
        let dashed = NOBODY.to_string().replace(':', "-");
        let seed = format!(" {NO_SEED}");
        let nid = format!(" nid={NO_NID}");
        let marks = [
            (format!("01-{dashed}"), Placeholder::Bootif),
            (format!("mac={mac}&retry=1"), Placeholder::Query),
            (NOWHERE_URL.to_owned(), Placeholder::Base),
            (seed, Placeholder::Seed),
            (NO_HOST.to_owned(), Placeholder::Host),
            (nid, Placeholder::Nid),
        ];
        let named =
            |text: &str| text.contains(&mac) || text.contains(&dashed) || text.contains(NOWHERE);
        // A signature has a time in it, a token is for one node.
        let varies = |text: &str| named(text) || is_s3(text);
        if given.into_iter().any(varies) || script.contains(JOIN_TOKEN) {
            return None;
        }
        let mut pieces = Vec::new();
        let mut rest = script;
        loop {
            let found = |(mark, placeholder): &(String, Placeholder)| {
                Some((rest.find(mark)?, mark.len(), *placeholder))
            };
            let Some((at, length, placeholder)) =
                marks.iter().filter_map(found).min_by_key(|placeholder| placeholder.0)
            else {
                break;
            };
            pieces.push((rest[..at].to_owned(), placeholder));
            rest = &rest[at + length..];
        }
        (!named(rest)).then(|| Self { pieces, rest: rest.to_owned() })
    }

    pub(crate) fn fill(&self, with: &ScriptValues<'_>) -> String {
        let ScriptValues { mac, spelled, retry, base, own } = *with;
        let (seed, names) = match own {
            OwnWords::Nothing => (None, None),
            OwnWords::Seed(seed) => (Some(seed), None),
            OwnWords::Names(names) => (None, Some(names)),
        };
        let length = self.pieces.iter().map(|(text, _)| text.len() + 64).sum::<usize>();
        let length = length + seed.map_or(0, |seed| seed.0.len());
        let mut out = String::with_capacity(length + self.rest.len());
        for (text, placeholder) in &self.pieces {
            out.push_str(text);
            let wrote = match placeholder {
                Placeholder::Bootif => {
                    out.push_str("01-");
                    let canonical = spelled.is_none().then(|| mac.to_string());
                    let spelled = spelled.or(canonical.as_deref()).unwrap_or_default();
                    out.extend(spelled.chars().map(|c| if c == ':' { '-' } else { c }));
                    Ok(())
                }
                Placeholder::Base => {
                    out.push_str(base);
                    Ok(())
                }
                Placeholder::Seed => {
                    let words = seed.map(|seed| seed.at(base)).filter(|words| !words.is_empty());
                    words.map_or(Ok(()), |words| write!(out, " {words}"))
                }
                Placeholder::Host => {
                    out.push_str(names.map_or("", |names| &names.host));
                    Ok(())
                }
                Placeholder::Nid => {
                    let nid = names.and_then(|names| names.nid);
                    nid.map_or(Ok(()), |nid| write!(out, " nid={nid}"))
                }
                Placeholder::Query => write!(out, "mac={mac}&retry={}", retry.saturating_add(1)),
            };
            wrote.expect("writing to a string");
        }
        out.push_str(&self.rest);
        out
    }
}

/// For each configuration or record, by its place, one skeleton for each way to reach us. Of these
/// there are as many as URLs are advertised, with a gateway and without; what machines call us is a
/// placeholder.
#[derive(Debug)]
pub(crate) struct Skeletons(Vec<ArcSwap<Vec<CachedSkeleton>>>);

#[derive(Debug, Clone)]
struct CachedSkeleton {
    /// Index of the advertised URL.
    own_place: usize,
    prefix: String,
    skeleton: Option<Arc<Skeleton>>,
}

impl Skeletons {
    pub(crate) fn new(count: usize) -> Self {
        Self(std::iter::repeat_with(ArcSwap::default).take(count).collect())
    }

    /// Uses the cached skeleton of a place for a host and a protocol.
    pub(crate) fn kept<T>(
        &self,
        at: usize,
        own_place: usize,
        prefix: &str,
        fill: impl FnOnce(&Skeleton) -> T,
    ) -> Option<T> {
        let all = self.0.get(at)?.load();
        find(&all, own_place, prefix)?.skeleton.as_deref().map(fill)
    }

    /// Uses the cached skeleton, or the one that `make` returns.
    pub(crate) fn with<T>(
        &self,
        at: usize,
        own_place: usize,
        prefix: &str,
        make: impl FnOnce() -> Option<Skeleton>,
        fill: impl FnOnce(&Skeleton) -> T,
    ) -> Option<T> {
        let ways = self.0.get(at)?;
        let all = ways.load();
        if let Some(kept) = find(&all, own_place, prefix) {
            return kept.skeleton.as_deref().map(fill);
        }
        let skeleton = make().map(Arc::new);
        let kept =
            CachedSkeleton { own_place, prefix: prefix.to_owned(), skeleton: skeleton.clone() };
        // Another thread may do the same now; then one of the two skeletons is made once more.
        ways.store(Arc::new([all.as_slice(), &[kept]].concat()));
        skeleton.as_deref().map(fill)
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
        let skeletons = Skeletons::new(100);
        let made = Cell::new(0);
        for _ in 0..3 {
            for config in 0..100 {
                for (own_place, prefix) in [(0, ""), (0, "/apis/bss"), (1, "")] {
                    let make = || {
                        made.set(made.get() + 1);
                        Skeleton::cut("#!ipxe\nchain http://nowhere.invalid/x\n", ["http://h/k"])
                    };
                    let base = "https://there";
                    let own = &OwnWords::Nothing;
                    let with = ScriptValues { mac: NOBODY, spelled: None, retry: 0, base, own };
                    let fill = |kept: &Skeleton| kept.fill(&with);
                    let filled = skeletons.with(config, own_place, prefix, make, fill);
                    assert_eq!(filled.unwrap(), "#!ipxe\nchain https://there/x\n");
                }
            }
        }
        assert_eq!(made.get(), 300);
    }
}
