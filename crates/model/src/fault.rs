//! What is wrong with an input, where, and what to do about it.

use std::fmt;

/// One thing wrong with an input. Checks return all of them, so that a person mends a file once.
#[derive(
    Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema,
)]
pub struct Fault {
    /// Path inside the object, such as `interfaces[1].mac`; empty for the object itself.
    pub at: String,
    pub message: String,
    /// What to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

impl Fault {
    pub fn new(at: impl Into<String>, message: impl Into<String>) -> Self {
        Self { at: at.into(), message: message.into(), hint: None }
    }

    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.at.is_empty() {
            write!(f, "{}: ", self.at)?;
        }
        f.write_str(&self.message)?;
        if let Some(hint) = &self.hint {
            write!(f, "; {hint}")?;
        }
        Ok(())
    }
}

/// The candidate a person most likely meant, if any is close.
pub fn nearest<'a>(typed: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    /// Below this Jaro-Winkler similarity a suggestion confuses more than it helps.
    const CLOSE: f64 = 0.8;
    candidates
        .into_iter()
        .map(|candidate| (strsim::jaro_winkler(typed, candidate), candidate))
        // One slip of the finger counts whatever the similarity: it is low for short words.
        .filter(|(similarity, candidate)| {
            *similarity >= CLOSE || strsim::osa_distance(typed, candidate) <= 1
        })
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typo_is_recognised_and_nonsense_is_not() {
        assert_eq!(nearest("interfases", ["interfaces", "groups"]), Some("interfaces"));
        assert_eq!(nearest("zzz", ["interfaces", "groups"]), None);
    }
}
