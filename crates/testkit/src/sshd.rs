//! A real sshd on loopback, with keys and a home of its own.

use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::scratch::{Scratch, free_port};

const START_TIMEOUT: Duration = Duration::from_secs(30);

/// Clients with its key log in as the user of the test.
#[derive(Debug)]
pub struct SshServer {
    scratch: Scratch,
    port: u16,
    child: Child,
}

impl SshServer {
    pub fn start() -> Self {
        let scratch = Scratch::new();
        let port = free_port();
        let dir = scratch.dir();
        for name in ["host", "user"] {
            keygen(&dir.join(name));
        }
        std::fs::copy(dir.join("user.pub"), dir.join("authorized")).expect("a key");
        std::fs::create_dir(dir.join("home")).expect("a home");
        // Wanted by one that runs as root.
        let _ = std::fs::create_dir_all("/run/sshd");
        let path = |name: &str| dir.join(name).display().to_string();
        let config = format!(
            "Port {port}\nListenAddress 127.0.0.1\nHostKey {}\nAuthorizedKeysFile {}\nPidFile none\n\
             UsePAM no\nStrictModes no\nPasswordAuthentication no\nPermitRootLogin yes\n\
             SetEnv HOME={}\n",
            path("host"),
            path("authorized"),
            path("home"),
        );
        std::fs::write(dir.join("config"), config).expect("a file");
        let host = std::fs::read_to_string(dir.join("host.pub")).expect("a key");
        // A name that has to be quoted.
        std::fs::write(dir.join("known hosts"), format!("[127.0.0.1]:{port} {host}"))
            .expect("a file");
        let log = std::fs::File::create(dir.join("log")).expect("a file");
        let child = Command::new("/usr/sbin/sshd")
            .args(["-D", "-e", "-f"])
            .arg(dir.join("config"))
            .stdin(Stdio::null())
            .stderr(Stdio::from(log))
            .spawn()
            .expect("sshd (package openssh-server)");
        let server = Self { scratch, port, child };
        let begun = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(begun.elapsed() < START_TIMEOUT, "sshd never answered");
            std::thread::sleep(Duration::from_millis(20));
        }
        server
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// The key that is let in.
    pub fn key(&self) -> PathBuf {
        self.scratch.dir().join("user")
    }

    /// A file that knows this server and no other.
    pub fn known_hosts(&self) -> PathBuf {
        self.scratch.dir().join("known hosts")
    }

    /// A file in the home over there.
    pub fn file(&self, name: &str) -> PathBuf {
        self.scratch.dir().join("home").join(name)
    }
}

impl Drop for SshServer {
    fn drop(&mut self) {
        // Already gone, if it did not bear the test.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn keygen(path: &Path) {
    let made =
        Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(path).status();
    assert!(made.expect("ssh-keygen (package openssh-client)").success());
}
