//! Health, information about the server, and its documentation.

use hyper::{
    Response, StatusCode,
    header::{CONTENT_TYPE, HeaderValue},
};
use serde::Serialize;

use crate::{
    answer,
    body::Body,
    docs_page, openapi,
    problem::Problem,
    request::Call,
    table::{Answer, BodySpec, Content, Group, Handler, Route, Verb},
};

/// A system route: GET, no parameters.
const fn row(
    path: &'static str,
    summary: &'static str,
    detail: &'static str,
    answers: &'static [Answer],
    handler: Handler,
) -> Route {
    Route {
        verb: Verb::Get,
        path,
        group: Group::System,
        summary,
        detail,
        query: &[],
        body: BodySpec::None,
        guarded: false,
        answers,
        codes: &[],
        handler,
    }
}

pub(super) const ROUTES: &[Route] = &[
    row(
        "/healthz",
        "Whether this worker serves",
        "",
        &[Answer {
            status: 200,
            what: "It does.",
            content: Content::Text,
        }],
        Handler::Now(health),
    ),
    row(
        "/readyz",
        "Whether this worker can do its job",
        "Not ready are a worker that is going away and one that has lost its primary; the body tells why.",
        &[
            Answer {
                status: 200,
                what: "It can.",
                content: Content::Text,
            },
            Answer {
                status: 503,
                what: "It cannot; the body tells why.",
                content: Content::Text,
            },
        ],
        Handler::Now(ready),
    ),
    row(
        "/api/info",
        "Version, identity, limits and environments",
        "",
        &[Answer {
            status: 200,
            what: "What this server is.",
            content: Content::Json("Info"),
        }],
        Handler::Later(|call| Box::pin(info(call))),
    ),
    row(
        "/api/cluster/status",
        "The primary and its workers",
        "",
        &[Answer {
            status: 200,
            what: "The cluster as this worker knows it.",
            content: Content::AnyJson,
        }],
        Handler::Now(cluster),
    ),
    row(
        "/metrics",
        "The cluster in numbers, for Prometheus",
        "Text format 0.0.4. The totals are those of all workers, whichever is asked.",
        &[Answer {
            status: 200,
            what: "The metrics.",
            content: Content::Text,
        }],
        Handler::Now(metrics),
    ),
    row(
        "/api/openapi.json",
        "This interface as OpenAPI 3.1",
        "",
        &[Answer {
            status: 200,
            what: "The document.",
            content: Content::AnyJson,
        }],
        Handler::Now(openapi_json),
    ),
    row(
        "/docs",
        "This interface as a page to read",
        "",
        &[Answer {
            status: 200,
            what: "The page.",
            content: Content::Html,
        }],
        Handler::Now(docs),
    ),
];

/// Text for people.
const PLAIN: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
/// Prometheus' text format.
const EXPOSITION: HeaderValue =
    HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");

fn text(status: StatusCode, kind: HeaderValue, text: String) -> Response<Body> {
    let mut response = Response::new(Body::full(text));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

#[allow(
    clippy::unnecessary_wraps,
    reason = "a handler answers or refuses; this one never refuses"
)]
fn health(_: &Call) -> Result<Response<Body>, Problem> {
    Ok(text(StatusCode::OK, PLAIN, "ok\n".to_owned()))
}

#[allow(
    clippy::unnecessary_wraps,
    reason = "a handler answers or refuses; this one never refuses"
)]
fn ready(call: &Call) -> Result<Response<Body>, Problem> {
    let ready = if call.app.connections.stopping() {
        Err("this worker is going away".to_owned())
    } else {
        call.app.host.ready()
    };
    Ok(match ready {
        Ok(()) => text(StatusCode::OK, PLAIN, "ready\n".to_owned()),
        Err(reason) => text(
            StatusCode::SERVICE_UNAVAILABLE,
            PLAIN,
            format!("not ready: {reason}\n"),
        ),
    })
}

/// What `/api/info` tells.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Info {
    name: &'static str,
    version: String,
    /// The root's identity.
    root: String,
    storage_format: u32,
    /// Of the default environment.
    durability: String,
    limits: Limits,
    uptime_ms: u64,
    envs: Vec<Env>,
}

/// The bounds that a client may meet.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Limits {
    body_bytes: usize,
    header_bytes: usize,
    uri_bytes: usize,
    value_bytes: usize,
    key_bytes: usize,
    nesting: usize,
    page_records: usize,
    transaction_operations: usize,
}

#[derive(Serialize)]
struct Env {
    name: String,
    clock: u64,
}

async fn info(call: Call) -> Result<Response<Body>, Problem> {
    let app = &call.app;
    let (version, uptime) = (app.host.version(), app.host.uptime());
    let (store, limits) = (app.store.clone(), app.limits.clone());
    let info = app.pool.run(move || -> Result<_, Problem> {
        let envs = store.envs()?.into_iter();
        Ok(Info {
            name: "okdb",
            version,
            root: store.identity(),
            storage_format: okdb_store::FORMAT_VERSION,
            durability: store.env("default")?.durability().to_string(),
            limits: Limits {
                body_bytes: limits.body_bytes,
                header_bytes: limits.header_bytes,
                uri_bytes: limits.uri_bytes,
                value_bytes: store.limits().value_bytes,
                key_bytes: okdb_store::KEY_BYTES_MAX,
                nesting: okdb_query::DEPTH_MAX,
                page_records: crate::fields::LIMIT_MAX,
                transaction_operations: okdb_store::TRANSACTION_OPERATIONS_MAX,
            },
            uptime_ms: u64::try_from(uptime.as_millis()).unwrap_or(u64::MAX),
            envs: envs
                .map(|env| Env {
                    name: env.name,
                    clock: env.clock,
                })
                .collect(),
        })
    });
    answer::serialized(StatusCode::OK, &info.await??)
}

#[allow(
    clippy::unnecessary_wraps,
    reason = "a handler answers or refuses; this one never refuses"
)]
fn cluster(call: &Call) -> Result<Response<Body>, Problem> {
    Ok(answer::json(StatusCode::OK, call.app.host.cluster_status()))
}

#[allow(
    clippy::unnecessary_wraps,
    reason = "a handler answers or refuses; this one never refuses"
)]
fn metrics(call: &Call) -> Result<Response<Body>, Problem> {
    let metrics = call.app.host.metrics();
    Ok(text(StatusCode::OK, EXPOSITION, metrics))
}

#[allow(
    clippy::unnecessary_wraps,
    reason = "a handler answers or refuses; this one never refuses"
)]
fn openapi_json(call: &Call) -> Result<Response<Body>, Problem> {
    let document = call.app.openapi.get_or_init(|| {
        openapi::document(&call.app.host.version())
            .to_string()
            .into()
    });
    let mut response = Response::new(Body::full(document.clone()));
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}

#[allow(
    clippy::unnecessary_wraps,
    reason = "a handler answers or refuses; this one never refuses"
)]
fn docs(call: &Call) -> Result<Response<Body>, Problem> {
    let page = call
        .app
        .docs
        .get_or_init(|| docs_page::page(&call.app.host.version()).into());
    let mut response = Response::new(Body::full(page.clone()));
    let headers = response.headers_mut();
    headers.insert(
        CONTENT_TYPE,
        HeaderValue::from_static("text/html; charset=utf-8"),
    );
    headers.insert(
        "content-security-policy",
        HeaderValue::from_static(docs_page::POLICY),
    );
    Ok(response)
}
