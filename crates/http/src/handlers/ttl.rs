//! Records that expire.

use hyper::{Response, StatusCode};
use okdb_store::{Action, Error, ExpiringQuery, Guard, Operation, Outcome, Write, Written};

use crate::{
    answer,
    body::Body,
    codes::Code,
    fields::{self, TTL},
    problem::Problem,
    request::Call,
    table::{Answer, BodySpec, Content, Field, Group, Handler, Route, Shape, Verb},
};

const PATH: &str = "/api/{env}/ttl/{type}/{key}";

pub(super) const ROUTES: &[Route] = &[
    Route {
        verb: Verb::Get,
        path: PATH,
        group: Group::Expiry,
        summary: "When a record expires",
        detail: "",
        query: &[],
        body: BodySpec::None,
        guarded: false,
        answers: &[Answer {
            status: 200,
            what: "When it will be gone.",
            content: Content::Json("Ttl"),
        }],
        codes: &[&[Code::NotFound]],
        handler: Handler::Now(read),
    },
    Route {
        verb: Verb::Put,
        path: PATH,
        group: Group::Expiry,
        summary: "Let a record expire, or later",
        detail: "A write like any other: the record gets a new version.",
        query: &[],
        body: BodySpec::Fields(&[Field {
            required: true,
            ..TTL
        }]),
        guarded: false,
        answers: &[Answer {
            status: 200,
            what: "When it will be gone.",
            content: Content::Json("Ttl"),
        }],
        codes: &[&[Code::NotFound, Code::StorageFull]],
        handler: Handler::Later(|call| Box::pin(set(call))),
    },
    Route {
        verb: Verb::Delete,
        path: PATH,
        group: Group::Expiry,
        summary: "Let a record stay",
        detail: "A write like any other: the record gets a new version.",
        query: &[],
        body: BodySpec::None,
        guarded: false,
        answers: &[Answer {
            status: 204,
            what: "It does not expire.",
            content: Content::Nothing,
        }],
        codes: &[
            &[Code::NotFound, Code::StorageFull],
            &[Code::TooLarge, Code::RequestTimeout],
        ],
        handler: Handler::Later(|call| Box::pin(clear(call))),
    },
    Route {
        verb: Verb::Get,
        path: "/api/{env}/ttl",
        group: Group::Expiry,
        summary: "List records that will expire",
        detail: "",
        query: &[
            Field {
                name: "type",
                shape: Shape::Text,
                required: false,
                what: "Only records of this type.",
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
            what: "A page of them, the next to go first.",
            content: Content::Json("Expiring"),
        }],
        codes: &[&[Code::InvalidCursor, Code::TypeNotRegistered]],
        handler: Handler::Later(|call| Box::pin(list(call))),
    },
    Route {
        verb: Verb::Post,
        path: "/api/{env}/ttl/sweep",
        group: Group::Expiry,
        summary: "Remove what has expired, now",
        detail: "The server does it each second; no read sees such records anyway.",
        query: &[],
        body: BodySpec::None,
        guarded: false,
        answers: &[Answer {
            status: 200,
            what: "How many were removed.",
            content: Content::Json("Swept"),
        }],
        codes: &[&[Code::StorageFull, Code::TooLarge, Code::RequestTimeout]],
        handler: Handler::Later(|call| Box::pin(sweep(call))),
    },
];

fn answered(expires_ms: u64) -> Response<Body> {
    let mut text = String::with_capacity(64);
    answer::write_ttl(expires_ms, &mut text);
    answer::json(StatusCode::OK, text)
}

fn read(call: &Call) -> Result<Response<Body>, Problem> {
    let (env, type_name, key) = (call.env()?, call.capture(1)?, call.capture(2)?);
    let snapshot = env.snapshot()?;
    let record = snapshot.get(&type_name, &key)?.ok_or(Error::NotFound)?;
    let stays = || Problem::new(Code::NotFound, "the record does not expire");
    Ok(answered(record.expires_ms.ok_or_else(stays)?))
}

async fn submit(call: &Call, action: Action) -> Result<Written, Problem> {
    let operation = Operation {
        type_name: call.writable_type()?.into_owned(),
        key: call.capture(2)?.into_owned(),
        guard: Guard::default(),
        ttl: None,
        action,
    };
    match call.env()?.submit(Write::One(operation)).await? {
        Outcome::Done(written) => Ok(written),
        other => Err(Problem::internal(&format!(
            "one operation was answered with {other:?}"
        ))),
    }
}

async fn set(mut call: Call) -> Result<Response<Body>, Problem> {
    let envelope = call.envelope().await?;
    let missing = || Problem::parameter("the field \"ttl\" is missing");
    let ttl = fields::ttl(&envelope)?.ok_or_else(missing)?;
    let written = submit(&call, Action::SetTtl(ttl)).await?;
    Ok(answered(written.expires_ms.unwrap_or_default()))
}

async fn clear(mut call: Call) -> Result<Response<Body>, Problem> {
    call.no_body().await?;
    submit(&call, Action::ClearTtl).await?;
    Ok(answer::empty(StatusCode::NO_CONTENT))
}

async fn list(call: Call) -> Result<Response<Body>, Problem> {
    let env = call.env()?;
    let query = ExpiringQuery {
        type_name: call.parameter("type").map(str::to_owned),
        limit: fields::limit_in_query(&call)?,
        cursor: call.parameter("cursor").map(str::to_owned),
    };
    let page = call.app.pool.run(move || env.expiring(&query)).await??;
    answer::serialized(StatusCode::OK, &page)
}

async fn sweep(mut call: Call) -> Result<Response<Body>, Problem> {
    call.no_body().await?;
    let env = call.env()?;
    let mut swept = 0;
    while env.has_expired()? {
        if let Outcome::Swept { records } = env.sweep_some().await? {
            swept += records;
        }
    }
    Ok(answer::json(
        StatusCode::OK,
        format!("{{\"swept\":{swept}}}"),
    ))
}
