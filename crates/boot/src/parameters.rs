//! Boot parameters: BSS's view of its records, read from a roster and written into a draft.
//!
//! A node is the same node whether it is called by xname, name, MAC or nid. Its record is written
//! under one key, and what stood under its other names goes.
//!
//! Does not belong here: the boot scripts of records (`select`, `answer`) and BSS's routes.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use hoist_diagnostic::Diagnostic;
use hoist_model::boot_config::{artifacts_in, check_params, check_url};
use hoist_model::{
    BootParameters, BssImageKey, BssKey, BssRecord, CloudInit, ImageKind, Mac, Nid, Node, Xname,
};
use hoist_site::Roster;
use hoist_site::plan::Draft;
use serde_json::Value;

use crate::bss::{home_of, host_name, key_of_host, keys_of, node_of, own_record};

/// Largest cloud-init part of one record.
pub const MAX_CLOUD_INIT: usize = 256 * 1024;

/// Errors of boot parameters, with BSS's wording where it has one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParametersError {
    #[error("{0}")]
    Bad(String),
    #[error("{0}")]
    Missing(String),
}

/// Result of a write.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum WriteResult {
    /// Records were written.
    Records,
    /// No record: the parameters of an image.
    Image,
    #[default]
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
pub fn find(
    roster: &Roster,
    filter: &BootParameters,
) -> Result<Vec<BootParameters>, ParametersError> {
    let asked = kinds(filter);
    if asked.is_empty() {
        return Err(ParametersError::Bad("No specified data requested".to_owned()));
    }
    let names = filter.hosts.iter().filter_map(|host| key_of_host(roster, host).ok());
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
    for target in names.chain(macs).chain(nids).map(|key| Target::of(roster, &"", key)) {
        if seen.insert(target.home.clone()) {
            found.extend(target.record(roster).map(|record| element(roster, record)));
        }
    }
    if found.is_empty() {
        let asked = join(&asked);
        let detail = format!("Cannot find boot parameters for requested {asked}");
        return Err(ParametersError::Missing(detail));
    }
    Ok(found)
}

/// POST: records that were not there before.
pub fn create(
    draft: &mut Draft<'_>,
    given: &BootParameters,
    token: &str,
) -> Result<WriteResult, ParametersError> {
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
        return Err(ParametersError::Bad(format!("Bad Request: Already exists: {}", target.asked)));
    }
    if targets.is_empty() {
        if let Some(image) = images(given).find(|image| draft.roster().bss_image(image).is_some()) {
            return Err(ParametersError::Bad(format!(
                "Bad Request: Already exists: {}",
                image.path
            )));
        }
        return set_image(draft, given);
    }
    write(draft, given, &targets, token)
}

/// PUT: the whole record of every addressed target. With `keep_kernel`, one that has a kernel does not
/// lose it that way.
pub fn replace(
    draft: &mut Draft<'_>,
    given: &BootParameters,
    token: &str,
    keep_kernel: bool,
) -> Result<WriteResult, ParametersError> {
    let targets = first_kind(draft.roster(), given)?;
    if targets.is_empty() {
        return set_image(draft, given);
    }
    if keep_kernel && given.kernel.is_empty() {
        let has_kernel = |target: &&Target<'_>| {
            target.record(draft.roster()).is_some_and(|record| !record.kernel.is_empty())
        };
        if let Some(target) = targets.iter().find(has_kernel) {
            return Err(ParametersError::Bad(format!(
                "Bad Request: {} would lose its kernel; send the kernel too, or use PATCH",
                target.asked
            )));
        }
    }
    write(draft, given, &targets, token)
}

/// Boot parameters with every name in the one spelling that answers use.
pub fn spelled(roster: &Roster, given: &BootParameters) -> BootParameters {
    let host = |host: &String| match key_of_host(roster, host) {
        Ok(key) => node_of(roster, &key).map_or_else(|| key.to_string(), |node| host_name(node)),
        Err(_) => host.clone(),
    };
    let mac = |mac: &String| mac.parse::<Mac>().map_or_else(|_| mac.clone(), |mac| mac.to_string());
    BootParameters {
        hosts: given.hosts.iter().map(host).collect(),
        macs: given.macs.iter().map(mac).collect(),
        ..given.clone()
    }
}

/// PATCH: given fields are changed, the rest stays.
pub fn amend(
    draft: &mut Draft<'_>,
    given: &BootParameters,
) -> Result<WriteResult, ParametersError> {
    check(draft.roster(), given)?;
    let targets = every_kind(draft.roster(), given)?;
    if targets.is_empty() {
        return set_image(draft, given);
    }
    let mut amended = Vec::with_capacity(targets.len());
    for target in &targets {
        let Some(record) = target.record(draft.roster()) else {
            return Err(ParametersError::Missing(format!(
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
    Ok(WriteResult::Records)
}

/// DELETE: the records of every addressed target; an image only if no target is named. Returns the
/// first problem; as in BSS it keeps no other target from being deleted.
pub fn remove(
    draft: &mut Draft<'_>,
    given: &BootParameters,
) -> Result<Option<ParametersError>, ParametersError> {
    if !given.addresses() {
        return remove_images(draft, given).map(|_| None);
    }
    let mut problem = None;
    let mut deleted = HashSet::new();
    for target in named(draft.roster(), given) {
        let target = target.and_then(|target| {
            if target.record(draft.roster()).is_some() {
                return Ok(target);
            }
            let detail = format!("Key {} deletion: no boot parameters", target.asked);
            Err(ParametersError::Bad(detail))
        });
        match target {
            Ok(target) if deleted.insert(target.home.clone()) => target.remove(draft),
            Ok(_) => {}
            Err(error) => problem = problem.or(Some(error)),
        }
    }
    Ok(problem)
}

/// Images are not taken from under those who boot them.
fn remove_images(
    draft: &mut Draft<'_>,
    given: &BootParameters,
) -> Result<WriteResult, ParametersError> {
    let named: Vec<_> = images(given).collect();
    for image in &named {
        let count = users(draft.roster(), image).count();
        if let Some(user) = users(draft.roster(), image).next() {
            return Err(ParametersError::Bad(format!(
                "Key {} deletion: {count} records boot it, {} among them; delete those first",
                image.path, user.key
            )));
        }
    }
    for image in &named {
        draft.put_bss_image(image.clone(), String::new());
    }
    Ok(if named.is_empty() { WriteResult::Nothing } else { WriteResult::Image })
}

/// Parameters without a target belong to the image.
fn set_image(
    draft: &mut Draft<'_>,
    given: &BootParameters,
) -> Result<WriteResult, ParametersError> {
    check(draft.roster(), given)?;
    let Some(image) = images(given).next() else {
        let detail = "Bad Request: name hosts, macs or nids, or a kernel or initrd";
        return Err(ParametersError::Bad(detail.to_owned()));
    };
    draft.put_bss_image(image, given.params.clone());
    Ok(WriteResult::Image)
}

fn write(
    draft: &mut Draft<'_>,
    given: &BootParameters,
    targets: &[Target<'_>],
    token: &str,
) -> Result<WriteResult, ParametersError> {
    check(draft.roster(), given)?;
    for target in targets {
        put_given(draft, given, target, token);
    }
    Ok(WriteResult::Records)
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

/// The node or group that a key refers to.
struct Target<'r> {
    /// As it was written.
    asked: String,
    key: BssKey,
    /// Where the record is written.
    home: BssKey,
    node: Option<&'r Arc<Node>>,
}

impl<'r> Target<'r> {
    fn of(roster: &'r Roster, asked: &dyn ToString, key: BssKey) -> Self {
        let node = node_of(roster, &key);
        let home = node.map_or_else(|| key.clone(), |node| home_of(node));
        Self { asked: asked.to_string(), key, home, node }
    }

    fn record(&self, roster: &'r Roster) -> Option<&'r Arc<BssRecord>> {
        match self.node {
            Some(node) => own_record(roster, node, Some(&self.key)),
            None => roster.bss(&self.home),
        }
    }

    fn keys(&self) -> Vec<BssKey> {
        match self.node {
            Some(node) => keys_of(node).collect(),
            None => vec![self.home.clone()],
        }
    }

    fn remove(&self, draft: &mut Draft<'_>) {
        for key in self.keys() {
            if draft.roster().bss(&key).is_some() {
                draft.remove_bss(key);
            }
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
fn first_kind<'r>(
    roster: &'r Roster,
    given: &BootParameters,
) -> Result<Vec<Target<'r>>, ParametersError> {
    let none = Vec::new;
    let (hosts, macs, nids) = match given {
        BootParameters { hosts, .. } if !hosts.is_empty() => (hosts.clone(), none(), Vec::new()),
        BootParameters { macs, .. } if !macs.is_empty() => (none(), macs.clone(), Vec::new()),
        BootParameters { nids, .. } => (none(), none(), nids.clone()),
    };
    // Ignored fields must still be well-formed.
    every_kind(roster, &BootParameters { hosts: Vec::new(), ..given.clone() })?;
    every_kind(roster, &BootParameters { hosts, macs, nids, ..BootParameters::default() })
}

/// Everyone named, each once.
fn every_kind<'r>(
    roster: &'r Roster,
    given: &BootParameters,
) -> Result<Vec<Target<'r>>, ParametersError> {
    let mut targets = named(roster, given).collect::<Result<Vec<_>, _>>()?;
    let mut seen = HashSet::new();
    targets.retain(|target| seen.insert(target.home.clone()));
    Ok(targets)
}

/// Hosts, MACs and nids in that order, as they were written.
fn named<'r>(
    roster: &'r Roster,
    given: &BootParameters,
) -> impl Iterator<Item = Result<Target<'r>, ParametersError>> {
    let hosts = given.hosts.iter().map(move |host| {
        let invalid = |error| {
            let host = host.escape_debug();
            ParametersError::Bad(format!("Bad Request: invalid host `{host}`: {error}"))
        };
        let key = key_of_host(roster, host).map_err(invalid)?;
        Ok(Target::of(roster, host, key))
    });
    let macs = given.macs.iter().map(move |text| {
        let mac: Mac = text.parse().map_err(|_| bad_mac(text))?;
        Ok(Target::of(roster, &mac, BssKey::Mac(mac)))
    });
    let nids = given.nids.iter().map(move |number| {
        let refused =
            || ParametersError::Bad("Bad Request: a nid is a number from 0 up".to_owned());
        let nid = nid_of(*number).ok_or_else(refused)?;
        Ok(Target::of(roster, &nid, BssKey::Nid(nid)))
    });
    hosts.chain(macs).chain(nids)
}

/// A node that exists, or an xname of one that may.
fn check_host(roster: &Roster, host: &str) -> Result<(), ParametersError> {
    match host.parse::<Xname>() {
        Ok(xname) if xname.is_node() => Ok(()),
        _ if roster.by_name(host).is_some() => Ok(()),
        Ok(xname) => Err(ParametersError::Bad(format!(
            "Bad Request: invalid xname type: {:?}",
            xname.kind()
        ))),
        Err(error) => Err(ParametersError::Bad(format!("Bad Request: invalid xname: {error}"))),
    }
}

/// Refuses values that would break a script or the store.
fn check(roster: &Roster, given: &BootParameters) -> Result<(), ParametersError> {
    let diagnostics = [
        check_url("kernel", &given.kernel),
        check_url("initrd", &given.initrd),
        check_params("params", &given.params),
    ];
    match diagnostics.into_iter().flatten().chain(missing_artifact(roster, given)).next() {
        Some(Diagnostic { at, message, hint }) => {
            let hint = hint.map(|hint| format!("; {hint}")).unwrap_or_default();
            Err(ParametersError::Bad(format!("Bad Request: {at}: {message}{hint}")))
        }
        None => check_cloud_init(&given.cloud_init),
    }
}

/// The first artifact that is named and not there.
fn missing_artifact(roster: &Roster, given: &BootParameters) -> Option<Diagnostic> {
    let texts = [("kernel", &given.kernel), ("initrd", &given.initrd), ("params", &given.params)];
    let named = texts.into_iter().flat_map(|(at, text)| artifacts_in(text).map(move |n| (at, n)));
    let mut missing = named.filter(|(_, name)| roster.artifact(name).is_none());
    missing.next().map(|(at, name)| {
        let hint = format!("add it with `hoist artifact add FILE --name {name}`");
        Diagnostic::new(at, format!("artifact `{name}` does not exist")).hint(hint)
    })
}

fn check_cloud_init(cloud_init: &CloudInit) -> Result<(), ParametersError> {
    let size = serde_json::to_vec(cloud_init).map_or(usize::MAX, |text| text.len());
    if size > MAX_CLOUD_INIT {
        let detail = format!("Bad Request: cloud-init: larger than {MAX_CLOUD_INIT} bytes");
        return Err(ParametersError::Bad(detail));
    }
    Ok(())
}

fn amend_cloud_init(
    stored: Option<Box<CloudInit>>,
    patch: &CloudInit,
) -> Result<Option<Box<CloudInit>>, ParametersError> {
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
    match (node_of(roster, &record.key), &record.key) {
        (Some(node), _) => element.hosts.push(host_name(node)),
        (None, BssKey::Mac(mac)) => element.macs.push(mac.to_string()),
        (None, BssKey::Nid(nid)) => element.nids.extend(i32::try_from(nid.get())),
        (None, key) => element.hosts.push(key.to_string()),
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
    u32::try_from(number).ok().map(Nid::new)
}

fn bad_mac(mac: &str) -> ParametersError {
    let mac: String = mac.chars().take(40).collect();
    ParametersError::Bad(format!("Bad Request: invalid MAC address format: {}", mac.escape_debug()))
}

/// The kinds of a filter, in BSS's terms.
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

/// Result of an import.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ImportResult {
    pub created: usize,
    pub changed: usize,
    pub unchanged: usize,
    /// Images that got parameters of their own.
    pub images: usize,
    /// Records that were not imported.
    pub left: Vec<RecordRemark>,
    /// Records that BSS never served, and that hoist serves.
    pub revived: Vec<RecordRemark>,
    /// Changed records that keep cloud-init data which the source does not have.
    pub kept: Vec<RecordRemark>,
}

/// A remark about a record of an import.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordRemark {
    /// Index in the list, from 0.
    pub at: usize,
    pub who: String,
    pub reason: String,
}

/// Imports the records of another BSS. Records that cannot be imported are skipped and reported;
/// identical records keep their token. Cloud-init data that the source does not have is kept: a
/// dump of BSS has none, and BSS on `PostgreSQL` stores none.
pub fn import(
    draft: &mut Draft<'_>,
    elements: &[(usize, BootParameters)],
    mut mint: impl FnMut() -> String,
) -> ImportResult {
    let mut imported = ImportResult::default();
    let mut taken: HashMap<BssKey, usize> = HashMap::new();
    let words = SelectingWords::of(draft.roster());
    for (at, given) in elements {
        let remark = |who: String, reason: String| RecordRemark { at: *at, who, reason };
        let targets =
            match check(draft.roster(), given).and_then(|()| every_kind(draft.roster(), given)) {
                Ok(targets) => targets,
                Err(refused) => {
                    let reason = refused.to_string();
                    let reason = reason.strip_prefix("Bad Request: ").unwrap_or(&reason).to_owned();
                    imported.left.push(remark(who(given), reason));
                    continue;
                }
            };
        if targets.is_empty() {
            match import_image(draft, given) {
                Some(changed) => imported.images += usize::from(changed),
                None => imported.left.push(remark(who(given), "names no node".to_owned())),
            }
        }
        for target in targets {
            if let Some(first) = taken.get(&target.home) {
                let same = elements.iter().any(|(at, other)| at == first && says(other, given));
                if !same {
                    let reason = format!("element {first} says something else about it");
                    imported.left.push(remark(target.asked.clone(), reason));
                }
                continue;
            }
            taken.insert(target.home.clone(), *at);
            if let Some(reason) = words.why_revived(&target).filter(|_| !given.kernel.is_empty()) {
                imported.revived.push(remark(target.asked.clone(), reason.to_owned()));
            }
            import_record(draft, given, &target, &mut mint, &mut imported, &remark);
        }
    }
    imported
}

fn import_record(
    draft: &mut Draft<'_>,
    given: &BootParameters,
    target: &Target<'_>,
    mint: &mut impl FnMut() -> String,
    imported: &mut ImportResult,
    remark: &impl Fn(String, String) -> RecordRemark,
) {
    let before = target.record(draft.roster());
    let stored = before.and_then(|record| record.cloud_init.as_deref());
    let (cloud_init, is_kept) = with_stored(&given.cloud_init, stored);
    let given = BootParameters { cloud_init, ..given.clone() };
    match before {
        Some(record) if says(&element(draft.roster(), record), &given) => {
            imported.unchanged += 1;
            return;
        }
        Some(_) => imported.changed += 1,
        None => imported.created += 1,
    }
    if is_kept {
        let reason = "the source has no cloud-init data for it".to_owned();
        imported.kept.push(remark(target.asked.clone(), reason));
    }
    put_given(draft, &given, target, &mint());
}

/// The given cloud-init data, completed by the stored data that it lacks; whether there was any.
fn with_stored(given: &CloudInit, stored: Option<&CloudInit>) -> (CloudInit, bool) {
    let mut whole = given.clone();
    let Some(stored) = stored else { return (whole, false) };
    let meta_data = whole.meta_data.is_none() && stored.meta_data.is_some();
    let user_data = whole.user_data.is_none() && stored.user_data.is_some();
    whole.meta_data = whole.meta_data.or_else(|| stored.meta_data.clone());
    whole.user_data = whole.user_data.or_else(|| stored.user_data.clone());
    if whole.phone_home.is_empty() {
        whole.phone_home = stored.phone_home.clone();
    }
    (whole, meta_data || user_data)
}

/// The words by which records select nodes.
struct SelectingWords {
    roles: HashSet<String>,
    /// Subroles and groups.
    others: HashSet<String>,
}

impl SelectingWords {
    fn of(roster: &Roster) -> Self {
        let mut words = Self { roles: HashSet::new(), others: HashSet::new() };
        for node in roster.nodes() {
            words.roles.extend(node.spec.role.as_deref().map(str::to_owned));
            words.others.extend(node.spec.subrole.as_deref().map(str::to_owned));
            words.others.extend(roster.groups_of(node).iter().map(ToString::to_string));
        }
        words
    }

    /// Why BSS never served the record of a target that hoist serves.
    fn why_revived(&self, target: &Target<'_>) -> Option<&'static str> {
        match &target.home {
            BssKey::Xname(_) | BssKey::Mac(_) | BssKey::Nid(_) if target.node.is_none() => {
                Some("the inventory lacks the machine; BSS serves it nothing")
            }
            BssKey::Tag(tag) if self.others.contains(tag) && !self.roles.contains(tag) => {
                Some("a subrole or a group; BSS boots no node from it")
            }
            _ => None,
        }
    }
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
