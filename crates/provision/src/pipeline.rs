//! From a document and a machine to what is done about them, in this order: claims, disks, checks,
//! plan, gate, steps, and a look at what came of it. Nothing is written before everything was
//! checked and planned, and what was planned is what is done, or nothing is.

mod boot;
mod carry_out;
mod drive;
mod emptied;
mod erase;
mod files;
mod grow;
mod image;
mod look;
mod plugins;
mod show;
mod stack;
mod start;
mod undo;
mod whole;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use hoist_engine::contribute::Contributor;
use hoist_engine::plan::{Call, Draft, Kind, Plan, Repeat, Step, StepId, Vertex};
use hoist_engine::plugin::Plugin;
use serde::Serialize;
use serde_json::Value;

use crate::actions::disks::{self, Making, Task};
use crate::actions::erase as erasing;
use crate::actions::grow::Growing;
use crate::actions::images::{self, Receipt};
use crate::actions::stack::{self as stacks, Stacks};
use crate::actions::{Place, boot as booting, config_drive, files as filing, plugin};
use crate::bind::lasting;
use crate::claim::{Needs, resolve};
use crate::device::efivars::Variables;
use crate::device::gap::Marker;
use crate::device::table::{FIRST_PARTITION, Geometry};
use crate::diagnostic::{Code, Diagnostic};
use crate::document::{Bytes, DiskMatch, Document, Flow, Fs, Id, Image, Secrets, StorageNode};
use crate::facts::{DiskFacts, Facts, SignaturePlace};
use crate::fat::Contents;
use crate::images::{Digest, Manifest, Trust};
use crate::layout::{
    self, Difference, DiskPlan, Layout, PartitionPlan, StackPlan, TablePlan, Work,
};

pub use carry_out::{Applied, ApplyError, Listener, apply, apply_to, take};
pub use look::{look, look_until};
pub use show::{Becomes, FileChange, FirmwareChange, Shown, ShownStep};
pub use start::{NoStart, Start};
pub use undo::{Undoing, plan_undo, undo, would_be_lost};

/// The actions that are built in.
pub const ACTIONS: [&str; 6] =
    [disks::NAME, images::NAME, config_drive::NAME, filing::NAME, booting::NAME, erasing::NAME];

/// What comes when all of them are done; whoever calls does it.
pub const ENDINGS: [&str; 2] = ["report", "reboot"];

/// What a run is given beside its document.
#[derive(Debug, Clone, Default)]
pub struct Given {
    /// What the document refers to as `secret://NAME`.
    pub secrets: Secrets,
    /// Who may vouch for servers that something is fetched from.
    pub trust: Trust,
    /// Actions of others that are here.
    pub plugins: Vec<Arc<Plugin>>,
    /// Why others of them cannot be used.
    pub unusable: Vec<String>,
}

/// All that a decision is made from, beside the document.
#[derive(Debug, Default)]
pub struct Seen {
    pub facts: Facts,
    /// What hoist has left on disks, by kernel name.
    pub notes: BTreeMap<String, Notes>,
    /// Lists of chunks by image, with their digests.
    pub manifests: BTreeMap<Id, (Digest, Manifest)>,
    /// Of the disks that images of QEMU are of.
    pub virtual_sizes: BTreeMap<Id, u64>,
    /// What is in volumes that are there already, by partition.
    pub contents: BTreeMap<Id, Contents>,
    /// Partitions with the GRUB that is wanted, which the first sector of their disk starts.
    pub grub: BTreeSet<Id>,
    /// Bytes of what is fetched, as far as its servers say, by digest.
    pub sizes: BTreeMap<String, u64>,
    /// What firmware remembers, if it does.
    pub variables: Option<Variables>,
    /// Programs that are here, of those that could be called.
    pub tools: BTreeSet<String>,
    /// Only whether they are known decides anything.
    pub secrets: Secrets,
    /// Actions of others, which say themselves what they need and do.
    pub plugins: Vec<Arc<Plugin>>,
    /// Why others of them cannot be used.
    pub unusable: Vec<String>,
    /// Images that nobody has, and why.
    pub absent: BTreeMap<Id, String>,
    /// Bytes of those that come as they are, as far as their servers say.
    pub plain_sizes: BTreeMap<Id, u64>,
    /// The first MiB of those of whole disks.
    pub beginnings: BTreeMap<Id, Vec<u8>>,
    /// What could not be looked at.
    pub troubles: Vec<Diagnostic>,
}

/// What hoist has left in the gap of a disk.
#[derive(Debug, Clone, Default)]
pub struct Notes {
    pub marker: Option<Marker>,
    /// Images that were written.
    pub receipts: Vec<Receipt>,
    /// Files that were put there.
    pub filed: Vec<filing::Receipt>,
    /// What was made of partitions, and file systems on it.
    pub built: Vec<stacks::Receipt>,
    /// Steps of plug-ins that were done.
    pub plugins: Vec<plugin::Receipt>,
}

/// What is to be done to a machine.
#[derive(Debug)]
pub struct Decision {
    /// With everything in it that actions need of each other.
    pub document: Document,
    pub layout: Layout,
    pub plan: Arc<Plan>,
    /// The disks that the system is on, as far as something that lasts is known of them.
    pub roots: Vec<DiskMatch>,
    /// Disks that are begun with, and what stays of their tables.
    opened: BTreeMap<Id, Opened>,
    /// Disks that something is done to.
    touched: BTreeSet<Id>,
    manifests: BTreeMap<Id, Manifest>,
    /// What is where it shall be, though something else is done.
    done: BTreeMap<StepId, Value>,
    texts: filing::Texts,
    files: Vec<FileChange>,
    firmware: Option<FirmwareChange>,
    stacks: Stacks,
    hash: String,
    /// The hash without what is taken apart: that is done when the disks are taken.
    taken_hash: String,
}

#[derive(Debug, Clone, PartialEq)]
struct Opened {
    table: TablePlan,
    kept: Vec<PartitionPlan>,
    /// Where something was that is destroyed.
    doomed: Vec<Range<u64>>,
    ending: Ending,
    /// Who was at work on it before.
    marker: Option<Marker>,
}

/// What becomes of a disk that was begun with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    /// It gets its table.
    Table,
    /// It gets the table of an image.
    Image,
    /// It holds nothing.
    Nothing,
}

impl Decision {
    /// Of everything that is decided and everything on the disks that it was decided from.
    pub fn hash(&self) -> &str {
        &self.hash
    }

    /// There is nothing to do.
    pub fn is_settled(&self) -> bool {
        self.touched.is_empty()
    }
}

/// The document with only these actions queued.
pub fn only(mut document: Document, actions: &[String]) -> Document {
    if !actions.is_empty() {
        let flow = document.sections.flow.take().unwrap_or_default();
        document.sections.flow = Some(Flow { actions: actions.to_vec(), ..flow });
    }
    document
}

/// What is to be done, or everything that forbids it.
pub fn decide(document: &Document, seen: &Seen) -> Result<Decision, Vec<Diagnostic>> {
    let mut found = not_ours(document, seen);
    found.extend(plugins::refused(document, seen));
    let (sized, layout) = match laid_out(document, seen) {
        Ok(laid_out) => laid_out,
        Err(more) => {
            found.extend(seen.troubles.iter().cloned().chain(more));
            return Err(found);
        }
    };
    found.extend(seen.troubles.iter().cloned());
    found.extend(cannot(&sized, seen));
    found.extend(grow::cannot(&sized));
    found.extend(erase::cannot(&sized, &layout, seen));
    let mut work = Planning::new(&sized, &layout, seen);
    match plugins::wanted(&sized, &layout, seen) {
        Ok(wanted) => work.expect_plugins(wanted),
        Err(more) => found.extend(more),
    }
    work.disks();
    work.touch();
    work.stacks();
    work.images();
    work.drive();
    work.files();
    work.plugins();
    work.boot();
    work.keep_receipts();
    work.ends();
    work.remember();
    found.extend(work.absent_images());
    found.extend(work.refused_images());
    found.extend(work.refused_boot());
    found.extend(work.refused_files());
    found.extend(work.refused_stacks());
    found.extend(missing_tools(&work, seen));
    if !found.is_empty() {
        return Err(found);
    }
    let texts = work.texts();
    let (files, firmware) = (work.file_changes(), work.firmware_change());
    let there: Vec<bool> = layout.stack.iter().map(|plan| work.is_there(&plan.id)).collect();
    let Planning { vertices, opened, touched, done, stacks, .. } = work;
    let mut layout = whole::as_it_is(&layout, &touched, seen);
    let plan = Plan::new(Draft { vertices, ..Draft::default() })
        .map_err(|error| vec![Diagnostic::new(Code::Contradiction, "", error.to_string())])?;
    for (plan, is_there) in layout.stack.iter_mut().zip(there) {
        plan.is_there = is_there;
    }
    let taken_hash = {
        let mut layout = layout.clone();
        layout.disks.iter_mut().for_each(|disk| disk.tears_down.clear());
        hash(&plan, &layout)
    };
    let hash = hash(&plan, &layout);
    let roots = lasting(&layout::disks_of_root(&sized), &sized, &seen.facts);
    let manifests = seen.manifests.iter().map(|(id, (_, list))| (id.clone(), list.clone()));
    let (document, plan, manifests) = (sized, Arc::new(plan), manifests.collect());
    Ok(Decision {
        document,
        layout,
        plan,
        roots,
        opened,
        touched,
        manifests,
        done,
        texts,
        files,
        firmware,
        stacks,
        hash,
        taken_hash,
    })
}

/// The document with everything in it that actions need of each other, and what its disks become.
fn laid_out(document: &Document, seen: &Seen) -> Result<(Document, Layout), Vec<Diagnostic>> {
    // Where nobody makes tables, they have what all actions need, whichever of them run now.
    let is_asked = |name: &str| document.is_queued(name) || !document.is_queued(disks::NAME);
    let queued = Needs::ALL.into_iter().filter(|need| {
        let name = need.describe().name;
        ACTIONS.contains(&name.as_str()) && is_asked(&name)
    });
    let queued: Vec<_> = queued.collect();
    let document = &erase::alone(document);
    let own = queued.iter().map(|need| need as &dyn Contributor);
    let others = plugins::queued(document, seen);
    let others = others.iter().map(|plugin| &***plugin as &dyn Contributor);
    let resolved = resolve(document, own.chain(others), &seen.facts)?;
    let sized = with_sizes(&resolved, seen);
    let mut layout = layout::plan(&sized, &seen.facts)?;
    emptied::go_on(&sized, &mut layout, seen);
    Ok((sized, layout))
}

fn hash(plan: &Plan, layout: &Layout) -> String {
    let bytes = serde_json::to_vec(&(plan.hash(), layout)).expect("a plain value");
    let text = Digest::of(&bytes).to_string();
    text.strip_prefix("sha256:").unwrap_or(&text).to_owned()
}

/// What is asked for and no action here does.
fn not_ours(document: &Document, seen: &Seen) -> Vec<Diagnostic> {
    let sections = &document.sections;
    let asked = [
        ("boot", sections.boot.is_some()),
        ("config_drive", sections.config_drive.is_some()),
        ("files", !sections.files.is_empty()),
        ("erase", sections.erase.is_some()),
    ];
    let flow = sections.flow.as_ref().map_or(&[][..], |flow| &flow.actions);
    let by_section = asked
        .into_iter()
        .filter(|(name, is_there)| *is_there && flow.is_empty() && { !ACTIONS.contains(name) });
    let is_here = |name: &&str| ENDINGS.contains(name) || plugins::is_here(name, seen);
    let by_flow = flow.iter().map(String::as_str).filter(|name| !is_here(name));
    let names: BTreeSet<&str> = by_section.map(|(name, _)| name).chain(by_flow).collect();
    let unsupported = |name: &str| {
        let what = format!("action `{name}` is not in this program");
        let hint = format!("run the others alone: `--only {}`", ACTIONS.join(","));
        let found = Diagnostic::new(Code::Unsupported, "flow.actions", what).hint(hint);
        found.evidence(seen.unusable.clone())
    };
    names.into_iter().map(unsupported).collect()
}

/// Sizes that nobody wrote, and the list of chunks says.
fn with_sizes(document: &Document, seen: &Seen) -> Document {
    let mut document = document.clone();
    for (id, image) in &mut document.sections.images.0 {
        if let Some((_, manifest)) = seen.manifests.get(id) {
            image.size.get_or_insert(Bytes(manifest.size));
        }
        if let Some(size) = seen.virtual_sizes.get(id) {
            image.size.get_or_insert(Bytes(*size));
        }
    }
    document
}

/// What the document may ask for and the actions cannot.
fn cannot(document: &Document, seen: &Seen) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    let mut say = |place: String, what: &str, hint: &str| {
        found.push(Diagnostic::new(Code::Unsupported, place, what).hint(hint));
    };
    if !document.is_queued(images::NAME) {
        return found;
    }
    for (id, image) in document.sections.images.iter() {
        let place = |field: &str| format!("images.{id}.{field}");
        if let Some(token) = image.token.as_ref().filter(|token| !seen.secrets.has(token)) {
            let what = format!("`{token}` is not known here");
            say(place("token"), &what, "by hand, name the directory of its file with --secrets");
        }
        if image.made_by.as_deref().is_some_and(|maker| maker != config_drive::NAME) {
            say(place("made_by"), "nothing here makes it", "name a source");
        }
        let list = seen.manifests.get(id).map(|(_, list)| list);
        if document.sections.disks.get(&image.target).is_some()
            && list.is_some_and(|list| !list.begins_with_all_of(FIRST_PARTITION))
        {
            // What is kept there meanwhile would be written over.
            let what = "its first chunk does not have all of the first MiB of a disk";
            say(place("manifest"), what, "make the list with `hoist image build`");
        }
    }
    found
}

fn missing_tools(work: &Planning<'_>, seen: &Seen) -> Vec<Diagnostic> {
    let makes = work.makes.iter().filter_map(|fs| Some((fs.tool()?, &fs.id)));
    let grows = work.grows.iter().flat_map(|fs| fs.tools().map(|tool| (tool, &fs.id)));
    let raised = work.raised_nodes();
    let builds = raised.iter().map(|node| (node.tool(), &node.id));
    let tools: BTreeMap<&str, &Id> = builds.chain(makes).chain(grows).collect();
    let missing = tools.into_iter().filter(|(tool, _)| !seen.tools.contains(*tool));
    let say = |(tool, id): (&str, &Id)| {
        let what = format!("the program `{tool}` is needed for it, and is not here");
        let drivers = raised.iter().find(|node| node.tool() == tool).map(|node| node.drivers());
        let drivers = drivers.map(|drivers| format!(" --with {drivers}")).unwrap_or_default();
        let hint = format!(
            "install it, or put it into the agent's image: `hoist agent image --tools \
             {tool}{drivers} …`; nothing was written"
        );
        Diagnostic::new(Code::MissingTool, format!("storage.{id}"), what).hint(hint)
    };
    missing.map(say).collect()
}

/// What something is written to.
#[derive(Debug, Clone, Copy)]
enum Target<'a> {
    Part(&'a DiskPlan, &'a PartitionPlan),
    Whole(&'a DiskPlan),
    /// What is made of partitions.
    Device(&'a StackPlan),
}

impl Target<'_> {
    fn id(&self) -> &Id {
        match self {
            Self::Part(_, part) => &part.id,
            Self::Whole(disk) => &disk.id,
            Self::Device(plan) => &plan.id,
        }
    }

    /// Nothing for whole disks.
    fn place(&self) -> Option<Place> {
        match self {
            Self::Part(disk, part) => {
                let Work::Table(table) = &disk.work else { return None };
                let (disk, partition, table) = (disk.id.clone(), part.id.clone(), table.clone());
                Some(Place::Partition { disk, table, partition })
            }
            Self::Whole(_) => None,
            Self::Device(plan) => Some(Place::Device(plan.id.clone())),
        }
    }
}

/// Steps, as they come together. Each waits for the one before it.
struct Planning<'a> {
    document: &'a Document,
    layout: &'a Layout,
    seen: &'a Seen,
    vertices: Vec<Vertex>,
    opened: BTreeMap<Id, Opened>,
    touched: BTreeSet<Id>,
    makes: Vec<Making>,
    grows: Vec<Growing>,
    done: BTreeMap<StepId, Value>,
    plugins: Vec<plugins::Wanted>,
    stacks: Stacks,
    /// Of those, what is there.
    standing: BTreeSet<Id>,
    /// What has to be put together for some step.
    raised: BTreeSet<Id>,
}

impl<'a> Planning<'a> {
    fn new(document: &'a Document, layout: &'a Layout, seen: &'a Seen) -> Self {
        let mut planning = Self {
            document,
            layout,
            seen,
            vertices: Vec::new(),
            opened: BTreeMap::new(),
            touched: BTreeSet::new(),
            makes: Vec::new(),
            grows: Vec::new(),
            done: BTreeMap::new(),
            plugins: Vec::new(),
            stacks: Stacks::new(layout, &document.sections.storage),
            standing: BTreeSet::new(),
            raised: BTreeSet::new(),
        };
        planning.find_standing();
        planning
    }

    fn facts(&self, disk: &DiskPlan) -> Option<&'a DiskFacts> {
        self.seen.facts.disks.iter().find(|facts| facts.kernel_name == disk.kernel_name)
    }

    fn notes(&self, disk: &DiskPlan) -> Option<&'a Notes> {
        self.seen.notes.get(&disk.kernel_name)
    }

    fn step(&mut self, name: String, action: &str, input: impl Serialize, verify: bool) -> StepId {
        let id = StepId(u32::try_from(self.vertices.len()).expect("documents are bounded"));
        let input = serde_json::to_value(input).expect("a plain value");
        let call = Call { action: action.to_owned(), input, undoes: None };
        let after = if verify { vec![call.clone()] } else { Vec::new() };
        // Everything can be done again: nothing that is there already is taken for ours.
        let step = Step { call, after, repeat: Repeat::Safe, ..Step::default() };
        let after = id.0.checked_sub(1).map(StepId).into_iter().collect();
        self.vertices.push(Vertex { name, after, kind: Kind::Step(Box::new(step)) });
        id
    }

    fn step_mut(&mut self, StepId(at): StepId) -> Option<&mut Step> {
        match &mut self.vertices.get_mut(at as usize)?.kind {
            Kind::Step(step) => Some(step),
            Kind::Join(_) => None,
        }
    }

    /// What is wiped and made, disk by disk.
    fn disks(&mut self) {
        // What goes with a stack goes first: for as long as the rest of it is there, it is known.
        for disk in emptied::disks(self.layout) {
            self.wipe(disk, disk.writable.clone());
        }
        for disk in &self.layout.disks {
            match &disk.work {
                Work::Table(table) => self.table(disk, table),
                Work::Image(_) => self.whole(disk),
                Work::Erase => self.erase(disk),
                Work::None => {}
            }
        }
    }

    fn wipe(&mut self, disk: &DiskPlan, mut ranges: Vec<Range<u64>>) {
        ranges.sort_unstable_by_key(|range| (range.start, range.end));
        ranges.dedup();
        self.touched.insert(disk.id.clone());
        let name = format!("wipe {}", disk.id);
        let opened = self.opened.get(&disk.id);
        let gap = opened.and_then(|opened| disks::gap(&opened.kept).ok());
        let from = gap.map_or(0, |gap| gap.range().end);
        self.step(name, disks::NAME, Task::Wipe { disk: disk.id.clone(), ranges, from }, true);
    }

    fn table(&mut self, disk: &DiskPlan, table: &TablePlan) {
        let makes = self.layout.stack.iter().filter_map(|plan| {
            let fs = self.document.storage(&plan.id).and_then(StorageNode::as_fs)?;
            let part = table.partitions.iter().find(|part| part.id == fs.on)?;
            let is_made = !plan.retained && plan.image.is_none();
            let making = Making::new(&fs.id, fs.kind, plan.uuid, fs.label.as_deref());
            (is_made && !self.is_made(disk, part, &making)).then_some((part, making))
        });
        let makes: Vec<_> = makes.collect();
        let adopts = self.document.adopts_tables();
        let is_settled = makes.is_empty() && self.is_closed(disk) && !self.is_pending(disk);
        if is_settled && (adopts || has_table(disk)) {
            return;
        }
        self.touched.insert(disk.id.clone());
        let kept: Vec<_> = table.partitions.iter().filter(|part| is_kept(disk, part)).collect();
        let is_made = |part: &PartitionPlan| {
            makes.iter().any(|(made, _)| made.id == part.id) || self.is_built_on(&part.id)
        };
        let wiped = table.partitions.iter().filter(|part| {
            is_made(part) || (!adopts && !kept.iter().any(|kept| kept.id == part.id))
        });
        let mut ranges: Vec<_> = wiped.map(PartitionPlan::range).collect();
        if !adopts {
            let geometry = Geometry { size: disk.size, sector: disk.sector.into() };
            ranges.extend(disks::free(table, &geometry));
            let doomed = self.old_legs(disk, &kept);
            ranges.extend(doomed.iter().cloned());
            let (table, kept) = (table.clone(), kept.into_iter().cloned().collect());
            let marker = self.notes(disk).and_then(|notes| notes.marker.clone());
            let opened = Opened { table, kept, doomed, ending: Ending::Table, marker };
            self.opened.insert(disk.id.clone(), opened);
        }
        if self.opened.get(&disk.id).is_some_and(|opened| opened.kept.is_empty()) {
            self.erase_before(disk);
        }
        if !ranges.is_empty() {
            self.wipe(disk, ranges);
        }
        for (part, fs) in makes {
            let name = format!("make {} {} in {}", fs.kind, fs.id, part.id);
            self.makes.push(fs.clone());
            let (disk, partition) = (disk.id.clone(), part.id.clone());
            let place = Place::Partition { disk, table: table.clone(), partition };
            self.step(name, disks::NAME, Task::Make { place, fs }, true);
        }
    }

    /// Whether an earlier run of this transaction came to its end on it.
    fn is_closed(&self, disk: &DiskPlan) -> bool {
        let marker = self.notes(disk).and_then(|notes| notes.marker.as_ref());
        (self.document.adopts_tables() && !matches!(disk.work, Work::Image(_)))
            || marker.is_some_and(|marker| marker.is_complete && marker.txn == self.document.txn)
    }

    fn is_made(&self, disk: &DiskPlan, part: &PartitionPlan, fs: &Making) -> bool {
        let place = SignaturePlace::Partition(part.number);
        let signatures = self.facts(disk).map_or(&[][..], |facts| &facts.signatures);
        let mut inside = signatures.iter().filter(|signature| signature.place == place);
        is_kept(disk, part) && inside.any(|signature| fs.is(signature))
    }

    /// Whether what is in a partition or a device now will not be.
    fn is_made_anew(&self, place: &Id) -> bool {
        self.makes.iter().any(|fs| {
            let node = self.document.storage(&fs.id).and_then(StorageNode::as_fs);
            node.is_some_and(|node| node.on == *place)
        })
    }

    /// A partition, or what is made of partitions.
    fn place(&self, id: &Id) -> Option<Target<'a>> {
        let part = self.layout.partition(id).map(|(disk, part)| Target::Part(disk, part));
        part.or_else(|| {
            self.stacks.node(id)?;
            self.layout.stack.iter().find(|plan| plan.id == *id).map(Target::Device)
        })
    }

    /// What an image goes to, directly or through its file system.
    fn target(&self, image: &Image) -> Option<Target<'a>> {
        let fs: Option<&Fs> = self.document.storage(&image.target).and_then(StorageNode::as_fs);
        let place = self.place(fs.map_or(&image.target, |fs| &fs.on));
        place.or_else(|| self.whole_target(image).map(Target::Whole))
    }

    /// Whether any of it is on a disk.
    fn is_on(&self, target: Target<'_>, disk: &Id) -> bool {
        match target {
            Target::Part(on, _) | Target::Whole(on) => on.id == *disk,
            Target::Device(plan) => self.stacks.disks_below(&plan.id).contains(disk),
        }
    }

    /// Something is done to it.
    fn touch_target(&mut self, target: Target<'_>) {
        match target {
            Target::Part(disk, _) | Target::Whole(disk) => {
                self.touched.insert(disk.id.clone());
            }
            Target::Device(plan) => self.raise(&plan.id),
        }
    }

    /// Whether anything is still to come into its partitions.
    fn is_pending(&self, disk: &DiskPlan) -> bool {
        self.needs_stack(&disk.id)
            || self.needs_image(disk)
            || self.needs_growing(disk)
            || self.needs_drive(&disk.id)
            || self.needs_files(disk)
            || self.needs_plugin(&disk.id)
            || self.needs_boot(disk)
    }

    /// Tables come last, when all else is durable.
    fn ends(&mut self) {
        self.stop();
        for (disk, opened) in self.opened.clone() {
            let (name, table) = (format!("close {disk}"), opened.table);
            let task = match opened.ending {
                Ending::Table => Task::Close { disk, table },
                Ending::Image => Task::Fit { disk },
                Ending::Nothing => continue,
            };
            self.step(name, disks::NAME, task, true);
        }
    }
}

fn as_value(receipt: &impl Serialize) -> Value {
    serde_json::to_value(receipt).expect("a plain value")
}

/// Whether the table is as it shall be, and nothing is destroyed.
fn has_table(disk: &DiskPlan) -> bool {
    let same = |change: &layout::Change| change.what == Difference::Kept;
    disk.destroys.is_empty() && disk.changes.iter().all(same)
}

/// Whether a partition is there as it shall be.
fn is_kept(disk: &DiskPlan, part: &PartitionPlan) -> bool {
    disk.changes.iter().any(|change| {
        let after = change.after.as_ref();
        change.what == Difference::Kept && after.and_then(|a| a.partuuid) == Some(part.partuuid)
    })
}

#[cfg(test)]
mod tests;
