//! The bytes of every key and row in an environment. `docs/storage.md` tells the same in prose; both change together.
//!
//! All integers are big-endian, so that byte order is numeric order. Decoding never panics: a row that does not fit is
//! [`Error::Damaged`].

use crate::{Error, KEY_BYTES_MAX, check_key};

/// Catalog rows (types and indexes) are records of this pseudo type.
pub(crate) const CATALOG_ID: u32 = 0;
/// The first id that a type or index may get.
pub(crate) const FIRST_ID: u32 = 16;

/// Bytes of the header in front of a record's JSON text, without an expiry.
const HEADER_BYTES: usize = 24;
/// Bytes of an expiry.
const EXPIRY_BYTES: usize = 8;
/// The record expires.
const FLAG_EXPIRES: u16 = 1;

/// What a record carries beside its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// Clock of the last write.
    pub(crate) version: u64,
    /// Hybrid logical clock of the last write.
    pub(crate) hlc: u64,
    /// When the record was created, in ms since 1970.
    pub(crate) created_ms: u64,
    /// When it is gone, in ms since 1970: from then on no read sees it.
    pub(crate) expires_ms: Option<u64>,
}

impl Header {
    /// version (8) · hlc (8) · created ms (6) · flags (2); with [`FLAG_EXPIRES`] the expiry (8) follows.
    pub(crate) fn encode(self, out: &mut impl std::io::Write) -> std::io::Result<()> {
        let flags = if self.expires_ms.is_some() {
            FLAG_EXPIRES
        } else {
            0
        };
        out.write_all(&self.version.to_be_bytes())?;
        out.write_all(&self.hlc.to_be_bytes())?;
        out.write_all(&self.created_ms.to_be_bytes()[2..8])?;
        out.write_all(&flags.to_be_bytes())?;
        match self.expires_ms {
            Some(expires) => out.write_all(&expires.to_be_bytes()),
            None => Ok(()),
        }
    }

    /// Its bytes in front of the text.
    pub(crate) fn len(self) -> usize {
        HEADER_BYTES + self.expires_ms.map_or(0, |_| EXPIRY_BYTES)
    }

    /// Whether reads at this time, in ms since 1970, see the record.
    pub(crate) fn is_live(self, now_ms: u64) -> bool {
        self.expires_ms.is_none_or(|expires| now_ms < expires)
    }
}

/// A record row: header and text.
pub(crate) fn record_row(header: Header, text: &str) -> Vec<u8> {
    let mut row = Vec::with_capacity(header.len() + text.len());
    // Writing to a vector does not fail.
    let _ = header.encode(&mut row);
    row.extend_from_slice(text.as_bytes());
    row
}

/// Splits a record row into its header and JSON text.
pub(crate) fn decode_record(row: &[u8]) -> Result<(Header, &str), Error> {
    let Some((head, text)) = row.split_first_chunk::<HEADER_BYTES>() else {
        return Err(damaged("record row", row));
    };
    let (expires_ms, text) = match u16::from_be_bytes([head[22], head[23]]) {
        0 => (None, text),
        FLAG_EXPIRES => match text.split_first_chunk::<EXPIRY_BYTES>() {
            Some((expires, text)) => (Some(u64::from_be_bytes(*expires)), text),
            None => return Err(damaged("record row", row)),
        },
        _ => return Err(damaged("record flags", head)),
    };
    let mut created = [0; 8];
    created[2..8].copy_from_slice(&head[16..22]);
    let header = Header {
        version: be64(&head[0..8]),
        hlc: be64(&head[8..16]),
        created_ms: u64::from_be_bytes(created),
        expires_ms,
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

/// Behind the slash in the catalog key of a type's schema. No index has this name: a field is never empty, and `~` joins
/// fields.
pub(crate) const SCHEMA_NAME: &str = "~schema";

/// What a change did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogAction {
    Put = 1,
    Remove = 2,
    TypeRegister = 3,
    TypeDrop = 4,
    IndexRegister = 5,
    IndexDrop = 6,
    SchemaSet = 7,
    SchemaDrop = 8,
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
            7 => Self::SchemaSet,
            8 => Self::SchemaDrop,
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
            Self::SchemaSet => "schema_set",
            Self::SchemaDrop => "schema_drop",
        }
    }

    /// Whether the change left a tombstone rather than a row.
    pub(crate) fn removes(self) -> bool {
        matches!(
            self,
            Self::Remove | Self::TypeDrop | Self::IndexDrop | Self::SchemaDrop
        )
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

/// Key of `ttl`: expiry in ms since 1970 (8) · type id (4) · key. In the order in which records expire.
pub(crate) fn ttl_key(expires_ms: u64, type_id: u32, key: &str) -> Vec<u8> {
    let mut row_key = Vec::with_capacity(12 + key.len());
    row_key.extend_from_slice(&expires_ms.to_be_bytes());
    row_key.extend_from_slice(&type_id.to_be_bytes());
    row_key.extend_from_slice(key.as_bytes());
    row_key
}

/// Splits a key of `ttl` into expiry, type id and key.
pub(crate) fn decode_ttl(row_key: &[u8]) -> Result<(u64, u32, &str), Error> {
    match row_key.split_first_chunk::<8>() {
        Some((expires, place)) => Ok((u64::from_be_bytes(*expires), id_of(place)?, key_of(place)?)),
        None => Err(damaged("ttl key", row_key)),
    }
}

/// What stands between two keys in one row key: below every byte that a key can have.
const SEPARATOR: u8 = 0;

/// The part of a key of `refs` that all references to one target share: reference id (4) · target key · 0.
pub(crate) fn refs_prefix(ref_id: u32, target: &str) -> Vec<u8> {
    let mut prefix = Vec::with_capacity(5 + target.len());
    prefix.extend_from_slice(&ref_id.to_be_bytes());
    prefix.extend_from_slice(target.as_bytes());
    prefix.push(SEPARATOR);
    prefix
}

/// Key of `refs`: reference id (4) · target key · 0 · key of the record that refers.
pub(crate) fn refs_key(ref_id: u32, target: &str, source: &str) -> Vec<u8> {
    let mut row_key = refs_prefix(ref_id, target);
    row_key.extend_from_slice(source.as_bytes());
    row_key
}

/// Splits a key of `refs` into reference id, target and source.
pub(crate) fn decode_refs(row_key: &[u8]) -> Result<(u32, &str, &str), Error> {
    let id = id_of(row_key)?;
    match key_of(row_key)?.split_once(char::from(SEPARATOR)) {
        Some((target, source)) => Ok((id, target, source)),
        None => Err(damaged("refs key", row_key)),
    }
}

/// The part of a key of `violations` that all violations of one record share: type id (4) · key · 0.
pub(crate) fn violations_prefix(type_id: u32, key: &str) -> Vec<u8> {
    refs_prefix(type_id, key)
}

/// Key of `violations`: type id (4) · key · 0 · kind (1) · place among the record's (2).
pub(crate) fn violation_key(type_id: u32, key: &str, kind: u8, place: u16) -> Vec<u8> {
    let mut row_key = violations_prefix(type_id, key);
    row_key.push(kind);
    row_key.extend_from_slice(&place.to_be_bytes());
    row_key
}

/// Splits a key of `violations` into type id, key and kind.
pub(crate) fn decode_violation(row_key: &[u8]) -> Result<(u32, &str, u8), Error> {
    let wrong = || damaged("violations key", row_key);
    let (place, tail) = row_key.split_last_chunk::<4>().ok_or_else(wrong)?;
    if tail[0] != SEPARATOR {
        return Err(wrong());
    }
    Ok((id_of(place)?, key_of(place)?, tail[1]))
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
    /// The next id for a type, an index or a reference.
    pub(crate) next_id: u32,
    /// The generation that took this one's place, 0 as long as there is none: what is here no longer counts.
    pub(crate) superseded_by: u64,
}

pub(crate) const META_STATE: &[u8] = b"state";
/// A clock: removals up to it have been looked at, and those past their retention are gone from the log.
pub(crate) const META_SCANNED: &[u8] = b"scanned";
const STATE_BYTES: usize = 60;
/// Bytes of a state row that storage format 1 wrote: without `superseded_by`.
const STATE_BYTES_1: usize = 52;

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
        row[48..52].copy_from_slice(&self.next_id.to_be_bytes());
        row[52..].copy_from_slice(&self.superseded_by.to_be_bytes());
        row
    }

    pub(crate) fn decode(row: &[u8]) -> Result<Self, Error> {
        let superseded_by = match row.len() {
            STATE_BYTES => be64(&row[52..60]),
            STATE_BYTES_1 => 0,
            _ => return Err(damaged("state row", row)),
        };
        Ok(Self {
            clock: be64(&row[0..8]),
            catalog: be64(&row[8..16]),
            hlc: be64(&row[16..24]),
            dead: be64(&row[24..32]),
            log_floor: be64(&row[32..40]),
            credit: be64(&row[40..48]),
            next_id: id_of(&row[48..52])?,
            superseded_by,
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

/// `meta` key of how far the records of a type have been checked against its schema.
pub(crate) fn schema_check_key(type_id: u32) -> [u8; 5] {
    id_key(b'k', type_id)
}

/// In front of the `meta` keys of durable cursors: `p` · name → clock.
pub(crate) const CURSOR_TAG: &[u8] = b"p";

/// `meta` key of a durable cursor.
pub(crate) fn cursor_key(name: &str) -> Vec<u8> {
    [CURSOR_TAG, name.as_bytes()].concat()
}

/// `meta` key of a type whose violations are to be dropped, as it has no schema any more.
pub(crate) fn cured_key(type_id: u32) -> [u8; 5] {
    id_key(b'v', type_id)
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
        fn rows_come_back(version: u64, hlc: u64, created in 0u64..1 << 48, expires_ms: Option<u64>, text in ".*") {
            let header = Header { version, hlc, created_ms: created, expires_ms };
            let row = record_row(header, &text);
            prop_assert_eq!(row.len(), header.len() + text.len());
            prop_assert_eq!(decode_record(&row).unwrap(), (header, text.as_str()));
            prop_assert_eq!(decode_version(&row).unwrap(), version);
        }

        #[test]
        fn log_rows_come_back(type_id: u32, action in 1u8..=8, hlc: u64, txn: u64, key in ".*") {
            let log = LogRow { type_id, action: LogAction::decode(action).unwrap(), hlc, txn, key: &key };
            let mut row = Vec::new();
            log.encode(&mut row);
            prop_assert_eq!(LogRow::decode(&row).unwrap(), log);
        }

        #[test]
        fn state_comes_back(words: [u64; 6], next_id: u32, superseded_by: u64) {
            let [clock, catalog, hlc, dead, log_floor, credit] = words;
            let state = State { clock, catalog, hlc, dead, log_floor, credit, next_id, superseded_by };
            prop_assert_eq!(State::decode(&state.encode()).unwrap(), state);
            let of_format_1 = State { superseded_by: 0, ..state };
            prop_assert_eq!(State::decode(&state.encode()[..STATE_BYTES_1]).unwrap(), of_format_1);
        }

        #[test]
        fn keys_of_two_parts_come_back(id: u32, target in "[ -~ä]{1,20}", source in "[ -~ä]{1,20}", kind: u8, place: u16) {
            let refs = refs_key(id, &target, &source);
            prop_assert_eq!(decode_refs(&refs).unwrap(), (id, target.as_str(), source.as_str()));
            let violation = violation_key(id, &target, kind, place);
            prop_assert_eq!(decode_violation(&violation).unwrap(), (id, target.as_str(), kind));
            let ttl = ttl_key(u64::from(place), id, &target);
            prop_assert_eq!(decode_ttl(&ttl).unwrap(), (u64::from(place), id, target.as_str()));
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
            let _ = decode_ttl(&row);
            let _ = decode_refs(&row);
            let _ = decode_violation(&row);
        }
    }
}
