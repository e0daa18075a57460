//! Parsing of Fuel's files into Fuel's types. Limits are strict. Keys that Fuel ignored are
//! reported, because each is most likely a mistake.
//!
//! Does not belong here: the meaning of references (`resolve`) and the conversion (`convert`).

use std::collections::BTreeMap;

use hoist_diagnostic::Diagnostic;
use hoist_model::nearest;
use serde_json::{Map, Value};

use super::TaskDiagnostic;
use super::names::is_pattern;
use super::task::{
    Condition, Corpus, Dependency, List, Stage, Strategy, Task, Tolerance, Type, Where,
};

/// Bytes of one file; the largest of Fuel's is a tenth of it.
pub const MAX_FILE: usize = 10 * 1024 * 1024;
/// Files of one tree.
pub const MAX_FILES: usize = 10_000;
/// Tasks of one graph; Fuel's last release has 204.
pub const MAX_TASKS: usize = 10_000;
/// Entries of one list.
pub const MAX_ENTRIES: usize = 1_000;
/// Bytes of a name.
pub const MAX_NAME: usize = 256;
/// Bytes of an expression.
pub const MAX_EXPRESSION: usize = 64 * 1024;
/// Maps and lists inside of each other.
const MAX_DEPTH: usize = 64;

/// The mark of tasks that were read and written down again as plain data.
const NORMALISED: &str = "fuel-tasks-normalised/1";

/// The graph of files that do not name another one.
const DEFAULT: &str = "default";

/// Problems that are shown of one tree.
const MAX_SHOWN: usize = 100;

/// Everything that keeps Fuel's files from being read; `at` is the file, with its line where that
/// is known.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", shown(.0))]
pub struct CorpusError(pub Vec<Diagnostic>);

fn shown(found: &[Diagnostic]) -> String {
    let mut lines: Vec<String> = found.iter().take(MAX_SHOWN).map(ToString::to_string).collect();
    if found.len() > MAX_SHOWN {
        lines.push(format!("… and {} more", found.len() - MAX_SHOWN));
    }
    lines.join("\n")
}

type ReadResult<T> = Result<T, String>;

/// The messages of all problems of one task.
#[derive(Default)]
struct TaskProblems(Vec<String>);

impl TaskProblems {
    /// The value, or a default after the problem was collected.
    fn take<T: Default>(&mut self, read: ReadResult<T>) -> T {
        read.unwrap_or_else(|message| {
            self.0.push(message);
            T::default()
        })
    }
}

const TASK_KEYS: &[&str] = &[
    "id",
    "type",
    "version",
    "role",
    "roles",
    "groups",
    "tags",
    "stage",
    "requires",
    "required_for",
    "cross-depends",
    "cross-depended-by",
    "cross_depends",
    "cross_depended_by",
    "condition",
    "parameters",
    "tasks",
    "fault_tolerance",
    "test_pre",
    "test_post",
    "refresh_on",
    "reexecute_on",
    "fail_on_error",
];
const NORMALISED_KEYS: &[&str] = &[
    "id",
    "type",
    "version",
    "on",
    "requires",
    "required_for",
    "cross_depends",
    "cross_depended_by",
    "condition",
    "strategy",
    "parameters",
    "check_before",
    "check_after",
    "refresh_on",
    "reexecute_on",
    "fault_tolerance",
    "tasks",
    "fail_on_error",
    "file",
    "index",
];
const DEPENDENCY_KEYS: &[&str] = &["name", "role", "roles", "tags", "policy"];

/// One file that holds everything.
pub fn normalised(file: &str, text: &str) -> Result<Corpus, CorpusError> {
    let error = |message: String| Diagnostic::new(file, message);
    let fail = |message: String| CorpusError(vec![error(message)]);
    if text.len() > MAX_FILE {
        return Err(fail(too_much("bytes", text.len(), MAX_FILE)));
    }
    let root: Value = serde_json::from_str(text).map_err(|error| fail(error.to_string()))?;
    if root["format"] != NORMALISED {
        return Err(fail(format!("`format` is not `{NORMALISED}`")));
    }
    let mut corpus = Corpus::default();
    let mut problems = Vec::new();
    problems.extend(read_roles(&root["roles"], &mut corpus).err().map(error));
    read_tags(&root["tags"], &mut corpus);
    let empty = Map::new();
    for (graph, value) in root["graphs"].as_object().unwrap_or(&empty) {
        let tasks = value["tasks"].as_array().map_or(&[][..], Vec::as_slice);
        bounded("tasks", tasks.len(), MAX_TASKS).map_err(fail)?;
        let mut read = Vec::with_capacity(tasks.len());
        for (at, value) in tasks.iter().enumerate() {
            match normalised_task(value, &mut corpus.diagnostics) {
                Ok(task) => read.push(task),
                Err(TaskProblems(of)) => problems.extend(of.into_iter().map(|message| {
                    error(format!("graph {graph}, {}: {message}", called(value, at)))
                })),
            }
        }
        problems.extend(twice(&read).map(|twice| error(format!("graph {graph}, {twice}"))));
        corpus.graphs.insert(graph.clone(), read);
    }
    if problems.is_empty() { Ok(corpus) } else { Err(CorpusError(problems)) }
}

/// Tasks by graph, then by layer: the release first, then each plug-in.
type Layers = BTreeMap<(String, Option<String>), Vec<Task>>;

/// A tree of files by path; those that are no task files are only known to be there.
pub fn tree<'a>(
    files: impl IntoIterator<Item = (&'a str, Option<&'a str>)>,
) -> Result<Corpus, CorpusError> {
    let mut corpus = Corpus::default();
    let mut layers = Layers::new();
    let mut problems = Vec::new();
    let files: Vec<_> = files.into_iter().collect();
    if files.len() > MAX_FILES {
        let message = too_much("files", files.len(), MAX_FILES);
        return Err(CorpusError(vec![Diagnostic::new(".", message)]));
    }
    corpus.files = files.iter().map(|(path, _)| (*path).to_owned()).collect();
    for (path, text) in &files {
        let Some(text) = text else { continue };
        problems.extend(file(path, text, &mut corpus, &mut layers).err().into_iter().flatten());
    }
    lay_over(layers, &mut corpus, &mut problems);
    if problems.is_empty() { Ok(corpus) } else { Err(CorpusError(problems)) }
}

fn file(
    path: &str,
    text: &str,
    corpus: &mut Corpus,
    layers: &mut Layers,
) -> Result<(), Vec<Diagnostic>> {
    let fail = |message: String| vec![Diagnostic::new(path, message)];
    bounded("bytes", text.len(), MAX_FILE).map_err(fail)?;
    let value = yaml(text).map_err(fail)?;
    if !is_task_file(path) {
        return metadata(path, &value, corpus).map_err(fail);
    }
    let tasks = match &value {
        Value::Array(tasks) => tasks.as_slice(),
        // An empty file.
        Value::Null => &[],
        other => return Err(fail(format!("expected a list of tasks, found {}", kind(other)))),
    };
    let layer = layers.entry((graph_of(path), plugin_of(path, corpus))).or_default();
    bounded("tasks", layer.len() + tasks.len(), MAX_TASKS).map_err(fail)?;
    let mut problems = Vec::new();
    let lines = lines(text);
    for (at, value) in tasks.iter().enumerate() {
        let line = lines.get(at).copied().unwrap_or_default();
        match yaml_task(value, (path, line), at, &mut corpus.diagnostics) {
            Ok(task) => layer.push(task),
            Err(TaskProblems(of)) => problems.extend(of.into_iter().map(|message| {
                let message = format!("{}: {message}", called(value, at));
                Diagnostic::new(format!("{path}:{line}"), message)
            })),
        }
    }
    if problems.is_empty() { Ok(()) } else { Err(problems) }
}

/// Whole tasks take the place of others.
fn lay_over(layers: Layers, corpus: &mut Corpus, problems: &mut Vec<Diagnostic>) {
    // Who brought each task of a graph.
    let mut owners: BTreeMap<(String, String), Option<String>> = BTreeMap::new();
    for ((graph, layer), tasks) in layers {
        let error = |message: String| Diagnostic::new(layer.clone().unwrap_or_default(), message);
        let merged = corpus.graphs.entry(graph.clone()).or_default();
        problems.extend(twice(&tasks));
        for task in tasks {
            let owner = owners.insert((graph.clone(), task.id.clone()), layer.clone());
            if let Some(Some(other)) = owner.filter(|owner| *owner != layer) {
                let id = &task.id;
                problems.push(error(format!("the plug-in in {other} has a task `{id}` too")));
            }
            match merged.iter_mut().find(|there| there.id == task.id) {
                Some(there) => {
                    let plugin = layer.as_deref().unwrap_or_default();
                    let message =
                        format!("the plug-in in {plugin} replaces the task of {}", there.place());
                    let replaced = TaskDiagnostic::new("W-PLUGIN", &task, message, None);
                    corpus.diagnostics.push(replaced);
                    *there = task;
                }
                None => merged.push(task),
            }
        }
    }
}

/// Whether [`tree`] needs the content of a file.
pub fn is_read(path: &str) -> bool {
    is_task_file(path) || METADATA.contains(&base(path))
}

const METADATA: [&str; 3] = ["openstack.yaml", "node_roles.yaml", "node_tags.yaml"];

fn is_task_file(path: &str) -> bool {
    matches!(base(path), "tasks.yaml" | "deployment_tasks.yaml")
}

fn base(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}

/// `graphs/provision/tasks.yaml` is of the graph `provision`.
fn graph_of(path: &str) -> String {
    let mut parts = path.rsplit('/').skip(1);
    match (parts.next(), parts.next()) {
        (Some(graph), Some("graphs")) => graph.to_owned(),
        _ => DEFAULT.to_owned(),
    }
}

/// A plug-in describes itself in a file next to its tasks.
fn plugin_of(path: &str, corpus: &Corpus) -> Option<String> {
    let parent = parent(path);
    let about = if parent.is_empty() {
        "metadata.yaml".to_owned()
    } else {
        format!("{parent}/metadata.yaml")
    };
    let is_plugin = base(path) == "deployment_tasks.yaml" || corpus.files.contains(&about);
    is_plugin.then(|| if parent.is_empty() { ".".to_owned() } else { parent.to_owned() })
}

/// As Fuel's own reader took it: `yes` and `off` are true and false, `y` and `n` are texts, and
/// `0700` is octal.
fn yaml(text: &str) -> ReadResult<Value> {
    let read = |strict_booleans: bool| {
        let options = serde_saphyr::options! {
            duplicate_keys: serde_saphyr::DuplicateKeyPolicy::LastWins,
            legacy_octal_numbers: true,
            strict_booleans: strict_booleans,
            budget: serde_saphyr::budget! {
                max_depth: MAX_DEPTH,
                max_documents: 1,
            },
        };
        serde_saphyr::from_str_with_options::<Value>(text, options)
            .map_err(|error| error.to_string())
    };
    let mut value = read(false)?;
    keep_letters(&mut value, read(true)?);
    Ok(value)
}

/// The line of each item of the list that a file is.
fn lines(text: &str) -> Vec<u32> {
    type Items = Vec<serde_saphyr::Spanned<serde::de::IgnoredAny>>;
    let options = serde_saphyr::options! {
        duplicate_keys: serde_saphyr::DuplicateKeyPolicy::LastWins,
        budget: serde_saphyr::budget! { max_depth: MAX_DEPTH, max_documents: 1 },
    };
    let items = serde_saphyr::from_str_with_options::<Items>(text, options).unwrap_or_default();
    items.iter().map(|item| u32::try_from(item.referenced.line()).unwrap_or_default()).collect()
}

/// Takes `y` and `n` from the reading in which they are texts.
fn keep_letters(value: &mut Value, as_text: Value) {
    match (value, as_text) {
        (value @ Value::Bool(_), Value::String(word))
            if ["y", "Y", "n", "N"].contains(&word.as_str()) =>
        {
            *value = word.into();
        }
        (Value::Array(items), Value::Array(others)) => {
            items.iter_mut().zip(others).for_each(|(item, other)| keep_letters(item, other));
        }
        // Both were read from the same text, so that their keys are in the same order.
        (Value::Object(map), Value::Object(others)) => {
            let pairs = map.values_mut().zip(others);
            pairs.for_each(|(value, (_, other))| keep_letters(value, other));
        }
        _ => {}
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Object(_) => "a map",
        Value::Array(_) => "a list",
        Value::Null => "nothing",
        Value::String(_) => "a text",
        Value::Bool(_) | Value::Number(_) => "a value",
    }
}

fn too_much(what: &str, count: usize, limit: usize) -> String {
    format!("{count} {what} are more than the limit of {limit}")
}

fn bounded(what: &str, count: usize, limit: usize) -> ReadResult<()> {
    if count > limit { Err(too_much(what, count, limit)) } else { Ok(()) }
}

fn called(value: &Value, at: usize) -> String {
    match value["id"].as_str() {
        Some(id) => format!("task `{}`", id.chars().take(MAX_NAME).collect::<String>()),
        None => format!("task no. {}", at + 1),
    }
}

/// The tasks that are there more than once.
fn twice(tasks: &[Task]) -> impl Iterator<Item = Diagnostic> {
    let mut seen: BTreeMap<&str, String> = BTreeMap::new();
    tasks.iter().filter_map(move |task| {
        let id = &task.id;
        let first = seen.insert(id, task.place())?;
        let message = format!("the task `{id}` is in {first} already");
        Some(Diagnostic::new(task.place(), message))
    })
}

fn metadata(path: &str, value: &Value, corpus: &mut Corpus) -> ReadResult<()> {
    match base(path) {
        "node_roles.yaml" => read_roles(value, corpus),
        "node_tags.yaml" => {
            read_tags(value, corpus);
            Ok(())
        }
        _ => {
            if let Some(roles) = find(value, "roles_metadata") {
                read_roles(roles, corpus)?;
            }
            if let Some(tags) = find(value, "tags_metadata") {
                read_tags(tags, corpus);
            }
            Ok(())
        }
    }
}

/// The first value with that key, wherever it is.
fn find<'a>(value: &'a Value, key: &str) -> Option<&'a Value> {
    match value {
        Value::Object(map) => {
            map.get(key).or_else(|| map.values().find_map(|inner| find(inner, key)))
        }
        Value::Array(items) => items.iter().find_map(|inner| find(inner, key)),
        _ => None,
    }
}

fn read_roles(value: &Value, corpus: &mut Corpus) -> ReadResult<()> {
    let empty = Map::new();
    let roles = value.as_object().unwrap_or(&empty);
    bounded("roles", roles.len(), MAX_ENTRIES)?;
    for (role, about) in roles {
        // Before there were tags each role was its own.
        let tags = match &about["tags"] {
            Value::Null => vec![role.clone()],
            tags => words("tags", tags)?,
        };
        corpus.vocabulary.roles.insert(role.clone(), tags);
        if about["has_primary"] == true {
            corpus.vocabulary.primaries.insert(role.clone());
        }
    }
    Ok(())
}

fn read_tags(value: &Value, corpus: &mut Corpus) {
    let empty = Map::new();
    for (tag, about) in value.as_object().unwrap_or(&empty) {
        if about["has_primary"] == true {
            corpus.vocabulary.primaries.insert(tag.clone());
        }
    }
}

/// The problem of a task of another form.
const NO_MAP: &str = "the task is not a map; write its fields as `id: …`, `type: …`";

fn normalised_task(
    value: &Value,
    diagnostics: &mut Vec<TaskDiagnostic>,
) -> Result<Task, TaskProblems> {
    let map = value.as_object().ok_or_else(|| TaskProblems(vec![NO_MAP.to_owned()]))?;
    let file = value["file"].as_str().unwrap_or_default().to_owned();
    let mut problems = TaskProblems::default();
    let mut task = common(value, file, &mut problems);
    task.on = match &value["on"] {
        Value::Null => None,
        on => Some(problems.take(computable("on", &on["match"], words))),
    };
    let is_tag = value["on"]["kind"] == "tags";
    task.roles = task.on.as_ref().filter(|_| !is_tag).map(|on| on.given().to_vec());
    task.strategy = problems.take(strategy(&value["strategy"]));
    task.test_pre = problems.take(text("check_before", &value["check_before"]));
    task.test_post = problems.take(text("check_after", &value["check_after"]));
    read_whole(task, problems, map, NORMALISED_KEYS, diagnostics)
}

fn yaml_task(
    value: &Value,
    (file, line): (&str, u32),
    at: usize,
    diagnostics: &mut Vec<TaskDiagnostic>,
) -> Result<Task, TaskProblems> {
    let map = value.as_object().ok_or_else(|| TaskProblems(vec![NO_MAP.to_owned()]))?;
    let mut value = value.clone();
    if value["id"].is_null() {
        // Plug-ins of the first generation did not name their tasks.
        let plugin = parent(file).rsplit('/').next().filter(|name| !name.is_empty());
        value["id"] = format!("{}-{}", plugin.unwrap_or("task"), at + 1).into();
    }
    let mut problems = TaskProblems::default();
    let mut task = common(&value, file.to_owned(), &mut problems);
    task.line = line;
    let places = ["tags", "roles", "role", "groups"].map(|key| (key, &value[key]));
    let place = places.into_iter().find(|(_, value)| !value.is_null());
    let roles = places[1..].iter().find(|(_, value)| !value.is_null());
    task.roles = roles.and_then(|(key, value)| words(key, value).ok());
    task.on = match place {
        _ if task.kind == Type::Stage => None,
        Some((key, value)) => Some(problems.take(computable(key, value, words))),
        // The group is the role of its name.
        None if task.kind == Type::Group => Some(List::Given(vec![task.id.clone()])),
        None => Some(List::default()),
    };
    task.strategy = problems.take(strategy(&value["parameters"]["strategy"]));
    task.parameters.shift_remove("strategy");
    task.test_pre = problems.take(text("test_pre.cmd", &value["test_pre"]["cmd"]));
    task.test_post = problems.take(text("test_post.cmd", &value["test_post"]["cmd"]));
    task.stage = problems.take(value["stage"].as_str().map(stage).transpose());
    read_whole(task, problems, map, TASK_KEYS, diagnostics)
}

fn read_whole(
    task: Task,
    problems: TaskProblems,
    map: &Map<String, Value>,
    known: &[&str],
    diagnostics: &mut Vec<TaskDiagnostic>,
) -> Result<Task, TaskProblems> {
    let mut problems = problems;
    for word in
        task.on.iter().flat_map(List::given).filter(|word| *word != "*" && !is_pattern(word))
    {
        if let Err(error) = word.parse::<hoist_model::Role>() {
            problems.0.push(error.to_string());
        }
    }
    if !problems.0.is_empty() {
        return Err(problems);
    }
    tell_unknown(map, known, &task, diagnostics);
    Ok(task)
}

fn common(value: &Value, file: String, problems: &mut TaskProblems) -> Task {
    let id = text("id", &value["id"]).and_then(|id| id.ok_or_else(|| "`id` is missing".to_owned()));
    let kind = value["type"].as_str().ok_or_else(|| "`type` is missing".to_owned());
    let cross = |one: &str, other: &str| {
        let value = if value[one].is_null() { &value[other] } else { &value[one] };
        computable(one, value, dependencies)
    };
    let parameters = match &value["parameters"] {
        Value::Null => Ok(Map::new()),
        Value::Object(map) => Ok(map.clone()),
        _ => Err("`parameters` is not a map".to_owned()),
    };
    Task {
        id: problems.take(id),
        kind: Type::parse(problems.take(kind)),
        version: problems.take(version(&value["version"])),
        on: None,
        requires: problems.take(computable("requires", &value["requires"], words)),
        required_for: problems.take(computable("required_for", &value["required_for"], words)),
        cross_depends: problems.take(cross("cross-depends", "cross_depends")),
        cross_depended_by: problems.take(cross("cross-depended-by", "cross_depended_by")),
        condition: problems.take(condition(&value["condition"])),
        strategy: None,
        parameters: problems.take(parameters),
        test_pre: None,
        test_post: None,
        refresh_on: problems.take(words("refresh_on", &value["refresh_on"])),
        reexecute_on: problems.take(words("reexecute_on", &value["reexecute_on"])),
        fault_tolerance: problems.take(tolerance(&value["fault_tolerance"])),
        tasks: problems.take(words("tasks", &value["tasks"])),
        fail_on_error: value["fail_on_error"] != false,
        stage: None,
        file,
        line: 0,
        roles: None,
        is_in_a_phase: false,
    }
}

/// Two or three numbers: with anything else Fuel failed when it compared versions.
fn version(value: &Value) -> ReadResult<Option<String>> {
    let text = match value {
        Value::Null => return Ok(None),
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        other => return Err(format!("`version` {}", no_text(other))),
    };
    let parts: Vec<&str> = text.split('.').collect();
    let is_number =
        |part: &&str| part.parse::<u32>().is_ok_and(|number| number.to_string() == *part);
    if (2..=3).contains(&parts.len()) && parts.iter().all(is_number) {
        return Ok(Some(text));
    }
    let shown: String = text.chars().take(40).collect();
    Err(format!("`version` is `{shown}`; write it like `2.1.0`"))
}

fn tolerance(value: &Value) -> ReadResult<Option<Tolerance>> {
    let wrong = || {
        let shown: String = value.to_string().chars().take(40).collect();
        format!(
            "`fault_tolerance` is `{shown}`; write a number of nodes or a part of them such as `2%`"
        )
    };
    let number = |text: &str| text.trim().parse::<i32>().map_err(|_| wrong());
    Ok(Some(match value {
        Value::Null => return Ok(None),
        Value::Number(count) => Tolerance::Nodes(number(&count.to_string())?),
        Value::String(text) => match text.trim().strip_suffix('%') {
            Some(part) => Tolerance::Percent(number(part)?),
            None => Tolerance::Nodes(number(text)?),
        },
        _ => return Err(wrong()),
    }))
}

fn tell_unknown(
    map: &Map<String, Value>,
    known: &[&str],
    task: &Task,
    diagnostics: &mut Vec<TaskDiagnostic>,
) {
    for key in map.keys().filter(|key| !known.contains(&key.as_str())) {
        let hint =
            nearest(key, known.iter().copied()).map(|close| format!("did you mean `{close}`?"));
        diagnostics.push(TaskDiagnostic::new("W-KEY", task, format!("Fuel ignores `{key}`"), hint));
    }
    let entries = ["cross-depends", "cross-depended-by", "cross_depends", "cross_depended_by"]
        .into_iter()
        .filter_map(|key| map.get(key)?.as_array())
        .flatten()
        .filter_map(Value::as_object);
    for key in entries.flat_map(Map::keys).filter(|key| !DEPENDENCY_KEYS.contains(&key.as_str())) {
        let hint = nearest(key, DEPENDENCY_KEYS.iter().copied());
        let hint = hint.map(|close| format!("did you mean `{close}`?"));
        let message = format!("Fuel ignores `{key}` of a dependency");
        diagnostics.push(TaskDiagnostic::new("W-KEY", task, message, hint));
    }
}

fn text(key: &str, value: &Value) -> ReadResult<Option<String>> {
    match value {
        Value::Null => Ok(None),
        Value::String(text) if key == "id" => name(key, text).map(Some),
        Value::String(text) => {
            bounded("bytes", text.len(), MAX_EXPRESSION).map(|()| Some(text.clone()))
        }
        Value::Number(number) => Ok(Some(number.to_string())),
        other => Err(format!("`{key}` {}", no_text(other))),
    }
}

/// The actual type, where text was expected.
fn no_text(value: &Value) -> String {
    match value {
        Value::Bool(word) => format!("was read as {word}; put the word in quotes"),
        value => format!("is {}, not a text", kind(value)),
    }
}

fn name(key: &str, text: &str) -> ReadResult<String> {
    if text.is_empty() || text.len() > MAX_NAME || text.contains(char::is_control) {
        return Err(format!(
            "a name in `{key}` is empty, longer than {MAX_NAME} bytes or not printable"
        ));
    }
    Ok(text.to_owned())
}

/// One word or a list of them.
fn words(key: &str, value: &Value) -> ReadResult<Vec<String>> {
    match value {
        Value::Null => Ok(Vec::new()),
        Value::String(one) => Ok(vec![name(key, one)?]),
        Value::Array(items) => {
            bounded("entries", items.len(), MAX_ENTRIES)?;
            let word = |item: &Value| match item {
                Value::String(word) => name(key, word),
                Value::Number(number) => Ok(number.to_string()),
                other => Err(format!("an entry of `{key}` {}", no_text(other))),
            };
            items.iter().map(word).collect()
        }
        word @ Value::Bool(_) => Err(format!("`{key}` {}", no_text(word))),
        _ => Err(format!("`{key}` is neither a name nor a list of names")),
    }
}

fn dependencies(key: &str, value: &Value) -> ReadResult<Vec<Dependency>> {
    let Value::Array(items) = value else {
        return if value.is_null() { Ok(Vec::new()) } else { Err(format!("`{key}` is no list")) };
    };
    bounded("entries", items.len(), MAX_ENTRIES)?;
    // Fuel passed over entries with nothing in them.
    let is_empty = |item: &&Value| match item {
        Value::Null => true,
        Value::Object(map) => map.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::String(text) => text.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    };
    let entries = items.iter().filter(|item| !is_empty(item));
    entries.map(|item| dependency(key, item)).collect()
}

/// Also of lists that were computed.
pub(super) fn dependency(key: &str, item: &Value) -> ReadResult<Dependency> {
    let written =
        item["name"].as_str().ok_or_else(|| format!("`{key}` has an entry without a `name`"))?;
    let place = ["tags", "role", "roles"].into_iter().find_map(|key| item.get(key));
    let role = match place {
        None => Where::All,
        Some(Value::Null) => Where::Null,
        Some(value) => match words("role", value)?.as_slice() {
            [one] if one == "*" => Where::All,
            [one] if one == "self" => Where::Own,
            [one] if one == "null" => Where::Null,
            names => Where::Names(names.to_vec()),
        },
    };
    let dependency = Dependency::new(name(key, written)?, role);
    Ok(Dependency { is_any: item["policy"] == "any", ..dependency })
}

/// The text of `{yaql_exp: …}`, however it is spelt.
pub(super) fn expression(value: &Value) -> Option<&str> {
    let map = value.as_object()?;
    ["yaql_exp", "yaql"].iter().find_map(|key| map.get(*key)?.as_str())
}

fn computable<T>(
    key: &str,
    value: &Value,
    read: impl Fn(&str, &Value) -> ReadResult<Vec<T>>,
) -> ReadResult<List<T>> {
    match expression(value) {
        Some(text) => {
            bounded("bytes", text.len(), MAX_EXPRESSION)?;
            Ok(List::Computed(text.to_owned()))
        }
        None => read(key, value).map(List::Given),
    }
}

fn condition(value: &Value) -> ReadResult<Condition> {
    let limited =
        |text: &str| bounded("bytes", text.len(), MAX_EXPRESSION).map(|()| text.to_owned());
    match value {
        Value::Null => Ok(Condition::None),
        Value::Bool(constant) => Ok(Condition::Constant(*constant)),
        Value::String(text) => limited(text).map(Condition::Old),
        value => match expression(value) {
            Some(text) => limited(text).map(Condition::Yaql),
            None => Err("`condition` is neither true, false nor an expression".to_owned()),
        },
    }
}

fn strategy(value: &Value) -> ReadResult<Option<Strategy>> {
    let amount = &value["amount"];
    match value["type"].as_str() {
        None => Ok(None),
        Some("one_by_one") => Ok(Some(Strategy::OneByOne)),
        Some("parallel") => {
            if let Some(text) = expression(amount) {
                return Ok(Some(Strategy::Computed(text.to_owned())));
            }
            let number = match amount {
                Value::Null => 0,
                amount => amount.as_u64().ok_or("`strategy.amount` is no positive number")?,
            };
            let number = u32::try_from(number).unwrap_or(u32::MAX);
            Ok(Some(Strategy::Parallel((number > 0).then_some(number))))
        }
        Some(other) => {
            Err(format!("`strategy.type` is `{other}`; there are `one_by_one` and `parallel`"))
        }
    }
}

fn stage(text: &str) -> ReadResult<Stage> {
    let (name, priority) = text.split_once('/').unwrap_or((text, "0"));
    let number: f64 = priority
        .parse()
        .ok()
        .filter(|number: &f64| number.abs() < 1e12)
        .ok_or_else(|| format!("`stage` has the priority `{priority}`, which is no number"))?;
    if !matches!(name, "pre_deployment" | "post_deployment") {
        return Err(format!(
            "`stage` is `{name}`; there are `pre_deployment` and `post_deployment`"
        ));
    }
    #[expect(clippy::cast_possible_truncation, reason = "it is far below what fits")]
    Ok(Stage { name: name.to_owned(), priority: (number * 1000.0).round() as i64 })
}
