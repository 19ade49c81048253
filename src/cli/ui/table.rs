//! Tables whose columns stay in line whatever the cells hold.

use unicode_width::UnicodeWidthStr as _;

use crate::escape;

/// Rows of cells.
#[derive(Debug, Default)]
pub(crate) struct Table {
    rows: Vec<Vec<Cell>>,
}

/// One cell; its text is raw and escaped when it is shown.
#[derive(Debug, Clone, Default)]
pub(crate) struct Cell {
    text: String,
    ink: Option<Ink>,
    right: bool,
}

/// Colours by what they mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ink {
    Good,
    Bad,
    Unsure,
    Faint,
    Strong,
}

impl Ink {
    /// `text`, which is escaped already, in this colour.
    pub(crate) fn paint(self, text: &str, color: bool) -> String {
        if !color || text.is_empty() {
            return text.to_owned();
        }
        let code = match self {
            Self::Good => "32",
            Self::Bad => "31",
            Self::Unsure => "33",
            Self::Faint => "2",
            Self::Strong => "1",
        };
        format!("\u{1b}[{code}m{text}\u{1b}[0m")
    }
}

impl Cell {
    /// A cell.
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            ..Self::default()
        }
    }

    /// In a colour.
    #[must_use]
    pub(crate) fn ink(mut self, ink: Ink) -> Self {
        self.ink = Some(ink);
        self
    }

    /// Aligned to the right, as numbers are.
    #[must_use]
    pub(crate) fn right(mut self) -> Self {
        self.right = true;
        self
    }
}

impl Table {
    /// Adds a row.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = Cell>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// The lines, two spaces between columns, none at the end of a line.
    pub(crate) fn show(&self, color: bool) -> String {
        let escaped = |cell: &Cell| escape::line(&cell.text).into_owned();
        let rows: Vec<Vec<String>> = self
            .rows
            .iter()
            .map(|row| row.iter().map(escaped).collect())
            .collect();
        let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.width()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut out = String::new();
        for (row, texts) in self.rows.iter().zip(&rows) {
            let mut line = String::new();
            for ((cell, text), width) in row.iter().zip(texts).zip(&widths) {
                let space = " ".repeat(width.saturating_sub(text.width()));
                let text = cell
                    .ink
                    .map_or_else(|| text.clone(), |ink| ink.paint(text, color));
                let (before, after) = if cell.right {
                    (space, String::new())
                } else {
                    (String::new(), space)
                };
                line.push_str(&before);
                line.push_str(&text);
                line.push_str(&after);
                line.push_str("  ");
            }
            out.push_str(line.trim_end());
            out.push('\n');
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_stay_in_line_with_wide_and_hostile_cells() {
        let mut table = Table::default();
        for (name, number) in [("日本", "1.00"), ("a\u{1b}[2K", "10.00"), ("e\u{301}", "")] {
            table.row([
                Cell::new(name),
                Cell::new(number).right(),
                Cell::new("x").ink(Ink::Good),
            ]);
        }
        assert_eq!(
            table.show(false),
            "日本         1.00  x\na\\u{1b}[2K  10.00  x\ne\u{301}                  x\n"
        );
        assert!(table.show(true).contains("\u{1b}[32mx\u{1b}[0m"));
    }
}
