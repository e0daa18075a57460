//! The four documents of a seed.

use std::fmt;

use bytes::Bytes;

/// One of what cloud-init asks for, by the name it asks with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Document {
    MetaData,
    UserData,
    VendorData,
    NetworkConfig,
}

/// All documents of a node. A document without content is empty: cloud-init accepts an empty
/// answer, and asks again for a missing one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Documents {
    pub meta_data: Bytes,
    pub user_data: Bytes,
    pub vendor_data: Bytes,
    pub network_config: Bytes,
}

impl Document {
    pub const ALL: [Self; 4] =
        [Self::MetaData, Self::UserData, Self::VendorData, Self::NetworkConfig];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::MetaData => "meta-data",
            Self::UserData => "user-data",
            Self::VendorData => "vendor-data",
            Self::NetworkConfig => "network-config",
        }
    }

    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|document| document.as_str() == word)
    }
}

impl fmt::Display for Document {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Documents {
    pub fn get(&self, document: Document) -> &Bytes {
        match document {
            Document::MetaData => &self.meta_data,
            Document::UserData => &self.user_data,
            Document::VendorData => &self.vendor_data,
            Document::NetworkConfig => &self.network_config,
        }
    }
}
