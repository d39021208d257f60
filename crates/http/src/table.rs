//! The shape of the route table. Its rows live with their handlers, one list a module; this joins them.
//!
//! One row dispatches a request, decides which parameters and fields are known, and writes its own entry in the `OpenAPI`
//! document and on the `/docs` page. So what is documented is what is served.

use std::{future::Future, pin::Pin};

use hyper::{Method, Response};

use crate::{body::Body, codes::Code, handlers, problem::Problem, request::Call};

/// Every route, in the order in which people should read of them.
pub(crate) fn routes() -> impl Iterator<Item = &'static Route> {
    handlers::ROUTES.iter().copied().flatten()
}

/// One route.
pub(crate) struct Route {
    /// Its method.
    pub(crate) verb: Verb,
    /// Its path; `{name}` captures one segment.
    pub(crate) path: &'static str,
    /// The heading under which it is shown.
    pub(crate) group: Group,
    /// What it does, as a line.
    pub(crate) summary: &'static str,
    /// What else there is to know; may be empty.
    pub(crate) detail: &'static str,
    /// The query parameters it knows.
    pub(crate) query: &'static [Field],
    /// The body it reads.
    pub(crate) body: BodySpec,
    /// Whether `If-Match` and `If-None-Match` guard it.
    pub(crate) guarded: bool,
    /// How it answers when all is well.
    pub(crate) answers: &'static [Answer],
    /// How it may refuse, beyond what any route may.
    pub(crate) codes: &'static [&'static [Code]],
    /// What serves it.
    pub(crate) handler: Handler,
}

/// A method that routes may have. HEAD is served by GET's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Get,
    Post,
    Put,
    Patch,
    Delete,
}

/// A heading of the documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Group {
    System,
    Environments,
    Types,
    Records,
    Queries,
    Indexes,
    Schemas,
    Expiry,
    Transfer,
    Log,
}

/// A query parameter or a field of a body.
#[derive(Clone, Copy)]
pub(crate) struct Field {
    pub(crate) name: &'static str,
    pub(crate) shape: Shape,
    pub(crate) required: bool,
    /// What it means, as a sentence.
    pub(crate) what: &'static str,
}

/// What values a field takes.
#[derive(Clone, Copy)]
pub(crate) enum Shape {
    /// Text.
    Text,
    /// An integer from 0.
    Integer,
    /// A page size: 1 to 1,000.
    Limit,
    /// `true` or `false`; as a query parameter also the bare name.
    Flag,
    /// Any JSON value.
    Any,
    /// An integer from 0, or null.
    Version,
    /// A JSON array, in a query parameter as text.
    ArrayText,
    /// A component of the `OpenAPI` document.
    Component(&'static str),
}

/// The body that a route reads.
pub(crate) enum BodySpec {
    /// None.
    None,
    /// A JSON object of these fields.
    Fields(&'static [Field]),
    /// A JSON object of these fields, or nothing.
    OptionalFields(&'static [Field]),
    /// A patch in one of three media types; the fields are those of the JSON one.
    Patch(&'static [Field]),
    /// A JSON object of these fields, or a bare array of operations.
    Operations(&'static [Field]),
    /// Lines of JSON.
    Lines,
}

/// An answer when all is well.
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// When it is given, as a sentence.
    pub(crate) what: &'static str,
    pub(crate) content: Content,
}

/// What an answer carries.
pub(crate) enum Content {
    Nothing,
    /// JSON, described by a component of the `OpenAPI` document.
    Json(&'static str),
    /// JSON that no component describes.
    AnyJson,
    /// Lines of JSON, each described by a component.
    Lines(&'static str),
    Html,
    Text,
}

/// A future on the loop.
pub(crate) type Later = Pin<Box<dyn Future<Output = Result<Response<Body>, Problem>>>>;

/// What serves a route.
pub(crate) enum Handler {
    /// Answers at once, from the loop: nothing to await and little to do.
    Now(fn(&Call) -> Result<Response<Body>, Problem>),
    /// Awaits a body, the writer or the pool.
    Later(fn(Call) -> Later),
}

impl Verb {
    /// The verb that serves a method.
    pub(crate) fn of(method: &Method) -> Option<Self> {
        match *method {
            Method::GET | Method::HEAD => Some(Self::Get),
            Method::POST => Some(Self::Post),
            Method::PUT => Some(Self::Put),
            Method::PATCH => Some(Self::Patch),
            Method::DELETE => Some(Self::Delete),
            _ => None,
        }
    }

    /// The methods it serves.
    pub(crate) const fn methods(self) -> &'static [&'static str] {
        match self {
            Self::Get => &["GET", "HEAD"],
            Self::Post => &["POST"],
            Self::Put => &["PUT"],
            Self::Patch => &["PATCH"],
            Self::Delete => &["DELETE"],
        }
    }

    /// The method that names it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Patch => "PATCH",
            Self::Delete => "DELETE",
        }
    }
}

impl Group {
    /// Every heading, in order.
    pub(crate) const ALL: [Self; 10] = [
        Self::System,
        Self::Environments,
        Self::Types,
        Self::Records,
        Self::Queries,
        Self::Indexes,
        Self::Schemas,
        Self::Expiry,
        Self::Transfer,
        Self::Log,
    ];

    /// The heading's text.
    pub(crate) const fn title(self) -> &'static str {
        match self {
            Self::System => "System",
            Self::Environments => "Environments",
            Self::Types => "Types",
            Self::Records => "Records",
            Self::Queries => "Lists and queries",
            Self::Indexes => "Indexes",
            Self::Schemas => "Schemas and violations",
            Self::Expiry => "Expiry",
            Self::Transfer => "Import and export",
            Self::Log => "Change log",
        }
    }
}

/// Codes that any route with an environment may answer.
const ENV: &[Code] = &[Code::EnvNotFound, Code::InvalidName, Code::InvalidKey];
/// Codes that any route with a type may answer.
const TYPE: &[Code] = &[Code::TypeNotRegistered];
/// Codes that any route with a key in its path may answer.
const KEY: &[Code] = &[Code::InvalidKey];
/// Codes that any route with a body may answer.
const BODY: &[Code] = &[
    Code::InvalidJson,
    Code::InvalidNumber,
    Code::UnknownParameter,
    Code::InvalidParameter,
    Code::RequestTimeout,
    Code::TooLarge,
    Code::UnsupportedMediaType,
];
/// Codes that any route may answer.
const ANY: &[Code] = &[
    Code::UnknownParameter,
    Code::InvalidParameter,
    Code::UriTooLong,
    Code::HeadersTooLarge,
    Code::Internal,
    Code::ShuttingDown,
    Code::Overloaded,
];

impl Route {
    /// The path's segments; `None` is a capture.
    pub(crate) fn segments(&self) -> impl Iterator<Item = Option<&'static str>> {
        let segments = self.path.split('/').skip(1);
        segments.map(|segment| (!segment.starts_with('{')).then_some(segment))
    }

    /// The names of its captures, in order.
    pub(crate) fn captures(&self) -> impl Iterator<Item = &'static str> {
        let segments = self.path.split('/');
        segments.filter_map(|segment| segment.strip_prefix('{')?.strip_suffix('}'))
    }

    /// Every code it may answer, each once, in the order of [`Code::ALL`].
    pub(crate) fn refusals(&self) -> Vec<Code> {
        let has = |name| self.captures().any(|capture| capture == name);
        let mut lists: Vec<&[Code]> = self.codes.to_vec();
        lists.push(ANY);
        for (holds, list) in [
            (has("env"), ENV),
            (has("type"), TYPE),
            (has("key"), KEY),
            (!matches!(self.body, BodySpec::None), BODY),
        ] {
            if holds {
                lists.push(list);
            }
        }
        let named = |code: &&Code| lists.iter().any(|list| list.contains(code));
        Code::ALL.iter().filter(named).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::{BodySpec, Field, Group, routes};
    use crate::codes::Code;

    #[test]
    fn rows_are_unique_and_complete() {
        let mut seen = HashSet::new();
        for route in routes() {
            let name = format!("{} {}", route.verb.name(), route.path);
            assert!(seen.insert(name.clone()), "{name} stands twice");
            assert!(
                !route.summary.is_empty() && !route.summary.ends_with('.'),
                "{name}"
            );
            assert!(
                route.detail.is_empty() || route.detail.ends_with('.'),
                "{name}"
            );
            assert!(!route.answers.is_empty(), "{name} has no answer");
            for answer in route.answers {
                assert!(
                    (200..600).contains(&answer.status) && answer.what.ends_with('.'),
                    "{name}"
                );
            }
            let fields: &[Field] = match route.body {
                BodySpec::None | BodySpec::Lines => &[],
                BodySpec::Fields(fields)
                | BodySpec::OptionalFields(fields)
                | BodySpec::Patch(fields)
                | BodySpec::Operations(fields) => fields,
            };
            for list in [route.query, fields] {
                let names: HashSet<_> = list.iter().map(|field| field.name).collect();
                assert_eq!(names.len(), list.len(), "{name} has a field twice");
                assert!(list.iter().all(|field| field.what.ends_with('.')), "{name}");
            }
        }
        for group in Group::ALL {
            assert!(
                routes().any(|route| route.group == group),
                "{} is empty",
                group.title()
            );
        }
    }

    #[test]
    fn every_code_is_answered_by_a_route_or_for_the_lack_of_one() {
        let mut answered: HashSet<Code> = routes().flat_map(super::Route::refusals).collect();
        answered.extend([Code::RouteNotFound, Code::MethodNotAllowed]);
        for code in Code::ALL {
            assert!(answered.contains(code), "{} is never answered", code.text());
        }
    }
}
