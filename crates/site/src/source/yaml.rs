//! YAML and JSON of other programs: unknown fields are theirs to have, but sizes have bounds.

use serde::de::DeserializeOwned;

/// Largest file taken apart. 100,000 nodes of any of the formats fit.
pub(crate) const MAX_BYTES: usize = 128 * 1024 * 1024;
/// Deepest nesting; the formats need six levels.
const MAX_DEPTH: usize = 64;
/// A node has about 20 scalars in any of the formats.
const MAX_NODES: usize = 10_000_000;

/// JSON is recognised by its first character; everything else is YAML.
pub(crate) fn parse<T: DeserializeOwned>(text: &[u8]) -> Result<T, String> {
    let text = utf8(text)?;
    if text.trim_start().starts_with('{') {
        return serde_json::from_str(text).map_err(|error| error.to_string());
    }
    serde_saphyr::from_str_with_options(text, options()).map_err(|error| {
        let place = error.location();
        let text = error.without_snippet().to_string();
        let message = text.lines().next().unwrap_or_default();
        match place {
            Some(place) if !message.contains("line ") => {
                format!("{message} at line {} column {}", place.line(), place.column())
            }
            _ => message.to_owned(),
        }
    })
}

pub(crate) fn utf8(text: &[u8]) -> Result<&str, String> {
    if text.len() > MAX_BYTES {
        return Err(format!("{} bytes are more than the limit of {MAX_BYTES}", text.len()));
    }
    let text = std::str::from_utf8(text)
        .map_err(|error| format!("byte {} is not UTF-8", error.valid_up_to()))?;
    // Spreadsheets and editors on some systems put a byte order mark in front.
    Ok(text.strip_prefix('\u{feff}').unwrap_or(text))
}

fn options() -> serde_saphyr::Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: MAX_DEPTH,
            max_documents: 1,
            max_nodes: MAX_NODES,
            max_events: 2 * MAX_NODES,
            max_total_scalar_bytes: MAX_BYTES,
        },
    }
}
