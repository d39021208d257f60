//! What the HTTP side asks of the process it runs in, so that it never names processes itself.

use std::time::Duration;

/// The process around a server. Called on the event loop: every method answers at once.
pub trait Host: 'static {
    /// The slot of this worker, sent with every answer; 0 where there is one process.
    fn worker(&self) -> u32;

    /// Whether this worker can do its job.
    ///
    /// # Errors
    /// What is missing, in words for an operator.
    fn ready(&self) -> Result<(), String>;

    /// The version of the program, for `/api/info`.
    fn version(&self) -> String;

    /// How long the server as a whole has been up.
    fn uptime(&self) -> Duration;

    /// The body of `/api/cluster/status`: one JSON object as text.
    fn cluster_status(&self) -> String;

    /// The body of `/metrics`, in Prometheus' text format 0.0.4.
    fn metrics(&self) -> String;

    /// A connection was accepted.
    fn connection_opened(&self) {}

    /// That connection is gone. Called once for each that was opened, however it ended.
    fn connection_closed(&self) {}

    /// A request was parsed and is being answered.
    fn request_started(&self) {}

    /// That request's answer is complete, as far as this side can tell.
    fn request_finished(&self, _finished: &Finished) {}
}

/// How a request ended.
#[derive(Clone, Copy, Debug)]
pub struct Finished {
    /// The status answered; 0 if the client went away before there was one.
    pub status: u16,
    /// From the parsed head to the answer's head, or to its last byte where it is streamed.
    pub elapsed: Duration,
    /// Bytes of the request's body that were read before it was answered; what is thrown away after a refusal is not.
    pub bytes_in: u64,
    /// Bytes of the answer's body.
    pub bytes: u64,
    /// Whether the failure is ours: a 5xx, or a stream cut short.
    pub failed: bool,
}
