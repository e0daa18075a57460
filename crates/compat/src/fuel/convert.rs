//! From Fuel's tasks to a task file of our own, entry by entry as the table in the documentation
//! has it.
//!
//! Does not belong here: parsing (`read`), references between tasks (`resolve`), the text of the
//! result (`write`).

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::condition::{Translation, number, translate};
use super::names::{MASTER, Names, NodeGroup, is_pattern, prefix_regex};
use super::read::expression;
use super::resolve::{Entry, Resolution};
use super::task::{Condition, Corpus, Dependency, List, Strategy, Task, Tolerance, Type, Where};
use super::yaql::{Dialect, parse};
use super::{Conditions, Options, TaskDiagnostic};

/// The task file to write: values in their final order, with remarks.
#[derive(Debug, Default)]
pub(super) struct Native {
    pub(super) roles: Map<String, Value>,
    /// For the person who reads the file, by role.
    pub(super) remarks: BTreeMap<String, String>,
    pub(super) tasks: Vec<NativeTask>,
    pub(super) barriers: Map<String, Value>,
}

#[derive(Debug)]
pub(super) struct NativeTask {
    pub(super) id: String,
    pub(super) fields: Map<String, Value>,
    /// For the person who reads the file.
    pub(super) remarks: Vec<String>,
}

pub(super) struct Converter<'a> {
    pub(super) corpus: &'a Corpus,
    pub(super) tasks: &'a [Task],
    pub(super) resolved: &'a [Resolution],
    pub(super) names: &'a Names,
    pub(super) options: &'a Options,
}

impl Converter<'_> {
    pub(super) fn convert(&self, diagnostics: &mut Vec<TaskDiagnostic>) -> Native {
        let mut native = Native {
            roles: self.roles(diagnostics),
            remarks: self.strategies(),
            ..Native::default()
        };
        for (task, resolved) in self.tasks.iter().zip(self.resolved) {
            match task.kind {
                Type::Group => {}
                Type::Stage => drop(native.barriers.insert(task.id.clone(), barrier(resolved))),
                _ => native.tasks.push(self.task(task, resolved, diagnostics)),
            }
        }
        native
    }

    fn roles(&self, diagnostics: &mut Vec<TaskDiagnostic>) -> Map<String, Value> {
        let mut roles = Map::new();
        if self.names.has_master {
            roles.insert(MASTER.to_owned(), json!({"allow_empty": true}));
        }
        for name in &self.names.plain {
            // Sites have some of Fuel's roles; a task without nodes was no fault there.
            let mut role = Map::from_iter([("allow_empty".to_owned(), true.into())]);
            if let Some(nodes) = self.carriers(name) {
                role.insert("nodes".to_owned(), nodes.into());
            }
            self.tolerance(name, &mut role);
            self.rollout(name, &mut role, diagnostics);
            roles.insert(name.clone(), role.into());
            if self.is_limited(name) {
                let all = json!({"nodes": name, "allow_empty": true});
                roles.insert(unlimited(name), all);
            }
            let first = format!("primary-{name}");
            let is_used = self.group(&first).is_some() || self.is_limited(name);
            if self.names.has_primary(name) && is_used {
                let mut role = Map::from_iter([
                    ("nodes".to_owned(), format!("first({name})").into()),
                    ("allow_empty".to_owned(), true.into()),
                ]);
                self.tolerance(&first, &mut role);
                roles.insert(first, role.into());
            }
        }
        roles
    }

    /// Whether all tasks are of the first generation, which alone evaluated the strategies of groups.
    fn is_first_generation(&self) -> bool {
        let mut tasks = self.tasks.iter().filter(|task| task.kind != Type::Skipped);
        self.tasks.iter().any(Task::is_legacy)
            && tasks.all(|task| task.is_legacy() || !task.is_in_a_list())
    }

    fn rollout(
        &self,
        name: &str,
        role: &mut Map<String, Value>,
        diagnostics: &mut Vec<TaskDiagnostic>,
    ) {
        let group = self.group(name).filter(|_| self.is_first_generation());
        if let Some(at_once) = group.and_then(|group| Self::at_once(group, diagnostics)) {
            role.insert("rollout".to_owned(), json!({"at_once": at_once}));
        }
    }

    fn is_limited(&self, name: &str) -> bool {
        let group = self.group(name).filter(|_| self.is_first_generation());
        let strategy = group.and_then(|group| group.strategy.as_ref());
        strategy.is_some_and(|strategy| *strategy != Strategy::Parallel(None))
    }

    /// A rollout limits the list of a group. Tasks before and after all groups are not in it: they
    /// name the same nodes by roles without a limit.
    fn outside_of_lists(&self, nodes: NodeGroup) -> NodeGroup {
        let each = |parts: Vec<NodeGroup>| -> Vec<NodeGroup> {
            parts.into_iter().map(|part| self.outside_of_lists(part)).collect()
        };
        match nodes {
            NodeGroup::Role(name) if self.is_limited(&name) => NodeGroup::Role(unlimited(&name)),
            NodeGroup::First(name) if self.is_limited(&name) => {
                NodeGroup::Role(format!("primary-{name}"))
            }
            NodeGroup::Any(parts) => NodeGroup::Any(each(parts)),
            NodeGroup::All(parts) => NodeGroup::All(each(parts)),
            NodeGroup::Not(inner) => self.outside_of_lists(*inner).not(),
            other => other,
        }
    }

    fn strategies(&self) -> BTreeMap<String, String> {
        if self.is_first_generation() {
            return BTreeMap::new();
        }
        let groups = self.tasks.iter().filter(|task| task.kind == Type::Group);
        let strategy = |group: &Task| {
            let [name] = group.on.as_ref()?.given() else { return None };
            let how = match group.strategy.as_ref()? {
                Strategy::OneByOne => "one_by_one".to_owned(),
                Strategy::Parallel(None) => "parallel".to_owned(),
                Strategy::Parallel(Some(amount)) => format!("parallel, {amount}"),
                Strategy::Computed(text) => format!("parallel, {text}"),
            };
            let remark = "Fuel 8 and later ignored it; see `rollout`";
            Some((name.clone(), format!("strategy of the group: {how}; {remark}")))
        };
        groups.filter_map(strategy).collect()
    }

    /// The roles that have a tag.
    fn carriers_of(&self, tag: &str) -> Vec<&str> {
        let roles = self.corpus.vocabulary.roles.iter();
        roles
            .filter(|(role, tags)| *role != tag && tags.iter().any(|other| other == tag))
            .map(|(role, _)| role.as_str())
            .collect()
    }

    /// The nodes of a tag, if they are not those of a role of its name.
    fn carriers(&self, name: &str) -> Option<String> {
        let others = self.carriers_of(name);
        if others.is_empty() {
            return None;
        }
        let is_role = self.corpus.vocabulary.roles.contains_key(name);
        let own = if is_role { format!("role:{name} or ") } else { String::new() };
        Some(format!("{own}{} or group:{name}", others.join(" or ")))
    }

    fn group(&self, name: &str) -> Option<&Task> {
        let is_it = |task: &&Task| {
            let names = task.on.as_ref().map_or(&[][..], List::given);
            task.kind == Type::Group && names == [name.to_owned()]
        };
        self.tasks.iter().find(is_it)
    }

    fn tolerance(&self, name: &str, role: &mut Map<String, Value>) {
        let carriers = self.carriers_of(name);
        // The nodes of a tag are in the group of the role that carries it.
        let alone = match carriers.as_slice() {
            [role] => self.group(role),
            _ => None,
        };
        let Some(group) = self.group(name).or(alone) else { return };
        let tolerate = match &group.fault_tolerance {
            None => json!("100%"),
            Some(tolerance) => tolerate(*tolerance),
        };
        role.insert("tolerate".to_owned(), tolerate);
    }

    fn task(
        &self,
        task: &Task,
        resolved: &Resolution,
        diagnostics: &mut Vec<TaskDiagnostic>,
    ) -> NativeTask {
        let mut fields = Map::new();
        let mut remarks = Vec::new();
        let mut put = |key: &str, value: Option<Value>| {
            if let Some(value) = value {
                fields.insert(key.to_owned(), value);
            }
        };
        put("on", Some(self.on(task, diagnostics).into()));
        put("requires", references(&resolved.requires, &mut remarks, "requires"));
        put("required_for", references(&resolved.required_for, &mut remarks, "required_for"));
        put("needs", self.needs(resolved, true, &mut remarks));
        put("needed_by", self.needs(resolved, false, &mut remarks));
        let (when, inputs) = self.condition(task, resolved, diagnostics);
        put("when", when);
        put("inputs", inputs);
        put("events", (!task.reexecute_on.is_empty()).then(|| json!(task.reexecute_on)));
        put("at_once", Self::at_once(task, diagnostics));
        put("run", Some(self.run(task, diagnostics)));
        // It copies what differs, so that it may be begun again.
        put("repeat", (task.kind == Type::Sync).then(|| "safe".into()));
        for (key, value) in limits(task) {
            put(key, Some(value));
        }
        if !task.fail_on_error {
            put("on_failure", Some("ignore".into()));
        }
        put("check", self.checks(task, diagnostics, &mut remarks));
        NativeTask { id: task.id.clone(), fields, remarks }
    }

    /// Everywhere it says, and everywhere a group says it.
    fn on(&self, task: &Task, diagnostics: &mut Vec<TaskDiagnostic>) -> String {
        let mut parts = Vec::new();
        let groups = self
            .tasks
            .iter()
            .filter(|group| group.kind == Type::Group && group.tasks.contains(&task.id));
        for of in std::iter::once(task).chain(groups) {
            match of.on.as_ref() {
                Some(List::Given(words)) => {
                    let mut sound = Vec::new();
                    for word in words {
                        match prefix_regex(word) {
                            Ok(_) => sound.push(word.clone()),
                            Err(error) => {
                                let message = format!("`{word}` is no pattern: {error}");
                                diagnostics.push(TaskDiagnostic::new("W-REGEX", of, message, None));
                            }
                        }
                    }
                    parts.extend(self.names.who(&sound).ok());
                }
                Some(List::Computed(text)) => {
                    let message = format!("where it runs is computed: {text}");
                    let hint = "write `on` by hand";
                    diagnostics.push(TaskDiagnostic::new(
                        "W-COMPUTED",
                        of,
                        message,
                        Some(hint.to_owned()),
                    ));
                }
                None => {}
            }
        }
        let nodes = NodeGroup::any(parts);
        let is_in_a_list = task.is_in_a_list() && !task.is_in_a_phase;
        if is_in_a_list { nodes.to_string() } else { self.outside_of_lists(nodes).to_string() }
    }

    fn needs(
        &self,
        resolved: &Resolution,
        is_before: bool,
        remarks: &mut Vec<String>,
    ) -> Option<Value> {
        let (word, list) = if is_before {
            ("cross-depends", &resolved.cross_depends)
        } else {
            ("cross-depended-by", &resolved.cross_depended_by)
        };
        let mut needs = Vec::new();
        for Entry { to, only, dead } in list {
            if dead.is_some() {
                remarks.push(format!("never bound: {word} {} on {}", to.name, place(&to.role)));
                continue;
            }
            let mut need = Map::from_iter([("task".to_owned(), pattern(&to.name).into())]);
            if let Some(on) = self.need_on(to) {
                need.insert("on".to_owned(), on.into());
            }
            if *only != NodeGroup::Everyone {
                need.insert("only".to_owned(), only.to_string().into());
            }
            if to.is_any {
                need.insert("want".to_owned(), "any".into());
            }
            if to.is_optional {
                need.insert("optional".to_owned(), true.into());
            }
            needs.push(Value::Object(need));
        }
        (!needs.is_empty()).then(|| needs.into())
    }

    fn need_on(&self, to: &Dependency) -> Option<String> {
        match &to.role {
            Where::Own => Some("self".to_owned()),
            Where::Null => None,
            Where::All => match self.names.everyone_else() {
                NodeGroup::Everyone => None,
                who => Some(who.to_string()),
            },
            // An invalid pattern was reported when the tasks were read.
            Where::Names(names) => self.names.who(names).ok().map(|who| who.to_string()),
        }
    }

    fn condition(
        &self,
        task: &Task,
        resolved: &Resolution,
        diagnostics: &mut Vec<TaskDiagnostic>,
    ) -> (Option<Value>, Option<Value>) {
        let mut inputs: BTreeSet<String> = BTreeSet::new();
        let mut when = None;
        let (text, dialect) = match &task.condition {
            Condition::None => (None, Dialect::Yaql),
            Condition::Constant(constant) => {
                when = (!constant).then_some(Value::Bool(false));
                (None, Dialect::Yaql)
            }
            Condition::Old(text) => (Some(text), Dialect::Old),
            Condition::Yaql(text) => (Some(text), Dialect::Yaql),
        };
        if let Some(text) = text {
            match parse(text, dialect).ok().as_ref().and_then(translate) {
                Some(Translation { when: pure, inputs: changed, is_wider }) => {
                    when = pure.map(Value::String);
                    inputs.extend(changed);
                    if is_wider {
                        let message = "its condition is kept in a wider form; it may run more often than with Fuel";
                        diagnostics.push(TaskDiagnostic::new(
                            "W-WIDER",
                            task,
                            message.to_owned(),
                            None,
                        ));
                    }
                }
                None => when = self.undecided(task, text, diagnostics),
            }
        }
        if let Some(unknown) = resolved.unknown.first() {
            when = Some(json!({"unknown": unknown}));
        }
        for resource in &task.refresh_on {
            inputs.insert(match resource.as_str() {
                "*" => "settings.configuration".to_owned(),
                resource => format!("settings.configuration.{resource}"),
            });
        }
        (when, (!inputs.is_empty()).then(|| json!(inputs)))
    }

    fn undecided(
        &self,
        task: &Task,
        text: &str,
        diagnostics: &mut Vec<TaskDiagnostic>,
    ) -> Option<Value> {
        let (when, hint) = match self.options.conditions {
            Conditions::Ask => (
                Some(json!({"unknown": text})),
                "write `when` by hand, or decide with `--conditions true` or `false`",
            ),
            Conditions::True => (None, "taken as true, as was asked for"),
            Conditions::False => (Some(Value::Bool(false)), "taken as false, as was asked for"),
        };
        let message = format!("its condition cannot be said in other words: {text}");
        diagnostics.push(TaskDiagnostic::new("W-CONDITION", task, message, Some(hint.to_owned())));
        when
    }

    fn at_once(task: &Task, diagnostics: &mut Vec<TaskDiagnostic>) -> Option<Value> {
        match task.strategy.as_ref()? {
            Strategy::OneByOne => Some(1.into()),
            Strategy::Parallel(amount) => amount.map(Value::from),
            Strategy::Computed(text) => {
                let amount = parse(text, Dialect::Yaql).ok().as_ref().and_then(number);
                if amount.is_none() {
                    let message = format!("how many at once is computed, one is taken: {text}");
                    diagnostics.push(TaskDiagnostic::new("W-COMPUTED", task, message, None));
                }
                Some(amount.map_or(1.into(), Value::String))
            }
        }
    }

    fn run(&self, task: &Task, diagnostics: &mut Vec<TaskDiagnostic>) -> Value {
        let parameters = self.substituted(task, diagnostics);
        let (native, kept): (_, &[&str]) = match &task.kind {
            Type::Skipped => return "none".into(),
            _ if has_expression(&parameters) => (None, &[]),
            Type::Puppet => (puppet(&parameters), &["puppet_manifest", "puppet_modules", "cwd"]),
            Type::Shell => (shell(&parameters), &["cmd", "cwd"]),
            Type::UploadFile => (upload(&parameters), &["path", "data", "permissions"]),
            Type::CopyFiles => return self.copy_files(task, &parameters, diagnostics),
            Type::Sync => (sync(&parameters), &["src", "dst"]),
            Type::Reboot => (Some(json!({"reboot": {}})), &[]),
            Type::Other(_) | Type::Stage | Type::Group => (None, &[]),
        };
        let Some(native) = native else {
            let why = "its parameters are computed or only Fuel knows them";
            return by_plugin(task, &parameters, "W-TYPE", why, diagnostics);
        };
        if task.kind == Type::Sync {
            let message = "its files come from Fuel's master by rsync".to_owned();
            let hint = "keep them there, or change the address in `run`";
            diagnostics.push(TaskDiagnostic::new("W-MASTER", task, message, Some(hint.to_owned())));
        }
        tell_left_out(task, &parameters, kept, diagnostics);
        native
    }

    /// They are on the deployment server, and only there `copy` finds them.
    fn copy_files(
        &self,
        task: &Task,
        parameters: &Map<String, Value>,
        diagnostics: &mut Vec<TaskDiagnostic>,
    ) -> Value {
        let is_on_master = self.on(task, &mut Vec::new()) == MASTER;
        let native = copies(parameters).filter(|_| is_on_master && !has_expression(parameters));
        if let Some(native) = native {
            tell_left_out(task, parameters, &["files", "permissions"], diagnostics);
            return native;
        }
        let why = "its files are on Fuel's master, not on the node";
        by_plugin(task, parameters, "W-MASTER", why, diagnostics)
    }

    /// Replaces `{KEY}` in texts; a key without a value stays, as with Fuel.
    fn substituted(
        &self,
        task: &Task,
        diagnostics: &mut Vec<TaskDiagnostic>,
    ) -> Map<String, Value> {
        const KEYS: [&str; 5] =
            ["CLUSTER_ID", "OPENSTACK_VERSION", "MASTER_IP", "CN_HOSTNAME", "SETTINGS"];
        let mut open = BTreeSet::new();
        let mut parameters = Value::Object(task.parameters.clone());
        each_text(&mut parameters, &mut |text| {
            for key in KEYS {
                let written = format!("{{{key}}}");
                if !text.contains(&written) {
                    continue;
                }
                match self.options.values.get(key) {
                    Some(value) => *text = text.replace(&written, value),
                    None => drop(open.insert(key)),
                }
            }
        });
        for key in open {
            let message = format!("`{{{key}}}` has no value");
            let hint = format!("give it with `--set {key}=VALUE`");
            diagnostics.push(TaskDiagnostic::new("W-VALUE", task, message, Some(hint)));
        }
        match parameters {
            Value::Object(map) => map,
            _ => Map::new(),
        }
    }

    fn checks(
        &self,
        task: &Task,
        diagnostics: &mut Vec<TaskDiagnostic>,
        remarks: &mut Vec<String>,
    ) -> Option<Value> {
        let mut checks = Map::new();
        let tests =
            [("before", "test_pre", &task.test_pre), ("after", "test_post", &task.test_post)];
        for (key, word, command) in tests {
            let Some(command) = command else { continue };
            if self.has_script(command) {
                checks.insert(key.to_owned(), json!([{"shell": command}]));
            } else {
                let message =
                    format!("`{word}: {command}` is left out: its script is not among the files");
                diagnostics.push(TaskDiagnostic::new("W-TEST", task, message, None));
                remarks.push(format!("not checked {key}: {command}"));
            }
        }
        (!checks.is_empty()).then(|| checks.into())
    }

    /// Modules are in `/etc/puppet/modules` on the nodes, and somewhere in the tree.
    fn has_script(&self, command: &str) -> bool {
        let mut scripts = command.split_whitespace().filter(|word| word.starts_with('/'));
        scripts.next().is_some_and(|script| {
            let inside = script.strip_prefix("/etc/puppet/modules/").unwrap_or(&script[1..]);
            let is_it = |file: &String| {
                file.strip_suffix(inside).is_some_and(|rest| rest.is_empty() || rest.ends_with('/'))
            };
            self.corpus.files.iter().any(is_it)
        })
    }
}

/// The role of all nodes of a role that has a rollout.
fn unlimited(role: &str) -> String {
    format!("{role}-nodes")
}

/// An action that there is not, so that nothing is done until a person has decided.
fn by_plugin(
    task: &Task,
    parameters: &Map<String, Value>,
    code: &'static str,
    why: &str,
    diagnostics: &mut Vec<TaskDiagnostic>,
) -> Value {
    let action = format!("fuel-{}", kind(&task.kind));
    let message = format!("the task needs a plug-in `{action}`: {why}");
    let hint = "write `run` by hand, or bring the plug-in";
    diagnostics.push(TaskDiagnostic::new(code, task, message, Some(hint.to_owned())));
    json!({action: parameters})
}

/// Parameters that nothing stands for.
fn tell_left_out(
    task: &Task,
    parameters: &Map<String, Value>,
    kept: &[&str],
    diagnostics: &mut Vec<TaskDiagnostic>,
) {
    let is_kept = |key: &str| kept.contains(&key) || LIMITS.contains(&key);
    for key in parameters.keys().filter(|key| !is_kept(key)) {
        let message = format!("`{key}` of its parameters is left out");
        let hint = "nothing stands for it; look whether the task needs it";
        diagnostics.push(TaskDiagnostic::new("W-PARAMETER", task, message, Some(hint.to_owned())));
    }
}

fn kind(kind: &Type) -> &str {
    match kind {
        Type::Puppet => "puppet",
        Type::Shell => "shell",
        Type::UploadFile => "upload_file",
        Type::CopyFiles => "copy_files",
        Type::Sync => "sync",
        Type::Reboot => "reboot",
        Type::Stage => "stage",
        Type::Skipped => "skipped",
        Type::Group => "group",
        Type::Other(name) => name,
    }
}

fn barrier(resolved: &Resolution) -> Value {
    let mut fields = Map::new();
    let lists = [("requires", &resolved.requires), ("required_for", &resolved.required_for)];
    for (key, list) in lists {
        if let Some(names) = references(list, &mut Vec::new(), key) {
            fields.insert(key.to_owned(), names);
        }
    }
    fields.insert("passes_with".to_owned(), "any_result".into());
    fields.into()
}

fn references(list: &[Entry<String>], remarks: &mut Vec<String>, word: &str) -> Option<Value> {
    let mut names: Vec<String> = Vec::new();
    for Entry { to, dead, .. } in list {
        if dead.is_some() {
            remarks.push(format!("never bound: {word} {to}"));
        } else {
            names.push(pattern(to));
        }
    }
    (!names.is_empty()).then(|| json!(names))
}

fn place(role: &Where) -> String {
    match role {
        Where::All => "all nodes".to_owned(),
        Where::Own => "the same node".to_owned(),
        Where::Null => "no node".to_owned(),
        Where::Names(names) => names.join(", "),
    }
}

/// Our patterns are of whole names, Fuel's of their beginning.
fn pattern(name: &str) -> String {
    if !is_pattern(name) {
        return name.to_owned();
    }
    let inner = &name[1..name.len() - 1];
    let has_choice = inner.contains('|') && !(inner.starts_with("^(") && inner.ends_with(")$"));
    if inner.ends_with('$') && !inner.ends_with("\\$") && !has_choice {
        return name.to_owned();
    }
    format!("/(?:{inner}).*/")
}

/// As Fuel counted: a negative number is of those that have to be left.
fn tolerate(tolerance: Tolerance) -> Value {
    match tolerance {
        Tolerance::Nodes(count) if count >= 0 => json!(count),
        Tolerance::Nodes(count) => json!(format!("all but {}", count.unsigned_abs())),
        Tolerance::Percent(part) if part >= 0 => json!(format!("{}%", part.min(100))),
        Tolerance::Percent(part) => json!(format!("{}%", (100 + part).max(0))),
    }
}

/// Parameters that [`limits`] reads.
const LIMITS: [&str; 3] = ["timeout", "retries", "interval"];

/// Time and attempts, with what Fuel took where a task does not say.
fn limits(task: &Task) -> Vec<(&'static str, Value)> {
    let (timeout, retries, delay) = match task.kind {
        Type::Puppet => (Some(5400), 2, None),
        Type::Shell => (Some(300), 2, Some(2)),
        Type::UploadFile => (Some(60), 3, None),
        Type::Sync => (Some(300), 10, None),
        Type::Reboot => (Some(900), 0, None),
        Type::Skipped => return Vec::new(),
        Type::CopyFiles | Type::Stage | Type::Group | Type::Other(_) => (None, 0, None),
    };
    let given = |key: &str| task.parameters.get(key).and_then(Value::as_u64);
    let mut limits = Vec::new();
    // Nothing is as long as it takes.
    if let Some(seconds) = given("timeout").or(timeout).filter(|seconds| *seconds > 0) {
        limits.push(("timeout", duration(seconds).into()));
    }
    let retries = given("retries").unwrap_or(retries);
    if retries > 0 {
        limits.push(("retries", retries.into()));
        if let Some(seconds) = given("interval").or(delay) {
            limits.push(("delay", duration(seconds).into()));
        }
    }
    limits
}

fn duration(seconds: u64) -> String {
    match seconds {
        seconds if seconds >= 60 && seconds % 60 == 0 => format!("{}m", seconds / 60),
        seconds => format!("{seconds}s"),
    }
}

fn has_expression(parameters: &Map<String, Value>) -> bool {
    fn inside(value: &Value) -> bool {
        expression(value).is_some()
            || match value {
                Value::Object(map) => map.values().any(inside),
                Value::Array(items) => items.iter().any(inside),
                _ => false,
            }
    }
    parameters.values().any(inside)
}

fn each_text(value: &mut Value, each: &mut dyn FnMut(&mut String)) {
    match value {
        Value::String(text) => each(text),
        Value::Array(items) => items.iter_mut().for_each(|item| each_text(item, each)),
        Value::Object(map) => map.values_mut().for_each(|value| each_text(value, each)),
        _ => {}
    }
}

fn puppet(parameters: &Map<String, Value>) -> Option<Value> {
    let mut input =
        Map::from_iter([("manifest".to_owned(), parameters.get("puppet_manifest")?.clone())]);
    if let Some(modules) = parameters.get("puppet_modules") {
        input.insert("modules".to_owned(), modules.clone());
    }
    if let Some(cwd) = parameters.get("cwd") {
        input.insert("cwd".to_owned(), cwd.clone());
    }
    Some(json!({"puppet": input}))
}

fn shell(parameters: &Map<String, Value>) -> Option<Value> {
    let command = parameters.get("cmd")?;
    let cwd = parameters.get("cwd").cloned().unwrap_or_else(|| "/".into());
    Some(json!({"shell": {"command": command, "cwd": cwd}}))
}

fn upload(parameters: &Map<String, Value>) -> Option<Value> {
    let mode = mode(parameters.get("permissions")).unwrap_or_else(|| "0644".to_owned());
    let path = parameters.get("path")?;
    let text = parameters.get("data")?.as_str()?;
    Some(json!({"file": {"path": path, "text": text, "mode": mode}}))
}

fn copies(parameters: &Map<String, Value>) -> Option<Value> {
    let common = mode(parameters.get("permissions"));
    let copy = |file: &Value| {
        let mut input = Map::from_iter([
            ("from".to_owned(), file.get("src")?.clone()),
            ("to".to_owned(), file.get("dst")?.clone()),
        ]);
        if let Some(mode) = mode(file.get("permissions")).or_else(|| common.clone()) {
            input.insert("mode".to_owned(), mode.into());
        }
        Some(json!({"copy": input}))
    };
    let all: Option<Vec<Value>> = parameters.get("files")?.as_array()?.iter().map(copy).collect();
    match all?.as_slice() {
        [] => None,
        [one] => Some(one.clone()),
        many => Some(json!(many)),
    }
}

/// What Fuel ran on the node.
fn sync(parameters: &Map<String, Value>) -> Option<Value> {
    let word = |key: &str| parameters.get(key)?.as_str().map(quoted);
    let from = word("src")?;
    let to = word("dst")?;
    let command = format!("mkdir -p {to} && rsync -c -r -l --delete {from} {to}");
    Some(json!({"shell": {"command": command}}))
}

/// One word for a shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// As text, in octal; YAML makes numbers of them.
fn mode(value: Option<&Value>) -> Option<String> {
    match value? {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => number.as_u64().map(|number| format!("{number:04o}")),
        _ => None,
    }
}
