//! Merges layers: maps recurse, lists append, the later of two scalars wins. The origin of every
//! key is recorded.

use std::collections::BTreeMap;
use std::sync::Arc;

use hoist_model::metadata_layer::written_key;
use serde_json::{Map, Value};

/// The origin of a value: `layer:site`, `network:mgmt`, `hoist`.
pub type Origin = Arc<str>;

/// The merged layers as one map.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MergedLayers(BTreeMap<String, Tree>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Tree {
    Map(BTreeMap<String, Tree>, Provenance),
    List(Vec<(Value, Origin)>, Provenance),
    Scalar(Value, Provenance),
}

/// The origin of a value, and the origins of the values it replaced.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Provenance {
    from: Origin,
    over: Vec<Origin>,
}

/// One key of the result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceEntry {
    /// Such as `ntp.servers[0]`, or `sources."my.list"`.
    pub key: String,
    pub from: Origin,
    /// Origins of the different values it replaced.
    pub over: Vec<Origin>,
}

impl MergedLayers {
    /// Merges a map over the present values. A value at the end of one of the paths of `replace`
    /// replaces the earlier one, whatever its type.
    pub fn lay(&mut self, map: &Map<String, Value>, from: &Origin, replace: &[&[String]]) {
        lay(&mut self.0, map, from, &Keys::of(replace));
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The top-level keys, each with the origins of its value.
    pub(crate) fn top_level(&self) -> impl Iterator<Item = (&str, Vec<Origin>)> {
        self.0.iter().map(|(key, tree)| (key.as_str(), tree.origins()))
    }

    pub fn to_map(&self) -> Map<String, Value> {
        map_of(&self.0)
    }

    /// Every scalar and every list entry, in the order of the keys, up to `max` bytes of keys: a
    /// nested value repeats the keys around it.
    pub fn trace(&self, max: usize) -> Vec<TraceEntry> {
        let mut trace = Trace { all: Vec::new(), room: max };
        for (key, tree) in &self.0 {
            tree.trace(written_key(key), &mut trace);
        }
        trace.all
    }

    /// Takes entries of a list that were there before out of it.
    pub(crate) fn without_repeats(&mut self, key: &str) {
        if let Some(Tree::List(items, _)) = self.0.get_mut(key) {
            let mut kept: Vec<(Value, Origin)> = Vec::with_capacity(items.len());
            for item in items.drain(..) {
                if !kept.iter().any(|(value, _)| *value == item.0) {
                    kept.push(item);
                }
            }
            *items = kept;
        }
    }
}

/// Keys of the result, as long as there is room.
struct Trace {
    all: Vec<TraceEntry>,
    room: usize,
}

impl Trace {
    fn push(&mut self, traced: TraceEntry) {
        // The first entry that does not fit must end the trace: a gap would look like a missing
        // key.
        let left = self.room.checked_sub(traced.key.len());
        self.room = left.unwrap_or(0);
        if left.is_some() {
            self.all.push(traced);
        }
    }
}

/// Keys that replace, as the way through the maps.
#[derive(Debug, Default)]
struct Keys<'k>(BTreeMap<&'k str, Keys<'k>>, bool);

impl<'k> Keys<'k> {
    fn of(ways: &[&'k [String]]) -> Self {
        let mut root = Self::default();
        for way in ways {
            let mut at = &mut root;
            for key in *way {
                at = at.0.entry(key.as_str()).or_default();
            }
            at.1 = true;
        }
        root
    }
}

fn lay(
    below: &mut BTreeMap<String, Tree>,
    map: &Map<String, Value>,
    from: &Origin,
    replace: &Keys<'_>,
) {
    for (key, value) in map {
        let nothing = Keys::default();
        let inside = replace.0.get(key.as_str()).unwrap_or(&nothing);
        let Some(before) = below.get_mut(key) else {
            below.insert(key.clone(), Tree::new(value, from));
            continue;
        };
        match (&mut *before, value) {
            (Tree::Map(below, _), Value::Object(map)) if !inside.1 => lay(below, map, from, inside),
            (Tree::List(items, _), Value::Array(more)) if !inside.1 => {
                items.extend(more.iter().map(|value| (value.clone(), Arc::clone(from))));
            }
            _ => {
                let over = if before.to_value() == *value { Vec::new() } else { before.origins() };
                *before = Tree::new(value, from);
                before.told().over = over;
            }
        }
    }
}

impl Tree {
    fn new(value: &Value, from: &Origin) -> Self {
        let told = Provenance { from: Arc::clone(from), over: Vec::new() };
        match value {
            Value::Object(map) => {
                let inside = map.iter().map(|(key, value)| (key.clone(), Self::new(value, from)));
                Self::Map(inside.collect(), told)
            }
            Value::Array(list) => Self::List(
                list.iter().map(|value| (value.clone(), Arc::clone(from))).collect(),
                told,
            ),
            scalar => Self::Scalar(scalar.clone(), told),
        }
    }

    fn told(&mut self) -> &mut Provenance {
        match self {
            Self::Map(_, told) | Self::List(_, told) | Self::Scalar(_, told) => told,
        }
    }

    fn to_value(&self) -> Value {
        match self {
            Self::Map(map, _) => Value::Object(map_of(map)),
            Self::List(items, _) => items.iter().map(|(value, _)| value.clone()).collect(),
            Self::Scalar(value, _) => value.clone(),
        }
    }

    /// All origins of the value, each once.
    fn origins(&self) -> Vec<Origin> {
        let mut all = Vec::new();
        self.collect_origins(&mut all);
        let mut kept: Vec<Origin> = Vec::new();
        for origin in all {
            if !kept.contains(&origin) {
                kept.push(origin);
            }
        }
        kept
    }

    fn collect_origins(&self, all: &mut Vec<Origin>) {
        let (Self::Map(_, told) | Self::List(_, told) | Self::Scalar(_, told)) = self;
        all.extend(told.over.iter().chain([&told.from]).cloned());
        match self {
            Self::Map(map, _) => map.values().for_each(|tree| tree.collect_origins(all)),
            Self::List(items, _) => all.extend(items.iter().map(|(_, from)| Arc::clone(from))),
            Self::Scalar(..) => {}
        }
    }

    fn trace(&self, key: String, trace: &mut Trace) {
        if trace.room == 0 {
            return;
        }
        let before = trace.all.len();
        match self {
            Self::Map(map, told) if !map.is_empty() => {
                for (name, tree) in map {
                    tree.trace(format!("{key}.{}", written_key(name)), trace);
                }
                told.tell(&mut trace.all[before..]);
            }
            Self::List(items, told) if !items.is_empty() => {
                for (i, (_, from)) in items.iter().enumerate() {
                    let key = format!("{key}[{i}]");
                    let from = Arc::clone(from);
                    trace.push(TraceEntry { key, from, over: Vec::new() });
                }
                told.tell(&mut trace.all[before..]);
            }
            Self::Map(_, told) | Self::List(_, told) | Self::Scalar(_, told) => {
                let Provenance { from, over } = told.clone();
                trace.push(TraceEntry { key, from, over });
            }
        }
    }
}

impl Provenance {
    /// What took the place of something else says so at its first key.
    fn tell(&self, inside: &mut [TraceEntry]) {
        if let Some(first) = inside.first_mut() {
            let missing = self.over.iter().filter(|origin| !first.over.contains(origin));
            let missing: Vec<_> = missing.cloned().collect();
            first.over.extend(missing);
        }
    }
}

fn map_of(map: &BTreeMap<String, Tree>) -> Map<String, Value> {
    map.iter().map(|(key, tree)| (key.clone(), tree.to_value())).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn merged(layers: &[(&str, Value, &[&str])]) -> MergedLayers {
        let mut merged = MergedLayers::default();
        for (name, value, replace) in layers {
            let keys = |way: &&str| hoist_model::metadata_layer::keys_on(way).expect("a way");
            let ways: Vec<_> = replace.iter().map(keys).collect();
            let ways: Vec<_> = ways.iter().map(Vec::as_slice).collect();
            merged.lay(value.as_object().expect("a map"), &Origin::from(*name), &ways);
        }
        merged
    }

    fn told(merged: &MergedLayers) -> Vec<String> {
        let line = |traced: TraceEntry| {
            let told = [&*traced.from].into_iter().chain(traced.over.iter().map(AsRef::as_ref));
            format!("{} {}", traced.key, told.collect::<Vec<_>>().join(" over "))
        };
        merged.trace(usize::MAX).into_iter().map(line).collect()
    }

    #[test]
    fn maps_recurse_lists_append_and_the_later_scalar_wins() {
        let merged = merged(&[
            ("a", json!({ "ntp": { "servers": ["x"], "on": true }, "l": [1], "t": "a" }), &[]),
            ("b", json!({ "ntp": { "servers": ["y"], "pool": "p" }, "l": [2], "t": "b" }), &[]),
            ("c", json!({ "t": "b", "e": {}, "ntp": { "on": true } }), &[]),
        ]);
        let expected = json!({
            "ntp": { "servers": ["x", "y"], "on": true, "pool": "p" }, "l": [1, 2], "t": "b",
            "e": {},
        });
        assert_eq!(Value::Object(merged.to_map()), expected);
        assert_eq!(
            told(&merged),
            [
                "e c",
                "l[0] a",
                "l[1] b",
                "ntp.on c",
                "ntp.pool b",
                "ntp.servers[0] a",
                "ntp.servers[1] b",
                "t c",
            ]
        );
    }

    #[test]
    fn replacing_layer_names_the_replaced_ones() {
        let merged = merged(&[
            ("a", json!({ "n": { "s": ["x"], "k": 1 }, "t": "a", "m": { "d": 1 } }), &[]),
            ("b", json!({ "n": { "s": ["z"] }, "t": "b" }), &[]),
            ("c", json!({ "n": { "s": ["y"] }, "t": "c", "m": 7 }), &["n.s"]),
        ]);
        let expected = json!({ "n": { "s": ["y"], "k": 1 }, "t": "c", "m": 7 });
        assert_eq!(Value::Object(merged.to_map()), expected);
        assert_eq!(
            told(&merged),
            ["m c over a", "n.k a", "n.s[0] c over a over b", "t c over a over b"]
        );
    }

    #[test]
    fn keys_with_dots_are_keys() {
        let merged = merged(&[
            ("a", json!({ "x.y": [1], "x": { "y": [1] } }), &[]),
            ("b", json!({ "x.y": [2], "x": { "y": [2] } }), &["\"x.y\""]),
        ]);
        let expected = json!({ "x.y": [2], "x": { "y": [1, 2] } });
        assert_eq!(Value::Object(merged.to_map()), expected);
        assert_eq!(told(&merged), ["x.y[0] a", "x.y[1] b", "\"x.y\"[0] b over a"]);
    }

    fn any_map() -> impl Strategy<Value = Map<String, Value>> {
        let scalar = prop_oneof![any::<i8>().prop_map(Value::from), Just(Value::Null)];
        let value = scalar.prop_recursive(3, 12, 3, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
                proptest::collection::btree_map("[abc]", inner, 0..3)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        });
        proptest::collection::btree_map("[abc]", value, 0..3).prop_map(|m| m.into_iter().collect())
    }

    /// The keys of a value, lists being values.
    fn keys(value: &Value, at: &str, all: &mut Vec<String>) {
        all.push(at.to_owned());
        for (key, value) in value.as_object().into_iter().flatten() {
            keys(value, &format!("{at}.{key}"), all);
        }
    }

    proptest! {
        #[test]
        fn last_layer_wins_and_a_single_layer_is_complete(
            maps in proptest::collection::vec(any_map(), 1..4)
        ) {
            let mut merged = MergedLayers::default();
            for (i, map) in maps.iter().enumerate() {
                merged.lay(map, &Origin::from(i.to_string()), &[]);
                if i == 0 {
                    prop_assert_eq!(&merged.to_map(), map);
                }
            }
            let mut last = Vec::new();
            let mut all = Vec::new();
            keys(&Value::Object(maps[maps.len() - 1].clone()), "", &mut last);
            keys(&Value::Object(merged.to_map()), "", &mut all);
            prop_assert!(last.iter().all(|key| all.contains(key)));
            // Every leaf is traced, and to a layer that there is.
            let whole = merged.trace(usize::MAX);
            prop_assert_eq!(whole.is_empty(), merged.is_empty());
            for max in [0, 1, 5, 10] {
                let some = merged.trace(max);
                prop_assert!(some.iter().map(|traced| traced.key.len()).sum::<usize>() <= max);
                prop_assert!(some.iter().zip(&whole).all(|(one, other)| one.key == other.key));
            }
            for traced in whole {
                let layer: usize = traced.from.parse().expect("a number");
                prop_assert!(layer < maps.len());
            }
        }

        #[test]
        fn laying_an_empty_map_changes_nothing(
            map in any_map(), other in any_map()
        ) {
            let a = Origin::from("a");
            let b = Origin::from("b");
            let mut merged = MergedLayers::default();
            merged.lay(&map, &a, &[]);
            merged.lay(&other, &b, &[]);
            let before = merged.to_map();
            merged.lay(&Map::new(), &b, &[]);
            prop_assert_eq!(&merged.to_map(), &before);
        }

        #[test]
        fn a_replacing_key_has_exactly_the_value_of_its_layer(map in any_map(), over in any_map()) {
            let keys: Vec<_> = over.keys().map(|key| [key.clone()]).collect();
            let keys: Vec<_> = keys.iter().map(<[String; 1]>::as_slice).collect();
            let mut merged = MergedLayers::default();
            merged.lay(&map, &Origin::from("a"), &[]);
            merged.lay(&over, &Origin::from("b"), &keys);
            let result = merged.to_map();
            for (key, value) in &over {
                prop_assert_eq!(&result[key], value);
            }
            for (key, value) in map.iter().filter(|(key, _)| !over.contains_key(*key)) {
                prop_assert_eq!(&result[key], value);
            }
        }
    }
}
