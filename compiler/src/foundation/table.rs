//! Tables for people: rows whose cells stand below each other.
//!
//! In: rows of cells, and on which side each column stands. Out: a line for each row, without blanks at its end.

/// The widest column; a wider cell stands out of it.
const WIDEST: usize = 200;

/// Rows as columns as wide as their widest cell; where `sides` has an `r`, cells stand on the right.
pub fn table(sides: &str, between: &str, rows: &[impl AsRef<[String]>]) -> String {
    let widest = |column: usize| rows.iter().map(|row| row.as_ref()[column].chars().count()).max();
    let width = |column: usize| widest(column).unwrap_or(0).min(WIDEST);
    let widths: Vec<usize> = (0..sides.len()).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let cells = row.as_ref().iter().zip(&widths).zip(sides.chars());
        let cells = cells.map(
            |((cell, width), side)| {
                if side == 'r' { format!("{cell:>width$}") } else { format!("{cell:width$}") }
            },
        );
        text += cells.collect::<Vec<_>>().join(between).trim_end();
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_stand_where_they_are_asked_to() {
        let rows = [vec!["a".to_owned(), "1".to_owned()], vec!["bcd".to_owned(), "23".to_owned()]];
        assert_eq!(table("lr", "  ", &rows), "a     1\nbcd  23\n");
    }
}
