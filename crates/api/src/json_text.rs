//! A JSON value that is passed on as text.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// A valid JSON value as its text. The plan of a large site takes several times the memory of its
/// text as a [`serde_json::Value`].
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(transparent)]
pub struct JsonText(Box<RawValue>);

impl JsonText {
    pub fn new(value: &impl Serialize) -> Result<Self, serde_json::Error> {
        serde_json::value::to_raw_value(value).map(Self)
    }

    pub fn read<'t, T: Deserialize<'t>>(&'t self) -> Result<T, serde_json::Error> {
        serde_json::from_str(self.0.get())
    }
}

impl PartialEq for JsonText {
    fn eq(&self, other: &Self) -> bool {
        self.0.get() == other.0.get()
    }
}
