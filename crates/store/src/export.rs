//! Exporting a type as NDJSON, in chunks of bounded size.

use std::{
    ops::{Bound, ControlFlow},
    time::{Duration, Instant},
};

use okdb_query::write_string;

use crate::{
    Env, Error, layout,
    lmdb::Lmdb,
    scan::{Budget, KeyRange, Progress},
};

/// How long an export may keep one snapshot.
const CONSISTENT_MAX: Duration = Duration::from_secs(60);

/// An export under way.
pub struct Export {
    env: Env,
    type_name: String,
    type_id: u32,
    range: KeyRange,
    /// The one snapshot of a consistent export, and when it was taken.
    pinned: Option<(heed::RoTxn<'static, heed::WithoutTls>, Instant)>,
}

impl Env {
    /// Starts to export a type. A consistent export shows one moment and must be done within a minute, since it keeps old
    /// pages from being used again; the other kind shows each record as it is when it is read.
    ///
    /// # Errors
    /// [`Error::TypeNotRegistered`], and what LMDB reports.
    pub fn export(&self, type_name: &str, consistent: bool) -> Result<Export, Error> {
        let snapshot = self.snapshot()?;
        let type_id = snapshot.catalog.require(type_name)?.id;
        let pinned = if consistent {
            let lmdb: Lmdb = self.0.lmdb.clone();
            let txn = lmdb.static_read_txn()?;
            // Taken a moment later: the type must still be the one that was looked up.
            let catalog = self.0.catalog.of_snapshot(&self.0.tables, &txn)?;
            if catalog.require(type_name)?.id != type_id {
                return Err(Error::TypeNotRegistered {
                    type_name: type_name.to_owned(),
                });
            }
            Some((txn, Instant::now()))
        } else {
            None
        };
        Ok(Export {
            env: self.clone(),
            type_name: type_name.to_owned(),
            type_id,
            range: KeyRange::of_prefix(&type_id.to_be_bytes()),
            pinned,
        })
    }
}

impl Export {
    /// Appends lines `{"key":…,"value":…}` to `out` until it holds about `bytes_max`; tells whether there is more.
    ///
    /// # Errors
    /// [`Error::Overloaded`] when a consistent export has taken too long, [`Error::TypeNotRegistered`] when the type was
    /// dropped meanwhile, and what LMDB reports.
    pub fn next_chunk(&mut self, out: &mut Vec<u8>, bytes_max: usize) -> Result<bool, Error> {
        let table = self.env.0.tables.data;
        loop {
            let range = &mut self.range;
            let mut line = String::new();
            let mut visit = |key: &[u8], row: &[u8]| {
                let (_, value) = layout::decode_record(row)?;
                line.clear();
                line.push_str("{\"key\":");
                write_string(layout::key_of(key)?, &mut line);
                line.push_str(",\"value\":");
                line.push_str(value);
                line.push_str("}\n");
                out.extend_from_slice(line.as_bytes());
                let full = out.len() >= bytes_max;
                Ok(if full {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                })
            };
            let progress = match &self.pinned {
                Some((_, since)) if since.elapsed() > CONSISTENT_MAX => {
                    return Err(Error::Overloaded);
                }
                Some((txn, _)) => range.chunk(table, txn, &mut Budget::new(), &mut visit)?,
                None => {
                    let snapshot = self.env.snapshot()?;
                    if snapshot.catalog.require(&self.type_name)?.id != self.type_id {
                        return Err(Error::TypeNotRegistered {
                            type_name: self.type_name.clone(),
                        });
                    }
                    range.chunk(table, &snapshot.txn, &mut Budget::new(), &mut visit)?
                }
            };
            match progress {
                Progress::Done => {
                    // Nothing lies behind: a further call finds an empty range.
                    self.range.lower = Bound::Included(Vec::new());
                    self.range.upper = Bound::Excluded(Vec::new());
                    return Ok(false);
                }
                Progress::Stopped => return Ok(true),
                Progress::More => {}
            }
        }
    }
}
