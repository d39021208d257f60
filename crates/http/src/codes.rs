//! The one table of error codes: name, status and meaning.
//!
//! Every error answer takes its status from here; the `OpenAPI` document, the `/docs` page and the book's page on the
//! HTTP interface show the same rows, and a test compares them.

use hyper::StatusCode;

macro_rules! codes {
    ($($variant:ident $status:ident $text:literal $meaning:literal;)+) => {
        /// What went wrong, as a client's program sees it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Code {
            $(#[doc = $meaning] $variant,)+
        }

        impl Code {
            /// Every code, by rising status.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// The name in `error.code`.
            #[must_use]
            pub const fn text(self) -> &'static str {
                match self { $(Self::$variant => $text,)+ }
            }

            /// The status it is answered with.
            #[must_use]
            pub const fn status(self) -> StatusCode {
                match self { $(Self::$variant => StatusCode::$status,)+ }
            }

            /// What it tells, in one sentence.
            #[must_use]
            pub const fn meaning(self) -> &'static str {
                match self { $(Self::$variant => $meaning,)+ }
            }
        }
    };
}

codes! {
    InvalidJson BAD_REQUEST "INVALID_JSON"
        "The body, a line or a parameter is not I-JSON: RFC 8259 in UTF-8, no duplicate member names, no lone surrogates, at most 128 levels deep.";
    InvalidFilter BAD_REQUEST "INVALID_FILTER"
        "The filter is malformed; the message names the operator and its path.";
    InvalidKey BAD_REQUEST "INVALID_KEY"
        "The key is empty, longer than 400 bytes, holds a control character, or is not valid percent-encoded UTF-8.";
    InvalidName BAD_REQUEST "INVALID_NAME"
        "The name of an environment or type breaks the rules for names.";
    InvalidPatch BAD_REQUEST "INVALID_PATCH"
        "The patch is malformed or does not fit the document.";
    InvalidNumber BAD_REQUEST "INVALID_NUMBER"
        "A number is out of the range that can be stored or calculated with.";
    InvalidCursor BAD_REQUEST "INVALID_CURSOR"
        "The cursor was not handed out for this request, or was altered.";
    InvalidSchema BAD_REQUEST "INVALID_SCHEMA"
        "The schema is malformed or asks for what cannot be; `details.path` tells where.";
    InvalidIndex BAD_REQUEST "INVALID_INDEX"
        "The index definition is malformed, or records do not fit it.";
    InvalidParameter BAD_REQUEST "INVALID_PARAMETER"
        "A parameter, header or body field has a value that makes no sense here.";
    UnknownParameter BAD_REQUEST "UNKNOWN_PARAMETER"
        "A query parameter or body field that the route does not know; the message lists those it knows.";
    NotFound NOT_FOUND "NOT_FOUND"
        "No record has this key.";
    TypeNotRegistered NOT_FOUND "TYPE_NOT_REGISTERED"
        "The type does not exist; the message tells the request that registers it.";
    IndexNotRegistered NOT_FOUND "INDEX_NOT_REGISTERED"
        "The index does not exist, or is not ready to be used.";
    EnvNotFound NOT_FOUND "ENV_NOT_FOUND"
        "The environment does not exist.";
    RouteNotFound NOT_FOUND "ROUTE_NOT_FOUND"
        "No route has this path.";
    MethodNotAllowed METHOD_NOT_ALLOWED "METHOD_NOT_ALLOWED"
        "The path exists, but not for this method; the `allow` header lists those it has.";
    RequestTimeout REQUEST_TIMEOUT "REQUEST_TIMEOUT"
        "The request's body stopped coming.";
    AlreadyExists CONFLICT "ALREADY_EXISTS"
        "What was to be created exists.";
    UniqueConstraint CONFLICT "UNIQUE_CONSTRAINT"
        "Another record holds the same value in a unique index; `details` names the index and the other record.";
    ForeignKeyViolation CONFLICT "FOREIGN_KEY_VIOLATION"
        "A record that the value refers to does not exist; `details` names it and where it is referred to.";
    ForeignKeyRestricted CONFLICT "FOREIGN_KEY_RESTRICTED"
        "Another record refers to what is to be deleted; `details` names it.";
    ChangelogTruncated GONE "CHANGELOG_TRUNCATED"
        "The change log no longer reaches back to `after`; `details.oldest` is the smallest that can be served.";
    VersionMismatch PRECONDITION_FAILED "VERSION_MISMATCH"
        "A guard does not hold; `details.version` is the record's version now, or null if there is no record.";
    TooLarge PAYLOAD_TOO_LARGE "TOO_LARGE"
        "The body, a value or a transaction is over its limit.";
    UriTooLong URI_TOO_LONG "URI_TOO_LONG"
        "The request's path and query are over their limit.";
    UnsupportedMediaType UNSUPPORTED_MEDIA_TYPE "UNSUPPORTED_MEDIA_TYPE"
        "The body's content type is not one that the route reads.";
    SchemaViolation UNPROCESSABLE_ENTITY "SCHEMA_VIOLATION"
        "The value does not fit its type's schema; `details.violations` names every failing place.";
    HeadersTooLarge REQUEST_HEADER_FIELDS_TOO_LARGE "HEADERS_TOO_LARGE"
        "The request's headers are over their limit. Refused before there is a request, so the answer may be bare.";
    Internal INTERNAL_SERVER_ERROR "INTERNAL"
        "The server failed; its log tells why, under the answer's `x-request-id`.";
    ShuttingDown SERVICE_UNAVAILABLE "SHUTTING_DOWN"
        "This worker is going away; try again after `retry-after` seconds.";
    Overloaded SERVICE_UNAVAILABLE "OVERLOADED"
        "Too much is waiting already; try again after `retry-after` seconds.";
    StorageFull INSUFFICIENT_STORAGE "STORAGE_FULL"
        "The disk or the map is full; nothing was changed, deletes still work.";
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::Code;

    #[test]
    fn every_row_is_unique_ordered_and_an_error() {
        let mut texts = HashSet::new();
        let mut last = 0;
        for code in Code::ALL {
            assert!(texts.insert(code.text()), "{} stands twice", code.text());
            let status = code.status().as_u16();
            assert!((400..600).contains(&status), "{}", code.text());
            assert!(
                status >= last || status == 410 || status == 412,
                "{} is out of order",
                code.text()
            );
            assert!(code.meaning().ends_with('.'));
            last = status.max(last);
        }
    }
}
