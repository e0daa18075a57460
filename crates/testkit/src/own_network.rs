//! A network of its own for a test that needs an address of this machine beside loopback.

use std::net::{IpAddr, Ipv4Addr};
use std::process::Command;

use crate::machine::cloud_init::enter_own_network;

/// An address that no machine has (RFC 5737).
const ADDRESS: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);

/// Runs a test on a network of its own, which has a loopback interface with a second address that is
/// no loopback address. Needs root.
///
/// The test runs on a thread of its own with a runtime of its own. Threads that it starts are on the
/// same network.
pub fn with_own_address<F: Future<Output = ()>>(test: impl FnOnce(IpAddr) -> F + Send) {
    let run = || {
        enter_own_network().expect("a network of its own; run the tests as root");
        let address = format!("{ADDRESS}/32");
        let mut ip = Command::new("ip");
        let status = ip.args(["address", "add", &address, "dev", "lo"]).status();
        assert!(status.expect("`ip` of package `iproute2`").success());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(test(ADDRESS.into()));
    };
    let ended = std::thread::scope(|scope| scope.spawn(run).join());
    if let Err(panic) = ended {
        std::panic::resume_unwind(panic);
    }
}
