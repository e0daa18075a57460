//! A task file as text that a person can read and go on with.

use std::fmt::Write as _;

use serde_json::{Map, Value};

use super::convert::Native;

/// Columns that a line of lists and maps may have.
const WIDTH: usize = 100;

pub(super) fn write(native: &Native, title: &str) -> String {
    let mut text = format!("# {title}\nhoist: 1\n");
    // Fuel never reported unbound names, and ran one task on a node at a time.
    text.push_str("lenient: true\nlimits: {per_node: 1}\n");
    if !native.roles.is_empty() {
        text.push_str("\nroles:\n");
        for (name, role) in &native.roles {
            if let Some(remark) = native.remarks.get(name) {
                comment(&mut text, 2, remark);
            }
            entry(&mut text, 2, name, role);
        }
    }
    if !native.barriers.is_empty() {
        text.push_str("\nbarriers:\n");
        for (name, barrier) in &native.barriers {
            entry(&mut text, 2, name, barrier);
        }
    }
    if !native.tasks.is_empty() {
        text.push_str("\ntasks:\n");
    }
    for task in &native.tasks {
        text.push_str("  ");
        text.push_str(&scalar(&task.id));
        text.push_str(":\n");
        for remark in &task.remarks {
            comment(&mut text, 4, remark);
        }
        for (key, value) in &task.fields {
            entry(&mut text, 4, key, value);
        }
    }
    text
}

fn comment(text: &mut String, indent: usize, remark: &str) {
    let remark: String = remark.chars().map(|c| if is_special(c) { ' ' } else { c }).collect();
    let _ = writeln!(text, "{}# {remark}", " ".repeat(indent));
}

/// `key: value`, on one line if it fits.
fn entry(text: &mut String, indent: usize, key: &str, value: &Value) {
    let pad = " ".repeat(indent);
    let key = scalar(key);
    let line = flow(value);
    let fits = pad.len() + key.len() + 2 + line.len() <= WIDTH;
    match value {
        Value::Array(items)
            if !items.is_empty() && (!fits || items.iter().any(Value::is_object)) =>
        {
            let _ = writeln!(text, "{pad}{key}:");
            for item in items {
                block_item(text, indent + 2, item);
            }
        }
        Value::Object(map) if !map.is_empty() && !fits => {
            let _ = writeln!(text, "{pad}{key}:");
            block(text, indent + 2, map);
        }
        _ => drop(writeln!(text, "{pad}{key}: {line}")),
    }
}

fn block(text: &mut String, indent: usize, map: &Map<String, Value>) {
    for (key, value) in map {
        entry(text, indent, key, value);
    }
}

fn block_item(text: &mut String, indent: usize, item: &Value) {
    let pad = " ".repeat(indent);
    let line = flow(item);
    match item {
        Value::Object(map) if pad.len() + 2 + line.len() > WIDTH && !map.is_empty() => {
            let mut inner = String::new();
            block(&mut inner, indent + 2, map);
            let _ = write!(text, "{pad}- {}", inner.trim_start());
        }
        _ => drop(writeln!(text, "{pad}- {line}")),
    }
}

fn flow(value: &Value) -> String {
    match value {
        Value::String(text) => scalar(text),
        Value::Array(items) => {
            format!("[{}]", items.iter().map(flow).collect::<Vec<_>>().join(", "))
        }
        Value::Object(map) => {
            let pair =
                |(key, value): (&String, &Value)| format!("{}: {}", scalar(key), flow(value));
            format!("{{{}}}", map.iter().map(pair).collect::<Vec<_>>().join(", "))
        }
        plain => plain.to_string(),
    }
}

/// Characters that end a line or are not allowed for some readers of YAML.
fn is_special(c: char) -> bool {
    c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{fffe}' | '\u{ffff}' | '\u{feff}')
}

/// In quotes, without any special character.
fn quoted(text: &str) -> String {
    let mut line = String::with_capacity(text.len() + 2);
    for c in Value::from(text).to_string().chars() {
        if is_special(c) {
            let _ = write!(line, "\\u{:04x}", u32::from(c));
        } else {
            line.push(c);
        }
    }
    line
}

/// Plain where it means the same to every reader, those of YAML 1.1 among them; else quoted.
fn scalar(text: &str) -> String {
    const WORDS: [&str; 9] = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"];
    let starts = |c: char| c.is_ascii_alphabetic() || matches!(c, '/' | '_');
    let inside = |c: char| c.is_ascii_alphanumeric() || "_-./() +=$^|;<>@%*".contains(c);
    let is_plain = text.starts_with(starts)
        && text.chars().all(inside)
        && !text.ends_with(' ')
        && !WORDS.contains(&text.to_ascii_lowercase().as_str());
    // `30m` and `2%`.
    let is_amount = text.strip_suffix(['s', 'm', '%']).is_some_and(|number| {
        !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
    });
    if is_plain || is_amount { text.to_owned() } else { quoted(text) }
}
