//! The secrets that a resource names.

use std::collections::BTreeSet;

use hoist_model::{MetadataLayerSpec, ProvisionProfileSpec, Secret, Selector};
use hoist_site::Resource;
use serde_json::Value;

use crate::profile_secrets::secret_of;

/// One secret, named at one place for the nodes of one selector. Another place or other nodes make
/// it another reference: who moves it says who gets the secret.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Reference {
    nodes: String,
    place: String,
    secret: String,
}

impl Reference {
    fn new(selector: Option<&Selector>, place: &str, secret: &Secret) -> Self {
        let secret = match secret {
            Secret::File(name) => format!("file:{name}"),
            Secret::Env(name) => format!("env:{name}"),
            Secret::Age(text) => format!("age:{text}"),
        };
        let nodes = selector.map(ToString::to_string).unwrap_or_default();
        Self { nodes, place: place.to_owned(), secret }
    }

    /// For messages: where the secret is, never more.
    pub(super) fn told(&self) -> &str {
        if self.secret.starts_with("age:") { "age" } else { &self.secret }
    }
}

/// Everything that a resource says about where secrets are. No wildcard: a new kind must say
/// whether it names secrets.
pub(super) fn named_in(resource: &Resource) -> BTreeSet<Reference> {
    match resource {
        Resource::MetadataLayer(layer) => in_layer(&layer.spec),
        Resource::ProvisionProfile(profile) => in_profile(&profile.spec),
        Resource::Node(_)
        | Resource::Group(_)
        | Resource::Partition(_)
        | Resource::Network(_)
        | Resource::Artifact(_)
        | Resource::BootConfig(_)
        | Resource::BootState(_)
        | Resource::Bss(_)
        | Resource::BssImage(_)
        | Resource::Set(_)
        | Resource::Tombstone(_) => BTreeSet::new(),
    }
}

fn in_layer(spec: &MetadataLayerSpec) -> BTreeSet<Reference> {
    let mut found = BTreeSet::new();
    let mut visit = |place: &str, value: &Value| {
        // The checks of the layer refuse one that cannot be read.
        if let Some(Ok(secret)) = Secret::in_value(value) {
            found.insert(Reference::new(spec.selector.as_ref(), place, &secret));
        }
    };
    for (field, map) in spec.maps() {
        for (key, value) in map {
            walk(&format!("{field}.{key}"), value, &mut visit);
        }
    }
    for part in &spec.parts {
        walk("parts", &part.content, &mut visit);
    }
    found
}

fn in_profile(spec: &ProvisionProfileSpec) -> BTreeSet<Reference> {
    let selector = spec.selector.as_ref();
    let declared = spec.secrets.iter();
    let mut found: BTreeSet<_> = declared
        .map(|(name, secret)| Reference::new(selector, &format!("secrets.{name}"), secret))
        .collect();
    let mut visit = |place: &str, value: &Value| {
        if let Some((_, secret)) = value.as_str().and_then(|text| secret_of(spec, text)) {
            found.insert(Reference::new(selector, place, &secret));
        }
    };
    for (section, value) in &spec.document {
        walk(&format!("document.{section}"), value, &mut visit);
    }
    found
}

/// Visits a value and everything in it. Entries of a list share their place: adding one before
/// another does not move it.
fn walk(place: &str, value: &Value, visit: &mut impl FnMut(&str, &Value)) {
    visit(place, value);
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                walk(&format!("{place}.{key}"), value, visit);
            }
        }
        Value::Array(list) => {
            for value in list {
                walk(&format!("{place}[]"), value, visit);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}
