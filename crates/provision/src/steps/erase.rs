//! Steps that erase disks, and their reports.

use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::document::{EraseMethod, Id};
use crate::facts::{DiskFacts, EraseCommand};

pub const NAME: &str = "erase";

/// The erase method, chosen from the methods that the disk offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// The disk zeroes all of its blocks by itself.
    Block,
    /// Every byte is written.
    Overwrite,
    /// Only signatures are wiped; the data stays readable.
    Signatures,
    /// The disk is told to erase itself.
    #[serde(untagged)]
    Command(EraseCommand),
}

/// Why a disk cannot be erased by the requested method.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EraseMethodError {
    #[error("disk `{disk}` cannot make its blocks empty")]
    NoBlockErase { disk: String },
    #[error("disk `{disk}` has no command to forget its key")]
    NoCryptoErase { disk: String },
}

impl Method {
    /// The method for a disk, or the reason why the disk does not offer it. No other method is
    /// substituted.
    pub fn choose(asked: EraseMethod, disk: &DiskFacts) -> Result<Self, EraseMethodError> {
        use EraseCommand::{FormatCrypto, FormatUserData, SanitizeBlock, SanitizeCrypto};
        let name = || disk.kernel_name.clone();
        let first = |among: &[EraseCommand]| {
            let offered = among.iter().find(|command| disk.erase.contains(command));
            offered.copied().map(Self::Command)
        };
        match asked {
            EraseMethod::Strongest => Ok(first(&EraseCommand::ALL).unwrap_or(Self::Overwrite)),
            EraseMethod::Overwrite => Ok(Self::Overwrite),
            EraseMethod::Block => first(&[SanitizeBlock, FormatUserData])
                .or(disk.can_zero.then_some(Self::Block))
                .ok_or_else(|| EraseMethodError::NoBlockErase { disk: name() }),
            EraseMethod::Crypto => first(&[SanitizeCrypto, FormatCrypto])
                .ok_or_else(|| EraseMethodError::NoCryptoErase { disk: name() }),
            EraseMethod::Signatures => Ok(Self::Signatures),
        }
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Block => f.pad("block"),
            Self::Overwrite => f.pad("overwrite"),
            Self::Signatures => f.pad("signatures"),
            Self::Command(command) => command.fmt(f),
        }
    }
}

/// One step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Task {
    pub disk: Id,
    pub who: DiskIdentity,
    pub range: Range<u64>,
    pub method: Method,
    /// Selects the samples that are read back.
    pub seed: u64,
}

/// The identity of an erased disk, for readers of the report when the disk is gone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskIdentity {
    pub kernel_name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wwn: Option<String>,
    pub size: u64,
}

impl From<&DiskFacts> for DiskIdentity {
    fn from(disk: &DiskFacts) -> Self {
        let DiskFacts { kernel_name, model, serial, wwn, size, .. } = disk.clone();
        Self { kernel_name, model, serial, wwn, size }
    }
}

/// The report of one erased disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EraseReport {
    pub disk: Id,
    #[serde(flatten)]
    pub who: DiskIdentity,
    pub method: Method,
    pub range: Range<u64>,
    /// In milliseconds since 1970.
    pub started: u64,
    pub ended: u64,
    pub verdict: Verdict,
    #[serde(flatten)]
    pub evidence: Evidence,
    /// Why the disk is not erased.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Erased,
    /// The former contents may still be on the disk.
    NotErased,
}

/// Evidence that a disk is erased.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    /// The number of samples that were read back, and the bytes of each; none with `signatures`. A
    /// sample is empty, or, if the disk erased itself, without its former contents.
    pub samples: u64,
    pub sample: u64,
    /// The samples that were not empty before. Known only if the disk erased itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<u64>,
    /// The status that the disk reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub says: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsupported_erase_method_is_not_chosen() {
        let mut disk = DiskFacts { kernel_name: "sda".to_owned(), ..DiskFacts::default() };
        let strongest = Method::choose(EraseMethod::Strongest, &disk);
        assert_eq!(strongest, Ok(Method::Overwrite));
        assert!(Method::choose(EraseMethod::Block, &disk).is_err());
        assert!(Method::choose(EraseMethod::Crypto, &disk).is_err());
        disk.can_zero = true;
        assert_eq!(Method::choose(EraseMethod::Block, &disk), Ok(Method::Block));
    }

    #[test]
    fn strongest_erase_method_is_a_command_of_the_disk() {
        use EraseCommand::{FormatCrypto, FormatUserData, SanitizeBlock, SanitizeOverwrite};
        let offering = |erase: &[EraseCommand]| DiskFacts {
            kernel_name: "nvme0n1".to_owned(),
            erase: erase.to_vec(),
            ..DiskFacts::default()
        };
        let disk = offering(&[SanitizeBlock, SanitizeOverwrite, FormatCrypto, FormatUserData]);
        for (asked, chosen, word) in [
            (EraseMethod::Strongest, Method::Command(SanitizeBlock), "sanitize_block"),
            (EraseMethod::Crypto, Method::Command(FormatCrypto), "format_crypto"),
            (EraseMethod::Block, Method::Command(SanitizeBlock), "sanitize_block"),
            (EraseMethod::Overwrite, Method::Overwrite, "overwrite"),
            (EraseMethod::Signatures, Method::Signatures, "signatures"),
        ] {
            assert_eq!(Method::choose(asked, &disk), Ok(chosen));
            assert_eq!(chosen.to_string(), word);
            let written = serde_json::to_value(chosen).expect("a word");
            assert_eq!(written, word);
            assert_eq!(serde_json::from_value::<Method>(written).expect("the same"), chosen);
        }
        let poor = offering(&[FormatUserData]);
        let strongest = Method::choose(EraseMethod::Strongest, &poor);
        assert_eq!(strongest, Ok(Method::Command(FormatUserData)));
        assert!(Method::choose(EraseMethod::Crypto, &poor).is_err());
    }
}
