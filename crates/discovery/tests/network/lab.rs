//! Machines on one switch, each in a network namespace.
//!
//! The switch is in a namespace of the test, and the names of the machines are in a mount namespace
//! of the test. Both end with the thread of the test, however it ends: nothing is left on this
//! machine, and tests that run at the same time do not meet.

use std::fs::File;
use std::os::fd::AsFd;
use std::process::Command;

use hoist_testkit::machine::cloud_init::enter_own_network;
use hoist_testkit::{eventually, skip};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// A machine with the interface `eth0` at the switch: `10.77.0.NUMBER`, and a link-local address.
#[derive(Clone, Copy)]
pub(crate) struct Machine(pub(crate) u8);

/// Runs a test with machines 1 to `machines` at a switch.
pub(crate) fn with_machines(machines: u8, test: impl FnOnce() + Send) {
    if !rustix::process::geteuid().is_root() {
        return skip("network namespaces need root");
    }
    let run = || {
        enter_own_network().unwrap();
        // Hides the names of namespaces that this machine has.
        command("mount", "-t tmpfs none /run");
        command("ip", "link add switch type bridge mcast_snooping 0");
        command("ip", "link set switch up");
        for number in 1..=machines {
            Machine(number).add();
        }
        test();
    };
    let ended = std::thread::scope(|scope| scope.spawn(run).join());
    if let Err(panic) = ended {
        std::panic::resume_unwind(panic);
    }
}

/// Runs `ip` on the switch.
pub(crate) fn switch(arguments: &str) {
    command("ip", arguments);
}

impl Machine {
    /// Runs `act` as a program on the machine would run. Threads that it starts stay there.
    pub(crate) fn run<T: Send>(self, act: impl FnOnce() -> T + Send) -> T {
        let run = || {
            let namespace = File::open(format!("/run/netns/{}", self.name())).unwrap();
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            act()
        };
        let ended = std::thread::scope(|scope| scope.spawn(run).join());
        ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Runs `ip` on the machine.
    pub(crate) fn ip(self, arguments: &str) -> String {
        command("ip", &format!("-n {} {arguments}", self.name()))
    }

    /// Plugs `eth0` into the switch.
    pub(crate) fn plug(self) {
        let (name, port, number) = (self.name(), self.port(), self.0);
        command("ip", &format!("link add {port} type veth peer name eth0 netns {name}"));
        command("ip", &format!("link set {port} master switch up"));
        self.ip(&format!("addr add 10.77.0.{number}/24 broadcast + dev eth0"));
        self.ip("link set eth0 up");
        eventually("link-local address of eth0", || {
            let list = self.ip("-6 -o addr show dev eth0 scope link");
            list.contains("fe80") && !list.contains("tentative")
        });
    }

    /// Its port of the switch.
    pub(crate) fn port(self) -> String {
        format!("port{}", self.0)
    }

    fn name(self) -> String {
        format!("machine{}", self.0)
    }

    fn add(self) {
        command("ip", &format!("netns add {}", self.name()));
        // Addresses of IPv6 are usable at once: no other machine of the switch can have them.
        self.run(|| fs_err::write("/proc/sys/net/ipv6/conf/default/accept_dad", "0").unwrap());
        self.ip("link set lo up");
        self.plug();
    }
}

fn command(program: &str, arguments: &str) -> String {
    let output = Command::new(program).args(arguments.split(' ')).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments}: {error}");
    String::from_utf8(output.stdout).unwrap()
}
