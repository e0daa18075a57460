//! All answers to one query, grouped by cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use super::answer::Answer;
use super::verification::{Signature, Verification};
use crate::id::{ClusterId, Pin};

/// The way in which a query was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Method {
    MulticastV4,
    MulticastV6,
    Broadcast,
    /// To an address that the caller named.
    Seed,
}

/// The way on which an answer came.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Path {
    pub method: Method,
    /// The interface of this machine that sent the query.
    pub interface: String,
    pub source: SocketAddr,
}

/// An answer after its verification.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckedAnswer {
    pub answer: Answer,
    pub verification: Verification,
    pub path: Path,
}

/// One statement about a cluster, with all ways on which it came. Nonce, time and beacon key may
/// differ between the answers of a claim; the latest answer stands for all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    pub answer: Answer,
    pub verification: Verification,
    pub paths: BTreeSet<Path>,
}

/// A cluster that answered, or something that uses its id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiscoveredCluster {
    pub id: ClusterId,
    /// Those with the best signatures are first. A forged answer is a claim of its own: it never
    /// changes a valid one.
    pub claims: Vec<Claim>,
}

impl Method {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::MulticastV4 => "multicast v4",
            Self::MulticastV6 => "multicast v6",
            Self::Broadcast => "broadcast",
            Self::Seed => "unicast seed",
        }
    }
}

impl DiscoveredCluster {
    /// The best signature of all claims.
    pub fn signature(&self) -> Option<&Signature> {
        self.claims.first().map(|claim| &claim.verification.signature)
    }
}

/// Groups answers by cluster, and within a cluster by statement.
pub fn collect(answers: impl IntoIterator<Item = CheckedAnswer>) -> Vec<DiscoveredCluster> {
    let mut clusters: BTreeMap<ClusterId, Vec<Claim>> = BTreeMap::new();
    for CheckedAnswer { answer, verification, path } in answers {
        let claims = clusters.entry(answer.cluster).or_default();
        match claims.iter_mut().find(|claim| claim.agrees_with(&answer, &verification)) {
            Some(claim) => {
                claim.paths.insert(path);
                if claim.answer.time < answer.time {
                    claim.answer = answer;
                    claim.verification = verification;
                }
            }
            None => claims.push(Claim { answer, verification, paths: BTreeSet::from([path]) }),
        }
    }
    clusters
        .into_iter()
        .map(|(id, claims)| DiscoveredCluster { id, claims: sorted(claims) })
        .collect()
}

/// The order must not depend on the order of arrival.
fn sorted(mut claims: Vec<Claim>) -> Vec<Claim> {
    claims.sort_by_cached_key(|claim| {
        let Answer { name, controllers, founding, root_key, .. } = &claim.answer;
        let signature = claim.verification.signature.clone();
        (signature, name.clone(), controllers.clone(), *founding, Pin::of_key(root_key))
    });
    claims
}

impl Claim {
    fn agrees_with(&self, answer: &Answer, verification: &Verification) -> bool {
        self.verification.signature == verification.signature
            && self.answer.root_key == answer.root_key
            && self.answer.name == answer.name
            && self.answer.controllers == answer.controllers
            && self.answer.founding == answer.founding
    }
}

#[cfg(test)]
mod tests {
    use jiff::{SignedDuration, ToSpan};

    use super::super::answer::tests::example;
    use super::*;
    use crate::beacon::InvalidReason;

    fn checked(answer: Answer, method: Method, signature: Signature) -> CheckedAnswer {
        let source = "10.0.0.1:14647".parse().unwrap();
        CheckedAnswer {
            answer,
            verification: Verification { signature, skew: SignedDuration::ZERO },
            path: Path { method, interface: "eth0".to_owned(), source },
        }
    }

    #[test]
    fn repeated_answers_are_one_claim_with_all_paths() {
        let first = example();
        let mut later = first.clone();
        later.time += 2.seconds();
        let valid = || Signature::ValidUnderPin;
        let clusters = collect([
            checked(first.clone(), Method::Broadcast, valid()),
            checked(later.clone(), Method::MulticastV4, valid()),
            checked(first, Method::MulticastV4, valid()),
        ]);
        assert_eq!(clusters.len(), 1);
        let [claim] = &clusters[0].claims[..] else { panic!("{clusters:?}") };
        let methods: Vec<_> = claim.paths.iter().map(|path| path.method).collect();
        assert_eq!(methods, [Method::MulticastV4, Method::Broadcast]);
        assert_eq!(claim.answer, later);
    }

    #[test]
    fn forged_answer_is_a_claim_of_its_own_and_last() {
        let real = example();
        let mut forged = real.clone();
        forged.root_key = vec![0xbb; 91];
        forged.time += 1.hour();
        let reason = InvalidReason::OtherRoot { presented: Pin::of_key(&forged.root_key) };
        let invalid = Signature::Invalid { reason };
        let clusters = collect([
            checked(forged, Method::MulticastV4, invalid.clone()),
            checked(real.clone(), Method::MulticastV4, Signature::ValidUnderPin),
        ]);
        assert_eq!(clusters.len(), 1);
        assert_eq!(clusters[0].signature(), Some(&Signature::ValidUnderPin));
        assert_eq!(clusters[0].claims[0].answer, real);
        assert_eq!(clusters[0].claims[1].verification.signature, invalid);
    }

    #[test]
    fn every_cluster_is_listed() {
        let one = example();
        let other = Answer { cluster: ClusterId::from_random([0xc2; 16]), ..one.clone() };
        let clusters = collect([
            checked(other.clone(), Method::Seed, Signature::Unverified),
            checked(one.clone(), Method::Seed, Signature::Unverified),
        ]);
        let ids: Vec<_> = clusters.iter().map(|cluster| cluster.id).collect();
        assert_eq!(ids, [one.cluster, other.cluster]);
    }
}
