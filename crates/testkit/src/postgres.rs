//! A real `PostgreSQL` on loopback, run by an unprivileged user as it insists on.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};

use crate::certificates;
use crate::scratch::{Scratch, free_port, program};

/// A cluster of its own (in `PostgreSQL`'s sense: a server and its data).
#[derive(Debug)]
pub struct PostgresServer {
    scratch: Scratch,
    port: u16,
    tls: bool,
    process: Mutex<Option<Child>>,
}

/// Long enough for initdb on a busy machine.
const START_TIMEOUT: Duration = Duration::from_mins(1);

impl PostgresServer {
    pub fn start() -> Self {
        Self::new(false)
    }

    /// Takes encrypted connections; [`PostgresServer::url`] asks for one.
    pub fn start_with_tls() -> Self {
        Self::new(true)
    }

    fn new(tls: bool) -> Self {
        let scratch = Scratch::new();
        let port = free_port();
        let server = Self { scratch, port, tls, process: Mutex::new(None) };
        server.make_cluster();
        if tls {
            server.make_certificates();
        }
        server.resume();
        server
    }

    /// The server all tests of this process share; use a schema of your own.
    pub fn shared() -> &'static Self {
        static SERVER: OnceLock<PostgresServer> = OnceLock::new();
        SERVER.get_or_init(Self::start)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// A store address on this server.
    pub fn url(&self, schema: &str) -> String {
        let url = format!("postgres://hoist@127.0.0.1:{}/postgres?schema={schema}", self.port);
        if !self.tls {
            return url;
        }
        let ca = self.scratch.dir().join("ca.pem");
        format!("{url}&sslmode=verify-full&sslrootcert={}", ca.display())
    }

    /// Runs statements as the owner of the cluster.
    pub fn execute(&self, sql: &str) {
        let port = self.port.to_string();
        let mut psql = Command::new(server_program("psql"));
        psql.args(["-h", "127.0.0.1", "-p", &port, "-U", "hoist", "-d", "postgres", "-c", sql]);
        let output = psql.output().expect("psql starts");
        assert!(output.status.success(), "{sql}: {output:?}");
    }

    /// SIGKILL to the server and its sessions, as a power cut would. A session that is left alone
    /// goes on answering until it notices, which takes a while on a busy machine.
    pub fn stop(&self) {
        let mut process = self.process.lock();
        if let Some(mut child) = process.take() {
            let sessions = children_of(child.id());
            child.kill().expect("our own child can be killed");
            child.wait().expect("a killed child ends");
            for session in sessions {
                // An error means that it is gone already.
                let _ = kill_process(session, Signal::KILL);
                while is_alive(session) {
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
            self.scratch.forget("postgres");
        }
    }

    /// Starts it again on the same data and port.
    pub fn resume(&self) {
        let mut process = self.process.lock();
        if process.is_some() {
            return;
        }
        let data = self.scratch.dir().join("data");
        let deadline = Instant::now() + START_TIMEOUT;
        // Sessions of a killed server hold its shared memory for a moment.
        let mut child = self.spawn(&data);
        while !self.is_ready() {
            assert!(
                Instant::now() < deadline,
                "PostgreSQL did not start:\n{}",
                self.scratch.log("postgres")
            );
            std::thread::sleep(Duration::from_millis(50));
            if child.try_wait().expect("our own child").is_some() {
                child = self.spawn(&data);
            }
        }
        *process = Some(child);
    }

    fn spawn(&self, data: &Path) -> Child {
        let mut command = unprivileged(&server_program("postgres"));
        command.arg("-D").arg(data).args([
            "-c",
            &format!("port={}", self.port),
            "-c",
            "listen_addresses=127.0.0.1",
            "-c",
            &format!("unix_socket_directories={}", data.display()),
        ]);
        if self.tls {
            let file = |name: &str| data.join(name).display().to_string();
            command.args(["-c", "ssl=on", "-c", &format!("ssl_cert_file={}", file("server.pem"))]);
            command.args(["-c", &format!("ssl_key_file={}", file("server.key"))]);
        }
        self.scratch.spawn("postgres", &mut command)
    }

    fn make_cluster(&self) {
        let data = self.scratch.dir().join("data");
        std::fs::create_dir(&data).expect("scratch is writable");
        if let Some((uid, gid)) = unprivileged_ids() {
            std::os::unix::fs::chown(&data, Some(uid), Some(gid)).expect("root may chown");
            let open = std::os::unix::fs::PermissionsExt::from_mode(0o711);
            std::fs::set_permissions(self.scratch.dir(), open).expect("our own directory");
        }
        let made = unprivileged(&server_program("initdb"))
            .arg("-D")
            .arg(&data)
            .args(["-A", "trust", "-U", "hoist", "-E", "UTF8", "--no-sync"])
            .current_dir("/")
            .stdin(Stdio::null())
            .output()
            .expect("initdb starts");
        assert!(made.status.success(), "initdb: {}", String::from_utf8_lossy(&made.stderr));
    }

    /// The server reads its key as its own user, and refuses a key that other users can read.
    fn make_certificates(&self) {
        let dir = self.scratch.dir();
        certificates::write(dir);
        for name in ["server.pem", "server.key"] {
            let file = dir.join("data").join(name);
            std::fs::copy(dir.join(name), &file).expect("scratch is writable");
            let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
            std::fs::set_permissions(&file, private).expect("our own file");
            if let Some((uid, gid)) = unprivileged_ids() {
                std::os::unix::fs::chown(&file, Some(uid), Some(gid)).expect("root may chown");
            }
        }
    }

    fn is_ready(&self) -> bool {
        Command::new(server_program("pg_isready"))
            .args(["-q", "-h", "127.0.0.1", "-p", &self.port.to_string()])
            .status()
            .is_ok_and(|status| status.success())
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Debian keeps the server's programs beside its versions, not on `PATH`.
fn server_program(name: &str) -> PathBuf {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let dirs: Vec<PathBuf> = versions.map(|entry| entry.path().join("bin")).collect();
    program(name, &dirs, "postgresql")
}

/// The server refuses root. Without root it runs as the user of the test.
fn unprivileged(program: &Path) -> Command {
    let Some((uid, gid)) = unprivileged_ids() else { return Command::new(program) };
    let mut command = Command::new("setpriv");
    command
        .arg(format!("--reuid={uid}"))
        .arg(format!("--regid={gid}"))
        .arg("--clear-groups")
        .arg(program)
        .current_dir("/");
    command
}

/// The unprivileged system user with the highest id, when we are root.
fn unprivileged_ids() -> Option<(u32, u32)> {
    rustix::process::geteuid().is_root().then_some((65534, 65534))
}

/// State and parent of a process.
fn status_of(pid: Pid) -> Option<(char, u32)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name of the program, in brackets, may have anything in it.
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ');
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

fn children_of(parent: u32) -> Vec<Pid> {
    let entries = std::fs::read_dir("/proc").expect("/proc is there").flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_child = |pid: &Pid| status_of(*pid).is_some_and(|(_, of)| of == parent);
    pids.filter_map(Pid::from_raw).filter(is_child).collect()
}

fn is_alive(pid: Pid) -> bool {
    status_of(pid).is_some_and(|(state, _)| state != 'Z')
}
