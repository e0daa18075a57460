//! Both sides on the loopback interface of this machine.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use hoist_cluster::beacon::{MAX_ANSWER_BYTES, Method, QUERY_BYTES, Signature};
use hoist_discovery::{AskError, AskOptions, Network, Responder, Selection, ask};
use hoist_testkit::eventually;
use hoist_testkit::machine::scratch::free_port;

use crate::cluster::{Cluster, discover, methods, options, query};

fn network() -> Network {
    let interfaces = Selection::Named(vec!["lo".to_owned()]);
    Network { interfaces, port: free_port(), ..Network::default() }
}

fn seed(network: &Network) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, network.port).into()
}

#[test]
fn seed_on_loopback_is_found() {
    let network = network();
    let cluster = Cluster::new(1, "lab");
    let (asking, responding) = options(network.clone());
    let asking = AskOptions { seeds: vec![seed(&network)], ..asking };
    let responder = cluster.respond(responding);
    let found = discover(&asking, &[cluster.pin]);
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].signature(), Some(&Signature::ValidUnderPin));
    assert!(methods(&found[0].claims[0]).contains(&Method::Seed), "{found:?}");
    responder.stop();
    assert!(discover(&asking, &[]).is_empty());
}

#[test]
fn query_without_any_interface_is_an_error() {
    let interfaces = Selection::Named(vec!["absent0".to_owned()]);
    let (asking, _) = options(Network { interfaces, ..network() });
    let error = ask(&asking, &query()).unwrap_err();
    assert!(matches!(error, AskError::NotSent { .. }));
    assert!(error.to_string().contains("absent0: no such interface"), "{error}");
}

#[test]
fn messages_other_than_queries_get_no_answer() {
    let network = network();
    let (_, responding) = options(network.clone());
    let responder = Cluster::new(1, "lab").respond(responding);
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let valid = query().encode();
    let wrong = [
        Vec::new(),
        vec![0; QUERY_BYTES],
        valid[..QUERY_BYTES - 1].to_vec(),
        [&valid[..], &[0]].concat(),
        vec![b'h'; 9000],
    ];
    for message in &wrong {
        socket.send_to(message, seed(&network)).unwrap();
    }
    let count = u64::try_from(wrong.len()).unwrap();
    eventually("malformed messages", || responder.counters().malformed == count);
    assert!(socket.recv(&mut [0; MAX_ANSWER_BYTES]).is_err());
    assert_eq!(responder.counters().answers, 0);
}

#[test]
fn answer_above_the_limit_is_not_sent() {
    let network = network();
    let (_, responding) = options(network.clone());
    let responder = Responder::start(responding, |_| Some(vec![0; MAX_ANSWER_BYTES + 1])).unwrap();
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    socket.send_to(&query().encode(), seed(&network)).unwrap();
    eventually("declined query", || responder.counters().declined == 1);
    assert_eq!(responder.counters().answers, 0);
}
