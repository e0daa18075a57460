//! The step that makes the config drive.

use std::collections::BTreeMap;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::document::Id;
use crate::volume::{Contents, StoredFile};

pub const NAME: &str = "config_drive";

/// The label that cloud-init looks for.
pub const LABEL: &str = "CONFIG-2";

/// One step: all of the volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Task {
    pub disk: Id,
    pub partition: Id,
    pub range: Range<u64>,
    pub serial: u32,
    /// Files by path. The texts are in the document.
    pub files: BTreeMap<String, StoredFile>,
}

impl Task {
    /// Whether a volume has exactly these contents.
    pub fn is(&self, found: &Contents) -> bool {
        found.label.as_deref() == Some(LABEL)
            && found.serial == self.serial
            && found.files == self.files
    }

    pub fn most(&self) -> u64 {
        self.files.values().map(|stored| stored.size).max().unwrap_or(0)
    }
}
