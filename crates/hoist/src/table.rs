//! Plain columns, two spaces apart, without borders: easy to read, easy to cut.

use comfy_table::ContentArrangement;
use comfy_table::presets::NOTHING;

/// A table whose last columns are only for `-o wide`.
#[derive(Debug)]
pub(crate) struct Table {
    columns: Vec<&'static str>,
    /// How many columns are always there.
    narrow: usize,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(columns: &[&'static str]) -> Self {
        Self { columns: columns.to_vec(), narrow: columns.len(), rows: Vec::new() }
    }

    #[must_use]
    pub(crate) fn wide(mut self, columns: &[&'static str]) -> Self {
        self.columns.extend(columns);
        self
    }

    pub(crate) fn row(&mut self, cells: Vec<String>) {
        debug_assert_eq!(cells.len(), self.columns.len());
        self.rows.push(cells);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    pub(crate) fn render(&self, wide: bool) -> String {
        let count = if wide { self.columns.len() } else { self.narrow };
        let mut table = comfy_table::Table::new();
        table.load_style(NOTHING);
        table.set_content_arrangement(ContentArrangement::Disabled);
        table.set_header(&self.columns[..count]);
        for row in &self.rows {
            table.add_row(row[..count].iter().map(|cell| shown(cell)));
        }
        for column in table.column_iter_mut() {
            column.set_padding((0, 2));
        }
        table.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
    }
}

/// An empty cell would shift the columns for `awk`; a control character could do anything.
fn shown(cell: &str) -> String {
    if cell.is_empty() {
        return "-".to_owned();
    }
    cell.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_nothing_trails() {
        let mut table = Table::new(&["NAME", "ROLE"]).wide(&["NID"]);
        table.row(vec!["n1".into(), "compute".into(), "1".into()]);
        table.row(vec!["login-long".into(), String::new(), "2".into()]);
        assert_eq!(table.render(false), "NAME        ROLE\nn1          compute\nlogin-long  -\n");
        assert_eq!(
            table.render(true),
            "NAME        ROLE     NID\nn1          compute  1\nlogin-long  -        2\n"
        );
    }

    #[test]
    fn a_cell_cannot_break_the_line_or_drive_the_terminal() {
        let mut table = Table::new(&["A"]);
        table.row(vec!["x\n\u{1b}[31my".into()]);
        assert_eq!(table.render(false), "A\nx  [31my\n");
    }
}
