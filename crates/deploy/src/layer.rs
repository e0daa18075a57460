//! The layers of task files: product, plug-ins, cluster, run. A task of a higher layer replaces the
//! task of the same name as a whole, or field by field if it has `patch: true`. Every field keeps its
//! source position, so that diagnostics and `provenance` can name its file.
//!
//! Does not belong here: the syntax of task files (`parse`).

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde_json::Value;

use crate::diagnostic::{Code, SourceDiagnostic};
use crate::parse::work_in_its_directory;
use crate::spec::{At, Barrier, Limits, Place, Role, Task, TaskFile};

/// The layer of a file, lowest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Layer {
    Product,
    /// Files with `plugin: NAME`.
    Plugin,
    Cluster,
    /// Files of the run, each over the one before it.
    Run(u32),
}

impl Layer {
    /// The layer of a file by its index among the files that belong to no plug-in.
    pub fn at(index: usize) -> Self {
        match index {
            0 => Self::Product,
            1 => Self::Cluster,
            index => Self::Run(u32::try_from(index).unwrap_or(u32::MAX)),
        }
    }

    /// Assigns a layer to each file. A later file is over an earlier one.
    pub fn of(files: Vec<TaskFile>) -> Vec<(Self, TaskFile)> {
        let mut index = 0;
        let layered = |file: TaskFile| {
            if file.plugin.is_some() {
                return (Self::Plugin, file);
            }
            index += 1;
            (Self::at(index - 1), file)
        };
        files.into_iter().map(layered).collect()
    }
}

/// The merged task files: the input of the compiler.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Book {
    pub roles: Vec<Role>,
    pub tasks: Vec<Task>,
    pub barriers: Vec<Barrier>,
    pub settings: Value,
    pub limits: Limits,
    /// Files whose references may bind to nothing.
    pub(crate) lenient: BTreeSet<u32>,
}

impl Book {
    pub(crate) fn is_lenient(&self, place: Place) -> bool {
        self.lenient.contains(&place.file)
    }
}

/// A declaration whose name is unique in the book.
trait Named {
    fn name(&self) -> &At<String>;
    fn is_patch(&self) -> bool;
    /// Takes over the fields that are set in `above`.
    fn overlay(&mut self, above: Self);
    const WHAT: &'static str;
}

macro_rules! named {
    ($type:ty, $what:literal, $name:ident, [$($field:ident),* $(,)?]) => {
        impl Named for $type {
            const WHAT: &'static str = $what;
            fn name(&self) -> &At<String> {
                &self.$name
            }
            fn is_patch(&self) -> bool {
                self.patch
            }
            fn overlay(&mut self, above: Self) {
                // All fields are named, so that none can be forgotten.
                let Self { $name: _, patch: _, $($field),* } = above;
                $(if $field.is_some() {
                    self.$field = $field;
                })*
            }
        }

        impl $type {
            /// The source position of each field that is set.
            pub fn provenance(&self) -> Vec<(&'static str, Place)> {
                let mut fields = Vec::new();
                $(if let Some(field) = &self.$field {
                    fields.push((stringify!($field), field.place));
                })*
                fields
            }
        }
    };
}

named!(
    Task,
    "task",
    id,
    [
        on,
        requires,
        required_for,
        needs,
        needed_by,
        run,
        check_before,
        check_after,
        undo,
        locks,
        timeout,
        may_use,
        retries,
        retries_precheck,
        delay,
        at_once,
        repeat,
        on_failure,
        reversibility,
        skip_when_done,
        when,
        inputs,
        events,
        window,
        cwd,
        about,
    ]
);
named!(Barrier, "barrier", id, [requires, required_for, passes_with]);
named!(
    Role,
    "role",
    name,
    [
        nodes,
        allow_empty,
        first,
        tolerate,
        at_once,
        canary,
        pause_after_canary,
        max_unavailable,
        per,
        window,
        on_failure,
        when_tripped,
    ]
);

/// Merges files into one book, the lowest layer first. Invalid declarations give diagnostics and
/// are left out.
pub fn merge(files: Vec<(Layer, TaskFile)>) -> (Book, Vec<SourceDiagnostic>) {
    let mut files = files;
    files.sort_by_key(|(layer, _)| *layer);
    let mut book = Book { settings: Value::Object(serde_json::Map::new()), ..Book::default() };
    let mut found = Vec::new();
    let mut roles = Shelf::new();
    let mut tasks = Shelf::new();
    let mut barriers = Shelf::new();
    for (layer, file) in files {
        if file.is_lenient {
            book.lenient.extend(files_of(&file));
        }
        file.roles.into_iter().for_each(|role| roles.put(layer, role, &mut found));
        file.tasks.into_iter().for_each(|task| tasks.put(layer, task, &mut found));
        file.barriers.into_iter().for_each(|barrier| barriers.put(layer, barrier, &mut found));
        if let Some(settings) = file.settings {
            lay_over(&mut book.settings, settings.value);
        }
        let Limits { at_once, per_node, breaker, on_crash } = file.limits;
        let limits = &mut book.limits;
        limits.at_once = at_once.or(limits.at_once);
        limits.per_node = per_node.or(limits.per_node);
        limits.breaker = breaker.or(limits.breaker);
        limits.on_crash = on_crash.or(limits.on_crash);
    }
    (book.roles, book.tasks, book.barriers) = (roles.things, tasks.things, barriers.things);
    book.tasks.iter_mut().for_each(work_in_its_directory);
    same_name(&book, &mut found);
    (book, found)
}

fn files_of(file: &TaskFile) -> BTreeSet<u32> {
    let tasks = file.tasks.iter().map(|task| task.id.place.file);
    tasks.chain(file.barriers.iter().map(|barrier| barrier.id.place.file)).collect()
}

/// Declarations by name, in the order of their first appearance.
struct Shelf<T> {
    things: Vec<T>,
    by_name: HashMap<String, (usize, Layer)>,
}

impl<T: Named> Shelf<T> {
    fn new() -> Self {
        Self { things: Vec::new(), by_name: HashMap::new() }
    }

    fn put(&mut self, layer: Layer, thing: T, found: &mut Vec<SourceDiagnostic>) {
        let At { value: name, place } = thing.name().clone();
        let Some((at, below)) = self.by_name.get_mut(&name) else {
            if thing.is_patch() {
                let message = format!("{} `{name}` not found below to patch", T::WHAT);
                let remedy = "write it whole, without `patch: true`";
                found
                    .push(SourceDiagnostic::new(Code::PatchesNothing, place, message).hint(remedy));
                return;
            }
            self.by_name.insert(name, (self.things.len(), layer));
            self.things.push(thing);
            return;
        };
        let other = self.things[*at].name().place;
        if *below == layer && !thing.is_patch() {
            found.push(twice::<T>(layer, &name, place, other));
            return;
        }
        *below = layer;
        if thing.is_patch() {
            self.things[*at].overlay(thing);
        } else {
            self.things[*at] = thing;
        }
    }
}

fn twice<T: Named>(layer: Layer, name: &str, place: Place, other: Place) -> SourceDiagnostic {
    let (code, message, remedy) = if layer == Layer::Plugin && place.file != other.file {
        let message = format!("two plug-ins have the {} `{name}`", T::WHAT);
        (Code::TwoPlugins, message, "rename one of them, or patch it in the cluster's layer")
    } else {
        let message = format!("there is a {} `{name}` already", T::WHAT);
        (Code::Twice, message, "rename one of them, or write `patch: true` to change the other")
    };
    SourceDiagnostic::new(code, place, message).hint(remedy).note(other, "the other one")
}

/// A barrier and a task are named in the same lists, so their names differ.
fn same_name(book: &Book, found: &mut Vec<SourceDiagnostic>) {
    let tasks: BTreeMap<&str, Place> =
        book.tasks.iter().map(|task| (task.id.value.as_str(), task.id.place)).collect();
    for At { value, place } in book.barriers.iter().map(|barrier| &barrier.id) {
        if let Some(other) = tasks.get(value.as_str()) {
            let message = format!("`{value}` is a barrier and a task");
            let twice =
                SourceDiagnostic::new(Code::Twice, *place, message).hint("rename one of them");
            found.push(twice.note(*other, "the task"));
        }
    }
}

/// Maps are merged; everything else is replaced.
pub(crate) fn lay_over(below: &mut Value, above: Value) {
    match (below, above) {
        (Value::Object(below), Value::Object(above)) => {
            for (key, value) in above {
                lay_over(below.entry(key).or_insert(Value::Null), value);
            }
        }
        (below, above) => *below = above,
    }
}
