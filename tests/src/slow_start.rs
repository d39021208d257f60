//! Owns a program that becomes okdb when a story lets it, for looking at what
//! happens in between.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::binary;
use crate::wait::{SOON, wait_until};

/// Such a program. It takes its time from its second start on, so that the check
/// of an upgrade passes at once.
pub struct SlowStart {
    folder: PathBuf,
}

impl SlowStart {
    /// Puts it in the place of `program`, as a package manager does; it is built
    /// with the compiler that the project needs anyway. Its files are in `folder`.
    #[must_use]
    pub fn in_place_of(program: &Path, folder: &Path) -> Self {
        let slow = Self {
            folder: folder.to_owned(),
        };
        let new = folder.join("slow-start");
        let define = |name: &str, path: &Path| format!("-D{name}=\"{}\"", path.display());
        let built = Command::new("cc")
            .arg(define("OKDB", binary::okdb()))
            .arg(define("CHECKED", &slow.folder.join("checked")))
            .arg(define("RESUMING", &slow.resuming()))
            .arg(define("GO", &slow.go()))
            .args(["-O1", "-o"])
            .arg(&new)
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/src/slow_start.c"))
            .output()
            .expect("a C compiler");
        assert!(built.status.success(), "{built:?}");
        fs::rename(&new, program).expect("renamed");
        slow
    }

    /// Waits until it has been started for the second time.
    #[track_caller]
    pub fn wait_for_it(&self) {
        wait_until("the program in between", SOON, || self.resuming().exists());
    }

    /// Lets it become okdb.
    pub fn let_go(&self) {
        fs::write(self.go(), "").expect("written");
    }

    fn resuming(&self) -> PathBuf {
        self.folder.join("resuming")
    }

    fn go(&self) -> PathBuf {
        self.folder.join("go")
    }
}
