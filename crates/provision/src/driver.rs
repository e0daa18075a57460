//! Inputs of several kinds, each read into the one document. No I/O: text in, document or everything
//! that is wrong with the text out.

mod curtin;
mod ironic;
mod nailgun;
mod native;
mod scheme;

use hoist_model::document::read_one;
use serde_json::Value;
use uuid::Uuid;

use crate::diagnostic::{Code, Diagnostic};
use crate::document::{Document, MAX_BYTES, Wipe};

pub use curtin::Curtin;
pub use ironic::Ironic;
pub use nailgun::Nailgun;
pub use native::Native;

/// What a person may know of a driver before it is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DriverInfo {
    pub name: &'static str,
    pub version: u32,
    /// One line.
    pub about: &'static str,
}

/// How sure a driver is that an input is one of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Confidence {
    No,
    /// It could be, with faults.
    Maybe,
    Sure,
}

/// What inputs of others do not say and a document has to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    pub txn: Uuid,
    /// The node's id.
    pub node: String,
    /// Disks may be known by their kernel names alone.
    pub allow_kernel_names: bool,
    /// What of others may be destroyed on the disks that the input names.
    pub wipe: Wipe,
}

pub trait DataDriver {
    fn describe(&self) -> DriverInfo;
    fn sniff(&self, input: &[u8]) -> Confidence;
    fn parse(&self, input: &[u8], options: &Options) -> Result<Document, Vec<Diagnostic>>;
}

/// All that are built in.
pub const DRIVERS: [&dyn DataDriver; 4] = [&Native, &Ironic, &Nailgun, &Curtin];

/// The driver of that name.
pub fn by_name(name: &str) -> Result<&'static dyn DataDriver, Diagnostic> {
    let mut all = DRIVERS.into_iter();
    all.find(|driver| driver.describe().name == name).ok_or_else(|| {
        let names = DRIVERS.map(|driver| driver.describe().name);
        let found = Diagnostic::new(Code::NoSuchThing, "", format!("there is no driver `{name}`"));
        found.hint(format!("there are {}", names.join(", ")))
    })
}

/// The one driver whose input this is.
pub fn choose(input: &[u8]) -> Result<&'static dyn DataDriver, Diagnostic> {
    let sniffed = DRIVERS.map(|driver| (driver.sniff(input), driver));
    let best = sniffed.iter().map(|(confidence, _)| *confidence).max().unwrap_or(Confidence::No);
    let mut sure = sniffed.into_iter().filter(|(confidence, _)| *confidence == best);
    match (sure.next(), sure.next()) {
        (Some((Confidence::Maybe | Confidence::Sure, driver)), None) => Ok(driver),
        (_, several) => {
            let why = if several.is_some() && best > Confidence::No { "several" } else { "no" };
            let found =
                Diagnostic::new(Code::Unreadable, "", format!("{why} drivers know such an input"));
            let names = DRIVERS.map(|driver| driver.describe().name);
            Err(found.hint(format!("name one of {}", names.join(", "))))
        }
    }
}

/// An input as a tree, if it is one.
fn tree(input: &[u8]) -> Option<Value> {
    if input.len() > MAX_BYTES { None } else { read_one("input", input).ok() }
}

/// An input of others as its types.
fn typed<T: serde::de::DeserializeOwned>(input: &[u8]) -> Result<T, Vec<Diagnostic>> {
    if input.len() > MAX_BYTES {
        let what = format!("{} bytes are more than the limit of {MAX_BYTES}", input.len());
        return Err(vec![Diagnostic::new(Code::TooLarge, "input", what)]);
    }
    read_one("input", input)
        .map_err(|errors| errors.into_iter().map(crate::document::unreadable).collect())
}

#[cfg(test)]
mod tests;
