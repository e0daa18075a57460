//! One exchange with a machine through the system's `ssh`: command line, payload and answer.
//! Retries and the state of attempts belong to [`super`].

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

use crate::action::{Cancel, Output, Stream};
use crate::execute::process;
use crate::program::ExitCause;

/// The script that runs on the machine. It has no single quotes, so that any login shell takes it
/// as one word.
const RUNNER: &str = include_str!("runner.sh");

/// Connect timeout in seconds.
const CONNECT_SECONDS: u32 = 10;

/// Deadline in addition to the time that the machine may wait.
const ANSWER_DEADLINE: Duration = Duration::from_mins(1);

/// Largest answer: eight megabytes of output in base64, and a margin.
const MAX_ANSWER: usize = 12 * 1024 * 1024;

/// How to log in to machines.
#[derive(Debug, Clone)]
pub struct Login {
    /// The program; `ssh` is searched in `PATH`.
    pub program: PathBuf,
    pub user: Option<String>,
    pub key: Option<PathBuf>,
    /// File with the host keys of known machines; others are refused. `None` means the user's own
    /// file.
    pub known_hosts: Option<PathBuf>,
    pub port: Option<u16>,
}

impl Default for Login {
    fn default() -> Self {
        Self { program: "ssh".into(), user: None, key: None, known_hosts: None, port: None }
    }
}

/// Lines for the runner.
#[derive(Debug, Default)]
pub(super) struct Payload(String);

impl Payload {
    pub(super) fn new(verb: &str, id: &str) -> Self {
        Self::default().with("verb", verb).with("id", id)
    }

    #[must_use]
    pub(super) fn with(mut self, name: &str, value: &str) -> Self {
        self.0.push_str(name);
        self.0.push(' ');
        BASE64.encode_string(value, &mut self.0);
        self.0.push('\n');
        self
    }
}

/// The state of an attempt on a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum State {
    Never,
    Running,
    Ended { code: i32, output: Vec<u8> },
    Gone,
}

/// Why there was no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NoAnswer {
    /// The machine may be reachable later. The message may or may not have arrived.
    Unreachable(String),
    /// The machine refuses the login, or its host key does not match.
    Refused(String),
}

impl Login {
    /// Sends a message to a machine and waits for the answer.
    pub(super) fn talk(
        &self,
        host: &str,
        payload: &Payload,
        wait: Duration,
        cancel: &Cancel,
    ) -> Result<State, NoAnswer> {
        let input = format!("{}end\n", payload.0);
        let deadline = Some(Instant::now() + wait + ANSWER_DEADLINE);
        let mut answer = Answer::default();
        let ran =
            process::run(&mut self.command(host), input.as_bytes(), deadline, cancel, &mut answer);
        let ran = ran.map_err(|error| NoAnswer::Refused(format!("cannot run ssh: {error}")))?;
        if let Some(state) = answer.state() {
            return Ok(state);
        }
        let said = answer.complaint();
        let reason = format!("`{host}` cannot be reached: {said}");
        match (ran.cause, ran.status.code()) {
            (ExitCause::Itself, Some(90..=93)) => {
                Err(NoAnswer::Refused(format!("`{host}` cannot run steps: {said}")))
            }
            (ExitCause::Itself, Some(255)) if is_final(&said) => Err(NoAnswer::Refused(reason)),
            _ => Err(NoAnswer::Unreachable(reason)),
        }
    }

    fn command(&self, host: &str) -> Command {
        let mut command = Command::new(&self.program);
        command.args(["-T", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes"]);
        command.args([
            "-o",
            "ClearAllForwardings=yes",
            "-o",
            "ServerAliveInterval=10",
            "-o",
            "ServerAliveCountMax=3",
        ]);
        command.args(["-o", &format!("ConnectTimeout={CONNECT_SECONDS}"), "-o", "LogLevel=ERROR"]);
        if let Some(user) = &self.user {
            command.args(["-l", user]);
        }
        if let Some(port) = self.port {
            command.args(["-p", &port.to_string()]);
        }
        if let Some(key) = &self.key {
            command.args(["-o", "IdentitiesOnly=yes", "-i"]).arg(key);
        }
        if let Some(known) = &self.known_hosts {
            let mut option = std::ffi::OsString::from("UserKnownHostsFile=\"");
            option.push(known);
            option.push("\"");
            command.arg("-o").arg(option).args(["-o", "GlobalKnownHostsFile=none"]);
        }
        command.args(["--", host, &format!("exec /bin/sh -c '{RUNNER}'")]);
        command
    }
}

/// Whether a retry is useless.
fn is_final(said: &str) -> bool {
    [
        "Permission denied",
        "Host key verification failed",
        "REMOTE HOST IDENTIFICATION HAS CHANGED",
        "No such file or directory",
    ]
    .iter()
    .any(|reason| said.contains(reason))
}

/// The output of ssh, up to a limit.
#[derive(Default)]
struct Answer {
    out: Vec<u8>,
    err: Vec<u8>,
}

impl Output for Answer {
    fn line(&mut self, stream: Stream, bytes: &[u8]) {
        self.part(stream, bytes);
        self.part(stream, b"\n");
    }

    fn part(&mut self, stream: Stream, bytes: &[u8]) {
        let (kept, most) = match stream {
            Stream::Out => (&mut self.out, MAX_ANSWER),
            Stream::Err | Stream::Note => (&mut self.err, 4096),
        };
        let room = most.saturating_sub(kept.len());
        kept.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    fn progress(&mut self, _: u64, _: Option<u64>) {}
}

impl Answer {
    /// Parses the answer, which follows any text that the login prints.
    fn state(&self) -> Option<State> {
        let text = std::str::from_utf8(&self.out).ok()?;
        let (_, text) = text.split_once("hoist 1\n")?;
        let (line, rest) = text.split_once('\n')?;
        match line.strip_prefix("state ")? {
            "never" => Some(State::Never),
            "running" => Some(State::Running),
            "gone" => Some(State::Gone),
            ended => {
                let code = ended.strip_prefix("ended ")?.parse().ok()?;
                let letters: String = rest.split_ascii_whitespace().collect();
                Some(State::Ended { code, output: BASE64.decode(letters).ok()? })
            }
        }
    }

    fn complaint(&self) -> String {
        let said = String::from_utf8_lossy(&self.err);
        let lines: Vec<&str> =
            said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        if lines.is_empty() { "no answer".to_owned() } else { lines.join("; ") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(out: &str) -> Option<State> {
        Answer { out: out.as_bytes().to_vec(), err: Vec::new() }.state()
    }

    #[test]
    fn runner_is_one_word_for_a_login_shell() {
        assert!(!RUNNER.contains('\''));
    }

    #[test]
    fn answer_is_found_after_login_messages() {
        assert_eq!(answer("Welcome!\nhoist 1\nstate running\n"), Some(State::Running));
        assert_eq!(answer("hoist 1\nstate never\n"), Some(State::Never));
        let ended = State::Ended { code: 3, output: b"hello\n".to_vec() };
        assert_eq!(answer("hoist 1\nstate ended 3\naGVs\nbG8K\n"), Some(ended));
    }

    #[test]
    fn incomplete_answer_is_rejected() {
        for cut in [
            "",
            "hoist 1\n",
            "hoist 1\nstate",
            "hoist 1\nstate ended \n",
            "hoist 1\nstate ended 0\na\n",
            "sh: not found\n",
        ] {
            assert_eq!(answer(cut), None, "{cut}");
        }
    }

    #[test]
    fn answer_size_is_bounded() {
        let mut answer = Answer::default();
        for _ in 0..=MAX_ANSWER / 4096 {
            answer.part(Stream::Out, &[b'x'; 4096]);
        }
        assert_eq!(answer.out.len(), MAX_ANSWER);
    }

    #[test]
    fn payload_values_are_base64() {
        let payload = Payload::new("start", "x").with("text", "\'; rm -rf /\nend\n");
        assert!(payload.0.lines().all(|line| line.split(' ').count() == 2 && !line.contains(';')));
    }
}
