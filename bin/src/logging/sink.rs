//! Where lines end up: a bounded queue and a thread that writes, so that a log that nobody reads holds up nobody who logs.
//!
//! Whoever reads standard error may stop reading, or go away; a disk may be full. Lines that find the queue full, and lines
//! that cannot be written, are dropped and counted, and the count is told as soon as something can be written again.
//! A log file is reopened between two lines, so that renaming it away loses nothing.

use std::{
    collections::VecDeque,
    fs::{File, OpenOptions},
    io::{self, ErrorKind, Write},
    os::{fd::AsFd, unix::fs::OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use okdb_sys::signals::Blocked;

use super::style::Style;

/// How much may wait to be written. Bytes.
const QUEUE_BYTES_MAX: usize = 4 << 20;
/// Lines are written together up to this length; what is not longer goes into a pipe in one piece. Bytes.
const WRITE_BYTES_MAX: usize = 4096;
/// How long to wait where a non-blocking standard error has no room.
const RETRY: Duration = Duration::from_millis(20);
/// The mode of a new log file: what is in it is the operator's and their group's.
const FILE_MODE: u32 = 0o640;

/// Where to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Stderr,
    File(PathBuf),
}

impl Target {
    /// Opens it, to append.
    pub(super) fn open(&self) -> io::Result<File> {
        match self {
            Self::Stderr => Ok(File::from(io::stderr().as_fd().try_clone_to_owned()?)),
            Self::File(path) => open_file(path),
        }
    }
}

fn open_file(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.append(true).create(true).mode(FILE_MODE);
    options.open(path)
}

/// A queue and its thread. Clones share them.
#[derive(Clone)]
pub(super) struct Sink(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    /// There is something to do.
    work: Condvar,
    /// There is nothing left to do.
    rest: Condvar,
}

struct State {
    lines: VecDeque<Vec<u8>>,
    bytes: usize,
    /// Lines that found the queue full.
    dropped: u64,
    style: Style,
    change: Option<Change>,
    /// The thread waits for work.
    idle: bool,
}

/// What becomes of the file.
enum Change {
    /// It is opened again by its name.
    Reopen,
    /// Another one takes its place.
    To(Target, File),
}

impl Sink {
    /// Starts the thread; it writes to `target`, which is `file`.
    pub(super) fn start(target: Target, file: File, style: Style) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                lines: VecDeque::new(),
                bytes: 0,
                dropped: 0,
                style,
                change: None,
                idle: false,
            }),
            work: Condvar::new(),
            rest: Condvar::new(),
        });
        let writer = Writer {
            target,
            file,
            lost: 0,
            torn: false,
        };
        let theirs = Arc::clone(&shared);
        // Signals are for the thread that supervises, whenever a sink is started.
        let _deaf = Blocked::all()?;
        std::thread::Builder::new()
            .name("log-write".into())
            .spawn(move || theirs.write_for_ever(writer))?;
        Ok(Self(shared))
    }

    /// Adds whole lines, or counts them if there is no room. Never blocks for longer than another caller takes to do this.
    pub(super) fn push(&self, lines: Vec<u8>) {
        if lines.is_empty() {
            return;
        }
        let mut state = self.0.lock();
        if state.bytes + lines.len() > QUEUE_BYTES_MAX {
            state.dropped += count(&lines);
            return;
        }
        state.bytes += lines.len();
        state.lines.push_back(lines);
        self.0.wake(&state);
    }

    /// Opens a log file by its name again. Lines so far go to the one that is open now.
    pub(super) fn reopen(&self) {
        let mut state = self.0.lock();
        if state.change.is_none() {
            state.change = Some(Change::Reopen);
        }
        self.0.wake(&state);
    }

    /// Writes to another target, which is `file`, from now on, and in another style where the sink itself has to say
    /// something.
    pub(super) fn redirect(&self, target: Target, file: File, style: Style) {
        let mut state = self.0.lock();
        state.change = Some(Change::To(target, file));
        state.style = style;
        self.0.wake(&state);
    }

    /// Waits until everything so far has been written or dropped; tells whether that was so within `timeout`.
    pub(super) fn flush(&self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        let mut state = self.0.lock();
        while !(state.idle && state.lines.is_empty() && state.change.is_none()) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            state = self
                .0
                .rest
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        true
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A call into the kernel only where the thread waits for one.
    fn wake(&self, state: &State) {
        if state.idle {
            self.work.notify_one();
        }
    }

    fn write_for_ever(&self, mut writer: Writer) {
        loop {
            let mut state = self.lock();
            while state.lines.is_empty() && state.change.is_none() && state.dropped == 0 {
                state.idle = true;
                self.rest.notify_all();
                state = self
                    .work
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
            }
            state.idle = false;
            let lines = std::mem::take(&mut state.lines);
            let dropped = std::mem::take(&mut state.dropped);
            let change = state.change.take();
            let style = state.style;
            state.bytes = 0;
            drop(state);
            // Every line that came before the change was asked for still goes to the old file.
            writer.write(lines, dropped, style);
            if let Some(change) = change {
                writer.change(change, style);
            }
        }
    }
}

/// What only the thread has.
struct Writer {
    target: Target,
    file: File,
    /// Lines that could not be written since the last notice.
    lost: u64,
    /// The last line was cut off.
    torn: bool,
}

impl Writer {
    fn write(&mut self, lines: VecDeque<Vec<u8>>, dropped: u64, style: Style) {
        let mut chunk = Vec::with_capacity(WRITE_BYTES_MAX);
        for line in lines {
            if !chunk.is_empty() && chunk.len() + line.len() > WRITE_BYTES_MAX {
                self.write_chunk(&chunk, style);
                chunk.clear();
            }
            chunk.extend_from_slice(&line);
        }
        self.write_chunk(&chunk, style);
        self.lost += dropped;
        self.notice(style);
    }

    fn write_chunk(&mut self, chunk: &[u8], style: Style) {
        if !(chunk.is_empty() || self.notice(style) && self.put(chunk)) {
            self.lost += count(chunk);
        }
    }

    /// Tells what is missing, if anything is; tells whether there is nothing left to be told.
    fn notice(&mut self, style: Style) -> bool {
        if self.lost == 0 {
            return true;
        }
        let text = format!(
            "{} lines of the log were dropped: nobody read them, or they could not be written",
            self.lost
        );
        let told = self.put(&style.line(tracing::Level::WARN, &text));
        if told {
            self.lost = 0;
        }
        told
    }

    fn put(&mut self, bytes: &[u8]) -> bool {
        if self.torn && !self.put_all(b"\n") {
            return false;
        }
        self.torn = false;
        self.put_all(bytes)
    }

    fn put_all(&mut self, mut bytes: &[u8]) -> bool {
        while !bytes.is_empty() {
            match self.file.write(bytes) {
                Ok(0) => return false,
                Ok(written) => {
                    bytes = bytes.get(written..).unwrap_or_default();
                    self.torn = !bytes.is_empty();
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // Somebody who shares our terminal or pipe has made it non-blocking.
                Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::sleep(RETRY),
                Err(_) => return false,
            }
        }
        true
    }

    fn change(&mut self, change: Change, style: Style) {
        let (target, opened) = match change {
            Change::To(target, file) => (target, Ok(file)),
            Change::Reopen => (self.target.clone(), self.target.open()),
        };
        match opened {
            Ok(file) => {
                (self.target, self.file, self.torn) = (target, file, false);
            }
            Err(error) => {
                let text =
                    format!("the log file cannot be opened again, the old one is used on: {error}");
                self.put(&style.line(tracing::Level::ERROR, &text));
            }
        }
    }
}

fn count(lines: &[u8]) -> u64 {
    let ended = lines.split_inclusive(|byte| *byte == b'\n').count();
    u64::try_from(ended).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
