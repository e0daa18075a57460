//! The program `hoist` as processes: `hoist serve`, and commands against it. Only tests of the
//! package `hoist` may use this, because cargo builds the program for no others.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::eventually::DEADLINE;

/// A `hoist serve` process on its own data directory.
#[derive(Debug)]
pub struct Controller {
    child: Child,
    data_dir: PathBuf,
    address: SocketAddr,
}

impl Controller {
    /// On any free port.
    pub fn start(data_dir: &Path, more: &[&str]) -> Self {
        Self::start_on(0, data_dir, more)
    }

    pub fn start_on(port: u16, data_dir: &Path, more: &[&str]) -> Self {
        let listen = format!("127.0.0.1:{port}");
        Self::start_with(data_dir, &[], &[&["--listen", &listen], more].concat())
    }

    /// With these environment variables. The flags or the variables must say where to listen.
    pub fn start_with(data_dir: &Path, environment: &[(&str, &str)], more: &[&str]) -> Self {
        let has_tls = more.contains(&"--tls-listen");
        let mut child = command(data_dir)
            .arg("serve")
            .args(if has_tls { &[][..] } else { &["--tls-listen", "off"] })
            .args(more)
            .envs(environment.iter().copied())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the program starts");
        let mut first = String::new();
        let mut lines = BufReader::new(child.stdout.take().expect("piped"));
        lines.read_line(&mut first).expect("the controller says where it listens");
        let address = first.trim_end().strip_prefix("listening on http://");
        let address = address.unwrap_or_else(|| panic!("{first:?}")).parse().expect("an address");
        // Keeps the pipe open and empty.
        std::thread::spawn(move || lines.lines().for_each(drop));
        Self { child, data_dir: data_dir.to_owned(), address }
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// A field of the process status that has a size, such as `VmHWM:`.
    pub fn memory_kib(&self, field: &str) -> u64 {
        let path = format!("/proc/{}/status", self.child.id());
        let status = fs_err::read_to_string(path).expect("the controller runs");
        let line = status.lines().find_map(|line| line.strip_prefix(field));
        let size = line.and_then(|line| line.trim().strip_suffix(" kB"));
        size.expect("the kernel knows it").parse().expect("a number")
    }

    pub fn hoist(&self, words: &[&str]) -> Output {
        hoist(&self.data_dir, words)
    }

    /// Runs a command that must succeed, and returns its output.
    pub fn does(&self, words: &[&str]) -> String {
        let output = self.hoist(words);
        assert!(output.status.success(), "hoist {words:?}: {output:?}");
        String::from_utf8(output.stdout).expect("text")
    }

    /// The names of the nodes; none as long as the controller has read neither store nor source.
    pub fn nodes(&self) -> Vec<String> {
        let output = self.hoist(&["node", "list", "-o", "name"]);
        if String::from_utf8_lossy(&output.stderr).contains("the nodes are not known yet") {
            return Vec::new();
        }
        assert!(output.status.success(), "hoist node list: {output:?}");
        let text = String::from_utf8(output.stdout).expect("text");
        text.lines().map(str::to_owned).collect()
    }

    /// Sends a request as a machine or a script would, on a connection of its own.
    pub fn ask(&self, method: &str, path: &str, token: Option<&str>, body: &str) -> Answer {
        let bearer = token.map(|token| format!("Authorization: Bearer {token}\r\n"));
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n{}\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            self.address,
            bearer.unwrap_or_default(),
            body.len()
        );
        let started = Instant::now();
        let mut stream = TcpStream::connect(self.address).expect("the controller listens");
        stream.set_read_timeout(Some(DEADLINE)).expect("a socket");
        stream.write_all(request.as_bytes()).expect("the controller reads");
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).expect("the controller answers");
        let took = started.elapsed();
        let text = String::from_utf8_lossy(&bytes);
        let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        Answer { status: status.expect("a status"), body: body.to_owned(), took }
    }

    pub fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, None, "")
    }

    pub fn admin_token(&self) -> String {
        let token = fs_err::read_to_string(self.data_dir.join("admin.token"));
        token.expect("the controller wrote one").trim().to_owned()
    }

    pub fn kill(mut self) {
        self.child.kill().expect("the controller runs");
        self.child.wait().expect("the controller ends");
    }

    /// Asks the controller to stop, and returns its exit code.
    pub fn terminate(mut self) -> Option<i32> {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args(["-TERM", &pid]).status().expect("kill starts");
        assert!(sent.success());
        self.child.wait().expect("the controller ends").code()
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        // An error means that the test ended it already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Gives a second controller the key of the site, as an operator does for controllers that share a
/// store.
pub fn share_key(from: &Path, to: &Path) {
    fs_err::create_dir_all(to.join("ca")).expect("the data directory is writable");
    // The marker, without which a directory with files in it is not accepted.
    for file in ["hoist.json", "ca/site.key"] {
        fs_err::copy(from.join(file), to.join(file)).expect("the first controller has started");
    }
}

/// An answer that ended with its connection. The body must be short and not chunked.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub body: String,
    pub took: Duration,
}

pub fn hoist(data_dir: &Path, words: &[&str]) -> Output {
    command(data_dir).args(words).stdin(Stdio::null()).output().expect("the program runs")
}

/// The program with no settings but the data directory.
fn command(data_dir: &Path) -> Command {
    let mut command = Command::new(program());
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("HOIST_")) {
        command.env_remove(name);
    }
    command.arg("--data-dir").arg(data_dir);
    command
}

/// The program that cargo built for this test: test programs lie in `deps` beside it.
pub fn program() -> PathBuf {
    let test = std::env::current_exe().expect("a test has a program");
    let built = test.parent().and_then(Path::parent).expect("a directory of cargo").join("hoist");
    assert!(
        built.is_file(),
        "`{}` is not built; run the tests of package `hoist`",
        built.display()
    );
    built
}
