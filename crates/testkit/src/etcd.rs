//! A real etcd on loopback, plain or with TLS and client certificates.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::certificates;
use crate::scratch::{Scratch, free_port, program};

/// One member of its own.
#[derive(Debug)]
pub struct EtcdServer {
    scratch: Scratch,
    port: u16,
    peer_port: u16,
    health_port: u16,
    tls: bool,
    name: String,
    /// `name=URL` of all members.
    members: String,
    quota: Option<u64>,
    process: Mutex<Option<Child>>,
}

/// An etcd takes seconds to come up on a busy machine, not minutes.
const START_TIMEOUT: Duration = Duration::from_secs(30);

impl EtcdServer {
    pub fn start() -> Self {
        Self::alone(false, None)
    }

    /// Refuses writes when its data has this many bytes.
    pub fn start_with_quota(bytes: u64) -> Self {
        Self::alone(false, Some(bytes))
    }

    /// The members of one cluster.
    pub fn start_cluster(count: usize) -> Vec<Self> {
        let mut servers: Vec<Self> =
            (0..count).map(|n| Self::prepare(format!("m{n}"), false, None)).collect();
        let members: Vec<String> = servers.iter().map(Self::member).collect();
        for server in &mut servers {
            server.members = members.join(",");
            // A member is healthy when most of them run.
            *server.process.lock() = Some(server.scratch.spawn("etcd", &mut server.command()));
        }
        for server in &servers {
            server.wait_until_healthy(server.process.lock().as_mut().expect("just started"));
        }
        servers
    }

    /// Clients need the certificate that [`EtcdServer::url`] names.
    pub fn start_with_tls() -> Self {
        Self::alone(true, None)
    }

    /// The server all tests of this process share; use a prefix of your own.
    pub fn shared() -> &'static Self {
        static SERVER: OnceLock<EtcdServer> = OnceLock::new();
        SERVER.get_or_init(Self::start).assert_running()
    }

    pub fn shared_with_tls() -> &'static Self {
        static SERVER: OnceLock<EtcdServer> = OnceLock::new();
        SERVER.get_or_init(Self::start_with_tls).assert_running()
    }

    fn prepare(name: String, tls: bool, quota: Option<u64>) -> Self {
        Self {
            scratch: Scratch::new(),
            port: free_port(),
            peer_port: free_port(),
            health_port: free_port(),
            tls,
            name,
            members: String::new(),
            quota,
            process: Mutex::new(None),
        }
    }

    fn member(&self) -> String {
        format!("{}=http://127.0.0.1:{}", self.name, self.peer_port)
    }

    fn alone(tls: bool, quota: Option<u64>) -> Self {
        let mut server = Self::prepare("test".to_owned(), tls, quota);
        server.members = server.member();
        if tls {
            certificates::write(server.scratch.dir());
        }
        server.resume();
        server
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// A store address on this server.
    pub fn url(&self, prefix: &str) -> String {
        if !self.tls {
            return format!("etcd://127.0.0.1:{}/{prefix}", self.port);
        }
        let file = |name: &str| self.file(name).display().to_string();
        format!(
            "etcds://127.0.0.1:{}/{prefix}?ca={}&cert={}&key={}",
            self.port,
            file("ca.pem"),
            file("client.pem"),
            file("client.key"),
        )
    }

    /// Switches on authentication, with `root` and this password. For good, on this server.
    pub fn demand_password(&self, password: &str) {
        assert!(!self.tls, "asked over plain HTTP");
        for (path, body) in [
            ("user/add", format!(r#"{{"name":"root","password":"{password}"}}"#)),
            ("role/add", r#"{"name":"root"}"#.to_owned()),
            ("user/grant", r#"{"user":"root","role":"root"}"#.to_owned()),
            ("enable", "{}".to_owned()),
        ] {
            self.post(path, "", &body);
        }
    }

    /// Gives `root` another password.
    pub fn change_password(&self, old: &str, new: &str) {
        let login = format!(r#"{{"name":"root","password":"{old}"}}"#);
        let answer = self.post("authenticate", "", &login);
        let token = answer.split(r#""token":""#).nth(1).and_then(|rest| rest.split('"').next());
        let token = format!("Authorization: {}\r\n", token.expect("a token"));
        let change = format!(r#"{{"name":"root","password":"{new}"}}"#);
        self.post("user/changepw", &token, &change);
    }

    fn post(&self, path: &str, header: &str, body: &str) -> String {
        let request = format!(
            "POST /v3/auth/{path} HTTP/1.0\r\n{header}Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let answer = ask(self.port, &request).expect("etcd answers");
        assert!(answer.contains("200 OK"), "{path}: {answer}");
        answer
    }

    /// SIGKILL, as a power cut would.
    pub fn stop(&self) {
        let mut process = self.process.lock();
        if let Some(mut child) = process.take() {
            child.kill().expect("our own child can be killed");
            child.wait().expect("a killed child ends");
            self.scratch.forget("etcd");
        }
    }

    /// SIGSTOP: the connections stay open without answers.
    pub fn freeze(&self) {
        let pid = self.signal(rustix::process::Signal::STOP);
        // Its threads stop one by one.
        let state = || std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        while !state().contains(") T ") {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub fn thaw(&self) {
        self.signal(rustix::process::Signal::CONT);
    }

    /// Starts it again on the same data and ports.
    pub fn resume(&self) {
        let mut process = self.process.lock();
        if process.is_none() {
            let mut child = self.scratch.spawn("etcd", &mut self.command());
            self.wait_until_healthy(&mut child);
            *process = Some(child);
        }
    }

    fn signal(&self, signal: rustix::process::Signal) -> u32 {
        let process = self.process.lock();
        let child = process.as_ref().expect("the server runs");
        let pid = rustix::process::Pid::from_child(child);
        rustix::process::kill_process(pid, signal).expect("our own child can be signalled");
        child.id()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.scratch.dir().join(name)
    }

    fn command(&self) -> Command {
        let etcd = program("etcd", &[PathBuf::from("/usr/bin")], "etcd-server");
        let scheme = if self.tls { "https" } else { "http" };
        let client = format!("{scheme}://127.0.0.1:{}", self.port);
        let peer = format!("http://127.0.0.1:{}", self.peer_port);
        let mut command = Command::new(etcd);
        command
            .args(["--name", &self.name, "--log-level", "error", "--data-dir"])
            .arg(self.file("data"))
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &self.members])
            .args(["--listen-metrics-urls", &format!("http://127.0.0.1:{}", self.health_port)]);
        if let Some(bytes) = self.quota {
            command.args(["--quota-backend-bytes", &bytes.to_string()]);
        }
        if self.tls {
            command.arg("--client-cert-auth");
            for (flag, file) in [
                ("--trusted-ca-file", "ca.pem"),
                ("--cert-file", "server.pem"),
                ("--key-file", "server.key"),
            ] {
                command.arg(flag).arg(self.file(file));
            }
        }
        command
    }

    fn wait_until_healthy(&self, child: &mut Child) {
        let deadline = Instant::now() + START_TIMEOUT;
        while !self.is_healthy() {
            self.assert_child_runs(child);
            assert!(Instant::now() < deadline, "etcd did not start:\n{}", self.scratch.log("etcd"));
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// A shared server that ended by itself is named as the cause, with its log: without this, every
    /// later test of the program would report only refused connections.
    fn assert_running(&'static self) -> &'static Self {
        if let Some(child) = self.process.lock().as_mut() {
            self.assert_child_runs(child);
        }
        self
    }

    fn assert_child_runs(&self, child: &mut Child) {
        let ended = child.try_wait().expect("our own child can be asked");
        assert!(ended.is_none(), "etcd ended ({ended:?}):\n{}", self.scratch.log("etcd"));
    }

    fn is_healthy(&self) -> bool {
        let answer = ask(self.health_port, "GET /health HTTP/1.0\r\n\r\n");
        answer.is_ok_and(|answer| answer.contains("\"health\":\"true\""))
    }
}

fn ask(port: u16, request: &str) -> std::io::Result<String> {
    let mut socket = TcpStream::connect(("127.0.0.1", port))?;
    socket.set_read_timeout(Some(Duration::from_secs(2)))?;
    socket.write_all(request.as_bytes())?;
    let mut answer = String::new();
    socket.read_to_string(&mut answer)?;
    Ok(answer)
}

impl Drop for EtcdServer {
    fn drop(&mut self) {
        self.stop();
    }
}
