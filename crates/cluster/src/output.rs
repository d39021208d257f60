//! What workers write to standard error: the last lines are kept, everything is passed on.
//!
//! Passing on happens on a thread of its own behind a bounded queue. Whoever reads our standard error
//! may have stopped reading; that must delay neither supervision nor the workers, whose event loops
//! would block on a full pipe. What finds the queue full is dropped and counted.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use okdb_sys::signals::Blocked;

/// How many lines are kept of each worker.
pub(crate) const TAIL_LINES_MAX: usize = 20;
/// How much is kept of each line. Bytes.
pub(crate) const TAIL_LINE_BYTES_MAX: usize = 400;
/// A line is passed on in one piece up to this length. Bytes.
const LINE_BYTES_MAX: usize = 16 * 1_024;
/// How many pieces may wait to be passed on.
const QUEUE_PIECES_MAX: usize = 256;
/// How often a flush looks for room in a full queue.
const FLUSH_STEP: Duration = Duration::from_millis(5);

/// The output of one worker, cut into lines.
#[derive(Debug, Default)]
pub(crate) struct Tail {
    lines: VecDeque<String>,
    /// The start of a line whose end has not come yet.
    partial: Vec<u8>,
}

impl Tail {
    /// One that goes on after these lines.
    pub(crate) fn of(lines: Vec<String>) -> Self {
        Self {
            lines: lines.into(),
            partial: Vec::new(),
        }
    }

    /// Takes what was read, and returns what is to be passed on: whole lines, so that those of several
    /// workers do not get mixed up.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.partial.extend_from_slice(bytes);
        let complete = match self.partial.iter().rposition(|byte| *byte == b'\n') {
            Some(end) => end + 1,
            None if self.partial.len() > LINE_BYTES_MAX => self.partial.len(),
            None => return Vec::new(),
        };
        let rest = self.partial.split_off(complete);
        let piece = std::mem::replace(&mut self.partial, rest);
        self.keep(&piece);
        piece
    }

    /// The output has ended: what is left of it, to be passed on, ended by a line break.
    pub(crate) fn end(&mut self) -> Vec<u8> {
        let mut piece = std::mem::take(&mut self.partial);
        if !piece.is_empty() {
            piece.push(b'\n');
            self.keep(&piece);
        }
        piece
    }

    /// The last lines, oldest first.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.lines.iter().cloned().collect()
    }

    fn keep(&mut self, piece: &[u8]) {
        let piece = piece.strip_suffix(b"\n").unwrap_or(piece);
        let lines: Vec<&[u8]> = piece
            .rsplit(|byte| *byte == b'\n')
            .take(TAIL_LINES_MAX)
            .collect();
        for line in lines.into_iter().rev() {
            if self.lines.len() == TAIL_LINES_MAX {
                self.lines.pop_front();
            }
            self.lines.push_back(printable(line));
        }
    }
}

/// A line as it can stand in a status: bounded, valid text, without what could move a terminal's cursor.
fn printable(line: &[u8]) -> String {
    let (shown, cut) = match line.get(..TAIL_LINE_BYTES_MAX) {
        Some(start) if line.len() > TAIL_LINE_BYTES_MAX => (start, true),
        _ => (line, false),
    };
    let mut text: String = String::from_utf8_lossy(shown)
        .trim_end_matches('\r')
        .chars()
        .map(|character| match character {
            '\t' => ' ',
            character if character.is_control() => char::REPLACEMENT_CHARACTER,
            character => character,
        })
        .collect();
    if cut {
        text.push('…');
    }
    text
}

/// What the thread is given.
#[derive(Debug)]
enum Piece {
    Bytes(Vec<u8>),
    /// Everything before it has been written once this is dropped.
    Mark(SyncSender<()>),
}

/// The thread that passes output on.
#[derive(Debug)]
pub(crate) struct Copier {
    queue: SyncSender<Piece>,
    dropped: Arc<AtomicU64>,
}

impl Copier {
    /// Starts the thread; it writes to `sink`.
    pub(crate) fn start(mut sink: impl Write + Send + 'static) -> io::Result<Self> {
        let (queue, pieces) = sync_channel::<Piece>(QUEUE_PIECES_MAX);
        let dropped = Arc::new(AtomicU64::new(0));
        let lost = Arc::clone(&dropped);
        // Signals are for the thread that supervises.
        let _deaf = Blocked::all()?;
        thread::Builder::new().name("stderr-copy".into()).spawn(move || {
            for piece in pieces {
                let piece = match piece {
                    Piece::Bytes(piece) => piece,
                    Piece::Mark(written) => {
                        let _ = sink.flush();
                        drop(written);
                        continue;
                    }
                };
                let bytes = lost.swap(0, Ordering::Relaxed);
                let notice = (bytes > 0).then(|| {
                    format!("okdb: {bytes} bytes of worker output were dropped: nobody read standard error\n")
                });
                // A standard error that cannot be written to leaves nowhere to complain.
                let _ = notice.map_or(Ok(()), |notice| sink.write_all(notice.as_bytes()));
                let _ = sink.write_all(&piece);
            }
        })?;
        Ok(Self { queue, dropped })
    }

    /// Passes `piece` on, or drops it when the queue is full. Never blocks.
    pub(crate) fn pass_on(&self, piece: Vec<u8>) {
        if piece.is_empty() {
            return;
        }
        let bytes = u64::try_from(piece.len()).unwrap_or(u64::MAX);
        if self.queue.try_send(Piece::Bytes(piece)).is_err() {
            self.dropped.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Waits until everything so far has been written, or until `timeout` has passed.
    pub(crate) fn flush(&self, timeout: Duration) {
        let deadline = Instant::now() + timeout;
        let (mark, written) = sync_channel(1);
        let mut mark = Piece::Mark(mark);
        while let Err(TrySendError::Full(back)) = self.queue.try_send(mark) {
            mark = back;
            if Instant::now() >= deadline {
                break;
            }
            thread::sleep(FLUSH_STEP);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if written.recv_timeout(left) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!("some worker output was not written: nobody reads standard error");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Copier, QUEUE_PIECES_MAX, TAIL_LINE_BYTES_MAX, TAIL_LINES_MAX, Tail};
    use proptest::prelude::*;
    use std::io::{self, Write};
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    #[test]
    fn only_the_last_lines_are_kept() {
        let mut tail = Tail::default();
        for number in 0..100 {
            tail.push(format!("line {number}\n").as_bytes());
        }
        let lines = tail.lines();
        assert_eq!(lines.len(), TAIL_LINES_MAX);
        assert_eq!(lines[0], "line 80");
        assert_eq!(lines[TAIL_LINES_MAX - 1], "line 99");
    }

    #[test]
    fn a_line_in_pieces_is_one_line() {
        let mut tail = Tail::default();
        assert!(tail.push(b"one ").is_empty());
        assert_eq!(tail.push(b"line\nrest"), b"one line\n");
        assert_eq!(tail.lines(), ["one line"]);
        assert_eq!(tail.end(), b"rest\n");
        assert_eq!(tail.lines(), ["one line", "rest"]);
        assert!(tail.end().is_empty());
    }

    #[test]
    fn what_would_harm_a_terminal_is_not_kept() {
        let mut tail = Tail::default();
        tail.push(b"\x1b[2Jred\tand \xff\r\n");
        assert_eq!(tail.lines(), ["\u{fffd}[2Jred and \u{fffd}"]);
    }

    proptest! {
        #[test]
        fn nothing_is_lost_and_memory_is_bounded(pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..6_000), 0..20)) {
            let mut tail = Tail::default();
            let mut passed = Vec::new();
            for piece in &pieces {
                passed.extend(tail.push(piece));
            }
            passed.extend(tail.end());
            let mut whole: Vec<u8> = pieces.concat();
            if whole.last().is_some_and(|byte| *byte != b'\n') && passed.last() == Some(&b'\n') {
                whole.push(b'\n');
            }
            prop_assert_eq!(passed, whole);
            prop_assert!(tail.lines().len() <= TAIL_LINES_MAX);
            // Each byte may become a replacement character of three, and there is the mark of a cut.
            prop_assert!(tail.lines().iter().all(|line| line.len() <= 3 * TAIL_LINE_BYTES_MAX + 3));
        }
    }

    /// A sink that waits for a permit before each write.
    struct Gate {
        permits: Receiver<()>,
        written: Arc<Mutex<Vec<u8>>>,
    }

    impl Write for Gate {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            // A closed gate stays open.
            let _ = self.permits.recv();
            self.written
                .lock()
                .map_err(|_| io::Error::other("poisoned"))?
                .extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn gate() -> (Gate, Sender<()>, Arc<Mutex<Vec<u8>>>) {
        let (sender, permits) = channel();
        let written = Arc::default();
        (
            Gate {
                permits,
                written: Arc::clone(&written),
            },
            sender,
            written,
        )
    }

    fn text(written: &Mutex<Vec<u8>>) -> String {
        String::from_utf8_lossy(&written.lock().expect("lock")).into_owned()
    }

    #[test]
    fn a_reader_that_stopped_blocks_nobody_and_learns_what_it_missed() {
        let (sink, permits, written) = gate();
        let copier = Copier::start(sink).expect("thread");
        for _ in 0..QUEUE_PIECES_MAX + 100 {
            copier.pass_on(b"x\n".to_vec());
        }
        // Everything but the queue and what the thread holds was dropped.
        drop(permits);
        copier.flush(Duration::from_secs(60));
        let text = text(&written);
        assert!(
            text.contains("bytes of worker output were dropped"),
            "{text}"
        );
        let passed = text.lines().filter(|line| *line == "x").count();
        assert!(
            (QUEUE_PIECES_MAX..=QUEUE_PIECES_MAX + 1).contains(&passed),
            "{passed}"
        );
    }

    #[test]
    fn a_stuck_sink_does_not_hold_the_end() {
        let (sink, permits, written) = gate();
        let copier = Copier::start(sink).expect("thread");
        copier.pass_on(b"never\n".to_vec());
        copier.flush(Duration::from_millis(1));
        assert_eq!(text(&written), "");
        drop(permits);
    }
}
