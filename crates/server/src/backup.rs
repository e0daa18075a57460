//! Backups: everything needed on an empty machine, as one stream.
//!
//! A backup is a tar archive inside zstd. Its entries, in this order:
//!
//! | entry | content |
//! | --- | --- |
//! | `manifest.json` | [`Manifest`] |
//! | `store/000000.jsonl`, … | the export of the store (`hoist_store::copy`), cut into pieces |
//! | `ca/…` | the site's root; server certificates are made anew |
//! | `secrets/…` | what layers refer to |
//! | `journal/…` | what runs have done |
//! | `artifacts/…` | the contents of artifacts, only when asked for |
//! | `secrets.key` | the private key of encrypted secrets in layers |
//! | `contents.json` | [`Contents`] |
//! | `SHA256SUMS` | of all entries before it |
//!
//! The admin token is not in it: a restored directory makes a new one. Hashes of managed tokens
//! are records of the store. Encryption is the writer's business: see [`seal`].
//!
//! Everything streams, in both directions: memory does not grow with the store. A reader believes
//! nothing: names, kinds, sizes, order and checksums of all entries are checked, and nothing of a
//! backup is used before all of it was.

mod fill;
mod name;
mod output;
mod read;
mod restore;
pub(crate) mod route;
pub mod seal;
mod write;

use std::io;
use std::path::PathBuf;

use hoist_site::controllers::Registration;
use hoist_site::schema::SchemaError;
use hoist_store::StoreError;
use hoist_store::copy::CopyError;
use serde::{Deserialize, Serialize};

use crate::data_dir::DataDirError;
use hoist_chassis::ca::CaError;

pub use fill::{check_unused, fill};
pub use output::Output;
pub use read::{Tee, verify};
pub use restore::{Restore, RestoreReport, restore};
pub use write::{Source, write};

/// The format that this version writes, and the newest it reads.
pub const FORMAT: u32 = 1;

/// A piece of the store's export. It is held in memory, because its size goes before it.
const CHUNK_BYTES: usize = 4 * 1024 * 1024;

/// Entries in one backup; with the largest pieces that is a store of 800 GiB.
const MAX_ENTRIES: usize = 200_000;

/// `manifest.json`: facts known before the content is read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    pub format: u32,
    /// The version of hoist that made it.
    pub hoist: String,
    /// RFC 3339, UTC.
    pub created: jiff::Timestamp,
    /// Schema of the store, and its incarnation when the backup was made.
    pub schema: u32,
    pub incarnation: String,
}

/// `contents.json`: the list of written entries.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Contents {
    pub records: u64,
    /// Over all keys and values; see `hoist_store::copy`.
    pub sha256: String,
    pub journal_files: u64,
    pub artifacts: u64,
    /// Artifacts that were there and are not in the backup.
    pub artifacts_left_out: u64,
}

/// Summary of a complete backup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Summary {
    #[serde(flatten)]
    pub manifest: Manifest,
    pub contents: Contents,
    /// The pin of the site's root, if the root is in it.
    pub ca_pin: Option<String>,
}

/// Why a backup was not made, not believed or not restored.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackupError {
    #[error("writing failed")]
    Output(#[source] io::Error),
    /// Nothing was replaced.
    #[error("`{}` is there already; name another file, or say `--force`", .0.display())]
    Exists(PathBuf),
    #[error("cannot use a file of the data directory")]
    File(#[source] io::Error),
    /// A backup of it could not be restored.
    #[error("`{}` cannot be in a backup: {detail}", path.display())]
    Unfit { path: PathBuf, detail: &'static str },
    #[error("the store is empty; nothing to back up")]
    NothingThere,

    #[error("this is not a backup of hoist")]
    NotABackup,
    #[error(
        "the backup has format {found}, made by hoist {by}; this version knows formats up to {FORMAT}"
    )]
    Newer { found: u32, by: String },
    #[error("the backup cannot be read, or is damaged")]
    Read(#[source] io::Error),
    #[error("the backup ends too early: it is not complete")]
    Truncated,
    #[error("the backup is not to be trusted: entry `{name}` {detail}")]
    Entry { name: String, detail: &'static str },
    #[error("the backup is damaged: entry `{name}` does not have the checksum it should have")]
    Checksum { name: String },
    #[error("the backup is damaged: it says {said}, it holds {held}")]
    Contents { said: String, held: String },
    #[error("the records are not of hoist: none of them tells the schema")]
    NoSchema,
    #[error("the backup does not open with this key")]
    WrongKey,
    #[error("the backup is encrypted to a passphrase; give that")]
    NeedsPassphrase,
    #[error("the backup is encrypted to keys; give one with `--identity`")]
    NeedsIdentity,

    /// Nothing was changed.
    #[error("`{}` is not empty; name an empty directory, or say `--force` to replace what is there", .0.display())]
    NotEmpty(PathBuf),
    /// Nothing was changed.
    #[error("{} on this store; stop it first", running(.0))]
    InUse(Vec<Registration>),
    #[error("the data directory cannot be used")]
    DataDir(#[from] DataDirError),
    #[error("the store cannot be used")]
    Store(#[from] StoreError),
    #[error("the store cannot be used")]
    Schema(#[from] SchemaError),
    #[error(transparent)]
    Copy(#[from] CopyError),
    #[error("the certificates in the backup cannot be used")]
    Ca(#[from] CaError),
}

pub(crate) fn running(controllers: &[Registration]) -> String {
    let names: Vec<_> = controllers.iter().map(|found| found.id.as_str()).collect();
    match names.as_slice() {
        [one] => format!("controller {one} runs"),
        many => format!("controllers {} run", many.join(", ")),
    }
}
