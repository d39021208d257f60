//! Several operations that apply wholly or not at all.

use hyper::{Response, StatusCode};
use okdb_query::{Envelope, Patch, Value};
use okdb_store::{Action, Guard, Operation, Outcome, TRANSACTION_OPERATIONS_MAX, Write};

use super::records;
use crate::{
    answer,
    body::Body,
    codes::Code,
    fields::{self, TTL},
    guard,
    problem::Problem,
    request::{Call, Media, check_fields, check_writable_type},
    table::{Answer, BodySpec, Content, Field, Group, Handler, Route, Shape, Verb},
};

const FIELDS: &[Field] = &[Field {
    name: "operations",
    shape: Shape::Component("Operations"),
    required: true,
    what: "What to do, in order; at most 10,000.",
}];

pub(super) const ROUTES: &[Route] = &[Route {
    verb: Verb::Post,
    path: "/api/{env}/transaction",
    group: Group::Records,
    summary: "Change several records, all or none",
    detail: "The body may also be the bare array of operations. An error names `details.operation`, counted from 0; nothing has changed then.",
    query: &[],
    body: BodySpec::Operations(FIELDS),
    guarded: false,
    answers: &[Answer {
        status: 200,
        what: "All of it was done; `results` are in the order of the operations.",
        content: Content::Json("Transacted"),
    }],
    codes: &[
        records::WRITE,
        &[
            Code::TypeNotRegistered,
            Code::NotFound,
            Code::AlreadyExists,
            Code::VersionMismatch,
            Code::InvalidPatch,
            Code::ForeignKeyRestricted,
        ],
    ],
    handler: Handler::Later(|call| Box::pin(transact(call))),
}];

const ACTION: Field = Field {
    name: "action",
    shape: Shape::Text,
    required: true,
    what: "What to do.",
};
const TYPE: Field = Field {
    name: "type",
    shape: Shape::Text,
    required: true,
    what: "The type.",
};
const KEY: Field = Field {
    name: "key",
    shape: Shape::Text,
    required: true,
    what: "The key.",
};
const IF_VERSION: Field = Field {
    name: "ifVersion",
    shape: Shape::Version,
    required: false,
    what: "The guard.",
};
const VALUE: Field = Field {
    name: "value",
    shape: Shape::Any,
    required: true,
    what: "The document.",
};
const PATCH: Field = Field {
    name: "patch",
    shape: Shape::Component("PatchDocument"),
    required: true,
    what: "What to change.",
};

async fn transact(mut call: Call) -> Result<Response<Body>, Problem> {
    guard::none_in_headers(&call)?;
    let env = call.env()?;
    call.media(&[(Media::Json, "application/json")])?;
    let bytes = call.bytes().await?;
    let operations = call.off_loop_if_large(bytes, parse).await?;
    let (clock, results) = match env.submit(Write::Transaction(operations)).await? {
        Outcome::Transaction { clock, results } => (clock, results),
        other => {
            return Err(Problem::internal(&format!(
                "a transaction was answered with {other:?}"
            )));
        }
    };
    let mut text = format!("{{\"clock\":{clock},\"results\":[");
    for (place, written) in results.iter().enumerate() {
        if place > 0 {
            text.push(',');
        }
        answer::write_written(written, &mut text);
    }
    text.push_str("]}");
    Ok(answer::json(StatusCode::OK, text))
}

/// Reads a body: an object with `operations`, or a bare array.
fn parse(bytes: &[u8]) -> Result<Vec<Operation>, Problem> {
    let wrong = |error| Problem::json("body", &error);
    if bytes.trim_ascii_start().first() == Some(&b'[') {
        let mut text = String::with_capacity(bytes.len());
        okdb_query::compact(bytes, &mut text).map_err(wrong)?;
        operations(&text)
    } else {
        let envelope = Envelope::parse(bytes).map_err(wrong)?;
        check_fields(&envelope, FIELDS)?;
        operations(envelope.get("operations").unwrap_or_default())
    }
}

fn operations(text: &str) -> Result<Vec<Operation>, Problem> {
    let elements =
        fields::elements(text).ok_or_else(|| Problem::parameter("operations must be an array"))?;
    if elements.len() > TRANSACTION_OPERATIONS_MAX {
        return Err(Problem::new(
            Code::TooLarge,
            format!("a transaction has at most {TRANSACTION_OPERATIONS_MAX} operations"),
        )
        .with("limit", TRANSACTION_OPERATIONS_MAX));
    }
    let operations = elements.iter().enumerate();
    operations
        .map(|(index, text)| operation(text).map_err(|problem| problem.in_operation(index)))
        .collect()
}

fn operation(text: &str) -> Result<Operation, Problem> {
    let envelope =
        Envelope::parse(text.as_bytes()).map_err(|error| Problem::json("operation", &error))?;
    let known = |own: &[Field]| {
        let mut known = vec![ACTION, TYPE, KEY, IF_VERSION];
        known.extend_from_slice(own);
        check_fields(&envelope, &known)
    };
    let value = || envelope.get("value").unwrap_or_default().to_owned();
    let mut ttl = fields::ttl(&envelope)?;
    let action = match fields::required_text(&envelope, "action")?.as_str() {
        "put" => {
            known(&[VALUE, TTL])?;
            Action::Put(value())
        }
        "create" => {
            known(&[VALUE, TTL])?;
            Action::Create(value())
        }
        "update" => {
            known(&[VALUE, TTL])?;
            Action::Update(value())
        }
        "patch" => {
            known(&[PATCH])?;
            let document = fields::value(&envelope, "patch")?.unwrap_or(Value::Null);
            Action::Patch(Patch::parse_document(&document)?)
        }
        "remove" => {
            known(&[])?;
            Action::Remove
        }
        "setTtl" => {
            known(&[TTL])?;
            let missing = || Problem::parameter("the field \"ttl\" is missing");
            Action::SetTtl(ttl.take().ok_or_else(missing)?)
        }
        "clearTtl" => {
            known(&[])?;
            Action::ClearTtl
        }
        other => {
            let shown: String = other.chars().take(64).collect();
            return Err(Problem::parameter(format!(
                "action {shown:?} is none of put, create, update, patch, remove, setTtl, clearTtl"
            )));
        }
    };
    let type_name = fields::required_text(&envelope, "type")?;
    check_writable_type(&type_name)?;
    Ok(Operation {
        type_name,
        key: fields::required_text(&envelope, "key")?,
        guard: Guard {
            version: guard::in_body(&envelope)?,
            header: None,
        },
        ttl,
        action,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should panic")]

    use super::*;

    #[test]
    fn both_forms_are_read_and_values_keep_their_spelling() {
        let list = r#"[{"action":"put","type":"t","key":"k","value":{"a":[1.0,"A"]},"ifVersion":null},
            {"action":"remove","type":"t","key":"x"}]"#;
        for body in [list.to_owned(), format!(" {{ \"operations\" : {list} }}")] {
            let operations = parse(body.as_bytes()).unwrap();
            assert_eq!(operations.len(), 2);
            assert!(
                matches!(&operations[0].action, Action::Put(text) if text == r#"{"a":[1.0,"A"]}"#)
            );
            assert_eq!(
                operations[0].guard.version,
                Some(okdb_store::Expect::Absent)
            );
        }
    }

    #[test]
    fn a_bad_operation_is_named() {
        let refusal = |bad: &str| {
            let body = format!("[{{\"action\":\"remove\",\"type\":\"t\",\"key\":\"k\"}},{bad}]");
            let problem = parse(body.as_bytes()).unwrap_err();
            assert!(
                problem.message().starts_with("operation 1: "),
                "{}",
                problem.message()
            );
            problem.code()
        };
        assert_eq!(refusal("1"), Code::InvalidJson);
        assert_eq!(refusal("{}"), Code::InvalidParameter);
        assert_eq!(
            refusal(r#"{"action":"enqueue","jobType":"x"}"#),
            Code::InvalidParameter
        );
        assert_eq!(
            refusal(r#"{"action":"put","type":"t","key":"k"}"#),
            Code::InvalidParameter
        );
        assert_eq!(
            refusal(r#"{"action":"put","type":"~t","key":"k","value":1}"#),
            Code::InvalidName
        );
        assert_eq!(
            refusal(r#"{"action":"put","type":"t","key":1,"value":1}"#),
            Code::InvalidParameter
        );
        assert_eq!(
            refusal(r#"{"action":"put","type":"t","key":"k","value":1,"ttl":0}"#),
            Code::InvalidParameter
        );
        assert_eq!(
            refusal(r#"{"action":"setTtl","type":"t","key":"k"}"#),
            Code::InvalidParameter
        );
        assert_eq!(
            refusal(r#"{"action":"clearTtl","type":"t","key":"k","ttl":5}"#),
            Code::UnknownParameter
        );
        assert_eq!(
            refusal(r#"{"action":"put","type":"t","key":"k","value":1,"other":5}"#),
            Code::UnknownParameter
        );
        assert_eq!(
            refusal(r#"{"action":"patch","type":"t","key":"k","patch":3}"#),
            Code::InvalidPatch
        );
        assert_eq!(
            parse(b"{\"operations\":{}}").unwrap_err().code(),
            Code::InvalidParameter
        );
        assert_eq!(parse(b"3").unwrap_err().code(), Code::InvalidJson);
        let many = format!("[{}1]", "1,".repeat(TRANSACTION_OPERATIONS_MAX));
        assert_eq!(parse(many.as_bytes()).unwrap_err().code(), Code::TooLarge);
    }
}
