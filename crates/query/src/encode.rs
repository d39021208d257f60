//! Values as bytes whose order, byte by byte, is the order of the values: index keys.
//!
//! A *component* is one value; an index entry is a row of components. Each delimits itself, so a row
//! sorts like the list of its values, and `["a","b"]` never meets `["ab",""]`.
//!
//! | value | bytes |
//! |---|---|
//! | null, false, true | the tag |
//! | number | tag, class, exponent, digits, end |
//! | string | tag, escaped bytes, end |
//! | array | tag, escaped row of its elements' components, end |
//! | object | tag, escaped row of name and value components in name order, end |
//!
//! **Escaped** means `00` is spelled `00 FF`; the end is `00 01`, and `00 02` where the component was cut.
//!
//! **Numbers** are ±0.DIGITS × 10^exponent without zeros around DIGITS. The class byte is `80` for zero
//! (and nothing follows), `A0 + n` for a positive number with an exponent of n bytes, `A0 - n` if that
//! exponent is negative; the exponent's magnitude follows big-endian, complemented if negative; then two
//! digits a byte, `03` to `66`; then `01`, or `02` where cut. For a negative number all bytes after the
//! tag are complemented.
//!
//! **Cutting.** A component longer than the given bound keeps as many whole bytes (an escape counts as
//! one) as leave room for the end. The place depends on the value alone. A cut component sorts on the
//! same side of every other component as its value does, except that it equals those of all values that
//! were cut to the same bytes.

use crate::{
    json::{Number, Value, decimal::Decimal},
    order::by_name,
};

/// The smallest bound for a component, in bytes; smaller ones count as this. It holds the start of any
/// number up to its digits.
pub const CUT_BYTES_MIN: usize = 16;

const NULL: u8 = 0x10;
const NUMBER: u8 = 0x20;
const STRING: u8 = 0x30;
const OBJECT: u8 = 0x40;
const ARRAY: u8 = 0x50;
const FALSE: u8 = 0x60;
const TRUE: u8 = 0x61;

const ESCAPE: u8 = 0x00;
const ESCAPED_ZERO: u8 = 0xFF;
const END: u8 = 0x01;
const CUT: u8 = 0x02;

const ZERO_CLASS: u8 = 0x80;
const POSITIVE_CLASS: u8 = 0xA0;
/// Bytes of the longest exponent: 10^15, and as much again as a text has digits, fits.
const EXPONENT_BYTES_MAX: u8 = 7;
const DIGITS_BASE: u8 = 3;
const NEGATIVE: u8 = 0xFF;

/// Appends the component of `value`, at most `cut_bytes` long, end included; true if it was cut.
pub fn component(value: &Value<'_>, cut_bytes: usize, out: &mut Vec<u8>) -> bool {
    let mut writer = Writer {
        limit: out.len().saturating_add(cut_bytes.max(CUT_BYTES_MIN)),
        out,
        depth: 0,
    };
    writer.component(value).is_err()
}

/// The length of the component at the start of `bytes`, or nothing if there is none.
#[must_use]
pub fn component_len(bytes: &[u8]) -> Option<usize> {
    match *bytes.first()? {
        NULL | FALSE | TRUE => Some(1),
        NUMBER => number_len(bytes),
        STRING | OBJECT | ARRAY => {
            let mut at = 1;
            loop {
                at += bytes.get(at..)?.iter().position(|byte| *byte == ESCAPE)?;
                match *bytes.get(at + 1)? {
                    ESCAPED_ZERO => at += 2,
                    END | CUT => return Some(at + 2),
                    _ => return None,
                }
            }
        }
        _ => None,
    }
}

fn number_len(bytes: &[u8]) -> Option<usize> {
    let class = *bytes.get(1)?;
    if class == ZERO_CLASS {
        return Some(2);
    }
    let flip = if class < ZERO_CLASS { NEGATIVE } else { 0 };
    let exponent_bytes = (class ^ flip).abs_diff(POSITIVE_CLASS);
    if exponent_bytes > EXPONENT_BYTES_MAX {
        return None;
    }
    let digits = 2 + usize::from(exponent_bytes);
    let end = bytes
        .get(digits..)?
        .iter()
        .position(|byte| byte ^ flip < DIGITS_BASE)?;
    matches!(bytes[digits + end] ^ flip, END | CUT).then_some(digits + end + 1)
}

/// Whether a component, exactly one, was cut.
#[must_use]
pub fn is_cut(component: &[u8]) -> bool {
    match *component {
        [NUMBER, ZERO_CLASS, ..] => false,
        [NUMBER, class, .., end] => {
            let flip = if class < ZERO_CLASS { NEGATIVE } else { 0 };
            end ^ flip == CUT
        }
        [STRING | OBJECT | ARRAY, .., ESCAPE, end] => end == CUT,
        _ => false,
    }
}

/// The first byte of the components of `value`'s type bracket, and the first byte past them.
///
/// A range operator compares within a bracket: null, numbers, strings, objects, arrays, or booleans.
#[must_use]
pub fn bracket(value: &Value<'_>) -> (u8, u8) {
    match value {
        Value::Bool(_) => (FALSE, TRUE + 1),
        _ => (tag(value), tag(value) + 1),
    }
}

fn tag(value: &Value<'_>) -> u8 {
    match value {
        Value::Null => NULL,
        Value::Number(_) => NUMBER,
        Value::String(_) => STRING,
        Value::Object(_) => OBJECT,
        Value::Array(_) => ARRAY,
        Value::Bool(false) => FALSE,
        Value::Bool(true) => TRUE,
    }
}

/// The component is complete as far as it goes: its cut end is written.
struct IsCut;

struct Writer<'o> {
    out: &'o mut Vec<u8>,
    /// Length of `out` that this component must not pass.
    limit: usize,
    /// How many arrays and objects are open: each escapes what is inside it once more.
    depth: usize,
}

impl Writer<'_> {
    /// The escapes of `depth` containers, and for strings their own, are all applied while writing, so
    /// that a component costs no more than its bound, whatever its value holds.
    fn component(&mut self, value: &Value<'_>) -> Result<(), IsCut> {
        self.put(&[tag(value)], self.depth)?;
        match value {
            Value::Null | Value::Bool(_) => Ok(()),
            Value::Number(number) => self.number(number),
            Value::String(text) => self.string(text),
            Value::Array(elements) => {
                self.depth += 1;
                for element in elements {
                    self.component(element)?;
                }
                self.depth -= 1;
                self.end()
            }
            Value::Object(members) => {
                self.depth += 1;
                for (name, member) in by_name(members) {
                    self.put(&[STRING], self.depth)?;
                    self.string(name)?;
                    self.component(member)?;
                }
                self.depth -= 1;
                self.end()
            }
        }
    }

    fn string(&mut self, text: &str) -> Result<(), IsCut> {
        self.put(text.as_bytes(), self.depth + 1)?;
        self.end()
    }

    fn number(&mut self, number: &Number<'_>) -> Result<(), IsCut> {
        let decimal = Decimal::of(number);
        if decimal.is_zero() {
            return self.number_bytes(&[ZERO_CLASS]);
        }
        let flip = if decimal.negative { NEGATIVE } else { 0 };

        let exponent = decimal.exponent.unsigned_abs().to_be_bytes();
        let unused = exponent.iter().take_while(|byte| **byte == 0).count();
        let exponent = &exponent[unused..];
        // Never more: a spelled exponent is bounded.
        let count = u8::try_from(exponent.len()).unwrap_or(EXPONENT_BYTES_MAX);
        let (class, complement) = if decimal.exponent < 0 {
            (POSITIVE_CLASS - count, NEGATIVE)
        } else {
            (POSITIVE_CLASS + count, 0)
        };
        self.number_bytes(&[class ^ flip])?;
        for byte in exponent {
            self.number_bytes(&[byte ^ complement ^ flip])?;
        }

        let mut digits = decimal.digits();
        while let Some(tens) = digits.next() {
            let pair = tens * 10 + digits.next().unwrap_or(0);
            if self.depth == 0 && self.out.len() + 1 == self.limit {
                self.out.push(CUT ^ flip);
                return Err(IsCut);
            }
            self.number_bytes(&[(pair + DIGITS_BASE) ^ flip])?;
        }
        self.number_bytes(&[END ^ flip])
    }

    /// A number that stands alone delimits itself without escapes; inside a container it is escaped
    /// like everything there.
    fn number_bytes(&mut self, bytes: &[u8]) -> Result<(), IsCut> {
        if self.depth == 0 {
            self.out.extend_from_slice(bytes);
            Ok(())
        } else {
            self.put(bytes, self.depth)
        }
    }

    /// Writes `bytes` escaped `times` times (at least once if there may be a zero among them).
    ///
    /// Escaping a zero byte n times makes `00` and n times `FF`. Seen from the outermost escaping, `00 FF`
    /// is one unit, and each further `FF` another.
    fn put(&mut self, bytes: &[u8], times: usize) -> Result<(), IsCut> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let run = rest
                .iter()
                .position(|byte| *byte == ESCAPE)
                .unwrap_or(rest.len());
            let (plain, special) = rest.split_at(run);
            self.fit(plain)?;
            let Some((_, after)) = special.split_first() else {
                break;
            };
            if self.room() < 2 {
                return Err(self.cut());
            }
            self.out.extend_from_slice(&[ESCAPE, ESCAPED_ZERO]);
            for _ in 1..times {
                self.fit(&[ESCAPED_ZERO])?;
            }
            rest = after;
        }
        Ok(())
    }

    /// Writes as many bytes as there is room for, and cuts if that is not all.
    fn fit(&mut self, bytes: &[u8]) -> Result<(), IsCut> {
        match bytes.get(..self.room()) {
            Some(part) if part.len() < bytes.len() => {
                self.out.extend_from_slice(part);
                Err(self.cut())
            }
            _ => {
                self.out.extend_from_slice(bytes);
                Ok(())
            }
        }
    }

    /// How many bytes may still come before the end of the outermost component.
    fn room(&self) -> usize {
        self.limit.saturating_sub(self.out.len() + 2)
    }

    fn cut(&mut self) -> IsCut {
        self.out.extend_from_slice(&[ESCAPE, CUT]);
        IsCut
    }

    fn end(&mut self) -> Result<(), IsCut> {
        if self.depth == 0 {
            self.out.extend_from_slice(&[ESCAPE, END]);
            Ok(())
        } else {
            self.put(&[ESCAPE, END], self.depth)
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
#[path = "encode_tests.rs"]
mod tests;
