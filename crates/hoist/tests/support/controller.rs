//! The real program as processes: `hoist serve`, and commands against it.

#![allow(dead_code, reason = "several test binaries share it, and none uses all of it")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const HOIST: &str = env!("CARGO_BIN_EXE_hoist");

/// Long enough for a busy machine, short enough to notice that something hangs.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);

/// A `hoist serve` process on its own data directory.
pub(crate) struct Controller {
    child: Child,
    data_dir: PathBuf,
    address: SocketAddr,
}

impl Controller {
    /// On any free port.
    pub(crate) fn start(data_dir: &Path, more: &[&str]) -> Self {
        Self::start_on(0, data_dir, more)
    }

    pub(crate) fn start_on(port: u16, data_dir: &Path, more: &[&str]) -> Self {
        let has_tls = more.contains(&"--tls-listen");
        let mut child = command(data_dir)
            .args(["serve", "--listen", &format!("127.0.0.1:{port}")])
            .args(if has_tls { &[][..] } else { &["--tls-listen", "off"] })
            .args(more)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the program starts");
        let mut first = String::new();
        let mut lines = BufReader::new(child.stdout.take().expect("piped"));
        lines.read_line(&mut first).expect("it says where it listens");
        let address = first.trim_end().strip_prefix("listening on http://");
        let address = address.unwrap_or_else(|| panic!("{first:?}")).parse().expect("an address");
        // Keeps the pipe open and empty.
        std::thread::spawn(move || lines.lines().for_each(drop));
        Self { child, data_dir: data_dir.to_owned(), address }
    }

    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }

    pub(crate) fn hoist(&self, words: &[&str]) -> Output {
        hoist(&self.data_dir, words)
    }

    /// Runs a command that must succeed; gives its output.
    pub(crate) fn does(&self, words: &[&str]) -> String {
        let output = self.hoist(words);
        assert!(output.status.success(), "hoist {words:?}: {output:?}");
        String::from_utf8(output.stdout).expect("text")
    }

    pub(crate) fn nodes(&self) -> Vec<String> {
        self.does(&["node", "list", "-o", "name"]).lines().map(str::to_owned).collect()
    }

    /// Asks as a machine or a script would, on a connection of its own.
    pub(crate) fn ask(&self, method: &str, path: &str, token: Option<&str>, body: &str) -> Answer {
        let bearer = token.map(|token| format!("Authorization: Bearer {token}\r\n"));
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n{}\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            self.address,
            bearer.unwrap_or_default(),
            body.len()
        );
        let started = Instant::now();
        let mut stream = TcpStream::connect(self.address).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
        stream.write_all(request.as_bytes()).expect("it reads");
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).expect("it answers");
        let took = started.elapsed();
        let text = String::from_utf8_lossy(&bytes);
        let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        Answer { status: status.expect("a status"), body: body.to_owned(), took }
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, None, "")
    }

    pub(crate) fn admin_token(&self) -> String {
        let token = std::fs::read_to_string(self.data_dir.join("admin.token"));
        token.expect("it made one").trim().to_owned()
    }

    pub(crate) fn kill(mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it ended");
    }

    /// Asks it to stop; gives the exit code.
    pub(crate) fn terminate(mut self) -> Option<i32> {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args(["-TERM", &pid]).status().expect("kill is there");
        assert!(sent.success());
        self.child.wait().expect("it ended").code()
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        // Already gone, if the test ended it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What an operator does for a second controller on the same store.
pub(crate) fn share_key(from: &Path, to: &Path) {
    drop(hoist_server::data_dir::DataDir::open(to).expect("a data directory"));
    std::fs::create_dir_all(to.join("ca")).expect("a directory");
    std::fs::copy(from.join("ca/site.key"), to.join("ca/site.key")).expect("the site's key");
}

/// An answer that ended with its connection. Bodies of the tests are short and not chunked.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: String,
    pub(crate) took: Duration,
}

pub(crate) fn hoist(data_dir: &Path, words: &[&str]) -> Output {
    command(data_dir).args(words).stdin(Stdio::null()).output().expect("the program runs")
}

/// The program with nothing of our settings but the data directory.
fn command(data_dir: &Path) -> Command {
    let mut command = Command::new(HOIST);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("HOIST_")) {
        command.env_remove(name);
    }
    command.arg("--data-dir").arg(data_dir);
    command
}

pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "it never came to pass: {what}");
        std::thread::sleep(Duration::from_millis(100));
    }
}
