//! The one error type of the HTTP edge, and how the errors of the rooms below become it.
//!
//! What a client sees is a code, a message and details. The cause of an internal failure stays inside: it is logged
//! under the request's id, and the client gets the id.

use std::fmt::Display;

use hyper::{
    HeaderMap, Response,
    header::{ALLOW, CONTENT_TYPE, HeaderValue, RETRY_AFTER},
};
use okdb_query::{JsonError, JsonErrorKind, PatchError, PatchErrorKind, write_string};
use okdb_store::Error;
use serde_json::{Map, Value, json};

use crate::{body::Body, codes::Code};

/// How long a client should wait before it tries again, in seconds.
const RETRY_AFTER_S: u16 = 1;

/// An answer that tells of an error.
#[derive(Debug)]
pub(crate) struct Problem(Box<Parts>);

#[derive(Debug)]
struct Parts {
    code: Code,
    message: String,
    details: Map<String, Value>,
    allow: Option<HeaderValue>,
    cause: Option<String>,
}

impl Problem {
    /// A problem of this kind, told in these words.
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        Self(Box::new(Parts {
            code,
            message: message.into(),
            details: Map::new(),
            allow: None,
            cause: None,
        }))
    }

    /// A parameter, header or field with a value that cannot be.
    pub(crate) fn parameter(message: impl Into<String>) -> Self {
        Self::new(Code::InvalidParameter, message)
    }

    /// A failure of ours; `cause` is for the log alone.
    pub(crate) fn internal(cause: &dyn Display) -> Self {
        let mut problem = Self::new(
            Code::Internal,
            "the server failed to answer; its log tells why",
        );
        problem.0.cause = Some(cause.to_string());
        problem
    }

    /// Too much is waiting already.
    pub(crate) fn overloaded() -> Self {
        Self::new(
            Code::Overloaded,
            "too many requests are waiting; try again shortly",
        )
    }

    /// The path is known, the method is not one of `allow`.
    pub(crate) fn method(allow: &str) -> Self {
        let mut problem = Self::new(Code::MethodNotAllowed, format!("this path allows {allow}"));
        problem.0.allow = HeaderValue::from_str(allow).ok();
        problem
    }

    /// Something is larger than `limit_bytes`.
    pub(crate) fn too_large(what: &str, limit_bytes: usize) -> Self {
        Self::new(
            Code::TooLarge,
            format!("{what} is larger than {limit_bytes} bytes"),
        )
        .with("limit", limit_bytes)
    }

    /// Text that is not JSON as we take it; `what` names the text.
    pub(crate) fn json(what: &str, error: &JsonError) -> Self {
        let code = match error.kind {
            JsonErrorKind::NumberRange => Code::InvalidNumber,
            _ => Code::InvalidJson,
        };
        Self::new(code, format!("{what}: {error}")).with("offset", error.offset)
    }

    /// Adds one member to the details.
    pub(crate) fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.0.details.insert(name.to_owned(), value.into());
        self
    }

    /// Adds the one request that would have helped, where there is one; `path` is that of the request refused.
    pub(crate) fn with_remedy(mut self, path: &str) -> Self {
        if self.0.code == Code::TypeNotRegistered
            && let Some(env) = path.split('/').nth(2)
            && let Some(Value::String(name)) = self.0.details.get("type")
        {
            let body = json!({ "name": name });
            let remedy = format!("; register it with POST /api/{env}/types {body}");
            self.0.message.push_str(&remedy);
        }
        self
    }

    /// Names the operation of a transaction that this is about, counted from 0.
    pub(crate) fn in_operation(mut self, index: usize) -> Self {
        self.0.message = format!("operation {index}: {}", self.0.message);
        self.with("operation", index)
    }

    /// What kind it is.
    pub(crate) fn code(&self) -> Code {
        self.0.code
    }

    /// What it tells people.
    pub(crate) fn message(&self) -> &str {
        &self.0.message
    }

    /// What the log should say beyond the answer.
    pub(crate) fn cause(&self) -> Option<&str> {
        self.0.cause.as_deref()
    }

    /// The answer.
    pub(crate) fn into_response(self) -> Response<Body> {
        let Parts {
            code,
            message,
            details,
            allow,
            ..
        } = *self.0;
        let mut body = String::with_capacity(128 + message.len());
        body.push_str("{\"error\":{\"code\":\"");
        body.push_str(code.text());
        body.push_str("\",\"message\":");
        write_string(&message, &mut body);
        if !details.is_empty() {
            body.push_str(",\"details\":");
            body.push_str(&Value::Object(details).to_string());
        }
        body.push_str("}}");
        let mut response = Response::new(Body::full(body));
        *response.status_mut() = code.status();
        let headers: &mut HeaderMap = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(allow) = allow {
            headers.insert(ALLOW, allow);
        }
        if matches!(code, Code::Overloaded | Code::ShuttingDown) {
            headers.insert(RETRY_AFTER, HeaderValue::from(RETRY_AFTER_S));
        }
        response
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        let message = error.to_string();
        let plain = |code| Self::new(code, message.as_str());
        match error {
            Error::TypeNotRegistered { type_name } => {
                plain(Code::TypeNotRegistered).with("type", type_name)
            }
            Error::IndexNotRegistered {
                type_name, name, ..
            } => plain(Code::IndexNotRegistered)
                .with("type", type_name)
                .with("index", name),
            Error::EnvNotFound { name } => plain(Code::EnvNotFound).with("env", name),
            Error::NotFound => plain(Code::NotFound),
            Error::AlreadyExists { .. } => plain(Code::AlreadyExists),
            Error::VersionMismatch { current } => {
                plain(Code::VersionMismatch).with("version", current)
            }
            Error::UniqueConstraint { index, key } => plain(Code::UniqueConstraint)
                .with("index", index)
                .with("key", key),
            Error::SchemaViolation { failures } => {
                let failures = failures
                    .into_iter()
                    .map(|[path, message]| json!({ "path": path, "message": message }));
                plain(Code::SchemaViolation).with("violations", Value::Array(failures.collect()))
            }
            Error::ForeignKeyViolation {
                path,
                type_name,
                key,
            } => plain(Code::ForeignKeyViolation)
                .with("path", path)
                .with("type", type_name)
                .with("key", key),
            Error::ForeignKeyRestricted { type_name, key } => plain(Code::ForeignKeyRestricted)
                .with("type", type_name)
                .with("key", key),
            Error::InvalidSchema { path, .. } => plain(Code::InvalidSchema).with("path", path),
            Error::InvalidKey(_) => plain(Code::InvalidKey),
            Error::InvalidName(_) => plain(Code::InvalidName),
            Error::InvalidIndex(_) => plain(Code::InvalidIndex),
            Error::InvalidCursor => plain(Code::InvalidCursor),
            Error::InvalidParameter(_) => plain(Code::InvalidParameter),
            Error::TooLarge { limit, .. } => plain(Code::TooLarge).with("limit", limit),
            Error::StorageFull(_) => plain(Code::StorageFull),
            Error::ChangelogTruncated { oldest } => {
                plain(Code::ChangelogTruncated).with("oldest", oldest)
            }
            Error::Overloaded => plain(Code::Overloaded),
            Error::ShuttingDown => plain(Code::ShuttingDown),
            Error::Patch(error) => Self::from(error),
            Error::Operation { index, source } => Self::from(*source).in_operation(index),
            // Damage, LMDB's and the system's failures: ours to explain in the log, not the client's to read.
            other @ (Error::Damaged(_) | Error::Lmdb(_) | Error::Io(_)) => Self::internal(&other),
        }
    }
}

impl From<PatchError> for Problem {
    fn from(error: PatchError) -> Self {
        let code = match error.kind {
            PatchErrorKind::Invalid => Code::InvalidPatch,
            PatchErrorKind::Number => Code::InvalidNumber,
        };
        Self::new(code, error.message)
    }
}
