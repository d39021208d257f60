//! UDP pokes between the processes of one root: "something changed, look again".
//!
//! A poke is a hint and nothing more. It may be lost, doubled, late or forged by replay, and costs a look
//! each time; what changed is read from the store. Losing every one of them costs latency, never truth,
//! because each consumer also looks on a tick of its own.
//!
//! | module | subject |
//! |---|---|
//! | [`Bus`] | this process's socket, its entry among the peers, sending and blocking reception |
//! | [`Listener`] | reception for an event loop |
//! | [`secret`] | what tells this root's datagrams from a stranger's |
//! | [`frame`] | the datagram: bytes in, values out |

mod bus;
pub mod frame;
pub mod secret;

pub use bus::{Bus, Counters, Listener, OpenError, Poke};
