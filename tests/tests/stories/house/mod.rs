//! The house rules, enforced as ordinary tests: dependencies point one way, and
//! the sources keep their form.

use std::path::{Path, PathBuf};

mod architecture;
mod tidy;

/// The root of the repository.
fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("tests/ lies in the repository")
        .to_owned()
}
