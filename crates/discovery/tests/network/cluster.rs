//! Clusters that answer, and the expected parts of what an asker finds.

use std::collections::BTreeSet;
use std::time::Duration;

use aws_lc_rs::encoding::AsDer;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair};
use hoist_cluster::beacon::{
    Claim, ControllerAddress, DiscoveredCluster, FoundingState, Method, Query,
};
use hoist_cluster::id::{ClusterId, Pin};
use hoist_discovery::keys::sign_with_root;
use hoist_discovery::{
    AskOptions, BeaconIdentity, Network, Responder, ResponderOptions, Statement, ask, new_query,
};
use jiff::{Timestamp, ToSpan};

/// Long enough for all rounds on a busy machine.
const WINDOW: Duration = Duration::from_millis(900);

/// A cluster with a root key of its own.
pub(crate) struct Cluster {
    pub(crate) id: ClusterId,
    pub(crate) pin: Pin,
    name: &'static str,
    root_key: Vec<u8>,
    root_pkcs8: Vec<u8>,
}

impl Cluster {
    pub(crate) fn new(number: u8, name: &'static str) -> Self {
        let pair = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_ASN1_SIGNING).unwrap();
        let root_key = pair.public_key().as_der().unwrap().as_ref().to_vec();
        let root_pkcs8 = pair.to_pkcs8v1().unwrap().as_ref().to_vec();
        let (id, pin) = (ClusterId::from_random([number; 16]), Pin::of_key(&root_key));
        Self { id, pin, name, root_key, root_pkcs8 }
    }

    /// Starts a controller of this cluster on the network of the calling thread.
    pub(crate) fn respond(&self, options: ResponderOptions) -> Responder {
        let not_after = Timestamp::now() + 24.hours();
        let sign = |message: &[u8]| sign_with_root(&self.root_pkcs8, message).unwrap();
        let identity =
            BeaconIdentity::create(self.id, self.root_key.clone(), not_after, sign).unwrap();
        let statement = Statement {
            name: self.name.to_owned(),
            controllers: vec![ControllerAddress::new("controller.example", 8443).unwrap()],
            founding: FoundingState::Founded,
        };
        let answer = move |query: &Query| {
            let answer = identity.answer(query, &statement, Timestamp::now());
            answer.transpose().unwrap()
        };
        Responder::start(options, answer).unwrap()
    }
}

pub(crate) fn query() -> Query {
    new_query(None).unwrap()
}

/// Asks on the network of the calling thread.
pub(crate) fn discover(options: &AskOptions, pins: &[Pin]) -> Vec<DiscoveredCluster> {
    let query = query();
    let options = AskOptions { window: WINDOW, ..options.clone() };
    ask(&options, &query).unwrap().clusters(&query, pins, Timestamp::now())
}

/// Options with which both sides meet on these interfaces.
pub(crate) fn options(network: Network) -> (AskOptions, ResponderOptions) {
    let asking = AskOptions { network: network.clone(), ..AskOptions::default() };
    let rescan = Duration::from_millis(100);
    (asking, ResponderOptions { network, rescan, ..ResponderOptions::default() })
}

pub(crate) fn methods(claim: &Claim) -> Vec<Method> {
    let methods: BTreeSet<_> = claim.paths.iter().map(|path| path.method).collect();
    methods.into_iter().collect()
}
