//! Lines of JSON into a type: split as they arrive, parsed off the loop, committed a chunk at a time.
//!
//! Memory is bounded by the chunk that fills, the one that is being parsed and those that are being committed. A client
//! that goes away leaves whole chunks behind and nothing half.

mod line;
mod lines;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use hyper::{Response, StatusCode};
use okdb_store::{Env, Outcome, Pending, Write};
use serde::Serialize;

pub use self::line::{LineRefused, import_line};
use self::{
    line::Form,
    lines::{Chunk, Lines},
};
use super::records;
use crate::{
    answer,
    body::Body,
    codes::Code,
    problem::Problem,
    reader::Reader,
    request::{Call, Media},
    table::{Answer, BodySpec, Content, Field, Group, Handler, Route, Shape, Verb},
};

/// Chunks that the writer may hold before the next is submitted.
const CHUNKS_IN_FLIGHT_MAX: usize = 2;
/// Refused lines that the answer tells one by one; the rest is counted.
const FAILURES_SHOWN_MAX: usize = 1_000;
/// Room in a line beside the value at its limit: the key, and the frame around both.
const LINE_EXTRA_BYTES: usize = 64 * 1024;

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
    let mut report = import.report;
    // Parsing reports a line before an earlier chunk's commit reports one of its own.
    report.failed.sort_by_key(|failure| failure.line);
    report.clock = import.env.snapshot()?.clock()?;
    answer::serialized(StatusCode::OK, &report)
}

/// Reads the body to its end and submits it chunk by chunk.
async fn feed(
    call: &Call,
    reader: &mut Reader,
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
                    let mut fatal = None;
                    for (line, result) in lines.into_iter().zip(results) {
                        match result.map_err(stoppable) {
                            Ok(_) => self.report.imported += 1,
                            Err(Ok(problem)) => self.report.fail(line, &problem),
                            Err(Err(problem)) => fatal = fatal.or(Some(problem)),
                        }
                    }
                    if let Some(problem) = fatal {
                        return Err(problem);
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

/// What an import has done.
#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    imported: u64,
    failed: Vec<Failure>,
    failed_count: u64,
    /// The environment's clock, once all is done.
    clock: u64,
}

/// A line that was refused.
#[derive(Serialize)]
struct Failure {
    line: u64,
    code: &'static str,
    message: String,
}

impl Report {
    fn fail(&mut self, line: u64, problem: &Problem) {
        self.failed_count += 1;
        if self.failed.len() < FAILURES_SHOWN_MAX {
            self.failed.push(Failure {
                line,
                code: problem.code().text(),
                message: problem.message().to_owned(),
            });
        }
    }

    /// Tells how far the import came before it had to end.
    fn attach(self, problem: Problem) -> Problem {
        problem
            .with("imported", self.imported)
            .with("failedCount", self.failed_count)
    }
}
