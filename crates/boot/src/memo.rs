//! The choices of ordinary nodes, computed ahead of requests. Matching a selector reads fields all
//! over a node's record, and a node has a dozen keys under which a BSS record may be: these are in
//! no CPU cache when a whole site asks at once. This table is.

use std::sync::Arc;

use compact_str::{CompactString, format_compact};
use hashbrown::HashMap;
use hoist_model::{BootConfig, BssRecord, Mac, Node, NodeId};
use hoist_site::Roster;

use crate::request::{BootRequest, BootRequester};
use crate::select::{BootContext, Choice, Source, Table};
use crate::skeleton::{NodeArguments, NodeNames, Seed, Skeletons};

/// By the MACs that nodes boot with. Holds where nothing but the table and the BSS records decide:
/// for nodes without a boot state.
#[derive(Debug)]
pub(crate) struct Memo {
    roster: Arc<Roster>,
    entries: HashMap<Mac, Entry>,
    records: Vec<KnownRecord>,
    /// Places in `records` by the addresses of the records, which are alive as long as this is.
    places: HashMap<usize, u32>,
    /// Of records. Those with the same content have one script.
    pub(crate) skeletons: Skeletons,
}

/// Numbers in bytes, so that entries are small.
#[derive(Debug)]
struct Entry {
    node: [u8; 16],
    /// Index of a BSS record if `own` has names, else of a configuration.
    choice: u32,
    own: NodeArguments,
}

/// A BSS record that nodes boot.
#[derive(Debug)]
pub(crate) struct KnownRecord {
    record: Arc<BssRecord>,
    /// As the boot log names it.
    pub(crate) name: CompactString,
    /// The place of its skeletons.
    pub(crate) skeletons: usize,
}

impl KnownRecord {
    pub(crate) fn revision(&self) -> u64 {
        self.record.revision
    }
}

/// The remembered choice for a node.
#[derive(Debug)]
pub(crate) struct KnownChoice<'m> {
    pub(crate) node: NodeId,
    pub(crate) source: KnownSource<'m>,
    pub(crate) own: &'m NodeArguments,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum KnownSource<'m> {
    /// The place of a configuration in the table.
    Config(usize),
    Record(&'m KnownRecord),
}

impl Memo {
    pub(crate) fn build(
        roster: &Arc<Roster>,
        table: &Table,
        seed: impl Fn(&Node, &BootConfig) -> Option<Seed>,
    ) -> Self {
        let mut records = Records::default();
        let mut entry = |node: &Arc<Node>| {
            let mac = roster.boot(node)?.mac;
            let (choice, own) = match usual(roster, table, node, mac)? {
                Source::Config(config) => {
                    let own =
                        seed(node, &config).map_or(NodeArguments::Nothing, NodeArguments::Seed);
                    (u32::try_from(table.place_of(&config)?).ok()?, own)
                }
                Source::Bss(record) => {
                    (records.place(&record)?, NodeArguments::Names(NodeNames::of(node)))
                }
            };
            Some((mac, Entry { node: node.id.to_bits().to_ne_bytes(), choice, own }))
        };
        let mut entries = HashMap::with_capacity(roster.len());
        entries.extend(roster.nodes().filter_map(&mut entry));
        let Records { known, places, contents } = records;
        let skeletons = Skeletons::new(contents.len());
        Self { roster: Arc::clone(roster), entries, records: known, places, skeletons }
    }

    /// Whether it still holds for this roster, if its table does.
    pub(crate) fn is_of(&self, roster: &Roster) -> bool {
        self.roster.has_bss_records_of(roster)
    }

    /// The choice for the node with this MAC.
    pub(crate) fn get(&self, mac: Mac) -> Option<KnownChoice<'_>> {
        let Entry { node, choice, own } = self.entries.get(&mac)?;
        let node = NodeId::from_bits(u128::from_ne_bytes(*node));
        let at = usize::try_from(*choice).ok()?;
        let source = match own {
            NodeArguments::Names(_) => KnownSource::Record(self.records.get(at)?),
            NodeArguments::Nothing | NodeArguments::Seed(_) => KnownSource::Config(at),
        };
        Some(KnownChoice { node, source, own })
    }

    /// The place of a record's skeletons.
    pub(crate) fn skeletons_of(&self, record: &Arc<BssRecord>) -> Option<usize> {
        let at = self.places.get(&Arc::as_ptr(record).addr())?;
        Some(self.records.get(usize::try_from(*at).ok()?)?.skeletons)
    }
}

/// Collects records, each once.
#[derive(Default)]
struct Records {
    known: Vec<KnownRecord>,
    places: HashMap<usize, u32>,
    /// The places of skeletons by what scripts have of a record.
    contents: HashMap<Content, usize>,
}

/// Kernel, initrd, parameters and referral token.
type Content = (String, String, String, Option<String>);

impl Records {
    fn place(&mut self, record: &Arc<BssRecord>) -> Option<u32> {
        let address = Arc::as_ptr(record).addr();
        if let Some(at) = self.places.get(&address) {
            return Some(*at);
        }
        let BssRecord { kernel, initrd, params, referral_token, key, .. } = record.as_ref();
        let content = (kernel.clone(), initrd.clone(), params.clone(), referral_token.clone());
        let next = self.contents.len();
        let skeletons = *self.contents.entry(content).or_insert(next);
        let name = format_compact!("bss:{key}");
        let at = u32::try_from(self.known.len()).ok()?;
        self.known.push(KnownRecord { record: Arc::clone(record), name, skeletons });
        self.places.insert(address, at);
        Some(at)
    }
}

/// The choice that a node gets with every request. `None` if the choice is for one
/// boot or installs the node.
fn usual(roster: &Roster, table: &Table, node: &Node, mac: Mac) -> Option<Source> {
    if !node.spec.enabled {
        return None;
    }
    let key = BootRequester::Mac(mac, None).key();
    let choice = table.best(roster, node, key.as_ref(), BootContext::default())?;
    let is_usual = is_usual(&choice);
    match choice.source {
        // Scripts of the image for unknown machines have less in them.
        Source::Bss(record) if record.is_for_unknown_machines() => None,
        source => is_usual.then_some(source),
    }
}

fn is_usual(choice: &Choice) -> bool {
    choice.boots() && !choice.is_for_one_boot() && !choice.installs()
}

/// Who asks, if the answer may be known ahead.
pub(crate) fn usual_asker(asked: &BootRequest<'_>) -> Option<Mac> {
    match asked.who {
        BootRequester::Mac(mac, _) if !asked.json => Some(mac),
        BootRequester::Mac(..) | BootRequester::Name(_) | BootRequester::Nid(_) => None,
    }
}
