//! Skeletons of boot scripts. Scripts of one configuration or BSS record differ only in the machine
//! and in the host of the request. A script is rendered once for a placeholder machine, cut at the
//! names of that machine and host, and filled for every real machine.
//!
//! Does not belong here: the choice of a configuration (`answer`, `memo`).

use std::fmt::Write as _;
use std::sync::Arc;

use arc_swap::ArcSwap;
use hoist_model::{Mac, Nid, Node};
use hoist_site::{Roster, SeedProvider};

use crate::answer::JOIN_TOKEN;
use crate::bss::host_name;
use crate::command_line::Names;
use crate::presign::is_s3;

/// The MAC of the placeholder machine: a group address, so no real machine has it.
pub(crate) const NOBODY: Mac = Mac::from_octets([0xff, 0xff, 0xff, 0xff, 0xff, 0xfe]);

/// The placeholder host, and the URL of a controller on it.
pub(crate) const NOWHERE: &str = "nowhere.invalid";
const NOWHERE_URL: &str = "http://nowhere.invalid";

/// The seed argument of the placeholder machine.
pub(crate) const NO_SEED: &str = "ds=seed.nowhere.invalid";

/// The kernel arguments for the seed of a node, rendered with [`NOWHERE_URL`]. [`Seed::at`] replaces
/// it by the URL of the controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seed(Box<str>);

impl Seed {
    /// `None` if the provider has no arguments.
    pub(crate) fn of(provider: &dyn SeedProvider, roster: &Roster, node: &Node) -> Option<Self> {
        let arguments = provider.seed_ref(roster, node, NOWHERE_URL).kernel_args;
        (!arguments.is_empty()).then(|| Self(arguments.into()))
    }

    /// Empty if the arguments need a URL and `base` is empty: cloud-init does not accept a path.
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

/// The kernel arguments of a single node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NodeArguments {
    Nothing,
    /// With a configuration.
    Seed(Seed),
    /// With a BSS record.
    Names(NodeNames),
}

/// The values of the placeholders for one request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ScriptValues<'a> {
    pub(crate) mac: Mac,
    /// The MAC as written in the request.
    pub(crate) spelled: Option<&'a str>,
    pub(crate) retry: u32,
    /// The URL of the controller in the request.
    pub(crate) base: &'a str,
    pub(crate) own: &'a NodeArguments,
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
    /// Cuts the script of [`NOBODY`], requested from [`NOWHERE`] or an advertised URL. `None` if
    /// placeholders alone cannot express the script. `given` lists all text of the script that comes
    /// from documents.
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
        // A signature contains a time; a token belongs to one node.
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
            NodeArguments::Nothing => (None, None),
            NodeArguments::Seed(seed) => (Some(seed), None),
            NodeArguments::Names(names) => (None, Some(names)),
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
                Placeholder::Seed => match seed.map(|seed| seed.at(base)) {
                    Some(seed) if !seed.is_empty() => write!(out, " {seed}"),
                    _ => Ok(()),
                },
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

/// The skeletons of each configuration or record, by its index: one for each advertised URL, with
/// and without a gateway. The host name of a request is a placeholder.
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

    /// Fills the cached skeleton with this index, advertised URL and prefix.
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

    /// Fills the cached skeleton, or the one that `make` returns.
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
        // If another thread stores one at the same time, a skeleton is lost and made again later.
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
                    let own = &NodeArguments::Nothing;
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
