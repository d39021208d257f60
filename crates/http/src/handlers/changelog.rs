//! The change log.

use hyper::{Response, StatusCode};
use okdb_store::ChangesQuery;

use crate::{
    answer,
    body::Body,
    codes::Code,
    fields,
    problem::Problem,
    request::Call,
    table::{Answer, BodySpec, Content, Field, Group, Handler, Route, Shape, Verb},
};

pub(super) const ROUTES: &[Route] = &[Route {
    verb: Verb::Get,
    path: "/api/{env}/changelog",
    group: Group::Log,
    summary: "What differs since a clock",
    detail: "At most one entry a record: its latest change. To follow the log, pass `clock` as the next `after`.",
    query: &[
        Field {
            name: "after",
            shape: Shape::Integer,
            required: false,
            what: "Only changes after this clock; 0 by default.",
        },
        Field {
            name: "before",
            shape: Shape::Integer,
            required: false,
            what: "Only changes up to this clock, inclusive.",
        },
        Field {
            name: "type",
            shape: Shape::Text,
            required: false,
            what: "Only changes of this type.",
        },
        Field {
            name: "limit",
            shape: Shape::Limit,
            required: false,
            what: "How many; 50 by default.",
        },
    ],
    body: BodySpec::None,
    guarded: false,
    answers: &[Answer {
        status: 200,
        what: "Changes by rising clock, and the environment's clock.",
        content: Content::Json("Changes"),
    }],
    codes: &[&[Code::ChangelogTruncated, Code::TypeNotRegistered]],
    handler: Handler::Later(|call| Box::pin(read(call))),
}];

async fn read(call: Call) -> Result<Response<Body>, Problem> {
    let env = call.env()?;
    let query = ChangesQuery {
        after: call.integer("after")?.unwrap_or(0),
        before: call.integer("before")?,
        type_name: call.parameter("type").map(str::to_owned),
        limit: fields::limit_in_query(&call)?,
    };
    let changes = call.app.pool.run(move || env.changes(&query)).await??;
    answer::serialized(StatusCode::OK, &changes)
}
