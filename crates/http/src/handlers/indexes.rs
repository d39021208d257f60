//! Value indexes: registering, listing and dropping them, and reading records in their order.

use std::time::Duration;

use hyper::{Response, StatusCode};
use okdb_query::Value;
use okdb_store::{Env, Error, IndexInfo, IndexQuery, IndexState, Outcome, Write};
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::{
    answer,
    body::Body,
    codes::Code,
    fields,
    problem::Problem,
    request::Call,
    table::{Answer, BodySpec, Content, Field, Group, Handler, Route, Shape, Verb},
};

/// The first pause before a build is looked at again; it doubles up to [`LOOK_AGAIN_MAX`].
const LOOK_AGAIN: Duration = Duration::from_millis(5);
const LOOK_AGAIN_MAX: Duration = Duration::from_millis(100);

/// What selects entries of an index.
const PREFIX: Field = Field {
    name: "prefix",
    shape: Shape::ArrayText,
    required: false,
    what: "Only entries that begin with these values: a JSON array, one value a field.",
};
const START: Field = Field {
    name: "start",
    shape: Shape::ArrayText,
    required: false,
    what: "The lower bound, inclusive: a JSON array of values for the first fields.",
};
const END: Field = Field {
    name: "end",
    shape: Shape::ArrayText,
    required: false,
    what: "The upper bound, inclusive: a JSON array of values for the first fields.",
};

pub(super) const ROUTES: &[Route] = &[
    Route {
        verb: Verb::Get,
        path: "/api/{env}/indexes/{type}",
        group: Group::Indexes,
        summary: "List the indexes of a type",
        detail: "",
        query: &[],
        body: BodySpec::None,
        guarded: false,
        answers: &[Answer {
            status: 200,
            what: "All of them, by name.",
            content: Content::Json("Indexes"),
        }],
        codes: &[],
        handler: Handler::Later(|call| Box::pin(list(call))),
    },
    Route {
        verb: Verb::Post,
        path: "/api/{env}/indexes/{type}",
        group: Group::Indexes,
        summary: "Register an index",
        detail: "It is built in the background while writes go on; the request waits up to two seconds for it. An index of an array field has one entry an element. A unique index over records that hold the same value is refused with `details.duplicates`, and dropped again.",
        query: &[],
        body: BodySpec::Fields(fields::INDEX_FIELDS),
        guarded: false,
        answers: &[Answer {
            status: 201,
            what: "It was registered; `state` tells whether it is built.",
            content: Content::Json("Index"),
        }],
        codes: &[&[
            Code::InvalidIndex,
            Code::AlreadyExists,
            Code::UniqueConstraint,
            Code::StorageFull,
        ]],
        handler: Handler::Later(|call| Box::pin(register(call))),
    },
    Route {
        verb: Verb::Delete,
        path: "/api/{env}/indexes/{type}/{name}",
        group: Group::Indexes,
        summary: "Drop an index",
        detail: "",
        query: &[],
        body: BodySpec::None,
        guarded: false,
        answers: &[Answer {
            status: 204,
            what: "It is gone.",
            content: Content::Nothing,
        }],
        codes: &[&[
            Code::IndexNotRegistered,
            Code::StorageFull,
            Code::TooLarge,
            Code::RequestTimeout,
        ]],
        handler: Handler::Later(|call| Box::pin(drop_index(call))),
    },
    Route {
        verb: Verb::Get,
        path: "/api/{env}/indexes/{type}/{name}",
        group: Group::Indexes,
        summary: "List records in index order",
        detail: "A record with several entries comes back once. Ties are in key order.",
        query: &[
            PREFIX,
            START,
            END,
            Field {
                name: "reverse",
                shape: Shape::Flag,
                required: false,
                what: "Last entry first.",
            },
            Field {
                name: "limit",
                shape: Shape::Limit,
                required: false,
                what: "The page size; 50 by default.",
            },
            Field {
                name: "cursor",
                shape: Shape::Text,
                required: false,
                what: "The `cursor` of the page before.",
            },
        ],
        body: BodySpec::None,
        guarded: false,
        answers: &[Answer {
            status: 200,
            what: "A page.",
            content: Content::Json("IndexPage"),
        }],
        codes: &[&[
            Code::IndexNotRegistered,
            Code::InvalidJson,
            Code::InvalidNumber,
            Code::InvalidCursor,
        ]],
        handler: Handler::Later(|call| Box::pin(scan(call))),
    },
    Route {
        verb: Verb::Get,
        path: "/api/{env}/indexes/{type}/{name}/count",
        group: Group::Indexes,
        summary: "Count records in an index range",
        detail: "",
        query: &[PREFIX, START, END],
        body: BodySpec::None,
        guarded: false,
        answers: &[Answer {
            status: 200,
            what: "How many.",
            content: Content::Json("Count"),
        }],
        codes: &[&[
            Code::IndexNotRegistered,
            Code::InvalidJson,
            Code::InvalidNumber,
        ]],
        handler: Handler::Later(|call| Box::pin(count(call))),
    },
];

async fn list(call: Call) -> Result<Response<Body>, Problem> {
    let (env, type_name) = (call.env()?, call.capture(1)?.into_owned());
    let indexes = call
        .app
        .pool
        .run(move || env.snapshot()?.indexes(&type_name))
        .await??;
    answer::listed("indexes", &indexes)
}

async fn register(mut call: Call) -> Result<Response<Body>, Problem> {
    let (env, type_name) = (call.env()?, call.writable_type()?.into_owned());
    let envelope = call.envelope().await?;
    let spec = fields::index_spec(&envelope)?;
    let write = Write::RegisterIndex {
        type_name: type_name.clone(),
        spec,
        ensure: false,
    };
    let mut info = match env.submit(write).await? {
        Outcome::Index(info) => info,
        other => {
            return Err(Problem::internal(&format!(
                "registering an index was answered with {other:?}"
            )));
        }
    };
    if info.state == IndexState::Building {
        info = built(&call, &env, &type_name, &info.name).await?;
    }
    answer::serialized(StatusCode::CREATED, &info)
}

/// Waits a while for an index to be built, and tells how far it is then.
///
/// # Errors
/// `UNIQUE_CONSTRAINT` or `INVALID_INDEX` when the records do not fit it; it has been dropped then.
pub(super) async fn built(
    call: &Call,
    env: &Env,
    type_name: &str,
    name: &str,
) -> Result<IndexInfo, Problem> {
    call.app.store.wake_chores();
    let deadline = Instant::now() + Duration::from_millis(call.app.limits.index_wait_ms);
    let mut pause = LOOK_AGAIN;
    loop {
        let indexes = env.snapshot()?.indexes(type_name)?;
        let index = indexes.into_iter().find(|index| index.name == name);
        let index = index.ok_or_else(|| Error::IndexNotRegistered {
            type_name: type_name.to_owned(),
            name: name.to_owned(),
            reason: "is not registered",
        })?;
        match index.state {
            IndexState::Failed => return Err(refused(call, env, type_name, index).await),
            IndexState::Building if Instant::now() < deadline => {
                sleep(pause).await;
                pause = (pause * 2).min(LOOK_AGAIN_MAX);
            }
            IndexState::Building | IndexState::Ready => return Ok(index),
        }
    }
}

/// Drops an index whose build failed while its maker waits, and tells why it failed.
async fn refused(call: &Call, env: &Env, type_name: &str, index: IndexInfo) -> Problem {
    let drop = Write::DropIndex {
        type_name: type_name.to_owned(),
        name: index.name.clone(),
    };
    match env.submit(drop).await {
        // Somebody else dropped it first: as well.
        Ok(_) | Err(Error::IndexNotRegistered { .. } | Error::TypeNotRegistered { .. }) => {}
        Err(error) => return Problem::from(error),
    }
    call.app.store.wake_chores();
    match index.error {
        Some(failure) if !failure.duplicates.is_empty() => {
            Problem::new(Code::UniqueConstraint, failure.message)
                .with("index", index.name)
                .with("duplicates", json!(failure.duplicates))
        }
        Some(failure) => {
            Problem::new(Code::InvalidIndex, failure.message).with("index", index.name)
        }
        None => Problem::internal(&format!("index {:?} failed without a reason", index.name)),
    }
}

async fn drop_index(mut call: Call) -> Result<Response<Body>, Problem> {
    let (env, type_name) = (call.env()?, call.writable_type()?.into_owned());
    let name = call.capture(2)?.into_owned();
    call.no_body().await?;
    env.submit(Write::DropIndex { type_name, name }).await?;
    call.app.store.wake_chores();
    Ok(answer::empty(StatusCode::NO_CONTENT))
}

/// A query parameter that is a JSON array.
fn values(call: &Call, name: &str) -> Result<Vec<Value<'static>>, Problem> {
    let Some(text) = call.parameter(name) else {
        return Ok(Vec::new());
    };
    match Value::parse(text).map_err(|error| Problem::json(name, &error))? {
        Value::Array(values) => Ok(values.into_iter().map(Value::into_owned).collect()),
        _ => Err(Problem::parameter(format!(
            "{name} must be a JSON array, such as [\"FR\"]"
        ))),
    }
}

fn index_query(call: &Call) -> Result<IndexQuery, Problem> {
    Ok(IndexQuery {
        prefix: values(call, "prefix")?,
        start: values(call, "start")?,
        end: values(call, "end")?,
        reverse: call.flag("reverse")?,
        limit: fields::limit_in_query(call)?,
        cursor: call.parameter("cursor").map(str::to_owned),
    })
}

async fn scan(call: Call) -> Result<Response<Body>, Problem> {
    let (env, query) = (call.env()?, index_query(&call)?);
    let (type_name, name) = (call.capture(1)?.into_owned(), call.capture(2)?.into_owned());
    let read = move || answer::page(&env.index_list(&type_name, &name, &query)?);
    Ok(answer::json(
        StatusCode::OK,
        call.app.pool.run(read).await??,
    ))
}

async fn count(call: Call) -> Result<Response<Body>, Problem> {
    let (env, query) = (call.env()?, index_query(&call)?);
    let (type_name, name) = (call.capture(1)?.into_owned(), call.capture(2)?.into_owned());
    let count = call
        .app
        .pool
        .run(move || env.index_count(&type_name, &name, &query))
        .await??;
    Ok(answer::json(
        StatusCode::OK,
        format!("{{\"count\":{count}}}"),
    ))
}
