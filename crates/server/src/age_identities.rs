//! Reading the identity files of age, for backups and for the vault.

/// The keys in the text of an identity file, as `age-keygen` writes it.
pub fn identities(
    text: &str,
) -> Result<Vec<Box<dyn age::Identity + Send + Sync>>, age::DecryptError> {
    age::IdentityFile::from_buffer(text.as_bytes())
        .map_err(age::DecryptError::Io)?
        .into_identities()
}
