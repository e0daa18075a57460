//! Machines in network namespaces, connected by one switch. Each has a host name of its own.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::process::{Pid, Signal, kill_process};

/// Runs `ip`, which must succeed.
fn ip(words: &[&str]) {
    let ended = Command::new("ip").args(words).output().expect("`ip` of package `iproute2`");
    assert!(ended.status.success(), "ip {words:?}: {ended:?}");
}

/// A switch in a namespace of its own: nothing of it can be seen on the host.
#[derive(Debug)]
pub(crate) struct Switch {
    namespace: String,
}

impl Switch {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let namespace = format!("hoist{}-{number}", std::process::id());
        ip(&["netns", "add", &namespace]);
        let switch = Self { namespace };
        let inside = ["-n", &switch.namespace, "link"];
        ip(&[&inside[..], &["add", "switch", "type", "bridge"]].concat());
        ip(&[&inside[..], &["set", "switch", "up"]].concat());
        switch
    }

    /// Connects a machine with the address `10.77.0.NUMBER`.
    pub(crate) fn machine(&self, name: &str, number: u8, dir: &Path) -> Machine {
        let namespace = format!("{}-{name}", self.namespace);
        let address = format!("10.77.0.{number}");
        ip(&["netns", "add", &namespace]);
        let machine =
            Machine { name: name.to_owned(), address, namespace, state_dir: dir.join(name) };
        let port = format!("port{number}");
        let pair = ["type", "veth", "peer", "name", "eth0", "netns", &machine.namespace];
        ip(&[&["-n", &self.namespace, "link", "add", &port][..], &pair].concat());
        ip(&["-n", &self.namespace, "link", "set", &port, "master", "switch", "up"]);
        let cidr = format!("{}/24", machine.address);
        ip(&["-n", &machine.namespace, "address", "add", &cidr, "broadcast", "+", "dev", "eth0"]);
        for link in ["lo", "eth0"] {
            ip(&["-n", &machine.namespace, "link", "set", link, "up"]);
        }
        machine
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        remove(&self.namespace);
    }
}

/// Its links go with it. An error must not hide the one of the test.
fn remove(namespace: &str) {
    let _ = Command::new("ip").args(["netns", "del", namespace]).output();
}

#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) name: String,
    pub(crate) address: String,
    namespace: String,
    /// Of its agent.
    pub(crate) state_dir: PathBuf,
}

impl Machine {
    /// A program on this machine, without settings of the one who runs the test.
    pub(crate) fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespace, "unshare", "--uts", "sh", "-c"]);
        command.args(["hostname \"$0\" && exec \"$@\"", &self.name]).arg(program);
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("HOIST_")) {
            command.env_remove(name);
        }
        command.stdin(Stdio::null());
        command
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        remove(&self.namespace);
    }
}

/// A program that runs until it is killed, or until the test ends.
#[derive(Debug)]
pub(crate) struct Running(Option<Child>);

impl Running {
    pub(crate) fn start(command: &mut Command) -> Self {
        Self::of(command.spawn().expect("the program starts"))
    }

    pub(crate) fn of(child: Child) -> Self {
        Self(Some(child))
    }

    /// As `kill -9` does it.
    pub(crate) fn kill(mut self) {
        let mut child = self.0.take().expect("not ended yet");
        child.kill().expect("it runs");
        child.wait().expect("it ends");
    }

    /// As Ctrl-C does it.
    pub(crate) fn interrupt(&self) {
        let child = Pid::from_child(self.0.as_ref().expect("not ended yet"));
        kill_process(child, Signal::INT).expect("it runs");
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        let child = self.0.as_mut().expect("not ended yet");
        child.try_wait().expect("a child").is_some()
    }

    /// Waits for the end of a program with output that was piped.
    pub(crate) fn output(mut self) -> Output {
        let child = self.0.take().expect("not ended yet");
        child.wait_with_output().expect("it ends")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            // An error means that it has ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
