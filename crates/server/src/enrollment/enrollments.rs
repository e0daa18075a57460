//! Enrollments in the store: which node may get its secrets, and which key claimed them.
//!
//! Guarantees that a claim is stored before anything is released, so that one key claims a token on
//! all controllers and after any failure.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use hoist_metadata::provision::{Enrollment, KeyPrint, PresentedToken, Verdict, Whereabouts};
use hoist_model::{Node, NodeId};
use hoist_site::record::ResourceKey;
use hoist_site::site_key::{NONCE_BYTES, NodeToken};
use hoist_site::{AddressFit, SiteKey};
use hoist_store::{Compare, Key, Op, Record, Store, StoreError, Txn};

use super::{SentScript, keys};
use hoist_chassis::Chassis;
use hoist_chassis::audit::{AuditError, AuditLog, Draft};
use hoist_chassis::clock::Clock;
use hoist_chassis::events::EventBus;
use hoist_chassis::scan::{ScanStep, walk};

/// Attempts of a transaction under conflicting writes.
const TRIES: usize = 8;

/// The result of presenting a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClaimResult {
    /// The key holds the claim: since now, or since an earlier request.
    Claimed {
        /// The operator allows secrets without a unique address.
        secrets_without_address: bool,
    },
    /// Another key holds the claim.
    Quarantined,
    /// The right token from an address that is not the node's.
    Elsewhere,
    /// The node is not enrolled, or the token is wrong.
    Refused,
}

/// Whether an address is the node's own, a possible or a foreign one.
type Fits<'a> = &'a (dyn Fn(IpAddr) -> AddressFit + Sync);

/// The credentials of a request for a node's secrets.
#[derive(Clone, Copy)]
pub struct Offer<'a> {
    pub token: &'a str,
    pub by: KeyPrint,
    pub from: IpAddr,
    pub fits: Fits<'a>,
    /// Addresses that fetched the boot script and are not stored yet.
    pub sent: Option<&'a SentScript>,
}

/// Leaves out the token, which is a secret.
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
pub struct Enrollments {
    store: Arc<dyn Store>,
    key: SiteKey,
    audit: AuditLog,
    events: EventBus,
    clock: Arc<dyn Clock>,
}

impl Enrollments {
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

    /// Enrolls a node; an earlier enrollment becomes void.
    pub async fn enroll(&self, node: &Node, by: Draft) -> Result<NodeToken, AuditError> {
        let mut nonce = [0; NONCE_BYTES];
        aws_lc_rs::rand::fill(&mut nonce).expect("the operating system gives random bytes");
        let enrollment =
            Enrollment::new(&self.key, node.id, node.generation, nonce, self.clock.now());
        // The token is in no boot script: the operator who gets it decides where it goes.
        let enrollment = enrollment.with_secrets_without_address(true);
        // A node that was removed elsewhere must not leave an enrollment behind.
        let Some(unchanged) = self.unchanged(node).await? else {
            let key = ResourceKey::Node(node.id).to_key();
            return Err(StoreError::Conflict { key }.into());
        };
        let ops = vec![Op::Put(place(node.id), text(&enrollment))];
        let txn = Txn { compares: vec![unchanged], ops };
        self.decide(node, by, txn, "provision.enrolled").await?;
        Ok(enrollment.token(&self.key))
    }

    /// Ends the node's enrollment, if there is one.
    pub async fn unenroll(&self, node: &Node, by: Draft) -> Result<(), AuditError> {
        let txn = Txn { compares: Vec::new(), ops: vec![Op::Delete(place(node.id))] };
        self.decide(node, by, txn, "provision.unenrolled").await
    }

    async fn decide(&self, node: &Node, by: Draft, txn: Txn, kind: &str) -> Result<(), AuditError> {
        let told = serde_json::json!({"generation": node.generation, "by": by.who});
        let draft = Draft { object: format!("node/{}", node.name), ..by };
        self.audit.commit(txn, &draft).await?;
        self.events.publish(kind, &format!("node/{}", node.name), told);
        Ok(())
    }

    /// Precondition that the store has the same node as this roster, as far as tokens depend on it.
    /// The roster may be behind: a node that another controller renewed, disabled or removed gets
    /// nothing.
    async fn unchanged(&self, node: &Node) -> Result<Option<Compare>, StoreError> {
        let key = ResourceKey::Node(node.id).to_key();
        let Some(record) = self.store.get(&key).await? else { return Ok(None) };
        let stored: Node = parsed(&record, "a node")?;
        let is_same = stored.generation == node.generation && stored.spec.enabled;
        Ok(is_same.then_some(Compare::At(key, record.revision)))
    }

    /// The enrollments of all nodes, by node id.
    pub async fn list(&self) -> Result<Vec<Enrollment>, StoreError> {
        let mut found = Vec::new();
        walk(self.store.as_ref(), &keys::enrollments(), None, |record| {
            found.push(read(&record));
            ScanStep::Go
        })
        .await?;
        found.into_iter().collect()
    }

    /// The token of the node's current enrollment.
    pub async fn token(&self, node: &Node) -> Result<Option<NodeToken>, StoreError> {
        let record = self.store.get(&place(node.id)).await?;
        let enrollment = record.as_ref().map(read).transpose()?;
        Ok(enrollment.map(|enrollment| enrollment.token(&self.key)))
    }

    pub async fn claim(&self, node: &Node, offer: Offer<'_>) -> Result<ClaimResult, StoreError> {
        let Offer { token, by, from, fits, sent } = offer;
        let key = place(node.id);
        for _ in 0..TRIES {
            let Some(record) = self.store.get(&key).await? else { return Ok(ClaimResult::Refused) };
            let was = read(&record)?;
            let enrollment =
                sent.map_or_else(|| was.clone(), |sent| with_fetches(&was, sent, fits));
            let Some(unchanged) = self.unchanged(node).await? else {
                return Ok(ClaimResult::Refused);
            };
            let shown = PresentedToken { token, by, from, fit: fits(from), at: self.clock.now() };
            let taken = ClaimResult::Claimed {
                secrets_without_address: enrollment.secrets_without_address,
            };
            let (next, result) = match enrollment.claim(&self.key, node.generation, &shown) {
                Verdict::Repeated => return Ok(taken),
                Verdict::Refused => return Ok(ClaimResult::Refused),
                Verdict::StillQuarantined => return Ok(ClaimResult::Quarantined),
                Verdict::Elsewhere(next) => {
                    let next = next.unwrap_or(enrollment);
                    if next == was {
                        return Ok(ClaimResult::Elsewhere);
                    }
                    (next, ClaimResult::Elsewhere)
                }
                Verdict::Claimed(next) => (next, taken),
                Verdict::Quarantined(next) => (next, ClaimResult::Quarantined),
            };
            let txn = Txn {
                compares: vec![Compare::At(key.clone(), record.revision), unchanged],
                ops: vec![Op::Put(key.clone(), text(&next))],
            };
            match self.store.commit(txn).await {
                Ok(_) => {
                    self.tell_addresses(node, &was, &next);
                    if result != ClaimResult::Elsewhere {
                        self.tell(node, by, from, result);
                    }
                    return Ok(result);
                }
                Err(StoreError::Conflict { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Err(StoreError::Conflict { key })
    }

    /// Records the addresses that fetched the boot script with the token. The token is bound to the
    /// first one; every other one is reported.
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

    fn tell_addresses(&self, node: &Node, was: &Enrollment, now: &Enrollment) {
        for from in now.elsewhere.iter().filter(|from| !was.elsewhere.contains(from)) {
            tracing::warn!(
                node = %node.name, %from,
                "a second address has the provision token of a node, and is refused"
            );
            let told = serde_json::json!({"from": from, "bound": now.bound});
            self.events.publish("provision.second-address", &format!("node/{}", node.name), told);
        }
    }

    fn tell(&self, node: &Node, by: KeyPrint, from: IpAddr, result: ClaimResult) {
        let kind = match result {
            ClaimResult::Quarantined => "provision.quarantined",
            _ => "provision.claimed",
        };
        let told = serde_json::json!({
            "generation": node.generation, "key": by.to_string(), "from": from,
        });
        self.events.publish(kind, &format!("node/{}", node.name), told);
    }
}

/// The enrollment after these fetches. Fetches with another token do not count.
fn with_fetches(enrollment: &Enrollment, sent: &SentScript, fits: Fits<'_>) -> Enrollment {
    let mut next = enrollment.clone();
    for from in sent.to.iter().filter(|_| enrollment.is_of(&sent.nonce)) {
        match next.seen_at(*from, fits(*from)) {
            Whereabouts::Bound(changed) | Whereabouts::Elsewhere(Some(changed)) => next = changed,
            Whereabouts::Here | Whereabouts::Elsewhere(None) => {}
        }
    }
    next
}

fn place(node: NodeId) -> Key {
    keys::enrollment(node)
}

fn text(enrollment: &Enrollment) -> Vec<u8> {
    serde_json::to_vec(enrollment).expect("a plain value")
}

fn read(record: &Record) -> Result<Enrollment, StoreError> {
    parsed(record, "an enrollment")
}

fn parsed<T: serde::de::DeserializeOwned>(record: &Record, what: &str) -> Result<T, StoreError> {
    serde_json::from_slice(&record.value).map_err(|error| StoreError::Damaged {
        detail: format!("`{}` is not {what}: {error}", record.key),
    })
}

#[cfg(test)]
mod tests {
    use hoist_site::site_key::KEY_BYTES;
    use jiff::Timestamp;
    use serde_json::json;

    use super::*;
    use hoist_chassis::clock::SystemClock;
    use hoist_testkit::stores::test_store;

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

    fn enrollments(store: &Arc<dyn Store>) -> Enrollments {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let events = EventBus::new(Arc::clone(store), Arc::clone(&clock));
        let audit = AuditLog::new(Arc::clone(store), Arc::clone(&clock));
        Enrollments::new(Arc::clone(store), SiteKey::new(&[3; KEY_BYTES]), audit, events, clock)
    }

    /// Stores the node as the inventory of any controller would.
    async fn keep(store: &Arc<dyn Store>, node: Option<&Node>) {
        let key = ResourceKey::Node(NodeId::from_bits(7)).to_key();
        let op = match node {
            Some(node) => Op::Put(key, serde_json::to_vec(node).unwrap()),
            None => Op::Delete(key),
        };
        store.commit(Txn { compares: Vec::new(), ops: vec![op] }).await.unwrap();
    }

    const FROM: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
    /// An enrollment by hand allows secrets without an address.
    const CLAIMED: ClaimResult = ClaimResult::Claimed { secrets_without_address: true };

    fn offer(token: &str, by: KeyPrint) -> Offer<'_> {
        Offer { token, by, from: FROM, fits: &|_| AddressFit::Own, sent: None }
    }

    fn seq(enrollments: &Enrollments) -> u64 {
        let id = enrollments.events.last_id();
        id.rsplit('.').next().unwrap().parse().unwrap()
    }

    #[tokio::test]
    async fn a_token_is_taken_by_one_key_on_whichever_controller() {
        let store: Arc<dyn Store> = test_store();
        keep(&store, Some(&node(1))).await;
        let one = enrollments(&store);
        let other = enrollments(&store);
        let first = KeyPrint([1; 32]);
        let second = KeyPrint([2; 32]);
        let guess = "0".repeat(32);
        assert_eq!(one.claim(&node(1), offer(&guess, first)).await.unwrap(), ClaimResult::Refused);
        let token = one.enroll(&node(1), Draft::default()).await.unwrap();
        let token = token.as_str();
        assert_eq!(
            other.claim(&node(1), offer(&guess, first)).await.unwrap(),
            ClaimResult::Refused
        );
        assert_eq!(seq(&other), 0, "guessing is no event");
        assert_eq!(one.claim(&node(1), offer(token, first)).await.unwrap(), CLAIMED);
        assert_eq!(other.claim(&node(1), offer(token, first)).await.unwrap(), CLAIMED);
        for _ in 0..2 {
            let late = other.claim(&node(1), offer(token, second)).await.unwrap();
            assert_eq!(late, ClaimResult::Quarantined);
        }
        for by in [first, second, KeyPrint([3; 32])] {
            let shown = Offer { fits: &|_| AddressFit::Foreign, ..offer(token, by) };
            assert_eq!(one.claim(&node(1), shown).await.unwrap(), ClaimResult::Elsewhere);
            let guessed = Offer { token: &guess, ..shown };
            assert_eq!(one.claim(&node(1), guessed).await.unwrap(), ClaimResult::Refused);
        }
        assert_eq!(
            (seq(&one), seq(&other)),
            (3, 1),
            "enrollment, claiming and a second address; the second key once"
        );
        assert_eq!(one.claim(&node(2), offer(token, first)).await.unwrap(), ClaimResult::Refused);
    }

    #[tokio::test]
    async fn enrolling_again_and_unenrolling_revoke_the_token() {
        let store: Arc<dyn Store> = test_store();
        keep(&store, Some(&node(1))).await;
        let enrollments = enrollments(&store);
        let key = KeyPrint([1; 32]);
        let before = enrollments.enroll(&node(1), Draft::default()).await.unwrap();
        let now = enrollments.enroll(&node(1), Draft::default()).await.unwrap();
        let claim =
            async |token: &NodeToken| enrollments.claim(&node(1), offer(token.as_str(), key)).await;
        assert_eq!(claim(&before).await.unwrap(), ClaimResult::Refused);
        assert_eq!(claim(&now).await.unwrap(), CLAIMED);
        enrollments.unenroll(&node(1), Draft::default()).await.unwrap();
        assert_eq!(claim(&now).await.unwrap(), ClaimResult::Refused);
    }

    #[tokio::test]
    async fn renewal_or_removal_elsewhere_revokes_the_token() {
        let store: Arc<dyn Store> = test_store();
        let enrollments = enrollments(&store);
        let first = KeyPrint([1; 32]);
        let mut disabled = node(1);
        disabled.spec.enabled = false;
        for is_claimed in [false, true] {
            for changed in [Some(node(2)), Some(disabled.clone()), None] {
                keep(&store, Some(&node(1))).await;
                let token = enrollments.enroll(&node(1), Draft::default()).await.unwrap();
                let claim = async || {
                    enrollments.claim(&node(1), offer(token.as_str(), first)).await.unwrap()
                };
                if is_claimed {
                    assert_eq!(claim().await, CLAIMED);
                }
                keep(&store, changed.as_ref()).await;
                assert_eq!(claim().await, ClaimResult::Refused, "{changed:?}");
                let late = enrollments.enroll(&node(1), Draft::default()).await;
                assert!(matches!(late, Err(AuditError::Store(StoreError::Conflict { .. }))));
            }
        }
    }

    #[tokio::test]
    async fn one_of_many_concurrent_keys_claims_an_enrollment() {
        let store: Arc<dyn Store> = test_store();
        keep(&store, Some(&node(1))).await;
        let enrollments = enrollments(&store);
        let token = enrollments.enroll(&node(1), Draft::default()).await.unwrap();
        let racing = (0..6_u8).map(|n| {
            let enrollments = enrollments.clone();
            let token = token.clone();
            tokio::spawn(async move {
                enrollments.claim(&node(1), offer(token.as_str(), KeyPrint([n; 32]))).await
            })
        });
        let racing: Vec<_> = racing.collect();
        let mut taken = 0;
        for one in racing {
            match one.await.unwrap() {
                Ok(ClaimResult::Claimed { .. }) => taken += 1,
                Ok(ClaimResult::Quarantined) => {}
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(taken, 1);
    }
}
