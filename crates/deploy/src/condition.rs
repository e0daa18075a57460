//! The data that conditions and templates of tasks can use: the settings, the node, and the members
//! of each role.

use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashMap};

use hoist_engine::plan::{Call, Step};
use hoist_template::{Expression, Expressions, Known, TemplateError, Templates};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::diagnostic::{Code, SourceDiagnostic};
use crate::spec::{Amount, At, Task, When};
use crate::target::{TargetNode, Targets};

/// Work that one condition or template may take.
const FUEL: u64 = 1_000_000;
/// Longest text that a template may make.
pub const MAX_RENDERED: usize = 1024 * 1024;

/// The treatment of conditions without a translation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum UntranslatedPolicy {
    /// There is no plan until an operator decides.
    #[default]
    Refused,
    True,
    False,
}

impl From<Option<bool>> for UntranslatedPolicy {
    fn from(decided: Option<bool>) -> Self {
        match decided {
            None => Self::Refused,
            Some(true) => Self::True,
            Some(false) => Self::False,
        }
    }
}

/// Two files may name two templates alike.
fn key(file: u32, template: &str) -> String {
    format!("{file}/{template}")
}

/// Values for expressions and templates.
pub(crate) struct Facts<'a> {
    settings: Value,
    known_settings: Known,
    /// The members of each role.
    nodes: Known,
    targets: &'a Targets,
    by_node: Vec<OnceCell<(Value, Known)>>,
    expressions: Expressions,
    templates: Templates,
    template_names: BTreeSet<String>,
    sums: RefCell<HashMap<String, Option<Sum>>>,
}

type Sum = [u8; 32];

impl<'a> Facts<'a> {
    pub(crate) fn new(
        settings: Value,
        targets: &'a Targets,
        templates: &BTreeMap<(u32, String), String>,
        found: &mut Vec<SourceDiagnostic>,
    ) -> Self {
        let mut compiled = Templates::new(FUEL);
        for ((file, name), text) in templates {
            if let Err(error) = compiled.add(key(*file, name), text.clone()) {
                let message = format!("the template `{name}` cannot be used: {error}");
                found.push(SourceDiagnostic::without_place(Code::Template, message));
            }
        }
        let facts = |at: &u32| facts(&targets.nodes[*at as usize]);
        let members: BTreeMap<&str, Vec<Value>> = targets
            .roles
            .iter()
            .map(|(name, role)| (name.as_str(), role.nodes.iter().map(facts).collect()))
            .collect();
        Self {
            known_settings: Known::of(&settings),
            settings,
            nodes: Known::of(&members),
            targets,
            by_node: targets.nodes.iter().map(|_| OnceCell::new()).collect(),
            expressions: Expressions::new(FUEL),
            templates: compiled,
            template_names: templates.keys().map(|(file, name)| key(*file, name)).collect(),
            sums: RefCell::default(),
        }
    }

    fn node(&self, at: u32) -> &(Value, Known) {
        self.by_node[at as usize].get_or_init(|| {
            let facts = facts(&self.targets.nodes[at as usize]);
            let known = Known::of(&facts);
            (facts, known)
        })
    }

    pub(crate) fn compile(&self, source: &At<&str>) -> Result<Expression<'_>, SourceDiagnostic> {
        self.expressions.compile(source.value).map_err(|error| condition(source, &error))
    }

    pub(crate) fn holds(
        &self,
        source: &At<&str>,
        compiled: &Expression<'_>,
        node: u32,
    ) -> Result<bool, SourceDiagnostic> {
        let known = [
            ("settings", &self.known_settings),
            ("node", &self.node(node).1),
            ("nodes", &self.nodes),
        ];
        compiled.holds(&known).map_err(|error| condition(source, &error))
    }

    fn count(&self, source: &At<&str>) -> Result<u32, SourceDiagnostic> {
        let known = [("settings", &self.known_settings), ("nodes", &self.nodes)];
        let counted = self.compile(source)?.count(&known);
        counted.map_err(|error| condition(source, &error))
    }

    /// How many of a whole an amount is.
    pub(crate) fn amount(
        &self,
        amount: &At<Amount>,
        whole: usize,
    ) -> Result<u32, SourceDiagnostic> {
        let whole = u32::try_from(whole).unwrap_or(u32::MAX);
        Ok(match &amount.value {
            Amount::Count(count) => *count,
            Amount::Percent(percent) => {
                let part = u64::from(whole) * u64::from(*percent) / 100;
                u32::try_from(part).unwrap_or(u32::MAX)
            }
            Amount::AllBut(count) => whole.saturating_sub(*count),
            Amount::Expression(text) => self.count(&At::new(text.as_str(), amount.place))?,
        })
    }

    pub(crate) fn render(&self, template: At<&str>, node: u32) -> Result<String, TemplateError> {
        let known = [
            ("settings", &self.known_settings),
            ("node", &self.node(node).1),
            ("nodes", &self.nodes),
        ];
        let template = key(template.place.file, template.value);
        self.templates.render_known(&template, &known, MAX_RENDERED)
    }

    /// That there is no such template.
    pub(crate) fn no_template(&self, name: &At<&str>) -> Option<SourceDiagnostic> {
        if self.template_names.contains(&key(name.place.file, name.value)) {
            return None;
        }
        let message = format!("template `{}` not found beside the file", shown(name.value));
        Some(SourceDiagnostic::new(Code::Template, name.place, message))
    }

    /// The current value of a named input; `None` if the name is unknown.
    fn input(&self, name: &str, node: u32) -> Option<Value> {
        let path = name.split_once('.').map_or("", |(_, path)| path);
        let value = match root(name) {
            "settings" => follow(&self.settings, path)?.clone(),
            "node" => follow(&self.node(node).0, path)?.clone(),
            "nodes" => {
                let (role, path) = path.split_once('.').unwrap_or((path, ""));
                if !path.is_empty() {
                    return None;
                }
                let role = self.targets.roles.get(role)?;
                role.nodes.iter().map(|at| facts(&self.targets.nodes[*at as usize])).collect()
            }
            _ => return None,
        };
        Some(value)
    }

    /// Of an input that is the same for every node: many tasks may have the same.
    fn common(&self, name: &str) -> Option<Sum> {
        if let Some(known) = self.sums.borrow().get(name) {
            return *known;
        }
        let value = self.input(name, 0);
        let sum = value.map(|value| Sha256::digest(value.to_string()).into());
        self.sums.borrow_mut().insert(name.to_owned(), sum);
        sum
    }

    /// The inputs of a task, for its fingerprint.
    pub(crate) fn inputs(
        &self,
        task: &Task,
        is_lenient: bool,
        found: &mut Vec<SourceDiagnostic>,
    ) -> Inputs {
        let mut inputs = Inputs::default();
        for At { value: name, place } in task.inputs.iter().flat_map(|list| &list.value) {
            if root(name) == "node" {
                inputs.of_node.push(At::new(name.clone(), *place));
                continue;
            }
            inputs.common.update(name);
            inputs.common.update([0]);
            match self.common(name) {
                Some(digest) => inputs.common.update(digest),
                None if is_lenient => inputs.common.update([0]),
                None => found.push(unknown_input(&task.id.value, &At::new(name, *place))),
            }
        }
        inputs
    }

    /// Of the definition as it is for this node, of the inputs, of the node, and of the system that
    /// is installed on it: the work of earlier runs is gone with an earlier system.
    pub(crate) fn fingerprint(
        &self,
        task: &Task,
        step: &Step,
        inputs: &Inputs,
        node: u32,
        found: &mut Vec<SourceDiagnostic>,
    ) -> String {
        let mut digest = inputs.common.clone();
        let subject = &self.targets.nodes[node as usize];
        digest.update(subject.id.to_string());
        digest.update([0]);
        digest.update(&subject.system);
        for name in &inputs.of_node {
            match self.input(&name.value, node) {
                Some(value) => {
                    // So that they do not run into each other.
                    digest.update(&name.value);
                    digest.update([0]);
                    digest.update(value.to_string());
                    digest.update([0]);
                }
                None => {
                    found.push(unknown_input(&task.id.value, &At::new(&name.value, name.place)));
                }
            }
        }
        let mut call = |call: &Call| {
            digest.update([0]);
            digest.update(&call.action);
            digest.update([0]);
            serde_json::to_writer(HashWriter(&mut digest), &call.input).expect("writing to memory");
        };
        call(&step.call);
        step.before.iter().chain(&step.after).chain(&step.undo).for_each(&mut call);
        let mut text = String::with_capacity(64);
        for byte in digest.finalize() {
            text.push(char::from(b"0123456789abcdef"[usize::from(byte >> 4)]));
            text.push(char::from(b"0123456789abcdef"[usize::from(byte & 15)]));
        }
        text
    }
}

struct HashWriter<'a>(&'a mut Sha256);

impl std::io::Write for HashWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Inputs {
    /// Of those that are the same for every node.
    common: Sha256,
    of_node: Vec<At<String>>,
}

/// The first word of an input.
fn root(name: &str) -> &str {
    name.split_once('.').map_or(name, |(root, _)| root)
}

fn follow<'v>(value: &'v Value, path: &str) -> Option<&'v Value> {
    path.split('.').filter(|part| !part.is_empty()).try_fold(value, |value, part| value.get(part))
}

fn unknown_input(task: &str, name: &At<&String>) -> SourceDiagnostic {
    let message = format!("task `{task}` has the input `{}`, which is not there", name.value);
    SourceDiagnostic::new(Code::Condition, name.place, message)
        .hint("name a part of `settings`, `node`, or the nodes of a role as `nodes.ROLE`")
}

fn condition(source: &At<&str>, error: &TemplateError) -> SourceDiagnostic {
    let message = format!("`{}` cannot be evaluated: {error}", shown(source.value));
    SourceDiagnostic::new(Code::Condition, source.place, message).hint(
        "it knows `settings`, `node` and `nodes`; ask `x is defined` first where it may not be",
    )
}

/// What expressions and templates see of a node.
fn facts(node: &TargetNode) -> Value {
    let spec = &node.spec;
    let address = spec.interfaces.iter().flat_map(|interface| &interface.addresses).next();
    let labels: BTreeMap<&str, &str> =
        spec.labels.iter().map(|(key, value)| (key.as_str(), value)).collect();
    json!({
        "name": node.name.as_str(),
        "id": node.id.to_string(),
        "nid": spec.nid.map(hoist_model::Nid::get),
        "xname": spec.xname.map(|xname| xname.to_string()),
        "role": spec.role.as_deref(),
        "subrole": spec.subrole.as_deref(),
        "partition": spec.partition.as_str(),
        "groups": spec.groups.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "arch": spec.arch.as_str(),
        "ip": address.map(|address| address.addr().to_string()),
        "labels": labels,
        "data": spec.data,
    })
}

/// A condition of a task, ready to be asked about nodes.
pub(crate) enum Decision<'a> {
    Same(bool),
    PerNode(At<&'a str>, Expression<'a>),
}

impl<'a> Decision<'a> {
    pub(crate) fn of(
        facts: &'a Facts<'_>,
        task: &'a Task,
        untranslated: UntranslatedPolicy,
        any_node: Option<u32>,
    ) -> Result<Self, SourceDiagnostic> {
        let Some(At { value, place }) = &task.when else { return Ok(Self::Same(true)) };
        match (value, untranslated) {
            (When::Constant(holds), _) => Ok(Self::Same(*holds)),
            (When::Unknown(_), UntranslatedPolicy::True) => Ok(Self::Same(true)),
            (When::Unknown(_), UntranslatedPolicy::False) => Ok(Self::Same(false)),
            (When::Unknown(text), UntranslatedPolicy::Refused) => {
                let id = &task.id.value;
                let message =
                    format!("the condition of task `{id}` has no translation: {}", shown(text));
                let remedy = "decide it with `--conditions true` or `--conditions false`, or write \
                              a `when:` for it";
                Err(SourceDiagnostic::new(Code::Undecided, *place, message).hint(remedy))
            }
            (When::Expression(text), _) => {
                let source = At::new(text.as_str(), *place);
                let compiled = facts.compile(&source)?;
                let is_same = !compiled.names().contains("node");
                match any_node {
                    Some(node) if is_same => Ok(Self::Same(facts.holds(&source, &compiled, node)?)),
                    _ => Ok(Self::PerNode(source, compiled)),
                }
            }
        }
    }
}

/// Conditions may be long, above all those of other languages.
fn shown(text: &str) -> String {
    const MAX_SHOWN: usize = 80;
    let mut line: String = text.chars().take(MAX_SHOWN).collect();
    if line.len() < text.len() {
        line.push('…');
    }
    line
}
