//! The supervisor's table of slots: written by the primary alone, read by every process.
//!
//! A row is several words that belong together, so a sequence word guards it: odd while the row is being
//! written, so that a reader who saw it change reads again. Readers never wait for a writer that died.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use okdb_sys::process;
use okdb_sys::reap::Exit;

use crate::layout::{SLOT_COUNT_MAX, SLOT_FIELDS};
use crate::owner::{self, ClaimError};
use crate::segment::Segment;
use crate::word::Word;

/// How often a reader tries for an undisturbed copy before it takes what there is: by then the writer died
/// inside a write, since one lasts some nanoseconds.
const READ_TRIES_MAX: u32 = 1_000;

/// What a slot is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(
    missing_docs,
    reason = "each is the state of its name in the vocabulary"
)]
pub enum SlotState {
    Starting,
    Ready,
    Backoff,
    Draining,
    Decommissioned,
    Dead,
}

impl SlotState {
    /// Every one, in the order of their words.
    pub const ALL: [Self; 6] = [
        Self::Starting,
        Self::Ready,
        Self::Backoff,
        Self::Draining,
        Self::Decommissioned,
        Self::Dead,
    ];

    const fn to_word(self) -> u64 {
        match self {
            Self::Starting => 1,
            Self::Ready => 2,
            Self::Backoff => 3,
            Self::Draining => 4,
            Self::Decommissioned => 5,
            Self::Dead => 6,
        }
    }

    fn from_word(word: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.to_word() == word)
    }

    /// Its name in status answers and logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Ready => "ready",
            Self::Backoff => "backoff",
            Self::Draining => "draining",
            Self::Decommissioned => "decommissioned",
            Self::Dead => "dead",
        }
    }
}

/// What the supervisor says of a slot. Times are in `okdb_sys::host::monotonic_ms`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotRow {
    /// What it is doing.
    pub state: SlotState,
    /// The worker that fills it.
    pub worker: Option<process::Identity>,
    /// Workers started in it, beyond the first.
    pub restarts: u64,
    /// When the next worker starts.
    pub backoff_until_ms: Option<u64>,
    /// When the present worker was started.
    pub started_ms: Option<u64>,
    /// How the last worker ended.
    pub last_exit: Option<Exit>,
}

impl SlotRow {
    fn to_words(self) -> [u64; SLOT_FIELDS] {
        let worker = self.worker.and_then(|worker| owner::pack(worker).ok());
        [
            self.state.to_word(),
            worker.unwrap_or(0),
            self.restarts,
            optional(self.backoff_until_ms),
            optional(self.started_ms),
            exit_word(self.last_exit),
        ]
    }

    /// `None` for a slot that was never used.
    fn from_words(words: [u64; SLOT_FIELDS]) -> Option<Self> {
        let [state, worker, restarts, backoff, started, exit] = words;
        Some(Self {
            state: SlotState::from_word(state)?,
            worker: owner::unpack(worker),
            restarts,
            backoff_until_ms: backoff.checked_sub(1),
            started_ms: started.checked_sub(1),
            last_exit: exit_from_word(exit),
        })
    }
}

/// An optional time as a word: 0 for none, else one more than the time.
fn optional(value: Option<u64>) -> u64 {
    value.map_or(0, |value| value.saturating_add(1))
}

/// An exit as a word: how in the upper half (0 none, 1 code, 2 signal, 3 signal with core), the code's or
/// the signal's number in the lower.
fn exit_word(exit: Option<Exit>) -> u64 {
    let (how, number) = match exit {
        None => (0, 0),
        Some(Exit::Code(code)) => (1, code),
        Some(Exit::Signal {
            number,
            core: false,
        }) => (2, number),
        Some(Exit::Signal { number, core: true }) => (3, number),
    };
    how << 32 | u64::from(number.cast_unsigned())
}

fn exit_from_word(word: u64) -> Option<Exit> {
    let number = u32::try_from(word & 0xffff_ffff).ok()?.cast_signed();
    match word >> 32 {
        1 => Some(Exit::Code(number)),
        2 => Some(Exit::Signal {
            number,
            core: false,
        }),
        3 => Some(Exit::Signal { number, core: true }),
        _ => None,
    }
}

impl Segment {
    /// The right to write the table of slots, for the primary: one process has it at a time.
    ///
    /// # Errors
    /// [`ClaimError::Held`] while a living process has it.
    pub fn slot_writer(
        self: &Arc<Self>,
        identity: process::Identity,
    ) -> Result<SlotWriter, ClaimError> {
        let me = owner::pack(identity)?;
        owner::claim(&self.tables().header.slot_writer.word, me, owner::lives).map_err(|held| {
            ClaimError::Held(owner::unpack(held).map_or(0, |identity| identity.pid))
        })?;
        Ok(SlotWriter {
            segment: Arc::clone(self),
            me,
        })
    }

    /// What the supervisor says of `slot`; `None` for one that was never used.
    #[must_use]
    pub fn slot(&self, slot: u16) -> Option<SlotRow> {
        let row = self.tables().slots.get(usize::from(slot))?;
        SlotRow::from_words(read_guarded(&row.sequence, &row.fields))
    }

    /// All slots that were ever used.
    pub fn slots(&self) -> impl Iterator<Item = (u16, SlotRow)> + '_ {
        (0..=u16::MAX)
            .take(SLOT_COUNT_MAX)
            .filter_map(|slot| Some((slot, self.slot(slot)?)))
    }
}

/// The right to write the table of slots, given back on drop.
pub struct SlotWriter {
    segment: Arc<Segment>,
    me: u64,
}

impl SlotWriter {
    /// Says `row` of `slot`.
    ///
    /// # Errors
    /// [`ClaimError::Slot`] for a slot beyond [`SLOT_COUNT_MAX`].
    pub fn publish(&mut self, slot: u16, row: &SlotRow) -> Result<(), ClaimError> {
        let tables = self.segment.tables();
        let words = tables
            .slots
            .get(usize::from(slot))
            .ok_or(ClaimError::Slot(slot))?;
        write_guarded(&words.sequence, &words.fields, row.to_words());
        Ok(())
    }
}

impl Drop for SlotWriter {
    fn drop(&mut self) {
        owner::release(&self.segment.tables().header.slot_writer.word, self.me);
    }
}

/// Writes `values` as one. The caller is the only writer.
pub(crate) fn write_guarded<W: Word, const N: usize>(
    sequence: &W,
    fields: &[W; N],
    values: [u64; N],
) {
    // Odd already if the last writer died inside a write; its half is overwritten now.
    let writing = sequence.load(Ordering::Relaxed) | 1;
    sequence.store(writing, Ordering::Relaxed);
    // No field may become visible before the odd number does.
    W::fence(Ordering::Release);
    for (field, value) in fields.iter().zip(values) {
        field.store(value, Ordering::Relaxed);
    }
    sequence.store(writing.wrapping_add(1), Ordering::Release);
}

/// Reads a copy that no write disturbed; after [`READ_TRIES_MAX`] tries, any copy.
fn read_guarded<W: Word, const N: usize>(sequence: &W, fields: &[W; N]) -> [u64; N] {
    let mut copy = try_read_guarded(sequence, fields);
    for _ in 1..READ_TRIES_MAX {
        if copy.is_ok() {
            break;
        }
        std::hint::spin_loop();
        copy = try_read_guarded(sequence, fields);
    }
    copy.unwrap_or_else(|disturbed| disturbed)
}

/// One try; the error is a copy that a write may have disturbed.
pub(crate) fn try_read_guarded<W: Word, const N: usize>(
    sequence: &W,
    fields: &[W; N],
) -> Result<[u64; N], [u64; N]> {
    let before = sequence.load(Ordering::Acquire);
    let mut values = [0; N];
    for (value, field) in values.iter_mut().zip(fields) {
        *value = field.load(Ordering::Relaxed);
    }
    // The second look at the number may not happen before the fields were read.
    W::fence(Ordering::Acquire);
    if before & 1 == 0 && sequence.load(Ordering::Relaxed) == before {
        Ok(values)
    } else {
        Err(values)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]
    use super::*;
    use crate::segment::tests::private;
    use proptest::prelude::*;
    use std::sync::atomic::AtomicU64;

    fn exits() -> impl Strategy<Value = Option<Exit>> {
        proptest::option::of(prop_oneof![
            any::<i32>().prop_map(Exit::Code),
            (any::<i32>(), any::<bool>()).prop_map(|(number, core)| Exit::Signal { number, core }),
        ])
    }

    proptest! {
        #[test]
        fn a_row_comes_back_as_it_was_published(
            state in proptest::sample::select(SlotState::ALL.to_vec()),
            worker in proptest::option::of((1u32..4_000_000, 0u64..1 << 42)),
            restarts: u64,
            backoff_until_ms in proptest::option::of(0u64..1 << 50),
            started_ms in proptest::option::of(0u64..1 << 50),
            last_exit in exits(),
        ) {
            let worker = worker.map(|(pid, start_time)| process::Identity { pid, start_time });
            let row = SlotRow { state, worker, restarts, backoff_until_ms, started_ms, last_exit };
            prop_assert_eq!(SlotRow::from_words(row.to_words()), Some(row));
        }

        #[test]
        fn any_words_can_be_read(words: [u64; SLOT_FIELDS]) {
            let _ = SlotRow::from_words(words);
        }
    }

    #[test]
    fn one_process_writes_and_all_read() {
        let segment = private();
        let me = process::Identity::current().unwrap();
        let mut writer = segment.slot_writer(me).unwrap();
        assert_eq!(
            segment.slot_writer(me).err(),
            Some(ClaimError::Held(me.pid))
        );
        let row = SlotRow {
            state: SlotState::Backoff,
            worker: None,
            restarts: 2,
            backoff_until_ms: Some(0),
            started_ms: None,
            last_exit: Some(Exit::Code(-1)),
        };
        writer.publish(3, &row).unwrap();
        assert_eq!(segment.slot(3), Some(row));
        assert_eq!(segment.slot(4), None);
        assert_eq!(segment.slots().collect::<Vec<_>>(), [(3, row)]);
        assert_eq!(writer.publish(256, &row), Err(ClaimError::Slot(256)));
        drop(writer);
        assert!(segment.slot_writer(me).is_ok());
    }

    #[test]
    fn a_writer_that_died_inside_a_write_stops_nobody() {
        let sequence = AtomicU64::new(7);
        let fields = [AtomicU64::new(1), AtomicU64::new(2)];
        assert_eq!(read_guarded(&sequence, &fields), [1, 2]);
        write_guarded(&sequence, &fields, [3, 4]);
        assert_eq!(sequence.load(Ordering::Relaxed), 8);
        assert_eq!(read_guarded(&sequence, &fields), [3, 4]);
    }
}
