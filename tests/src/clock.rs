//! A wall clock that a story can step, for the processes of one server.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The library and the file that tells it how far the clock is off.
pub struct StepClock {
    library: PathBuf,
    offset: PathBuf,
}

impl StepClock {
    /// Builds the library in `folder`, with the compiler that the project needs
    /// anyway.
    #[must_use]
    pub fn in_folder(folder: &Path) -> Self {
        let clock = Self {
            library: folder.join("step_clock.so"),
            offset: folder.join("offset"),
        };
        clock.step_to(0);
        let built = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .arg(&clock.library)
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/src/step_clock.c"))
            .output()
            .expect("a C compiler");
        assert!(built.status.success(), "{built:?}");
        clock
    }

    /// Puts the clock so many seconds before or after the real one.
    pub fn step_to(&self, seconds: i64) {
        // In place: the processes have it mapped.
        let file = fs::File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&self.offset)
            .expect("a file");
        std::os::unix::fs::FileExt::write_all_at(&file, &seconds.to_ne_bytes(), 0)
            .expect("written");
    }

    /// The variables that make a process use it.
    #[must_use]
    pub fn variables(&self) -> [(&'static str, &Path); 2] {
        [
            ("LD_PRELOAD", self.library.as_path()),
            ("OKDB_TEST_CLOCK", self.offset.as_path()),
        ]
    }
}
