//! The form of the sources: small files that say what they own, unsafe code in
//! its named rooms alone, no path of anybody's machine.

use std::fs;
use std::path::{Path, PathBuf};

use super::repository;

/// A file is split before it holds two ideas.
const LINES_MAX: usize = 600;

/// A `lib.rs` or `main.rs` is a page of contents.
const CONTENTS_LINES_MAX: usize = 150;

const ROOMS: [&str; 4] = ["shm", "crates", "bin", "tests"];

/// Folders whose sources may hold unsafe code; those of the store's tests and
/// benchmarks open LMDB by themselves, to compare with it.
const UNSAFE_ROOMS: [&str; 4] = [
    "shm/",
    "crates/sys/",
    "crates/store/tests/",
    "crates/store/benches/",
];

/// And one module of the store: the one that opens LMDB.
const UNSAFE_MODULE_ROOM: &str = "crates/store/src/";

struct Source {
    /// Relative to the repository, with `/`.
    name: String,
    text: String,
}

impl Source {
    /// Tests may be long: they are lists.
    fn is_test(&self) -> bool {
        let stem = self.name.trim_end_matches(".rs");
        self.name.starts_with("tests/")
            || self.name.contains("/tests/")
            || self.name.contains("/benches/")
            || stem.ends_with("tests")
    }
}

fn sources() -> Vec<Source> {
    fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                if path.file_name().is_none_or(|name| name != "target") {
                    walk(&path, found);
                }
            } else if path.extension().is_some_and(|end| end == "rs") {
                found.push(path);
            }
        }
    }
    let repository = repository();
    let mut found = Vec::new();
    for room in ROOMS {
        walk(&repository.join(room), &mut found);
    }
    assert!(found.len() > 20, "the sources are not where they should be");
    found.sort();
    found
        .into_iter()
        .map(|path| Source {
            name: path
                .strip_prefix(&repository)
                .expect("it was found there")
                .to_string_lossy()
                .into_owned(),
            text: fs::read_to_string(&path).expect("a source is UTF-8"),
        })
        .collect()
}

/// The source without comments, strings and character literals, line by line;
/// enough of a lexer to tell a word of code from a word of prose.
fn code_only(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(next) = rest.chars().next() {
        let skipped = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            block_comment(rest)
        } else if let Some(length) = raw_string(rest, out.chars().last()) {
            length
        } else if next == '"' {
            quoted(rest, '"')
        } else if next == '\'' {
            character(rest)
        } else {
            out.push(next);
            rest = &rest[next.len_utf8()..];
            continue;
        };
        let (gone, kept) = rest.split_at(skipped);
        out.extend(gone.chars().filter(|gone| *gone == '\n'));
        out.push(' ');
        rest = kept;
    }
    out
}

fn block_comment(text: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < text.len() {
        let here = &text[at..];
        if here.starts_with("/*") {
            depth += 1;
            at += 2;
        } else if here.starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += here.chars().next().map_or(1, char::len_utf8);
        }
    }
    text.len()
}

/// The length of a raw string that starts here, if one does.
fn raw_string(text: &str, before: Option<char>) -> Option<usize> {
    if before.is_some_and(|before| before.is_alphanumeric() || before == '_') {
        return None;
    }
    let prefix = ["br", "cr", "r"]
        .into_iter()
        .find(|prefix| text.starts_with(prefix))?;
    let rest = &text[prefix.len()..];
    let hashes = rest.len() - rest.trim_start_matches('#').len();
    let body = rest[hashes..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    let inside = body.find(&end).map_or(body.len(), |at| at + end.len());
    Some(prefix.len() + hashes + 1 + inside)
}

fn quoted(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, character) in text.char_indices().skip(1) {
        match character {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if character == quote => return at + character.len_utf8(),
            _ => {}
        }
    }
    text.len()
}

/// The length of a character literal; of a lifetime, only its apostrophe.
fn character(text: &str) -> usize {
    let mut following = text.char_indices().skip(1);
    let first = following.next();
    let second = following.next();
    match (first, second) {
        (Some((_, '\\')), _) => quoted(text, '\''),
        (Some(_), Some((at, '\''))) => at + 1,
        _ => 1,
    }
}

fn has_word(code: &str, word: &str) -> bool {
    code.split(|c: char| !c.is_alphanumeric() && c != '_')
        .any(|found| found == word)
}

fn report(rule: &str, wrong: &[String]) {
    assert!(wrong.is_empty(), "{rule}:\n  {}", wrong.join("\n  "));
}

#[test]
fn unsafe_code_stays_in_its_rooms() {
    let found: Vec<String> = sources()
        .into_iter()
        .filter(|source| has_word(&code_only(&source.text), "unsafe"))
        .map(|source| source.name)
        .filter(|name| !UNSAFE_ROOMS.iter().any(|room| name.starts_with(room)))
        .collect();
    let (in_store, elsewhere): (Vec<String>, Vec<String>) = found
        .into_iter()
        .partition(|name| name.starts_with(UNSAFE_MODULE_ROOM));
    report("unsafe outside its rooms", &elsewhere);
    assert!(in_store.len() <= 1, "more than one module: {in_store:?}");
}

#[test]
fn files_are_small_and_say_what_they_own() {
    let mut wrong = Vec::new();
    for source in sources() {
        let lines = source.text.lines().count();
        let contents = source.name.ends_with("/lib.rs") || source.name.ends_with("/main.rs");
        let limit = if contents {
            CONTENTS_LINES_MAX
        } else {
            LINES_MAX
        };
        if lines > limit && !source.is_test() {
            wrong.push(format!("{}: {lines} lines, {limit} allowed", source.name));
        }
        if !source.text.starts_with("//!") {
            wrong.push(format!("{}: does not open with //!", source.name));
        }
    }
    report("the form of files", &wrong);
}

#[test]
fn no_source_knows_a_path_of_somebodys_machine() {
    // In parts, so that this line is not what it looks for.
    let marks = [
        ["/ho", "me/"],
        ["/Us", "ers/"],
        ["/wo", "rk/"],
        ["/ro", "ot/"],
    ]
    .map(|mark| mark.concat());
    let wrong: Vec<String> = sources()
        .iter()
        .flat_map(|source| {
            source
                .text
                .lines()
                .enumerate()
                .filter(|(_, line)| marks.iter().any(|mark| line.contains(mark.as_str())))
                .map(|(number, line)| format!("{}:{}: {line}", source.name, number + 1))
                .collect::<Vec<_>>()
        })
        .collect();
    report("paths of a machine", &wrong);
}

#[test]
fn the_lexer_tells_code_from_prose() {
    let text = concat!(
        "// unsafe\n/* unsafe /* unsafe */ unsafe */ let a = \"unsafe \\\" unsafe\";\n",
        "let b = r#\"unsafe \" unsafe\"#; let c: &'static str = \"\"; let d = '\"'; let e = '\\'';\n",
        "fn unsafely() {} let done = 1;",
    );
    let code = code_only(text);
    assert!(!has_word(&code, "unsafe"), "{code}");
    assert!(has_word(&code, "done"), "{code}");
    assert_eq!(code.lines().count(), text.lines().count());
    assert!(has_word(&code_only("let x = 'a'; unsafe { }"), "unsafe"));
    assert!(has_word(
        &code_only("fn f<'a>(x: &'a str) { unsafe { } }"),
        "unsafe"
    ));
}
