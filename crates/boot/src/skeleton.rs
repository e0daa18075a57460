//! Scripts of one configuration differ only in who asks. A script is made once for a machine that
//! does not exist, and cut where it names that machine; for everybody else the gaps are filled.

use std::fmt::Write as _;
use std::sync::Arc;

use arc_swap::ArcSwap;
use hoist_model::{BootConfig, Mac};

use crate::answer::{JOIN_TOKEN, Place};
use crate::presign::is_s3;

/// No machine has it: it is a group address.
pub(crate) const NOBODY: Mac = Mac::from_octets([0xff, 0xff, 0xff, 0xff, 0xff, 0xfe]);

/// Skeletons kept: one for each configuration and address by which machines reach us. Beyond, all
/// are made anew, because the address is what the machine says it is.
const MAX_KEPT: usize = 64;

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
}

impl Skeleton {
    /// Cuts the script of [`NOBODY`]; `None` if the script cannot be made from gaps alone.
    pub(crate) fn cut(script: &str, config: &BootConfig, place: Place<'_>) -> Option<Self> {
        let (mac, dashed) = (NOBODY.to_string(), NOBODY.to_string().replace(':', "-"));
        let (bootif, query) = (format!("01-{dashed}"), format!("mac={mac}&retry=1"));
        let spec = &config.spec;
        let mut given = [&spec.kernel, &spec.params].into_iter().chain(&spec.initrd);
        let given = given.by_ref().map(String::as_str).chain(spec.cloud_init.as_deref());
        let named = |text: &str| text.contains(&mac) || text.contains(&dashed);
        // A signature has a time in it, a token is for one node.
        let varies = |text: &str| named(text) || is_s3(text);
        if given.chain(place.host).any(varies) || script.contains(JOIN_TOKEN) {
            return None;
        }
        let mut pieces = Vec::new();
        let mut rest = script;
        loop {
            let bootif = rest.find(&bootif).map(|at| (at, bootif.len(), Gap::Bootif));
            let query = rest.find(&query).map(|at| (at, query.len(), Gap::Query));
            let Some((at, length, gap)) = bootif.into_iter().chain(query).min_by_key(|gap| gap.0)
            else {
                break;
            };
            pieces.push((rest[..at].to_owned(), gap));
            rest = &rest[at + length..];
        }
        (!named(rest)).then(|| Self { pieces, rest: rest.to_owned() })
    }

    /// `spelled` is the MAC as the machine wrote it.
    pub(crate) fn fill(&self, mac: Mac, spelled: Option<&str>, retry: u32) -> String {
        let length = self.pieces.iter().map(|(text, _)| text.len() + 64).sum::<usize>();
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
                Gap::Query => write!(out, "mac={mac}&retry={}", retry.saturating_add(1)),
            };
            wrote.expect("writing to a string");
        }
        out.push_str(&self.rest);
        out
    }
}

/// The skeletons of one table.
#[derive(Debug, Default)]
pub(crate) struct Skeletons(ArcSwap<Vec<Kept>>);

#[derive(Debug, Clone)]
struct Kept {
    config: Arc<BootConfig>,
    host: Option<String>,
    secure: bool,
    prefix: String,
    skeleton: Option<Arc<Skeleton>>,
}

impl Skeletons {
    /// What is kept for the configuration at this place, or what `make` makes.
    pub(crate) fn get(
        &self,
        config: &Arc<BootConfig>,
        place: Place<'_>,
        make: impl FnOnce() -> Option<Skeleton>,
    ) -> Option<Arc<Skeleton>> {
        let all = self.0.load();
        let found = all.iter().find(|kept| {
            Arc::ptr_eq(&kept.config, config)
                && kept.host.as_deref() == place.host
                && kept.secure == place.secure
                && kept.prefix == place.prefix
        });
        if let Some(kept) = found {
            return kept.skeleton.clone();
        }
        let skeleton = make().map(Arc::new);
        let kept = Kept {
            config: Arc::clone(config),
            host: place.host.map(str::to_owned),
            secure: place.secure,
            prefix: place.prefix.to_owned(),
            skeleton: skeleton.clone(),
        };
        // Somebody else may do the same now; then one of the two is made once more.
        let others = if all.len() < MAX_KEPT { all.as_slice() } else { &[] };
        self.0.store(Arc::new([others, &[kept]].concat()));
        skeleton
    }
}
