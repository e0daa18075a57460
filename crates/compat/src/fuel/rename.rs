//! Names of tasks that a task file cannot have, because selections could not name them.

use std::collections::{BTreeMap, BTreeSet};

use super::TaskDiagnostic;
use super::names::{is_pattern, prefix_regex};
use super::task::{Dependency, List, Task};

/// Longest name of a task in a task file, in bytes.
const MAX_NAME: usize = 128;

/// Gives such tasks other names, everywhere they are named.
pub(super) fn rename(tasks: &mut [Task], diagnostics: &mut Vec<TaskDiagnostic>) {
    let mut taken: BTreeSet<String> = tasks.iter().map(|task| task.id.clone()).collect();
    let mut renamed: BTreeMap<String, String> = BTreeMap::new();
    for task in tasks.iter().filter(|task| !is_valid(&task.id)) {
        let plain = valid(&task.id);
        let numbered = (2..).map(|number| format!("{plain}-{number}"));
        let mut names = std::iter::once(plain.clone()).chain(numbered);
        let Some(name) = names.find(|name| !taken.contains(name)) else { continue };
        taken.insert(name.clone());
        let message = format!("a task file has no task of this name; it is `{name}` there");
        diagnostics.push(TaskDiagnostic::new("W-NAME", task, message, None));
        renamed.insert(task.id.clone(), name);
    }
    if renamed.is_empty() {
        return;
    }
    for task in tasks {
        if let Some(name) = renamed.get(&task.id) {
            task.id.clone_from(name);
        }
        task.tasks = names(&task.tasks, &renamed);
        for list in [&mut task.requires, &mut task.required_for] {
            if let List::Given(words) = list {
                *words = names(words, &renamed);
            }
        }
        for list in [&mut task.cross_depends, &mut task.cross_depended_by] {
            let List::Given(entries) = list else { continue };
            *entries = std::mem::take(entries)
                .into_iter()
                .flat_map(|entry| {
                    let names = names(std::slice::from_ref(&entry.name), &renamed);
                    names.into_iter().map(move |name| Dependency { name, ..entry.clone() })
                })
                .collect();
        }
    }
}

/// The names as they are now. A pattern stays, with the new names of tasks that it meant.
fn names(words: &[String], renamed: &BTreeMap<String, String>) -> Vec<String> {
    let of = |word: &String| -> Vec<String> {
        if !is_pattern(word) {
            return vec![renamed.get(word).unwrap_or(word).clone()];
        }
        let regex = prefix_regex(word).ok().flatten();
        let is_meant = |name: &&String| regex.as_ref().is_some_and(|regex| regex.is_match(name));
        let meant = renamed.iter().filter(|(old, _)| is_meant(old)).map(|(_, new)| new.clone());
        std::iter::once(word.clone()).chain(meant).collect()
    };
    words.iter().flat_map(of).collect()
}

fn is_valid(name: &str) -> bool {
    let sign = |c: char| c.is_alphanumeric() || "-_.:".contains(c);
    name.len() <= MAX_NAME
        && name.chars().all(sign)
        && !name.contains("..")
        && !name.starts_with(['-', '.'])
}

fn valid(name: &str) -> String {
    // Room for a number.
    const ROOM: usize = 16;
    let sign = |c: char| if c.is_ascii_alphanumeric() || "-_".contains(c) { c } else { '-' };
    let plain: String = name.chars().map(sign).take(MAX_NAME - ROOM).collect();
    let plain = plain.trim_matches('-');
    if plain.is_empty() { "task".to_owned() } else { plain.to_owned() }
}
