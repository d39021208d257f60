//! Lines of JSON into a type: split as they arrive, parsed off the loop, committed a chunk at a time.
//!
//! Memory is bounded by the chunk that fills, the one that is being parsed and those that are being committed. A client
//! that goes away leaves whole chunks behind and nothing half.

use std::collections::VecDeque;

use bytes::{Buf as _, Bytes, BytesMut};
use hyper::{Response, StatusCode};
use okdb_query::{Envelope, Value};
use okdb_store::{Action, Env, Guard, Operation, Outcome, Pending, Write};
use serde_json::json;

use super::records;
use crate::{
    answer,
    body::Body,
    codes::Code,
    fields,
    problem::Problem,
    request::{Call, Media, check_fields},
    table::{Answer, BodySpec, Content, Field, Group, Handler, Route, Shape, Verb},
};

/// The most lines that are committed together.
const CHUNK_LINES_MAX: usize = 1_000;
/// About the most bytes that are committed together; a single longer line is a chunk of its own.
const CHUNK_BYTES_MAX: usize = 1024 * 1024;
/// Chunks that the writer may hold before the next is submitted.
const CHUNKS_IN_FLIGHT_MAX: usize = 2;
/// Refused lines that the answer tells one by one; the rest is counted.
const FAILURES_SHOWN_MAX: usize = 1_000;
/// Room in a line beside the value at its limit: the key, and the frame around both.
const LINE_EXTRA_BYTES: usize = 64 * 1024;
const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

const LINE_FIELDS: &[Field] = &[
    Field {
        name: "key",
        shape: Shape::Text,
        required: true,
        what: "The key.",
    },
    Field {
        name: "value",
        shape: Shape::Any,
        required: true,
        what: "The document.",
    },
];

pub(super) const ROUTES: &[Route] = &[Route {
    verb: Verb::Post,
    path: "/api/{env}/import/{type}",
    group: Group::Transfer,
    summary: "Import lines of JSON",
    detail: "Each line is `{\"key\",\"value\"}` or, with `key=FIELD`, a bare document whose field FIELD (a string or a number) is its key. Records are written, new or not, in chunks that are committed on their own; a line that is refused does not hold up the others. Lines are counted from 1, blank ones included.",
    query: &[Field {
        name: "key",
        shape: Shape::Text,
        required: false,
        what: "The field that holds the key of bare documents.",
    }],
    body: BodySpec::Lines,
    guarded: false,
    answers: &[Answer {
        status: 200,
        what: "All lines were seen: how many were imported, and which failed.",
        content: Content::Json("Imported"),
    }],
    codes: &[records::WRITE],
    handler: Handler::Later(|call| Box::pin(import(call))),
}];

async fn import(mut call: Call) -> Result<Response<Body>, Problem> {
    let (env, type_name) = (call.env()?, call.writable_type()?.into_owned());
    let key_field = call.parameter("key").map(str::to_owned);
    if key_field.as_ref().is_some_and(String::is_empty) {
        return Err(Problem::parameter(
            "key names a field; it must not be empty",
        ));
    }
    let _permit = call.app.admit_transfer()?;
    call.media(&[
        (Media::Lines, "application/x-ndjson"),
        (Media::Lines, "application/json"),
    ])?;
    if !call.app.auto_types {
        env.snapshot()?.type_info(&type_name)?;
    }
    let mut import = Import {
        form: Form {
            type_name,
            key_field,
        },
        env,
        in_flight: VecDeque::new(),
        report: Report::default(),
    };
    let line_bytes_max = call
        .app
        .store
        .limits()
        .value_bytes
        .saturating_add(LINE_EXTRA_BYTES);
    let mut lines = Lines::new(line_bytes_max);
    let mut reader = call.reader();
    let fed = feed(&call, &mut reader, &mut lines, &mut import).await;
    // What was submitted is committed whether or not somebody listens; the answer waits for it either way.
    let settled = import.settle(0).await;
    if let Err(problem) = fed.and(settled) {
        reader.discard(&call.head.headers);
        return Err(import.report.attach(problem));
    }
    let clock = import.env.snapshot()?.clock()?;
    answer::serialized(StatusCode::OK, &import.report.json(clock))
}

/// Reads the body to its end and submits it chunk by chunk.
async fn feed(
    call: &Call,
    reader: &mut crate::request::Reader,
    lines: &mut Lines,
    import: &mut Import,
) -> Result<(), Problem> {
    while let Some(bytes) = reader.next().await? {
        lines.push(&bytes);
        while let Some(chunk) = lines.full_chunk() {
            import.submit(call, chunk).await?;
        }
    }
    while let Some(chunk) = lines.last_chunk() {
        import.submit(call, chunk).await?;
    }
    Ok(())
}

/// An import under way.
struct Import {
    env: Env,
    form: Form,
    in_flight: VecDeque<(Vec<u64>, Pending)>,
    report: Report,
}

impl Import {
    /// Parses a chunk and hands it to the writer, once there is room.
    async fn submit(&mut self, call: &Call, chunk: Chunk) -> Result<(), Problem> {
        let form = self.form.clone();
        let parsed = call
            .app
            .pool
            .run_in_turn(move || form.parse(&chunk))
            .await?;
        for (line, problem) in parsed.failed {
            self.report.fail(line, &problem);
        }
        self.settle(CHUNKS_IN_FLIGHT_MAX - 1).await?;
        if !parsed.operations.is_empty() {
            self.in_flight.push_back((
                parsed.lines,
                self.env.submit(Write::Bulk(parsed.operations)),
            ));
        }
        Ok(())
    }

    /// Waits until at most `left` chunks are in flight.
    async fn settle(&mut self, left: usize) -> Result<(), Problem> {
        while self.in_flight.len() > left
            && let Some((lines, pending)) = self.in_flight.pop_front()
        {
            match pending.await? {
                Outcome::Bulk { results, .. } => {
                    for (line, result) in lines.into_iter().zip(results) {
                        match result {
                            Ok(_) => self.report.imported += 1,
                            Err(error) => self.report.fail(line, &stoppable(error)?),
                        }
                    }
                }
                other => {
                    return Err(Problem::internal(&format!(
                        "lines were answered with {other:?}"
                    )));
                }
            }
        }
        Ok(())
    }
}

/// A line's own failure as a problem to report; a failure that each line to come would share ends the import.
fn stoppable(error: okdb_store::Error) -> Result<Problem, Problem> {
    let problem = Problem::from(error);
    match problem.code() {
        Code::StorageFull
        | Code::Internal
        | Code::ShuttingDown
        | Code::Overloaded
        | Code::TypeNotRegistered => Err(problem),
        _ => Ok(problem),
    }
}

/// What an import has done so far.
#[derive(Default)]
struct Report {
    imported: u64,
    failed: Vec<serde_json::Value>,
    failed_count: u64,
}

impl Report {
    fn fail(&mut self, line: u64, problem: &Problem) {
        self.failed_count += 1;
        if self.failed.len() < FAILURES_SHOWN_MAX {
            self.failed.push(json!({
                "line": line,
                "code": problem.code().text(),
                "message": problem.message(),
            }));
        }
    }

    fn json(mut self, clock: u64) -> serde_json::Value {
        // Parsing reports a line before an earlier chunk's commit reports one of its own.
        self.failed.sort_by_key(|failure| failure["line"].as_u64());
        json!({
            "imported": self.imported,
            "failed": self.failed,
            "failedCount": self.failed_count,
            "clock": clock,
        })
    }

    /// Tells how far the import came before it had to end.
    fn attach(self, problem: Problem) -> Problem {
        problem
            .with("imported", self.imported)
            .with("failedCount", self.failed_count)
    }
}

/// Whole lines, and the number of the first.
struct Chunk {
    first_line: u64,
    bytes: Bytes,
    /// Whether this is a line of which only the beginning was kept, for it is too long.
    too_long: bool,
}

/// Cuts what arrives into chunks of whole lines.
struct Lines {
    buffer: BytesMut,
    /// Where to look for the next line end; before it there is none that has not been counted.
    seen: usize,
    /// Where the last whole line in the buffer ends.
    whole: usize,
    /// Whole lines in the buffer.
    count: usize,
    next_line: u64,
    line_bytes_max: usize,
    /// Whether the rest of a line that was too long is being skipped.
    skipping: bool,
    begun: bool,
}

impl Lines {
    fn new(line_bytes_max: usize) -> Self {
        Self {
            buffer: BytesMut::new(),
            seen: 0,
            whole: 0,
            count: 0,
            next_line: 1,
            line_bytes_max,
            skipping: false,
            begun: false,
        }
    }

    fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
        if !self.begun && self.buffer.len() >= BYTE_ORDER_MARK.len() {
            self.begun = true;
            if self.buffer.starts_with(BYTE_ORDER_MARK) {
                self.buffer.advance(BYTE_ORDER_MARK.len());
                // A mark that came in pieces had been looked through.
                self.seen = 0;
            }
        }
    }

    /// The next chunk that is as large as chunks get, if that much is there.
    fn full_chunk(&mut self) -> Option<Chunk> {
        loop {
            if self.skipping {
                let end = self.buffer.iter().position(|byte| *byte == b'\n');
                let Some(end) = end else {
                    self.buffer.clear();
                    return None;
                };
                self.buffer.advance(end + 1);
                self.skipping = false;
            }
            let rest = self.buffer.get(self.seen..).unwrap_or_default();
            let Some(end) = rest.iter().position(|byte| *byte == b'\n') else {
                self.seen = self.buffer.len();
                let partial = self.buffer.len() - self.whole;
                if partial > self.line_bytes_max {
                    // Whole lines first; the next call finds the long one alone.
                    return if self.count > 0 {
                        self.cut()
                    } else {
                        Some(self.cut_too_long())
                    };
                }
                // A line that alone is larger than a chunk must not keep those before it waiting in memory.
                return if self.buffer.len() >= CHUNK_BYTES_MAX {
                    self.cut()
                } else {
                    None
                };
            };
            self.seen += end + 1;
            self.whole = self.seen;
            self.count += 1;
            if self.count == CHUNK_LINES_MAX || self.whole >= CHUNK_BYTES_MAX {
                return self.cut();
            }
        }
    }

    /// What is left at the end of the body, the last line with or without its end.
    fn last_chunk(&mut self) -> Option<Chunk> {
        if let Some(chunk) = self.full_chunk() {
            return Some(chunk);
        }
        if self.buffer.len() > self.whole {
            self.whole = self.buffer.len();
            self.count += 1;
        }
        self.cut()
    }

    /// Takes the whole lines.
    fn cut(&mut self) -> Option<Chunk> {
        if self.count == 0 {
            return None;
        }
        let bytes = self.buffer.split_to(self.whole).freeze();
        let chunk = Chunk {
            first_line: self.next_line,
            bytes,
            too_long: false,
        };
        self.next_line += self.count as u64;
        self.seen -= self.whole;
        self.whole = 0;
        self.count = 0;
        Some(chunk)
    }

    /// Takes the beginning of a line that is too long, and skips the rest of it.
    fn cut_too_long(&mut self) -> Chunk {
        self.buffer.clear();
        let chunk = Chunk {
            first_line: self.next_line,
            bytes: Bytes::new(),
            too_long: true,
        };
        self.next_line += 1;
        self.seen = 0;
        self.whole = 0;
        self.skipping = true;
        chunk
    }
}

/// How lines become operations.
#[derive(Clone)]
struct Form {
    type_name: String,
    key_field: Option<String>,
}

/// A chunk as operations, with the line of each, and the lines that are none.
struct Parsed {
    operations: Vec<Operation>,
    lines: Vec<u64>,
    failed: Vec<(u64, Problem)>,
}

impl Form {
    fn parse(&self, chunk: &Chunk) -> Parsed {
        let mut parsed = Parsed {
            operations: Vec::new(),
            lines: Vec::new(),
            failed: Vec::new(),
        };
        if chunk.too_long {
            let problem = Problem::new(Code::TooLarge, "the line is longer than a record may be");
            parsed.failed.push((chunk.first_line, problem));
            return parsed;
        }
        let mut lines = chunk.bytes.as_ref();
        let mut number = chunk.first_line;
        while !lines.is_empty() {
            let end = lines
                .iter()
                .position(|byte| *byte == b'\n')
                .unwrap_or(lines.len());
            let (line, rest) = lines.split_at_checked(end).unwrap_or((lines, &[]));
            lines = rest.get(1..).unwrap_or_default();
            if !line.trim_ascii().is_empty() {
                match self.operation(line) {
                    Ok(operation) => {
                        parsed.operations.push(operation);
                        parsed.lines.push(number);
                    }
                    Err(problem) => parsed.failed.push((number, problem)),
                }
            }
            number += 1;
        }
        parsed
    }

    fn operation(&self, line: &[u8]) -> Result<Operation, Problem> {
        let (key, value) = match &self.key_field {
            None => {
                let envelope =
                    Envelope::parse(line).map_err(|error| Problem::json("line", &error))?;
                check_fields(&envelope, LINE_FIELDS)?;
                let value = envelope.get("value").unwrap_or_default().to_owned();
                (fields::required_text(&envelope, "key")?, value)
            }
            Some(field) => bare(line, field)?,
        };
        okdb_store::check_key(&key)?;
        Ok(Operation {
            type_name: self.type_name.clone(),
            key,
            guard: Guard::default(),
            action: Action::Put(value),
        })
    }
}

/// A bare document and the key that is in its field.
fn bare(line: &[u8], field: &str) -> Result<(String, String), Problem> {
    let wrong = |error| Problem::json("line", &error);
    let envelope = Envelope::parse(line).map_err(wrong)?;
    let mut value = String::with_capacity(line.len());
    okdb_query::compact(line, &mut value).map_err(wrong)?;
    let key = envelope
        .get(field)
        .map(Value::parse)
        .transpose()
        .map_err(wrong)?;
    let key = match key {
        Some(Value::String(text)) => text.into_owned(),
        Some(Value::Number(number)) => number.as_str().to_owned(),
        Some(_) => {
            return Err(Problem::parameter(format!(
                "the field {field:?} is neither a string nor a number"
            )));
        }
        None => {
            return Err(Problem::parameter(format!(
                "the document has no field {field:?}"
            )));
        }
    };
    Ok((key, value))
}

#[cfg(test)]
#[path = "import_tests.rs"]
mod tests;
