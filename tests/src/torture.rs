//! Owns the length of the long stories, and the table each of them ends with.
//!
//! In the ordinary test command a story takes seconds. `OKDB_TORTURE=long`
//! tells it at full length, `OKDB_TORTURE=200` for that many rounds.

use std::fmt::Write as _;

/// How many rounds to tell: `short` in the test command, `long` on request.
#[must_use]
pub fn rounds(short: usize, long: usize) -> usize {
    match std::env::var("OKDB_TORTURE") {
        Ok(text) if text == "long" => long,
        Ok(text) => text.parse().unwrap_or_else(|_| {
            panic!("OKDB_TORTURE={text} is neither `long` nor a number of rounds")
        }),
        Err(_) => short,
    }
}

/// Whether the full length was asked for.
#[must_use]
pub fn is_long() -> bool {
    std::env::var_os("OKDB_TORTURE").is_some()
}

/// A table of counts, printed at a story's end.
pub struct Table {
    title: String,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// An empty table with these columns.
    #[must_use]
    pub fn new(title: &str, columns: &[&str]) -> Self {
        Self {
            title: title.to_owned(),
            rows: vec![columns.iter().map(ToString::to_string).collect()],
        }
    }

    /// Adds one line: what it is about, then its counts.
    pub fn row(&mut self, name: &str, counts: &[u64]) {
        let mut row = vec![name.to_owned()];
        row.extend(counts.iter().map(ToString::to_string));
        self.rows.push(row);
    }

    /// Prints the table; shown with `--nocapture`, or when the story fails.
    pub fn print(&self) {
        let columns = self.rows.first().map_or(0, Vec::len);
        let width = |column: usize| {
            self.rows
                .iter()
                .filter_map(|row| row.get(column))
                .map(String::len)
                .max()
                .unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut text = format!("\n{}\n", self.title);
        for row in &self.rows {
            for (cell, width) in row.iter().zip(&widths) {
                let _ = write!(text, "  {cell:>width$}");
            }
            text.push('\n');
        }
        println!("{text}");
    }
}
