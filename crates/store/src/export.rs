//! Exporting a type as NDJSON, in chunks of bounded size.

use std::{
    ops::{Bound, ControlFlow},
    sync::{Arc, Mutex, PoisonError, mpsc},
    time::Duration,
};

use heed::{RoTxn, WithoutTls};
use okdb_query::write_string;

use crate::{
    Env, Error, layout,
    lmdb::Lmdb,
    scan::{Budget, KeyRange, Progress},
    store::wall_ms,
};

/// How long an export may keep one snapshot.
const CONSISTENT_MAX: Duration = Duration::from_secs(60);

/// An export under way.
pub struct Export {
    env: Env,
    type_name: String,
    type_id: u32,
    range: KeyRange,
    /// The one snapshot of a consistent export.
    pinned: Option<Pin>,
}

/// A snapshot that ends by itself: whoever reads an export may be slow, and old pages must not wait for them.
struct Pin {
    txn: Arc<Mutex<Option<RoTxn<'static, WithoutTls>>>>,
    /// Dropping it lets the thread that watches the time go.
    _in_use: mpsc::Sender<()>,
}

impl Pin {
    fn new(txn: RoTxn<'static, WithoutTls>, time: Duration) -> Result<Self, Error> {
        let txn = Arc::new(Mutex::new(Some(txn)));
        let (in_use, gone) = mpsc::channel();
        let watched = Arc::clone(&txn);
        std::thread::Builder::new()
            .name("export-pin".into())
            .spawn(move || {
                if gone.recv_timeout(time) == Err(mpsc::RecvTimeoutError::Timeout) {
                    let mut txn = watched.lock().unwrap_or_else(PoisonError::into_inner);
                    *txn = None;
                }
            })?;
        Ok(Self {
            txn,
            _in_use: in_use,
        })
    }
}

impl Env {
    /// Starts to export a type. A consistent export shows one moment and must be done within a minute, since it keeps old
    /// pages from being used again; the other kind shows each record as it is when it is read.
    ///
    /// # Errors
    /// [`Error::TypeNotRegistered`], and what LMDB reports.
    pub fn export(&self, type_name: &str, consistent: bool) -> Result<Export, Error> {
        self.export_within(type_name, consistent.then_some(CONSISTENT_MAX))
    }

    fn export_within(&self, type_name: &str, time: Option<Duration>) -> Result<Export, Error> {
        let (type_id, pinned) = if let Some(time) = time {
            let lmdb: Lmdb = self.0.lmdb.clone();
            let txn = lmdb.static_read_txn()?;
            let catalog = self.0.catalog.of_snapshot(&self.0.tables, &txn)?;
            (catalog.require(type_name)?.id, Some(Pin::new(txn, time)?))
        } else {
            (self.snapshot()?.catalog.require(type_name)?.id, None)
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
        let mut line = String::new();
        let mut visit = |key: &[u8], row: &[u8]| {
            let (header, value) = layout::decode_record(row)?;
            if header.expires_ms.is_some() && !header.is_live(wall_ms()) {
                return Ok(ControlFlow::Continue(()));
            }
            line.clear();
            line.push_str("{\"key\":");
            write_string(layout::key_of(key)?, &mut line);
            line.push_str(",\"value\":");
            line.push_str(value);
            line.push_str("}\n");
            out.extend_from_slice(line.as_bytes());
            Ok(if out.len() >= bytes_max {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            })
        };
        loop {
            let mut budget = Budget::new();
            let progress = if let Some(pin) = &self.pinned {
                let txn = pin.txn.lock().unwrap_or_else(PoisonError::into_inner);
                let txn = txn.as_ref().ok_or(Error::Overloaded)?;
                self.range.chunk(table, txn, &mut budget, &mut visit)?
            } else {
                let snapshot = self.env.snapshot()?;
                if snapshot.catalog.require(&self.type_name)?.id != self.type_id {
                    return Err(Error::TypeNotRegistered {
                        type_name: self.type_name.clone(),
                    });
                }
                self.range
                    .chunk(table, &snapshot.txn, &mut budget, &mut visit)?
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

    use super::*;
    use crate::{Action, Durability, Guard, Operation, Options, Store, Write};

    #[test]
    fn a_slow_reader_of_a_consistent_export_loses_it() {
        let folder = tempfile::tempdir().unwrap();
        let options = Options {
            durability: Some(Durability::Fast),
            segment_in_root: true,
            auto_types: true,
            ..Options::default()
        };
        let store = Store::open(&folder.path().join("root"), options).unwrap();
        let env = store.env("default").unwrap();
        let put = |key: &str| {
            let operation = Operation {
                type_name: "t".into(),
                key: key.into(),
                guard: Guard::default(),
                ttl: None,
                action: Action::Put("1".into()),
            };
            env.submit(Write::One(operation)).wait().unwrap();
        };
        put("a");
        let mut patient = env.export("t", true).unwrap();
        let mut brief = env.export_within("t", Some(Duration::ZERO)).unwrap();
        put("b");
        let mut out = Vec::new();
        assert!(!patient.next_chunk(&mut out, 1000).unwrap());
        assert_eq!(out, b"{\"key\":\"a\",\"value\":1}\n");
        while brief.next_chunk(&mut Vec::new(), 1).is_ok() {
            std::thread::yield_now();
        }
        assert!(matches!(
            brief.next_chunk(&mut out, 1000),
            Err(Error::Overloaded)
        ));
    }
}
