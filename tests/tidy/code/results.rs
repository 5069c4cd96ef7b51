//! The tables of speed in the documents come from the files of results.
//!
//! In: `benches/results/*.csv`. Out: the tables between the markers of `docs/performance.md`, `docs/gpu.md` and
//! `README.md`; an offence for a row that does not read.
//! A document holds the rows of the series `current`; the other rows are kept for comparison.

use tree::marked::hold;
use tree::{File, Offence, assert_none, files, offence};

/// The columns of every file.
const COLUMNS: [&str; 15] = [
    "date", "commit", "machine", "model", "format", "threads", "test", "unit", "ours", "peer", "against",
    "ratio", "share", "series", "note",
];

/// What a row may be for: the newest figures of a build, older ones, a range over builds, comparisons with a peer that
/// were measured apart, and figures beside other work.
const SERIES: [&str; 5] = ["current", "earlier", "range", "peer", "busy"];

/// The formats of the tables, in order.
const FORMATS: [&str; 5] = ["Q8_0", "Q4_0", "Q4_K_M", "F16", "BF16"];

/// How far a ratio may be from that of its figures: all of them are rounded.
const SLACK: f64 = 1.05;

/// The model of the main tables.
const MAIN: &str = "Qwen3-0.6B";

/// The machines of the tables: how documents call them, and what they hold.
const MACHINES: [(&str, &str); 4] = [
    ("Intel Xeon with AMX", "Xeon, AMX"),
    ("AMD EPYC, Zen 5", "Zen 5"),
    ("AMD EPYC, Zen 4", "Zen 4"),
    ("AMD EPYC, Zen 3 (AVX2)", "Zen 3, AVX2"),
];

/// A row of a file: its cells, by the names of their columns.
#[derive(Clone, Debug)]
struct Row(Vec<String>);

impl Row {
    fn get(&self, column: &str) -> &str {
        let at = COLUMNS.iter().position(|name| *name == column).expect("a column of the list");
        &self.0[at]
    }

    /// Whether the named columns hold these cells.
    fn is(&self, wanted: &[(&str, &str)]) -> bool {
        wanted.iter().all(|(column, cell)| self.get(column) == *cell)
    }
}

/// The cells of a line, of which some stand in quotes.
fn cells(line: &str) -> Vec<String> {
    let (mut cells, mut is_quoted) = (vec![String::new()], false);
    for c in line.chars() {
        match c {
            '"' => is_quoted = !is_quoted,
            ',' if !is_quoted => cells.push(String::new()),
            _ => cells.last_mut().expect("never empty").push(c),
        }
    }
    cells
}

/// The least and the largest number of a cell: `1.5`, or `1.5 to 1.7`.
fn range(cell: &str) -> Option<[f64; 2]> {
    let (low, high) = cell.split_once(" to ").unwrap_or((cell, cell));
    let [low, high] = [low.parse().ok()?, high.parse().ok()?];
    (low <= high).then_some([low, high])
}

/// The rows of a file, and what is wrong with it.
fn read(file: &File) -> (Vec<Row>, Vec<Offence>) {
    let mut lines = (1..).zip(file.text.lines());
    let mut offences = Vec::new();
    if lines.next().is_none_or(|(_, head)| cells(head) != COLUMNS) {
        offences.push(offence(&file.path, 1, format!("the columns must be {}", COLUMNS.join(","))));
    }
    let mut rows = Vec::new();
    for (line, text) in lines {
        let row = Row(cells(text));
        if row.0.len() != COLUMNS.len() {
            offences.push(offence(&file.path, line, format!("{} cells, not {}", row.0.len(), COLUMNS.len())));
            continue;
        }
        offences.extend(faults(&row).into_iter().map(|what| offence(&file.path, line, what)));
        rows.push(row);
    }
    (rows, offences)
}

/// What is wrong with a row.
fn faults(row: &Row) -> Vec<String> {
    let mut faults = Vec::new();
    for column in ["date", "machine", "model", "format", "test", "unit"] {
        if row.get(column).is_empty() {
            faults.push(format!("no {column}"));
        }
    }
    if !SERIES.contains(&row.get("series")) {
        faults.push(format!("`{}` is no series of {}", row.get("series"), SERIES.join(", ")));
    }
    for column in ["ours", "peer", "ratio", "share"] {
        let cell = row.get(column);
        if !cell.is_empty() && range(cell).is_none() {
            faults.push(format!("`{cell}` under {column} is no number and no range"));
        }
    }
    if row.get("ours").is_empty() && row.get("ratio").is_empty() {
        faults.push("neither a figure nor a ratio".to_owned());
    }
    if !row.get("ratio").is_empty() && row.get("against").is_empty() {
        faults.push("a ratio against nothing".to_owned());
    }
    if let (Some([low, high]), Some([least, most])) = (range(row.get("ratio")), divided(row))
        && (low < least / SLACK || high > most * SLACK)
    {
        faults.push(format!("the ratio {} is not that of its figures", row.get("ratio")));
    }
    faults
}

/// Every row of every file, in order.
fn rows() -> Vec<Row> {
    let files = files(&["csv"]).into_iter().filter(|file| file.path.starts_with("benches/results/"));
    files.flat_map(|file| read(&file).0).collect()
}

/// The cells that a column has in the rows of a kind: one after another, or a dash.
fn found(rows: &[Row], wanted: &[(&str, &str)], column: &str) -> String {
    let found = rows.iter().filter(|row| row.is(wanted)).map(|row| row.get(column));
    let found: Vec<&str> = found.filter(|cell| !cell.is_empty()).collect();
    if found.is_empty() { "–".to_owned() } else { found.join("; ") }
}

fn table(head: &[&str], lines: impl IntoIterator<Item = Vec<String>>) -> String {
    let row = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let head: Vec<String> = head.iter().map(|cell| (*cell).to_owned()).collect();
    let rule = format!("|{}\n", "---|".repeat(head.len()));
    lines.into_iter().fold(row(&head) + &rule, |all, line| all + &row(&line))
}

/// What a figure belongs to.
const KEY: [&str; 5] = ["machine", "model", "format", "threads", "test"];

/// The current figures of a key, by the column that holds them.
fn current(rows: &[Row], key: [&str; 5], column: &str) -> String {
    let wanted: Vec<_> = KEY.into_iter().zip(key).chain([("series", "current")]).collect();
    found(rows, &wanted, column)
}

/// A row of the table of machines: what it is called, the test it is of, and the columns that a cell shows, which stand
/// for two threads and one where there is a single column.
const TESTS: [(&str, &str, &[&str]); 6] = [
    ("prefill 512", "prefill 512", &["ratio"]),
    ("decode at depth 32", "decode @32", &["ratio"]),
    ("decode at depth 512", "decode @512", &["ratio"]),
    ("% of bandwidth, depth 32", "decode @32", &["share"]),
    ("batch 8 against batch 1", "decode batch 8 @32", &["ratio", "ours"]),
    ("first token, s", "first token, cached program", &["ours", "peer"]),
];

/// Every machine with every test, a column a format.
fn machines_table(rows: &[Row]) -> String {
    let pairs = MACHINES.iter().flat_map(|machine| TESTS.iter().map(move |test| (machine, test)));
    let lines = pairs.filter_map(|((name, machine), (title, test, columns))| {
        let cells = FORMATS.map(|format| {
            let of =
                |threads: &str, column: &str| current(rows, [machine, MAIN, format, threads, test], column);
            match columns {
                [column] => format!("{} / {}", of("2", column), of("1", column)),
                columns => columns.iter().map(|column| of("2", column)).collect::<Vec<_>>().join(" / "),
            }
        });
        let cells = cells.map(|cell| if cell == "– / –" { "–".to_owned() } else { cell });
        let is_empty = cells.iter().all(|cell| cell == "–");
        (!is_empty).then(|| [(*name).to_owned(), (*title).to_owned()].into_iter().chain(cells).collect())
    });
    let head: Vec<&str> = ["two cores of", "test"].into_iter().chain(FORMATS).collect();
    table(&head, lines)
}

/// Other models of a machine: a row for each number of threads, a column a format.
fn models_table(rows: &[Row]) -> String {
    const FORMATS: [&str; 3] = ["Q8_0", "Q4_K_M", "BF16"];
    let is_own = |row: &&Row| row.is(&[("machine", "Zen 4"), ("series", "current"), ("test", "prefill 512")]);
    let own = rows.iter().filter(is_own).map(|row| (row.get("model"), row.get("threads")));
    let mut models: Vec<(&str, &str)> = Vec::new();
    for pair in own.filter(|(model, _)| *model != MAIN) {
        if !models.contains(&pair) {
            models.push(pair);
        }
    }
    let lines = models.into_iter().map(|(model, threads)| {
        let cells = FORMATS.map(|format| {
            let tests = ["prefill 512", "decode @32", "decode @512"];
            tests.map(|test| current(rows, ["Zen 4", model, format, threads, test], "ratio")).join(" / ")
        });
        [model.to_owned(), threads.to_owned()].into_iter().chain(cells).collect()
    });
    table(&["model", "threads", "Q8_0", "Q4_K_M", "BF16"], lines)
}

/// The models that a machine was measured with in a series, each with its format.
fn models<'a>(rows: &'a [Row], machine: &str, series: &str) -> Vec<(&'a str, &'a str)> {
    let mut models = Vec::new();
    for row in rows.iter().filter(|row| row.is(&[("machine", machine), ("series", series)])) {
        let own = (row.get("model"), row.get("format"));
        if !models.contains(&own) {
            models.push(own);
        }
    }
    models
}

/// GPUs by themselves: tokens a second, a row a model.
fn gpus_table(rows: &[Row]) -> String {
    const TESTS: [&str; 3] = ["prefill 512", "decode @32", "decode @512"];
    let lines = models(rows, "H200, CUDA", "current").into_iter().map(|(model, format)| {
        let of = |machine: &str| {
            TESTS.map(|test| current(rows, [machine, model, format, "", test], "ours")).join(" / ")
        };
        let key = ["H200, CUDA", model, format, "", "decode @32"];
        let moved = current(rows, key, "note").trim_end_matches(" moved").to_owned();
        vec![model.to_owned(), format.to_owned(), of("H200, CUDA"), moved, of("H100, CUDA")]
    });
    table(&["model", "format", "H200", "bandwidth used, decode", "H100"], lines)
}

/// The H200 beside llama.cpp, a row a model.
fn gpu_peer_table(rows: &[Row]) -> String {
    const TESTS: [&str; 3] = ["prefill 512", "prefill 32", "decode @32"];
    let machine = "H200, CUDA";
    let lines = models(rows, machine, "peer").into_iter().map(|(model, format)| {
        let cells = TESTS.map(|test| {
            let key = [machine, model, format, "", test];
            let wanted: Vec<_> = KEY.into_iter().zip(key).chain([("series", "peer")]).collect();
            let of = |column: &str| found(rows, &wanted, column);
            if of("ours") == "–" { of("ours") } else { format!("{} / {}", of("ours"), of("peer")) }
        });
        [model.to_owned(), format.to_owned()].into_iter().chain(cells).collect()
    });
    table(&["model", "format", "prefill 512", "prefill 32", "decode at depth 32"], lines)
}

/// The least and the largest ratio that the figures of a row allow.
fn divided(row: &Row) -> Option<[f64; 2]> {
    let ([low, high], [least, most]) = (range(row.get("ours"))?, range(row.get("peer"))?);
    Some([low / most, high / least])
}

/// The least and the largest ratio that a row stands for.
fn ratios(row: &Row) -> Option<[f64; 2]> {
    range(row.get("ratio")).or_else(|| divided(row))
}

/// The front page: one row a machine, from the slowest model and format to the fastest.
fn front_table(rows: &[Row]) -> String {
    const TESTS: [&str; 4] = ["prefill 512", "decode @32", "decode @512", "decode batch 8 @32"];
    let span = |wanted: &[(&str, &str)]| {
        let all = rows.iter().filter(|row| row.is(wanted)).filter_map(ratios);
        let of = |all: Option<[f64; 2]>, [low, high]: [f64; 2]| {
            Some(all.map_or([low, high], |[least, most]| [least.min(low), most.max(high)]))
        };
        all.fold(None, of).map_or_else(|| "–".to_owned(), |[low, high]| format!("{low:.1} – {high:.1} ×"))
    };
    let of_machine = |(name, machine): &(&str, &str)| {
        let cell = |test| {
            let own = [("machine", *machine), ("model", MAIN), ("threads", "2"), ("test", test)];
            span(&[&own[..], &[("series", "current")]].concat())
        };
        [format!("two cores of {name}")].into_iter().chain(TESTS.map(cell)).collect()
    };
    let on_gpu = TESTS.map(|test| span(&[("machine", "H200, CUDA"), ("test", test), ("series", "peer")]));
    let on_gpu = ["an NVIDIA H200".to_owned()].into_iter().chain(on_gpu).collect();
    let lines = MACHINES.iter().map(of_machine).chain([on_gpu]);
    let head = [
        "machine",
        "prefill, 512 tokens",
        "decode at depth 32",
        "decode at depth 512",
        "batch 8 against batch 1",
    ];
    table(&head, lines)
}

#[test]
fn every_row_of_the_results_reads() {
    let files: Vec<File> =
        files(&["csv"]).into_iter().filter(|f| f.path.starts_with("benches/results/")).collect();
    assert!(!files.is_empty(), "no results");
    assert_none(&files.iter().flat_map(|file| read(file).1).collect::<Vec<_>>());
}

#[test]
fn the_tables_of_speed_are_those_of_the_results() {
    let rows = rows();
    let made = [
        ("docs/performance.md", "machines", machines_table(&rows)),
        ("docs/performance.md", "other models", models_table(&rows)),
        ("docs/gpu.md", "GPUs", gpus_table(&rows)),
        ("docs/gpu.md", "llama.cpp", gpu_peer_table(&rows)),
        ("README.md", "results", front_table(&rows)),
    ];
    let faults = made.iter().filter_map(|(document, name, table)| hold(document, name, table).err());
    let faults: Vec<String> = faults.collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str =
        "date,commit,machine,model,format,threads,test,unit,ours,peer,against,ratio,share,series,note\n";

    fn offences(row: &str) -> Vec<String> {
        let file = File { path: "benches/results/a.csv".to_owned(), text: format!("{HEAD}{row}\n") };
        read(&file).1.into_iter().map(|o| o.what).collect()
    }

    #[test]
    fn a_good_row_reads_and_each_fault_is_told() {
        let good = "2026-11-27,c0,\"Xeon, AMX\",m,Q8_0,2,decode @32,tok/s,,,llama.cpp,1.5 to 1.7,80,current,";
        assert_eq!(offences(good), Vec::<String>::new());
        assert_eq!(cells(good)[2], "Xeon, AMX");
        assert_eq!(offences(&good.replace("1.5 to 1.7", "fast")).len(), 1);
        assert_eq!(offences(&good.replace("1.5 to 1.7", "1.7 to 1.5")).len(), 1);
        assert_eq!(offences(&good.replace("1.5 to 1.7", "")).len(), 1);
        assert_eq!(offences(&good.replace("llama.cpp", "")).len(), 1);
        assert_eq!(offences(&good.replace("current", "best")).len(), 1);
        assert_eq!(offences(&good.replace(",,,llama", ",10,6 to 7,llama")).len(), 0);
        assert_eq!(offences(&good.replace(",,,llama", ",10,3,llama")).len(), 1);
        assert_eq!(offences(&good.replace(",m,", ",,")).len(), 1);
        assert_eq!(offences("a,b").len(), 1);
    }

    #[test]
    fn tables_take_current_rows_only() {
        let row = |series: &str, ratio: &str| {
            let line = format!("d,c,Zen 5,{MAIN},Q8_0,2,prefill 512,tok/s,,,llama.cpp,{ratio},,{series},");
            Row(cells(&line))
        };
        let rows = [row("earlier", "9"), row("current", "2"), row("current", "3 to 4")];
        let line = front_table(&rows);
        assert!(line.contains("| two cores of AMD EPYC, Zen 5 | 2.0 – 4.0 × | – | – | – |"), "{line}");
        let peer = Row(cells("d,c,Zen 5,m,f,,t,u,2 to 3,1 to 4,p,,,peer,"));
        assert_eq!(ratios(&peer), Some([0.5, 3.0]));
        assert!(machines_table(&rows).contains("| AMD EPYC, Zen 5 | prefill 512 | 2; 3 to 4 / – | – |"));
    }
}
