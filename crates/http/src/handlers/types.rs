//! Types: what records are collected in.

use hyper::{Response, StatusCode};
use okdb_store::{Env, IndexState, Outcome, TypeInfo, Write};

use super::indexes;
use crate::{
    answer,
    body::Body,
    codes::Code,
    fields::{self, ENFORCE, SCHEMA},
    problem::Problem,
    request::{Call, check_writable_type},
    table::{Answer, BodySpec, Content, Field, Group, Handler, Route, Shape, Verb},
};

const INDEXES: Field = Field {
    name: "indexes",
    shape: Shape::Component("IndexDefinitions"),
    required: false,
    what: "Indexes to have.",
};
/// Codes of both ways to make a type.
const MAKE: &[Code] = &[
    Code::InvalidIndex,
    Code::InvalidSchema,
    Code::AlreadyExists,
    Code::UniqueConstraint,
    Code::StorageFull,
];

pub(super) const ROUTES: &[Route] = &[
    Route {
        verb: Verb::Get,
        path: "/api/{env}/types",
        group: Group::Types,
        summary: "List types",
        detail: "",
        query: &[],
        body: BodySpec::None,
        guarded: false,
        answers: &[Answer {
            status: 200,
            what: "All of them, by name.",
            content: Content::Json("Types"),
        }],
        codes: &[],
        handler: Handler::Later(|call| Box::pin(list(call))),
    },
    Route {
        verb: Verb::Post,
        path: "/api/{env}/types",
        group: Group::Types,
        summary: "Register a type",
        detail: "",
        query: &[],
        body: BodySpec::Fields(&[
            Field {
                name: "name",
                shape: Shape::Text,
                required: true,
                what: "Its name.",
            },
            INDEXES,
            SCHEMA,
            ENFORCE,
        ]),
        guarded: false,
        answers: &[Answer {
            status: 201,
            what: "It was registered.",
            content: Content::Json("Type"),
        }],
        codes: &[MAKE],
        handler: Handler::Later(|call| Box::pin(register(call))),
    },
    Route {
        verb: Verb::Put,
        path: "/api/{env}/types/{type}",
        group: Group::Types,
        summary: "Ensure a type, its indexes and its schema",
        detail: "Makes what is missing and leaves the rest; another schema than the one that there is takes its place. Waits up to two seconds for new indexes to be built.",
        query: &[],
        body: BodySpec::OptionalFields(&[INDEXES, SCHEMA, ENFORCE]),
        guarded: false,
        answers: &[Answer {
            status: 200,
            what: "It is there.",
            content: Content::Json("Type"),
        }],
        codes: &[MAKE],
        handler: Handler::Later(|call| Box::pin(ensure(call))),
    },
    Route {
        verb: Verb::Delete,
        path: "/api/{env}/types/{type}",
        group: Group::Types,
        summary: "Drop a type with everything in it",
        detail: "Refused while records of another type refer to its records.",
        query: &[],
        body: BodySpec::None,
        guarded: false,
        answers: &[Answer {
            status: 204,
            what: "It is gone.",
            content: Content::Nothing,
        }],
        codes: &[
            &[Code::ForeignKeyRestricted, Code::StorageFull],
            &[Code::TooLarge, Code::RequestTimeout],
        ],
        handler: Handler::Later(|call| Box::pin(drop_type(call))),
    },
];

async fn list(call: Call) -> Result<Response<Body>, Problem> {
    let env = call.env()?;
    let types = call.app.pool.run(move || env.snapshot()?.types()).await??;
    answer::listed("types", &types)
}

async fn register(mut call: Call) -> Result<Response<Body>, Problem> {
    let env = call.env()?;
    let envelope = call.envelope().await?;
    let name = fields::required_text(&envelope, "name")?;
    check_writable_type(&name)?;
    let indexes = fields::index_specs(&envelope)?;
    let info = make(
        &call,
        &env,
        Write::RegisterType {
            name,
            indexes,
            schema: fields::schema_spec(&envelope)?,
            ensure: false,
        },
    )
    .await?;
    answer::serialized(StatusCode::CREATED, &info)
}

async fn ensure(mut call: Call) -> Result<Response<Body>, Problem> {
    let (env, name) = (call.env()?, call.writable_type()?.into_owned());
    let envelope = call.envelope().await?;
    let indexes = fields::index_specs(&envelope)?;
    let info = make(
        &call,
        &env,
        Write::RegisterType {
            name,
            indexes,
            schema: fields::schema_spec(&envelope)?,
            ensure: true,
        },
    )
    .await?;
    answer::serialized(StatusCode::OK, &info)
}

/// Makes a type, and waits a while for its indexes.
async fn make(call: &Call, env: &Env, write: Write) -> Result<TypeInfo, Problem> {
    let mut info = match env.submit(write).await? {
        Outcome::Type(info) => info,
        other => {
            return Err(Problem::internal(&format!(
                "registering a type was answered with {other:?}"
            )));
        }
    };
    for index in &mut info.indexes {
        if index.state == IndexState::Building {
            *index = indexes::built(call, env, &info.name, &index.name).await?;
        }
    }
    Ok(info)
}

async fn drop_type(mut call: Call) -> Result<Response<Body>, Problem> {
    let (env, name) = (call.env()?, call.writable_type()?.into_owned());
    call.no_body().await?;
    env.submit(Write::DropType { name }).await?;
    call.app.store.wake_chores();
    Ok(answer::empty(StatusCode::NO_CONTENT))
}
