//! Suggestions for misspelt names, for the hints of diagnostics.

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
