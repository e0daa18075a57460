//! Who is the first of each role: chosen once, and the same for as long as it is a member.

use std::collections::BTreeMap;

use hoist_api::Code;
use hoist_api::deploy::TaskFile;
use hoist_store::{Compare, Key, Op, Revision, Store, Txn};

use hoist_chassis::failure::Failure;

/// First members of a role that are remembered.
const MAX_REMEMBERED: usize = 16;
/// Of the name of a deployment in a key.
const MAX_NAME: usize = 200;

/// Roles and who was chosen for each, the latest first. Earlier ones count where the latest is no
/// member: two files of one name may be of two projects.
pub(super) type ElectedMembers = BTreeMap<String, Vec<String>>;

/// The elected first members of a deployment's roles, as stored.
#[derive(Debug)]
pub(super) struct Elections {
    key: Key,
    at: Option<Revision>,
    pub(super) chosen: ElectedMembers,
}

/// The name of a deployment: its first file, without the directory.
pub(super) fn deployment(files: &[TaskFile]) -> &str {
    let path = files.first().map_or("", |file| file.name.as_str());
    path.rsplit('/').next().unwrap_or_default()
}

impl Elections {
    /// Reads the elections from the store. A plan without them could run a once-only task a second
    /// time, so there must be no plan while the store is unreachable.
    pub(super) async fn read(store: &dyn Store, deployment: &str) -> Result<Self, Failure> {
        let key = key(deployment);
        let Some(record) = store.get(&key).await? else {
            return Ok(Self { key, at: None, chosen: ElectedMembers::new() });
        };
        let chosen = serde_json::from_slice(&record.value).map_err(|error| {
            let detail = format!("the first members of roles cannot be read from `{key}`: {error}");
            Failure::new(Code::Internal, detail).with_remedy(
                "restore a backup; without them the first member of a role could change",
            )
        })?;
        Ok(Self { key, at: Some(record.revision), chosen })
    }

    /// Stores the elections of a plan; refused if they changed in the meantime.
    pub(super) async fn keep(
        &self,
        store: &dyn Store,
        firsts: &BTreeMap<String, String>,
    ) -> Result<(), Failure> {
        let Some(chosen) = with(&self.chosen, firsts) else { return Ok(()) };
        let compare = match self.at {
            Some(at) => Compare::At(self.key.clone(), at),
            None => Compare::Absent(self.key.clone()),
        };
        let value = serde_json::to_vec(&chosen).expect("a plain value");
        let txn = Txn { compares: vec![compare], ops: vec![Op::Put(self.key.clone(), value)] };
        store.commit(txn).await?;
        Ok(())
    }

    /// An earlier plan holds only if its elections still hold.
    pub(super) fn check(&self, firsts: &BTreeMap<String, String>) -> Result<(), Failure> {
        for (role, first) in firsts {
            let now = self.chosen.get(role).and_then(|chosen| chosen.first());
            if let Some(now) = now.filter(|now| *now != first) {
                let detail = format!(
                    "the plan has `{first}` as the first of role `{role}`, which is `{now}`"
                );
                return Err(Failure::new(Code::Conflict, detail)
                    .with_remedy("make the plan again: `hoist deploy plan FILES -o json`"));
            }
        }
        Ok(())
    }
}

/// The elections after adding these; `None` if nothing changes.
fn with(chosen: &ElectedMembers, firsts: &BTreeMap<String, String>) -> Option<ElectedMembers> {
    let mut after = chosen.clone();
    for (role, first) in firsts {
        let of_role = after.entry(role.clone()).or_default();
        if !of_role.contains(first) {
            of_role.insert(0, first.clone());
            of_role.truncate(MAX_REMEMBERED);
        }
    }
    (after != *chosen).then_some(after)
}

fn key(deployment: &str) -> Key {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' };
    let name: String = deployment.chars().take(MAX_NAME).map(plain).collect();
    let name = if name.is_empty() { "_" } else { &name };
    format!("election/{name}").parse().expect("visible signs, one segment")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn firsts(role: &str, node: &str) -> BTreeMap<String, String> {
        BTreeMap::from([(role.to_owned(), node.to_owned())])
    }

    #[test]
    fn latest_election_comes_first_and_earlier_ones_keep_order() {
        let chosen = with(&ElectedMembers::new(), &firsts("db", "n1")).unwrap();
        let chosen = with(&chosen, &firsts("db", "n3")).unwrap();
        assert_eq!(chosen["db"], ["n3", "n1"]);
        assert_eq!(with(&chosen, &firsts("db", "n1")), None, "it was not chosen again");
    }

    #[test]
    fn remembered_elections_are_bounded() {
        let mut chosen = ElectedMembers::new();
        for n in 0..MAX_REMEMBERED + 5 {
            chosen = with(&chosen, &firsts("db", &format!("n{n}"))).unwrap();
        }
        assert_eq!(chosen["db"].len(), MAX_REMEMBERED);
        assert_eq!(chosen["db"][0], format!("n{}", MAX_REMEMBERED + 4));
    }

    #[test]
    fn a_deployment_is_its_first_file_and_any_name_makes_a_key() {
        let file = |name: &str| TaskFile { name: name.to_owned(), ..TaskFile::default() };
        assert_eq!(deployment(&[file("a/b/site.yaml"), file("c.yaml")]), "site.yaml");
        assert_eq!(deployment(&[]), "");
        let long = "x".repeat(5000);
        for (name, made) in [
            ("site.yaml", "election/site.yaml"),
            ("", "election/_"),
            ("standard input", "election/standard_input"),
            ("ä/\0", "election/___"),
            (long.as_str(), &format!("election/{}", "x".repeat(MAX_NAME))),
        ] {
            assert_eq!(key(name).to_string(), made);
        }
    }
}
