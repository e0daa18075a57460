//! What tasks do: `run`, `undo` and `check`, with the short ways to write them.

use std::time::Duration;

use hoist_model::nearest;
use serde_json::{Map, Value, json};

use super::tree::{Data, Tree};
use super::{Reader, units};
use crate::diagnostic::{Code, SourceDiagnostic};
use crate::spec::{At, Check, Run, Task, Use};

/// Keys that may stand beside a command as well as inside of it.
const BESIDE: [&str; 6] = ["cwd", "env", "secrets", "user", "interpreter", "args"];
/// Actions that they may stand beside of.
const COMMANDS: [&str; 2] = ["shell", "script"];
/// Actions that may be given a text alone.
const WITH_TEXT: [&str; 6] = ["shell", "script", "http", "puppet", "ansible", "wait"];
/// Keys of a check that are not its action's.
const OF_CHECK: [&str; 3] = ["says", "for", "every"];
/// Between two looks of a check.
const LEAST_PAUSE: Duration = Duration::from_millis(100);

impl Reader {
    /// `none`, one action, or a list of them, which is one attempt.
    pub(super) fn run(&mut self, tree: &Tree) -> Option<At<Run>> {
        let uses = match &tree.data {
            Data::List(list) => {
                let uses = list.iter().filter_map(|one| self.one(one, &["name"]));
                let uses: Vec<Use> = uses.collect();
                if list.is_empty() {
                    return self.expected("at least one action", tree);
                }
                uses
            }
            _ => vec![self.one(tree, &[])?],
        };
        Some(At::new(Run { uses }, tree.place))
    }

    /// One action: the key that is not one of `others` names it.
    fn one(&mut self, tree: &Tree, others: &[&str]) -> Option<Use> {
        let place = tree.place;
        if let Some("none" | "reboot") = tree.text() {
            let action = tree.text().unwrap_or_default().to_owned();
            return Some(Use { name: None, action, input: json!({}), place });
        }
        if !matches!(tree.data, Data::Map(_)) {
            return self.expected("an action such as `{shell: …}`, or `none`", tree);
        }
        let mut entries = self.any_entries(tree, "an action");
        entries.retain(|(key, _, _)| !others.contains(key));
        let is_command = entries.iter().any(|(key, _, _)| COMMANDS.contains(key));
        let (beside, actions): (Vec<_>, Vec<_>) =
            entries.into_iter().partition(|(key, _, _)| is_command && BESIDE.contains(key));
        let (action, at, value) = match actions.as_slice() {
            [one] => *one,
            [] => {
                self.wrong(place, "no action is named; write it like `{shell: …}`");
                return None;
            }
            [(first, _, _), (second, at, _), ..] => {
                let message = format!("`{first}` and `{second}` are two actions");
                let diagnostic = SourceDiagnostic::new(Code::WrongValue, at.place, message);
                self.found.push(diagnostic.hint("write a list of actions, one after another"));
                return None;
            }
        };
        let mut input = self.input(action, value)?;
        for (key, _, value) in beside {
            self.no_key_twice(value);
            input.insert(key.to_owned(), value.value());
        }
        let name = if others.contains(&"name") { named(tree) } else { None };
        Some(Use { name, action: action.to_owned(), input: input.into(), place: at.place })
    }

    /// The input of an action; plain text stands for its main field.
    fn input(&mut self, action: &str, tree: &Tree) -> Option<Map<String, Value>> {
        if matches!(tree.data, Data::Map(_)) {
            // Keys that are there twice.
            self.any_entries(tree, &format!("`{action}`"));
            let Value::Object(input) = self.free(tree) else { return None };
            return if action == "wait" { self.wait(tree, input) } else { Some(input) };
        }
        let mut input = Map::new();
        if tree.is_null() && ["none", "reboot"].contains(&action) {
            return Some(input);
        }
        let Some(text) = tree.text() else {
            return self.expected(&format!("a map: what `{action}` needs"), tree);
        };
        let key = match action {
            "shell" => "command",
            "script" if text.contains('\n') => "text",
            "script" => "path",
            "http" => "url",
            "puppet" => "manifest",
            "ansible" => "playbook",
            "wait" => {
                let time = self.duration(tree)?;
                input.insert("for".to_owned(), json!({ "ms": millis(time.value) }));
                return Some(input);
            }
            _ => {
                let message =
                    format!("expected a map: what `{action}` needs, found {}", tree.kind());
                let diagnostic = SourceDiagnostic::new(Code::WrongValue, tree.place, message);
                self.found.push(diagnostic.suggest(nearest(action, WITH_TEXT)));
                return None;
            }
        };
        input.insert(key.to_owned(), text.into());
        Some(input)
    }

    /// `{tcp: …}`, `{path: …}`, or the input of the action itself.
    fn wait(&mut self, tree: &Tree, input: Map<String, Value>) -> Option<Map<String, Value>> {
        if let Some(Value::String(time)) = input.get("for") {
            return match units::duration(time) {
                Ok(time) => Some(Map::from_iter([("for".to_owned(), json!({"ms": millis(time)}))])),
                Err(error) => {
                    self.wrong(tree.place, error.to_string());
                    None
                }
            };
        }
        if input.contains_key("for") {
            return Some(input);
        }
        Some(Map::from_iter([("for".to_owned(), input.into())]))
    }

    pub(super) fn checks(&mut self, tree: &Tree, task: &mut Task, of: &str) {
        for (key, _, value) in
            self.entries(tree, &["before", "after"], &format!("the check of {of}"))
        {
            let checks = Self::list(value).into_iter().filter_map(|one| self.check(one)).collect();
            let checks = Some(At::new(checks, value.place));
            if key == "before" {
                task.check_before = checks;
            } else {
                task.check_after = checks;
            }
        }
    }

    fn check(&mut self, tree: &Tree) -> Option<Check> {
        let by = self.one(tree, &OF_CHECK)?;
        let mut check = Check { by, ..Check::default() };
        let Data::Map(map) = &tree.data else { return Some(check) };
        for (key, value) in map {
            match key.text() {
                Some("says") => check.says = self.text(value).map(|says| says.value),
                Some("for") => check.within = self.duration(value).map(|time| time.value),
                Some("every") => check.every = self.duration(value).map(|time| time.value),
                _ => {}
            }
        }
        let place = tree.place;
        match (check.within, check.every) {
            (None, Some(_)) => self.wrong(place, "`every` needs `for`, the deadline of the check"),
            (_, Some(every)) if every < LEAST_PAUSE => {
                self.wrong(place, format!("`every` is {LEAST_PAUSE:?} at least"));
            }
            _ => {}
        }
        Some(check)
    }
}

fn named(tree: &Tree) -> Option<String> {
    let Data::Map(map) = &tree.data else { return None };
    let name = map.iter().find(|(key, _)| key.text() == Some("name"));
    name.and_then(|(_, value)| value.text()).map(str::to_owned)
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Puts the directory of a task into all of its commands that do not say another.
pub(crate) fn work_in_its_directory(task: &mut Task) {
    let Some(At { value: cwd, .. }) = &task.cwd else { return };
    let runs = [&mut task.run, &mut task.undo].into_iter().flatten();
    let uses = runs.flat_map(|run| &mut run.value.uses);
    let checks = [&mut task.check_before, &mut task.check_after].into_iter().flatten();
    let checks = checks.flat_map(|checks| &mut checks.value).map(|check| &mut check.by);
    for one in uses.chain(checks).filter(|one| COMMANDS.contains(&one.action.as_str())) {
        if let Value::Object(input) = &mut one.input {
            input.entry("cwd").or_insert_with(|| cwd.as_str().into());
        }
    }
}
