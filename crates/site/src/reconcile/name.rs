//! Names for nodes that the source does not name.

use std::fmt;
use std::str::FromStr;

use hoist_model::{Name, Nid, NodeSpec};

use crate::source::ImportedNode;

/// A name with a place for the nid, such as `nid{nid:06}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameTemplate {
    before: String,
    width: usize,
    after: String,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no template for names; write it like nid{{nid:06}}")]
pub struct ParseTemplateError(String);

impl NameTemplate {
    /// A nid always makes a name: the template was tried with the longest.
    pub fn name(&self, nid: Nid) -> Name {
        let Self { before, width, after } = self;
        let text = format!("{before}{:0width$}{after}", nid.get());
        text.parse().expect("the template was tried with the longest nid")
    }
}

impl Default for NameTemplate {
    fn default() -> Self {
        Self { before: "nid".to_owned(), width: 6, after: String::new() }
    }
}

impl FromStr for NameTemplate {
    type Err = ParseTemplateError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || ParseTemplateError(text.to_owned());
        let (before, rest) = text.split_once("{nid").ok_or_else(wrong)?;
        let (format, after) = rest.split_once('}').ok_or_else(wrong)?;
        let width = match format.strip_prefix(':') {
            None if format.is_empty() => 0,
            Some(digits) if !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()) => {
                digits.parse().ok().filter(|width| *width <= 20).ok_or_else(wrong)?
            }
            _ => return Err(wrong()),
        };
        // The longest and a short one show whether all in between are names.
        for nid in [u32::MAX, 1] {
            let tried = format!("{before}{nid:0width$}{after}");
            tried.parse::<Name>().map_err(|_| wrong())?;
        }
        Ok(Self { before: before.to_owned(), width, after: after.to_owned() })
    }
}

impl fmt::Display for NameTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.width {
            0 => write!(f, "{}{{nid}}{}", self.before, self.after),
            width => write!(f, "{}{{nid:0{width}}}{}", self.before, self.after),
        }
    }
}

/// The names a new node could have, the best first: its source's, the template's, its place, its
/// id, its MAC.
pub(super) fn candidates(
    new: &ImportedNode,
    spec: &NodeSpec,
    template: &NameTemplate,
) -> Vec<Name> {
    let place = spec.xname.and_then(|xname| xname.to_string().parse().ok());
    let id = new.external_id.replace(['.', ':', '_'], "-").parse().ok();
    let mac = spec.interfaces.first().map(|interface| {
        let digits: String = interface.mac.to_string().chars().filter(|c| *c != ':').collect();
        format!("mac-{digits}").parse().expect("letters, digits and a dash are a name")
    });
    let given = new.name.clone();
    let numbered = spec.nid.map(|nid| template.name(nid));
    let mut names: Vec<Name> = Vec::new();
    for name in [given, numbered, place, id, mac].into_iter().flatten() {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_template_is_valid_for_all_nids_or_refused() {
        let nid = Nid::new(42);
        for (text, name) in
            [("nid{nid:06}", "nid000042"), ("n{nid}", "n42"), ("r-{nid:3}-x", "r-042-x")]
        {
            let template: NameTemplate = text.parse().unwrap();
            assert_eq!(template.name(nid).as_str(), name);
            assert_eq!(template.to_string().parse(), Ok(template));
        }
        assert_eq!(NameTemplate::default().to_string(), "nid{nid:06}");
        let long = format!("{}{{nid}}", "a".repeat(60));
        for text in ["", "nid", "{nid", "-{nid}", "{nid}-", "{nid:}", "{nid:x}", "{nid:99}", &long]
        {
            assert!(text.parse::<NameTemplate>().is_err(), "{text}");
        }
    }
}
