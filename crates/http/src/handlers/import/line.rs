//! What one line of an import asks for.

use okdb_query::{Envelope, Value};
use okdb_store::{Action, Guard, Operation};

use super::lines::Chunk;
use crate::{
    codes::Code,
    fields,
    problem::Problem,
    request::check_fields,
    table::{Field, Shape},
};

const LINE_FIELDS: &[Field] = &[
    Field {
        name: "key",
        shape: Shape::Text,
        required: true,
        what: "The key.",
    },
    Field {
        name: "value",
        shape: Shape::Any,
        required: true,
        what: "The document.",
    },
];

/// How lines become operations.
#[derive(Clone)]
pub(super) struct Form {
    pub(super) type_name: String,
    pub(super) key_field: Option<String>,
}

/// A chunk as operations, with the line of each, and the lines that are none.
pub(super) struct Parsed {
    pub(super) operations: Vec<Operation>,
    pub(super) lines: Vec<u64>,
    pub(super) failed: Vec<(u64, Problem)>,
}

impl Form {
    pub(super) fn parse(&self, chunk: &Chunk) -> Parsed {
        let mut parsed = Parsed {
            operations: Vec::new(),
            lines: Vec::new(),
            failed: Vec::new(),
        };
        if chunk.too_long {
            let problem = Problem::new(Code::TooLarge, "the line is longer than a record may be");
            parsed.failed.push((chunk.first_line, problem));
            return parsed;
        }
        let mut lines = chunk.bytes.as_ref();
        let mut number = chunk.first_line;
        while !lines.is_empty() {
            let end = lines
                .iter()
                .position(|byte| *byte == b'\n')
                .unwrap_or(lines.len());
            let (line, rest) = lines.split_at_checked(end).unwrap_or((lines, &[]));
            lines = rest.get(1..).unwrap_or_default();
            if !line.trim_ascii().is_empty() {
                match self.operation(line) {
                    Ok(operation) => {
                        parsed.operations.push(operation);
                        parsed.lines.push(number);
                    }
                    Err(problem) => parsed.failed.push((number, problem)),
                }
            }
            number += 1;
        }
        parsed
    }

    fn operation(&self, line: &[u8]) -> Result<Operation, Problem> {
        let (key, value) = match &self.key_field {
            None => {
                let envelope =
                    Envelope::parse(line).map_err(|error| Problem::json("line", &error))?;
                check_fields(&envelope, LINE_FIELDS)?;
                let value = envelope.get("value").unwrap_or_default().to_owned();
                (fields::required_text(&envelope, "key")?, value)
            }
            Some(field) => bare(line, field)?,
        };
        okdb_store::check_key(&key)?;
        Ok(Operation {
            type_name: self.type_name.clone(),
            key,
            guard: Guard::default(),
            ttl: None,
            action: Action::Put(value),
        })
    }
}

/// Why a line of an import was not taken, or what the store said of it.
#[derive(Clone, Debug)]
pub struct LineRefused {
    /// The code, as an import over HTTP reports it.
    pub code: Code,
    /// For people.
    pub message: String,
}

impl From<okdb_store::Error> for LineRefused {
    fn from(error: okdb_store::Error) -> Self {
        Problem::from(error).into()
    }
}

impl From<Problem> for LineRefused {
    fn from(problem: Problem) -> Self {
        Self {
            code: problem.code(),
            message: problem.message().to_owned(),
        }
    }
}

/// What one line of an import asks for; `None` for a blank one. `key_field` names the field of a bare document that holds
/// its key. For programs that import without a server, with the very rules of one.
///
/// # Errors
/// [`LineRefused`], with the code that a server would report.
pub fn import_line(
    type_name: &str,
    line: &[u8],
    key_field: Option<&str>,
) -> Result<Option<Operation>, LineRefused> {
    if line.trim_ascii().is_empty() {
        return Ok(None);
    }
    let form = Form {
        type_name: type_name.to_owned(),
        key_field: key_field.map(str::to_owned),
    };
    Ok(Some(form.operation(line)?))
}

/// A bare document and the key that is in its field.
fn bare(line: &[u8], field: &str) -> Result<(String, String), Problem> {
    let wrong = |error| Problem::json("line", &error);
    let envelope = Envelope::parse(line).map_err(wrong)?;
    let mut value = String::with_capacity(line.len());
    okdb_query::compact(line, &mut value).map_err(wrong)?;
    let key = envelope
        .get(field)
        .map(Value::parse)
        .transpose()
        .map_err(wrong)?;
    let key = match key {
        Some(Value::String(text)) => text.into_owned(),
        Some(Value::Number(number)) => number.as_str().to_owned(),
        Some(_) => {
            return Err(Problem::parameter(format!(
                "the field {field:?} is neither a string nor a number"
            )));
        }
        None => {
            return Err(Problem::parameter(format!(
                "the document has no field {field:?}"
            )));
        }
    };
    Ok((key, value))
}
