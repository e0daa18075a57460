//! A web server with the files of a test, and its bad days on request.

use std::collections::{HashMap, VecDeque};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

use hoist_testkit::machine::HOST;
use parking_lot::Mutex;

/// How one request goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// 500.
    Refused,
    /// Half of the file, then the connection is gone.
    CutShort,
}

/// On a loopback port, for as long as the process lives.
pub(crate) struct Upstream {
    port: u16,
    files: Arc<Mutex<HashMap<&'static str, File>>>,
}

struct File {
    content: Arc<Vec<u8>>,
    faults: VecDeque<Fault>,
    asked: usize,
}

impl Upstream {
    pub(crate) fn start(files: impl IntoIterator<Item = (&'static str, Vec<u8>)>) -> Self {
        let file = |content| File { content: Arc::new(content), faults: VecDeque::new(), asked: 0 };
        let files = files.into_iter().map(|(path, content)| (path, file(content))).collect();
        let files = Arc::new(Mutex::new(files));
        let listener = TcpListener::bind("127.0.0.1:0").expect("a loopback port");
        let port = listener.local_addr().expect("bound").port();
        let served = Arc::clone(&files);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let files = Arc::clone(&served);
                std::thread::spawn(move || answer(&stream, &files));
            }
        });
        Self { port, files }
    }

    /// As a virtual machine reaches it.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{HOST}:{}{path}", self.port)
    }

    /// The next request for this file that has not yet gone wrong does.
    pub(crate) fn fail_next(&self, path: &str, fault: Fault) {
        self.files.lock().get_mut(path).expect("there is such a file").faults.push_back(fault);
    }

    pub(crate) fn length(&self, path: &str) -> usize {
        self.files.lock().get(path).expect("there is such a file").content.len()
    }

    pub(crate) fn asked(&self, path: &str) -> usize {
        self.files.lock().get(path).expect("there is such a file").asked
    }
}

fn answer(
    mut stream: &TcpStream,
    files: &Mutex<HashMap<&'static str, File>>,
) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream).lines();
    let asked = lines.next().transpose()?.unwrap_or_default();
    while lines.next().transpose()?.is_some_and(|line| !line.is_empty()) {}
    let found = asked.split(' ').nth(1).and_then(|path| {
        let mut files = files.lock();
        let file = files.get_mut(path)?;
        file.asked += 1;
        Some((Arc::clone(&file.content), file.faults.pop_front()))
    });
    let (status, body, fault) = match &found {
        None => ("404 Not Found", &[][..], None),
        Some((_, Some(Fault::Refused))) => ("500 Internal Server Error", &[][..], None),
        Some((content, fault)) => ("200 OK", content.as_slice(), *fault),
    };
    let length = body.len();
    write!(stream, "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n")?;
    stream.write_all(if fault.is_some() { &body[..length / 2] } else { body })
}
