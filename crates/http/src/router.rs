//! From method and path to a row of the route table.
//!
//! A path is split at its slashes and nothing is normalised: `//`, `.` and `..` are segments like any other, and a
//! segment is percent-decoded only when a handler asks for it. Where a literal and a capture both fit, the literal wins
//! if it has the method; so `query` is a route for POST and a key for GET.

use hyper::Method;

use crate::{
    codes::Code,
    problem::Problem,
    table::{self, Route, Verb},
};

/// The most segments that a path of the table has.
const SEGMENTS_MAX: usize = 8;

/// Where the captured segments of a path lie in it, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Captures {
    spans: [(u32, u32); 3],
}

impl Captures {
    /// The raw text of the capture at this place of the pattern, counted from 0.
    pub(crate) fn get<'p>(&self, path: &'p str, place: usize) -> &'p str {
        self.spans
            .get(place)
            .and_then(|&(start, end)| path.get(start as usize..end as usize))
            .unwrap_or_default()
    }
}

/// The table, arranged for look-up.
pub(crate) struct Router {
    /// By number of segments.
    patterns: [Vec<Pattern>; SEGMENTS_MAX + 1],
}

/// All routes of one path.
struct Pattern {
    /// `None` is a capture.
    segments: Vec<Option<&'static str>>,
    /// Where `{env}` is, if the pattern has it: words of the API do not name environments.
    env: Option<usize>,
    routes: Vec<&'static Route>,
}

/// First segments under `/api` that are routes, so that no environment has their name.
const SYSTEM_WORDS: [&str; 10] = [
    "info",
    "envs",
    "auth",
    "audit",
    "cluster",
    "processes",
    "processing",
    "processors",
    "events",
    "openapi.json",
];

impl Pattern {
    fn matches(&self, segments: &[&str]) -> bool {
        let mut pairs = self.segments.iter().zip(segments);
        pairs.all(|(pattern, segment)| pattern.is_none_or(|literal| literal == *segment))
            && self.env.is_none_or(|at| {
                segments
                    .get(at)
                    .is_none_or(|env| !SYSTEM_WORDS.contains(env))
            })
    }

    /// The route of a method; HEAD is served by GET's.
    fn route(&self, verb: Verb) -> Option<&'static Route> {
        self.routes.iter().copied().find(|route| route.verb == verb)
    }
}

impl Router {
    /// Arranges the table.
    pub(crate) fn new() -> Self {
        let mut patterns: [Vec<Pattern>; SEGMENTS_MAX + 1] = Default::default();
        for route in table::routes() {
            let segments: Vec<_> = route.segments().collect();
            let Some(row) = patterns.get_mut(segments.len()) else {
                continue;
            };
            if let Some(known) = row.iter_mut().find(|pattern| pattern.segments == segments) {
                known.routes.push(route);
            } else {
                let env = route
                    .path
                    .split('/')
                    .skip(1)
                    .position(|segment| segment == "{env}");
                row.push(Pattern {
                    segments,
                    env,
                    routes: vec![route],
                });
            }
        }
        for row in &mut patterns {
            // Literals first, from the left: the more a pattern says, the earlier it is asked.
            row.sort_by_key(|pattern| {
                pattern
                    .segments
                    .iter()
                    .map(Option::is_none)
                    .collect::<Vec<_>>()
            });
        }
        Self { patterns }
    }

    /// Finds the route of a request.
    ///
    /// # Errors
    /// `ROUTE_NOT_FOUND`, or `METHOD_NOT_ALLOWED` with the methods that the path has.
    pub(crate) fn find(
        &self,
        method: &Method,
        path: &str,
    ) -> Result<(&'static Route, Captures), Problem> {
        let missing = || {
            Problem::new(
                Code::RouteNotFound,
                "no route has this path; GET /docs shows all",
            )
        };
        let rest = path.strip_prefix('/').ok_or_else(missing)?;
        let mut segments = [""; SEGMENTS_MAX];
        let mut count = 0;
        for segment in rest.split('/') {
            *segments.get_mut(count).ok_or_else(missing)? = segment;
            count += 1;
        }
        let segments = segments.get(..count).unwrap_or_default();
        let fitting = || {
            let row = self.patterns.get(count).map_or(&[][..], Vec::as_slice);
            row.iter().filter(|pattern| pattern.matches(segments))
        };
        if let Some(verb) = Verb::of(method)
            && let Some((pattern, route)) =
                fitting().find_map(|pattern| Some((pattern, pattern.route(verb)?)))
        {
            return Ok((route, captures(pattern, segments)));
        }
        let mut allowed: Vec<&str> = fitting()
            .flat_map(|pattern| &pattern.routes)
            .flat_map(|route| route.verb.methods())
            .copied()
            .collect();
        if allowed.is_empty() {
            return Err(missing());
        }
        allowed.sort_unstable();
        allowed.dedup();
        Err(Problem::method(&allowed.join(", ")))
    }
}

fn captures(pattern: &Pattern, segments: &[&str]) -> Captures {
    let mut captures = Captures::default();
    let mut spans = captures.spans.iter_mut();
    // Past the leading slash. The head is bounded far below 4 GiB, so the casts keep their value.
    let mut start = 1_u32;
    for (pattern, segment) in pattern.segments.iter().zip(segments) {
        let end = start.saturating_add(u32::try_from(segment.len()).unwrap_or(u32::MAX));
        if pattern.is_none()
            && let Some(span) = spans.next()
        {
            *span = (start, end);
        }
        start = end.saturating_add(1);
    }
    captures
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should panic")]

    use super::*;

    fn find(method: &str, path: &str) -> Result<(&'static str, [String; 3]), (Code, String)> {
        let router = Router::new();
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        match router.find(&method, path) {
            Ok((route, captures)) => Ok((
                route.path,
                [0, 1, 2].map(|place| captures.get(path, place).to_owned()),
            )),
            Err(problem) => Err((problem.code(), problem.message().to_owned())),
        }
    }

    fn route(method: &str, path: &str) -> &'static str {
        find(method, path).unwrap().0
    }

    #[test]
    fn every_route_is_found_by_its_own_path() {
        for wanted in table::routes() {
            assert!(wanted.segments().count() <= SEGMENTS_MAX);
            assert!(wanted.segments().filter(Option::is_none).count() <= 3);
            let path = wanted.path.replace('{', "a-").replace('}', "");
            for method in wanted.verb.methods() {
                assert_eq!(route(method, &path), wanted.path, "{method} {path}");
            }
        }
    }

    #[test]
    fn fixed_segments_are_keys_where_the_route_has_another_method() {
        let key = "/api/{env}/types/{type}/{key}";
        for word in ["query", "count"] {
            let path = format!("/api/default/types/t/{word}");
            for method in ["GET", "HEAD", "PUT", "PATCH", "DELETE"] {
                let (found, captures) = find(method, &path).unwrap();
                assert_eq!((found, captures[2].as_str()), (key, word));
            }
            assert_eq!(
                route("POST", &path),
                format!("/api/{{env}}/types/{{type}}/{word}")
            );
        }
        assert_eq!(
            find("POST", "/api/e/types/t/k").unwrap_err().0,
            Code::MethodNotAllowed
        );
    }

    #[test]
    fn nothing_is_normalised() {
        let (_, captures) = find("GET", "/api/e/types/t/a%2Fb").unwrap();
        assert_eq!(captures, ["e", "t", "a%2Fb"]);
        let (_, captures) = find("GET", "/api/e/types/t/..").unwrap();
        assert_eq!(captures[2], "..");
        let (_, captures) = find("GET", "/api/e/types/t/").unwrap();
        assert_eq!(captures[2], "");
        for path in [
            "",
            "*",
            "api/info",
            "//api/info",
            "/api//info",
            "/API/info",
            "/api/info/",
        ] {
            assert_eq!(
                find("GET", path).unwrap_err().0,
                Code::RouteNotFound,
                "{path:?}"
            );
        }
        let deep = "/a".repeat(4000);
        assert_eq!(find("GET", &deep).unwrap_err().0, Code::RouteNotFound);
    }

    #[test]
    fn words_of_the_api_are_no_environments() {
        for word in SYSTEM_WORDS {
            let code = find("GET", &format!("/api/{word}/export/t")).unwrap_err().0;
            assert_eq!(code, Code::RouteNotFound, "{word}");
            assert!(
                okdb_store::check_env_name(word).is_err(),
                "{word} must not name an environment"
            );
        }
        assert_eq!(route("GET", "/api/envs/types"), "/api/envs/{env}");
    }

    #[test]
    fn a_wrong_method_names_the_right_ones() {
        let (code, message) = find("DELETE", "/healthz").unwrap_err();
        assert_eq!(code, Code::MethodNotAllowed);
        assert_eq!(message, "this path allows GET, HEAD");
        let (_, message) = find("OPTIONS", "/api/e/types/t/query").unwrap_err();
        assert_eq!(
            message,
            "this path allows DELETE, GET, HEAD, PATCH, POST, PUT"
        );
        let (_, message) = find("BREW", "/api/e/types").unwrap_err();
        assert_eq!(message, "this path allows GET, HEAD, POST");
    }
}
