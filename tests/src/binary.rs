//! Owns the question "which okdb is under test?".
//!
//! Cargo hands a binary's path only to the package that defines it, so the
//! command is looked for beside the test executable: `target/<profile>/okdb`.
//! An old binary would make every result a lie, so one that is older than any
//! source it was built from is refused. `OKDB_BIN` names another binary, for
//! running the stories against an installed one; that one is taken as it is.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::SystemTime;

const HOW: &str =
    "build it with `cargo build -p okdb-cli` (the same profile and target folder as the tests)";

/// The command under test.
#[must_use]
pub fn okdb() -> &'static Path {
    static FOUND: OnceLock<PathBuf> = OnceLock::new();
    FOUND.get_or_init(|| match std::env::var_os("OKDB_BIN") {
        Some(path) => given(path),
        None => beside_the_tests(),
    })
}

fn given(path: OsString) -> PathBuf {
    let path = PathBuf::from(path);
    assert!(path.is_file(), "OKDB_BIN={} is not a file", path.display());
    path.canonicalize().expect("the path of OKDB_BIN resolves")
}

fn beside_the_tests() -> PathBuf {
    let test = std::env::current_exe().expect("a test knows its own path");
    let profile = test
        .parent()
        .and_then(Path::parent)
        .expect("a test lies in target/<profile>/deps");
    let binary = profile.join("okdb");
    assert!(binary.is_file(), "there is no {}: {HOW}", binary.display());
    if let Some(newer) = newer_source(&binary) {
        panic!(
            "{} is older than {}: {HOW}",
            binary.display(),
            newer.display()
        );
    }
    binary
}

/// A source that changed after the binary was linked, by cargo's own list of
/// sources (`okdb.d`, in the syntax of a makefile rule).
fn newer_source(binary: &Path) -> Option<PathBuf> {
    let built = modified(binary)?;
    let rule = std::fs::read_to_string(binary.with_extension("d")).ok()?;
    let (_, sources) = rule.split_once(": ")?;
    sources
        .replace("\\ ", "\u{0}")
        .split_whitespace()
        .map(|source| PathBuf::from(source.replace('\u{0}', " ")))
        .find(|source| modified(source).is_some_and(|time| time > built))
}

fn modified(path: &Path) -> Option<SystemTime> {
    path.metadata().ok()?.modified().ok()
}
