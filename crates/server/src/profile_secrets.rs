//! The secrets that the document of a provision profile refers to.
//!
//! Not here: the values of secrets (`vault`), and who may name one (`authorisation`).

use hoist_model::{ProvisionProfileSpec, Secret};
use hoist_provision::document::SecretRef;

/// The secret that a text in a profile's document stands for, with its name.
pub(crate) fn secret_of(spec: &ProvisionProfileSpec, text: &str) -> Option<(String, Secret)> {
    let name = text.parse::<SecretRef>().ok()?.name().to_owned();
    let place = spec.secrets.get(&name).cloned();
    Some((name.clone(), place.unwrap_or(Secret::File(name))))
}
