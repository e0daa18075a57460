//! Sources of the secrets that layers refer to: files, variables, and values encrypted for the
//! server. Callers must have verified the node. Reads files, so it must not run on the boot path.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use hoist_metadata::{Resolve, SecretError};
use hoist_model::Secret;
use secrecy::{ExposeSecret, SecretString};

use crate::age_identities::identities;

/// Largest secret: keys and certificates, not images.
const MAX_SECRET: u64 = 64 * 1024;

/// Files that secrets are taken from, in the data directory.
const DIRECTORY: &str = "secrets";
/// The server's decryption key, as `age-keygen` writes it; outside the directory of secrets, so
/// that no layer can name it.
const IDENTITY: &str = "secrets.key";

pub struct Vault {
    data_dir: PathBuf,
    /// Those of the environment that layers may name.
    variables: BTreeMap<String, SecretString>,
}

impl Vault {
    pub fn new(data_dir: &Path, variables: BTreeMap<String, SecretString>) -> Self {
        Self { data_dir: data_dir.to_owned(), variables }
    }

    fn file(&self, name: &str) -> Result<String, SecretError> {
        let name = || name.to_owned();
        let unreadable = |source| SecretError::Unreadable { name: name(), source };
        let root = self.data_dir.join(DIRECTORY).canonicalize().map_err(unreadable)?;
        let path = root.join(name()).canonicalize().map_err(unreadable)?;
        if !path.starts_with(&root) {
            return Err(SecretError::Outside { name: name() });
        }
        // A pipe would be waited for without end.
        if !fs_err::metadata(&path).map_err(unreadable)?.is_file() {
            return Err(SecretError::NotAFile { name: name() });
        }
        let file = fs_err::File::open(&path).map_err(unreadable)?;
        text(file).map_err(unreadable)
    }

    fn decrypted(&self, armored: &str) -> Result<String, SecretError> {
        let path = self.data_dir.join(IDENTITY);
        let key = fs_err::read_to_string(&path)
            .map_err(|source| SecretError::NoIdentity { file: IDENTITY, source })?;
        let keys = identities(&key)
            .map_err(|error| SecretError::BadIdentity { file: IDENTITY, source: error.into() })?;
        let armored = age::armor::ArmoredReader::new(armored.trim_start().as_bytes());
        let undecryptable = |error: age::DecryptError| SecretError::Undecryptable(error.into());
        let decryptor = age::Decryptor::new_buffered(armored).map_err(undecryptable)?;
        // A passphrase would cost seconds, and no operator is present to enter it.
        if decryptor.is_scrypt() {
            return Err(SecretError::Passphrase);
        }
        let keys = keys.iter().map(|key| key.as_ref() as &dyn age::Identity);
        let reader = decryptor.decrypt(keys).map_err(undecryptable)?;
        text(reader).map_err(|error| SecretError::Undecryptable(error.into()))
    }
}

impl Resolve for Vault {
    fn resolve(&self, secret: &Secret) -> Result<String, SecretError> {
        match secret {
            Secret::File(name) => self.file(name),
            Secret::Env(name) => {
                let found = self.variables.get(name);
                let found =
                    found.ok_or_else(|| SecretError::UnknownVariable { name: name.clone() })?;
                let bad = |source| SecretError::BadVariable { name: name.clone(), source };
                text(found.expose_secret().as_bytes()).map_err(bad)
            }
            Secret::Age(text) => self.decrypted(text),
        }
    }
}

/// Without the line end that editors leave.
fn text(from: impl Read) -> io::Result<String> {
    let mut text = String::new();
    from.take(MAX_SECRET + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MAX_SECRET {
        return Err(io::Error::other(format!("it is longer than {MAX_SECRET} bytes")));
    }
    if text.ends_with('\n') {
        text.pop();
    }
    // No password at all is worse than no answer.
    if text.trim().is_empty() {
        return Err(io::Error::other("it is empty"));
    }
    Ok(text)
}

impl fmt::Debug for Vault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vault").field("data_dir", &self.data_dir).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn vault() -> (tempfile::TempDir, Vault) {
        let dir = tempfile::tempdir().unwrap();
        fs_err::create_dir_all(dir.path().join("secrets/db")).unwrap();
        let large = "x".repeat(usize::try_from(MAX_SECRET).unwrap() + 1);
        let variables = BTreeMap::from([
            ("HOIST_SECRET_A".to_owned(), "from env".into()),
            ("HOIST_SECRET_LARGE".to_owned(), large.into()),
        ]);
        let vault = Vault::new(dir.path(), variables);
        (dir, vault)
    }

    fn file(name: &str) -> Secret {
        Secret::File(name.to_owned())
    }

    /// The whole message of a failed lookup.
    fn reason(found: Result<String, SecretError>) -> String {
        hoist_diagnostic::chain(&found.unwrap_err())
    }

    #[test]
    fn files_and_variables_are_told_and_nothing_beside_them() {
        let (dir, vault) = vault();
        fs_err::write(dir.path().join("secrets/db/password"), "hunter2\n").unwrap();
        fs_err::write(dir.path().join("secrets.key"), "KEY").unwrap();
        std::os::unix::fs::symlink(dir.path().join("secrets.key"), dir.path().join("secrets/link"))
            .unwrap();
        assert_eq!(vault.resolve(&file("db/password")).unwrap(), "hunter2");
        for name in ["none", "../secrets.key", "link", "db", "/etc/passwd"] {
            let error = reason(vault.resolve(&file(name)));
            assert!(!error.contains("KEY"), "{error}");
        }
        let variable = |name: &str| vault.resolve(&Secret::Env(name.to_owned()));
        assert_eq!(variable("HOIST_SECRET_A").unwrap(), "from env");
        assert!(reason(variable("PATH")).contains("no variable `PATH`"));
        assert!(!format!("{vault:?}").contains("from env"));
    }

    #[test]
    fn a_secret_is_bounded() {
        let (dir, vault) = vault();
        let size = usize::try_from(MAX_SECRET).unwrap();
        fs_err::write(dir.path().join("secrets/fits"), "x".repeat(size)).unwrap();
        fs_err::write(dir.path().join("secrets/large"), "x".repeat(size + 1)).unwrap();
        assert!(vault.resolve(&file("fits")).is_ok());
        assert!(reason(vault.resolve(&file("large"))).contains("longer than"));
        let variable = vault.resolve(&Secret::Env("HOIST_SECRET_LARGE".to_owned()));
        assert!(reason(variable).contains("longer than"));
    }

    #[test]
    fn an_empty_secret_is_none() {
        let (dir, mut vault) = vault();
        for (name, content) in [("nothing", ""), ("line", "\n"), ("blank", " \r\n")] {
            fs_err::write(dir.path().join("secrets").join(name), content).unwrap();
            let error = reason(vault.resolve(&file(name)));
            assert!(error.contains("it is empty"), "{name}: {error}");
        }
        vault.variables.insert("HOIST_SECRET_NONE".to_owned(), "".into());
        let error = reason(vault.resolve(&Secret::Env("HOIST_SECRET_NONE".to_owned())));
        assert!(error.contains("it is empty"), "{error}");
    }

    #[test]
    fn only_secrets_encrypted_for_the_server_are_disclosed() {
        let (dir, vault) = vault();
        let armored = |recipient: &dyn age::Recipient| {
            let encryptor = age::Encryptor::with_recipients(std::iter::once(recipient)).unwrap();
            let mut bytes = Vec::new();
            let format = age::armor::Format::AsciiArmor;
            let armor = age::armor::ArmoredWriter::wrap_output(&mut bytes, format).unwrap();
            let mut writer = encryptor.wrap_output(armor).unwrap();
            writer.write_all(b"hunter2").unwrap();
            writer.finish().and_then(age::armor::ArmoredWriter::finish).unwrap();
            Secret::Age(String::from_utf8(bytes).unwrap())
        };
        let own = age::x25519::Identity::generate();
        let other = age::x25519::Identity::generate();
        let secret = armored(&own.to_public());
        assert!(reason(vault.resolve(&secret)).contains("age-keygen"));
        fs_err::write(dir.path().join("secrets.key"), own.to_string().expose_secret()).unwrap();
        assert_eq!(vault.resolve(&secret).unwrap(), "hunter2");
        assert!(vault.resolve(&armored(&other.to_public())).is_err());
        for damaged in ["", "x", "-----BEGIN AGE ENCRYPTED FILE-----\nAAAA\n"] {
            assert!(vault.resolve(&Secret::Age(damaged.to_owned())).is_err());
        }
    }
}
