//! CSV with a header row.
//!
//! | column | meaning |
//! | --- | --- |
//! | `name` | the node's name |
//! | `xname`, `nid`, `role`, `subrole`, `arch` | as in documents |
//! | `partition` | `default` if empty |
//! | `groups` | separated by `;` or <code>&#124;</code> |
//! | `mac` | the node's MACs, separated likewise |
//! | `ip` | its addresses: all on the one MAC, or one for each MAC in the same order |
//! | `network` | the network of all its interfaces |
//! | `enabled` | `true` or `false` |
//! | `bmc` | xname, host name or address of its BMC |
//! | `label:KEY` | the label KEY; an empty cell is no label |
//!
//! Every row needs a `name`, an `xname` or a `nid`. Columns that are not there are not touched on
//! nodes that exist. `;` and tab separate cells too, when the header has no comma.

use std::collections::HashMap;

use hoist_model::node::Bmc;
use hoist_model::{LabelKey, Name, Nid, NodeSpec, Role, nearest};

use super::{Diagnostics, MAX_NODES, TableError, groups, list, pair, settle_strictly};
use crate::source::value::Reader;
use crate::source::{Field, FieldSet, ImportedNode, ImportedSet, WarningKind, yaml};

/// Widest table; a node has at most 64 labels.
const MAX_COLUMNS: usize = 128;

const COLUMNS: [&str; 14] = [
    "name",
    "xname",
    "nid",
    "partition",
    "groups",
    "mac",
    "ip",
    "network",
    "role",
    "subrole",
    "arch",
    "enabled",
    "bmc",
    "label:",
];

enum Column {
    Plain(&'static str),
    Label(LabelKey),
}

/// `what` names the file in errors.
pub fn read(what: &str, text: &[u8]) -> Result<ImportedSet, TableError> {
    let mut diagnostics = Diagnostics::new(what);
    let text = match yaml::utf8(text) {
        Ok(text) => text,
        Err(message) => return diagnostics.fail(0, message),
    };
    let mut reader = ::csv::ReaderBuilder::new()
        .delimiter(delimiter(text))
        .trim(::csv::Trim::All)
        .comment(Some(b'#'))
        .from_reader(text.as_bytes());
    let columns = match reader.headers() {
        Ok(header) => columns(header, &mut diagnostics),
        Err(error) => return diagnostics.fail(line_of(&error), error.to_string()),
    };
    if !diagnostics.is_empty() {
        return Err(diagnostics.into_error());
    }
    let mut nodes = Vec::new();
    let mut lines: HashMap<String, u64> = HashMap::new();
    for record in reader.records() {
        let record = match record {
            Ok(record) => record,
            Err(error) => {
                diagnostics.add(line_of(&error), csv_message(&error));
                // Rows after a broken one cannot be trusted.
                break;
            }
        };
        let line = record.position().map_or(0, ::csv::Position::line);
        if record.iter().all(str::is_empty) {
            continue;
        }
        if nodes.len() == MAX_NODES {
            return diagnostics.fail(line, format!("there are more than {MAX_NODES} nodes"));
        }
        let mut warnings = Vec::new();
        let node = row(&columns, &record, &mut Reader { subject: "", warnings: &mut warnings });
        diagnostics.add_warnings(line, warnings);
        if diagnostics.is_full() {
            break;
        }
        let Some(node) = node else { continue };
        if let Some(earlier) = lines.insert(node.external_id.clone(), line) {
            diagnostics.add(line, format!("`{}` is already in line {earlier}", node.external_id));
            continue;
        }
        nodes.push(node);
    }
    if nodes.is_empty() && diagnostics.is_empty() {
        return diagnostics.fail(0, "the table has no nodes");
    }
    let nodes = settle_strictly(nodes, &lines, &mut diagnostics);
    diagnostics.finish(ImportedSet { nodes, fields: fields(&columns), ..ImportedSet::default() })
}

fn delimiter(text: &str) -> u8 {
    let header = text.lines().find(|line| !line.starts_with('#') && !line.trim().is_empty());
    let header = header.unwrap_or_default();
    [b',', b';', b'\t'].into_iter().find(|d| header.contains(char::from(*d))).unwrap_or(b',')
}

fn columns(header: &::csv::StringRecord, diagnostics: &mut Diagnostics) -> Vec<Column> {
    let line = header.position().map_or(1, ::csv::Position::line);
    if header.len() > MAX_COLUMNS {
        diagnostics.add(line, format!("there are more than {MAX_COLUMNS} columns"));
        return Vec::new();
    }
    let mut columns = Vec::with_capacity(header.len());
    let mut seen = std::collections::BTreeSet::new();
    for title in header {
        let word = title.to_ascii_lowercase();
        if !seen.insert(word.clone()) {
            diagnostics.add(line, format!("there are two columns `{title}`"));
        }
        let label = title.get(..6).filter(|start| start.eq_ignore_ascii_case("label:"));
        if label.is_some() {
            match title[6..].parse() {
                Ok(key) => columns.push(Column::Label(key)),
                Err(error) => diagnostics.add(line, error.to_string()),
            }
            continue;
        }
        match COLUMNS.into_iter().find(|column| *column == word) {
            Some(column) => columns.push(Column::Plain(column)),
            None => diagnostics.add(line, unknown(title, &word)),
        }
    }
    let identifies = |c: &Column| matches!(c, Column::Plain("name" | "xname" | "nid"));
    if diagnostics.is_empty() && !columns.iter().any(identifies) {
        diagnostics.add(line, "the header row has no column `name`, `xname` or `nid`");
    }
    columns
}

fn unknown(title: &str, word: &str) -> String {
    match nearest(word, COLUMNS) {
        Some(close) => format!("column `{title}` not found; did you mean `{close}`?"),
        None => format!("column `{title}` not found; for a label write `label:{title}`"),
    }
}

fn row(
    columns: &[Column],
    record: &::csv::StringRecord,
    reader: &mut Reader<'_>,
) -> Option<ImportedNode> {
    let cell = |wanted: &str| {
        let position = columns.iter().position(|c| matches!(c, Column::Plain(n) if *n == wanted));
        position.and_then(|at| record.get(at)).unwrap_or_default()
    };
    let name = reader.parse::<Name>(cell("name"));
    let mut spec = NodeSpec {
        xname: reader.node_xname(cell("xname")),
        nid: reader.parse::<Nid>(cell("nid")),
        groups: groups(list(cell("groups")), reader),
        interfaces: pair(&list(cell("mac")), &list(cell("ip")), reader),
        arch: reader.arch(cell("arch")),
        role: reader.parse::<Role>(cell("role")),
        subrole: reader.parse::<Role>(cell("subrole")),
        enabled: enabled(cell("enabled"), reader),
        ..NodeSpec::default()
    };
    if let Some(partition) = reader.parse::<Name>(cell("partition")) {
        spec.partition = partition;
    }
    if let Some(network) = reader.parse::<Name>(cell("network")) {
        for interface in &mut spec.interfaces {
            interface.network = Some(network.clone());
        }
    }
    if !cell("bmc").is_empty() {
        spec.bmc = Some(Box::new(Bmc { r#ref: cell("bmc").to_owned(), protocol: None }));
    }
    let labels = columns.iter().zip(record).filter_map(|(column, text)| match column {
        Column::Label(key) if !text.is_empty() => Some((key.clone(), text.to_owned())),
        _ => None,
    });
    spec.labels = labels.collect();
    let external_id = name.as_ref().map(ToString::to_string);
    let external_id = external_id.or_else(|| spec.xname.map(|xname| xname.to_string()));
    let external_id = external_id.or_else(|| spec.nid.map(|nid| nid.to_string()));
    if external_id.is_none() && ["name", "xname", "nid"].iter().all(|c| cell(c).is_empty()) {
        reader.warn(WarningKind::Value, "a node needs a name, an xname or a nid");
    }
    Some(ImportedNode { external_id: external_id?, name, spec, state: None })
}

fn enabled(text: &str, reader: &mut Reader<'_>) -> bool {
    match text.to_ascii_lowercase().as_str() {
        "" | "true" | "yes" | "1" => true,
        "false" | "no" | "0" => false,
        _ => {
            reader.warn(WarningKind::Value, format!("`{text}` is neither true nor false"));
            true
        }
    }
}

fn fields(columns: &[Column]) -> FieldSet {
    let field = |column: &Column| match column {
        Column::Label(_) => Some(Field::Labels),
        Column::Plain("mac" | "ip" | "network") => Some(Field::Interfaces),
        Column::Plain(word) => Field::from_word(word),
    };
    columns.iter().filter_map(field).collect()
}

fn line_of(error: &::csv::Error) -> u64 {
    error.position().map_or(0, ::csv::Position::line)
}

fn csv_message(error: &::csv::Error) -> String {
    match error.kind() {
        ::csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
            format!("there are {len} cells, but {expected_len} columns")
        }
        _ => error.to_string(),
    }
}
