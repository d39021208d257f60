//! Reading many records of a type: in key order, by filter, and counted.

use hyper::{Response, StatusCode};
use okdb_store::{ListQuery, Query};

use crate::{
    answer,
    body::Body,
    codes::Code,
    fields,
    problem::Problem,
    request::Call,
    table::{Answer, BodySpec, Content, Field, Group, Handler, Route, Shape, Verb},
};

const FILTER: Field = Field {
    name: "filter",
    shape: Shape::Component("Filter"),
    required: false,
    what: "Which records; all where it is not given.",
};

pub(super) const ROUTES: &[Route] = &[
    Route {
        verb: Verb::Get,
        path: "/api/{env}/types/{type}",
        group: Group::Queries,
        summary: "List records in key order",
        detail: "",
        query: &[
            Field {
                name: "prefix",
                shape: Shape::Text,
                required: false,
                what: "Only keys that begin so.",
            },
            Field {
                name: "start",
                shape: Shape::Text,
                required: false,
                what: "The lowest key, inclusive.",
            },
            Field {
                name: "end",
                shape: Shape::Text,
                required: false,
                what: "The highest key, inclusive.",
            },
            Field {
                name: "reverse",
                shape: Shape::Flag,
                required: false,
                what: "Highest key first.",
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
                what: "The `cursor` of the page before, with the same other parameters.",
            },
        ],
        body: BodySpec::None,
        guarded: false,
        answers: &[Answer {
            status: 200,
            what: "A page.",
            content: Content::Json("Page"),
        }],
        codes: &[&[Code::InvalidCursor]],
        handler: Handler::Later(|call| Box::pin(list(call))),
    },
    Route {
        verb: Verb::Post,
        path: "/api/{env}/types/{type}/query",
        group: Group::Queries,
        summary: "Find records",
        detail: "An index is chosen by itself, or by `index`; `explain` shows which, and what it cost. Ties are in key order.",
        query: &[],
        body: BodySpec::Fields(&[
            FILTER,
            Field {
                name: "sort",
                shape: Shape::Component("Sort"),
                required: false,
                what: "The order, in written order of the paths: 1 rises, -1 falls.",
            },
            Field {
                name: "select",
                shape: Shape::Component("Paths"),
                required: false,
                what: "The paths to show of each value.",
            },
            Field {
                name: "index",
                shape: Shape::Text,
                required: false,
                what: "The index to use.",
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
                what: "The `cursor` of the page before, with the same other fields.",
            },
            Field {
                name: "explain",
                shape: Shape::Flag,
                required: false,
                what: "Whether to tell the plan.",
            },
        ]),
        guarded: false,
        answers: &[Answer {
            status: 200,
            what: "A page.",
            content: Content::Json("Page"),
        }],
        codes: &[&[
            Code::InvalidFilter,
            Code::InvalidCursor,
            Code::IndexNotRegistered,
        ]],
        handler: Handler::Later(|call| Box::pin(query(call))),
    },
    Route {
        verb: Verb::Post,
        path: "/api/{env}/types/{type}/count",
        group: Group::Queries,
        summary: "Count records",
        detail: "",
        query: &[],
        body: BodySpec::OptionalFields(&[FILTER]),
        guarded: false,
        answers: &[Answer {
            status: 200,
            what: "How many.",
            content: Content::Json("Count"),
        }],
        codes: &[&[Code::InvalidFilter]],
        handler: Handler::Later(|call| Box::pin(count(call))),
    },
];

async fn list(call: Call) -> Result<Response<Body>, Problem> {
    let (env, type_name) = (call.env()?, call.capture(1)?.into_owned());
    let text = |name| call.parameter(name).map(str::to_owned);
    let query = ListQuery {
        prefix: text("prefix"),
        start: text("start"),
        end: text("end"),
        reverse: call.flag("reverse")?,
        limit: fields::limit_in_query(&call)?,
        cursor: text("cursor"),
    };
    let read = move || answer::page(&env.list(&type_name, &query)?);
    Ok(answer::json(
        StatusCode::OK,
        call.app.pool.run(read).await??,
    ))
}

async fn query(mut call: Call) -> Result<Response<Body>, Problem> {
    let (env, type_name) = (call.env()?, call.capture(1)?.into_owned());
    let envelope = call.envelope().await?;
    let (filter, filter_text) = fields::filter(&envelope)?;
    let query = Query {
        filter,
        filter_text,
        sort: fields::sort(&envelope)?,
        select: fields::select(&envelope)?,
        index: fields::text(&envelope, "index")?,
        limit: fields::limit(&envelope)?,
        cursor: fields::cursor(&envelope)?,
        explain: fields::flag(&envelope, "explain")?,
    };
    let read = move || answer::page(&env.query(&type_name, &query)?);
    Ok(answer::json(
        StatusCode::OK,
        call.app.pool.run(read).await??,
    ))
}

async fn count(mut call: Call) -> Result<Response<Body>, Problem> {
    let (env, type_name) = (call.env()?, call.capture(1)?.into_owned());
    let envelope = call.envelope().await?;
    let (filter, _) = fields::filter(&envelope)?;
    let count = call
        .app
        .pool
        .run(move || env.count(&type_name, &filter))
        .await??;
    Ok(answer::json(
        StatusCode::OK,
        format!("{{\"count\":{count}}}"),
    ))
}
