//! Text to task files. Parsing continues after an error, so that all diagnostics of a file are
//! reported at once, each with line and column.
//!
//! Does not belong here: rules across tasks or files, which need all of them (`layer`, `bind`,
//! `compile`).

mod run;
mod tree;
mod units;

use std::time::Duration;

use hoist_engine::plan::{MayUse, OnCrash, OnFailure, Repeat, Reversibility};
use hoist_model::document::API;
use hoist_model::nearest;
use hoist_model::selector::Selector;
use serde::de::DeserializeOwned;

use crate::diagnostic::{Code, SourceDiagnostic};
use crate::select::pattern;
use crate::spec::{
    Amount, At, Barrier, FailurePolicy, Limits, Need, NeedScope, PassesWith, Place, Reference,
    Role, Sources, Task, TaskFile, TripPolicy, Want, Week, When,
};
use tree::{Data, Tree};

pub(crate) use run::work_in_its_directory;

/// Largest file. A file with all of Fuel's tasks has 200 KB.
pub const MAX_BYTES: usize = 10 * 1024 * 1024;
/// Most tasks of one file.
pub const MAX_TASKS: usize = 10_000;
/// Longest name of a task, barrier or role.
const MAX_NAME: usize = 128;
/// Most diagnostics that are reported at once.
const MAX_TOLD: usize = 100;
/// The version of the format.
const VERSION: &str = "1";

const FILE_KEYS: [&str; 8] =
    ["hoist", "plugin", "roles", "tasks", "barriers", "settings", "limits", "lenient"];
const DOCUMENT_KEYS: [&str; 4] = ["api", "kind", "name", "spec"];
const ROLE_KEYS: [&str; 9] = [
    "nodes",
    "allow_empty",
    "first",
    "tolerate",
    "rollout",
    "window",
    "on_failure",
    "when_tripped",
    "patch",
];
const ROLLOUT_KEYS: [&str; 5] =
    ["at_once", "canary", "pause_after_canary", "max_unavailable", "per"];
const BARRIER_KEYS: [&str; 4] = ["requires", "required_for", "passes_with", "patch"];
const LIMIT_KEYS: [&str; 4] = ["at_once", "per_node", "breaker", "on_crash"];
const MAY_USE_KEYS: [&str; 4] = ["memory", "processes", "open_files", "file_size"];
const NEED_KEYS: [&str; 5] = ["task", "on", "only", "want", "optional"];
const TASK_KEYS: [&str; 26] = [
    "on",
    "requires",
    "required_for",
    "needs",
    "needed_by",
    "run",
    "check",
    "undo",
    "locks",
    "timeout",
    "may_use",
    "retries",
    "retries_precheck",
    "delay",
    "at_once",
    "repeat",
    "on_failure",
    "reversibility",
    "skip",
    "when",
    "inputs",
    "events",
    "window",
    "about",
    "patch",
    "cwd",
];

/// What other products call our keys.
const FOREIGN: [(&str, &str); 17] = [
    ("cross-depends", "needs"),
    ("cross_depends", "needs"),
    ("cross-depended-by", "needed_by"),
    ("cross_depended_by", "needed_by"),
    ("depends_on", "requires"),
    ("after", "requires"),
    ("before", "required_for"),
    ("role", "on"),
    ("roles", "on"),
    ("groups", "on"),
    ("tags", "on"),
    ("hosts", "on"),
    ("condition", "when"),
    ("interval", "delay"),
    ("serial", "at_once"),
    ("throttle", "at_once"),
    ("description", "about"),
];

/// Parses one file. The sources keep its text for excerpts in messages. The diagnostics come with
/// the declarations that could be parsed.
pub fn parse(sources: &mut Sources, name: &str, bytes: &[u8]) -> (TaskFile, Vec<SourceDiagnostic>) {
    if bytes.len() > MAX_BYTES {
        let file = sources.add(name, "");
        let message = format!("{} bytes are more than the limit of {MAX_BYTES}", bytes.len());
        let diagnostic =
            SourceDiagnostic::new(Code::TooLarge, Place { file, line: 0, column: 0 }, message);
        return (TaskFile::default(), vec![diagnostic.hint("split it into several files")]);
    }
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => {
            let file = sources.add(name, "");
            let message = format!("byte {} is not UTF-8", error.valid_up_to());
            let place = Place { file, line: 0, column: 0 };
            let diagnostic = SourceDiagnostic::new(Code::NotYaml, place, message);
            return (TaskFile::default(), vec![diagnostic.hint("save the file as UTF-8")]);
        }
    };
    let file = sources.add(name, text);
    let mut reader = Reader { found: Vec::new() };
    let mut whole = TaskFile::default();
    match tree::documents(file, text) {
        Ok(documents) => {
            let is_empty = documents.iter().all(Tree::is_null);
            if is_empty {
                let message = "the file is empty";
                let place = Place { file, line: 0, column: 0 };
                let diagnostic = SourceDiagnostic::new(Code::Missing, place, message);
                reader.found.push(diagnostic.hint("begin it with `hoist: 1` and `tasks:`"));
            }
            let mut documents = documents.iter().filter(|document| !document.is_null());
            if let Some(document) = documents.next() {
                reader.document(document, &mut whole);
            }
            for more in documents {
                let message = "a task file is one document, and here another one begins";
                let remedy = "make one of them, or a file of each";
                reader
                    .found
                    .push(SourceDiagnostic::new(Code::Twice, more.place, message).hint(remedy));
            }
        }
        Err(diagnostic) => reader.found.push(diagnostic),
    }
    reader.found.truncate(MAX_TOLD);
    (whole, reader.found)
}

/// Shortens text from a file for a message.
fn shown(text: &str) -> String {
    text.chars().take(40).collect()
}

struct Reader {
    found: Vec<SourceDiagnostic>,
}

impl Reader {
    fn wrong(&mut self, place: Place, message: impl Into<String>) {
        self.found.push(SourceDiagnostic::new(Code::WrongValue, place, message));
    }

    fn expected<T>(&mut self, what: &str, found: &Tree) -> Option<T> {
        self.wrong(found.place, format!("expected {what}, found {}", found.kind()));
        None
    }

    /// The entries of a map with these keys, and no others.
    fn entries<'t>(
        &mut self,
        tree: &'t Tree,
        keys: &[&str],
        of: &str,
    ) -> Vec<(&'t str, &'t Tree, &'t Tree)> {
        let entries = self.any_entries(tree, of);
        entries
            .into_iter()
            .filter(|(key, at, _)| {
                let is_known = keys.contains(key);
                if !is_known {
                    self.unknown_key(key, at.place, keys, of);
                }
                is_known
            })
            .collect()
    }

    fn unknown_key(&mut self, key: &str, place: Place, keys: &[&str], of: &str) {
        let message = format!("unknown key `{key}` in {of}");
        let foreign = FOREIGN.iter().find(|(theirs, ours)| *theirs == key && keys.contains(ours));
        let close = foreign.map(|(_, ours)| *ours).or_else(|| nearest(key, keys.iter().copied()));
        let diagnostic = SourceDiagnostic::new(Code::UnknownKey, place, message);
        self.found.push(match close {
            Some(close) => diagnostic.suggest(Some(close)),
            None => diagnostic.hint(format!("there are {}", keys.join(", "))),
        });
    }

    /// The entries of a map; none of nothing.
    fn any_entries<'t>(&mut self, tree: &'t Tree, of: &str) -> Vec<(&'t str, &'t Tree, &'t Tree)> {
        let Data::Map(map) = &tree.data else {
            if !tree.is_null() {
                self.wrong(tree.place, format!("{of} is a map, not {}", tree.kind()));
            }
            return Vec::new();
        };
        let mut seen = std::collections::HashMap::new();
        let mut entries = Vec::new();
        for (key, value) in map {
            let name = match &key.data {
                Data::Scalar { text, .. } => text.as_str(),
                _ => continue,
            };
            if let Some(other) = seen.insert(name, key.place) {
                let message = format!("the key `{name}` is twice in {of}");
                let diagnostic = SourceDiagnostic::new(Code::Twice, key.place, message);
                self.found.push(diagnostic.note(other, "the other one"));
                continue;
            }
            entries.push((name, key, value));
        }
        entries
    }

    /// Free-form data, of which no key is twice below the first level.
    fn free(&mut self, tree: &Tree) -> serde_json::Value {
        let parts: Vec<&Tree> = match &tree.data {
            Data::Scalar { .. } => Vec::new(),
            Data::List(list) => list.iter().collect(),
            Data::Map(map) => map.iter().map(|(_, value)| value).collect(),
        };
        for part in parts {
            self.no_key_twice(part);
        }
        tree.value()
    }

    fn no_key_twice(&mut self, tree: &Tree) {
        match &tree.data {
            Data::Scalar { .. } => {}
            Data::List(list) => list.iter().for_each(|one| self.no_key_twice(one)),
            Data::Map(_) => {
                for (_, _, value) in self.any_entries(tree, "the same map") {
                    self.no_key_twice(value);
                }
            }
        }
    }

    /// A file by itself, or as the spec of a document.
    fn document(&mut self, tree: &Tree, whole: &mut TaskFile) {
        let Data::Map(map) = &tree.data else {
            self.wrong(tree.place, format!("a task file is a map, not {}", tree.kind()));
            return;
        };
        let has = |key: &str| map.iter().any(|(name, _)| name.text() == Some(key));
        if !has("api") && !has("kind") {
            if !has("hoist") {
                let message = "`hoist`, the version of the format, is missing";
                let diagnostic = SourceDiagnostic::new(Code::Missing, tree.place, message);
                self.found.push(diagnostic.hint("begin it with `hoist: 1`"));
            }
            self.file(tree, whole);
            return;
        }
        let mut spec = None;
        for (key, _, value) in self.entries(tree, &DOCUMENT_KEYS, "the document") {
            match key {
                "api" if value.text() != Some(API) => {
                    self.wrong(value.place, format!("unknown version; write `api: {API}`"));
                }
                "kind" if value.text() != Some("Deployment") => {
                    self.wrong(
                        value.place,
                        "this is no Deployment; `hoist apply` takes other kinds",
                    );
                }
                "name" => whole.name = self.text(value).or(whole.name.take()),
                "spec" => spec = Some(value),
                _ => {}
            }
        }
        if let Some(spec) = spec {
            self.file(spec, whole);
        } else {
            let message = "a Deployment has a `spec`: the roles and tasks";
            self.found.push(SourceDiagnostic::new(Code::Missing, tree.place, message));
        }
    }

    fn file(&mut self, tree: &Tree, whole: &mut TaskFile) {
        for (key, _, value) in self.entries(tree, &FILE_KEYS, "the task file") {
            match key {
                "hoist" if value.text() != Some(VERSION) => {
                    let found = value.text().unwrap_or_default();
                    let message = format!("the version is `{found}`; this hoist reads `{VERSION}`");
                    self.wrong(value.place, message);
                }
                "plugin" => whole.plugin = self.text(value).or(whole.plugin.take()),
                "roles" => {
                    for (name, at, value) in self.any_entries(value, "`roles`") {
                        let role = self.role(name, at, value);
                        whole.roles.push(role);
                    }
                }
                "tasks" => self.tasks(value, whole),
                "barriers" => {
                    for (name, at, value) in self.any_entries(value, "`barriers`") {
                        let barrier = self.barrier(name, at, value);
                        whole.barriers.push(barrier);
                    }
                }
                "settings" => {
                    self.any_entries(value, "`settings`");
                    whole.settings = Some(At::new(self.free(value), value.place));
                }
                "limits" => self.limits(value, &mut whole.limits),
                "lenient" => {
                    whole.is_lenient = self.bool(value).is_some_and(|lenient| lenient.value);
                }
                _ => {}
            }
        }
    }

    fn tasks(&mut self, tree: &Tree, whole: &mut TaskFile) {
        let entries = self.any_entries(tree, "`tasks`");
        if entries.len() > MAX_TASKS {
            let message = format!("{} tasks are more than {MAX_TASKS}", entries.len());
            let diagnostic = SourceDiagnostic::new(Code::TooLarge, tree.place, message);
            self.found.push(diagnostic.hint("split it into several files"));
            return;
        }
        for (name, at, value) in entries {
            let task = self.task(name, at, value);
            whole.tasks.push(task);
        }
    }

    /// Names are used in selections, so they have no signs that mean something there.
    fn name(&mut self, name: &str, at: &Tree, what: &str) -> At<String> {
        let sign = |c: char| c.is_alphanumeric() || "-_.:".contains(c);
        let is_good = !name.is_empty()
            && name.len() <= MAX_NAME
            && name.chars().all(sign)
            && !name.contains("..")
            && !name.starts_with(['-', '.']);
        if !is_good {
            let message = format!(
                "`{}` cannot be the name of a {what}; it has letters, digits and `-_.:`, at most \
                 {MAX_NAME}",
                shown(name)
            );
            self.wrong(at.place, message);
        }
        At::new(name.to_owned(), at.place)
    }

    fn role(&mut self, name: &str, at: &Tree, tree: &Tree) -> Role {
        let mut role = Role { name: self.name(name, at, "role"), ..Role::default() };
        let of = format!("role `{name}`");
        for (key, _, value) in self.entries(tree, &ROLE_KEYS, &of) {
            match key {
                "nodes" => role.nodes = self.selector(value),
                "allow_empty" => role.allow_empty = self.bool(value),
                "first" => role.first = self.text(value),
                "tolerate" => role.tolerate = self.amount(value),
                "window" => role.window = self.week(value),
                "on_failure" => {
                    let words = [("leave", FailurePolicy::Leave), ("undo", FailurePolicy::Undo)];
                    role.on_failure = self.choice(value, &words);
                }
                "when_tripped" => {
                    let words = [("stop", TripPolicy::Stop), ("continue", TripPolicy::Continue)];
                    role.when_tripped = self.choice(value, &words);
                }
                "patch" => role.patch = self.bool(value).is_some_and(|patch| patch.value),
                "rollout" => self.rollout(value, &mut role, &of),
                _ => {}
            }
        }
        role
    }

    fn rollout(&mut self, tree: &Tree, role: &mut Role, of: &str) {
        for (key, _, value) in self.entries(tree, &ROLLOUT_KEYS, &format!("the rollout of {of}")) {
            match key {
                "at_once" => role.at_once = self.amount_or_expression(value),
                "canary" => role.canary = self.amount(value),
                "pause_after_canary" => role.pause_after_canary = self.duration(value),
                "max_unavailable" => role.max_unavailable = self.amount(value),
                "per" => {
                    let mut per = Vec::new();
                    for (label, _, count) in self.any_entries(value, "`per`") {
                        if let Some(count) = self.number(count) {
                            per.push((label.to_owned(), count.value));
                        }
                    }
                    role.per = Some(At::new(per, value.place));
                }
                _ => {}
            }
        }
    }

    fn limits(&mut self, tree: &Tree, limits: &mut Limits) {
        for (key, _, value) in self.entries(tree, &LIMIT_KEYS, "`limits`") {
            match key {
                "at_once" => limits.at_once = self.number(value),
                "per_node" => limits.per_node = self.number(value),
                "breaker" => limits.breaker = self.number(value),
                "on_crash" => {
                    limits.on_crash = self.word::<OnCrash>(value, &["resume", "undo", "ask"]);
                }
                _ => {}
            }
        }
    }

    fn barrier(&mut self, name: &str, at: &Tree, tree: &Tree) -> Barrier {
        let mut barrier = Barrier { id: self.name(name, at, "barrier"), ..Barrier::default() };
        for (key, _, value) in self.entries(tree, &BARRIER_KEYS, &format!("barrier `{name}`")) {
            match key {
                "requires" => barrier.requires = Some(self.references(value)),
                "required_for" => barrier.required_for = Some(self.references(value)),
                "patch" => barrier.patch = self.bool(value).is_some_and(|patch| patch.value),
                "passes_with" => {
                    let words = [
                        ("all", PassesWith::All),
                        ("tolerated", PassesWith::Tolerated),
                        ("any_result", PassesWith::AnyResult),
                    ];
                    barrier.passes_with = self.choice(value, &words);
                }
                _ => {}
            }
        }
        barrier
    }

    fn task(&mut self, name: &str, at: &Tree, tree: &Tree) -> Task {
        let mut task = Task { id: self.name(name, at, "task"), ..Task::default() };
        let of = format!("task `{name}`");
        for (key, _, value) in self.entries(tree, &TASK_KEYS, &of) {
            match key {
                "on" => task.on = self.selector(value),
                "requires" => task.requires = Some(self.references(value)),
                "required_for" => task.required_for = Some(self.references(value)),
                "needs" => task.needs = Some(self.needs(value)),
                "needed_by" => task.needed_by = Some(self.needs(value)),
                "run" => task.run = self.run(value),
                "undo" => task.undo = self.run(value),
                "check" => self.checks(value, &mut task, &of),
                "locks" => task.locks = Some(self.texts(value)),
                "timeout" => task.timeout = self.duration(value),
                "may_use" => task.may_use = Some(self.may_use(value, &of)),
                "retries" => task.retries = self.number(value),
                "retries_precheck" => task.retries_precheck = self.number(value),
                "delay" => task.delay = self.duration(value),
                "at_once" => task.at_once = self.amount_or_expression(value),
                "repeat" => task.repeat = self.word::<Repeat>(value, &["safe", "check", "never"]),
                "on_failure" => {
                    let words = ["stop", "continue", "ignore"];
                    task.on_failure = self.word::<OnFailure>(value, &words);
                }
                "reversibility" => {
                    let words = ["reversible", "compensable", "commit_point"];
                    task.reversibility = self.word::<Reversibility>(value, &words);
                }
                "skip" => task.skip_when_done = self.choice(value, &[("when_done", true)]),
                "when" => task.when = self.when(value),
                "inputs" => task.inputs = Some(self.inputs(value)),
                "events" => task.events = Some(self.texts(value)),
                "window" => task.window = self.week(value),
                "about" => task.about = self.text(value),
                "patch" => task.patch = self.bool(value).is_some_and(|patch| patch.value),
                "cwd" => task.cwd = self.text(value),
                _ => {}
            }
        }
        task
    }

    fn may_use(&mut self, tree: &Tree, of: &str) -> At<MayUse> {
        let mut may_use = MayUse::default();
        for (key, _, value) in self.entries(tree, &MAY_USE_KEYS, &format!("`may_use` of {of}")) {
            match key {
                "memory" => may_use.memory = self.bytes(value),
                "processes" => may_use.processes = self.some(value),
                "open_files" => may_use.open_files = self.some(value),
                "file_size" => may_use.file_size = self.bytes(value),
                _ => {}
            }
        }
        At::new(may_use, tree.place)
    }

    fn some(&mut self, tree: &Tree) -> Option<u32> {
        let number = self.number(tree)?.value;
        if number == 0 {
            self.wrong(tree.place, "nothing can be done with 0".to_owned());
            return None;
        }
        Some(number)
    }

    fn bytes(&mut self, tree: &Tree) -> Option<u64> {
        let Some(text) = tree.text() else { return self.expected("a size such as `2G`", tree) };
        units::bytes(text).map_err(|error| self.wrong(tree.place, error.to_string())).ok()
    }

    fn text(&mut self, tree: &Tree) -> Option<At<String>> {
        match tree.text() {
            Some(text) => Some(At::new(text.to_owned(), tree.place)),
            None => self.expected("a text", tree),
        }
    }

    fn bool(&mut self, tree: &Tree) -> Option<At<bool>> {
        match tree.bool() {
            Some(value) => Some(At::new(value, tree.place)),
            None => self.expected("true or false", tree),
        }
    }

    fn number(&mut self, tree: &Tree) -> Option<At<u32>> {
        if let Some(value) = tree.number() {
            return Some(At::new(value, tree.place));
        }
        let found = tree.text().map(|text| format!("`{}`", shown(text)));
        let found = found.unwrap_or_else(|| tree.kind().to_owned());
        let message = format!("expected a whole number from 0 to {}, found {found}", u32::MAX);
        self.wrong(tree.place, message);
        None
    }

    /// One of several words, as they are called in plans.
    fn word<T: DeserializeOwned>(&mut self, tree: &Tree, words: &[&str]) -> Option<At<T>> {
        let text = tree.text().unwrap_or_default();
        match serde_json::from_value(text.into()) {
            Ok(value) => Some(At::new(value, tree.place)),
            Err(_) => self.not_among(tree, words),
        }
    }

    fn choice<T: Copy>(&mut self, tree: &Tree, words: &[(&str, T)]) -> Option<At<T>> {
        let found = words.iter().find(|(word, _)| tree.text() == Some(*word));
        if let Some((_, value)) = found {
            return Some(At::new(*value, tree.place));
        }
        let words: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        self.not_among(tree, &words)
    }

    fn not_among<T>(&mut self, tree: &Tree, words: &[&str]) -> Option<T> {
        let found = tree.text().map_or_else(|| tree.kind().to_owned(), |text| format!("`{text}`"));
        let message = format!("expected {}, found {found}", words.join(" or "));
        let diagnostic = SourceDiagnostic::new(Code::WrongValue, tree.place, message);
        let close = tree.text().and_then(|text| nearest(text, words.iter().copied()));
        self.found.push(diagnostic.suggest(close));
        None
    }

    fn duration(&mut self, tree: &Tree) -> Option<At<Duration>> {
        let Some(text) = tree.text() else { return self.expected("a time such as `30s`", tree) };
        match units::duration(text) {
            Ok(time) => Some(At::new(time, tree.place)),
            Err(error) => {
                self.wrong(tree.place, error.to_string());
                None
            }
        }
    }

    fn amount(&mut self, tree: &Tree) -> Option<At<Amount>> {
        match tree.text().and_then(units::amount) {
            Some(amount) => Some(At::new(amount, tree.place)),
            None => self.expected("a number, `2%` or `all but 3`", tree),
        }
    }

    fn amount_or_expression(&mut self, tree: &Tree) -> Option<At<Amount>> {
        let Some(text) = tree.text() else { return self.amount(tree) };
        let amount = units::amount(text);
        let amount = amount.unwrap_or_else(|| Amount::Expression(text.to_owned()));
        Some(At::new(amount, tree.place))
    }

    /// One text, or a list of them.
    fn week(&mut self, tree: &Tree) -> Option<At<Week>> {
        let text = match &tree.data {
            Data::List(_) => {
                let parts = self.texts(tree).value;
                parts.join(", ")
            }
            _ => self.text(tree)?.value,
        };
        match units::week(&text) {
            Ok(week) => Some(At::new(week, tree.place)),
            Err(error) => {
                self.wrong(tree.place, error.to_string());
                None
            }
        }
    }

    fn selector(&mut self, tree: &Tree) -> Option<At<Selector>> {
        let Some(text) = tree.text() else {
            return self.expected("a selector such as `database` or `web, database`", tree);
        };
        match text.parse() {
            Ok(selector) => Some(At::new(selector, tree.place)),
            Err(error) => {
                let hoist_model::selector::ParseSelectorError { at, message, .. } = error;
                let offset = match &tree.data {
                    Data::Scalar { is_plain: true, .. } => u32::try_from(at).unwrap_or(0),
                    _ => 0,
                };
                let place = Place { column: tree.place.column + offset, ..tree.place };
                let message = format!("the selector `{text}` cannot be understood: {message}");
                self.found.push(SourceDiagnostic::new(Code::BadTarget, place, message));
                None
            }
        }
    }

    fn when(&mut self, tree: &Tree) -> Option<At<When>> {
        if let Some(constant) = tree.bool() {
            return Some(At::new(When::Constant(constant), tree.place));
        }
        if matches!(tree.data, Data::Map(_)) {
            let mut unknown = None;
            for (_, _, value) in self.entries(tree, &["unknown"], "`when`") {
                unknown = self.text(value);
            }
            return unknown.map(|text| At::new(When::Unknown(text.value), tree.place));
        }
        let At { value, place } = self.text(tree)?;
        Some(At::new(When::Expression(value), place))
    }

    /// A list; one thing alone is a list of it.
    fn list(tree: &Tree) -> Vec<&Tree> {
        match &tree.data {
            Data::List(list) => list.iter().collect(),
            _ if tree.is_null() => Vec::new(),
            _ => vec![tree],
        }
    }

    fn texts(&mut self, tree: &Tree) -> At<Vec<String>> {
        let texts = Self::list(tree).into_iter().filter_map(|one| self.text(one));
        let texts = texts.map(|text| text.value).collect();
        At::new(texts, tree.place)
    }

    fn inputs(&mut self, tree: &Tree) -> At<Vec<At<String>>> {
        let inputs = Self::list(tree).into_iter().filter_map(|one| self.text(one)).collect();
        At::new(inputs, tree.place)
    }

    fn references(&mut self, tree: &Tree) -> At<Vec<Reference>> {
        let list = Self::list(tree).into_iter();
        let references = list.filter_map(|one| self.reference(one)).collect();
        At::new(references, tree.place)
    }

    fn reference(&mut self, tree: &Tree) -> Option<Reference> {
        let place = tree.place;
        if let Some(text) = tree.text() {
            return Some(Reference { to: pattern(text), is_optional: false, place });
        }
        if !matches!(tree.data, Data::Map(_)) {
            return self.expected("the name of a task", tree);
        }
        let mut to = None;
        let mut is_optional = false;
        for (key, _, value) in self.entries(tree, &["task", "optional"], "a reference") {
            match key {
                "task" => to = self.text(value),
                _ => is_optional = self.bool(value).is_some_and(|optional| optional.value),
            }
        }
        let to = self.needed(to, place)?;
        Some(Reference { to: pattern(&to), is_optional, place })
    }

    fn needed(&mut self, to: Option<At<String>>, place: Place) -> Option<String> {
        if to.is_none() {
            let message = "`task` is missing";
            self.found.push(SourceDiagnostic::new(Code::Missing, place, message));
        }
        to.map(|to| to.value)
    }

    fn needs(&mut self, tree: &Tree) -> At<Vec<Need>> {
        let needs = Self::list(tree).into_iter().filter_map(|one| self.need(one)).collect();
        At::new(needs, tree.place)
    }

    fn need(&mut self, tree: &Tree) -> Option<Need> {
        let place = tree.place;
        let mut need = Need {
            to: pattern(""),
            on: NeedScope::All,
            only: None,
            want: Want::All,
            is_optional: false,
            place,
        };
        if let Some(text) = tree.text() {
            need.to = pattern(text);
            return Some(need);
        }
        if !matches!(tree.data, Data::Map(_)) {
            return self.expected("a task, or `{task: NAME, on: NODES}`", tree);
        }
        let mut to = None;
        for (key, _, value) in self.entries(tree, &NEED_KEYS, "a need") {
            match key {
                "task" => to = self.text(value),
                "on" if value.text() == Some("self") => need.on = NeedScope::Own,
                "on" => need.on = NeedScope::Nodes(self.selector(value)?),
                "only" => need.only = Some(self.selector(value)?),
                "want" => match value.text().and_then(units::want) {
                    Some(want) => need.want = want,
                    None => return self.not_among(value, &["all", "any", "most", "2", "50%"]),
                },
                _ => need.is_optional = self.bool(value).is_some_and(|optional| optional.value),
            }
        }
        need.to = pattern(&self.needed(to, place)?);
        Some(need)
    }
}
