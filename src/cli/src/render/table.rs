//! Tables: aligned columns two spaces apart, a header also when there are no rows, hostile text escaped.

use std::io::{self, Write};

use super::escape;

/// A table.
pub(crate) struct Table {
    header: &'static [&'static str],
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these columns.
    pub(crate) fn new(header: &'static [&'static str]) -> Self {
        Self { header, rows: Vec::new() }
    }

    /// Adds a row; its cells are escaped here, so that no caller can forget it.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let shown = |cell: String| match escape::text(&cell) {
            std::borrow::Cow::Borrowed(_) => cell,
            std::borrow::Cow::Owned(escaped) => escaped,
        };
        self.rows.push(cells.into_iter().map(shown).collect());
    }

    /// Writes it, with its header when `legend`.
    pub(crate) fn write(&self, out: &mut dyn Write, legend: bool) -> io::Result<()> {
        let mut widths: Vec<usize> = self.header.iter().map(|name| if legend { name.len() } else { 0 }).collect();
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        if legend {
            line(out, self.header, &widths)?;
        }
        self.rows.iter().try_for_each(|row| line(out, row, &widths))
    }
}

/// Writes one line of cells, which the caller has escaped.
pub(crate) fn line(out: &mut dyn Write, cells: &[impl AsRef<str>], widths: &[usize]) -> io::Result<()> {
    // What follows the last cell with text is not padded: no spaces at the end of a line.
    let last = cells.iter().rposition(|cell| !cell.as_ref().is_empty()).unwrap_or(0);
    for (i, (cell, width)) in cells.iter().zip(widths).enumerate().take(last + 1) {
        let pad = if i == last { 0 } else { width + 2 };
        write!(out, "{:<pad$}", cell.as_ref())?;
    }
    out.write_all(b"\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(table: &Table, legend: bool) -> String {
        let mut out = Vec::new();
        table.write(&mut out, legend).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn aligned_escaped_and_with_a_header_when_empty() {
        let mut table = Table::new(&["ID", "NAME"]);
        assert_eq!(written(&table, true), "ID  NAME\n");
        assert_eq!(written(&table, false), "");
        table.row(["abcdef".into(), "über".into()]);
        table.row(["ü".into(), "\u{1b}[0m".into()]);
        table.row(["x".into(), String::new()]);
        assert_eq!(written(&table, true), "ID      NAME\nabcdef  über\nü       \\u{1b}[0m\nx\n");
        assert_eq!(written(&table, false), "abcdef  über\nü       \\u{1b}[0m\nx\n");
    }
}
