//! The yardstick: nginx, doing as little as it can.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::cores::{self, Cores};
use crate::inside;

const START: Duration = Duration::from_secs(10);

/// Stopped when dropped.
#[derive(Debug)]
pub(crate) struct Nginx {
    child: Child,
    pub(crate) address: String,
    _dir: tempfile::TempDir,
}

impl Nginx {
    /// An nginx that answers every path with `size` bytes from its configuration, and those under
    /// `/files/` from `files`.
    pub(crate) fn start(cores: &Cores, size: usize, files: Option<&Files<'_>>) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        // Free a moment ago; no other process takes ports of this machine during the measurement.
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
        let config = configuration(dir.path(), &address, cores.count, size, files)?;
        let file = dir.path().join("nginx.conf");
        fs_err::File::create(&file)?.write_all(config.as_bytes())?;
        let child = cores::pinned(&cores.server, "nginx")
            .args(["-p", inside::path(dir.path())?, "-c", inside::path(&file)?])
            .args(["-e", "stderr"])
            .stdin(Stdio::null())
            .spawn()
            .context("nginx does not start; `make setup-bench` installs it")?;
        let nginx = Self { child, address, _dir: dir };
        let deadline = Instant::now() + START;
        while TcpStream::connect(&nginx.address).is_err() {
            ensure!(Instant::now() < deadline, "nginx does not listen on {}", nginx.address);
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(nginx)
    }
}

/// Files to serve, and how.
#[derive(Debug)]
pub(crate) struct Files<'a> {
    pub(crate) dir: &'a Path,
    pub(crate) sendfile: bool,
}

fn configuration(
    dir: &Path,
    address: &str,
    workers: usize,
    size: usize,
    files: Option<&Files<'_>>,
) -> Result<String> {
    let dir = inside::path(dir)?;
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|kind| format!("{kind}_temp_path {dir}/{kind};\n"))
        .concat();
    let files = match files {
        Some(Files { dir, sendfile }) => {
            let dir = inside::path(dir)?;
            let on = if *sendfile { "on" } else { "off" };
            format!("location /files/ {{ alias {dir}/; sendfile {on}; }}\n")
        }
        None => String::new(),
    };
    // The workers must be able to read this process's files.
    let user = if rustix::process::geteuid().is_root() { "user root;\n" } else { "" };
    let constant = "x".repeat(size);
    // As hoist does it, connections are left to the kernel until something was asked: without
    // `deferred` nginx answers fewer of them.
    Ok(format!(
        "{user}daemon off;\nworker_processes {workers};\npid {dir}/pid;\n\
         events {{ worker_connections 8192; }}\n\
         http {{\n{temporary}access_log off;\nkeepalive_requests 1000000000;\n\
         default_type text/plain;\n\
         server {{\nlisten {address} backlog=4096 deferred;\n{files}\
         location / {{ return 200 \"{constant}\"; }}\n}}\n}}\n"
    ))
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // Asked, so that it ends its workers too.
        let pid = rustix::process::Pid::from_child(&self.child);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ = self.child.wait();
    }
}
