//! Fields of a body that is a JSON object, each read as what it must be.

use okdb_query::{Envelope, Filter, FilterErrorKind, Select, Sort, Value};
use okdb_store::{IndexSpec, SchemaSpec, TTL_MS_MAX};

use crate::{
    codes::Code,
    problem::Problem,
    request::{Call, check_fields},
    table::{Field, Shape},
};

/// The page size where none is given.
pub(crate) const LIMIT_DEFAULT: usize = 50;
/// The largest page.
pub(crate) const LIMIT_MAX: usize = 1_000;

/// The fields of an index definition.
pub(crate) const INDEX_FIELDS: &[Field] = &[
    Field {
        name: "fields",
        shape: Shape::Component("Paths"),
        required: true,
        what: "Dotted paths, in index order.",
    },
    Field {
        name: "unique",
        shape: Shape::Flag,
        required: false,
        what: "Whether two records may not hold the same value; records that lack a field or hold null there are free.",
    },
    Field {
        name: "kind",
        shape: Shape::Component("IndexKind"),
        required: false,
        what: "`value`, the default.",
    },
];

/// A field as a value.
pub(crate) fn value<'e>(envelope: &'e Envelope, name: &str) -> Result<Option<Value<'e>>, Problem> {
    let text = envelope.get(name);
    text.map(|text| Value::parse(text).map_err(|error| Problem::json(name, &error)))
        .transpose()
}

/// A field that is a string.
pub(crate) fn text(envelope: &Envelope, name: &str) -> Result<Option<String>, Problem> {
    match value(envelope, name)? {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.into_owned())),
        Some(_) => Err(Problem::parameter(format!("{name} must be a string"))),
    }
}

/// A field that must be there and be a string.
pub(crate) fn required_text(envelope: &Envelope, name: &str) -> Result<String, Problem> {
    text(envelope, name)?
        .ok_or_else(|| Problem::parameter(format!("the field {name:?} is missing")))
}

/// A field that is true or false; false where it is not given.
pub(crate) fn flag(envelope: &Envelope, name: &str) -> Result<bool, Problem> {
    match value(envelope, name)? {
        None => Ok(false),
        Some(Value::Bool(flag)) => Ok(flag),
        Some(_) => Err(Problem::parameter(format!("{name} must be true or false"))),
    }
}

/// The cursor of a page; null, as answers give it, is the first page.
pub(crate) fn cursor(envelope: &Envelope) -> Result<Option<String>, Problem> {
    match value(envelope, "cursor")? {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.into_owned())),
        Some(_) => Err(Problem::parameter("cursor must be a string or null")),
    }
}

/// The page size in a body.
pub(crate) fn limit(envelope: &Envelope) -> Result<usize, Problem> {
    match envelope.get("limit") {
        None => Ok(LIMIT_DEFAULT),
        Some(text) => {
            let value = Value::parse(text).map_err(|error| Problem::json("limit", &error))?;
            let number = value.as_number().and_then(okdb_query::Number::to_u64);
            bounded_limit(number, text)
        }
    }
}

/// The page size in a query.
pub(crate) fn limit_in_query(call: &Call) -> Result<usize, Problem> {
    match call.parameter("limit") {
        None => Ok(LIMIT_DEFAULT),
        Some(text) => bounded_limit(crate::request::decimal(text), text),
    }
}

fn bounded_limit(number: Option<u64>, text: &str) -> Result<usize, Problem> {
    let limit = number.and_then(|number| usize::try_from(number).ok());
    limit
        .filter(|limit| (1..=LIMIT_MAX).contains(limit))
        .ok_or_else(|| {
            let shown: String = text.chars().take(64).collect();
            Problem::parameter(format!(
                "limit: {shown} is not an integer from 1 to {LIMIT_MAX}"
            ))
        })
}

/// The filter of a body and its compact text.
pub(crate) fn filter(envelope: &Envelope) -> Result<(Filter, String), Problem> {
    let text = envelope.get("filter").unwrap_or("{}");
    let value = Value::parse(text).map_err(|error| Problem::json("filter", &error))?;
    let filter = Filter::parse(&value).map_err(|error| {
        let code = match error.kind {
            FilterErrorKind::Invalid => Code::InvalidFilter,
            FilterErrorKind::Number => Code::InvalidNumber,
        };
        Problem::new(code, error.message)
    })?;
    Ok((filter, text.to_owned()))
}

/// The sort order of a body.
pub(crate) fn sort(envelope: &Envelope) -> Result<Sort, Problem> {
    match value(envelope, "sort")? {
        None => Ok(Sort::default()),
        Some(value) => {
            Sort::parse(&value).map_err(|error| Problem::parameter(format!("sort: {error}")))
        }
    }
}

/// The projection of a body.
pub(crate) fn select(envelope: &Envelope) -> Result<Option<Select>, Problem> {
    let select = value(envelope, "select")?.map(|value| Select::parse(&value));
    select
        .transpose()
        .map_err(|error| Problem::parameter(format!("select: {error}")))
}

/// The index definitions of a body, under `indexes`.
pub(crate) fn index_specs(envelope: &Envelope) -> Result<Vec<IndexSpec>, Problem> {
    let Some(value) = value(envelope, "indexes")? else {
        return Ok(Vec::new());
    };
    let Some(elements) = value.as_array() else {
        return Err(Problem::parameter(
            "indexes must be an array of index definitions",
        ));
    };
    let mut specs = Vec::with_capacity(elements.len());
    for element in elements {
        let text = element.to_json();
        let element =
            Envelope::parse(text.as_bytes()).map_err(|error| Problem::json("indexes", &error))?;
        check_fields(&element, INDEX_FIELDS)?;
        specs.push(index_spec(&element)?);
    }
    Ok(specs)
}

/// One index definition.
pub(crate) fn index_spec(envelope: &Envelope) -> Result<IndexSpec, Problem> {
    let wrong = || {
        Problem::new(
            Code::InvalidIndex,
            "fields must be an array of at least one dotted path",
        )
    };
    let kind = text(envelope, "kind")?;
    if let Some(kind) = kind.filter(|kind| kind != "value") {
        return Err(Problem::new(
            Code::InvalidIndex,
            format!("index kind {kind:?} is not known; known: value"),
        ));
    }
    let fields = value(envelope, "fields")?.ok_or_else(wrong)?;
    let fields = fields
        .as_array()
        .filter(|fields| !fields.is_empty())
        .ok_or_else(wrong)?;
    let fields = fields
        .iter()
        .map(|field| field.as_str().map(str::to_owned).ok_or_else(wrong));
    Ok(IndexSpec {
        fields: fields.collect::<Result<_, _>>()?,
        unique: flag(envelope, "unique")?,
    })
}

/// How long a record shall live, in ms.
pub(crate) const TTL: Field = Field {
    name: "ttl",
    shape: Shape::Integer,
    required: false,
    what: "In how many milliseconds from now the record expires, at most a hundred years. Without it, a record that is replaced keeps its expiry.",
};

/// The time to live of a body, in ms.
pub(crate) fn ttl(envelope: &Envelope) -> Result<Option<u64>, Problem> {
    let Some(text) = envelope.get("ttl") else {
        return Ok(None);
    };
    let value = Value::parse(text).map_err(|error| Problem::json("ttl", &error))?;
    let number = value.as_number().and_then(okdb_query::Number::to_u64);
    let ttl = number.filter(|ttl| (1..=TTL_MS_MAX).contains(ttl));
    ttl.map(Some).ok_or_else(|| {
        let shown: String = text.chars().take(64).collect();
        Problem::parameter(format!(
            "ttl: {shown} is not an integer from 1 to {TTL_MS_MAX} (a hundred years in ms)"
        ))
    })
}

/// The fields of a schema, under `schema` and `enforce`.
pub(crate) const SCHEMA: Field = Field {
    name: "schema",
    shape: Shape::Component("Schema"),
    required: false,
    what: "A JSON Schema (2020-12) that values must fit, with `ref` annotations.",
};
/// Whether a schema is enforced.
pub(crate) const ENFORCE: Field = Field {
    name: "enforce",
    shape: Shape::Flag,
    required: false,
    what: "Whether values that do not fit are refused, the default; else they are recorded as violations.",
};

/// The schema of a body.
pub(crate) fn schema_spec(envelope: &Envelope) -> Result<Option<SchemaSpec>, Problem> {
    let enforce = match envelope.get("enforce") {
        None => true,
        Some(_) => flag(envelope, "enforce")?,
    };
    match envelope.get("schema") {
        Some(text) => Ok(Some(SchemaSpec {
            text: text.to_owned(),
            enforce,
        })),
        None if envelope.get("enforce").is_some() => Err(Problem::parameter(
            "enforce says how to take a schema: give both",
        )),
        None => Ok(None),
    }
}

/// The elements of a compact JSON array as text; `None` if it is no array.
///
/// The text has been checked, so that only strings and nesting need to be told apart from commas.
pub(crate) fn elements(compact: &str) -> Option<Vec<&str>> {
    let inner = compact.strip_prefix('[')?.strip_suffix(']')?;
    let mut elements = Vec::new();
    let (mut start, mut depth, mut in_string, mut escaped) = (0, 0_usize, false, false);
    for (place, byte) in inner.bytes().enumerate() {
        if in_string {
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => in_string = false,
                _ => {}
            }
            continue;
        }
        match byte {
            b'"' => in_string = true,
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth = depth.saturating_sub(1),
            b',' if depth == 0 => {
                elements.push(inner.get(start..place)?);
                start = place + 1;
            }
            _ => {}
        }
    }
    if !inner.is_empty() {
        elements.push(inner.get(start..)?);
    }
    Some(elements)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should panic")]

    use okdb_query::Value;
    use proptest::prelude::*;

    use super::elements;

    #[test]
    fn arrays_are_split_at_their_own_commas() {
        assert_eq!(elements("[]").unwrap(), Vec::<&str>::new());
        assert_eq!(elements("[1]").unwrap(), ["1"]);
        let text = r#"[{"a":[1,2],"b":"],"},"x\",\\",[],null]"#;
        assert_eq!(
            elements(text).unwrap(),
            [r#"{"a":[1,2],"b":"],"}"#, r#""x\",\\""#, "[]", "null"]
        );
        assert_eq!(elements("{}"), None);
    }

    proptest! {
        #[test]
        fn splitting_keeps_every_element(texts in proptest::collection::vec(any::<String>(), 0..6)) {
            let written: Vec<_> = texts
                .iter()
                .map(|text| Value::Array(vec![Value::String(text.as_str().into()), Value::Null]).to_json())
                .collect();
            let array = format!("[{}]", written.join(","));
            prop_assert_eq!(elements(&array).unwrap(), written);
        }
    }
}
