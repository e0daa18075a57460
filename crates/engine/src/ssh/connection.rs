//! One conversation with a machine, through the system's `ssh`.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

use crate::action::{Cancel, Output, Stream};
use crate::execute::process::{self, Ended};

/// What runs over there. It has no single quotes, so that it is one word for any login shell.
const RUNNER: &str = include_str!("runner.sh");

/// Seconds until somebody has to answer.
const CONNECT_SECONDS: u32 = 10;

/// Beyond what the machine may wait by itself.
const PATIENCE: Duration = Duration::from_mins(1);

/// What a machine prints: eight megabytes in letters, and a little.
const MAX_ANSWER: usize = 12 * 1024 * 1024;

/// How machines are logged in to.
#[derive(Debug, Clone)]
pub struct Login {
    /// The program; `ssh` is looked for in `PATH`.
    pub program: PathBuf,
    pub user: Option<String>,
    pub key: Option<PathBuf>,
    /// Whose keys are known; nobody else is talked to. The user's own file if it is not named.
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

/// What a machine says of an attempt.
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
    /// It may be reached later, and nobody knows whether it has heard.
    Unreachable(String),
    /// It will not talk to us, or is not who it should be.
    Refused(String),
}

impl Login {
    /// Says something to a machine and waits for what it answers.
    pub(super) fn talk(
        &self,
        host: &str,
        payload: &Payload,
        wait: Duration,
        cancel: &Cancel,
    ) -> Result<State, NoAnswer> {
        let input = format!("{}end\n", payload.0);
        let deadline = Some(Instant::now() + wait + PATIENCE);
        let mut answer = Answer::default();
        let ran =
            process::run(&mut self.command(host), input.as_bytes(), deadline, cancel, &mut answer);
        let ran = ran.map_err(|error| NoAnswer::Refused(format!("cannot run ssh: {error}")))?;
        if let Some(state) = answer.state() {
            return Ok(state);
        }
        let said = answer.complaint();
        let reason = format!("`{host}` cannot be reached: {said}");
        match (ran.ended, ran.status.code()) {
            (Ended::ByItself, Some(90..=93)) => {
                Err(NoAnswer::Refused(format!("`{host}` cannot run steps: {said}")))
            }
            (Ended::ByItself, Some(255)) if is_final(&said) => Err(NoAnswer::Refused(reason)),
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

/// Trying again would not help.
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

/// What comes back, up to a limit.
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
    /// After whatever a login prints by itself.
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
        if lines.is_empty() { "it did not answer".to_owned() } else { lines.join("; ") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(out: &str) -> Option<State> {
        Answer { out: out.as_bytes().to_vec(), err: Vec::new() }.state()
    }

    #[test]
    fn the_runner_is_one_word_for_a_login_shell() {
        assert!(!RUNNER.contains('\''));
    }

    #[test]
    fn an_answer_is_found_behind_what_a_login_prints() {
        assert_eq!(answer("Welcome!\nhoist 1\nstate running\n"), Some(State::Running));
        assert_eq!(answer("hoist 1\nstate never\n"), Some(State::Never));
        let ended = State::Ended { code: 3, output: b"hello\n".to_vec() };
        assert_eq!(answer("hoist 1\nstate ended 3\naGVs\nbG8K\n"), Some(ended));
    }

    #[test]
    fn half_an_answer_is_none() {
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
    fn what_a_machine_prints_is_bounded() {
        let mut answer = Answer::default();
        for _ in 0..=MAX_ANSWER / 4096 {
            answer.part(Stream::Out, &[b'x'; 4096]);
        }
        assert_eq!(answer.out.len(), MAX_ANSWER);
    }

    #[test]
    fn values_are_letters_whatever_they_hold() {
        let payload = Payload::new("start", "x").with("text", "\'; rm -rf /\nend\n");
        assert!(payload.0.lines().all(|line| line.split(' ').count() == 2 && !line.contains(';')));
    }
}
