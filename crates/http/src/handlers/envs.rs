//! Environments.

use hyper::{Response, StatusCode, header::HeaderValue};
use okdb_store::Durability;

use crate::{
    answer,
    body::Body,
    codes::Code,
    fields,
    problem::Problem,
    request::Call,
    table::{Answer, BodySpec, Content, Field, Group, Handler, Route, Shape, Verb},
};

pub(super) const ROUTES: &[Route] = &[
    Route {
        verb: Verb::Get,
        path: "/api/envs",
        group: Group::Environments,
        summary: "List environments",
        detail: "",
        query: &[],
        body: BodySpec::None,
        guarded: false,
        answers: &[Answer {
            status: 200,
            what: "All of them.",
            content: Content::Json("Environments"),
        }],
        codes: &[],
        handler: Handler::Later(|call| Box::pin(list(call))),
    },
    Route {
        verb: Verb::Post,
        path: "/api/envs",
        group: Group::Environments,
        summary: "Create an environment",
        detail: "An environment has its own files, change log and clock. `default` is always there.",
        query: &[],
        body: BodySpec::Fields(&[
            Field {
                name: "name",
                shape: Shape::Text,
                required: true,
                what: "Its name.",
            },
            Field {
                name: "durability",
                shape: Shape::Component("Durability"),
                required: false,
                what: "What a reply promises; the server's default where it is not given.",
            },
        ]),
        guarded: false,
        answers: &[Answer {
            status: 201,
            what: "It was created.",
            content: Content::Json("Environment"),
        }],
        codes: &[&[Code::InvalidName, Code::AlreadyExists, Code::StorageFull]],
        handler: Handler::Later(|call| Box::pin(create(call))),
    },
    Route {
        verb: Verb::Get,
        path: "/api/envs/{env}",
        group: Group::Environments,
        summary: "Describe an environment",
        detail: "",
        query: &[],
        body: BodySpec::None,
        guarded: false,
        answers: &[Answer {
            status: 200,
            what: "Its figures.",
            content: Content::Json("Environment"),
        }],
        codes: &[],
        handler: Handler::Later(|call| Box::pin(describe(call))),
    },
];

async fn list(call: Call) -> Result<Response<Body>, Problem> {
    let store = call.app.store.clone();
    let envs = call.app.pool.run(move || store.envs()).await??;
    answer::listed("envs", &envs)
}

async fn create(mut call: Call) -> Result<Response<Body>, Problem> {
    let envelope = call.envelope().await?;
    let name = fields::required_text(&envelope, "name")?;
    if name.starts_with('~') {
        return Err(Problem::new(
            Code::InvalidName,
            format!("environment {name:?}: names with ~ in front are internal"),
        ));
    }
    let durability = match fields::text(&envelope, "durability")? {
        None => None,
        Some(text) => Some(text.parse::<Durability>().map_err(|_| {
            Problem::parameter(format!(
                "durability: {text:?} is none of strict, balanced, fast"
            ))
        })?),
    };
    let store = call.app.store.clone();
    let location = HeaderValue::from_str(&format!("/api/envs/{name}"));
    let info = call
        .app
        .pool
        .run(move || store.create_env(&name, durability)?.info())
        .await??;
    let mut response = answer::serialized(StatusCode::CREATED, &info)?;
    if let Ok(location) = location {
        response
            .headers_mut()
            .insert(hyper::header::LOCATION, location);
    }
    Ok(response)
}

async fn describe(call: Call) -> Result<Response<Body>, Problem> {
    let name = call.capture(0)?.into_owned();
    let store = call.app.store.clone();
    let info = call
        .app
        .pool
        .run(move || store.env(&name)?.info())
        .await??;
    answer::serialized(StatusCode::OK, &info)
}
