//! The bytes of every key and row in an environment. `docs/storage.md` tells the same in prose; both change together.
//!
//! All integers are big-endian, so that byte order is numeric order. Decoding never panics: a row that does not fit is
//! [`Error::Damaged`].

use crate::{Error, KEY_BYTES_MAX, check_key};

/// Catalog rows (types and indexes) are records of this pseudo type.
pub(crate) const CATALOG_ID: u32 = 0;
/// The first id that a type or index may get.
pub(crate) const FIRST_ID: u32 = 16;

/// Bytes of the header in front of a record's JSON text.
pub(crate) const HEADER_BYTES: usize = 24;

/// What a record carries beside its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// Clock of the last write.
    pub(crate) version: u64,
    /// Hybrid logical clock of the last write.
    pub(crate) hlc: u64,
    /// When the record was created, in ms since 1970.
    pub(crate) created_ms: u64,
}

impl Header {
    /// version (8) · hlc (8) · created ms (6) · flags (2, zero: no expiry follows).
    pub(crate) fn encode(self) -> [u8; HEADER_BYTES] {
        let mut row = [0; HEADER_BYTES];
        row[0..8].copy_from_slice(&self.version.to_be_bytes());
        row[8..16].copy_from_slice(&self.hlc.to_be_bytes());
        row[16..22].copy_from_slice(&self.created_ms.to_be_bytes()[2..8]);
        row
    }
}

/// Splits a record row into its header and JSON text.
pub(crate) fn decode_record(row: &[u8]) -> Result<(Header, &str), Error> {
    let Some((head, text)) = row.split_first_chunk::<HEADER_BYTES>() else {
        return Err(damaged("record row", row));
    };
    if head[22..24] != [0, 0] {
        return Err(damaged("record flags", head));
    }
    let mut created = [0; 8];
    created[2..8].copy_from_slice(&head[16..22]);
    let header = Header {
        version: be64(&head[0..8]),
        hlc: be64(&head[8..16]),
        created_ms: u64::from_be_bytes(created),
    };
    let text = std::str::from_utf8(text).map_err(|_| damaged("record text", &text[..0]))?;
    Ok((header, text))
}

/// The version alone, for the paths that need nothing else.
pub(crate) fn decode_version(row: &[u8]) -> Result<u64, Error> {
    row.first_chunk::<8>()
        .map(|head| u64::from_be_bytes(*head))
        .ok_or_else(|| damaged("record row", row))
}

/// A record's key in `data` and `tomb`: type id (4) · key.
pub(crate) fn record_key(type_id: u32, key: &str, out: &mut Vec<u8>) {
    out.clear();
    out.extend_from_slice(&type_id.to_be_bytes());
    out.extend_from_slice(key.as_bytes());
}

/// A record's key in `data` without an allocation, for the path of every read.
pub(crate) struct RecordPlace {
    bytes: [u8; 4 + KEY_BYTES_MAX],
    length: usize,
}

impl RecordPlace {
    /// Refuses a key that no record can have.
    pub(crate) fn new(type_id: u32, key: &str) -> Result<Self, Error> {
        check_key(key)?;
        let mut bytes = [0; 4 + KEY_BYTES_MAX];
        let length = 4 + key.len();
        bytes[..4].copy_from_slice(&type_id.to_be_bytes());
        bytes[4..length].copy_from_slice(key.as_bytes());
        Ok(Self { bytes, length })
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// The record key inside a row key of `data` or `tomb`.
pub(crate) fn key_of(row_key: &[u8]) -> Result<&str, Error> {
    row_key
        .get(4..)
        .and_then(|key| std::str::from_utf8(key).ok())
        .ok_or_else(|| damaged("record key", row_key))
}

/// The id in front of a row key.
pub(crate) fn id_of(row_key: &[u8]) -> Result<u32, Error> {
    row_key
        .first_chunk::<4>()
        .map(|id| u32::from_be_bytes(*id))
        .ok_or_else(|| damaged("row id", row_key))
}

/// The catalog key of an index. `/` cannot occur in a type name.
pub(crate) fn index_catalog_key(type_name: &str, index: &str) -> String {
    format!("{type_name}/{index}")
}

/// What a change did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogAction {
    Put = 1,
    Remove = 2,
    TypeRegister = 3,
    TypeDrop = 4,
    IndexRegister = 5,
    IndexDrop = 6,
}

impl LogAction {
    fn decode(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Put,
            2 => Self::Remove,
            3 => Self::TypeRegister,
            4 => Self::TypeDrop,
            5 => Self::IndexRegister,
            6 => Self::IndexDrop,
            _ => return None,
        })
    }

    /// The name in the API.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Put => "put",
            Self::Remove => "remove",
            Self::TypeRegister => "type_register",
            Self::TypeDrop => "type_drop",
            Self::IndexRegister => "index_register",
            Self::IndexDrop => "index_drop",
        }
    }

    /// Whether the change left a tombstone rather than a row.
    pub(crate) fn removes(self) -> bool {
        matches!(self, Self::Remove | Self::TypeDrop | Self::IndexDrop)
    }
}

/// One row of `log`, keyed by clock (8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogRow<'a> {
    pub(crate) type_id: u32,
    pub(crate) action: LogAction,
    pub(crate) hlc: u64,
    /// First clock of the transaction that this change is part of; 0 for a change on its own.
    pub(crate) txn: u64,
    pub(crate) key: &'a str,
}

impl<'a> LogRow<'a> {
    /// action (1) · type id (4) · hlc (8) · txn (8) · key.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.clear();
        out.push(self.action as u8);
        out.extend_from_slice(&self.type_id.to_be_bytes());
        out.extend_from_slice(&self.hlc.to_be_bytes());
        out.extend_from_slice(&self.txn.to_be_bytes());
        out.extend_from_slice(self.key.as_bytes());
    }

    pub(crate) fn decode(row: &'a [u8]) -> Result<Self, Error> {
        let decoded = row.split_first_chunk::<21>().and_then(|(head, key)| {
            Some(Self {
                action: LogAction::decode(head[0])?,
                type_id: u32::from_be_bytes([head[1], head[2], head[3], head[4]]),
                hlc: be64(&head[5..13]),
                txn: be64(&head[13..21]),
                key: std::str::from_utf8(key).ok()?,
            })
        });
        decoded.ok_or_else(|| damaged("log row", row))
    }
}

/// Key of `log_type`: type id (4) · clock (8).
pub(crate) fn log_type_key(type_id: u32, clock: u64) -> [u8; 12] {
    let mut key = [0; 12];
    key[..4].copy_from_slice(&type_id.to_be_bytes());
    key[4..].copy_from_slice(&clock.to_be_bytes());
    key
}

/// The clock at the end of a `log_type` key.
pub(crate) fn log_type_clock(key: &[u8]) -> Result<u64, Error> {
    match key.last_chunk::<8>() {
        Some(clock) if key.len() == 12 => Ok(u64::from_be_bytes(*clock)),
        _ => Err(damaged("log_type key", key)),
    }
}

/// A row of `dead`, keyed by the clock that superseded: the superseded clock (8) · its type id (4).
pub(crate) fn dead_row(clock: u64, type_id: u32) -> [u8; 12] {
    let mut row = [0; 12];
    row[..8].copy_from_slice(&clock.to_be_bytes());
    row[8..].copy_from_slice(&type_id.to_be_bytes());
    row
}

/// Splits a row of `dead` into clock and type id.
pub(crate) fn decode_dead(row: &[u8]) -> Result<(u64, u32), Error> {
    match row.split_first_chunk::<8>() {
        Some((clock, rest)) if rest.len() == 4 => Ok((u64::from_be_bytes(*clock), id_of(rest)?)),
        _ => Err(damaged("dead row", row)),
    }
}

/// An 8-byte clock as a key or row.
pub(crate) fn decode_clock(bytes: &[u8]) -> Result<u64, Error> {
    <[u8; 8]>::try_from(bytes)
        .map(u64::from_be_bytes)
        .map_err(|_| damaged("clock", bytes))
}

/// The row that each write transaction reads and rewrites, under [`META_STATE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct State {
    /// The durable clock.
    pub(crate) clock: u64,
    /// Rises at each change of the catalog.
    pub(crate) catalog: u64,
    /// The highest HLC in the environment.
    pub(crate) hlc: u64,
    /// Rows in `dead`.
    pub(crate) dead: u64,
    /// Changes after this clock can be served; entries up to it may have been pruned.
    pub(crate) log_floor: u64,
    /// Bytes deleted since room ran short, for which puts may take some of the room that is kept.
    pub(crate) credit: u64,
    /// The next id for a type or index.
    pub(crate) next_id: u32,
}

pub(crate) const META_STATE: &[u8] = b"state";
/// A clock: removals up to it have been looked at, and those past their retention are gone from the log.
pub(crate) const META_SCANNED: &[u8] = b"scanned";
const STATE_BYTES: usize = 52;

impl State {
    pub(crate) fn encode(&self) -> [u8; STATE_BYTES] {
        let mut row = [0; STATE_BYTES];
        let words = [
            self.clock,
            self.catalog,
            self.hlc,
            self.dead,
            self.log_floor,
            self.credit,
        ];
        for (chunk, word) in row.chunks_exact_mut(8).zip(words) {
            chunk.copy_from_slice(&word.to_be_bytes());
        }
        row[48..].copy_from_slice(&self.next_id.to_be_bytes());
        row
    }

    pub(crate) fn decode(row: &[u8]) -> Result<Self, Error> {
        if row.len() != STATE_BYTES {
            return Err(damaged("state row", row));
        }
        Ok(Self {
            clock: be64(&row[0..8]),
            catalog: be64(&row[8..16]),
            hlc: be64(&row[16..24]),
            dead: be64(&row[24..32]),
            log_floor: be64(&row[32..40]),
            credit: be64(&row[40..48]),
            next_id: id_of(&row[48..52])?,
        })
    }
}

/// `meta` key of a type's record count.
pub(crate) fn count_key(type_id: u32) -> [u8; 5] {
    id_key(b'c', type_id)
}

/// `meta` key of the rows that a dropped type or index still owns.
pub(crate) fn trash_key(id: u32) -> [u8; 5] {
    id_key(b't', id)
}

/// `meta` key of an index build's progress.
pub(crate) fn build_key(index_id: u32) -> [u8; 5] {
    id_key(b'b', index_id)
}

fn id_key(tag: u8, id: u32) -> [u8; 5] {
    let [a, b, c, d] = id.to_be_bytes();
    [tag, a, b, c, d]
}

/// The smallest key above every key with this id in front.
pub(crate) fn after_id(id: u32) -> [u8; 4] {
    // Ids come from a counter that ends long before u32::MAX.
    id.saturating_add(1).to_be_bytes()
}

fn be64(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(bytes);
    u64::from_be_bytes(word)
}

/// A row that does not fit its layout.
pub(crate) fn damaged(what: &str, row: &[u8]) -> Error {
    Error::Damaged(format!("{what} of {} bytes does not decode", row.len()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn rows_come_back(version: u64, hlc: u64, created in 0u64..1 << 48, text in ".*") {
            let header = Header { version, hlc, created_ms: created };
            let mut row = header.encode().to_vec();
            row.extend_from_slice(text.as_bytes());
            prop_assert_eq!(decode_record(&row).unwrap(), (header, text.as_str()));
            prop_assert_eq!(decode_version(&row).unwrap(), version);
        }

        #[test]
        fn log_rows_come_back(type_id: u32, action in 1u8..=6, hlc: u64, txn: u64, key in ".*") {
            let log = LogRow { type_id, action: LogAction::decode(action).unwrap(), hlc, txn, key: &key };
            let mut row = Vec::new();
            log.encode(&mut row);
            prop_assert_eq!(LogRow::decode(&row).unwrap(), log);
        }

        #[test]
        fn state_comes_back(clock: u64, catalog: u64, hlc: u64, dead: u64, log_floor: u64, credit: u64, next_id: u32) {
            let state = State { clock, catalog, hlc, dead, log_floor, credit, next_id };
            prop_assert_eq!(State::decode(&state.encode()).unwrap(), state);
        }

        #[test]
        fn hostile_rows_are_damaged_not_panics(row: Vec<u8>) {
            let _ = decode_record(&row);
            let _ = decode_version(&row);
            let _ = LogRow::decode(&row);
            let _ = State::decode(&row);
            let _ = decode_dead(&row);
            let _ = log_type_clock(&row);
            let _ = key_of(&row);
        }
    }
}
