//! Checks a text and copies it without its insignificant whitespace, in one pass.
//!
//! What a client sends is stored as the client spelled it, so nothing is decoded here but member
//! names that hold escapes (two spellings of one name are a duplicate).

use super::{
    DEPTH_MAX, JsonError, JsonErrorKind,
    names::Names,
    scan::{RawString, Scanner},
};

/// Checks that `text` is one I-JSON value and appends it, without insignificant whitespace, to `out`.
///
/// Strings and numbers keep their spelling byte for byte.
///
/// # Errors
/// When the text is not acceptable (see the module); `out` is then as it was before.
pub fn compact(text: &[u8], out: &mut String) -> Result<(), JsonError> {
    let length = out.len();
    let result = Compactor::new(text, out).and_then(|mut compactor| {
        compactor.gap();
        compactor.value(0)?;
        compactor.finish()
    });
    if result.is_err() {
        out.truncate(length);
    }
    result
}

/// A scanner that copies what it has passed, except whitespace.
pub(super) struct Compactor<'t, 'o> {
    pub(super) scan: Scanner<'t>,
    pub(super) names: Names<'t>,
    out: &'o mut String,
    /// Where the text begins that is passed but not yet copied; it holds no whitespace.
    pending: usize,
}

impl<'t, 'o> Compactor<'t, 'o> {
    pub(super) fn new(text: &'t [u8], out: &'o mut String) -> Result<Self, JsonError> {
        let scan = Scanner::from_bytes(text)?;
        out.reserve(text.len());
        Ok(Self {
            scan,
            names: Names::new(),
            out,
            pending: 0,
        })
    }

    /// Where in `out` the text that comes next will stand.
    pub(super) fn out_pos(&self) -> usize {
        self.out.len() + (self.scan.pos() - self.pending)
    }

    /// Leaves out the whitespace that comes next, if any.
    #[inline]
    pub(super) fn gap(&mut self) {
        if let Some(b' ' | b'\n' | b'\r' | b'\t') = self.scan.peek() {
            self.flush();
            self.scan.skip_whitespace();
            self.pending = self.scan.pos();
        }
    }

    fn flush(&mut self) {
        let passed = self.scan.slice(self.pending, self.scan.pos());
        self.out.push_str(passed);
        self.pending = self.scan.pos();
    }

    /// Copies the rest; only whitespace may follow.
    pub(super) fn finish(&mut self) -> Result<(), JsonError> {
        self.flush();
        self.scan.finish()
    }

    /// Passes one value, inside `depth` open arrays and objects.
    pub(super) fn value(&mut self, depth: usize) -> Result<(), JsonError> {
        match self.scan.peek() {
            Some(b'"') => self.scan.string().map(drop),
            Some(b'-' | b'0'..=b'9') => self.scan.number().map(drop),
            Some(b'{') => self.object(depth),
            Some(b'[') => self.array(depth),
            Some(b't') => self.scan.word("true"),
            Some(b'f') => self.scan.word("false"),
            Some(b'n') => self.scan.word("null"),
            _ => Err(self.scan.unexpected()),
        }
    }

    fn array(&mut self, depth: usize) -> Result<(), JsonError> {
        self.open(depth)?;
        if self.scan.eat(b']') {
            return Ok(());
        }
        loop {
            self.value(depth + 1)?;
            self.gap();
            if self.scan.eat(b',') {
                self.gap();
            } else if self.scan.eat(b']') {
                return Ok(());
            } else {
                return Err(self.scan.unexpected());
            }
        }
    }

    fn object(&mut self, depth: usize) -> Result<(), JsonError> {
        self.open(depth)?;
        let object = self.names.open();
        if self.scan.eat(b'}') {
            return Ok(());
        }
        loop {
            let name = self.scan.string()?;
            self.member(object, name)?;
            self.value(depth + 1)?;
            if self.last_member()? {
                return self.names.close(object);
            }
        }
    }

    /// Passes the bracket of an array or object and the whitespace behind it.
    pub(super) fn open(&mut self, depth: usize) -> Result<(), JsonError> {
        if depth == DEPTH_MAX {
            return Err(self.scan.error(JsonErrorKind::TooDeep));
        }
        self.scan.bump();
        self.gap();
        Ok(())
    }

    /// Notes a member's name and passes its colon.
    #[inline]
    pub(super) fn member(&mut self, object: usize, name: RawString<'t>) -> Result<(), JsonError> {
        self.names.add(object, name.decode()?, name.offset)?;
        self.gap();
        if !self.scan.eat(b':') {
            return Err(self.scan.unexpected());
        }
        self.gap();
        Ok(())
    }

    /// Passes what follows a member: true after the object's end, false before another member.
    #[inline]
    pub(super) fn last_member(&mut self) -> Result<bool, JsonError> {
        self.gap();
        if self.scan.eat(b',') {
            self.gap();
            Ok(false)
        } else if self.scan.eat(b'}') {
            Ok(true)
        } else {
            Err(self.scan.unexpected())
        }
    }
}
