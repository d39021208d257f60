//! A request as handlers see it: captures, query parameters, headers and body, each checked as it is taken.

use std::{borrow::Cow, rc::Rc, time::Duration};

use bytes::{Bytes, BytesMut};
use hyper::{
    Request, Version,
    body::Incoming,
    header::{CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderName},
    http::request::Parts,
};
use okdb_query::Envelope;
use okdb_store::{Env, check_type_name};

use crate::{
    app::App,
    codes::Code,
    percent,
    problem::Problem,
    reader::{Reader, discard},
    router::Captures,
    table::{BodySpec, Field, Handler, Route},
    watch::Upload,
};

/// Bodies up to this size are parsed on the loop; larger ones would hold up everybody else.
pub(crate) const PARSE_INLINE_BYTES_MAX: usize = 128 * 1024;
/// Room that is made for a body at once because its length is announced.
const READ_AHEAD_BYTES_MAX: usize = 1024 * 1024;

/// A request on its way through a handler.
pub(crate) struct Call {
    pub(crate) app: Rc<App>,
    pub(crate) route: &'static Route,
    pub(crate) head: Parts,
    body: Option<Incoming>,
    /// Tells others what has come of the body; none where there is no body.
    upload: Option<Rc<Upload>>,
    captures: Captures,
    query: Vec<(&'static str, String)>,
    /// Bytes of the body that count as held until this call ends.
    held: usize,
}

/// The media types that routes read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Media {
    Json,
    MergePatch,
    JsonPatch,
    Lines,
}

impl Call {
    /// Routes a request and checks its query.
    ///
    /// # Errors
    /// What the router refuses; `URI_TOO_LONG`; `UNKNOWN_PARAMETER` or `INVALID_PARAMETER` for the query.
    pub(crate) fn new(
        app: &Rc<App>,
        request: Request<Incoming>,
        upload: Option<Rc<Upload>>,
    ) -> Result<(Self, &'static Handler), Problem> {
        let (head, body) = request.into_parts();
        let routed = Self::route(app, &head);
        let (route, captures, query) = match routed {
            Ok(routed) => routed,
            Err(problem) => {
                discard(&head.headers, body, upload);
                return Err(problem);
            }
        };
        let call = Self {
            app: Rc::clone(app),
            route,
            head,
            upload,
            body: Some(body),
            captures,
            query,
            held: 0,
        };
        Ok((call, &route.handler))
    }

    #[allow(
        clippy::type_complexity,
        reason = "the three parts are taken apart at once by the only caller"
    )]
    fn route(
        app: &App,
        head: &Parts,
    ) -> Result<(&'static Route, Captures, Vec<(&'static str, String)>), Problem> {
        let length = head
            .uri
            .path_and_query()
            .map_or(0, |path| path.as_str().len());
        if length > app.limits.uri_bytes {
            let limit = app.limits.uri_bytes;
            return Err(Problem::new(
                Code::UriTooLong,
                format!("path and query have {length} bytes, at most {limit} are read"),
            ));
        }
        check_host(head)?;
        let (route, captures) = app.router.find(&head.method, head.uri.path())?;
        let query = match head.uri.query() {
            Some(query) if !query.is_empty() => parse_query(query, route.query)?,
            _ => Vec::new(),
        };
        Ok((route, captures, query))
    }

    /// The percent-decoded text of a capture, by its place in the path.
    ///
    /// # Errors
    /// `INVALID_KEY` for a bad escape or bad UTF-8.
    pub(crate) fn capture(&self, place: usize) -> Result<Cow<'_, str>, Problem> {
        let raw = self.captures.get(self.head.uri.path(), place);
        percent::decode(raw).ok_or_else(|| {
            let name = self.route.captures().nth(place).unwrap_or("segment");
            Problem::new(
                Code::InvalidKey,
                format!("{name}: {raw:?} is not percent-encoded UTF-8"),
            )
        })
    }

    /// The environment that the path names.
    pub(crate) fn env(&self) -> Result<Env, Problem> {
        Ok(self.app.store.env(&self.capture(0)?)?)
    }

    /// The type that the path of a write names: internal types are written by their features alone.
    pub(crate) fn writable_type(&self) -> Result<Cow<'_, str>, Problem> {
        let name = self.capture(1)?;
        check_writable_type(&name)?;
        Ok(name)
    }

    /// A query parameter's text.
    pub(crate) fn parameter(&self, name: &str) -> Option<&str> {
        let mut pairs = self.query.iter();
        pairs
            .find(|(known, _)| *known == name)
            .map(|(_, value)| value.as_str())
    }

    /// A query parameter that switches something on: `true`, `false`, or the bare name.
    pub(crate) fn flag(&self, name: &str) -> Result<bool, Problem> {
        match self.parameter(name) {
            None | Some("false") => Ok(false),
            Some("" | "true") => Ok(true),
            Some(other) => Err(Problem::parameter(format!(
                "{name}: {other:?} is neither true nor false"
            ))),
        }
    }

    /// A query parameter that is an integer from 0.
    pub(crate) fn integer(&self, name: &str) -> Result<Option<u64>, Problem> {
        self.parameter(name)
            .map(|text| {
                decimal(text).ok_or_else(|| {
                    Problem::parameter(format!(
                        "{name}: {text:?} is not an integer from 0 to 2^64 - 1"
                    ))
                })
            })
            .transpose()
    }

    /// The only value of a header, as text.
    pub(crate) fn header(&self, name: &HeaderName) -> Result<Option<&str>, Problem> {
        let mut values = self.head.headers.get_all(name).iter();
        let Some(value) = values.next() else {
            return Ok(None);
        };
        if values.next().is_some() {
            return Err(Problem::parameter(format!(
                "the {name} header is given twice"
            )));
        }
        let text = value.to_str();
        text.map(Some)
            .map_err(|_| Problem::parameter(format!("the {name} header is not plain text")))
    }

    /// The media type of the body, if it is one of `known`; the first of them if the client names none.
    pub(crate) fn media(&self, known: &[(Media, &str)]) -> Result<Media, Problem> {
        let refuse = |given: &str| {
            let names: Vec<_> = known.iter().map(|(_, name)| *name).collect();
            Problem::new(
                Code::UnsupportedMediaType,
                format!(
                    "this route does not read {given:?}; it reads {}",
                    names.join(", ")
                ),
            )
        };
        let Some(given) = self.header(&CONTENT_TYPE)? else {
            return known
                .first()
                .map(|(media, _)| *media)
                .ok_or_else(|| refuse(""));
        };
        let mut parts = given.split(';').map(str::trim);
        let essence = parts.next().unwrap_or_default();
        for parameter in parts {
            if let Some((name, value)) = parameter.split_once('=')
                && name.eq_ignore_ascii_case("charset")
                && !value.trim_matches('"').eq_ignore_ascii_case("utf-8")
            {
                return Err(refuse(given));
            }
        }
        let mut known = known.iter();
        known
            .find(|(_, name)| name.eq_ignore_ascii_case(essence))
            .map(|(media, _)| *media)
            .ok_or_else(|| refuse(given))
    }

    /// The body, to be read piece by piece.
    pub(crate) fn reader(&mut self) -> Reader {
        let patience = Duration::from_millis(self.app.limits.body_timeout_ms);
        Reader::new(self.body.take(), self.upload.clone(), patience)
    }

    /// The whole body.
    pub(crate) async fn bytes(&mut self) -> Result<Bytes, Problem> {
        let limit = self.app.limits.body_bytes;
        let announced = self.head.headers.get(CONTENT_LENGTH);
        let announced = announced.and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
        if announced.is_some_and(|length| length > limit) {
            return Err(Problem::too_large("the body", limit));
        }
        let mut reader = self.reader();
        let read = self
            .read_all(&mut reader, limit, announced.unwrap_or(0))
            .await;
        if read.is_err() {
            self.body = reader.into_rest();
        }
        read
    }

    async fn read_all(
        &mut self,
        reader: &mut Reader,
        limit: usize,
        announced: usize,
    ) -> Result<Bytes, Problem> {
        let Some(first) = reader.next().await? else {
            return Ok(Bytes::new());
        };
        self.hold(first.len(), limit)?;
        // Most bodies come in one piece: hand it on as it is.
        let Some(second) = reader.next().await? else {
            return Ok(first);
        };
        // Room as the bytes come: what a client announces costs it nothing.
        let room = announced
            .min(READ_AHEAD_BYTES_MAX)
            .max(first.len() + second.len());
        let mut all = BytesMut::with_capacity(room);
        all.extend_from_slice(&first);
        let mut next = Some(second);
        while let Some(piece) = next {
            self.hold(piece.len(), limit)?;
            all.extend_from_slice(&piece);
            next = reader.next().await?;
        }
        Ok(all.freeze())
    }

    /// Counts bytes of the body that are kept until the call ends.
    fn hold(&mut self, bytes: usize, limit: usize) -> Result<(), Problem> {
        if self.held.saturating_add(bytes) > limit {
            return Err(Problem::too_large("the body", limit));
        }
        self.app.hold(bytes)?;
        self.held += bytes;
        Ok(())
    }

    /// The body as a JSON object of the fields that the route knows.
    pub(crate) async fn envelope(&mut self) -> Result<Envelope, Problem> {
        self.media(&[(Media::Json, "application/json")])?;
        let bytes = self.bytes().await?;
        let fields = match self.route.body {
            BodySpec::OptionalFields(_) if bytes.is_empty() => return parse_envelope(b"{}"),
            BodySpec::Fields(fields)
            | BodySpec::OptionalFields(fields)
            | BodySpec::Patch(fields)
            | BodySpec::Operations(fields) => fields,
            BodySpec::None | BodySpec::Lines => &[],
        };
        let envelope = self.off_loop_if_large(bytes, parse_envelope).await?;
        check_fields(&envelope, fields)?;
        Ok(envelope)
    }

    /// Refuses a body where the route takes none: what it says would be ignored.
    pub(crate) async fn no_body(&mut self) -> Result<(), Problem> {
        if self.bytes().await?.is_empty() {
            Ok(())
        } else {
            Err(Problem::parameter("this route takes no body"))
        }
    }

    /// Parses bytes on the loop, or beside it if they are many.
    pub(crate) async fn off_loop_if_large<T: Send + 'static>(
        &self,
        bytes: Bytes,
        parse: impl FnOnce(&[u8]) -> Result<T, Problem> + Send + 'static,
    ) -> Result<T, Problem> {
        if bytes.len() <= PARSE_INLINE_BYTES_MAX {
            parse(&bytes)
        } else {
            self.app.pool.run(move || parse(&bytes)).await?
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.app.release(self.held);
        if let Some(body) = self.body.take() {
            discard(&self.head.headers, body, self.upload.take());
        }
    }
}

/// Refuses a request that does not say, once, whom it is for, as RFC 9112 (3.2) demands: a proxy on the way might read
/// such a request differently.
fn check_host(head: &Parts) -> Result<(), Problem> {
    let mut given = head.headers.get_all(HOST).iter();
    match (given.next(), given.next()) {
        (Some(host), None) if host.as_bytes().iter().copied().all(is_of_authority) => Ok(()),
        (Some(_), None) => Err(Problem::parameter(
            "the host header is not a host with an optional port",
        )),
        (Some(_), Some(_)) => Err(Problem::parameter("the host header is given twice")),
        (None, _) if head.version == Version::HTTP_11 => {
            Err(Problem::parameter("the host header is missing"))
        }
        (None, _) => Ok(()),
    }
}

/// Whether a byte may stand in a host with a port: RFC 3986 `reg-name`, an address in brackets, and the colon.
fn is_of_authority(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~%!$&'()*+,;=:[]".contains(&byte)
}

/// Internal types are written by their features alone.
pub(crate) fn check_writable_type(name: &str) -> Result<(), Problem> {
    check_type_name(name)?;
    if name.starts_with('~') {
        return Err(Problem::new(
            Code::InvalidName,
            format!(
                "type {name:?} is internal: names with ~ in front are not written from outside"
            ),
        ));
    }
    Ok(())
}

fn parse_envelope(bytes: &[u8]) -> Result<Envelope, Problem> {
    Envelope::parse(bytes).map_err(|error| Problem::json("body", &error))
}

/// Refuses members that are not among `fields`, and the lack of one that must be there.
pub(crate) fn check_fields(envelope: &Envelope, fields: &[Field]) -> Result<(), Problem> {
    for (name, _) in envelope.members() {
        if !fields.iter().any(|field| field.name == name) {
            return Err(unknown("field", name, fields));
        }
    }
    match fields
        .iter()
        .find(|field| field.required && envelope.get(field.name).is_none())
    {
        None => Ok(()),
        Some(field) => Err(Problem::parameter(format!(
            "the field {:?} is missing",
            field.name
        ))),
    }
}

fn unknown(kind: &str, name: &str, known: &[Field]) -> Problem {
    let shown: String = name.chars().take(64).collect();
    let known: Vec<_> = known.iter().map(|field| field.name).collect();
    let known = if known.is_empty() {
        "none".to_owned()
    } else {
        known.join(", ")
    };
    Problem::new(
        Code::UnknownParameter,
        format!("unknown {kind} {shown:?}; known here: {known}"),
    )
    .with("parameter", shown)
}

/// Splits a query string; each known parameter may stand once.
fn parse_query(
    query: &str,
    known: &'static [Field],
) -> Result<Vec<(&'static str, String)>, Problem> {
    let mut pairs: Vec<(&'static str, String)> = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let decoded = |text| {
            percent::decode_form(text).ok_or_else(|| {
                Problem::parameter(format!("query: {text:?} is not percent-encoded UTF-8"))
            })
        };
        let name = decoded(name)?;
        let Some(field) = known.iter().find(|field| field.name == name) else {
            return Err(unknown("query parameter", &name, known));
        };
        if pairs.iter().any(|(given, _)| *given == field.name) {
            return Err(Problem::parameter(format!("{} is given twice", field.name)));
        }
        pairs.push((field.name, decoded(value)?.into_owned()));
    }
    match known
        .iter()
        .find(|field| field.required && pairs.iter().all(|(name, _)| *name != field.name))
    {
        None => Ok(pairs),
        Some(field) => Err(Problem::parameter(format!(
            "the query parameter {} is missing",
            field.name
        ))),
    }
}

/// An integer spelled in plain digits, without leading zeros.
pub(crate) fn decimal(text: &str) -> Option<u64> {
    let plain =
        text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    if plain { text.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should panic")]

    use super::*;
    use crate::table::Shape;

    const FIELDS: &[Field] = &[
        Field {
            name: "limit",
            shape: Shape::Limit,
            required: false,
            what: ".",
        },
        Field {
            name: "prefix",
            shape: Shape::Text,
            required: false,
            what: ".",
        },
    ];

    fn refusal(query: &str) -> (Code, String) {
        let problem = parse_query(query, FIELDS).unwrap_err();
        (problem.code(), problem.message().to_owned())
    }

    #[test]
    fn a_query_is_split_decoded_and_checked() {
        let pairs = parse_query("prefix=a%20b+c%2B&&limit=3&", FIELDS).unwrap();
        assert_eq!(
            pairs,
            [("prefix", "a b c+".to_owned()), ("limit", "3".to_owned())]
        );
        assert_eq!(
            refusal("colour=red"),
            (
                Code::UnknownParameter,
                "unknown query parameter \"colour\"; known here: limit, prefix".to_owned()
            )
        );
        assert_eq!(refusal("limit=1&limit=2").1, "limit is given twice");
        assert_eq!(refusal("prefix=%zz").0, Code::InvalidParameter);
        assert_eq!(refusal("prefix=%ff").0, Code::InvalidParameter);
    }

    #[test]
    fn integers_are_plain_digits() {
        assert_eq!(decimal("0"), Some(0));
        assert_eq!(decimal("18446744073709551615"), Some(u64::MAX));
        for text in [
            "",
            "-1",
            "+1",
            "01",
            "1.0",
            "1e3",
            " 1",
            "18446744073709551616",
            "٣",
        ] {
            assert_eq!(decimal(text), None, "{text:?}");
        }
    }
}
