//! Encryption of backups with age: to keys or to a passphrase.
//!
//! age detects every change of the file but not its author: the public key of a recipient is enough
//! to make a backup for it.

use std::fmt;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};

use age::secrecy::SecretString;

use super::BackupError;
use super::output::Output;

pub use age::x25519::Recipient;

/// How an unencrypted backup begins.
pub(super) const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
const AGE_MAGIC: &[u8] = b"age-encryption.org/";

/// The recipients of a backup.
pub enum Lock {
    Recipients(Vec<Recipient>),
    Passphrase(SecretString),
    /// Not encrypted: every holder of the file has the site's keys. Must be requested explicitly.
    Open,
}

/// What opens a backup.
#[derive(Default)]
pub struct Keys {
    pub passphrase: Option<SecretString>,
    pub identities: Vec<Box<dyn age::Identity + Send + Sync>>,
}

/// The key that opens a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequiredKey {
    Passphrase,
    Identity,
    Nothing,
}

/// A file that is encrypted while it is written.
pub struct BackupFile(Inner);

enum Inner {
    Age(age::stream::StreamWriter<BufWriter<Output>>),
    Open(BufWriter<Output>),
}

/// Begins an encrypted file.
pub fn seal(output: Output, lock: Lock) -> Result<BackupFile, BackupError> {
    let output = BufWriter::new(output);
    let encryptor = match lock {
        Lock::Open => return Ok(BackupFile(Inner::Open(output))),
        Lock::Passphrase(passphrase) => age::Encryptor::with_user_passphrase(passphrase),
        Lock::Recipients(recipients) => {
            let recipients = recipients.iter().map(|one| one as &dyn age::Recipient);
            age::Encryptor::with_recipients(recipients)
                .map_err(|error| BackupError::Output(io::Error::other(error.to_string())))?
        }
    };
    let writer = encryptor.wrap_output(output).map_err(BackupError::Output)?;
    Ok(BackupFile(Inner::Age(writer)))
}

/// Reads the beginning of a file.
pub fn required_key(input: impl Read) -> Result<RequiredKey, BackupError> {
    let mut input = BufReader::new(input);
    let start = input.fill_buf().map_err(BackupError::Read)?;
    if start.starts_with(&ZSTD_MAGIC) {
        return Ok(RequiredKey::Nothing);
    }
    if !start.starts_with(AGE_MAGIC) {
        return Err(BackupError::NotABackup);
    }
    let decryptor = age::Decryptor::new_buffered(input).map_err(unseal_error)?;
    Ok(if decryptor.is_scrypt() { RequiredKey::Passphrase } else { RequiredKey::Identity })
}

/// Decrypts the file while it is read. A passphrase takes about a second.
pub fn unseal<R>(input: R, keys: Keys) -> Result<Box<dyn Read + Send>, BackupError>
where
    R: Read + Send + 'static,
{
    let mut input = BufReader::new(input);
    let start = input.fill_buf().map_err(BackupError::Read)?;
    if start.starts_with(&ZSTD_MAGIC) {
        return Ok(Box::new(input));
    }
    if !start.starts_with(AGE_MAGIC) {
        return Err(BackupError::NotABackup);
    }
    let decryptor = age::Decryptor::new_buffered(input).map_err(unseal_error)?;
    if decryptor.is_scrypt() {
        let passphrase = keys.passphrase.ok_or(BackupError::NeedsPassphrase)?;
        let identity = age::scrypt::Identity::new(passphrase);
        let reader = decryptor.decrypt(std::iter::once(&identity as &dyn age::Identity));
        return Ok(Box::new(reader.map_err(unseal_error)?));
    }
    if keys.identities.is_empty() {
        return Err(BackupError::NeedsIdentity);
    }
    let identities = keys.identities.iter().map(|one| one.as_ref() as &dyn age::Identity);
    Ok(Box::new(decryptor.decrypt(identities).map_err(unseal_error)?))
}

fn unseal_error(error: age::DecryptError) -> BackupError {
    match error {
        age::DecryptError::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            BackupError::Truncated
        }
        age::DecryptError::Io(error) => BackupError::Read(error),
        age::DecryptError::DecryptionFailed
        | age::DecryptError::KeyDecryptionFailed
        | age::DecryptError::NoMatchingKeys => BackupError::WrongKey,
        other => BackupError::Read(io::Error::new(io::ErrorKind::InvalidData, other.to_string())),
    }
}

impl BackupFile {
    /// Only a finished file can be opened again.
    pub fn finish(self) -> Result<(), BackupError> {
        let mut output = match self.0 {
            Inner::Age(writer) => writer.finish().map_err(BackupError::Output)?,
            Inner::Open(output) => output,
        };
        output.flush().map_err(BackupError::Output)?;
        output.into_inner().map_err(|error| BackupError::Output(error.into_error()))?.finish()
    }
}

impl Write for BackupFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.0 {
            Inner::Age(writer) => writer.write(bytes),
            Inner::Open(output) => output.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.0 {
            Inner::Age(writer) => writer.flush(),
            Inner::Open(output) => output.flush(),
        }
    }
}

impl fmt::Debug for BackupFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BackupFile").finish_non_exhaustive()
    }
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Recipients(_) => "Recipients",
            Self::Passphrase(_) => "Passphrase",
            Self::Open => "Open",
        })
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keys").finish_non_exhaustive()
    }
}
