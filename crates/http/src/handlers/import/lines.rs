//! Cutting a body that arrives in any pieces into chunks of whole lines.

use bytes::{Buf as _, Bytes, BytesMut};

/// The most lines that are committed together.
pub(super) const CHUNK_LINES_MAX: usize = 1_000;
/// About the most bytes that are committed together; a single longer line is a chunk of its own.
const CHUNK_BYTES_MAX: usize = 1024 * 1024;
pub(super) const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

/// Whole lines, and the number of the first.
pub(super) struct Chunk {
    pub(super) first_line: u64,
    pub(super) bytes: Bytes,
    /// Whether this is a line of which only the beginning was kept, for it is too long.
    pub(super) too_long: bool,
}

/// Cuts what arrives into chunks of whole lines.
pub(super) struct Lines {
    buffer: BytesMut,
    /// Where to look for the next line end; before it there is none that has not been counted.
    seen: usize,
    /// Where the last whole line in the buffer ends.
    whole: usize,
    /// Whole lines in the buffer.
    count: usize,
    next_line: u64,
    line_bytes_max: usize,
    /// Whether the rest of a line that was too long is being skipped.
    skipping: bool,
    begun: bool,
}

impl Lines {
    pub(super) fn new(line_bytes_max: usize) -> Self {
        Self {
            buffer: BytesMut::new(),
            seen: 0,
            whole: 0,
            count: 0,
            next_line: 1,
            line_bytes_max,
            skipping: false,
            begun: false,
        }
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
        if !self.begun && self.buffer.len() >= BYTE_ORDER_MARK.len() {
            self.begun = true;
            if self.buffer.starts_with(BYTE_ORDER_MARK) {
                self.buffer.advance(BYTE_ORDER_MARK.len());
                // A mark that came in pieces had been looked through.
                self.seen = 0;
            }
        }
    }

    /// The next chunk that is as large as chunks get, if that much is there.
    pub(super) fn full_chunk(&mut self) -> Option<Chunk> {
        loop {
            if self.skipping {
                let end = self.buffer.iter().position(|byte| *byte == b'\n');
                let Some(end) = end else {
                    self.buffer.clear();
                    return None;
                };
                self.buffer.advance(end + 1);
                self.skipping = false;
            }
            let rest = self.buffer.get(self.seen..).unwrap_or_default();
            let Some(end) = rest.iter().position(|byte| *byte == b'\n') else {
                self.seen = self.buffer.len();
                let partial = self.buffer.len() - self.whole;
                if partial > self.line_bytes_max {
                    // Whole lines first; the next call finds the long one alone.
                    return if self.count > 0 {
                        self.cut()
                    } else {
                        Some(self.cut_too_long())
                    };
                }
                // A line that alone is larger than a chunk must not keep those before it waiting in memory.
                return if self.buffer.len() >= CHUNK_BYTES_MAX {
                    self.cut()
                } else {
                    None
                };
            };
            self.seen += end + 1;
            self.whole = self.seen;
            self.count += 1;
            if self.count == CHUNK_LINES_MAX || self.whole >= CHUNK_BYTES_MAX {
                return self.cut();
            }
        }
    }

    /// What is left at the end of the body, the last line with or without its end.
    pub(super) fn last_chunk(&mut self) -> Option<Chunk> {
        if let Some(chunk) = self.full_chunk() {
            return Some(chunk);
        }
        if self.buffer.len() > self.whole {
            self.whole = self.buffer.len();
            self.count += 1;
        }
        self.cut()
    }

    /// Takes the whole lines.
    fn cut(&mut self) -> Option<Chunk> {
        if self.count == 0 {
            return None;
        }
        let bytes = self.buffer.split_to(self.whole).freeze();
        let chunk = Chunk {
            first_line: self.next_line,
            bytes,
            too_long: false,
        };
        self.next_line += self.count as u64;
        self.seen -= self.whole;
        self.whole = 0;
        self.count = 0;
        Some(chunk)
    }

    /// Takes the beginning of a line that is too long, and skips the rest of it.
    fn cut_too_long(&mut self) -> Chunk {
        self.buffer.clear();
        let chunk = Chunk {
            first_line: self.next_line,
            bytes: Bytes::new(),
            too_long: true,
        };
        self.next_line += 1;
        self.seen = 0;
        self.whole = 0;
        self.skipping = true;
        chunk
    }
}
