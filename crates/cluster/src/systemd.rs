//! Talking to a service manager in the protocol of systemd: telling it what happens, and taking sockets that it made.
//!
//! Both sides are small enough to be own code: a datagram of `KEY=value` lines one way, a few variables the other way.
//! Both do nothing in a process that no such manager started. The variables are read and left alone: an upgrade in place
//! runs the next program with the same environment, and children never see them ([`okdb_sys::spawn`] takes them away).
//!
//! | item | direction |
//! |---|---|
//! | [`Notifier`] | readiness, reloads, status and watchdog pings: to the manager |
//! | [`activation`] | listening sockets: from the manager |

pub mod activation;
mod notify;

pub use notify::Notifier;
