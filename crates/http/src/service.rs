//! From a parsed request to its answer: routing, the guard against panics, what every answer carries, and the counting.

use std::{
    any::Any,
    convert::Infallible,
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use http_body::Body as _;
use hyper::{
    Method, Request, Response, Uri, Version,
    body::Incoming,
    header::{CONNECTION, HeaderName, HeaderValue},
};
use ulid::Ulid;

use crate::{
    app::App,
    body::Body,
    codes::Code,
    host::Finished,
    problem::Problem,
    request::Call,
    table::{Handler, Later, Route},
    watch::{Upload, Watch},
};

/// The header that names the worker that answered.
const WORKER: HeaderName = HeaderName::from_static("okdb-worker");
/// The header under which a request is found in the log.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const REQUEST_ID_BYTES_MAX: usize = 64;

/// Answers the requests of one connection.
pub(crate) struct Service {
    pub(crate) app: Rc<App>,
    pub(crate) watch: Rc<Watch>,
}

/// Counts a request while it is being answered.
pub(crate) struct Ticket {
    app: Rc<App>,
    watch: Rc<Watch>,
    began: Instant,
    status: u16,
    /// The request's body, if it has one.
    upload: Option<Rc<Upload>>,
    bytes: u64,
    failed: bool,
}

impl Ticket {
    fn new(app: &Rc<App>, watch: &Rc<Watch>, upload: Option<Rc<Upload>>) -> Self {
        watch.begin(upload.clone());
        app.host.request_started();
        Self {
            app: Rc::clone(app),
            watch: Rc::clone(watch),
            began: Instant::now(),
            status: 0,
            upload,
            bytes: 0,
            failed: false,
        }
    }

    /// Counts bytes of the answer's body.
    pub(crate) fn sent(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_add(bytes as u64);
    }

    /// Notes that the answer failed after its head was sent.
    pub(crate) fn failed(&mut self) {
        self.failed = true;
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.watch.end();
        self.app.host.request_finished(&Finished {
            status: self.status,
            elapsed: self.began.elapsed(),
            bytes_in: self.upload.as_ref().map_or(0, |upload| upload.bytes.get()),
            bytes: self.bytes,
            failed: self.failed || self.status >= 500,
        });
    }
}

/// What is kept of a request until its answer is made.
pub(crate) struct Asked {
    ticket: Ticket,
    route: Option<&'static Route>,
    /// The client's own id for the request, if it sent a sane one.
    id: Option<HeaderValue>,
    version: Version,
    uri: Uri,
    /// For the access log, if there is one.
    method: Option<Method>,
}

impl Asked {
    /// Completes the answer: what every answer carries, the log, and the count.
    fn finish(mut self, result: Result<Response<Body>, Problem>) -> Response<Body> {
        let app = Rc::clone(&self.ticket.app);
        let mut response = match result {
            Ok(response) => response,
            Err(problem) => self.refuse(problem),
        };
        let headers = response.headers_mut();
        headers.insert(WORKER, app.worker_header.clone());
        if app.connections.stopping() && self.version < Version::HTTP_2 {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        self.ticket.status = response.status().as_u16();
        if let Some(method) = &self.method {
            tracing::info!(
                target: "okdb::access",
                %method,
                path = self.uri.path_and_query().map_or("", |path| path.as_str()),
                status = self.ticket.status,
                micros = micros(self.ticket.began.elapsed()),
                bytes = response.body().len(),
                "request",
            );
        }
        match response.body_mut() {
            Body::Full(bytes) => self
                .ticket
                .sent(bytes.as_ref().map_or(0, bytes::Bytes::len)),
            Body::Stream(stream) => stream.ticket = Some(self.ticket),
        }
        response
    }

    fn refuse(&mut self, problem: Problem) -> Response<Body> {
        let id = self.id.take().unwrap_or_else(new_id);
        if let Some(route) = self.route {
            debug_assert!(
                route.refusals().contains(&problem.code()),
                "{} {} answers {}, which its row in the table does not list",
                route.verb.name(),
                route.path,
                problem.code().text(),
            );
        }
        if problem.code() == Code::Internal {
            tracing::error!(
                request_id = id.to_str().unwrap_or_default(),
                route = self.route.map_or("", |route| route.path),
                cause = problem.cause().unwrap_or(problem.message()),
                "a request failed",
            );
        }
        let mut response = problem.with_remedy(self.uri.path()).into_response();
        response.headers_mut().insert(REQUEST_ID, id);
        response
    }
}

fn micros(elapsed: Duration) -> u64 {
    u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX)
}

/// An id for a request whose client gave none.
fn new_id() -> HeaderValue {
    HeaderValue::from_str(&Ulid::new().to_string())
        .unwrap_or_else(|_| HeaderValue::from_static("unknown"))
}

/// The client's id for a request, if it can go into a log line and back into a header.
fn given_id(request: &Request<Incoming>) -> Option<HeaderValue> {
    let id = request.headers().get(&REQUEST_ID)?;
    let sane = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    (1..=REQUEST_ID_BYTES_MAX)
        .contains(&id.len())
        .then_some(())?;
    id.as_bytes().iter().all(sane).then(|| id.clone())
}

/// An answer, at once or later.
pub(crate) enum Reply {
    Now(Option<Response<Body>>),
    Later { answer: Later, asked: Option<Asked> },
}

impl hyper::service::Service<Request<Incoming>> for Service {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Reply;

    fn call(&self, request: Request<Incoming>) -> Reply {
        let upload = (!request.body().is_end_stream()).then(Rc::<Upload>::default);
        let mut asked = Asked {
            ticket: Ticket::new(&self.app, &self.watch, upload.clone()),
            route: None,
            id: given_id(&request),
            version: request.version(),
            uri: request.uri().clone(),
            method: self.app.access_log.then(|| request.method().clone()),
        };
        let (call, handler) = match Call::new(&self.app, request, upload) {
            Ok((call, handler)) => (call, handler),
            Err(problem) => return Reply::Now(Some(asked.finish(Err(problem)))),
        };
        asked.route = Some(call.route);
        match handler {
            Handler::Now(answer) => {
                let result = guarded(|| answer(&call)).unwrap_or_else(Err);
                Reply::Now(Some(asked.finish(result)))
            }
            Handler::Later(answer) => match guarded(|| answer(call)) {
                Ok(answer) => Reply::Later {
                    answer,
                    asked: Some(asked),
                },
                Err(problem) => Reply::Now(Some(asked.finish(Err(problem)))),
            },
        }
    }
}

impl Future for Reply {
    type Output = Result<Response<Body>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let response = match &mut *self {
            Self::Now(response) => response.take(),
            Self::Later { answer, asked } => {
                let polled = guarded(|| answer.as_mut().poll(context));
                let result = match polled {
                    Ok(polled) => ready!(polled),
                    Err(problem) => Err(problem),
                };
                asked.take().map(|asked| asked.finish(result))
            }
        };
        match response {
            Some(response) => Poll::Ready(Ok(response)),
            // Polled after its end: there is nothing more to come.
            None => Poll::Pending,
        }
    }
}

/// Runs a piece of a handler; a panic in it is that request's failure and nobody else's.
fn guarded<T>(run: impl FnOnce() -> T) -> Result<T, Problem> {
    // What a handler can leave half-done by unwinding is its own, or is repaired by its owner's drop.
    catch_unwind(AssertUnwindSafe(run)).map_err(|panic| Problem::internal(&panic_text(&*panic)))
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("panic: {}", text.unwrap_or("of no known kind"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_an_internal_problem_with_a_cause() {
        let problem = guarded(|| -> () { panic!("over {}", "here") });
        let problem = problem
            .err()
            .map(|problem| (problem.code(), problem.cause().map(str::to_owned)));
        assert_eq!(
            problem,
            Some((Code::Internal, Some("panic: over here".to_owned())))
        );
    }
}
