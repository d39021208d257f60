//! The tokens of JSON text: whitespace, words, strings and numbers.
//!
//! Knows nothing of nesting; [`super::compact`] and [`super::value`] drive it. It checks a token
//! completely and hands out slices of the text, so that nothing is copied here but strings that hold
//! escapes, and those only on request.

use std::borrow::Cow;

use super::{EXPONENT_MAX, JsonError, JsonErrorKind};

/// A position in a text that is known to be UTF-8.
pub(super) struct Scanner<'t> {
    text: &'t str,
    bytes: &'t [u8],
    pos: usize,
}

/// The inside of a string literal, checked but not unescaped.
#[derive(Clone, Copy)]
pub(super) struct RawString<'t> {
    /// The text between the quotes.
    pub(super) raw: &'t str,
    /// Position of the opening quote.
    pub(super) offset: usize,
    escaped: bool,
}

impl<'t> Scanner<'t> {
    pub(super) fn new(text: &'t str) -> Self {
        Self {
            text,
            bytes: text.as_bytes(),
            pos: 0,
        }
    }

    /// Like [`Scanner::new`], for bytes of unknown origin.
    pub(super) fn from_bytes(bytes: &'t [u8]) -> Result<Self, JsonError> {
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(Self::new(text)),
            Err(error) => Err(JsonError {
                offset: error.valid_up_to(),
                kind: JsonErrorKind::InvalidUtf8,
            }),
        }
    }

    pub(super) fn pos(&self) -> usize {
        self.pos
    }

    /// The text between two positions that this scanner reported at token borders.
    pub(super) fn slice(&self, start: usize, end: usize) -> &'t str {
        &self.text[start..end]
    }

    pub(super) fn error(&self, kind: JsonErrorKind) -> JsonError {
        JsonError {
            offset: self.pos,
            kind,
        }
    }

    /// The error for a byte, or the end, where something else had to stand.
    pub(super) fn unexpected(&self) -> JsonError {
        self.error(match self.peek() {
            Some(_) => JsonErrorKind::UnexpectedByte,
            None => JsonErrorKind::UnexpectedEnd,
        })
    }

    #[inline]
    pub(super) fn peek(&self) -> Option<u8> {
        self.bytes.get(self.pos).copied()
    }

    /// Steps over the byte that [`Scanner::peek`] showed.
    #[inline]
    pub(super) fn bump(&mut self) {
        self.pos += 1;
    }

    /// Steps over `byte` if it comes next.
    #[inline]
    pub(super) fn eat(&mut self, byte: u8) -> bool {
        let hit = self.peek() == Some(byte);
        self.pos += usize::from(hit);
        hit
    }

    #[inline]
    pub(super) fn skip_whitespace(&mut self) {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.peek() {
            self.pos += 1;
        }
    }

    /// Nothing but whitespace may follow.
    pub(super) fn finish(&mut self) -> Result<(), JsonError> {
        self.skip_whitespace();
        match self.peek() {
            None => Ok(()),
            Some(_) => Err(self.error(JsonErrorKind::TrailingData)),
        }
    }

    /// One of `null`, `true`, `false`.
    pub(super) fn word(&mut self, word: &'static str) -> Result<(), JsonError> {
        for &byte in word.as_bytes() {
            if !self.eat(byte) {
                return Err(self.unexpected());
            }
        }
        Ok(())
    }

    /// A string literal; the next byte must be its opening quote.
    #[inline]
    pub(super) fn string(&mut self) -> Result<RawString<'t>, JsonError> {
        let offset = self.pos;
        if !self.eat(b'"') {
            return Err(self.unexpected());
        }
        let start = self.pos;
        let mut escaped = false;
        loop {
            self.pos += plain_run(&self.bytes[self.pos..]);
            match self.peek() {
                Some(b'"') => {
                    let raw = &self.text[start..self.pos];
                    self.pos += 1;
                    return Ok(RawString {
                        raw,
                        offset,
                        escaped,
                    });
                }
                Some(b'\\') => {
                    escaped = true;
                    self.escape()?;
                }
                Some(_) => return Err(self.error(JsonErrorKind::ControlCharacter)),
                None => return Err(self.error(JsonErrorKind::UnexpectedEnd)),
            }
        }
    }

    /// One escape sequence, a surrogate pair counting as one; the next byte must be its backslash.
    fn escape(&mut self) -> Result<char, JsonError> {
        let start = self.pos;
        let fail = |kind| JsonError {
            offset: start,
            kind,
        };
        self.pos += 1;
        let byte = self
            .peek()
            .ok_or(self.error(JsonErrorKind::UnexpectedEnd))?;
        self.pos += 1;
        let plain = match byte {
            b'"' | b'\\' | b'/' => char::from(byte),
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                let first = self.hex4()?;
                let code = match first {
                    0xD800..=0xDBFF => {
                        if !(self.eat(b'\\') && self.eat(b'u')) {
                            return Err(fail(JsonErrorKind::LoneSurrogate));
                        }
                        match self.hex4()? {
                            second @ 0xDC00..=0xDFFF => {
                                0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00)
                            }
                            _ => return Err(fail(JsonErrorKind::LoneSurrogate)),
                        }
                    }
                    code => code,
                };
                // Only a low surrogate without its high half is left to fail here.
                char::from_u32(code).ok_or(fail(JsonErrorKind::LoneSurrogate))?
            }
            _ => return Err(fail(JsonErrorKind::InvalidEscape)),
        };
        Ok(plain)
    }

    fn hex4(&mut self) -> Result<u32, JsonError> {
        let mut code = 0;
        for _ in 0..4 {
            let byte = self
                .peek()
                .ok_or(self.error(JsonErrorKind::UnexpectedEnd))?;
            let digit = char::from(byte)
                .to_digit(16)
                .ok_or(self.error(JsonErrorKind::InvalidEscape))?;
            code = code * 16 + digit;
            self.pos += 1;
        }
        Ok(code)
    }

    /// A number; the next byte must be a digit or a minus sign.
    #[inline]
    pub(super) fn number(&mut self) -> Result<&'t str, JsonError> {
        let start = self.pos;
        self.eat(b'-');
        let leading_zero = self.peek() == Some(b'0');
        let whole = self.digits()?;
        if leading_zero && whole > 1 {
            return Err(JsonError {
                offset: start,
                kind: JsonErrorKind::InvalidNumber,
            });
        }
        if self.eat(b'.') {
            self.digits()?;
        }
        if let Some(b'e' | b'E') = self.peek() {
            self.pos += 1;
            if let Some(b'+' | b'-') = self.peek() {
                self.pos += 1;
            }
            let digits = self.pos;
            self.digits()?;
            let exponent = self.bytes[digits..self.pos]
                .iter()
                .fold(0_u64, |sum, byte| {
                    sum.saturating_mul(10)
                        .saturating_add(u64::from(byte - b'0'))
                });
            if exponent > EXPONENT_MAX {
                return Err(JsonError {
                    offset: start,
                    kind: JsonErrorKind::NumberRange,
                });
            }
        }
        Ok(&self.text[start..self.pos])
    }

    /// One digit or more; tells how many.
    fn digits(&mut self) -> Result<usize, JsonError> {
        let start = self.pos;
        while let Some(b'0'..=b'9') = self.peek() {
            self.pos += 1;
        }
        match self.pos - start {
            0 if self.peek().is_none() => Err(self.error(JsonErrorKind::UnexpectedEnd)),
            0 => Err(self.error(JsonErrorKind::InvalidNumber)),
            count => Ok(count),
        }
    }
}

impl<'t> RawString<'t> {
    /// The string that the literal stands for.
    pub(super) fn decode(self) -> Result<Cow<'t, str>, JsonError> {
        if !self.escaped {
            return Ok(Cow::Borrowed(self.raw));
        }
        let mut scan = Scanner::new(self.raw);
        let mut decoded = String::with_capacity(self.raw.len());
        loop {
            let start = scan.pos;
            scan.pos += plain_run(&scan.bytes[start..]);
            decoded.push_str(&self.raw[start..scan.pos]);
            if scan.pos == self.raw.len() {
                return Ok(Cow::Owned(decoded));
            }
            decoded.push(scan.escape()?);
        }
    }
}

const ONES: u64 = 0x0101_0101_0101_0101;
const HIGHS: u64 = 0x8080_8080_8080_8080;

/// How many bytes at the start of `bytes` may stand in a string literal as they are.
///
/// Looks at eight bytes at a time: `x - 1 & !x` has the high bit of a byte set where `x` has a zero
/// byte. Borrows can only spoil bytes above the first hit, and only the first hit is used.
#[inline]
pub(super) fn plain_run(bytes: &[u8]) -> usize {
    let (words, rest) = bytes.as_chunks::<8>();
    for (index, word) in words.iter().enumerate() {
        let word = u64::from_le_bytes(*word);
        let quote = word ^ (ONES * u64::from(b'"'));
        let slash = word ^ (ONES * u64::from(b'\\'));
        let control = word.wrapping_sub(ONES * 0x20) & !word;
        let hit = (quote.wrapping_sub(ONES) & !quote | slash.wrapping_sub(ONES) & !slash | control)
            & HIGHS;
        if hit != 0 {
            return index * 8 + (hit.trailing_zeros() / 8) as usize;
        }
    }
    let tail = rest
        .iter()
        .position(|&byte| byte < 0x20 || byte == b'"' || byte == b'\\')
        .unwrap_or(rest.len());
    words.len() * 8 + tail
}
