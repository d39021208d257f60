//! Records that expire: listing them, sweeping them at once, and the durable cursors that hold the log back.

use std::ops::{Bound, ControlFlow};

use serde::Serialize;

use crate::{
    Env, Error, Outcome, Pending,
    chores::Step,
    layout,
    lmdb::Tables,
    scan::{Budget, KeyRange, Progress},
};

/// Which records that expire to list.
#[derive(Clone, Debug, Default)]
pub struct ExpiringQuery {
    /// Of this type only.
    pub type_name: Option<String>,
    /// The most to list.
    pub limit: usize,
    /// Where the page before ended.
    pub cursor: Option<String>,
}

/// A record that expires.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Expiring {
    /// Its type.
    #[serde(rename = "type")]
    pub type_name: String,
    /// Its key.
    pub key: String,
    /// When it will be gone, in ms since 1970.
    pub expires_at: u64,
    /// How long that is from now, in ms.
    pub remaining_ms: u64,
}

/// A page of records that expire.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ExpiringPage {
    /// The next to go first.
    pub items: Vec<Expiring>,
    /// Where to go on, `None` at the end.
    pub cursor: Option<String>,
}

impl Env {
    /// Records that will expire, the next to go first.
    ///
    /// # Errors
    /// [`Error::TypeNotRegistered`], [`Error::InvalidCursor`], and what LMDB reports.
    pub fn expiring(&self, query: &ExpiringQuery) -> Result<ExpiringPage, Error> {
        let mut snapshot = self.snapshot()?;
        let only = match &query.type_name {
            Some(name) => Some(snapshot.catalog.require(name)?.id),
            None => None,
        };
        let request = self
            .0
            .cursor_key
            .request("ttl")
            .part(query.type_name.as_deref().unwrap_or_default());
        let now_ms = snapshot.now_ms();
        let mut range = KeyRange {
            lower: Bound::Included(now_ms.saturating_add(1).to_be_bytes().to_vec()),
            upper: Bound::Unbounded,
            reverse: false,
        };
        if let Some(cursor) = &query.cursor {
            let position = request.open(cursor)?;
            let at = position.split_once(' ').and_then(|(expires, place)| {
                let (id, key) = place.split_once(' ')?;
                let (expires, id) = (expires.parse().ok()?, id.parse().ok()?);
                Some(layout::ttl_key(expires, id, key))
            });
            range.lower = Bound::Excluded(at.ok_or(Error::InvalidCursor)?);
        }
        let mut page = ExpiringPage::default();
        let mut last = None;
        loop {
            let table = self.0.tables.ttl;
            let mut budget = Budget::new();
            let progress = range.chunk(table, &snapshot.txn, &mut budget, |row_key, _| {
                let (expires_at, type_id, key) = layout::decode_ttl(row_key)?;
                let def = snapshot.catalog.by_id(type_id);
                let wanted = |id: u32| only.is_none_or(|only| only == id) && expires_at > now_ms;
                let Some(def) = def.filter(|def| wanted(def.id)) else {
                    return Ok(ControlFlow::Continue(()));
                };
                if page.items.len() >= query.limit {
                    page.cursor = last.take().map(|at: String| request.seal(&at));
                    return Ok(ControlFlow::Break(()));
                }
                last = Some(format!("{expires_at} {type_id} {key}"));
                page.items.push(Expiring {
                    type_name: def.name.clone(),
                    key: key.to_owned(),
                    expires_at,
                    remaining_ms: expires_at - now_ms,
                });
                Ok(ControlFlow::Continue(()))
            })?;
            if progress != Progress::More {
                return Ok(page);
            }
            snapshot = self.snapshot()?;
        }
    }

    /// Removes some of the records whose time is over, as the background work does each second: the outcome is
    /// [`Outcome::Swept`]. Nobody need call it for such records not to be seen.
    pub fn sweep_some(&self) -> Pending {
        self.chore(Step::Expire)
    }

    /// Removes all records whose time is over by now; tells how many. Blocks.
    ///
    /// # Errors
    /// What a write can fail with.
    pub fn sweep(&self) -> Result<u64, Error> {
        let mut all = 0;
        while self.has_expired()? {
            if let Outcome::Swept { records } = self.sweep_some().wait()? {
                all += records;
            }
        }
        Ok(all)
    }

    /// Whether any record is past its expiry and not swept yet.
    ///
    /// # Errors
    /// What LMDB reports.
    pub fn has_expired(&self) -> Result<bool, Error> {
        let snapshot = self.snapshot()?;
        first_is_due(&self.0.tables, &snapshot.txn, snapshot.now_ms())
    }

    /// The durable cursors that keep removals in the change log, by name, each with the clock up to which its owner has
    /// seen all changes.
    ///
    /// # Errors
    /// What LMDB reports.
    pub fn cursors(&self) -> Result<Vec<(String, u64)>, Error> {
        let snapshot = self.snapshot()?;
        let rows = self
            .0
            .tables
            .meta
            .prefix_iter(&snapshot.txn, layout::CURSOR_TAG)?;
        rows.map(|row| {
            let (key, clock) = row?;
            let name = key.get(layout::CURSOR_TAG.len()..).unwrap_or_default();
            let name = String::from_utf8_lossy(name).into_owned();
            Ok((name, layout::decode_clock(clock)?))
        })
        .collect()
    }
}

/// Whether the record that expires first is past its time.
pub(crate) fn first_is_due(
    tables: &Tables,
    txn: &heed::RoTxn<'_>,
    now_ms: u64,
) -> Result<bool, Error> {
    match tables.ttl.first(txn)? {
        Some((row_key, _)) => Ok(layout::decode_ttl(row_key)?.0 <= now_ms),
        None => Ok(false),
    }
}
