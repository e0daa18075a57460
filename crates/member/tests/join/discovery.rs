//! The search for clusters, on the loopback interface.

use std::net::UdpSocket;
use std::time::Duration;

use aws_lc_rs::encoding::AsDer;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair};
use hoist_cluster::address::Address;
use hoist_cluster::beacon::{ControllerAddress, FoundingState};
use hoist_cluster::config::{ClusterConfig, DiscoveryMethod};
use hoist_cluster::detection::{Answer, Signature};
use hoist_cluster::id::{ClusterId, Pin};
use hoist_discovery::keys::sign_with_root;
use hoist_discovery::{BeaconIdentity, Network, Responder, ResponderOptions, Selection, Statement};
use hoist_member::bootstrap::Discovery;
use hoist_member::local_network::LocalNetwork;
use jiff::{Timestamp, ToSpan};

use crate::machine::Notes;

const CLUSTER: ClusterId = ClusterId::from_random([0xc1; 16]);

fn config() -> ClusterConfig {
    let free = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut config = ClusterConfig::default();
    config.discovery.port = Some(free.port());
    config.discovery.interfaces = vec!["lo".to_owned()];
    config.discovery.method = DiscoveryMethod::Seeds;
    config.discovery.seeds = vec!["127.0.0.1".parse().unwrap()];
    config
}

fn ask(config: &ClusterConfig, pins: &[Pin], notes: &Notes) -> Option<Vec<Answer>> {
    LocalNetwork::with_window(Duration::from_millis(600)).ask(Some(config), pins, notes)
}

/// A controller that answers on loopback, and its pin.
fn controller(config: &ClusterConfig) -> (Responder, Pin) {
    let root = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_ASN1_SIGNING).unwrap();
    let root_key = root.public_key().as_der().unwrap().as_ref().to_vec();
    let pkcs8 = root.to_pkcs8v1().unwrap().as_ref().to_vec();
    let pin = Pin::of_key(&root_key);
    let sign = |message: &[u8]| sign_with_root(&pkcs8, message).unwrap();
    let ends = Timestamp::now() + 24.hours();
    let identity = BeaconIdentity::create(CLUSTER, root_key, ends, sign).unwrap();
    let statement = Statement {
        name: "lab".to_owned(),
        controllers: vec![ControllerAddress::new("controller.example", 8443).unwrap()],
        founding: FoundingState::Founded,
    };
    let interfaces = Selection::Named(vec!["lo".to_owned()]);
    let port = config.discovery.port.unwrap();
    let network = Network { interfaces, port, ..Network::default() };
    let options = ResponderOptions { network, ..ResponderOptions::default() };
    let responder = Responder::start(options, move |query| {
        identity.answer(query, &statement, Timestamp::now()).transpose().unwrap()
    });
    (responder.unwrap(), pin)
}

#[test]
fn pins_decide_about_the_signature_of_an_answer() {
    let config = config();
    let (_responder, pin) = controller(&config);
    let other = Pin::of_key(b"another root");
    for (pins, signature) in [
        (vec![], Signature::Unverified),
        (vec![pin], Signature::Valid),
        (vec![other, pin], Signature::Valid),
        (vec![other], Signature::Invalid),
    ] {
        let answers = ask(&config, &pins, &Notes::default()).unwrap();
        let [answer] = answers.as_slice() else { panic!("{answers:?}") };
        assert_eq!((answer.cluster, answer.name.as_str()), (CLUSTER, "lab"));
        assert_eq!(answer.signature, signature, "{pins:?}");
        // The sender is an address too: a new node may have no DNS.
        let addresses: Vec<_> = answer.addresses.iter().map(Address::as_str).collect();
        assert_eq!(addresses, ["controller.example:8443", "127.0.0.1:8443"]);
    }
}

#[test]
fn silence_is_a_search_and_a_missing_interface_is_none() {
    let mut config = config();
    let notes = Notes::default();
    assert_eq!(ask(&config, &[], &notes), Some(Vec::new()));
    assert!(!notes.text().contains("warning"), "{}", notes.text());
    config.discovery.interfaces = vec!["absent0".to_owned()];
    assert_eq!(ask(&config, &[], &notes), None);
    let text = notes.text();
    assert!(text.contains("warning: the network was not searched: "), "{text}");
    assert!(text.contains("absent0: no such interface"), "{text}");
}
