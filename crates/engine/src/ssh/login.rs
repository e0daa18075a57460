//! The command line of the system's `ssh`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::PathBuf;
use std::process::Command;

/// The script that runs on the machine. It has no single quotes, so that any login shell takes it
/// as one word.
const BOOTSTRAP: &str = include_str!("bootstrap.sh");

/// Connect timeout in seconds.
const CONNECT_SECONDS: u32 = 10;

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
    /// The machine through which others are reached: `[USER@]HOST[:PORT]`. Key and known hosts are
    /// the same.
    pub jump: Option<String>,
    /// The user that `sudo` makes of the one that has logged in.
    pub become_user: Option<String>,
}

impl Default for Login {
    fn default() -> Self {
        Self {
            program: "ssh".into(),
            user: None,
            key: None,
            known_hosts: None,
            port: None,
            jump: None,
            become_user: None,
        }
    }
}

/// How one machine is reached.
#[derive(Debug, Clone)]
pub struct Target {
    pub host: String,
    pub login: Login,
    /// The file of the program for this machine.
    pub program: PathBuf,
}

/// A word that cannot be part of a login.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} `{value}` has letters that a login cannot have; correct it")]
pub struct TargetError {
    pub what: &'static str,
    pub value: String,
}

impl Target {
    /// Checks the words that become part of command lines.
    pub fn check(&self) -> Result<(), TargetError> {
        let Login { user, jump, become_user, .. } = &self.login;
        let words = [
            ("address", Some(&self.host)),
            ("user", user.as_ref()),
            ("jump host", jump.as_ref()),
            ("become", become_user.as_ref()),
        ];
        let is_plain = |word: &str| {
            let may_have = |c: char| c.is_ascii_alphanumeric() || "._-@:[]%".contains(c);
            !word.is_empty() && !word.starts_with('-') && word.chars().all(may_have)
        };
        for (what, word) in words {
            if let Some(value) = word.filter(|word| !is_plain(word)) {
                return Err(TargetError { what, value: value.clone() });
            }
        }
        Ok(())
    }

    /// The command that starts the program of the machine with these arguments.
    pub(super) fn command(&self, arguments: &[String]) -> Command {
        let login = &self.login;
        let mut command = Command::new(&login.program);
        command.args(["-T", "-o", "ServerAliveInterval=10", "-o", "ServerAliveCountMax=3"]);
        command.args(login.options(login.user.as_deref(), login.port));
        if let Some(jump) = &login.jump {
            command.arg("-o").arg(login.proxy(jump));
        }
        let become_user = login.become_user.as_ref();
        let sudo = become_user.map(|user| format!("sudo -n -H -u {user} -- "));
        let mut remote = format!("exec {}/bin/sh -c '{BOOTSTRAP}' hoist", sudo.unwrap_or_default());
        for argument in arguments {
            remote.push_str(" '");
            remote.push_str(argument);
            remote.push('\'');
        }
        command.arg("--").arg(&self.host).arg(remote);
        command
    }
}

impl Login {
    fn options(&self, user: Option<&str>, port: Option<u16>) -> Vec<OsString> {
        let mut options: Vec<OsString> = Vec::new();
        let mut set = |name: &str, value: &OsStr| {
            let mut option = OsString::from(format!("{name}="));
            option.push(value);
            options.extend(["-o".into(), option]);
        };
        for (name, value) in [
            ("BatchMode", "yes"),
            ("StrictHostKeyChecking", "yes"),
            ("ClearAllForwardings", "yes"),
            ("LogLevel", "ERROR"),
            ("ConnectTimeout", &CONNECT_SECONDS.to_string()),
        ] {
            set(name, value.as_ref());
        }
        if let Some(user) = user {
            set("User", user.as_ref());
        }
        if let Some(port) = port {
            set("Port", port.to_string().as_ref());
        }
        if let Some(key) = &self.key {
            set("IdentitiesOnly", "yes".as_ref());
            set("IdentityFile", &quoted(key.as_os_str()));
        }
        if let Some(known) = &self.known_hosts {
            set("UserKnownHostsFile", &quoted(known.as_os_str()));
            set("GlobalKnownHostsFile", "none".as_ref());
        }
        options
    }

    /// The option for a jump host. `ProxyJump` would not use our key and our known hosts there.
    fn proxy(&self, jump: &str) -> OsString {
        let (user, host) = match jump.rsplit_once('@') {
            Some((user, host)) => (Some(user), host),
            None => (self.user.as_deref(), jump),
        };
        let port = |text: &str| text.parse().ok();
        let (host, port) = match host.rsplit_once(':') {
            // The colons of an IPv6 address are in brackets, or there is no port.
            Some((host, text)) if host.ends_with(']') || !host.contains(':') => (host, port(text)),
            _ => (host, None),
        };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let mut words = vec![self.program.clone().into_os_string()];
        words.extend(self.options(user, port));
        words.extend(["--".into(), host.into()]);
        // Without `--`, `-W` would be a word of the command over there.
        words.splice(1..1, ["-W".into(), "[%h]:%p".into()]);
        let mut option = OsString::from("ProxyCommand=");
        for (at, word) in words.iter().enumerate() {
            option.push(if at == 0 { "'" } else { " '" });
            let escaped = OsString::from_vec(escape(word.as_bytes(), at != 2));
            option.push(escaped);
            option.push("'");
        }
        option
    }
}

/// A file name for an option of ssh, which would take spaces and percent signs for its own.
fn quoted(name: &OsStr) -> OsString {
    let mut text = b"\"".to_vec();
    for byte in name.as_bytes() {
        if *byte == b'%' {
            text.push(b'%');
        }
        text.push(*byte);
    }
    text.push(b'"');
    OsString::from_vec(text)
}

/// A word of a shell command in single quotes; with `is_plain` also without meaning for ssh, which
/// replaces `%h` and the like.
fn escape(word: &[u8], is_plain: bool) -> Vec<u8> {
    let mut text = Vec::new();
    for byte in word {
        match byte {
            b'\'' => text.extend(b"'\\''"),
            b'%' if is_plain => text.extend(b"%%"),
            byte => text.push(*byte),
        }
    }
    text
}

/// Whether a retry is useless.
pub(super) fn is_final(said: &str) -> bool {
    [
        "Permission denied",
        "Host key verification failed",
        "REMOTE HOST IDENTIFICATION HAS CHANGED",
        "No such file or directory",
        "a password is required",
        "sudo: not found",
    ]
    .iter()
    .any(|reason| said.contains(reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(login: Login) -> Target {
        Target { host: "10.0.0.7".to_owned(), login, program: "hoist".into() }
    }

    #[test]
    fn bootstrap_is_one_word_for_a_login_shell() {
        assert!(!BOOTSTRAP.contains('\''));
    }

    #[test]
    fn jump_host_gets_the_same_key_and_known_hosts() {
        let login = Login {
            user: Some("adm".to_owned()),
            key: Some("/keys/it's 5%".into()),
            known_hosts: Some("/known".into()),
            ..Login::default()
        };
        let proxy = |jump: &str| login.proxy(jump).into_string().expect("text");
        let text = proxy("root@gate:2222");
        assert!(text.starts_with("ProxyCommand='ssh' '-W' '[%h]:%p' '-o' 'BatchMode=yes'"));
        for part in [
            "'User=root'",
            "'Port=2222'",
            "'IdentityFile=\"/keys/it'\\''s 5%%%%\"'",
            "'UserKnownHostsFile=\"/known\"'",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(text.ends_with("'--' 'gate'"), "{text}");
        assert!(proxy("[fd00::1]:22").ends_with("'User=adm' '-o' 'Port=22' '-o' 'IdentitiesOnly=yes' '-o' 'IdentityFile=\"/keys/it'\\''s 5%%%%\"' '-o' 'UserKnownHostsFile=\"/known\"' '-o' 'GlobalKnownHostsFile=none' '--' 'fd00::1'"));
    }

    #[test]
    fn words_that_a_shell_or_ssh_would_interpret_are_refused() {
        let login = |user: &str| Login { user: Some(user.to_owned()), ..Login::default() };
        assert_eq!(target(login("adm")).check(), Ok(()));
        for bad in ["-oProxyCommand=x", "a b", "a;b", "$(x)", ""] {
            assert!(target(login(bad)).check().is_err(), "{bad}");
            let host = Target { host: bad.to_owned(), ..target(Login::default()) };
            assert!(host.check().is_err(), "{bad}");
            let jump = Login { jump: Some(bad.to_owned()), ..Login::default() };
            assert!(target(jump).check().is_err(), "{bad}");
            let other = Login { become_user: Some(bad.to_owned()), ..Login::default() };
            assert!(target(other).check().is_err(), "{bad}");
        }
    }
}
