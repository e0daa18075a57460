//! Boot parameters: BSS's view of its records, read from a roster and written into a draft.
//!
//! A node is the same node whether it is called by xname, name, MAC or nid. Its record is written
//! under one key, and what stood under its other names goes.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use hoist_inventory::Roster;
use hoist_inventory::plan::Draft;
use hoist_model::boot_config::{artifacts_in, check_params, check_url};
use hoist_model::{
    BootParameters, BssImageKey, BssKey, BssRecord, CloudInit, Fault, ImageKind, Mac, Nid, Node,
    Xname,
};
use serde_json::Value;

use crate::bss::{home_of, keys_of, node_of, own_record};

/// Largest cloud-init part of one record.
pub const MAX_CLOUD_INIT: usize = 256 * 1024;

/// Why boot parameters were not found or not written, in BSS's words where it has some.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("{0}")]
    Bad(String),
    #[error("{0}")]
    Missing(String),
}

/// What a write did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Done {
    /// Records were written.
    Records,
    /// No record: the parameters of an image.
    Image,
    Nothing,
}

/// Every record in the order of the keys, those of images that have parameters first.
pub fn all(roster: &Roster) -> Vec<BootParameters> {
    let mut images: Vec<_> = roster.bss_images().collect();
    images.sort_by(|a, b| a.image.cmp(&b.image));
    let is_own = |record: &&Arc<BssRecord>| match node_of(roster, &record.key) {
        None => true,
        Some(node) => own_record(roster, node, None).is_some_and(|own| Arc::ptr_eq(own, record)),
    };
    let mut records: Vec<_> = roster.bss_records().filter(is_own).collect();
    records.sort_by(|a, b| a.key.cmp(&b.key));
    let of_images = images.into_iter().map(|image| of_image(&image.image, &image.params));
    of_images.chain(records.into_iter().map(|record| element(roster, record))).collect()
}

/// The records of those the filter names; those that have none are missing.
pub fn find(roster: &Roster, filter: &BootParameters) -> Result<Vec<BootParameters>, Refused> {
    let asked = kinds(filter);
    if asked.is_empty() {
        return Err(Refused::Bad("No specified data requested".to_owned()));
    }
    let names = filter.hosts.iter().filter_map(|host| host.parse().ok());
    let macs = filter.macs.iter().filter_map(|mac| mac.parse().ok().map(BssKey::Mac));
    let nids = filter.nids.iter().filter_map(|nid| nid_of(*nid).map(BssKey::Nid));
    let mut found: Vec<BootParameters> = images(filter)
        .filter_map(|image| {
            let params = roster.bss_image(&image).map(|image| image.params.as_str());
            let known = params.is_some() || users(roster, &image).next().is_some();
            known.then(|| of_image(&image, params.unwrap_or_default()))
        })
        .collect();
    let mut seen = HashSet::new();
    for target in names.chain(macs).chain(nids).map(|key| Target::of(roster, key)) {
        if seen.insert(target.home.clone()) {
            found.extend(target.record(roster).map(|record| element(roster, record)));
        }
    }
    if found.is_empty() {
        let asked = join(&asked);
        let detail = format!("Cannot find boot parameters for requested {asked}");
        return Err(Refused::Missing(detail));
    }
    Ok(found)
}

/// POST: records that were not there before.
pub fn create(draft: &mut Draft<'_>, given: &BootParameters, token: &str) -> Result<Done, Refused> {
    let macs = given.macs.iter().find(|mac| mac.parse::<Mac>().is_err());
    if let Some(mac) = macs {
        return Err(bad_mac(mac));
    }
    for host in &given.hosts {
        check_host(draft.roster(), host)?;
    }
    let targets = first_kind(draft.roster(), given)?;
    let existing = targets.iter().find(|target| target.record(draft.roster()).is_some());
    if let Some(target) = existing {
        return Err(Refused::Bad(format!("Bad Request: Already exists: {}", target.asked)));
    }
    if targets.is_empty() {
        if let Some(image) = images(given).find(|image| draft.roster().bss_image(image).is_some()) {
            return Err(Refused::Bad(format!("Bad Request: Already exists: {}", image.path)));
        }
        return set_image(draft, given);
    }
    write(draft, given, &targets, token)
}

/// PUT: the whole record of everyone addressed. With `keep_kernel`, one that has a kernel does not
/// lose it that way.
pub fn replace(
    draft: &mut Draft<'_>,
    given: &BootParameters,
    token: &str,
    keep_kernel: bool,
) -> Result<Done, Refused> {
    let targets = first_kind(draft.roster(), given)?;
    if targets.is_empty() {
        return set_image(draft, given);
    }
    if keep_kernel && given.kernel.is_empty() {
        let has_kernel = |target: &&Target<'_>| {
            target.record(draft.roster()).is_some_and(|record| !record.kernel.is_empty())
        };
        if let Some(target) = targets.iter().find(has_kernel) {
            return Err(Refused::Bad(format!(
                "Bad Request: {} would lose its kernel; send the kernel too, or use PATCH",
                target.asked
            )));
        }
    }
    write(draft, given, &targets, token)
}

/// PATCH: what is given is changed, the rest stays.
pub fn amend(draft: &mut Draft<'_>, given: &BootParameters) -> Result<Done, Refused> {
    check(draft.roster(), given)?;
    let targets = every_kind(draft.roster(), given)?;
    if targets.is_empty() {
        return set_image(draft, given);
    }
    let mut amended = Vec::with_capacity(targets.len());
    for target in &targets {
        let Some(record) = target.record(draft.roster()) else {
            return Err(Refused::Missing(format!(
                "Not Found: {} has no boot parameters of its own",
                target.asked
            )));
        };
        let mut record = BssRecord { key: target.home.clone(), ..record.as_ref().clone() };
        overwrite(&mut record.kernel, &given.kernel);
        overwrite(&mut record.initrd, &given.initrd);
        overwrite(&mut record.params, &given.params);
        record.cloud_init = amend_cloud_init(record.cloud_init, &given.cloud_init)?;
        amended.push(record);
    }
    for (target, record) in targets.iter().zip(amended) {
        target.put(draft, record);
    }
    Ok(Done::Records)
}

/// DELETE: the records of everyone addressed; an image only when nobody is.
pub fn remove(draft: &mut Draft<'_>, given: &BootParameters) -> Result<Done, Refused> {
    let targets = every_kind(draft.roster(), given)?;
    if let Some(missing) = targets.iter().find(|target| target.record(draft.roster()).is_none()) {
        let who = &missing.asked;
        return Err(Refused::Bad(format!("Key {who} deletion: it has no boot parameters")));
    }
    if targets.is_empty() {
        return remove_images(draft, given);
    }
    for target in &targets {
        for key in target.keys() {
            if draft.roster().bss(&key).is_some() {
                draft.remove_bss(key);
            }
        }
    }
    Ok(Done::Records)
}

/// Images are not taken from under those who boot them.
fn remove_images(draft: &mut Draft<'_>, given: &BootParameters) -> Result<Done, Refused> {
    let named: Vec<_> = images(given).collect();
    for image in &named {
        let count = users(draft.roster(), image).count();
        if let Some(user) = users(draft.roster(), image).next() {
            return Err(Refused::Bad(format!(
                "Key {} deletion: {count} records boot it, {} among them; delete those first",
                image.path, user.key
            )));
        }
    }
    for image in &named {
        draft.put_bss_image(image.clone(), String::new());
    }
    Ok(if named.is_empty() { Done::Nothing } else { Done::Image })
}

/// Parameters that nobody is named for belong to the image.
fn set_image(draft: &mut Draft<'_>, given: &BootParameters) -> Result<Done, Refused> {
    check(draft.roster(), given)?;
    let Some(image) = images(given).next() else {
        let detail = "Bad Request: name hosts, macs or nids, or a kernel or initrd";
        return Err(Refused::Bad(detail.to_owned()));
    };
    draft.put_bss_image(image, given.params.clone());
    Ok(Done::Image)
}

fn write(
    draft: &mut Draft<'_>,
    given: &BootParameters,
    targets: &[Target<'_>],
    token: &str,
) -> Result<Done, Refused> {
    check(draft.roster(), given)?;
    for target in targets {
        put_given(draft, given, target, token);
    }
    Ok(Done::Records)
}

fn put_given(draft: &mut Draft<'_>, given: &BootParameters, target: &Target<'_>, token: &str) {
    let cloud_init = (!given.cloud_init.is_empty()).then(|| Box::new(given.cloud_init.clone()));
    let record = BssRecord {
        key: target.home.clone(),
        kernel: given.kernel.clone(),
        initrd: given.initrd.clone(),
        params: given.params.clone(),
        cloud_init,
        referral_token: Some(token.to_owned()),
        revision: 0,
    };
    target.put(draft, record);
}

/// Whoever a key means.
struct Target<'r> {
    asked: BssKey,
    /// Where the record is written.
    home: BssKey,
    node: Option<&'r Arc<Node>>,
}

impl<'r> Target<'r> {
    fn of(roster: &'r Roster, asked: BssKey) -> Self {
        let node = node_of(roster, &asked);
        let home = node.map_or_else(|| asked.clone(), |node| home_of(node));
        Self { asked, home, node }
    }

    fn record(&self, roster: &'r Roster) -> Option<&'r Arc<BssRecord>> {
        match self.node {
            Some(node) => own_record(roster, node, Some(&self.asked)),
            None => roster.bss(&self.home),
        }
    }

    fn keys(&self) -> Vec<BssKey> {
        match self.node {
            Some(node) => keys_of(node).collect(),
            None => vec![self.home.clone()],
        }
    }

    /// Writes the record, and removes what other names of the node held.
    fn put(&self, draft: &mut Draft<'_>, record: BssRecord) {
        for key in self.keys() {
            if key != self.home && draft.roster().bss(&key).is_some() {
                draft.remove_bss(key);
            }
        }
        draft.put_bss(record);
    }
}

/// Only one kind of name counts: hosts, else MACs, else nids.
fn first_kind<'r>(roster: &'r Roster, given: &BootParameters) -> Result<Vec<Target<'r>>, Refused> {
    let none = Vec::new;
    let (hosts, macs, nids) = match given {
        BootParameters { hosts, .. } if !hosts.is_empty() => (hosts.clone(), none(), Vec::new()),
        BootParameters { macs, .. } if !macs.is_empty() => (none(), macs.clone(), Vec::new()),
        BootParameters { nids, .. } => (none(), none(), nids.clone()),
    };
    // What does not count still has to be well-formed.
    every_kind(roster, &BootParameters { hosts: Vec::new(), ..given.clone() })?;
    every_kind(roster, &BootParameters { hosts, macs, nids, ..BootParameters::default() })
}

/// Everyone named, each once.
fn every_kind<'r>(roster: &'r Roster, given: &BootParameters) -> Result<Vec<Target<'r>>, Refused> {
    let mut keys = Vec::new();
    for host in &given.hosts {
        let key = host.parse().map_err(|error| {
            Refused::Bad(format!("Bad Request: invalid host `{}`: {error}", host.escape_debug()))
        })?;
        keys.push(key);
    }
    for mac in &given.macs {
        keys.push(BssKey::Mac(mac.parse().map_err(|_| bad_mac(mac))?));
    }
    for nid in &given.nids {
        let nid = nid_of(*nid);
        keys.push(BssKey::Nid(
            nid.ok_or_else(|| Refused::Bad("Bad Request: a nid is a number from 1 up".to_owned()))?,
        ));
    }
    let mut seen = HashSet::new();
    let targets = keys.into_iter().map(|key| Target::of(roster, key));
    Ok(targets.filter(|target| seen.insert(target.home.clone())).collect())
}

/// A node that exists, or an xname of one that may.
fn check_host(roster: &Roster, host: &str) -> Result<(), Refused> {
    match host.parse::<Xname>() {
        Ok(xname) if xname.is_node() => Ok(()),
        _ if roster.by_name(host).is_some() => Ok(()),
        Ok(xname) => {
            Err(Refused::Bad(format!("Bad Request: invalid xname type: {:?}", xname.kind())))
        }
        Err(error) => Err(Refused::Bad(format!("Bad Request: invalid xname: {error}"))),
    }
}

/// What would break a script, or the store.
fn check(roster: &Roster, given: &BootParameters) -> Result<(), Refused> {
    let faults = [
        check_url("kernel", &given.kernel),
        check_url("initrd", &given.initrd),
        check_params("params", &given.params),
    ];
    match faults.into_iter().flatten().chain(missing_artifact(roster, given)).next() {
        Some(Fault { at, message, hint }) => {
            let hint = hint.map(|hint| format!("; {hint}")).unwrap_or_default();
            Err(Refused::Bad(format!("Bad Request: {at}: {message}{hint}")))
        }
        None => check_cloud_init(&given.cloud_init),
    }
}

/// The first artifact that is named and not there.
fn missing_artifact(roster: &Roster, given: &BootParameters) -> Option<Fault> {
    let texts = [("kernel", &given.kernel), ("initrd", &given.initrd), ("params", &given.params)];
    let named = texts.into_iter().flat_map(|(at, text)| artifacts_in(text).map(move |n| (at, n)));
    let mut missing = named.filter(|(_, name)| roster.artifact(name).is_none());
    missing.next().map(|(at, name)| {
        let hint = format!("`hoist artifact add FILE --name {name}` first");
        Fault::new(at, format!("there is no Artifact `{name}`")).hint(hint)
    })
}

fn check_cloud_init(cloud_init: &CloudInit) -> Result<(), Refused> {
    let size = serde_json::to_vec(cloud_init).map_or(usize::MAX, |text| text.len());
    if size > MAX_CLOUD_INIT {
        let detail = format!("Bad Request: cloud-init: it is larger than {MAX_CLOUD_INIT} bytes");
        return Err(Refused::Bad(detail));
    }
    Ok(())
}

fn amend_cloud_init(
    stored: Option<Box<CloudInit>>,
    patch: &CloudInit,
) -> Result<Option<Box<CloudInit>>, Refused> {
    let mut whole = stored.unwrap_or_default();
    for (stored, patch) in
        [(&mut whole.meta_data, &patch.meta_data), (&mut whole.user_data, &patch.user_data)]
    {
        match (stored, patch) {
            (_, None) => {}
            (Some(stored), Some(patch)) => merge(stored, patch),
            (stored @ None, Some(patch)) => *stored = Some(patch.clone()),
        }
    }
    if !patch.phone_home.is_empty() {
        whole.phone_home = patch.phone_home.clone();
    }
    check_cloud_init(&whole)?;
    Ok((!whole.is_empty()).then_some(whole))
}

/// JSON merge patch: `null` deletes, objects are merged, everything else is replaced.
fn merge(stored: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        stored.clone_from(patch);
        return;
    };
    if !stored.is_object() {
        *stored = Value::Object(serde_json::Map::new());
    }
    let Value::Object(stored) = stored else { unreachable!("made one above") };
    for (name, value) in patch {
        if value.is_null() {
            stored.remove(name);
        } else {
            merge(stored.entry(name.clone()).or_insert(Value::Null), value);
        }
    }
}

fn overwrite(stored: &mut String, given: &str) {
    if !given.is_empty() {
        given.clone_into(stored);
    }
}

/// The record as an element of a list: nodes under their xname or name, others as they were stored.
fn element(roster: &Roster, record: &BssRecord) -> BootParameters {
    let mut element = BootParameters {
        params: record.params.clone(),
        kernel: record.kernel.clone(),
        initrd: record.initrd.clone(),
        cloud_init: record.cloud_init.as_deref().cloned().unwrap_or_default(),
        ..BootParameters::default()
    };
    let key = node_of(roster, &record.key).map_or_else(|| record.key.clone(), |n| home_of(n));
    match key {
        BssKey::Xname(_) | BssKey::Tag(_) => element.hosts.push(key.to_string()),
        BssKey::Mac(mac) => element.macs.push(mac.to_string()),
        BssKey::Nid(nid) => element.nids.extend(i32::try_from(nid.get())),
    }
    element
}

fn of_image(image: &BssImageKey, params: &str) -> BootParameters {
    let mut element = BootParameters { params: params.to_owned(), ..BootParameters::default() };
    let path = match image.kind {
        ImageKind::Kernel => &mut element.kernel,
        ImageKind::Initrd => &mut element.initrd,
    };
    image.path.clone_into(path);
    element
}

fn images(given: &BootParameters) -> impl Iterator<Item = BssImageKey> + '_ {
    let both = [(ImageKind::Kernel, &given.kernel), (ImageKind::Initrd, &given.initrd)];
    let named = both.into_iter().filter(|(_, path)| !path.is_empty());
    named.map(|(kind, path)| BssImageKey { kind, path: path.clone() })
}

fn users<'r>(
    roster: &'r Roster,
    image: &'r BssImageKey,
) -> impl Iterator<Item = &'r Arc<BssRecord>> + 'r {
    roster.bss_records().filter(|record| match image.kind {
        ImageKind::Kernel => record.kernel == image.path,
        ImageKind::Initrd => record.initrd == image.path,
    })
}

fn nid_of(number: i32) -> Option<Nid> {
    u32::try_from(number).ok().and_then(Nid::new)
}

fn bad_mac(mac: &str) -> Refused {
    let mac: String = mac.chars().take(40).collect();
    Refused::Bad(format!("Bad Request: invalid MAC address format: {}", mac.escape_debug()))
}

/// What a filter asks for, in BSS's words.
fn kinds(filter: &BootParameters) -> Vec<&'static str> {
    let all = [
        (filter.hosts.is_empty(), "Hosts"),
        (filter.macs.is_empty(), "MACs"),
        (filter.nids.is_empty(), "NIDs"),
        (filter.kernel.is_empty(), "kernel"),
        (filter.initrd.is_empty(), "initrd"),
    ];
    all.into_iter().filter(|(absent, _)| !absent).map(|(_, word)| word).collect()
}

fn join(words: &[&str]) -> String {
    match words {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [rest @ .., last] => format!("{} or {last}", rest.join(", ")),
    }
}

/// What an import came to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Imported {
    pub created: usize,
    pub changed: usize,
    pub unchanged: usize,
    /// Images that got parameters of their own.
    pub images: usize,
    pub left: Vec<Left>,
}

/// Something that was not carried over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Left {
    /// Which element of the list, from 0.
    pub at: usize,
    pub who: String,
    pub reason: String,
}

/// Takes over what another BSS has. What cannot be taken is left and told; records that are the
/// same already keep their token.
pub fn import(
    draft: &mut Draft<'_>,
    elements: &[(usize, BootParameters)],
    mut mint: impl FnMut() -> String,
) -> Imported {
    let mut imported = Imported::default();
    let mut taken: HashMap<BssKey, usize> = HashMap::new();
    for (at, given) in elements {
        let left = |who: String, reason: String| Left { at: *at, who, reason };
        let targets =
            match check(draft.roster(), given).and_then(|()| every_kind(draft.roster(), given)) {
                Ok(targets) => targets,
                Err(refused) => {
                    let reason = refused.to_string();
                    let reason = reason.strip_prefix("Bad Request: ").unwrap_or(&reason).to_owned();
                    imported.left.push(left(who(given), reason));
                    continue;
                }
            };
        if targets.is_empty() {
            match import_image(draft, given) {
                Some(changed) => imported.images += usize::from(changed),
                None => imported.left.push(left(who(given), "it names nobody".to_owned())),
            }
        }
        for target in targets {
            if let Some(first) = taken.get(&target.home) {
                let same = elements.iter().any(|(at, other)| at == first && says(other, given));
                if !same {
                    let reason = format!("element {first} says something else about it");
                    imported.left.push(left(target.asked.to_string(), reason));
                }
                continue;
            }
            taken.insert(target.home.clone(), *at);
            let before = target.record(draft.roster());
            match before {
                Some(record) if says(&element(draft.roster(), record), given) => {
                    imported.unchanged += 1;
                    continue;
                }
                Some(_) => imported.changed += 1,
                None => imported.created += 1,
            }
            put_given(draft, given, &target, &mint());
        }
    }
    imported
}

/// `Some(changed)`, or `None` where there is no image either.
fn import_image(draft: &mut Draft<'_>, given: &BootParameters) -> Option<bool> {
    let image = images(given).next()?;
    let before = draft.roster().bss_image(&image).map(|image| image.params.as_str());
    let changed = before.unwrap_or_default() != given.params;
    if changed {
        draft.put_bss_image(image, given.params.clone());
    }
    Some(changed)
}

/// Whether two elements boot the same.
fn says(one: &BootParameters, other: &BootParameters) -> bool {
    let content = |given: &BootParameters| BootParameters {
        hosts: Vec::new(),
        macs: Vec::new(),
        nids: Vec::new(),
        ..given.clone()
    };
    content(one) == content(other)
}

fn who(given: &BootParameters) -> String {
    let BootParameters { hosts, macs, nids, kernel, initrd, .. } = given;
    let nid = || nids.first().map(ToString::to_string);
    let first = hosts.first().or(macs.first()).cloned().or_else(nid);
    let image = || [kernel, initrd].into_iter().find(|path| !path.is_empty()).cloned();
    let first = first.or_else(image).unwrap_or_default();
    let others = (hosts.len() + macs.len() + nids.len()).saturating_sub(1);
    let first: String = first.escape_debug().take(120).collect();
    if others > 0 { format!("{first} and {others} more") } else { first }
}
