//! Bounds of the HTTP side, each with its unit in the name.

/// Bounds and switches of the HTTP side of one worker.
#[derive(Clone, Debug)]
pub struct HttpLimits {
    /// The largest request body, in bytes; an import as a whole is not bound by it, each of its lines is.
    pub body_bytes: usize,
    /// The largest request head (request line and headers), in bytes.
    pub header_bytes: usize,
    /// The longest path with query, in bytes.
    pub uri_bytes: usize,
    /// How long a request head may take from its first byte to its last, in milliseconds.
    pub header_timeout_ms: u64,
    /// How long a request body may make no progress, in milliseconds.
    pub body_timeout_ms: u64,
    /// How long a client may take no byte of an answer that waits for it, in milliseconds.
    pub write_timeout_ms: u64,
    /// How long a connection may stay open between requests, in milliseconds.
    pub idle_timeout_ms: u64,
    /// Open connections; beyond, new ones wait in the listener's queue.
    pub connections: usize,
    /// Streams that one HTTP/2 connection may have open.
    pub streams: u32,
    /// Scans, queries, imports and the like that run at one time.
    pub heavy_running: usize,
    /// Those that may wait for their turn; beyond, the answer is `OVERLOADED`.
    pub heavy_waiting: usize,
    /// Imports and exports that may be under way at one time.
    pub transfers: usize,
    /// Bytes of request bodies that may be held in memory at one time, beside those of imports.
    pub held_bytes: usize,
    /// How long an export of one snapshot may take, in milliseconds.
    pub consistent_export_ms: u64,
    /// How long a request waits for an index it asked for to be built, in milliseconds.
    pub index_wait_ms: u64,
}

impl Default for HttpLimits {
    fn default() -> Self {
        Self {
            // A value at its limit, and room for the envelope around it.
            body_bytes: 16 * 1024 * 1024 + 64 * 1024,
            header_bytes: 16 * 1024,
            uri_bytes: 8 * 1024,
            header_timeout_ms: 10_000,
            body_timeout_ms: 30_000,
            write_timeout_ms: 30_000,
            idle_timeout_ms: 75_000,
            connections: 10_000,
            streams: 128,
            heavy_running: 4,
            heavy_waiting: 256,
            transfers: 16,
            held_bytes: 256 * 1024 * 1024,
            consistent_export_ms: 60_000,
            index_wait_ms: 2_000,
        }
    }
}
