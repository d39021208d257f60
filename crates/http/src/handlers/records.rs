//! One record at a time: read, create, write, patch and delete by key.

use hyper::{
    Response, StatusCode,
    header::{ETAG, HeaderValue, LOCATION},
};
use okdb_query::{Patch, Value};
use okdb_store::{Action, Env, Error, Guard, Operation, Outcome, Write, Written};
use ulid::Ulid;

use crate::{
    answer,
    body::Body,
    codes::Code,
    fields::{self, TTL},
    guard, percent,
    problem::Problem,
    request::{Call, Media},
    table::{Answer, BodySpec, Content, Field, Group, Handler, Route, Shape, Verb},
};

const PATH: &str = "/api/{env}/types/{type}/{key}";

/// Codes that any write of a record may answer.
pub(super) const WRITE: &[Code] = &[
    Code::SchemaViolation,
    Code::ForeignKeyViolation,
    Code::UniqueConstraint,
    Code::InvalidKey,
    Code::InvalidIndex,
    Code::TooLarge,
    Code::StorageFull,
];

const IF_VERSION: Field = Field {
    name: "ifVersion",
    shape: Shape::Version,
    required: false,
    what: "The version that the record must have; null: there must be none.",
};
const VALUE: Field = Field {
    name: "value",
    shape: Shape::Any,
    required: true,
    what: "The document.",
};

pub(super) const ROUTES: &[Route] = &[
    Route {
        verb: Verb::Get,
        path: PATH,
        group: Group::Records,
        summary: "Read a record",
        detail: "Honours `If-None-Match`. A record that expires has `ttl`. The value is the text that was written, but for whitespace between tokens.",
        query: &[],
        body: BodySpec::None,
        guarded: false,
        answers: &[
            Answer {
                status: 200,
                what: "The record; its version is the `ETag`.",
                content: Content::Json("Record"),
            },
            Answer {
                status: 304,
                what: "The client's copy is current.",
                content: Content::Nothing,
            },
        ],
        codes: &[&[Code::NotFound]],
        handler: Handler::Now(get),
    },
    Route {
        verb: Verb::Post,
        path: "/api/{env}/types/{type}",
        group: Group::Records,
        summary: "Create a record",
        detail: "Without a key the server makes one, a ULID.",
        query: &[],
        body: BodySpec::Fields(&[
            VALUE,
            Field {
                name: "key",
                shape: Shape::Text,
                required: false,
                what: "The new record's key.",
            },
            TTL,
        ]),
        guarded: false,
        answers: &[Answer {
            status: 201,
            what: "It was created; `Location` names it.",
            content: Content::Json("Written"),
        }],
        codes: &[WRITE, &[Code::AlreadyExists]],
        handler: Handler::Later(|call| Box::pin(create(call))),
    },
    Route {
        verb: Verb::Put,
        path: PATH,
        group: Group::Records,
        summary: "Write a record, new or not",
        detail: "",
        query: &[],
        body: BodySpec::Fields(&[VALUE, TTL, IF_VERSION]),
        guarded: true,
        answers: &[
            Answer {
                status: 200,
                what: "It was replaced.",
                content: Content::Json("Written"),
            },
            Answer {
                status: 201,
                what: "It was created.",
                content: Content::Json("Written"),
            },
        ],
        codes: &[WRITE, &[Code::VersionMismatch]],
        handler: Handler::Later(|call| Box::pin(put(call))),
    },
    Route {
        verb: Verb::Patch,
        path: PATH,
        group: Group::Records,
        summary: "Change parts of a record",
        detail: "Three media types: `application/json` with the document `{\"patch\":{set,unset,inc,merge,append,pull}}`, `application/merge-patch+json` (RFC 7396) and `application/json-patch+json` (RFC 6902).",
        query: &[],
        body: BodySpec::Patch(&[
            Field {
                name: "patch",
                shape: Shape::Component("PatchDocument"),
                required: true,
                what: "What to change.",
            },
            IF_VERSION,
        ]),
        guarded: true,
        answers: &[Answer {
            status: 200,
            what: "It was changed.",
            content: Content::Json("Written"),
        }],
        codes: &[
            WRITE,
            &[Code::NotFound, Code::InvalidPatch, Code::VersionMismatch],
        ],
        handler: Handler::Later(|call| Box::pin(patch(call))),
    },
    Route {
        verb: Verb::Delete,
        path: PATH,
        group: Group::Records,
        summary: "Delete a record",
        detail: "",
        query: &[IF_VERSION],
        body: BodySpec::None,
        guarded: true,
        answers: &[Answer {
            status: 204,
            what: "It is gone.",
            content: Content::Nothing,
        }],
        codes: &[
            &[Code::NotFound, Code::VersionMismatch, Code::StorageFull],
            &[
                Code::ForeignKeyRestricted,
                Code::TooLarge,
                Code::RequestTimeout,
            ],
        ],
        handler: Handler::Later(|call| Box::pin(delete(call))),
    },
];

fn get(call: &Call) -> Result<Response<Body>, Problem> {
    let (env, type_name, key) = (call.env()?, call.capture(1)?, call.capture(2)?);
    let snapshot = env.snapshot()?;
    let record = snapshot.get(&type_name, &key)?.ok_or(Error::NotFound)?;
    let tag = answer::etag(record.version);
    let mut response = if guard::is_known(&call.head.headers, record.version) {
        answer::empty(StatusCode::NOT_MODIFIED)
    } else {
        answer::json(StatusCode::OK, answer::record(&key, &record))
    };
    response.headers_mut().insert(ETAG, tag);
    Ok(response)
}

/// Submits one operation and waits until it is as durable as the environment promises.
async fn submit(env: &Env, operation: Operation) -> Result<Written, Problem> {
    match env.submit(Write::One(operation)).await? {
        Outcome::Done(written) => Ok(written),
        other => Err(Problem::internal(&format!(
            "one operation was answered with {other:?}"
        ))),
    }
}

async fn create(mut call: Call) -> Result<Response<Body>, Problem> {
    guard::none_in_headers(&call)?;
    let (env, type_name) = (call.env()?, call.writable_type()?.into_owned());
    let envelope = call.envelope().await?;
    let key = match fields::text(&envelope, "key")? {
        Some(key) => key,
        None => Ulid::new().to_string(),
    };
    let value = envelope.get("value").unwrap_or_default().to_owned();
    let operation = Operation {
        type_name,
        key,
        guard: Guard::default(),
        ttl: fields::ttl(&envelope)?,
        action: Action::Create(value),
    };
    let written = submit(&env, operation).await?;
    let mut response = answer::written(StatusCode::CREATED, &written);
    let mut location = format!("/api/{}/types/{}/", env.name(), call.capture(1)?);
    percent::encode(&written.key, &mut location);
    if let Ok(location) = HeaderValue::from_str(&location) {
        response.headers_mut().insert(LOCATION, location);
    }
    Ok(response)
}

async fn put(mut call: Call) -> Result<Response<Body>, Problem> {
    let (env, type_name) = (call.env()?, call.writable_type()?.into_owned());
    let key = call.capture(2)?.into_owned();
    let envelope = call.envelope().await?;
    let guard = guard::of_write(&call, guard::in_body(&envelope)?)?;
    let value = envelope.get("value").unwrap_or_default().to_owned();
    let operation = Operation {
        type_name,
        key,
        guard,
        ttl: fields::ttl(&envelope)?,
        action: Action::Put(value),
    };
    let written = submit(&env, operation).await?;
    let status = if written.created {
        StatusCode::CREATED
    } else {
        StatusCode::OK
    };
    Ok(answer::written(status, &written))
}

async fn patch(mut call: Call) -> Result<Response<Body>, Problem> {
    let (env, type_name) = (call.env()?, call.writable_type()?.into_owned());
    let key = call.capture(2)?.into_owned();
    let media = call.media(&[
        (Media::Json, "application/json"),
        (Media::MergePatch, "application/merge-patch+json"),
        (Media::JsonPatch, "application/json-patch+json"),
    ])?;
    let (patch, given) = if media == Media::Json {
        let envelope = call.envelope().await?;
        let value = fields::value(&envelope, "patch")?.unwrap_or(Value::Null);
        (Patch::parse_document(&value)?, guard::in_body(&envelope)?)
    } else {
        let bytes = call.bytes().await?;
        let parse = move |bytes: &[u8]| whole_patch(bytes, media);
        (call.off_loop_if_large(bytes, parse).await?, None)
    };
    let guard = guard::of_write(&call, given)?;
    let operation = Operation {
        type_name,
        key,
        guard,
        ttl: None,
        action: Action::Patch(patch),
    };
    let written = submit(&env, operation).await?;
    Ok(answer::written(StatusCode::OK, &written))
}

/// A patch that is the whole body.
fn whole_patch(bytes: &[u8], media: Media) -> Result<Patch, Problem> {
    let mut text = String::new();
    let wrong = |error| Problem::json("body", &error);
    okdb_query::compact(bytes, &mut text).map_err(wrong)?;
    let value = Value::parse(&text).map_err(wrong)?;
    let patch = if media == Media::MergePatch {
        Patch::parse_merge(&value)
    } else {
        Patch::parse_json_patch(&value)
    };
    Ok(patch?)
}

async fn delete(mut call: Call) -> Result<Response<Body>, Problem> {
    let (env, type_name) = (call.env()?, call.writable_type()?.into_owned());
    let key = call.capture(2)?.into_owned();
    let guard = guard::of_write(&call, guard::in_query(&call)?)?;
    call.no_body().await?;
    let operation = Operation {
        type_name,
        key,
        guard,
        ttl: None,
        action: Action::Remove,
    };
    submit(&env, operation).await?;
    Ok(answer::empty(StatusCode::NO_CONTENT))
}
