//! Selects and orders the layers of a node: the site, its partition, its groups by their priority,
//! the node itself. A later layer overrides earlier ones.

use std::collections::HashMap;
use std::sync::Arc;

use hoist_model::selector::Level;
use hoist_model::{MetadataLayer, Node};
use hoist_site::Roster;

use crate::layer::Layer;

/// The compiled layers of a roster, indexed by their targets. Names are compared without case, as
/// in every selector.
#[derive(Debug, Default)]
pub struct Layers {
    all: HashMap<hoist_model::Name, Arc<Layer>>,
    cluster: Vec<Arc<Layer>>,
    partitions: HashMap<String, Vec<Arc<Layer>>>,
    /// With the partition, if they name one.
    groups: HashMap<String, Vec<OfGroup>>,
    nodes: HashMap<String, Vec<Arc<Layer>>>,
}

type OfGroup = (Option<String>, Arc<Layer>);

impl Layers {
    pub fn of(roster: &Roster) -> Self {
        Self::after(roster, &Self::default())
    }

    /// Reuses the compiled layers that did not change.
    #[must_use]
    pub fn after(roster: &Roster, before: &Self) -> Self {
        let mut sources: Vec<&Arc<MetadataLayer>> = roster.metadata_layers().collect();
        sources.sort_by_key(|layer| (layer.spec.priority, &layer.name));
        let mut layers = Self::default();
        for source in sources {
            let known = before.all.get(&source.name);
            let known = known.filter(|layer| Arc::ptr_eq(&layer.source, source));
            layers.add(known.map_or_else(|| Arc::new(Layer::new(source)), Arc::clone));
        }
        layers
    }

    fn add(&mut self, layer: Arc<Layer>) {
        self.all.insert(layer.source.name.clone(), Arc::clone(&layer));
        let lower = str::to_ascii_lowercase;
        let source = Arc::clone(&layer.source);
        match source.spec.level() {
            Some(Level::Cluster) => self.cluster.push(layer),
            Some(Level::Partition(name)) => {
                self.partitions.entry(lower(name)).or_default().push(layer);
            }
            Some(Level::Group { partition, name }) => {
                self.groups.entry(lower(name)).or_default().push((partition.map(lower), layer));
            }
            Some(Level::Node(name)) => self.nodes.entry(lower(name)).or_default().push(layer),
            // Nothing that would be saved.
            None => {}
        }
    }

    /// In their order.
    pub fn of_node(&self, roster: &Roster, node: &Node) -> Vec<&Arc<Layer>> {
        let partition = node.spec.partition.as_str();
        let mut found: Vec<_> = self.cluster.iter().collect();
        found.extend(self.partitions.get(partition).into_iter().flatten());
        if !self.groups.is_empty() {
            for group in roster.groups_of(node) {
                let named = self.groups.get(group.as_str()).into_iter().flatten();
                let here = named.filter(|(of, _)| of.as_ref().is_none_or(|of| of == partition));
                found.extend(here.map(|(_, layer)| layer));
            }
        }
        found.extend(self.nodes.get(node.name.as_str()).into_iter().flatten());
        found
    }
}

/// The nodes of a layer in id order; none if its target does not exist.
pub fn nodes_of<'r>(roster: &'r Roster, layer: &MetadataLayer) -> Vec<&'r Arc<Node>> {
    match layer.spec.level() {
        None => Vec::new(),
        Some(Level::Cluster) => roster.nodes().collect(),
        Some(Level::Node(name)) => roster.by_name(&name.to_ascii_lowercase()).into_iter().collect(),
        Some(Level::Partition(name)) => {
            let inside = |node: &&Arc<Node>| node.spec.partition.eq_ignore_ascii_case(name);
            roster.nodes().filter(inside).collect()
        }
        Some(Level::Group { partition, name }) => {
            let inside = |node: &&Arc<Node>| {
                partition.is_none_or(|of| node.spec.partition.eq_ignore_ascii_case(of))
                    && roster.groups_of(node).iter().any(|group| group.eq_ignore_ascii_case(name))
            };
            roster.nodes().filter(inside).collect()
        }
    }
}
