//! How much may still be added to an environment.
//!
//! Whoever deletes needs pages before any are freed, and a log entry besides. So a share of the map is kept from puts, and
//! the data file owns blocks beyond its end that puts do not get either: a full map or disk can always be emptied.
//!
//! Short of the limit a put may do as it likes; at it, one that needs no further page still goes through. Deletes leave
//! pages half empty before they free any, and what is put in their place still needs pages for its log entries: so they
//! earn a credit, for which puts may have half of what is kept.

use std::{
    fs::File,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

use heed::RwTxn;
use nix::{
    errno::Errno,
    fcntl::{FallocateFlags, fallocate},
    sys::resource::{Resource, getrlimit},
};

use crate::{
    Error, Full,
    lmdb::{Lmdb, Tables},
};

/// Pages of the map kept for deletes: this share of it, at least [`HEADROOM_PAGES_MIN`].
const HEADROOM_SHARE: usize = 16;
const HEADROOM_PAGES_MIN: usize = 128;
/// Bytes of disk kept for deletes, where the map's headroom is not smaller.
const RESERVE_BYTES_MAX: u64 = 2 << 20;
/// How far the file's blocks run ahead of its end, beside the reserve: a share of the file, within bounds.
const AHEAD_SHARE: u64 = 8;
const AHEAD_BYTES_MIN: u64 = 1 << 20;
const AHEAD_BYTES_MAX: u64 = 64 << 20;

/// The pages of an environment that puts leave alone.
pub(crate) struct Headroom {
    /// LMDB's own data file, through a duplicate of its descriptor.
    file: File,
    page_bytes: usize,
    /// Pages of the map that live data may fill.
    map_limit_pages: usize,
    /// Pages of the map that it may fill on credit.
    map_credit_pages: usize,
    reserve_bytes: u64,
    /// Up to here the file owns its blocks, as far as this process knows.
    owned_bytes: AtomicU64,
    /// What the process may make of a file.
    file_bytes_max: u64,
    /// Whether the last write transaction began with hardly any room.
    tight: AtomicBool,
}

impl Headroom {
    pub(crate) fn new(lmdb: &Lmdb, page_bytes: usize) -> Result<Self, Error> {
        let map_pages = lmdb.info().map_size / page_bytes;
        let headroom = (map_pages / HEADROOM_SHARE).max(HEADROOM_PAGES_MIN);
        Ok(Self {
            file: lmdb.try_clone_inner_file()?,
            page_bytes,
            map_limit_pages: map_pages.saturating_sub(headroom),
            map_credit_pages: map_pages.saturating_sub(headroom / 2),
            reserve_bytes: RESERVE_BYTES_MAX.min((headroom * page_bytes) as u64),
            owned_bytes: AtomicU64::new(0),
            file_bytes_max: getrlimit(Resource::RLIMIT_FSIZE).map_or(u64::MAX, |(soft, _)| soft),
            tight: AtomicBool::new(false),
        })
    }

    /// Whether there was hardly any room when this process last wrote.
    pub(crate) fn is_tight(&self) -> bool {
        self.tight.load(Ordering::Relaxed)
    }

    /// The room at the begin of a write transaction.
    pub(crate) fn room(&self, lmdb: &Lmdb) -> Room {
        // Pages freed since count as used: an estimate that is only refined where it matters.
        let used_pages = lmdb.info().last_page_number + 1;
        let mut room = Room {
            limit_pages: self.map_limit_pages,
            credit_pages: self.map_credit_pages,
            full: Full::MapKept,
            left_bytes: self
                .map_limit_pages
                .saturating_sub(used_pages)
                .saturating_mul(self.page_bytes),
            page_bytes: self.page_bytes,
            tight: used_pages > self.map_limit_pages,
        };
        let end = (used_pages * self.page_bytes) as u64;
        if let Some(owned) = self.short_of_disk(end) {
            let pages = |kept: u64| {
                let pages = owned.saturating_sub(kept) / self.page_bytes as u64;
                usize::try_from(pages).unwrap_or(usize::MAX)
            };
            let limit = pages(self.reserve_bytes);
            if limit < room.limit_pages {
                room.limit_pages = limit;
                room.credit_pages = pages(self.reserve_bytes / 2).min(room.credit_pages);
                room.full = Full::DiskKept;
                room.tight = true;
            }
        }
        self.tight.store(room.tight, Ordering::Relaxed);
        room
    }

    /// Sees to it that the file owns blocks beyond `end`. If the disk has none, tells how far they reach.
    fn short_of_disk(&self, end: u64) -> Option<u64> {
        let owned = self.owned_bytes.load(Ordering::Relaxed);
        let enough = end.saturating_add(self.reserve_bytes);
        if owned >= enough {
            return None;
        }
        let ahead = (end / AHEAD_SHARE).clamp(AHEAD_BYTES_MIN, AHEAD_BYTES_MAX);
        for wanted in [enough.saturating_add(ahead), enough] {
            match self.own(owned, wanted) {
                Ok(()) => {
                    self.owned_bytes.store(wanted, Ordering::Relaxed);
                    return None;
                }
                Err(Errno::ENOSPC | Errno::EDQUOT | Errno::EFBIG) => {}
                // A file system that cannot: there, a full disk can refuse deletes too.
                Err(_) => {
                    self.owned_bytes.store(u64::MAX, Ordering::Relaxed);
                    return None;
                }
            }
        }
        Some(owned)
    }

    fn own(&self, from: u64, to: u64) -> Result<(), Errno> {
        // The kernel does not hold blocks beyond the end against this limit, but the writes that will follow.
        if to > self.file_bytes_max {
            return Err(Errno::EFBIG);
        }
        let offset = i64::try_from(from).map_err(|_| Errno::EFBIG)?;
        let length = i64::try_from(to - from).map_err(|_| Errno::EFBIG)?;
        // The length stays: nobody sees the difference but the disk.
        fallocate(
            &self.file,
            FallocateFlags::FALLOC_FL_KEEP_SIZE,
            offset,
            length,
        )
    }
}

/// The room of one write transaction.
#[derive(Clone, Copy)]
pub(crate) struct Room {
    limit_pages: usize,
    /// Where even credit ends.
    credit_pages: usize,
    /// What is full at the limit.
    full: Full,
    left_bytes: usize,
    page_bytes: usize,
    tight: bool,
}

impl Room {
    /// Whether pages have to be counted from now on.
    pub(crate) fn is_tight(&self) -> bool {
        self.tight
    }

    /// Takes about `bytes` from what is left.
    pub(crate) fn take(&mut self, bytes: usize) {
        // A row costs its page's share and the copies of the pages above it; twice its size is a fair guess.
        match self.left_bytes.checked_sub(bytes.saturating_mul(2)) {
            Some(left) => self.left_bytes = left,
            None => self.tight = true,
        }
    }

    /// Takes `bytes` for what can wait until there is room, such as definitions and builds.
    pub(crate) fn require(&mut self, bytes: usize) -> Result<(), Error> {
        self.take(bytes);
        if self.tight {
            return Err(Error::StorageFull(self.full));
        }
        Ok(())
    }

    /// Counts the pages in use before a put, where it is tight, and refuses a value that cannot fit in place of the old.
    pub(crate) fn before_put(
        &self,
        tables: &Tables,
        txn: &RwTxn<'_>,
        new_bytes: usize,
        old_bytes: usize,
    ) -> Result<Option<usize>, Error> {
        if !self.tight {
            return Ok(None);
        }
        let used = tables.pages_used(txn)?;
        let (new, old) = (new_bytes / self.page_bytes, old_bytes / self.page_bytes + 1);
        if new > old && used.saturating_add(new) > self.credit_pages.saturating_add(old) {
            return Err(Error::StorageFull(self.full));
        }
        Ok(Some(used))
    }

    /// Refuses a put, which poisons its transaction, if it took pages that are not for puts; `bytes` is what it costs in
    /// credit.
    pub(crate) fn after_put(
        &self,
        tables: &Tables,
        txn: &RwTxn<'_>,
        before: Option<usize>,
        bytes: usize,
        credit: &mut u64,
    ) -> Result<(), Error> {
        let Some(before) = before else {
            return Ok(());
        };
        let after = tables.pages_used(txn)?;
        if after <= before || after <= self.limit_pages {
            return Ok(());
        }
        match credit.checked_sub(bytes as u64) {
            Some(left) if after <= self.credit_pages => {
                *credit = left;
                Ok(())
            }
            _ => Err(Error::StorageFull(self.full)),
        }
    }
}
