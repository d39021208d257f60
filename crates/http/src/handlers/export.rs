//! A whole type as lines of JSON, streamed at the client's pace.

use std::time::Duration;

use bytes::Bytes;
use hyper::{
    Response,
    header::{CONTENT_TYPE, HeaderValue},
};
use okdb_store::Export;
use tokio::{
    sync::{OwnedSemaphorePermit, mpsc},
    time::{Instant, timeout_at},
};

use crate::{
    body::{Body, Chunk},
    pool::Pool,
    problem::Problem,
    request::Call,
    table::{Answer, BodySpec, Content, Field, Group, Handler, Route, Shape, Verb},
};

/// About how large the pieces are that go to the socket.
const CHUNK_BYTES: usize = 128 * 1024;
/// How many pieces wait for the client at most, beside the one in the socket's buffer.
const CHUNKS_WAITING_MAX: usize = 1;
/// An export from renewed snapshots holds nothing but its place in the number of exports; a client may take this long.
const EXPORT_MAX: Duration = Duration::from_secs(24 * 60 * 60);

pub(super) const ROUTES: &[Route] = &[Route {
    verb: Verb::Get,
    path: "/api/{env}/export/{type}",
    group: Group::Transfer,
    summary: "Export a type",
    detail: "One line `{\"key\",\"value\"}` a record, in key order. Without `consistent` a record that changes meanwhile may be shown as it was or as it is; with it all lines are of one moment, and the export is cut off after a minute. An export that is cut off ends without the end of its chunked coding.",
    query: &[Field {
        name: "consistent",
        shape: Shape::Flag,
        required: false,
        what: "Whether all lines are of one moment.",
    }],
    body: BodySpec::None,
    guarded: false,
    answers: &[Answer {
        status: 200,
        what: "The lines.",
        content: Content::Lines("Line"),
    }],
    codes: &[],
    handler: Handler::Later(|call| Box::pin(export(call))),
}];

async fn export(call: Call) -> Result<Response<Body>, Problem> {
    let (env, type_name) = (call.env()?, call.capture(1)?.into_owned());
    let consistent = call.flag("consistent")?;
    let permit = call.app.admit_transfer()?;
    let export = call
        .app
        .pool
        .run(move || env.export(&type_name, consistent))
        .await??;
    let limit = if consistent {
        Duration::from_millis(call.app.limits.consistent_export_ms)
    } else {
        EXPORT_MAX
    };
    let (sender, body) = Body::stream(CHUNKS_WAITING_MAX);
    let path = call.head.uri.path().to_owned();
    tokio::task::spawn_local(send(
        export,
        call.app.pool.clone(),
        sender,
        limit,
        path,
        permit,
    ));
    let mut response = Response::new(body);
    response.headers_mut().insert(
        CONTENT_TYPE,
        HeaderValue::from_static("application/x-ndjson"),
    );
    Ok(response)
}

/// Reads pieces off the loop, one ahead of the client, and sends them. Ends when the client is gone.
async fn send(
    export: Export,
    pool: Pool,
    sender: mpsc::Sender<Chunk>,
    limit: Duration,
    path: String,
    _permit: OwnedSemaphorePermit,
) {
    let deadline = Instant::now() + limit;
    let mut reading = Some(export);
    while let Some(mut export) = reading.take() {
        let read = pool.run_in_turn(move || {
            let mut bytes = Vec::with_capacity(CHUNK_BYTES + CHUNK_BYTES / 4);
            export
                .next_chunk(&mut bytes, CHUNK_BYTES)
                .map(|more| (bytes, more.then_some(export)))
        });
        let (bytes, rest) = match read.await {
            Ok(Ok(read)) => read,
            Ok(Err(error)) => {
                tracing::error!(path, %error, "an export failed");
                return;
            }
            Err(problem) => {
                tracing::error!(path, cause = problem.cause(), "an export failed");
                return;
            }
        };
        reading = rest;
        if bytes.is_empty() {
            continue;
        }
        match timeout_at(deadline, sender.send(Chunk::Data(Bytes::from(bytes)))).await {
            Ok(Ok(())) => {}
            // The client is gone.
            Ok(Err(_)) => return,
            Err(_) => {
                tracing::warn!(
                    path,
                    limit_ms = limit.as_millis(),
                    "an export took too long and was cut off"
                );
                return;
            }
        }
    }
    // If the client is gone there is nobody to tell that this is the end.
    let _ = timeout_at(deadline, sender.send(Chunk::End)).await;
}
