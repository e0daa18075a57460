//! Names of tasks and barriers, and what patterns of them match.

use std::collections::HashMap;

use hoist_model::selector::{Glob, RegexError};

use super::{End, number};
use crate::layer::Book;
use crate::spec::Pattern;
use crate::target::{compiled, whole};

#[derive(Debug)]
pub(crate) struct Matcher<'a> {
    /// Tasks in the order of the book, then barriers.
    names: Vec<(&'a str, End)>,
    by_name: HashMap<&'a str, End>,
}

impl<'a> Matcher<'a> {
    pub(crate) fn new(book: &'a Book) -> Self {
        let tasks = book.tasks.iter().enumerate();
        let tasks = tasks.map(|(at, task)| (task.id.value.as_str(), End::Task(number(at))));
        let barriers = book.barriers.iter().enumerate();
        let barriers =
            barriers.map(|(at, barrier)| (barrier.id.value.as_str(), End::Barrier(number(at))));
        let names: Vec<(&str, End)> = tasks.chain(barriers).collect();
        let by_name = names.iter().copied().collect();
        Self { names, by_name }
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &'a str> + use<'a, '_> {
        self.names.iter().map(|(name, _)| *name)
    }

    pub(crate) fn get(&self, name: &str) -> Option<End> {
        self.by_name.get(name).copied()
    }

    /// The matching tasks and barriers, or the reason why the pattern is invalid.
    pub(crate) fn ends(&self, pattern: &Pattern) -> Result<Vec<End>, RegexError> {
        Ok(match pattern {
            Pattern::Exact(name) => self.get(name).into_iter().collect(),
            Pattern::Glob(glob) => {
                let glob = Glob::exact(glob);
                self.matching(|name| glob.matches(name))
            }
            Pattern::Regex { text, is_prefix: false } => {
                let regex = whole(text)?;
                self.matching(|name| regex.is_match(name))
            }
            Pattern::Regex { text, is_prefix: true } => {
                let regex = compiled(&format!("^(?:{text})"))?;
                self.matching(|name| regex.is_match(name))
            }
        })
    }

    fn matching(&self, is_match: impl Fn(&str) -> bool) -> Vec<End> {
        self.names.iter().filter(|(name, _)| is_match(name)).map(|(_, end)| *end).collect()
    }
}
