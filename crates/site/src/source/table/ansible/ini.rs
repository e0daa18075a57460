//! The INI form: `[group]`, `[group:children]`, `[group:vars]`, and hosts with `key=value` behind.

use serde_json::Value;

use super::super::{Diagnostics, MAX_NODES};
use super::{Inventory, Vars, expand};

enum Section {
    Hosts(String),
    Children(String),
    Vars(String),
}

pub(super) fn read(text: &str, diagnostics: &mut Diagnostics) -> Inventory {
    let mut inventory = Inventory::default();
    let mut section = Section::Hosts("ungrouped".to_owned());
    for (line, number) in text.lines().zip(1u64..) {
        let line = line.trim();
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        if diagnostics.is_full() {
            break;
        }
        let done = if line.starts_with('[') && !is_host_range(line) {
            header(line, &mut inventory).map(|found| section = found)
        } else {
            entry(line, number, &section, &mut inventory)
        };
        if let Err(message) = done {
            diagnostics.add(number, message);
        }
    }
    inventory
}

/// `[a:c]-node` starts with a bracket, but a header ends with one.
fn is_host_range(line: &str) -> bool {
    let code = line.split(" #").next().unwrap_or(line).trim_end();
    !code.ends_with(']') && code.contains(']')
}

fn header(line: &str, inventory: &mut Inventory) -> Result<Section, String> {
    let code = line.split(" #").next().unwrap_or(line).trim_end();
    let inner = code.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let inner = inner.ok_or_else(|| format!("`{line}` has no closing bracket"))?.trim();
    let (group, kind) = inner.split_once(':').unwrap_or((inner, "hosts"));
    let group = group.trim().to_owned();
    if group.is_empty() {
        return Err("a section needs the name of a group".to_owned());
    }
    inventory.groups.entry(group.clone()).or_default();
    match kind.trim() {
        "hosts" => Ok(Section::Hosts(group)),
        "children" => Ok(Section::Children(group)),
        "vars" => Ok(Section::Vars(group)),
        other => Err(format!("`:{other}` is not known; there are `:children` and `:vars`")),
    }
}

fn entry(
    line: &str,
    number: u64,
    section: &Section,
    inventory: &mut Inventory,
) -> Result<(), String> {
    match section {
        Section::Hosts(group) => host(line, number, group, inventory),
        Section::Children(group) => {
            let child = line.split(" #").next().unwrap_or(line).trim().to_owned();
            inventory.groups.entry(child.clone()).or_default();
            inventory.groups.entry(group.clone()).or_default().children.insert(child);
            Ok(())
        }
        Section::Vars(group) => {
            let (key, value) =
                line.split_once('=').ok_or_else(|| "a variable is written KEY=VALUE".to_owned())?;
            let value = unquoted(value.trim());
            let vars = &mut inventory.groups.entry(group.clone()).or_default().vars;
            vars.insert(key.trim().to_owned(), Value::String(value));
            Ok(())
        }
    }
}

fn host(line: &str, number: u64, group: &str, inventory: &mut Inventory) -> Result<(), String> {
    let words = words(line)?;
    let (pattern, rest) = words.split_first().ok_or_else(|| "the line has no host".to_owned())?;
    let mut vars = Vars::new();
    for word in rest {
        let (key, value) = word
            .split_once('=')
            .ok_or_else(|| "behind a host there are KEY=VALUE, separated by spaces".to_owned())?;
        vars.insert(key.to_owned(), Value::String(value.to_owned()));
    }
    let left = MAX_NODES.saturating_sub(inventory.hosts.len());
    for name in expand(without_port(pattern), left)? {
        let host = inventory.hosts.entry(name.clone()).or_default();
        if host.line == 0 {
            host.line = number;
        }
        host.vars.extend(vars.iter().map(|(key, value)| (key.clone(), value.clone())));
        inventory.groups.entry(group.to_owned()).or_default().hosts.insert(name);
    }
    Ok(())
}

/// `host:2222`, but neither `node[1:9]` nor an IPv6 address.
fn without_port(pattern: &str) -> &str {
    match pattern.rsplit_once(':') {
        Some((host, port))
            if !host.contains(':')
                && !port.is_empty()
                && port.bytes().all(|b| b.is_ascii_digit()) =>
        {
            host
        }
        _ => pattern,
    }
}

/// Splits at spaces, outside of quotes; a `#` after a space starts a comment.
fn words(line: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    for c in line.chars() {
        match quote {
            Some(open) if c == open => quote = None,
            None if c == '"' || c == '\'' => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            None if c.is_whitespace() => words.extend(word.take()),
            None if c == '#' && word.is_none() => break,
            _ => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    if quote.is_some() { Err("a quote is not closed".to_owned()) } else { Ok(words) }
}

fn unquoted(text: &str) -> String {
    for quote in ['"', '\''] {
        let inner = text.strip_prefix(quote).and_then(|rest| rest.strip_suffix(quote));
        if let Some(inner) = inner {
            return inner.to_owned();
        }
    }
    text.to_owned()
}
