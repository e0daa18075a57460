//! The effect of a change on the site, as printed lines.

use hoist_api::inventory::{AppliedItem, ApplyResult, FieldChange, ItemChange};
use serde_json::Value;

use crate::failure::Failure;
use crate::printer::{Output, Printer, Tone};

/// Documents shown one by one; the rest is counted.
const SHOWN: usize = 100;
/// Longest value that is shown whole.
const VALUE: usize = 200;

/// Prints what differs, as asked for.
pub(crate) fn print(printer: &mut Printer, applied: &ApplyResult) -> Result<(), Failure> {
    match printer.output() {
        Output::Json | Output::Yaml => printer.value(applied),
        Output::Name => applied
            .items
            .iter()
            .try_for_each(|item| printer.line(format!("{}/{}", item.kind, item.name))),
        Output::Table | Output::Wide => {
            for (tone, line) in lines(applied) {
                printer.toned(tone, &line)?;
            }
            Ok(())
        }
    }
}

/// `2 created, 1 changed, 3 unchanged`.
pub(crate) fn summary(applied: &ApplyResult) -> String {
    let words = if applied.dry_run {
        ["to create", "to change", "to remove"]
    } else {
        ["created", "changed", "removed"]
    };
    let counts = [applied.created, applied.changed, applied.removed];
    let mut parts: Vec<_> = counts
        .into_iter()
        .zip(words)
        .filter(|(count, _)| *count > 0)
        .map(|(count, word)| format!("{count} {word}"))
        .collect();
    if parts.is_empty() {
        parts.push("no changes".to_owned());
    }
    if applied.unchanged > 0 {
        parts.push(format!("{} unchanged", applied.unchanged));
    }
    let nodes = match applied.affected {
        0 => String::new(),
        1 => "; 1 existing node is affected".to_owned(),
        count => format!("; {count} existing nodes are affected"),
    };
    parts.join(", ") + &nodes
}

pub(crate) fn is_empty(applied: &ApplyResult) -> bool {
    applied.created + applied.changed + applied.removed == 0
}

fn lines(applied: &ApplyResult) -> Vec<(Tone, String)> {
    let mut lines = Vec::new();
    for item in applied.items.iter().take(SHOWN) {
        item_lines(item, &mut lines);
    }
    let total = applied.created + applied.changed + applied.removed;
    let shown = applied.items.len().min(SHOWN);
    if total > shown {
        lines.push((Tone::Faint, format!("… and {} more", total - shown)));
    }
    lines
}

fn item_lines(item: &AppliedItem, lines: &mut Vec<(Tone, String)>) {
    let (sign, tone) = match item.change {
        ItemChange::Created => ('+', Tone::Added),
        ItemChange::Changed => ('~', Tone::Changed),
        ItemChange::Removed => ('-', Tone::Removed),
    };
    lines.push((tone, format!("{sign} {} {}", item.kind, item.name)));
    // A removed object is gone as a whole; listing its fields adds nothing.
    if item.change != ItemChange::Removed {
        lines.extend(item.fields.iter().map(|field| (Tone::Plain, field_line(field))));
    }
}

fn field_line(field: &FieldChange) -> String {
    let at = &field.at;
    match (&field.from, &field.to) {
        (None, Some(to)) => format!("    + {at}: {}", shown(to)),
        (Some(from), None) => format!("    - {at}: {}", shown(from)),
        (Some(from), Some(to)) => format!("    {at}: {} -> {}", shown(from), shown(to)),
        (None, None) => format!("    {at}"),
    }
}

fn shown(value: &Value) -> String {
    let text = match value {
        Value::String(text) if !text.is_empty() => text.clone(),
        other => other.to_string(),
    };
    let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    match text.char_indices().nth(VALUE) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::printer::tests::printer;
    use serde_json::json;

    pub(crate) fn applied(items: Vec<AppliedItem>) -> ApplyResult {
        let count = |change| items.iter().filter(|item| item.change == change).count();
        ApplyResult {
            revision: 7,
            dry_run: true,
            created: count(ItemChange::Created),
            changed: count(ItemChange::Changed),
            unchanged: 2,
            removed: count(ItemChange::Removed),
            affected: 1,
            needs_affects: false,
            items,
            truncated: false,
            warnings: Vec::new(),
        }
    }

    fn item(kind: &str, name: &str, change: ItemChange, fields: Vec<FieldChange>) -> AppliedItem {
        AppliedItem { kind: kind.into(), name: name.into(), change, fields }
    }

    fn field(at: &str, from: Option<Value>, to: Option<Value>) -> FieldChange {
        FieldChange { at: at.into(), from, to }
    }

    #[test]
    fn a_change_reads_like_a_diff() {
        let applied = applied(vec![
            item("Node", "n1", ItemChange::Created, vec![]),
            item(
                "Node",
                "n2",
                ItemChange::Changed,
                vec![
                    field("role", Some(json!("compute")), Some(json!("login"))),
                    field("labels.rack", None, Some(json!("7"))),
                    field("groups", Some(json!(["gpu"])), None),
                ],
            ),
            item("Group", "default/gpu", ItemChange::Removed, vec![field("x", None, None)]),
        ]);
        let (mut printer, out, _) = printer(Output::Table);
        print(&mut printer, &applied).unwrap();
        assert_eq!(
            out.text(),
            "+ Node n1\n\
             ~ Node n2\n    role: compute -> login\n    + labels.rack: 7\n    - groups: [\"gpu\"]\n\
             - Group default/gpu\n"
        );
        assert_eq!(
            summary(&applied),
            "1 to create, 1 to change, 1 to remove, 2 unchanged; 1 existing node is affected"
        );
    }

    #[test]
    fn long_changes_are_counted_and_long_values_cut() {
        let items: Vec<_> =
            (0..150).map(|i| item("Node", &format!("n{i}"), ItemChange::Created, vec![])).collect();
        let mut applied = applied(items);
        applied.created = 5000;
        let lines = lines(&applied);
        assert_eq!(lines.len(), SHOWN + 1);
        assert_eq!(lines[SHOWN].1, "… and 4900 more");
        assert_eq!(shown(&json!("ä".repeat(300))).chars().count(), VALUE + 1);
        assert_eq!(shown(&json!("a\u{1b}[31m")), "a [31m");
        assert_eq!(shown(&json!("")), "\"\"");
    }

    #[test]
    fn programs_get_the_whole_answer() {
        let applied = applied(vec![item("Node", "n1", ItemChange::Created, vec![])]);
        let (mut printer, out, _) = printer(Output::Json);
        print(&mut printer, &applied).unwrap();
        let value: Value = serde_json::from_str(&out.text()).unwrap();
        assert_eq!(value["items"][0]["name"], "n1");
        let (mut printer, out, _) = super::tests::printer(Output::Name);
        print(&mut printer, &applied).unwrap();
        assert_eq!(out.text(), "Node/n1\n");
    }
}
