//! The one place that turns mapped bytes into references.

#![allow(unsafe_code, reason = "a reference into a memory map")]

use std::fs::File;
use std::io;

use memmap2::{MmapOptions, MmapRaw};

use crate::layout::{SEGMENT_BYTES, Tables};

/// A mapping of exactly one segment, for as long as this lives.
pub(crate) struct Mapping {
    map: MmapRaw,
}

impl Mapping {
    /// Maps `file`, shared. It must be [`SEGMENT_BYTES`] long: touching a page beyond the end of a file is
    /// a SIGBUS.
    pub(crate) fn shared(file: &File) -> io::Result<Self> {
        let map = MmapOptions::new().len(SEGMENT_BYTES).map_raw(file)?;
        Ok(Self { map })
    }

    /// Zeroed memory of this process alone.
    pub(crate) fn private() -> io::Result<Self> {
        let map = MmapOptions::new().len(SEGMENT_BYTES).map_anon()?;
        Ok(Self { map: map.into() })
    }

    #[allow(
        clippy::cast_ptr_alignment,
        reason = "mmap aligns to pages, and no page is smaller than Tables' alignment"
    )]
    pub(crate) fn tables(&self) -> &Tables {
        // SAFETY: the mapping is SEGMENT_BYTES long (both constructors), page aligned (mmap), and lives as
        // long as `self`. Every byte of `Tables` belongs to an AtomicU64, for which any bit pattern is a
        // value and which other threads and processes may change at any time. A file that is truncated
        // under the mapping faults (SIGBUS) instead of giving other values; `docs/segment.md` says so.
        unsafe { &*self.map.as_ptr().cast::<Tables>() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn shareable<T: Send + Sync>() {}
    const _: () = shareable::<Mapping>();

    #[test]
    fn a_mapping_is_aligned_for_its_tables() {
        let mapping = Mapping::private().expect("anonymous memory");
        assert_eq!(mapping.map.as_ptr().align_offset(align_of::<Tables>()), 0);
        assert_eq!(mapping.map.len(), size_of::<Tables>());
    }
}
