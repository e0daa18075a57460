//! Drawings in the languages of other programs. Names come from untrusted files, so every character
//! with a meaning in the output language must be escaped.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::{Dot, Drawing, Mood, Shape};

impl Mood {
    /// Fill and line. The text below the name distinguishes states without colours.
    pub(super) fn colours(self) -> (&'static str, &'static str) {
        match self {
            Self::Failed => ("#fbd5d5", "#b42318"),
            Self::Unknown => ("#eadcf8", "#6b2fa0"),
            Self::Blocked => ("#fde3c8", "#b45309"),
            Self::Running => ("#d3e5fb", "#1d5fb4"),
            Self::Ready => ("#e6f0fb", "#5b8cc4"),
            Self::Waiting | Self::Planned => ("#ffffff", "#667085"),
            Self::Stopped => ("#f1efe6", "#7a7152"),
            Self::Done => ("#d9f2df", "#22753c"),
            Self::Skipped => ("#eeeeee", "#98a2b3"),
        }
    }

    pub(super) const ALL: [Self; 10] = [
        Self::Failed,
        Self::Unknown,
        Self::Blocked,
        Self::Running,
        Self::Ready,
        Self::Waiting,
        Self::Stopped,
        Self::Done,
        Self::Skipped,
        Self::Planned,
    ];
}

/// The vertices of each cluster, then those of none.
fn groups(drawing: &Drawing) -> impl Iterator<Item = (Option<&str>, Vec<usize>)> {
    let named = drawing.clusters.iter().map(String::as_str).map(Some).chain([None]);
    named.enumerate().map(|(cluster, name)| {
        let is_here = |dot: &Dot| match dot.cluster {
            Some(at) => at == cluster && name.is_some(),
            None => name.is_none(),
        };
        (name, (0..drawing.dots.len()).filter(|at| is_here(&drawing.dots[*at])).collect())
    })
}

pub(super) fn dot(drawing: &Drawing) -> String {
    let mut text = "digraph plan {\n  rankdir=LR;\n  node [shape=box, style=\"rounded,filled\", \
                    fontname=\"sans-serif\"];\n"
        .to_owned();
    for (at, (cluster, dots)) in groups(drawing).enumerate() {
        if let Some(name) = cluster {
            let _ = writeln!(text, "  subgraph cluster_{at} {{\n  label={};", quoted(name));
        }
        for at in dots {
            let dot = &drawing.dots[at];
            let (fill, line) = dot.mood().colours();
            let shape = match dot.shape {
                Shape::Task => "box",
                Shape::Barrier => "octagon",
                Shape::Join => "ellipse",
            };
            let detail = dot.detail();
            let label = if detail.is_empty() {
                dot.name.clone()
            } else {
                format!("{}\n{detail}", dot.name)
            };
            let _ = writeln!(
                text,
                "  n{at} [label={}, shape={shape}, fillcolor=\"{fill}\", color=\"{line}\"];",
                quoted(&label)
            );
        }
        if cluster.is_some() {
            text.push_str("  }\n");
        }
    }
    for (from, to) in &drawing.edges {
        let _ = writeln!(text, "  n{from} -> n{to};");
    }
    text.push_str("}\n");
    text
}

/// A string of DOT; a line break is one in the picture, any other control character a space.
fn quoted(text: &str) -> String {
    let mut quoted = String::from('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            '\n' => quoted.push_str("\\n"),
            c if c.is_control() => quoted.push(' '),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

pub(super) fn mermaid(drawing: &Drawing) -> String {
    let mut text = "flowchart LR\n".to_owned();
    for (at, (cluster, dots)) in groups(drawing).enumerate() {
        if let Some(name) = cluster {
            let _ = writeln!(text, "  subgraph c{at}[\"{}\"]", entities(name));
        }
        for at in dots {
            let dot = &drawing.dots[at];
            let (open, close) = match dot.shape {
                Shape::Task => ("[\"", "\"]"),
                Shape::Barrier => ("{{\"", "\"}}"),
                Shape::Join => ("([\"", "\"])"),
            };
            let detail = dot.detail();
            let detail =
                if detail.is_empty() { detail } else { format!("<br/>{}", entities(&detail)) };
            let mood = dot.mood().as_str();
            let _ = writeln!(text, "  n{at}{open}{}{detail}{close}:::{mood}", entities(&dot.name));
        }
        if cluster.is_some() {
            text.push_str("  end\n");
        }
    }
    for (from, to) in &drawing.edges {
        let _ = writeln!(text, "  n{from} --> n{to}");
    }
    for mood in Mood::ALL {
        if drawing.dots.iter().any(|dot| dot.mood() == mood) {
            let (fill, line) = mood.colours();
            let name = mood.as_str();
            let _ = writeln!(text, "  classDef {name} fill:{fill},stroke:{line},color:#101828");
        }
    }
    text
}

/// Mermaid's own entities, for whatever is neither a letter, a digit nor harmless.
fn entities(text: &str) -> String {
    let mut escaped = String::new();
    for c in text.chars() {
        if c.is_alphanumeric() || " .,:_-/@·%+".contains(c) {
            escaped.push(c);
        } else if c.is_control() {
            escaped.push(' ');
        } else {
            let _ = write!(escaped, "#{};", u32::from(c));
        }
    }
    escaped
}

pub(super) fn json(drawing: &Drawing) -> Value {
    let dots = drawing.dots.iter().enumerate().map(|(at, dot)| {
        let counts: serde_json::Map<String, Value> = dot
            .moods
            .iter()
            .map(|(mood, count)| (mood.as_str().to_owned(), (*count).into()))
            .collect();
        let mut value = json!({
            "id": at,
            "name": dot.name,
            "kind": dot.shape.as_str(),
            "state": dot.mood().as_str(),
            "states": counts,
        });
        if let Some(action) = &dot.action {
            value["action"] = action.as_str().into();
        }
        if let Some(cluster) = dot.cluster {
            value["role"] = drawing.clusters[cluster].as_str().into();
        }
        value
    });
    json!({
        "vertices": dots.collect::<Vec<_>>(),
        "edges": drawing.edges,
        "roles": drawing.clusters,
        "implied_edges_left_out": drawing.implied,
    })
}
