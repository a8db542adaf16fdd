//! Tables: aligned columns two spaces apart, always with a header, cells escaped.

use std::io::{self, Write};

use super::escape;

/// A table.
pub(crate) struct Table {
    header: &'static [&'static str],
    /// The escaped cells of all rows, one after another. Separate `String`s would take most of the memory of a long
    /// list.
    text: String,
    /// The end of each cell in the text.
    cell_ends: Vec<usize>,
    /// The number of cells up to the end of each row.
    row_ends: Vec<usize>,
    /// The width of the widest cell of each column, in characters.
    widths: Vec<usize>,
    /// The columns that may be truncated to fit a terminal.
    cut: &'static [usize],
}

/// The minimum width of a truncated column.
const MIN_CUT: usize = 8;

/// The width of the terminal on standard output, if it is one.
pub(crate) fn terminal_width() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(rustix::stdio::stdout()).ok();
    size.map(|size| usize::from(size.ws_col)).filter(|width| *width > 0)
}

impl Table {
    /// A table with these columns.
    pub(crate) fn new(header: &'static [&'static str]) -> Self {
        let (text, cell_ends, row_ends) = (String::new(), Vec::new(), Vec::new());
        Self { header, text, cell_ends, row_ends, widths: vec![0; header.len()], cut: &[] }
    }

    /// The number of columns.
    pub(crate) fn width(&self) -> usize {
        self.header.len()
    }

    /// Adds a row. Cells are escaped here, so that no caller can forget it.
    pub(crate) fn row<T: AsRef<str>>(&mut self, cells: impl IntoIterator<Item = T>) {
        let mut widths = self.widths.iter_mut();
        for cell in cells {
            let shown = escape::text(cell.as_ref());
            self.text.push_str(&shown);
            self.cell_ends.push(self.text.len());
            if let Some(width) = widths.next() {
                *width = (*width).max(shown.chars().count());
            }
        }
        self.row_ends.push(self.cell_ends.len());
    }

    /// Calls `each` with the cells of each row.
    fn try_for_each_row(&self, mut each: impl FnMut(&[&str]) -> io::Result<()>) -> io::Result<()> {
        let mut cells = Vec::with_capacity(self.header.len());
        let (mut start, mut first) = (0, 0);
        for &row_end in &self.row_ends {
            for &end in &self.cell_ends[first..row_end] {
                cells.push(&self.text[start..end]);
                start = end;
            }
            first = row_end;
            each(&cells)?;
            cells.clear();
        }
        Ok(())
    }

    /// The same table, with these columns truncated if necessary to fit a terminal.
    pub(crate) fn cutting(self, columns: &'static [usize]) -> Self {
        Self { cut: columns, ..self }
    }

    /// Writes the table; `legend`: with its header.
    pub(crate) fn write(&self, out: &mut dyn Write, legend: bool) -> io::Result<()> {
        self.write_within(out, legend, None)
    }

    /// Writes the table. If possible, columns are truncated so that no line is wider than `width`.
    pub(crate) fn write_within(&self, out: &mut dyn Write, legend: bool, width: Option<usize>) -> io::Result<()> {
        let least = self.header.iter().map(|name| if legend { name.len() } else { 0 });
        let natural: Vec<usize> = least.zip(&self.widths).map(|(least, width)| least.max(*width)).collect();
        let mut widths = natural.clone();
        if let Some(width) = width {
            self.narrow(&mut widths, width);
        }
        if legend {
            line(out, self.header, &widths)?;
        }
        if natural == widths {
            return self.try_for_each_row(|row| line(out, row, &widths));
        }
        self.try_for_each_row(|row| {
            let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| cut(cell, *width)).collect();
            line(out, &cells, &widths)
        })
    }

    /// Reduces the widest of the columns that may be truncated until a line fits into `max_width`.
    fn narrow(&self, widths: &mut [usize], max_width: usize) {
        let between = 2 * widths.len().saturating_sub(1);
        while widths.iter().sum::<usize>() + between > max_width {
            let least = |column: usize| MIN_CUT.max(self.header.get(column).map_or(0, |name| name.len()));
            let widest =
                self.cut.iter().copied().filter(|&column| widths.get(column).is_some_and(|w| *w > least(column)));
            let Some(column) = widest.max_by_key(|&column| widths[column]) else { return };
            widths[column] -= 1;
        }
    }
}

/// The text, truncated with an ellipsis if necessary.
fn cut(cell: &str, width: usize) -> String {
    if cell.chars().count() <= width {
        return cell.to_owned();
    }
    let mut text: String = cell.chars().take(width.saturating_sub(1)).collect();
    text.push('…');
    text
}

/// Writes one line of cells, which the caller has escaped.
pub(crate) fn line(out: &mut dyn Write, cells: &[impl AsRef<str>], widths: &[usize]) -> io::Result<()> {
    // The last cell with text is not padded, so that no line ends in spaces.
    let last = cells.iter().rposition(|cell| !cell.as_ref().is_empty()).unwrap_or(0);
    for (i, (cell, width)) in cells.iter().zip(widths).enumerate().take(last + 1) {
        let cell = cell.as_ref();
        out.write_all(cell.as_bytes())?;
        if i < last {
            // A cell can be longer than its column, because the widths of events are fixed. Separate it from the next
            // one.
            write_spaces(out, width.saturating_sub(cell.chars().count()) + 2)?;
        }
    }
    out.write_all(b"\n")
}

fn write_spaces(out: &mut dyn Write, mut count: usize) -> io::Result<()> {
    const SPACES: [u8; 32] = [b' '; 32];
    while count > 0 {
        let some = count.min(SPACES.len());
        out.write_all(&SPACES[..some])?;
        count -= some;
    }
    Ok(())
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
    fn cells_are_always_separated() {
        let mut out = Vec::new();
        line(&mut out, &["too long", "x"], &[3, 0]).unwrap();
        assert_eq!(out, b"too long  x\n");
    }

    #[test]
    fn columns_are_cut_to_fit() {
        let mut table = Table::new(&["ID", "NAME"]).cutting(&[1]);
        table.row(["abcdef", "überlanger Name"]);
        for (width, want) in [
            (None, "abcdef  überlanger Name\n"),
            (Some(80), "abcdef  überlanger Name\n"),
            (Some(20), "abcdef  überlanger …\n"),
            (Some(1), "abcdef  überlan…\n"),
        ] {
            let mut out = Vec::new();
            table.write_within(&mut out, false, width).unwrap();
            assert_eq!(String::from_utf8(out).unwrap(), want);
        }
    }

    #[test]
    fn tables_are_aligned_and_escaped() {
        let mut table = Table::new(&["ID", "NAME"]);
        assert_eq!(written(&table, true), "ID  NAME\n");
        assert_eq!(written(&table, false), "");
        table.row(["abcdef", "über"]);
        table.row(["ü", "\u{1b}[0m"]);
        table.row(["x", ""]);
        assert_eq!(written(&table, true), "ID      NAME\nabcdef  über\nü       \\u{1b}[0m\nx\n");
        assert_eq!(written(&table, false), "abcdef  über\nü       \\u{1b}[0m\nx\n");
    }
}
