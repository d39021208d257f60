//! Walking key ranges in chunks, so that no scan pins old pages for long.
//!
//! A [`KeyRange`] remembers where it is between chunks and is continued under a fresh snapshot; a [`GroupWalk`] does the
//! same for an index, group by group of equal components, which is what an order by values needs.

use std::{
    ops::{Bound, ControlFlow},
    time::{Duration, Instant},
};

use heed::RoTxn;

use crate::{Error, index, lmdb::Table};

/// Rows after which a scan renews its snapshot.
const CHUNK_ROWS: usize = 4096;
/// Time after which a scan renews its snapshot.
const CHUNK_TIME: Duration = Duration::from_millis(20);
/// Rows between two looks at the clock.
const CLOCK_ROWS: usize = 64;

/// How a chunk ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// The range is at its end.
    Done,
    /// The visitor has enough.
    Stopped,
    /// The chunk is used up; go on under a fresh snapshot.
    More,
}

/// How much a chunk may still do.
pub(crate) struct Budget {
    rows: usize,
    until: Instant,
}

impl Budget {
    pub(crate) fn new() -> Self {
        Self {
            rows: 0,
            until: Instant::now() + CHUNK_TIME,
        }
    }

    /// Counts a row; whether there may be another.
    pub(crate) fn spend(&mut self) -> bool {
        self.rows += 1;
        self.rows < CHUNK_ROWS
            && (!self.rows.is_multiple_of(CLOCK_ROWS) || Instant::now() < self.until)
    }
}

/// A range of keys of one table, walked in one direction.
pub(crate) struct KeyRange {
    pub(crate) lower: Bound<Vec<u8>>,
    pub(crate) upper: Bound<Vec<u8>>,
    pub(crate) reverse: bool,
}

impl KeyRange {
    /// All keys that begin with `prefix`, which does not end in 0xFF.
    pub(crate) fn of_prefix(prefix: &[u8]) -> Self {
        let mut upper = prefix.to_vec();
        if let Some(last) = upper.last_mut() {
            *last = last.saturating_add(1);
        }
        Self {
            lower: Bound::Included(prefix.to_vec()),
            upper: Bound::Excluded(upper),
            reverse: false,
        }
    }

    fn bounds(&self) -> (Bound<&[u8]>, Bound<&[u8]>) {
        (
            self.lower.as_ref().map(Vec::as_slice),
            self.upper.as_ref().map(Vec::as_slice),
        )
    }

    /// Drops what lies below `key`.
    fn keep_from(&mut self, key: Vec<u8>) {
        match &self.lower {
            Bound::Included(lower) | Bound::Excluded(lower) if *lower >= key => {}
            _ => self.lower = Bound::Included(key),
        }
    }

    /// Drops what does not lie below `key`.
    fn keep_below(&mut self, key: Vec<u8>) {
        match &self.upper {
            Bound::Included(upper) if *upper < key => {}
            Bound::Excluded(upper) if *upper <= key => {}
            _ => self.upper = Bound::Excluded(key),
        }
    }

    /// LMDB ranges must not be upside down.
    fn is_empty(&self) -> bool {
        let (Bound::Included(lower) | Bound::Excluded(lower)) = &self.lower else {
            return false;
        };
        match &self.upper {
            Bound::Included(upper) => lower > upper,
            Bound::Excluded(upper) => lower >= upper,
            Bound::Unbounded => false,
        }
    }

    /// Visits rows until the range, the budget or the visitor's appetite ends.
    pub(crate) fn chunk<'t>(
        &mut self,
        table: Table,
        txn: &'t RoTxn<'_>,
        budget: &mut Budget,
        mut visit: impl FnMut(&'t [u8], &'t [u8]) -> Result<ControlFlow<()>, Error>,
    ) -> Result<Progress, Error> {
        if self.is_empty() {
            return Ok(Progress::Done);
        }
        let mut last: Option<&[u8]> = None;
        let mut progress = Progress::Done;
        let mut step = |row: heed::Result<(&'t [u8], &'t [u8])>| -> Result<bool, Error> {
            let (key, value) = row?;
            last = Some(key);
            if visit(key, value)?.is_break() {
                progress = Progress::Stopped;
                return Ok(false);
            }
            if !budget.spend() {
                progress = Progress::More;
                return Ok(false);
            }
            Ok(true)
        };
        if self.reverse {
            for row in table.rev_range(txn, &self.bounds())? {
                if !step(row)? {
                    break;
                }
            }
        } else {
            for row in table.range(txn, &self.bounds())? {
                if !step(row)? {
                    break;
                }
            }
        }
        if let Some(last) = last {
            let passed = Bound::Excluded(last.to_vec());
            if self.reverse {
                self.upper = passed;
            } else {
                self.lower = passed;
            }
        }
        Ok(progress)
    }
}

/// A walk over an index in the order of its values, ties by record key in ascending order in both directions.
///
/// Entries with equal components are a *group*. Behind a cut component, bytes say nothing about the order of values, so all
/// entries that are equal up to and with their first cut component are one *cut group*: it is visited whole, and its
/// visitor brings its records into order.
pub(crate) struct GroupWalk {
    range: KeyRange,
    fields: usize,
    /// The group under way, if a chunk ended inside it.
    group: Option<Group>,
    /// Where a cursor wants the walk to begin: components and key.
    start: Option<(Vec<u8>, String)>,
}

struct Group {
    prefix: Vec<u8>,
    is_cut: bool,
    /// The record key after which to go on in it.
    after: Option<String>,
}

impl GroupWalk {
    /// Walks the entries between `lower` and `upper` (exclusive), from behind `start` on if there is one; in a cut group,
    /// from its begin.
    pub(crate) fn new(
        lower: Vec<u8>,
        upper: Vec<u8>,
        descending: bool,
        fields: usize,
        start: Option<(Vec<u8>, String)>,
    ) -> Self {
        let mut range = KeyRange {
            lower: Bound::Included(lower),
            upper: Bound::Excluded(upper),
            reverse: descending,
        };
        if let Some((components, _)) = &start {
            let (prefix, _) = index::group_prefix(components);
            if descending {
                range.keep_below(above(prefix));
            } else {
                range.keep_from(prefix.to_vec());
            }
        }
        Self {
            range,
            fields,
            group: None,
            start,
        }
    }

    /// Visits entries, components and record key, until the range, the budget or the visitor's appetite ends. The visitor's
    /// appetite counts at the end of a cut group only.
    pub(crate) fn chunk<'t>(
        &mut self,
        table: Table,
        txn: &'t RoTxn<'_>,
        budget: &mut Budget,
        mut visit: impl FnMut(&'t [u8], &'t str) -> Result<ControlFlow<()>, Error>,
    ) -> Result<Progress, Error> {
        loop {
            let Some(group) = self.next_group(table, txn)? else {
                return Ok(Progress::Done);
            };
            let Group {
                prefix,
                is_cut,
                after,
            } = group;
            let progress = if is_cut {
                self.cut_group(table, txn, &prefix, budget, &mut visit)?
            } else {
                self.plain_group(table, txn, &prefix, after, budget, &mut visit)?
            };
            match progress {
                Progress::Done => self.leave(prefix),
                Progress::More if is_cut => {
                    self.leave(prefix);
                    return Ok(Progress::More);
                }
                Progress::Stopped | Progress::More => return Ok(progress),
            }
        }
    }

    fn next_group(&mut self, table: Table, txn: &RoTxn<'_>) -> Result<Option<Group>, Error> {
        if let Some(group) = self.group.take() {
            return Ok(Some(group));
        }
        if self.range.is_empty() {
            return Ok(None);
        }
        let bounds = self.range.bounds();
        let entry = if self.range.reverse {
            table.rev_range(txn, &bounds)?.next()
        } else {
            table.range(txn, &bounds)?.next()
        };
        let Some(entry) = entry else { return Ok(None) };
        let (components, _) = index::split_entry(entry?.0, self.fields)?;
        let after = match self.start.take() {
            Some((start, key)) if start == components => Some(key),
            _ => None,
        };
        let (prefix, is_cut) = index::group_prefix(components);
        Ok(Some(Group {
            prefix: prefix.to_vec(),
            is_cut,
            after,
        }))
    }

    fn leave(&mut self, prefix: Vec<u8>) {
        if self.range.reverse {
            self.range.upper = Bound::Excluded(prefix);
        } else {
            self.range.lower = Bound::Included(above(&prefix));
        }
    }

    /// The part of the range that lies in a group, in key order.
    fn part(&self, prefix: &[u8]) -> KeyRange {
        let mut part = KeyRange {
            lower: self.range.lower.clone(),
            upper: self.range.upper.clone(),
            reverse: false,
        };
        part.keep_from(prefix.to_vec());
        part.keep_below(above(prefix));
        part
    }

    fn plain_group<'t>(
        &mut self,
        table: Table,
        txn: &'t RoTxn<'_>,
        prefix: &[u8],
        after: Option<String>,
        budget: &mut Budget,
        visit: &mut impl FnMut(&'t [u8], &'t str) -> Result<ControlFlow<()>, Error>,
    ) -> Result<Progress, Error> {
        let mut part = self.part(prefix);
        if let Some(after) = &after {
            part.lower = Bound::Excluded([prefix, after.as_bytes()].concat());
        }
        let mut last = after;
        let fields = self.fields;
        let progress = part.chunk(table, txn, budget, |entry, _| {
            let (components, key) = index::split_entry(entry, fields)?;
            last = Some(key.to_owned());
            visit(components, key)
        })?;
        if progress == Progress::More {
            self.group = Some(Group {
                prefix: prefix.to_vec(),
                is_cut: false,
                after: last,
            });
        }
        Ok(progress)
    }

    fn cut_group<'t>(
        &self,
        table: Table,
        txn: &'t RoTxn<'_>,
        prefix: &[u8],
        budget: &mut Budget,
        visit: &mut impl FnMut(&'t [u8], &'t str) -> Result<ControlFlow<()>, Error>,
    ) -> Result<Progress, Error> {
        let part = self.part(prefix);
        if part.is_empty() {
            return Ok(Progress::Done);
        }
        let mut appetite = ControlFlow::Continue(());
        let mut left = true;
        for entry in table.range(txn, &part.bounds())? {
            let (components, key) = index::split_entry(entry?.0, self.fields)?;
            appetite = visit(components, key)?;
            left = budget.spend();
        }
        Ok(match appetite {
            ControlFlow::Break(()) => Progress::Stopped,
            ControlFlow::Continue(()) if left => Progress::Done,
            ControlFlow::Continue(()) => Progress::More,
        })
    }
}

/// The smallest key above every entry of a group: neither a component nor a key begins with 0xFF.
pub(crate) fn above(prefix: &[u8]) -> Vec<u8> {
    [prefix, &[0xFF]].concat()
}
