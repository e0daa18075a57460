//! A directory for servers of a test, removed together with them however the test ends.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// A temporary directory and a small shell that outlives us.
///
/// Servers shared by all tests of a process sit in statics, which are never dropped. The shell
/// waits for its standard input to close, which happens when this value is dropped or the process
/// dies, even by SIGKILL. It then kills each process with a `.pid` file and removes the directory.
#[derive(Debug)]
pub struct Scratch {
    dir: PathBuf,
    reaper: Child,
}

const REAPER: &str = r#"
cat >/dev/null
for file in "$0"/*.pid; do [ -f "$file" ] && kill -9 "$(cat "$file")"; done
for try in 1 2 3 4 5; do rm -rf "$0" && break; sleep 0.2; done
"#;

impl Default for Scratch {
    fn default() -> Self {
        Self::new()
    }
}

impl Scratch {
    pub fn new() -> Self {
        use std::os::unix::process::CommandExt;
        let dir =
            tempfile::Builder::new().prefix("hoist-test-").tempdir().expect("temporary dir").keep();
        let reaper = Command::new("sh")
            .args(["-c", REAPER])
            .arg(&dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .expect("sh starts");
        Self { dir, reaper }
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Starts a server whose output goes to `<name>.log`, and notes its process id for the reaper.
    pub fn spawn(&self, name: &str, command: &mut Command) -> Child {
        use std::os::unix::process::CommandExt;
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.dir.join(format!("{name}.log")))
            .expect("log file");
        let child = command
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("second handle on the log"))
            .stderr(log)
            .process_group(0)
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {name}: {error}"));
        let pid_file = self.dir.join(format!("{name}.pid"));
        std::fs::write(pid_file, child.id().to_string()).expect("pid file");
        child
    }

    /// Forgets a server that has been stopped and waited for: its process id may be reused.
    pub fn forget(&self, name: &str) {
        let _ = std::fs::remove_file(self.dir.join(format!("{name}.pid")));
    }

    /// The log of the server, for messages of tests that could not start it.
    pub fn log(&self, name: &str) -> String {
        std::fs::read_to_string(self.dir.join(format!("{name}.log"))).unwrap_or_default()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        drop(self.reaper.stdin.take());
        let _ = self.reaper.wait();
    }
}

/// A loopback port that no other test program gets until this process ends. It lies below the range
/// that the kernel assigns by itself: a connection of another test could take a port of that range
/// before the server is up, or while it is stopped.
pub fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let start = std::process::id().wrapping_mul(PORTS_A_PROCESS);
    for _ in 0..PORTS.len() {
        let turn = start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let place = turn % u32::from(PORTS.end - PORTS.start);
        let port = PORTS.start + u16::try_from(place).expect("less than there are ports");
        if reserve(port) && std::net::TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
    panic!("no port of {PORTS:?} is free on loopback")
}

/// Locks the port's file for the life of this process. A bind alone does not reserve a port: two
/// programs could both find it free, and the second would talk to the server of the first.
fn reserve(port: u16) -> bool {
    let user = rustix::process::getuid().as_raw();
    let dir = std::env::temp_dir().join(format!("hoist-test-ports-{user}"));
    std::fs::create_dir_all(&dir).expect("a directory for the reserved ports");
    let file = std::fs::File::create(dir.join(port.to_string())).expect("the file of a port");
    let reserved = file.try_lock().is_ok();
    if reserved {
        // Never closed: the lock ends with the process.
        let _ = std::os::fd::IntoRawFd::into_raw_fd(file);
    }
    reserved
}

/// Below Linux's own range, which begins at 32768.
const PORTS: Range<u16> = 20_000..32_000;

/// Programs that run at the same time and have neighbouring ids take theirs far from each other.
const PORTS_A_PROCESS: u32 = 61;

/// The program on `PATH` or in one of `elsewhere`. A missing one fails the test, naming the package:
/// a test that passes because it did not run is worse than none.
pub fn program(name: &str, elsewhere: &[PathBuf], package: &str) -> PathBuf {
    find_program(name, elsewhere)
        .unwrap_or_else(|| panic!("`{name}` is not installed; this test needs package `{package}`"))
}

/// The program on `PATH` or in one of `elsewhere`.
pub fn find_program(name: &str, elsewhere: &[PathBuf]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(elsewhere.iter().cloned())
        .map(|dir| dir.join(name))
        .find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_that_a_program_has_is_not_given_to_another() {
        let port = free_port();
        assert!(!reserve(port), "port {port} was reserved twice");
    }
}
