//! A controller as small as it gets: one order, kept words, over TLS; and images by plain HTTP.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use hoist_machine::HOST;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls_pki_types::PrivateKeyDer;
use serde_json::{Value, json};

/// A guest that was switched off leaves its connections open.
const PATIENCE: Duration = Duration::from_mins(1);

#[derive(Debug, Default)]
struct Kept {
    /// What is ordered; nothing until the test says so.
    document: Option<Value>,
    /// What its references stand for.
    secrets: Value,
    orders: Vec<Value>,
    events: Vec<Value>,
    reports: Vec<Value>,
    files: HashMap<String, Vec<u8>>,
    /// Answers to events that are not given.
    away: usize,
    go: Option<&'static str>,
    /// With this code the agent is turned away.
    turned_away: Option<&'static str>,
    is_held: bool,
    /// What disks held, and whether that is to be put back.
    backups: Vec<Value>,
    is_undo: bool,
    then: Option<&'static str>,
}

#[derive(Debug)]
pub(crate) struct Server {
    kept: Arc<Mutex<Kept>>,
    pub(crate) port: u16,
    pub(crate) plain_port: u16,
}

impl Server {
    /// Writes the authority that its certificate is of to `ca`.
    pub(crate) fn start(ca: &Path) -> Self {
        let kept = Arc::new(Mutex::new(Kept::default()));
        let config = Arc::new(certified(ca));
        let port = listen(&kept, move |stream, kept| {
            let connection = rustls::ServerConnection::new(Arc::clone(&config)).expect("whole");
            let mut stream = rustls::StreamOwned::new(connection, stream);
            let _ = serve(&mut stream, kept);
            stream.conn.send_close_notify();
            let _ = stream.flush();
        });
        let plain_port = listen(&kept, |mut stream, kept| {
            let _ = serve(&mut stream, kept);
        });
        Self { kept, port, plain_port }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().expect("nobody panicked")
    }

    pub(crate) fn order(&self, document: Value) {
        self.kept().document = Some(document);
    }

    pub(crate) fn tell(&self, secrets: Value) {
        self.kept().secrets = secrets;
    }

    /// Where a machine finds this content that knows us as `host`.
    pub(crate) fn file(&self, host: &str, name: &str, content: Vec<u8>) -> String {
        self.kept().files.insert(format!("/{name}"), content);
        format!("http://{host}:{}/{name}", self.plain_port)
    }

    /// No file is given before an agent was told to end.
    pub(crate) fn abort(&self) {
        let mut kept = self.kept();
        (kept.go, kept.is_held) = (Some("abort"), true);
    }

    /// Every word of an agent is answered so, and no file is given before that.
    pub(crate) fn turn_away(&self, code: &'static str) {
        let mut kept = self.kept();
        (kept.turned_away, kept.is_held) = (Some(code), true);
    }

    /// So many words of the agent are lost.
    pub(crate) fn be_away(&self, times: usize) {
        self.kept().away = times;
    }

    pub(crate) fn answer(&self, go: &'static str, then: &'static str) {
        let mut kept = self.kept();
        (kept.go, kept.then) = (Some(go), Some(then));
    }

    pub(crate) fn orders(&self) -> Vec<Value> {
        self.kept().orders.clone()
    }

    pub(crate) fn backups(&self) -> Vec<Value> {
        self.kept().backups.clone()
    }

    /// From here on disks are to be put back.
    pub(crate) fn undo(&self) {
        self.kept().is_undo = true;
    }

    pub(crate) fn events(&self) -> Vec<Value> {
        self.kept().events.clone()
    }

    pub(crate) fn reports(&self) -> Vec<Value> {
        self.kept().reports.clone()
    }
}

fn listen(
    kept: &Arc<Mutex<Kept>>,
    talk: impl Fn(TcpStream, &Mutex<Kept>) + Send + Sync + 'static,
) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a loopback port");
    let port = listener.local_addr().expect("bound").port();
    let (kept, talk) = (Arc::clone(kept), Arc::new(talk));
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (kept, talk) = (Arc::clone(&kept), Arc::clone(&talk));
            stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
            stream.set_write_timeout(Some(PATIENCE)).expect("a socket");
            std::thread::spawn(move || talk(stream, &kept));
        }
    });
    port
}

fn certified(ca: &Path) -> rustls::ServerConfig {
    let mut params = CertificateParams::new(Vec::new()).expect("no names, no faults");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().expect("a key");
    let authority = params.self_signed(&key).expect("an authority");
    fs_err::write(ca, authority.pem()).expect("written");
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
        .expect("versions that are known")
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)
        .expect("they belong together")
}

/// Requests of one connection, until nobody asks any more.
fn serve(stream: &mut (impl Read + Write), kept: &Mutex<Kept>) -> std::io::Result<()> {
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
        let answer = answer(&path, from, session.as_deref(), &body, kept);
        let Some((status, more, body)) = answer else { return Ok(()) };
        let stream = reader.get_mut();
        let date = jiff::fmt::rfc2822::to_string(&jiff::Zoned::now()).expect("a date");
        write!(stream, "HTTP/1.1 {status}\r\ndate: {date}\r\n{more}")?;
        write!(stream, "content-length: {}\r\n\r\n", body.len())?;
        let asks = |what: fn(&Kept) -> bool| what(&kept.lock().expect("nobody panicked"));
        let is_told = |kept: &Kept| kept.go == Some("abort") || kept.turned_away.is_some();
        if path == "/root.img.zst" && asks(is_told) {
            // That it is there is looked at before anything is done.
            stream.flush()?;
            while asks(|kept| kept.is_held) {
                std::thread::sleep(Duration::from_millis(5));
            }
            // The answer that says so is on its way; an image is written faster than it is read.
            std::thread::sleep(Duration::from_secs(1));
        }
        stream.write_all(&body)?;
        stream.flush()?;
    }
}

#[expect(clippy::unnecessary_wraps, reason = "as all answers")]
fn turned_away(code: &str) -> Option<Answer> {
    let problem = json!({
        "type": format!("urn:hoist:problem:{code}"), "title": "Not allowed", "status": 403,
        "detail": "go away",
    });
    Some(("403 Forbidden", String::new(), problem.to_string().into_bytes()))
}

type Answer = (&'static str, String, Vec<u8>);

/// Nothing where the connection shall just end.
fn answer(
    path: &str,
    from: Option<usize>,
    session: Option<&str>,
    body: &[u8],
    kept: &Mutex<Kept>,
) -> Option<Answer> {
    let mut kept = kept.lock().expect("nobody panicked");
    let json = |value: &Value| Some(("200 OK", String::new(), value.to_string().into_bytes()));
    if let Some(file) = kept.files.get(path) {
        let Some(from) = from else { return Some(("200 OK", String::new(), file.clone())) };
        let range = format!("content-range: bytes {from}-{}/{}\r\n", file.len() - 1, file.len());
        return Some(("206 Partial Content", range, file[from..].to_vec()));
    }
    let said: Value = serde_json::from_slice(body).unwrap_or_default();
    if path == "/provision/v1/agent/order" {
        kept.orders.push(said.clone());
        let Some(document) = &kept.document else {
            let problem = json!({
                "type": "urn:hoist:problem:held", "title": "Not yet", "status": 503,
                "detail": "nothing is ordered for `n1`", "remedy": "hoist provision start n1",
            });
            let body = problem.to_string().into_bytes();
            return Some(("503 Service Unavailable", String::new(), body));
        };
        let mut order = json!({
            "run": "r1", "session": "s1", "node": "n1", "id": said["node"], "generation": 1,
            "document": document, "secrets": kept.secrets.as_object().cloned().unwrap_or_default(),
        });
        if kept.is_undo {
            order["undo"] = json!(kept.backups);
        }
        return json(&order);
    }
    if session != Some("Bearer s1") {
        return Some(("401 Unauthorized", String::new(), Vec::new()));
    }
    match path {
        "/provision/v1/agent/runs/r1/events" => {
            if kept.away > 0 {
                kept.away -= 1;
                return None;
            }
            if let Some(code) = kept.turned_away {
                kept.is_held = false;
                return turned_away(code);
            }
            let events = said["events"].as_array().cloned().unwrap_or_default();
            kept.events.extend(events);
            kept.is_held = false;
            json(&json!({"go": kept.go.unwrap_or("on")}))
        }
        "/provision/v1/agent/runs/r1/backup" => {
            kept.backups.push(said);
            json(&json!({"bytes": body.len()}))
        }
        "/provision/v1/agent/runs/r1/report" => {
            kept.reports.push(said);
            if let Some(code) = kept.turned_away {
                return turned_away(code);
            }
            json(&json!({"then": kept.then.unwrap_or("reboot")}))
        }
        _ => Some(("404 Not Found", String::new(), Vec::new())),
    }
}
