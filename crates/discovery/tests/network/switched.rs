//! Machines on one switch, with the faults that networks have.

use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hoist_cluster::beacon::{InvalidReason, Method, Signature};
use hoist_discovery::{AnswerLimits, AskOptions, Network, ResponderOptions};
use hoist_testkit::eventually;

use crate::cluster::{Cluster, discover, methods, options, query};
use crate::lab::{Machine, switch, with_machines};

const ASKER: Machine = Machine(1);
const FIRST: Machine = Machine(2);
const SECOND: Machine = Machine(3);

fn defaults() -> (AskOptions, ResponderOptions) {
    options(Network::default())
}

#[test]
fn controller_answers_over_every_method() {
    with_machines(2, || {
        let cluster = Cluster::new(1, "lab");
        let (asking, responding) = defaults();
        let seeds = vec!["10.77.0.2:14647".parse().unwrap(), "10.99.0.1:14647".parse().unwrap()];
        let asking = AskOptions { seeds, ..asking };
        let responder = FIRST.run(|| cluster.respond(responding));
        assert_eq!(responder.interfaces(), ["eth0"]);
        let found = ASKER.run(|| discover(&asking, &[cluster.pin]));
        let [only] = &found[..] else { panic!("{found:?}") };
        assert_eq!((only.id, only.signature()), (cluster.id, Some(&Signature::ValidUnderPin)));
        let [claim] = &only.claims[..] else { panic!("{only:?}") };
        let all = [Method::MulticastV4, Method::MulticastV6, Method::Broadcast, Method::Seed];
        assert_eq!(methods(claim), all);
        assert!(claim.paths.iter().all(|path| path.interface == "eth0"));
        assert_eq!(claim.answer.controllers[0].to_string(), "controller.example:8443");
        assert!(responder.counters().answers >= 12, "{:?}", responder.counters());
    });
}

#[test]
fn asker_on_the_machine_of_the_controller_finds_it() {
    with_machines(1, || {
        let cluster = Cluster::new(1, "lab");
        let (asking, responding) = defaults();
        let _responder = ASKER.run(|| cluster.respond(responding));
        let found = ASKER.run(|| discover(&asking, &[]));
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].signature(), Some(&Signature::Unverified));
    });
}

#[test]
fn broadcast_passes_where_multicast_is_blocked() {
    with_machines(2, || {
        let cluster = Cluster::new(1, "lab");
        let (asking, responding) = defaults();
        let _responder = FIRST.run(|| cluster.respond(responding));
        switch(&format!("link set {} type bridge_slave mcast_flood off", FIRST.port()));
        let found = ASKER.run(|| discover(&asking, &[cluster.pin]));
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(methods(&found[0].claims[0]), [Method::Broadcast]);
    });
}

#[test]
fn one_way_link_finds_nothing_until_it_is_repaired() {
    with_machines(2, || {
        let cluster = Cluster::new(1, "lab");
        let (asking, responding) = defaults();
        FIRST.ip("-6 addr flush dev eth0");
        // Queries arrive, and answers leave for a machine that does not exist.
        FIRST.ip("neigh replace 10.77.0.1 lladdr 02:00:00:00:00:99 dev eth0 nud permanent");
        let responder = FIRST.run(|| cluster.respond(responding));
        assert!(ASKER.run(|| discover(&asking, &[])).is_empty());
        assert!(responder.counters().answers >= 3, "{:?}", responder.counters());
        FIRST.ip("neigh del 10.77.0.1 dev eth0");
        assert_eq!(ASKER.run(|| discover(&asking, &[])).len(), 1);
    });
}

#[test]
fn impostor_is_invalid_and_hides_nobody() {
    with_machines(3, || {
        let (real, impostor) = (Cluster::new(1, "lab"), Cluster::new(1, "lab"));
        let (asking, responding) = defaults();
        let _real = FIRST.run(|| real.respond(responding.clone()));
        let _impostor = SECOND.run(|| impostor.respond(responding));
        let found = ASKER.run(|| discover(&asking, &[real.pin]));
        let [only] = &found[..] else { panic!("{found:?}") };
        let signatures: Vec<_> =
            only.claims.iter().map(|claim| claim.verification.signature.clone()).collect();
        let reason = InvalidReason::OtherRoot { presented: impostor.pin };
        assert_eq!(signatures, [Signature::ValidUnderPin, Signature::Invalid { reason }]);
    });
}

#[test]
fn every_cluster_of_the_network_is_listed() {
    with_machines(3, || {
        let (one, other) = (Cluster::new(1, "lab"), Cluster::new(2, "office"));
        let (asking, responding) = defaults();
        let _one = FIRST.run(|| one.respond(responding.clone()));
        let _other = SECOND.run(|| other.respond(responding));
        let found = ASKER.run(|| discover(&asking, &[one.pin]));
        let ids: Vec<_> = found.iter().map(|cluster| cluster.id).collect();
        assert_eq!(ids, [one.id, other.id]);
        assert_eq!(found[0].signature(), Some(&Signature::ValidUnderPin));
        assert!(matches!(found[1].signature(), Some(Signature::Invalid { .. })));
    });
}

#[test]
fn flood_of_one_machine_does_not_silence_another() {
    with_machines(3, || {
        let cluster = Cluster::new(1, "lab");
        let (asking, responding) = defaults();
        let limits = AnswerLimits { per_source: 20, total: 200 };
        let options = ResponderOptions { limits, ..responding };
        let responder = FIRST.run(|| cluster.respond(options));
        let is_over = AtomicBool::new(false);
        let flood = || {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            while !is_over.load(Ordering::Relaxed) {
                for _ in 0..20 {
                    socket.send_to(&query().encode(), "10.77.0.2:14647").unwrap();
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        };
        let started = Instant::now();
        let found = std::thread::scope(|scope| {
            scope.spawn(|| SECOND.run(flood));
            eventually("limited queries", || responder.counters().limited > 100);
            let found = ASKER.run(|| discover(&asking, &[]));
            is_over.store(true, Ordering::Relaxed);
            found
        });
        assert_eq!(found.len(), 1, "{found:?}");
        let counters = responder.counters();
        // The two machines together, in each second that began.
        assert!(counters.answers <= 2 * 20 * (started.elapsed().as_secs() + 2), "{counters:?}");
    });
}

#[test]
fn source_beyond_a_router_gets_no_answer() {
    with_machines(2, || {
        let cluster = Cluster::new(1, "lab");
        let responder = FIRST.run(|| cluster.respond(defaults().1));
        ASKER.ip("addr add 10.99.0.1/24 dev eth0");
        FIRST.ip("route add 10.99.0.0/24 via 10.77.0.1");
        ASKER.run(|| {
            let socket = UdpSocket::bind("10.99.0.1:0").unwrap();
            socket.send_to(&query().encode(), "10.77.0.2:14647").unwrap();
        });
        eventually("query off the link", || responder.counters().off_link == 1);
        assert_eq!(responder.counters().answers, 0);
    });
}

#[test]
fn interface_that_is_made_again_is_joined_again() {
    with_machines(2, || {
        let cluster = Cluster::new(1, "lab");
        let (asking, responding) = defaults();
        let responder = FIRST.run(|| cluster.respond(responding));
        switch(&format!("link del {}", FIRST.port()));
        eventually("interfaces", || responder.interfaces().is_empty());
        FIRST.plug();
        eventually("interfaces", || responder.interfaces() == ["eth0"]);
        let found = ASKER.run(|| discover(&asking, &[]));
        let methods = found.first().map(|cluster| methods(&cluster.claims[0]));
        let all = [Method::MulticastV4, Method::MulticastV6, Method::Broadcast];
        assert_eq!(methods.as_deref(), Some(&all[..]), "{:?}", responder.problems());
    });
}
