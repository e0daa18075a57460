//! The part of a controller that a provisioning agent talks to: one job over TLS, recorded messages,
//! and files by plain HTTP.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hoist_machine::HOST;
use parking_lot::{Mutex, MutexGuard};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls_pki_types::PrivateKeyDer;
use serde_json::{Value, json};

use crate::eventually;

/// A virtual machine that was switched off leaves its connections open.
const SOCKET_TIMEOUT: Duration = Duration::from_mins(1);

/// The agent reads the answer that ends it on another connection than the image, and shows no sign
/// of it. The image must come later, because it is written faster than the answer is read.
const TOLD: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
struct State {
    /// The document of the job. Without one the agent is told to wait.
    document: Option<Value>,
    /// The values of the document's secret references.
    secrets: Value,
    job_requests: Vec<Value>,
    events: Vec<Value>,
    reports: Vec<Value>,
    files: HashMap<String, Vec<u8>>,
    /// How many more events are left unanswered.
    away: usize,
    directive: Option<&'static str>,
    /// The problem code of the refusal that every message of the agent gets.
    refusal: Option<&'static str>,
    /// Whether the image is held back until the agent was told to end.
    is_held: bool,
    /// The backups that agents sent, and whether disks are to be restored from them.
    backups: Vec<Value>,
    is_undo: bool,
    then: Option<&'static str>,
}

#[derive(Debug)]
pub struct AgentController {
    state: Arc<Mutex<State>>,
    pub port: u16,
    pub plain_port: u16,
}

impl AgentController {
    /// Starts on two loopback ports, and writes the authority of its certificate to `ca`.
    pub fn start(ca: &Path) -> Self {
        let state = Arc::new(Mutex::new(State::default()));
        let config = Arc::new(tls_config(ca));
        let port = listen(&state, move |stream, state| {
            let connection = rustls::ServerConnection::new(Arc::clone(&config))
                .expect("a complete configuration");
            let mut stream = rustls::StreamOwned::new(connection, stream);
            let _ = serve(&mut stream, state);
            stream.conn.send_close_notify();
            let _ = stream.flush();
        });
        let plain_port = listen(&state, |mut stream, state| {
            let _ = serve(&mut stream, state);
        });
        Self { state, port, plain_port }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Sets the document of the job.
    pub fn set_job(&self, document: Value) {
        self.state().document = Some(document);
    }

    /// Sets the values of the secret references.
    pub fn tell(&self, secrets: Value) {
        self.state().secrets = secrets;
    }

    /// Serves a file, and returns its URL for a machine that reaches us as `host`.
    pub fn file(&self, host: &str, name: &str, content: Vec<u8>) -> String {
        self.state().files.insert(format!("/{name}"), content);
        format!("http://{host}:{}/{name}", self.plain_port)
    }

    /// Tells the agent to end. The image is held back until the agent was told.
    pub fn abort(&self) {
        let mut state = self.state();
        state.directive = Some("abort");
        state.is_held = true;
    }

    /// Refuses every message of the agent with this code. The image is held back until then.
    pub fn refuse(&self, code: &'static str) {
        let mut state = self.state();
        state.refusal = Some(code);
        state.is_held = true;
    }

    /// Leaves so many messages of the agent unanswered.
    pub fn be_away(&self, times: usize) {
        self.state().away = times;
    }

    /// Sets the answers to events and to the report.
    pub fn answer(&self, directive: &'static str, then: &'static str) {
        let mut state = self.state();
        state.directive = Some(directive);
        state.then = Some(then);
    }

    /// The requests for a job so far.
    pub fn job_requests(&self) -> Vec<Value> {
        self.state().job_requests.clone()
    }

    pub fn backups(&self) -> Vec<Value> {
        self.state().backups.clone()
    }

    /// Turns the job into an undo: disks are restored from the backups.
    pub fn undo(&self) {
        self.state().is_undo = true;
    }

    pub fn events(&self) -> Vec<Value> {
        self.state().events.clone()
    }

    pub fn reports(&self) -> Vec<Value> {
        self.state().reports.clone()
    }
}

fn listen(
    state: &Arc<Mutex<State>>,
    talk: impl Fn(TcpStream, &Mutex<State>) + Send + Sync + 'static,
) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a loopback port");
    let port = listener.local_addr().expect("bound").port();
    let state = Arc::clone(state);
    let talk = Arc::new(talk);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let state = Arc::clone(&state);
            let talk = Arc::clone(&talk);
            stream.set_read_timeout(Some(SOCKET_TIMEOUT)).expect("a socket");
            stream.set_write_timeout(Some(SOCKET_TIMEOUT)).expect("a socket");
            std::thread::spawn(move || talk(stream, &state));
        }
    });
    port
}

fn tls_config(ca: &Path) -> rustls::ServerConfig {
    let mut params = CertificateParams::new(Vec::new()).expect("no names to check");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().expect("a key");
    let authority = params.self_signed(&key).expect("an authority");
    fs_err::write(ca, authority.pem()).expect("the directory is writable");
    let issuer = Issuer::new(params, key);
    let key = KeyPair::generate().expect("a key");
    let names = vec![HOST.to_owned(), "127.0.0.1".to_owned()];
    let mut params = CertificateParams::new(names).expect("valid names");
    params.not_before = rcgen::date_time_ymd(2020, 1, 1);
    let certificate = params.signed_by(&key, &issuer).expect("a certificate");
    let key = PrivateKeyDer::try_from(key.serialize_der()).expect("a key");
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the provider has them")
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)
        .expect("the key of the certificate")
}

/// Answers the requests of one connection until the client closes it.
fn serve(stream: &mut (impl Read + Write), state: &Mutex<State>) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if reader.read_line(&mut head)? == 0 {
                return Ok(());
            }
        }
        let value = |name: &str| {
            let line = head.lines().find(|line| line.to_lowercase().starts_with(name))?;
            Some(line[name.len()..].trim().to_owned())
        };
        let length = value("content-length:").and_then(|length| length.parse().ok()).unwrap_or(0);
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
        let from = value("range:").and_then(|range| {
            range.strip_prefix("bytes=")?.trim_end_matches('-').parse::<usize>().ok()
        });
        let session = value("authorization:");
        let answer = answer(&path, from, session.as_deref(), &body, state);
        let Some((status, more, body)) = answer else { return Ok(()) };
        let stream = reader.get_mut();
        let date = jiff::fmt::rfc2822::to_string(&jiff::Zoned::now()).expect("a date");
        write!(stream, "HTTP/1.1 {status}\r\ndate: {date}\r\n{more}")?;
        write!(stream, "content-length: {}\r\n\r\n", body.len())?;
        if path == "/root.img.zst" && is_ending(state) {
            // The head goes out at once: the agent checks that the image exists before it starts.
            stream.flush()?;
            eventually("agent is told to end", || !state.lock().is_held);
            std::thread::sleep(TOLD);
        }
        stream.write_all(&body)?;
        stream.flush()?;
    }
}

/// Whether the agent is to be told that it must end.
fn is_ending(state: &Mutex<State>) -> bool {
    let state = state.lock();
    state.directive == Some("abort") || state.refusal.is_some()
}

#[expect(clippy::unnecessary_wraps, reason = "every answer is optional")]
fn forbidden(code: &str) -> Option<Answer> {
    let problem = json!({
        "type": format!("urn:hoist:problem:{code}"), "title": "Not allowed", "status": 403,
        "detail": "go away",
    });
    Some(("403 Forbidden", String::new(), problem.to_string().into_bytes()))
}

type Answer = (&'static str, String, Vec<u8>);

/// The answer; `None` ends the connection without one.
fn answer(
    path: &str,
    from: Option<usize>,
    session: Option<&str>,
    body: &[u8],
    state: &Mutex<State>,
) -> Option<Answer> {
    let mut state = state.lock();
    let json = |value: &Value| Some(("200 OK", String::new(), value.to_string().into_bytes()));
    if let Some(file) = state.files.get(path) {
        let Some(from) = from else { return Some(("200 OK", String::new(), file.clone())) };
        let range = format!("content-range: bytes {from}-{}/{}\r\n", file.len() - 1, file.len());
        return Some(("206 Partial Content", range, file[from..].to_vec()));
    }
    let said: Value = serde_json::from_slice(body).unwrap_or_default();
    if path == "/provision/v1/agent/job" {
        state.job_requests.push(said.clone());
        let Some(document) = &state.document else {
            let problem = json!({
                "type": "urn:hoist:problem:held", "title": "Not yet", "status": 503,
                "detail": "no provisioning job for `n1`", "remedy": "hoist provision start node:n1",
            });
            let body = problem.to_string().into_bytes();
            return Some(("503 Service Unavailable", String::new(), body));
        };
        let mut job = json!({
            "run": "r1", "session": "s1", "node": "n1", "id": said["node"], "generation": 1,
            "document": document, "secrets": state.secrets.as_object().cloned().unwrap_or_default(),
        });
        if state.is_undo {
            job["undo"] = json!(state.backups);
        }
        return json(&job);
    }
    if session != Some("Bearer s1") {
        return Some(("401 Unauthorized", String::new(), Vec::new()));
    }
    match path {
        "/provision/v1/agent/runs/r1/events" => {
            if state.away > 0 {
                state.away -= 1;
                return None;
            }
            if let Some(code) = state.refusal {
                state.is_held = false;
                return forbidden(code);
            }
            let events = said["events"].as_array().cloned().unwrap_or_default();
            state.events.extend(events);
            state.is_held = false;
            json(&json!({"directive": state.directive.unwrap_or("continue")}))
        }
        "/provision/v1/agent/runs/r1/backup" => {
            state.backups.push(said);
            json(&json!({"bytes": body.len()}))
        }
        "/provision/v1/agent/runs/r1/report" => {
            state.reports.push(said);
            if let Some(code) = state.refusal {
                return forbidden(code);
            }
            json(&json!({"then": state.then.unwrap_or("reboot")}))
        }
        _ => Some(("404 Not Found", String::new(), Vec::new())),
    }
}
