//! Dotted paths: how filters, sorts, indexes and patches name a place in a record.

use std::fmt;

use thiserror::Error;

use crate::json::DEPTH_MAX;

/// A place in a record: member names and array positions joined by dots, `address.lines.0`.
///
/// A name that is empty or itself holds a dot cannot be reached by a path.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Path {
    text: Box<str>,
    segments: Box<[Segment]>,
}

/// One part of a path.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Segment {
    pub(crate) name: Box<str>,
    /// The array position that the name also stands for, if it is a plain decimal number.
    pub(crate) position: Option<usize>,
}

/// Why a text is not a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PathError {
    /// No text, a dot at an end, or two dots in a row.
    #[error("a path has no empty parts")]
    EmptySegment,
    /// More than [`Path::BYTES_MAX`] bytes.
    #[error("a path has at most {} bytes", Path::BYTES_MAX)]
    TooLong,
    /// More than [`Path::SEGMENTS_MAX`] parts.
    #[error("a path has at most {} parts", Path::SEGMENTS_MAX)]
    TooManySegments,
    /// More than [`Path::POSITIONS_MAX`] numeric parts.
    #[error("a path has at most {} numeric parts", Path::POSITIONS_MAX)]
    TooManyPositions,
}

impl Path {
    /// The longest path, in bytes.
    pub const BYTES_MAX: usize = 1024;
    /// The most parts of a path: no record is deeper.
    pub const SEGMENTS_MAX: usize = DEPTH_MAX;
    /// The most numeric parts. Each may mean a position or a name, so the ways to follow a path through
    /// a record can double with every one.
    pub const POSITIONS_MAX: usize = 8;

    /// Reads a dotted path.
    ///
    /// # Errors
    /// When a part is empty, or a bound is passed.
    pub fn parse(text: &str) -> Result<Self, PathError> {
        if text.len() > Self::BYTES_MAX {
            return Err(PathError::TooLong);
        }
        let segments: Box<[Segment]> = text.split('.').map(Segment::new).collect();
        if segments.iter().any(|segment| segment.name.is_empty()) {
            return Err(PathError::EmptySegment);
        }
        if segments.len() > Self::SEGMENTS_MAX {
            return Err(PathError::TooManySegments);
        }
        let positions = segments.iter().filter(|s| s.position.is_some()).count();
        if positions > Self::POSITIONS_MAX {
            return Err(PathError::TooManyPositions);
        }
        Ok(Self {
            text: text.into(),
            segments,
        })
    }

    /// The path as it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The parts between the dots; there is at least one.
    #[must_use]
    pub fn segments(&self) -> impl ExactSizeIterator<Item = &str> {
        self.segments.iter().map(|segment| &*segment.name)
    }

    pub(crate) fn parts(&self) -> &[Segment] {
        &self.segments
    }
}

impl Segment {
    fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            position: position(name),
        }
    }
}

/// The array position that `text` spells; numbers with leading zeros are names only.
pub(crate) fn position(text: &str) -> Option<usize> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let canonical = text == "0" || !text.starts_with('0');
    if digits && canonical {
        text.parse().ok()
    } else {
        None
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Path({:?})", self.text)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    #[test]
    fn paths_are_checked() {
        let path = Path::parse("a.b c.0").unwrap();
        assert_eq!(path.segments().collect::<Vec<_>>(), ["a", "b c", "0"]);
        assert_eq!(path.as_str(), "a.b c.0");
        for empty in ["", ".", "a.", ".a", "a..b"] {
            assert_eq!(Path::parse(empty), Err(PathError::EmptySegment), "{empty}");
        }
        let parts = |count: usize| vec!["a"; count].join(".");
        assert!(Path::parse(&parts(Path::SEGMENTS_MAX)).is_ok());
        assert_eq!(
            Path::parse(&parts(Path::SEGMENTS_MAX + 1)),
            Err(PathError::TooManySegments)
        );
        assert!(Path::parse(&"a".repeat(Path::BYTES_MAX)).is_ok());
        assert_eq!(
            Path::parse(&"a".repeat(Path::BYTES_MAX + 1)),
            Err(PathError::TooLong)
        );
        let too_many = ["7"; Path::POSITIONS_MAX + 1].join(".");
        assert_eq!(Path::parse(&too_many), Err(PathError::TooManyPositions));
    }

    #[test]
    fn positions_are_plain_decimal_numbers() {
        assert_eq!(position("0"), Some(0));
        assert_eq!(position("10"), Some(10));
        for name in ["", "00", "01", "-1", "+1", "1a", "99999999999999999999999"] {
            assert_eq!(position(name), None, "{name}");
        }
    }
}
