//! Merges the needs of planners into one document, before anything is planned.
//!
//! Each planner sees the sections that it declares and contributes entries to others. A
//! contribution may change the needs of another planner, so all are asked again until the needs are
//! stable. The result does not depend on the order of the planners.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::action::{Contribution, Description, Document, Failure, Planner};

/// Largest number of rounds that may change the document. Longer chains of needs are taken for a
/// cycle.
pub const MAX_ROUNDS: usize = 4;

/// Largest number of contributions of one planner.
pub const MAX_CONTRIBUTIONS: usize = 1024;

/// Why the needs of planners do not form one document.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ContributeError {
    #[error("action `{action}` cannot contribute")]
    Failed { action: String, source: Failure },
    #[error(
        "action `{action}` contributes `{id}` to section `{section}`, which it does not declare; add \
         `{section}` to its `contributes`"
    )]
    Undeclared { action: String, section: String, id: String },
    #[error(
        "actions `{first}` and `{second}` contribute different values for `{id}` to section \
         `{section}`; leave one of them out, or make their inputs agree"
    )]
    Conflict { first: String, second: String, section: String, id: String },
    #[error(
        "action `{action}` contributes `{id}` to section `{section}`, where the document has another \
         value; change or remove that entry of the document"
    )]
    AgainstDocument { action: String, section: String, id: String },
    #[error(
        "action `{action}` contributes `{id}` to section `{section}`, which is not an object; make it one"
    )]
    NoObject { action: String, section: String, id: String },
    #[error(
        "action `{action}` contributes {count} entries; at most {MAX_CONTRIBUTIONS} are allowed"
    )]
    TooMany { action: String, count: usize },
    #[error(
        "contributions are not stable after {MAX_ROUNDS} rounds: {} react to each other; leave one \
         of them out", .actions.join(", ")
    )]
    NotSettled { actions: Vec<String> },
}

/// By section and entry: the planner and the value.
type Needs = BTreeMap<(String, String), (String, Value)>;

/// The document with the contributions of all queued planners.
pub fn merge<'a, C: Planner + ?Sized + 'a>(
    document: &Document,
    queued: impl IntoIterator<Item = &'a C>,
    facts: &Value,
) -> Result<Document, ContributeError> {
    let described = queued.into_iter().map(|action| (action.describe(), action));
    // Ordered by name, so that errors do not depend on the order of the planners.
    let queued: BTreeMap<String, (Description, &C)> =
        described.map(|(about, action)| (about.name.clone(), (about, action))).collect();
    let mut merged = document.clone();
    let mut before = Needs::new();
    let mut unsettled = Vec::new();
    // The additional round shows that the needs are stable.
    for _ in 0..=MAX_ROUNDS {
        let needs = ask(&merged, &queued, facts)?;
        if needs == before {
            return Ok(merged);
        }
        merged = apply_needs(document, &needs)?;
        unsettled = changed_planners(&before, &needs);
        before = needs;
    }
    Err(ContributeError::NotSettled { actions: unsettled })
}

/// Asks every planner once.
fn ask<C: Planner + ?Sized>(
    document: &Document,
    queued: &BTreeMap<String, (Description, &C)>,
    facts: &Value,
) -> Result<Needs, ContributeError> {
    let mut needs = Needs::new();
    for (name, (about, action)) in queued {
        let asked = action
            .contribute(&document.shown_to(about), facts)
            .map_err(|source| ContributeError::Failed { action: name.clone(), source })?;
        if asked.len() > MAX_CONTRIBUTIONS {
            let action = name.clone();
            let count = asked.len();
            return Err(ContributeError::TooMany { action, count });
        }
        for Contribution { section, id, value } in asked {
            if !about.contributes.contains(&section) {
                return Err(ContributeError::Undeclared { action: name.clone(), section, id });
            }
            match needs.get(&(section.clone(), id.clone())) {
                Some((first, other)) if *other != value => {
                    let first = first.clone();
                    let second = name.clone();
                    return Err(ContributeError::Conflict { first, second, section, id });
                }
                Some(_) => {}
                None => {
                    needs.insert((section, id), (name.clone(), value));
                }
            }
        }
    }
    Ok(needs)
}

fn apply_needs(document: &Document, needs: &Needs) -> Result<Document, ContributeError> {
    let mut merged = document.clone();
    for ((section, id), (action, value)) in needs {
        let place = || (action.clone(), section.clone(), id.clone());
        let entries =
            merged.0.entry(section.clone()).or_insert_with(|| Value::Object(<_>::default()));
        let Value::Object(entries) = entries else {
            let (action, section, id) = place();
            return Err(ContributeError::NoObject { action, section, id });
        };
        if entries.get(id).is_some_and(|there| there != value) {
            let (action, section, id) = place();
            return Err(ContributeError::AgainstDocument { action, section, id });
        }
        entries.insert(id.clone(), value.clone());
    }
    Ok(merged)
}

/// The planners whose contributions differ between two rounds.
fn changed_planners(before: &Needs, after: &Needs) -> Vec<String> {
    let changed = |these: &Needs, those: &Needs| -> Vec<String> {
        let differs = these.iter().filter(|(at, need)| those.get(*at) != Some(*need));
        differs.map(|(_, (action, _))| action.clone()).collect()
    };
    let mut actions = changed(before, after);
    actions.extend(changed(after, before));
    actions.sort_unstable();
    actions.dedup();
    actions
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::record::FailureKind;

    type Wish = Box<dyn Fn(&Document) -> Result<Vec<Contribution>, Failure> + Send + Sync>;

    /// A planner that contributes entries and plans no steps.
    struct Needy {
        about: Description,
        wish: Wish,
    }

    impl Planner for Needy {
        fn describe(&self) -> Description {
            self.about.clone()
        }
        fn contribute(&self, document: &Document, _: &Value) -> Result<Vec<Contribution>, Failure> {
            (self.wish)(document)
        }
    }

    fn needy(
        name: &str,
        reads: &[&str],
        wish: impl Fn(&Document) -> Vec<Contribution> + Send + Sync + 'static,
    ) -> Needy {
        let about = Description {
            name: name.to_owned(),
            reads: reads.iter().map(|section| (*section).to_owned()).collect(),
            contributes: vec!["storage".to_owned(), "boot".to_owned()],
            ..Description::default()
        };
        Needy { about, wish: Box::new(move |document| Ok(wish(document))) }
    }

    fn need(section: &str, id: &str, value: Value) -> Contribution {
        Contribution { section: section.to_owned(), id: id.to_owned(), value }
    }

    fn merged(document: &Value, queued: &[Needy]) -> Result<Document, ContributeError> {
        let document: Document = serde_json::from_value(document.clone()).expect("sections");
        merge(&document, queued, &Value::Null)
    }

    fn count(document: &Document, section: &str) -> usize {
        document.0.get(section).and_then(Value::as_object).map_or(0, serde_json::Map::len)
    }

    #[test]
    fn contribution_of_one_planner_can_cause_another() {
        let drive = needy("config_drive", &[], |_| vec![need("storage", "drive", json!(16))]);
        // Contributes the number of partitions, including those of other planners.
        let boot = needy("boot", &["storage"], |document| {
            vec![need("boot", "partitions", json!(count(document, "storage")))]
        });
        let document = merged(&json!({"storage": {"root": 100}}), &[drive, boot]).unwrap();
        assert_eq!(
            serde_json::to_value(&document).unwrap(),
            json!({"boot": {"partitions": 2}, "storage": {"root": 100, "drive": 16}})
        );
    }

    #[test]
    fn planner_sees_only_declared_sections() {
        let mut nosy = needy("nosy", &["network"], |document| {
            let seen: Vec<&String> = document.0.keys().collect();
            vec![need("boot", "seen", json!(seen))]
        });
        nosy.about.writes = vec!["boot".to_owned()];
        let document =
            merged(&json!({"network": {}, "secrets": {"a": 1}, "boot": {}}), &[nosy]).unwrap();
        assert_eq!(document.0["boot"], json!({"seen": ["boot", "network"]}));
    }

    #[test]
    fn undeclared_section_is_not_written() {
        let sly = needy("sly", &[], |_| vec![need("network", "route", json!(1))]);
        let error = merged(&json!({}), &[sly]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "action `sly` contributes `route` to section `network`, which it does not declare; add \
             `network` to its `contributes`"
        );
    }

    #[test]
    fn document_is_not_overwritten() {
        for (there, refused) in [(json!({"esp": 1}), false), (json!({"esp": 2}), true)] {
            let boot = needy("boot", &[], |_| vec![need("storage", "esp", json!(1))]);
            let ended = merged(&json!({"storage": there}), &[boot]);
            assert_eq!(matches!(ended, Err(ContributeError::AgainstDocument { .. })), refused);
        }
        let boot = needy("boot", &[], |_| vec![need("storage", "esp", json!(1))]);
        let error = merged(&json!({"storage": [1]}), &[boot]).unwrap_err();
        assert!(matches!(error, ContributeError::NoObject { .. }), "{error}");
    }

    #[test]
    fn unstable_contributions_name_their_actions() {
        let grows = needy("grows", &["storage"], |document| {
            vec![need(
                "storage",
                "n",
                json!(document.0.get("storage").and_then(|s| s["n"].as_u64()).unwrap_or(0) + 1),
            )]
        });
        let still = needy("still", &[], |_| vec![need("boot", "x", json!(1))]);
        let error = merged(&json!({}), &[grows, still]).unwrap_err();
        assert_eq!(error, ContributeError::NotSettled { actions: vec!["grows".to_owned()] });
    }

    #[test]
    fn contributions_settle_within_the_maximum_of_rounds() {
        // Contributes entry n once entry n - 1 exists.
        let chain = |length: usize| {
            needy("chain", &["storage"], move |document| {
                let there = count(document, "storage");
                (0..=there.min(length - 1))
                    .map(|n| need("storage", &n.to_string(), json!(n)))
                    .collect()
            })
        };
        let document = merged(&json!({}), &[chain(MAX_ROUNDS)]).unwrap();
        assert_eq!(count(&document, "storage"), MAX_ROUNDS);
        let error = merged(&json!({}), &[chain(MAX_ROUNDS + 1)]).unwrap_err();
        assert!(matches!(error, ContributeError::NotSettled { .. }), "{error}");
    }

    #[test]
    fn contributions_of_one_action_are_bounded() {
        let greedy = |many: usize| {
            needy("greedy", &[], move |_| {
                (0..many).map(|n| need("boot", &n.to_string(), json!(n))).collect()
            })
        };
        assert!(merged(&json!({}), &[greedy(MAX_CONTRIBUTIONS)]).is_ok());
        let error = merged(&json!({}), &[greedy(MAX_CONTRIBUTIONS + 1)]).unwrap_err();
        assert!(matches!(error, ContributeError::TooMany { count: 1025, .. }), "{error}");
    }

    #[test]
    fn failing_action_is_named() {
        let mut broken = needy("broken", &[], |_| Vec::new());
        let failure = Failure { kind: FailureKind::Exit, reason: "no disk".to_owned() };
        broken.wish = Box::new(move |_| Err(failure.clone()));
        let error = merged(&json!({}), &[broken]).unwrap_err();
        assert_eq!(error.to_string(), "action `broken` cannot contribute");
    }

    /// For each action, the ids and values of its entries.
    fn wishes() -> impl Strategy<Value = Vec<Vec<(u8, u8)>>> {
        proptest::collection::vec(proptest::collection::vec((0..6_u8, 0..3_u8), 0..4), 1..6)
    }

    fn actions(wishes: &[Vec<(u8, u8)>]) -> Vec<Needy> {
        let action = |(at, wishes): (usize, &Vec<(u8, u8)>)| {
            let wishes = wishes.clone();
            needy(&format!("a{at}"), &["storage"], move |document| {
                let own =
                    wishes.iter().map(|(id, value)| need("storage", &id.to_string(), json!(value)));
                // And an entry that depends on the contributions of the others.
                let seen = need("boot", &format!("seen{at}"), json!(count(document, "storage")));
                own.chain([seen]).collect()
            })
        };
        wishes.iter().enumerate().map(action).collect()
    }

    proptest! {
        #[test]
        fn merge_does_not_depend_on_the_order_of_actions(wishes in wishes(), turn in 0..6_usize, flip: bool) {
            let straight = merged(&json!({}), &actions(&wishes));
            let mut other = actions(&wishes);
            let turn = turn % other.len();
            other.rotate_left(turn);
            if flip {
                other.reverse();
            }
            prop_assert_eq!(straight, merged(&json!({}), &other));
        }

        #[test]
        fn every_conflict_is_found(wishes in wishes()) {
            let mut values: BTreeMap<u8, u8> = BTreeMap::new();
            let all = wishes.iter().flatten();
            let differ = all.fold(false, |differ, (id, value)| differ | (values.insert(*id, *value).is_some_and(|old| old != *value)));
            match merged(&json!({}), &actions(&wishes)) {
                Ok(document) => {
                    prop_assert!(!differ);
                    prop_assert_eq!(count(&document, "storage"), values.len());
                }
                Err(ContributeError::Conflict { first, second, .. }) => {
                    prop_assert!(differ);
                    for name in [first, second] {
                        let at: usize = name[1..].parse().expect("a number");
                        prop_assert!(!wishes[at].is_empty(), "{} asked for nothing", name);
                    }
                }
                Err(other) => prop_assert!(false, "{}", other),
            }
        }
    }
}
