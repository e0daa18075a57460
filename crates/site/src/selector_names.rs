//! The groups and partitions that selectors from people name in full: a misspelt one would select
//! nothing.

use hoist_model::{Name, Selector, nearest};

use crate::roster::Roster;

/// The groups and partitions of a site.
pub trait KnownNames {
    fn has_group(&self, name: &str) -> bool;
    fn has_partition(&self, name: &str) -> bool;
    /// For suggestions.
    fn groups(&self) -> Vec<String>;
    /// For suggestions.
    fn partitions(&self) -> Vec<String>;
}

impl KnownNames for Roster {
    fn has_group(&self, name: &str) -> bool {
        hoist_model::selector::Vocabulary::is_group(self, name)
    }

    fn has_partition(&self, name: &str) -> bool {
        let exists =
            |name: Name| name == Name::default_partition() || !self.in_partition(&name).is_empty();
        self.partition(name).is_some() || name.parse().is_ok_and(exists)
    }

    fn groups(&self) -> Vec<String> {
        self.groups().map(|group| group.name.to_string()).collect()
    }

    fn partitions(&self) -> Vec<String> {
        self.partitions().map(|partition| partition.name.to_string()).collect()
    }
}

/// What is wrong with the first group or partition in `selector` that the site does not have.
pub fn unknown_name(site: &impl KnownNames, selector: &Selector) -> Option<String> {
    let names = selector.exact_names();
    if let Some(name) = names.groups.into_iter().find(|name| !site.has_group(name)) {
        return Some(not_there("group", name, &site.groups()));
    }
    let name = names.partitions.into_iter().find(|name| !site.has_partition(name))?;
    Some(not_there("partition", name, &site.partitions()))
}

fn not_there(kind: &str, name: &str, known: &[String]) -> String {
    match nearest(name, known.iter().map(String::as_str)) {
        Some(close) => format!("{kind} `{name}` does not exist; did you mean `{close}`?"),
        None => format!("{kind} `{name}` does not exist; `hoist {kind} list` shows all of them"),
    }
}
