//! Drivers: each reads one input format into the provisioning document.
//!
//! This module defines the trait [`DataDriver`], the registry [`Drivers`] and the driver of hoist's
//! own format. Drivers of other formats belong in `hoist-compat`; a program's composition root
//! registers them. No I/O: text in, a document or the complete list of diagnostics out.

mod native;

use hoist_model::document::read_one;
use serde_json::Value;
use uuid::Uuid;

use crate::diagnostic::{Code, ProvisionDiagnostic};
use crate::document::{Boot, Document, MAX_BYTES, Wipe, read_typed};

pub use native::Native;

/// The description of a driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DriverInfo {
    pub name: &'static str,
    pub version: u32,
    /// One line.
    pub about: &'static str,
}

/// How sure a driver is that an input has its format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Confidence {
    No,
    /// The input resembles the format and has errors.
    Maybe,
    Sure,
}

/// Values that a document must have and that other formats lack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    pub txn: Uuid,
    /// The node's id.
    pub node: String,
    /// Disks may be identified by their kernel names alone.
    pub allow_kernel_names: bool,
    /// Foreign data that may be destroyed on the disks that the input names.
    pub wipe: Wipe,
    /// Boot files and settings, for a system that the input wants to be started.
    pub boot: Option<Boot>,
}

pub trait DataDriver: Sync {
    fn describe(&self) -> DriverInfo;
    fn sniff(&self, input: &[u8]) -> Confidence;
    fn parse(&self, input: &[u8], options: &Options) -> Result<Document, Vec<ProvisionDiagnostic>>;
}

/// The drivers that a program offers. The composition root of the program must list each driver
/// once: names are unique.
#[derive(Clone, Copy)]
pub struct Drivers {
    all: &'static [&'static dyn DataDriver],
}

impl std::fmt::Debug for Drivers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}

impl Drivers {
    pub const fn new(all: &'static [&'static dyn DataDriver]) -> Self {
        Self { all }
    }

    pub fn iter(&self) -> impl Iterator<Item = &'static dyn DataDriver> + use<> {
        self.all.iter().copied()
    }

    pub fn names(&self) -> Vec<&'static str> {
        self.iter().map(|driver| driver.describe().name).collect()
    }

    pub fn by_name(&self, name: &str) -> Option<&'static dyn DataDriver> {
        self.iter().find(|driver| driver.describe().name == name)
    }

    /// At least one driver recognises the input.
    pub fn recognise(&self, input: &[u8]) -> bool {
        self.iter().any(|driver| driver.sniff(input) > Confidence::No)
    }

    /// The driver that is surest of the input; it must be the only one that is as sure.
    pub fn choose(&self, input: &[u8]) -> Result<&'static dyn DataDriver, ProvisionDiagnostic> {
        let sniffed: Vec<_> = self.iter().map(|driver| (driver.sniff(input), driver)).collect();
        let best = sniffed.iter().map(|(confidence, _)| *confidence).max();
        let best = best.unwrap_or(Confidence::No);
        let mut surest = sniffed.into_iter().filter(|(confidence, _)| *confidence == best);
        match (surest.next(), surest.next()) {
            (Some((Confidence::Maybe | Confidence::Sure, driver)), None) => Ok(driver),
            (_, second) => {
                let count =
                    if second.is_some() && best > Confidence::No { "several" } else { "no" };
                let what = format!("{count} drivers recognise this input");
                let found = ProvisionDiagnostic::new(Code::Unreadable, "", what);
                Err(found.hint(format!("name one of {}", self.names().join(", "))))
            }
        }
    }
}

/// The input as a tree, for [`DataDriver::sniff`]; `None` if it is too large or has no tree.
pub fn tree(input: &[u8]) -> Option<Value> {
    if input.len() > MAX_BYTES { None } else { read_one("input", input).ok() }
}

/// The input as the types of its format, or all of its type errors, for [`DataDriver::parse`].
pub fn typed<T: serde::de::DeserializeOwned>(
    source: &str,
    input: &[u8],
) -> Result<T, Vec<ProvisionDiagnostic>> {
    if input.len() > MAX_BYTES {
        let what = format!("{} bytes are more than the limit of {MAX_BYTES}", input.len());
        return Err(vec![ProvisionDiagnostic::new(Code::TooLarge, source, what)]);
    }
    read_typed(source, input)
}
