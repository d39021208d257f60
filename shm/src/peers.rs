//! The bus's table of peers: who listens where, and who has been poked but has not looked yet.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use okdb_sys::process;

use crate::layout::PeerWords;
use crate::owner::{self, ClaimError};
use crate::segment::Segment;
use crate::word::Word;

/// A registered peer, as its row said at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Position in the table.
    pub index: usize,
    /// Who it is. It may have died since: [`process::Identity::is_alive`] tells.
    pub process: process::Identity,
    /// The UDP port on the loopback address that it listens on; 0 while it is registering.
    pub port: u16,
    /// Whether a poke is on its way that it has not looked at yet.
    pub pending: bool,
}

/// What [`Segment::poke_peers`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Poked {
    /// Peers that were sent a datagram.
    pub sent: usize,
    /// Peers that have one on its way already.
    pub suppressed: usize,
    /// Peers that could not be sent one. The next poke tries again.
    pub failed: usize,
}

impl Segment {
    /// Enters this process into the table. Look at the durable state after this, not before: what changed
    /// earlier was not poked here.
    ///
    /// # Errors
    /// [`ClaimError::Full`] when living processes hold all rows.
    pub fn register_peer(
        self: &Arc<Self>,
        port: u16,
        identity: process::Identity,
    ) -> Result<PeerGuard, ClaimError> {
        let me = owner::pack(identity)?;
        let tables = self.tables();
        let (index, row) = tables
            .peers
            .iter()
            .enumerate()
            .find(|(_, row)| owner::claim(&row.owner, me, owner::lives).is_ok())
            .ok_or(ClaimError::Full)?;
        // The port before the flag: whoever marks us from here on reads the new port, and whoever marked
        // the row before, and sent to the old one, is forgotten.
        row.port.store(port.into(), Ordering::Release);
        rearm(&row.pending);
        let high = u64::try_from(index).unwrap_or(u64::MAX).saturating_add(1);
        tables
            .header
            .peers_high
            .word
            .fetch_max(high, Ordering::AcqRel);
        Ok(PeerGuard {
            segment: Arc::clone(self),
            index,
            me,
        })
    }

    /// All registered peers.
    pub fn peers(&self) -> impl Iterator<Item = Peer> + '_ {
        self.peer_rows().filter_map(|(index, row)| {
            Some(Peer {
                index,
                process: owner::unpack(row.owner.load(Ordering::Acquire))?,
                port: u16::try_from(row.port.load(Ordering::Acquire)).unwrap_or(0),
                pending: row.pending.load(Ordering::Acquire) != 0,
            })
        })
    }

    /// Marks every other peer than `own` as poked and calls `send` with the port of each that was not
    /// marked yet; it tells whether a datagram went out. Publish what they shall see before. Does not ask
    /// whether the peers live: one that does not stays marked, and costs nothing more.
    pub fn poke_peers(&self, own: &PeerGuard, mut send: impl FnMut(u16) -> bool) -> Poked {
        let mut poked = Poked::default();
        for (index, row) in self.peer_rows() {
            if index == own.index || row.owner.load(Ordering::Acquire) == 0 {
                continue;
            }
            if !mark(&row.pending) {
                poked.suppressed += 1;
                continue;
            }
            // Read after the marking, see `register_peer`.
            let port = u16::try_from(row.port.load(Ordering::Acquire)).unwrap_or(0);
            if port == 0 {
                continue;
            }
            if send(port) {
                poked.sent += 1;
            } else {
                poked.failed += 1;
                // At worst this clears another poker's mark, and a datagram too many is sent.
                row.pending.store(0, Ordering::Release);
            }
        }
        poked
    }

    /// The rows that were ever claimed, so that a poke does not walk through hundreds of empty ones.
    fn peer_rows(&self) -> impl Iterator<Item = (usize, &PeerWords)> {
        let tables = self.tables();
        let high = tables.header.peers_high.word.load(Ordering::Acquire);
        let high = usize::try_from(high).unwrap_or(usize::MAX);
        tables.peers.iter().enumerate().take(high)
    }
}

/// This process's entry in the table, removed on drop.
pub struct PeerGuard {
    segment: Arc<Segment>,
    index: usize,
    me: u64,
}

impl PeerGuard {
    /// Position in the table.
    #[must_use]
    pub fn index(&self) -> usize {
        self.index
    }

    /// Allows the next poke to come. Call it *before* looking at what may have changed, after each
    /// datagram and at every tick (a datagram may have been lost): then no change is missed, since one
    /// that is not seen by the look was published after this, and pokes.
    pub fn rearm(&self) {
        if let Some(row) = self.segment.tables().peers.get(self.index) {
            rearm(&row.pending);
        }
    }
}

impl Drop for PeerGuard {
    fn drop(&mut self) {
        if let Some(row) = self.segment.tables().peers.get(self.index) {
            row.port.store(0, Ordering::Release);
            owner::release(&row.owner, self.me);
        }
    }
}

impl fmt::Debug for PeerGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeerGuard")
            .field("index", &self.index)
            .finish_non_exhaustive()
    }
}

/// Marks a peer as poked; tells whether it was not yet, so that a datagram is due.
pub(crate) fn mark<W: Word>(pending: &W) -> bool {
    pending.swap(1, Ordering::AcqRel) == 0
}

/// A swap and not a store: it must come after every marking that it clears, and take over what that
/// poker had published, or the look that follows could miss it with no datagram due.
pub(crate) fn rearm<W: Word>(pending: &W) {
    pending.swap(0, Ordering::AcqRel);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]
    use super::*;
    use crate::segment::tests::{dead, private};

    fn counts(sent: usize, suppressed: usize, failed: usize) -> Poked {
        Poked {
            sent,
            suppressed,
            failed,
        }
    }

    #[test]
    fn a_poke_is_sent_once_until_the_peer_rearms() {
        let segment = private();
        let me = process::Identity::current().unwrap();
        let own = segment.register_peer(1000, me).unwrap();
        let other = segment.register_peer(2000, me).unwrap();
        let mut ports = Vec::new();
        let mut poke = || {
            segment.poke_peers(&own, |port| {
                ports.push(port);
                true
            })
        };
        assert_eq!(poke(), counts(1, 0, 0));
        assert_eq!(poke(), counts(0, 1, 0));
        assert!(
            segment
                .peers()
                .any(|peer| peer.port == 2000 && peer.pending)
        );
        other.rearm();
        assert_eq!(poke(), counts(1, 0, 0));
        drop(other);
        assert_eq!(poke(), counts(0, 0, 0));
        assert_eq!(ports, [2000, 2000]);
        assert_eq!(segment.peers().count(), 1);
    }

    #[test]
    fn a_poke_that_could_not_be_sent_is_tried_again() {
        let segment = private();
        let me = process::Identity::current().unwrap();
        let own = segment.register_peer(1000, me).unwrap();
        let _other = segment.register_peer(2000, me).unwrap();
        assert_eq!(segment.poke_peers(&own, |_| false), counts(0, 0, 1));
        assert_eq!(segment.poke_peers(&own, |_| true), counts(1, 0, 0));
    }

    #[test]
    fn the_row_of_a_dead_peer_is_swept_or_taken_over() {
        let segment = private();
        let me = process::Identity::current().unwrap();
        let own = segment.register_peer(1000, me).unwrap();
        std::mem::forget(segment.register_peer(2000, dead()).unwrap());
        segment.poke_peers(&own, |_| true);
        let heir = segment.register_peer(3000, me).unwrap();
        assert_eq!(heir.index(), 1);
        let seen = segment.peers().find(|peer| peer.index == 1).unwrap();
        assert_eq!(
            seen,
            Peer {
                index: 1,
                process: me,
                port: 3000,
                pending: false
            }
        );
        drop(heir);

        std::mem::forget(segment.register_peer(2000, dead()).unwrap());
        assert_eq!(segment.peers().count(), 2);
        assert_eq!(segment.sweep(), 1);
        assert_eq!(segment.peers().count(), 1);
        assert_eq!(segment.sweep(), 0);
    }
}
