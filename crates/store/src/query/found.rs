//! A page being filled: the best records so far, within bounds on their number and bytes.

use std::cmp::Ordering;

use okdb_query::Value;

use super::{Item, Position};

/// Bytes of values after which a page ends before its limit of items.
pub(super) const PAGE_BYTES_MAX: usize = 32 << 20;

/// The records found so far, in the order of the answer.
pub(super) struct Found {
    /// Records to keep: one more than the page, to know whether there is another.
    keep: usize,
    kept: Vec<Kept>,
    bytes: usize,
    /// Whether the page was cut short for its bytes.
    shortened: bool,
}

struct Kept {
    values: Vec<Value<'static>>,
    item: Item,
    bytes: usize,
}

impl Found {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            keep: limit.saturating_add(1),
            kept: Vec::new(),
            bytes: 0,
            shortened: false,
        }
    }

    /// Whether records that come behind all others can no longer get in.
    pub(super) fn is_full(&self) -> bool {
        self.kept.len() >= self.keep
    }

    /// Takes a record in at its place, unless the page is full of better ones. `extra_bytes` is what it keeps beside its
    /// item.
    pub(super) fn offer(
        &mut self,
        values: Vec<Value<'static>>,
        key: &str,
        extra_bytes: usize,
        order: impl Fn(&[Value<'_>], &str, &[Value<'_>], &str) -> Ordering,
        item: impl FnOnce() -> Item,
    ) {
        let at = self
            .kept
            .partition_point(|kept| order(&kept.values, &kept.item.key, &values, key).is_lt());
        if at >= self.keep {
            return;
        }
        let item = item();
        let bytes = item.value.len() + extra_bytes;
        self.bytes += bytes;
        self.kept.insert(
            at,
            Kept {
                values,
                item,
                bytes,
            },
        );
        while self.kept.len() > self.keep || (self.bytes > PAGE_BYTES_MAX && self.kept.len() > 1) {
            let Some(dropped) = self.kept.pop() else {
                break;
            };
            self.bytes -= dropped.bytes;
            if self.kept.len() < self.keep {
                // The best ones alone fill the page: what comes behind them waits for the next one.
                self.keep = self.kept.len();
                self.shortened = true;
            }
        }
    }

    /// The items of the page, and where it ended if there is another.
    pub(super) fn page(mut self, limit: usize) -> (Vec<Item>, Option<Position>) {
        let more = self.shortened || self.kept.len() > limit;
        self.kept.truncate(limit);
        let last = self.kept.last().filter(|_| more).map(|last| Position {
            values: last.values.clone(),
            key: last.item.key.clone(),
        });
        (self.kept.into_iter().map(|kept| kept.item).collect(), last)
    }
}
