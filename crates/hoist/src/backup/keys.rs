//! Keys and passphrases of backups. A secret never stands on the command line.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use hoist_server::age_identities::identities;
use hoist_server::backup::seal::{Keys, Lock, Recipient, RequiredKey};
use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};
use secrecy::{ExposeSecret, SecretString};
use zeroize::Zeroizing;

use crate::commands::Shell;
use crate::failure::Failure;

/// A file with keys or a passphrase is a few lines.
const MAX_FILE: u64 = 1024 * 1024;

#[derive(Debug, Args)]
#[command(next_help_heading = "Encryption")]
pub(super) struct LockArgs {
    /// Encrypt to this age key (`age1…`); may be repeated
    #[arg(long, value_name = "KEY", conflicts_with_all = ["passphrase_file", "no_encryption"])]
    recipient: Vec<String>,
    /// Encrypt to the age keys in this file, one per line
    #[arg(long, value_name = "FILE", conflicts_with_all = ["passphrase_file", "no_encryption"])]
    recipients_file: Option<PathBuf>,
    /// Encrypt to the passphrase in this file
    #[arg(long, value_name = "FILE", conflicts_with = "no_encryption")]
    passphrase_file: Option<PathBuf>,
    /// Do not encrypt: every reader of the file gets the site's keys
    #[arg(long)]
    no_encryption: bool,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Encryption")]
pub(super) struct UnlockArgs {
    /// File with the age key, as `age-keygen` writes it; may be repeated
    #[arg(long, value_name = "FILE")]
    identity: Vec<PathBuf>,
    /// File with the passphrase
    #[arg(long, value_name = "FILE")]
    passphrase_file: Option<PathBuf>,
}

impl LockArgs {
    pub(super) fn is_open(&self) -> bool {
        self.no_encryption
    }

    /// The chosen encryption, by default a passphrase from the terminal.
    pub(super) fn lock(&self, shell: &mut Shell) -> Result<Lock, Failure> {
        if self.no_encryption {
            return Ok(Lock::Open);
        }
        if let Some(path) = &self.passphrase_file {
            return Ok(Lock::Passphrase(passphrase(path)?));
        }
        let mut recipients = Vec::new();
        for text in &self.recipient {
            recipients.push(recipient(text, "`--recipient`")?);
        }
        if let Some(path) = &self.recipients_file {
            let text = read(path)?;
            for line in text.lines().map(str::trim) {
                if !line.is_empty() && !line.starts_with('#') {
                    recipients.push(recipient(line, &format!("`{}`", path.display()))?);
                }
            }
        }
        if !recipients.is_empty() {
            return Ok(Lock::Recipients(recipients));
        }
        if let Some(path) = &self.recipients_file {
            return Err(Failure::usage(format!("`{}` contains no key", path.display())));
        }
        if !shell.printer.interactive() {
            return Err(Failure::usage("a backup contains the site's keys and must be encrypted").with_hint(
                "give `--recipient KEY`, `--recipients-file FILE` or `--passphrase-file FILE`; or use `--no-encryption`",
            ));
        }
        let first = ask(shell, "Passphrase for the backup: ")?;
        if first.expose_secret().is_empty() {
            return Err(Failure::usage("an empty passphrase protects nothing"));
        }
        let second = ask(shell, "Repeat the passphrase: ")?;
        if first.expose_secret() != second.expose_secret() {
            return Err(Failure::usage("the two passphrases differ"));
        }
        Ok(Lock::Passphrase(first))
    }
}

impl UnlockArgs {
    /// The keys that the file needs, from the chosen sources.
    pub(super) fn keys(&self, needs: RequiredKey, shell: &mut Shell) -> Result<Keys, Failure> {
        let mut keys = Keys::default();
        match needs {
            RequiredKey::Nothing => {}
            RequiredKey::Passphrase => {
                keys.passphrase = match &self.passphrase_file {
                    Some(path) => Some(passphrase(path)?),
                    None if shell.printer.interactive() => {
                        Some(ask(shell, "Passphrase of the backup: ")?)
                    }
                    None => None,
                };
            }
            RequiredKey::Identity => {
                for path in &self.identity {
                    let wrong = |_| {
                        let message = format!("`{}` contains no age key", path.display());
                        Failure::usage(message).with_hint("`age-keygen -o FILE` makes one")
                    };
                    keys.identities.extend(identities(&read(path)?).map_err(wrong)?);
                }
            }
        }
        Ok(keys)
    }
}

fn recipient(text: &str, place: &str) -> Result<Recipient, Failure> {
    // The reason of the parser is left out: it does not help, and the text may be the secret key,
    // which must not be printed.
    text.parse().map_err(|_| {
        Failure::usage(format!("{place} is not the public part of an age key"))
            .with_hint("a public key begins with `age1`; show it with `age-keygen -y FILE`")
    })
}

fn passphrase(path: &Path) -> Result<SecretString, Failure> {
    let text = read(path)?;
    let line = text.strip_suffix('\n').unwrap_or(&text);
    let line = line.strip_suffix('\r').unwrap_or(line);
    if line.is_empty() || line.contains('\n') {
        let message = format!("`{}` contains no passphrase", path.display());
        return Err(Failure::usage(message).with_hint("a passphrase is one line of text"));
    }
    Ok(line.into())
}

fn read(path: &Path) -> Result<Zeroizing<String>, Failure> {
    use std::io::Read;
    let mut text = Zeroizing::new(String::new());
    let file = fs_err::File::open(path).map_err(Failure::File)?;
    file.take(MAX_FILE).read_to_string(&mut text).map_err(Failure::File)?;
    Ok(text)
}

/// Asks at the terminal without echoing the input.
fn ask(shell: &mut Shell, question: &str) -> Result<SecretString, Failure> {
    shell.printer.flush()?;
    let terminal = fs_err::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/tty")
        .map_err(Failure::File)?
        .into_parts()
        .0;
    let before = tcgetattr(&terminal).map_err(|error| Failure::File(error.into()))?;
    let mut quiet = before.clone();
    quiet.local_modes.remove(LocalModes::ECHO);
    quiet.local_modes.insert(LocalModes::ECHONL);
    (&terminal).write_all(question.as_bytes()).map_err(Failure::File)?;
    let set = |modes| tcsetattr(&terminal, OptionalActions::Flush, modes);
    set(&quiet).map_err(|error| Failure::File(error.into()))?;
    let mut line = Zeroizing::new(String::new());
    let read = BufReader::new(&terminal).read_line(&mut line);
    // The echo must be restored in any case.
    let _ = set(&before);
    read.map_err(Failure::File)?;
    Ok(line.trim_end_matches(['\r', '\n']).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_passphrase_is_one_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("p");
        for (text, good) in [
            ("kettle\n", true),
            ("two words", true),
            ("x\r\n", true),
            ("", false),
            ("a\nb\n", false),
        ] {
            fs_err::write(&path, text).unwrap();
            assert_eq!(passphrase(&path).is_ok(), good, "{text:?}");
        }
    }

    #[test]
    fn a_secret_key_in_the_wrong_place_is_not_printed() {
        let failure = recipient("AGE-SECRET-KEY-1KETTLE", "`--recipient`").unwrap_err();
        let text = format!("{failure:?} {failure}");
        assert!(!text.contains("KETTLE"), "{text}");
    }
}
