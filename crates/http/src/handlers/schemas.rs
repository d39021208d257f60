//! Schemas of types, and what was let in and does not hold.

use std::time::{Duration, Instant};

use hyper::{Response, StatusCode};
use okdb_store::{Env, Error, SchemaInfo, SchemaState, ViolationsQuery, Write};
use tokio::time::sleep;

use crate::{
    answer,
    body::Body,
    codes::Code,
    fields::{self, ENFORCE, SCHEMA},
    problem::Problem,
    request::Call,
    table::{Answer, BodySpec, Content, Field, Group, Handler, Route, Shape, Verb},
};

const PATH: &str = "/api/{env}/schemas/{type}";
/// How soon, and how seldom in the end, a check under way is looked at.
const LOOK_AGAIN: Duration = Duration::from_millis(1);
const LOOK_AGAIN_MAX: Duration = Duration::from_millis(50);

pub(super) const ROUTES: &[Route] = &[
    Route {
        verb: Verb::Get,
        path: PATH,
        group: Group::Schemas,
        summary: "Read the schema of a type",
        detail: "`state` is `checking` while records that were there before it are still being looked at.",
        query: &[],
        body: BodySpec::None,
        guarded: false,
        answers: &[Answer {
            status: 200,
            what: "The schema, as it was given.",
            content: Content::Json("TypeSchema"),
        }],
        codes: &[&[Code::NotFound]],
        handler: Handler::Now(read),
    },
    Route {
        verb: Verb::Put,
        path: PATH,
        group: Group::Schemas,
        summary: "Set the schema of a type",
        detail: "It holds for writes at once. Records that are there already are looked at in the background; waits up to two seconds for that. What does not fit is listed among the violations, and stays as it is. `ref: {type, onDelete}` on a string property makes it a reference; `onDelete` is `restrict` (the default), `cascade`, `set_null` or `no_action`.",
        query: &[],
        body: BodySpec::Fields(&[
            Field {
                required: true,
                ..SCHEMA
            },
            ENFORCE,
        ]),
        guarded: false,
        answers: &[Answer {
            status: 200,
            what: "It holds.",
            content: Content::Json("TypeSchema"),
        }],
        codes: &[&[Code::InvalidSchema, Code::StorageFull]],
        handler: Handler::Later(|call| Box::pin(set(call))),
    },
    Route {
        verb: Verb::Delete,
        path: PATH,
        group: Group::Schemas,
        summary: "Drop the schema of a type",
        detail: "Its references and violations go with it.",
        query: &[],
        body: BodySpec::None,
        guarded: false,
        answers: &[Answer {
            status: 204,
            what: "It is gone.",
            content: Content::Nothing,
        }],
        codes: &[
            &[Code::NotFound, Code::StorageFull],
            &[Code::TooLarge, Code::RequestTimeout],
        ],
        handler: Handler::Later(|call| Box::pin(remove(call))),
    },
    Route {
        verb: Verb::Get,
        path: "/api/{env}/violations",
        group: Group::Schemas,
        summary: "List what was let in and does not hold",
        detail: "A violation goes by itself when it is cured: when its record is changed or deleted, when the record that it refers to comes back, when the rule is dropped.",
        query: &[
            Field {
                name: "kind",
                shape: Shape::Text,
                required: false,
                what: "`schema`, `ref` or `unique`: only violations of this kind.",
            },
            Field {
                name: "type",
                shape: Shape::Text,
                required: false,
                what: "Only violations of records of this type.",
            },
            Field {
                name: "limit",
                shape: Shape::Limit,
                required: false,
                what: "How many; 50 by default.",
            },
            Field {
                name: "cursor",
                shape: Shape::Text,
                required: false,
                what: "Where the page before ended.",
            },
        ],
        body: BodySpec::None,
        guarded: false,
        answers: &[Answer {
            status: 200,
            what: "A page of violations.",
            content: Content::Json("Violations"),
        }],
        codes: &[&[Code::InvalidCursor, Code::TypeNotRegistered]],
        handler: Handler::Later(|call| Box::pin(violations(call))),
    },
];

fn read(call: &Call) -> Result<Response<Body>, Problem> {
    let (env, type_name) = (call.env()?, call.capture(1)?);
    let info = schema(&env, &type_name)?;
    answer::serialized(StatusCode::OK, &info)
}

fn schema(env: &Env, type_name: &str) -> Result<SchemaInfo, Problem> {
    let none = || Problem::new(Code::NotFound, format!("type {type_name:?} has no schema"));
    env.snapshot()?.schema(type_name)?.ok_or_else(none)
}

async fn set(mut call: Call) -> Result<Response<Body>, Problem> {
    let (env, type_name) = (call.env()?, call.writable_type()?.into_owned());
    let envelope = call.envelope().await?;
    let missing = || Problem::parameter("the field \"schema\" is missing");
    let schema = fields::schema_spec(&envelope)?.ok_or_else(missing)?;
    let write = Write::SetSchema {
        type_name: type_name.clone(),
        schema,
    };
    env.submit(write).await?;
    let info = checked(&call, &env, &type_name).await?;
    answer::serialized(StatusCode::OK, &info)
}

/// Waits a while until older records have been looked at.
async fn checked(call: &Call, env: &Env, type_name: &str) -> Result<SchemaInfo, Problem> {
    call.app.store.wake_chores();
    let deadline = Instant::now() + Duration::from_millis(call.app.limits.index_wait_ms);
    let mut pause = LOOK_AGAIN;
    loop {
        let info = schema(env, type_name)?;
        if info.state == SchemaState::Ready || Instant::now() >= deadline {
            return Ok(info);
        }
        sleep(pause).await;
        pause = (pause * 2).min(LOOK_AGAIN_MAX);
    }
}

async fn remove(mut call: Call) -> Result<Response<Body>, Problem> {
    let (env, type_name) = (call.env()?, call.writable_type()?.into_owned());
    call.no_body().await?;
    let shown = type_name.clone();
    let dropped = env.submit(Write::DropSchema { type_name }).await;
    match dropped {
        Err(Error::NotFound) => {
            let message = format!("type {shown:?} has no schema");
            Err(Problem::new(Code::NotFound, message))
        }
        Err(error) => Err(error.into()),
        Ok(_) => {
            call.app.store.wake_chores();
            Ok(answer::empty(StatusCode::NO_CONTENT))
        }
    }
}

async fn violations(call: Call) -> Result<Response<Body>, Problem> {
    let env = call.env()?;
    let kind = match call.parameter("kind") {
        None => None,
        Some(text) => Some(text.parse().map_err(|()| {
            let shown: String = text.chars().take(64).collect();
            Problem::parameter(format!("kind: {shown:?} is none of schema, ref, unique"))
        })?),
    };
    let query = ViolationsQuery {
        kind,
        type_name: call.parameter("type").map(str::to_owned),
        limit: fields::limit_in_query(&call)?,
        cursor: call.parameter("cursor").map(str::to_owned),
    };
    let page = call.app.pool.run(move || env.violations(&query)).await??;
    answer::serialized(StatusCode::OK, &page)
}
