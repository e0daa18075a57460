//! Armings in the store: who may take a node's secrets, and who has.
//!
//! What is decided is kept before anything is handed out, so a token is redeemed by one key
//! whatever fails in between, and whichever controller is asked.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use hoist_inventory::AddressFit;
use hoist_inventory::record::{self, ResourceKey};
use hoist_metadata::SiteKey;
use hoist_metadata::provision::{Arming, KeyPrint, Shown, Verdict, Whereabouts};
use hoist_metadata::token::{NONCE_BYTES, Token};
use hoist_model::{Node, NodeId};
use hoist_store::{Compare, Key, Op, Record, Store, StoreError, Txn};

use crate::audit::{AuditError, AuditLog, Draft};
use crate::boot::SentScript;
use crate::clock::Clock;
use crate::events::EventBus;
use crate::scan::{Step, walk};
use crate::server::Chassis;

/// How often somebody else may be faster.
const TRIES: usize = 8;

/// What a token is good for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Redemption {
    /// This key has it; now, or since before.
    Taken {
        /// Whoever armed the node lets it have its secrets without an address of its own.
        secrets_without_address: bool,
    },
    /// Another key has it.
    Quarantined,
    /// It is the right one, shown where the node is not.
    Elsewhere,
    /// The node is not armed, or the token is another one.
    Refused,
}

/// How addresses stand to the node.
pub type Fits<'a> = &'a (dyn Fn(IpAddr) -> AddressFit + Sync);

/// What somebody shows who wants a node's secrets.
#[derive(Clone, Copy)]
pub struct Offer<'a> {
    pub token: &'a str,
    pub by: KeyPrint,
    pub from: IpAddr,
    pub fits: Fits<'a>,
    /// Who has fetched the boot script, as far as that is not kept yet.
    pub sent: Option<&'a SentScript>,
}

/// Without the token.
impl fmt::Debug for Offer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Offer")
            .field("by", &self.by)
            .field("from", &self.from)
            .finish_non_exhaustive()
    }
}

/// Cheap to clone; all clones are the same.
#[derive(Debug, Clone)]
pub struct Armings {
    store: Arc<dyn Store>,
    key: SiteKey,
    audit: AuditLog,
    events: EventBus,
    clock: Arc<dyn Clock>,
}

impl Armings {
    pub(crate) fn of(chassis: &Chassis, key: SiteKey) -> Self {
        let Chassis { store, clock, audit, events, .. } = chassis;
        Self::new(Arc::clone(store), key, audit.clone(), events.clone(), Arc::clone(clock))
    }

    pub fn new(
        store: Arc<dyn Store>,
        key: SiteKey,
        audit: AuditLog,
        events: EventBus,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self { store, key, audit, events, clock }
    }

    /// Arms a node anew: what it was armed with before is good for nothing any more.
    pub async fn arm(&self, node: &Node, by: Draft) -> Result<Token, AuditError> {
        let mut nonce = [0; NONCE_BYTES];
        aws_lc_rs::rand::fill(&mut nonce).expect("the operating system gives random bytes");
        let arming = Arming::new(&self.key, node.id, node.generation, nonce, self.clock.now());
        // The token is in no boot script: whoever is told it says whom it is for.
        let arming = arming.with_secrets_without_address(true);
        // A node that was removed elsewhere must not leave an arming behind.
        let Some(unchanged) = self.unchanged(node).await? else {
            let key = ResourceKey::Node(node.id).to_key();
            return Err(StoreError::Conflict { key }.into());
        };
        let ops = vec![Op::Put(place(node.id), text(&arming))];
        let txn = Txn { compares: vec![unchanged], ops };
        self.decide(node, by, txn, "provision.armed").await?;
        Ok(arming.token(&self.key))
    }

    /// What the node was armed with is good for nothing any more; it need not be armed.
    pub async fn disarm(&self, node: &Node, by: Draft) -> Result<(), AuditError> {
        let txn = Txn { compares: Vec::new(), ops: vec![Op::Delete(place(node.id))] };
        self.decide(node, by, txn, "provision.disarmed").await
    }

    async fn decide(&self, node: &Node, by: Draft, txn: Txn, kind: &str) -> Result<(), AuditError> {
        let told = serde_json::json!({"generation": node.generation, "by": by.who});
        let draft = Draft { object: format!("node/{}", node.name), ..by };
        self.audit.commit(txn, &draft).await?;
        self.events.publish(kind, &format!("node/{}", node.name), told);
        Ok(())
    }

    /// That the store has the node as it is here, as far as tokens go. The roster of a controller
    /// may be behind: a node that was renewed, disabled or removed elsewhere is told nothing more.
    async fn unchanged(&self, node: &Node) -> Result<Option<Compare>, StoreError> {
        let key = ResourceKey::Node(node.id).to_key();
        let Some(record) = self.store.get(&key).await? else { return Ok(None) };
        let stored: Node = parsed(&record, "a node")?;
        let is_same = stored.generation == node.generation && stored.spec.enabled;
        Ok(is_same.then_some(Compare::At(key, record.revision)))
    }

    /// Those of all nodes, in the order of their ids.
    pub async fn list(&self) -> Result<Vec<Arming>, StoreError> {
        let mut found = Vec::new();
        walk(self.store.as_ref(), &record::armings(), None, |record| {
            found.push(read(&record));
            Step::Go
        })
        .await?;
        found.into_iter().collect()
    }

    /// What a node is armed with now.
    pub async fn token(&self, node: &Node) -> Result<Option<Token>, StoreError> {
        let record = self.store.get(&place(node.id)).await?;
        let arming = record.as_ref().map(read).transpose()?;
        Ok(arming.map(|arming| arming.token(&self.key)))
    }

    pub async fn redeem(&self, node: &Node, offer: Offer<'_>) -> Result<Redemption, StoreError> {
        let Offer { token, by, from, fits, sent } = offer;
        let key = place(node.id);
        for _ in 0..TRIES {
            let Some(record) = self.store.get(&key).await? else { return Ok(Redemption::Refused) };
            let was = read(&record)?;
            let arming = sent.map_or_else(|| was.clone(), |sent| with_fetches(&was, sent, fits));
            let Some(unchanged) = self.unchanged(node).await? else {
                return Ok(Redemption::Refused);
            };
            let shown = Shown { token, by, from, fit: fits(from), at: self.clock.now() };
            let taken =
                Redemption::Taken { secrets_without_address: arming.secrets_without_address };
            let (next, redemption) = match arming.redeem(&self.key, node.generation, &shown) {
                Verdict::Repeated => return Ok(taken),
                Verdict::Refused => return Ok(Redemption::Refused),
                Verdict::StillQuarantined => return Ok(Redemption::Quarantined),
                Verdict::Elsewhere(next) => {
                    let next = next.unwrap_or(arming);
                    if next == was {
                        return Ok(Redemption::Elsewhere);
                    }
                    (next, Redemption::Elsewhere)
                }
                Verdict::Redeemed(next) => (next, taken),
                Verdict::Quarantined(next) => (next, Redemption::Quarantined),
            };
            let txn = Txn {
                compares: vec![Compare::At(key.clone(), record.revision), unchanged],
                ops: vec![Op::Put(key.clone(), text(&next))],
            };
            match self.store.commit(txn).await {
                Ok(_) => {
                    self.tell_addresses(node, &was, &next);
                    if redemption != Redemption::Elsewhere {
                        self.tell(node, by, from, redemption);
                    }
                    return Ok(redemption);
                }
                Err(StoreError::Conflict { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Err(StoreError::Conflict { key })
    }

    /// Keeps who has fetched the boot script with the token. Whoever was first is the one that the
    /// token is bound to; of everybody else people are told.
    pub async fn note_fetches(
        &self,
        node: &Node,
        sent: &SentScript,
        fits: Fits<'_>,
    ) -> Result<(), StoreError> {
        let key = place(node.id);
        for _ in 0..TRIES {
            let Some(record) = self.store.get(&key).await? else { return Ok(()) };
            let was = read(&record)?;
            let next = with_fetches(&was, sent, fits);
            if next == was {
                return Ok(());
            }
            let txn = Txn {
                compares: vec![Compare::At(key.clone(), record.revision)],
                ops: vec![Op::Put(key.clone(), text(&next))],
            };
            match self.store.commit(txn).await {
                Ok(_) => {
                    self.tell_addresses(node, &was, &next);
                    return Ok(());
                }
                Err(StoreError::Conflict { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Err(StoreError::Conflict { key })
    }

    fn tell_addresses(&self, node: &Node, was: &Arming, now: &Arming) {
        for from in now.elsewhere.iter().filter(|from| !was.elsewhere.contains(from)) {
            tracing::warn!(
                node = %node.name, %from,
                "a second address has the provision token of a node, and is refused"
            );
            let told = serde_json::json!({"from": from, "bound": now.bound});
            self.events.publish("provision.second-address", &format!("node/{}", node.name), told);
        }
    }

    fn tell(&self, node: &Node, by: KeyPrint, from: IpAddr, redemption: Redemption) {
        let kind = match redemption {
            Redemption::Quarantined => "provision.quarantined",
            _ => "provision.redeemed",
        };
        let told = serde_json::json!({
            "generation": node.generation, "key": by.to_string(), "from": from,
        });
        self.events.publish(kind, &format!("node/{}", node.name), told);
    }
}

/// Fetches with another token say nothing about this one.
fn with_fetches(arming: &Arming, sent: &SentScript, fits: Fits<'_>) -> Arming {
    let mut next = arming.clone();
    for from in sent.to.iter().filter(|_| arming.is_of(&sent.nonce)) {
        match next.seen_at(*from, fits(*from)) {
            Whereabouts::Bound(changed) | Whereabouts::Elsewhere(Some(changed)) => next = changed,
            Whereabouts::Here | Whereabouts::Elsewhere(None) => {}
        }
    }
    next
}

fn place(node: NodeId) -> Key {
    record::arming_key(node)
}

fn text(arming: &Arming) -> Vec<u8> {
    serde_json::to_vec(arming).expect("a plain value")
}

fn read(record: &Record) -> Result<Arming, StoreError> {
    parsed(record, "an arming")
}

fn parsed<T: serde::de::DeserializeOwned>(record: &Record, what: &str) -> Result<T, StoreError> {
    serde_json::from_slice(&record.value).map_err(|error| StoreError::Damaged {
        detail: format!("`{}` is not {what}: {error}", record.key),
    })
}

#[cfg(test)]
mod tests {
    use hoist_metadata::token::KEY_BYTES;
    use jiff::Timestamp;
    use serde_json::json;

    use super::*;
    use crate::clock::SystemClock;
    use crate::store::test_store;

    fn node(generation: u64) -> Node {
        Node {
            id: NodeId::from_bits(7),
            name: "n7".parse().unwrap(),
            spec: serde_json::from_value(json!({})).unwrap(),
            protection: None,
            maintenance: None,
            provenance: None,
            generation,
            revision: 1,
            created: Timestamp::UNIX_EPOCH,
            updated: Timestamp::UNIX_EPOCH,
        }
    }

    fn armings(store: &Arc<dyn Store>) -> Armings {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let events = EventBus::new(Arc::clone(store), Arc::clone(&clock));
        let audit = AuditLog::new(Arc::clone(store), Arc::clone(&clock));
        Armings::new(Arc::clone(store), SiteKey::new(&[3; KEY_BYTES]), audit, events, clock)
    }

    /// What the inventory says, on whichever controller.
    async fn keep(store: &Arc<dyn Store>, node: Option<&Node>) {
        let key = ResourceKey::Node(NodeId::from_bits(7)).to_key();
        let op = match node {
            Some(node) => Op::Put(key, serde_json::to_vec(node).unwrap()),
            None => Op::Delete(key),
        };
        store.commit(Txn { compares: Vec::new(), ops: vec![op] }).await.unwrap();
    }

    const FROM: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
    /// Whoever armed the node by hand has said so.
    const TAKEN: Redemption = Redemption::Taken { secrets_without_address: true };

    fn offer(token: &str, by: KeyPrint) -> Offer<'_> {
        Offer { token, by, from: FROM, fits: &|_| AddressFit::Own, sent: None }
    }

    fn seq(armings: &Armings) -> u64 {
        let id = armings.events.last_id();
        id.rsplit('.').next().unwrap().parse().unwrap()
    }

    #[tokio::test]
    async fn a_token_is_taken_by_one_key_on_whichever_controller() {
        let store: Arc<dyn Store> = test_store();
        keep(&store, Some(&node(1))).await;
        let (one, other) = (armings(&store), armings(&store));
        let (first, second) = (KeyPrint([1; 32]), KeyPrint([2; 32]));
        let guess = "0".repeat(32);
        assert_eq!(one.redeem(&node(1), offer(&guess, first)).await.unwrap(), Redemption::Refused);
        let token = one.arm(&node(1), Draft::default()).await.unwrap();
        let token = token.as_str();
        assert_eq!(
            other.redeem(&node(1), offer(&guess, first)).await.unwrap(),
            Redemption::Refused
        );
        assert_eq!(seq(&other), 0, "guessing is no event");
        assert_eq!(one.redeem(&node(1), offer(token, first)).await.unwrap(), TAKEN);
        assert_eq!(other.redeem(&node(1), offer(token, first)).await.unwrap(), TAKEN);
        for _ in 0..2 {
            let late = other.redeem(&node(1), offer(token, second)).await.unwrap();
            assert_eq!(late, Redemption::Quarantined);
        }
        for by in [first, second, KeyPrint([3; 32])] {
            let shown = Offer { fits: &|_| AddressFit::Foreign, ..offer(token, by) };
            assert_eq!(one.redeem(&node(1), shown).await.unwrap(), Redemption::Elsewhere);
            let guessed = Offer { token: &guess, ..shown };
            assert_eq!(one.redeem(&node(1), guessed).await.unwrap(), Redemption::Refused);
        }
        assert_eq!(
            (seq(&one), seq(&other)),
            (3, 1),
            "arming, redeeming and a second address; a stranger once"
        );
        assert_eq!(one.redeem(&node(2), offer(token, first)).await.unwrap(), Redemption::Refused);
    }

    #[tokio::test]
    async fn arming_again_and_disarming_end_what_was_before() {
        let store: Arc<dyn Store> = test_store();
        keep(&store, Some(&node(1))).await;
        let armings = armings(&store);
        let key = KeyPrint([1; 32]);
        let before = armings.arm(&node(1), Draft::default()).await.unwrap();
        let now = armings.arm(&node(1), Draft::default()).await.unwrap();
        let redeem =
            async |token: &Token| armings.redeem(&node(1), offer(token.as_str(), key)).await;
        assert_eq!(redeem(&before).await.unwrap(), Redemption::Refused);
        assert_eq!(redeem(&now).await.unwrap(), TAKEN);
        armings.disarm(&node(1), Draft::default()).await.unwrap();
        assert_eq!(redeem(&now).await.unwrap(), Redemption::Refused);
    }

    #[tokio::test]
    async fn what_was_renewed_disabled_or_removed_elsewhere_ends_a_token_here() {
        let store: Arc<dyn Store> = test_store();
        let armings = armings(&store);
        let first = KeyPrint([1; 32]);
        let mut disabled = node(1);
        disabled.spec.enabled = false;
        for is_redeemed in [false, true] {
            for changed in [Some(node(2)), Some(disabled.clone()), None] {
                keep(&store, Some(&node(1))).await;
                let token = armings.arm(&node(1), Draft::default()).await.unwrap();
                let redeem =
                    async || armings.redeem(&node(1), offer(token.as_str(), first)).await.unwrap();
                if is_redeemed {
                    assert_eq!(redeem().await, TAKEN);
                }
                keep(&store, changed.as_ref()).await;
                assert_eq!(redeem().await, Redemption::Refused, "{changed:?}");
                let late = armings.arm(&node(1), Draft::default()).await;
                assert!(matches!(late, Err(AuditError::Store(StoreError::Conflict { .. }))));
            }
        }
    }

    #[tokio::test]
    async fn of_many_keys_at_once_one_takes_it() {
        let store: Arc<dyn Store> = test_store();
        keep(&store, Some(&node(1))).await;
        let armings = armings(&store);
        let token = armings.arm(&node(1), Draft::default()).await.unwrap();
        let racing = (0..6_u8).map(|n| {
            let (armings, token) = (armings.clone(), token.clone());
            tokio::spawn(async move {
                armings.redeem(&node(1), offer(token.as_str(), KeyPrint([n; 32]))).await
            })
        });
        let racing: Vec<_> = racing.collect();
        let mut taken = 0;
        for one in racing {
            match one.await.unwrap() {
                Ok(Redemption::Taken { .. }) => taken += 1,
                Ok(Redemption::Quarantined) => {}
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(taken, 1);
    }
}
