//! Scripts from skeletons: the answers that were known ahead, and the first ones, which make the
//! skeletons.

use std::sync::Arc;

use hoist_model::{BootConfig, BootState, Node, NodeId};
use hoist_site::Roster;

use super::{Answer, Booter, Case, RequestOrigin, ServedScript, What};
use crate::command_line::texts_of_record;
use crate::memo::{self, KnownChoice, KnownSource};
use crate::request::{BootRequest, BootRequester};
use crate::select::{Choice, Source};
use crate::skeleton::{NOBODY, NOWHERE, NodeArguments, NodeNames, ScriptValues, Seed, Skeleton};

impl Booter {
    /// The answer that was known ahead.
    pub(super) fn usual(
        &self,
        case: &Case<'_>,
        state: impl Fn(NodeId) -> Option<Arc<BootState>>,
    ) -> Option<Answer> {
        let mac = memo::usual_asker(case.asked)?;
        let memo = case.table.memo.load();
        let memo = memo.as_ref().filter(|memo| memo.is_of(case.roster))?;
        let KnownChoice { node, source, own } = memo.get(mac)?;
        if state(node).is_some() {
            return None;
        }
        let (skeletons, at) = match source {
            KnownSource::Config(at) => (&case.table.skeletons, at),
            KnownSource::Record(record) => (&memo.skeletons, record.skeletons),
        };
        let place = case.place;
        let fill = |skeleton: &Skeleton| self.fill(case, skeleton, own);
        let text = skeletons.kept(at, self.own_place(place), place.prefix, fill)??;
        let (name, revision) = match source {
            KnownSource::Config(at) => {
                let config = case.table.config(at);
                (config.name.as_str().into(), config.revision)
            }
            KnownSource::Record(record) => (record.name.clone(), record.revision()),
        };
        let what = What::Boot { name, revision, installs: false, served_boot: None };
        Some(Answer::Script { text, served: ServedScript::new(Some(node), what) })
    }

    /// The script from the cached skeleton of its configuration or BSS record, if that is
    /// sufficient.
    pub(super) fn filled(
        &self,
        case: &Case<'_>,
        node: Option<&Node>,
        choice: &Choice,
    ) -> Option<String> {
        let node = node?;
        if !matches!(case.asked.who, BootRequester::Mac(..)) || case.asked.json {
            return None;
        }
        let own_place = self.own_place(case.place);
        let prefix = case.place.prefix;
        let make = || self.skeleton(case, choice);
        match &choice.source {
            Source::Config(config) if config.spec.template.is_some() => None,
            Source::Config(config) => {
                let at = case.table.place_of(config)?;
                let fill = |kept: &Skeleton| {
                    let seed = self.seed(case.roster, node, config);
                    self.fill(case, kept, &seed.map_or(NodeArguments::Nothing, NodeArguments::Seed))
                };
                case.table.skeletons.with(at, own_place, prefix, make, fill)?
            }
            Source::Bss(record) => {
                let memo = case.table.memo.load();
                let memo = memo.as_ref().filter(|memo| memo.is_of(case.roster))?;
                let at = memo.skeletons_of(record)?;
                let fill = |kept: &Skeleton| {
                    self.fill(case, kept, &NodeArguments::Names(NodeNames::of(node)))
                };
                memo.skeletons.with(at, own_place, prefix, make, fill)?
            }
        }
    }

    /// The script of [`NOBODY`], cut; `None` if it differs in more than the machine's names.
    fn skeleton(&self, case: &Case<'_>, choice: &Choice) -> Option<Skeleton> {
        let who = BootRequester::Mac(NOBODY, None);
        let nobody = BootRequest { who, arch: None, retry: 0, wait: 0, ts: None, json: false };
        let place = match self.settings.advertise.as_slice() {
            [] => RequestOrigin { host: Some(NOWHERE), secure: false, ..case.place },
            _ => case.place,
        };
        let made = Case { asked: &nobody, place, is_skeleton: true, ..*case };
        let made = self.make(&made, None, choice).ok()?;
        match &choice.source {
            Source::Config(config) => {
                let spec = &config.spec;
                let given = [&spec.kernel, &spec.params].into_iter().chain(&spec.initrd);
                let given = given.map(String::as_str).chain(spec.cloud_init.as_deref());
                Skeleton::cut(&made.script, given)
            }
            Source::Bss(record) => {
                let texts = texts_of_record(case.roster, record);
                // Words inside of parameters are signed too.
                let is_signed = |text: &&str| text.to_ascii_lowercase().contains("s3://");
                let is_constant = !texts.iter().any(is_signed);
                is_constant.then(|| Skeleton::cut(&made.script, texts)).flatten()
            }
        }
    }

    fn fill(&self, case: &Case<'_>, skeleton: &Skeleton, own: &NodeArguments) -> Option<String> {
        let BootRequester::Mac(mac, spelled) = &case.asked.who else { return None };
        let base = self.base(case.place);
        let spelled = spelled.as_deref();
        let retry = case.asked.retry;
        Some(skeleton.fill(&ScriptValues { mac: *mac, spelled, retry, base: &base, own }))
    }

    /// Where a node finds its documents, if its configuration leaves that to the provider.
    pub(super) fn seed(&self, roster: &Roster, node: &Node, config: &BootConfig) -> Option<Seed> {
        let provider = self.metadata.as_deref().filter(|_| config.spec.cloud_init.is_none())?;
        Seed::of(provider, roster, node)
    }
}

#[cfg(test)]
mod tests {
    use hoist_model::Mac;
    use hoist_site::Resource;
    use hoist_site::roster::Incarnation;
    use jiff::Timestamp;
    use serde_json::json;

    use super::*;
    use crate::answer::Settings;
    use crate::select::BootContext;

    fn roster() -> Arc<Roster> {
        let spec = json!({"nid": 7, "interfaces": [{"name": "eth0", "mac": "52:54:00:00:00:01"}]});
        let node = Arc::new(Node {
            id: NodeId::from_bits(1),
            name: "n1".parse().unwrap(),
            spec: serde_json::from_value(spec).unwrap(),
            protection: None,
            maintenance: None,
            provenance: None,
            generation: 1,
            revision: 1,
            created: Timestamp::UNIX_EPOCH,
            updated: Timestamp::UNIX_EPOCH,
        });
        let record = json!({"key": "Default", "kernel": "http://h/k", "params": "quiet"});
        let record = Arc::new(serde_json::from_value(record).unwrap());
        let all = [Resource::Node(node), Resource::Bss(record)].into_iter();
        Arc::new(Roster::build(Incarnation::new("test"), 1, 0, all))
    }

    #[test]
    fn node_of_a_bss_record_is_answered_from_its_skeleton() {
        let roster = roster();
        let booter = Booter::new(Settings::default());
        booter.prepare(&roster);
        let mac: Mac = "52:54:00:00:00:01".parse().unwrap();
        let who = BootRequester::Mac(mac, None);
        let asked = &BootRequest { who, arch: None, retry: 0, wait: 0, ts: None, json: false };
        let place = RequestOrigin { host: Some("here"), ..RequestOrigin::default() };
        let now = Timestamp::UNIX_EPOCH;
        let table = booter.table(&roster);
        let standing = BootContext::default();
        let case = Case {
            roster: &roster,
            table: &table,
            asked,
            standing,
            place,
            now,
            is_skeleton: false,
        };
        assert!(booter.usual(&case, |_| None).is_none(), "nothing is cut yet");
        let first = format!("{:?}", booter.answer(&roster, asked, place, now, |_| None));
        let known = booter.usual(&case, |_| None).expect("it is known");
        assert_eq!(format!("{known:?}"), first);
        assert!(first.contains("quiet xname=n1 nid=7 BOOTIF=01-52-54-00-00-00-01"), "{first}");
    }
}
