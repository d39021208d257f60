//! The `/docs` page: the route table and the codes as one page of HTML, without outside assets.

use std::fmt::Write as _;

use crate::{
    codes::Code,
    schemas,
    table::{self, BodySpec, Content, Field, Group, Route, Shape},
};

/// What the page may load: nothing but itself.
pub(crate) const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const STYLE: &str = include_str!("docs_page.css");
const SCRIPT: &str = include_str!("docs_page.js");

/// The page, for this version of the program.
pub(crate) fn page(version: &str) -> String {
    let mut out = Page(String::with_capacity(64 * 1024));
    out.raw("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">");
    out.raw("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">");
    out.raw("<title>okdb HTTP API</title><style>")
        .raw(STYLE)
        .raw("</style></head><body>");
    navigation(&mut out, version);
    out.raw("<main>");
    introduction(&mut out);
    for group in Group::ALL {
        out.raw("<section><h2 id=\"")
            .text(&anchor(group.title()))
            .raw("\">")
            .text(group.title())
            .raw("</h2>");
        for route in table::routes().filter(|route| route.group == group) {
            section(&mut out, route);
        }
        out.raw("</section>");
    }
    shapes(&mut out);
    codes(&mut out);
    out.raw("</main><script>")
        .raw(SCRIPT)
        .raw("</script></body></html>\n");
    out.0
}

/// HTML under construction.
struct Page(String);

impl Page {
    /// Appends HTML of ours.
    fn raw(&mut self, html: &str) -> &mut Self {
        self.0.push_str(html);
        self
    }

    /// Appends text.
    fn text(&mut self, text: &str) -> &mut Self {
        for letter in text.chars() {
            match letter {
                '&' => self.0.push_str("&amp;"),
                '<' => self.0.push_str("&lt;"),
                '>' => self.0.push_str("&gt;"),
                '"' => self.0.push_str("&quot;"),
                other => self.0.push(other),
            }
        }
        self
    }

    /// Appends prose in which backquotes mark code.
    fn prose(&mut self, text: &str) -> &mut Self {
        for (place, part) in text.split('`').enumerate() {
            if place % 2 == 1 {
                self.raw("<code>").text(part).raw("</code>");
            } else {
                self.text(part);
            }
        }
        self
    }
}

fn anchor(text: &str) -> String {
    text.to_lowercase().replace(' ', "-")
}

fn navigation(out: &mut Page, version: &str) {
    out.raw("<nav><h1>okdb <small>")
        .text(version)
        .raw("</small></h1>");
    out.raw("<input id=\"find\" type=\"search\" placeholder=\"Filter routes\" aria-label=\"Filter routes\"><ul>");
    for title in Group::ALL
        .map(Group::title)
        .into_iter()
        .chain(["Shapes", "Errors"])
    {
        out.raw("<li><a href=\"#")
            .text(&anchor(title))
            .raw("\">")
            .text(title)
            .raw("</a></li>");
    }
    out.raw("</ul><p><a href=\"/api/openapi.json\">openapi.json</a></p></nav>");
}

fn introduction(out: &mut Page) {
    out.raw("<section><p>").prose(
        "JSON in and out, as I-JSON in UTF-8, over HTTP/1.1 and cleartext HTTP/2. Numbers come back as they were written. Every answer names the worker that made it in `okdb-worker`; errors are `{\"error\":{\"code\",\"message\",\"details\"}}` with an `x-request-id`.",
    );
    out.raw("</p><p>").prose(
        "A record's `version` is the clock of its last write and its `ETag`. Guards: `ifVersion: n` or `If-Match: \"n\"` ask for that version, `ifVersion: null` or `If-None-Match: *` for no record; where both are given both must hold.",
    );
    out.raw("</p><p>").prose(
        "Pages hold `cursor`, a string or null: pass it back with the same other parameters. `start` and `end` are inclusive, and always lower and upper bound. Times are milliseconds since 1970.",
    );
    out.raw("</p></section>");
}

fn section(out: &mut Page, route: &Route) {
    let verb = route.verb.name();
    out.raw("<details class=\"route\"><summary><b class=\"verb ")
        .text(&verb.to_lowercase())
        .raw("\">")
        .text(verb);
    out.raw("</b> <code>")
        .text(route.path)
        .raw("</code> <span>")
        .text(route.summary)
        .raw("</span></summary>");
    if !route.detail.is_empty() {
        out.raw("<p>").prose(route.detail).raw("</p>");
    }
    fields(out, "Query", route.query);
    match route.body {
        BodySpec::None => {}
        BodySpec::Fields(list)
        | BodySpec::OptionalFields(list)
        | BodySpec::Patch(list)
        | BodySpec::Operations(list) => fields(out, "Body", list),
        BodySpec::Lines => {
            out.raw("<h3>Body</h3><p>")
                .prose("`application/x-ndjson`: a JSON object a line.")
                .raw("</p>");
        }
    }
    if route.guarded {
        out.raw("<p>")
            .prose("Honours `If-Match: \"n\"` and `If-None-Match: *`.")
            .raw("</p>");
    }
    out.raw("<h3>Answers</h3><table><tbody>");
    for answer in route.answers {
        out.raw("<tr><td>")
            .text(&answer.status.to_string())
            .raw("</td><td>")
            .prose(answer.what)
            .raw("</td><td>");
        if let Content::Json(name) | Content::Lines(name) = answer.content {
            shape(out, name);
        }
        out.raw("</td></tr>");
    }
    out.raw("</tbody></table><p class=\"codes\">Errors: ");
    for code in route.refusals() {
        out.raw("<a href=\"#")
            .text(code.text())
            .raw("\">")
            .text(code.text())
            .raw("</a> ");
    }
    out.raw("</p></details>");
}

fn fields(out: &mut Page, title: &str, fields: &[Field]) {
    if fields.is_empty() {
        return;
    }
    out.raw("<h3>").text(title).raw("</h3><table><tbody>");
    for field in fields {
        out.raw("<tr><td><code>").text(field.name).raw("</code>");
        if field.required {
            out.raw(" <em>required</em>");
        }
        out.raw("</td><td>");
        match field.shape {
            Shape::Text => out.text("string"),
            Shape::Integer => out.text("integer"),
            Shape::Limit => out.text("1 to 1000"),
            Shape::Flag => out.text("true or false"),
            Shape::Any => out.text("any JSON"),
            Shape::Version => out.text("integer or null"),
            Shape::ArrayText => out.text("JSON array"),
            Shape::Component(name) => shape(out, name),
        };
        out.raw("</td><td>").prose(field.what).raw("</td></tr>");
    }
    out.raw("</tbody></table>");
}

/// Every component of the machine-readable document, which the tables above name.
fn shapes(out: &mut Page) {
    out.raw("<section><h2 id=\"shapes\">Shapes</h2>");
    for (name, schema) in schemas::all() {
        out.raw("<details class=\"route\" id=\"shape-")
            .text(name)
            .raw("\"><summary><code>")
            .text(name)
            .raw("</code></summary><pre>")
            .text(&format!("{schema:#}"))
            .raw("</pre></details>");
    }
    out.raw("</section>");
}

/// A shape's name, as a link to it.
fn shape<'p>(out: &'p mut Page, name: &str) -> &'p mut Page {
    out.raw("<a href=\"#shape-")
        .text(name)
        .raw("\"><code>")
        .text(name)
        .raw("</code></a>")
}

fn codes(out: &mut Page) {
    out.raw("<section><h2 id=\"errors\">Errors</h2><table><tbody>");
    for code in Code::ALL {
        // A buffer of ours: writing to it does not fail.
        let _ = write!(
            out.0,
            "<tr id=\"{0}\"><td>{1}</td><td><code>{0}</code></td><td>",
            code.text(),
            code.status().as_u16()
        );
        out.prose(code.meaning()).raw("</td></tr>");
    }
    out.raw("</tbody></table></section>");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_shows_every_route_and_code_and_loads_nothing() {
        let page = page("1.2.3");
        for route in table::routes() {
            assert!(page.contains(&format!(
                "<code>{}</code> <span>{}",
                route.path, route.summary
            )));
        }
        for code in Code::ALL {
            assert!(page.contains(&format!("<tr id=\"{}\">", code.text())));
        }
        for (name, _) in schemas::all() {
            assert!(page.contains(&format!("<details class=\"route\" id=\"shape-{name}\">")));
        }
        for outside in ["http://", "https://", "url(", "@import", " src=", "<link"] {
            assert!(!page.contains(outside), "{outside}");
        }
    }

    #[test]
    fn text_is_escaped() {
        let mut page = Page(String::new());
        page.prose("a<b & `\"c\">`");
        assert_eq!(page.0, "a&lt;b &amp; <code>&quot;c&quot;&gt;</code>");
    }
}
