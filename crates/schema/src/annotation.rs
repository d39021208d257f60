//! What a `ref` annotation says.

use okdb_query::Value;

use crate::{RefPath, SchemaError};

/// The most bytes of a type's name, without the `~` of internal ones. The store has the same rule.
const TYPE_NAME_BYTES_MAX: usize = 128;

/// A `ref` annotation: the strings at a path name records of another type (or of the same).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    /// Where the record holds the keys.
    pub path: RefPath,
    /// The type whose records they name.
    pub target: String,
    /// What the deletion of such a record does to this one.
    pub on_delete: OnDelete,
}

/// What happens to a record when one that it refers to is deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnDelete {
    /// The deletion is refused. This holds when nothing is said.
    #[default]
    Restrict,
    /// The record is deleted too.
    Cascade,
    /// The reference becomes null.
    SetNull,
    /// The record stays as it is, with a reference to nothing.
    NoAction,
}

impl OnDelete {
    const ALL: [Self; 4] = [Self::Restrict, Self::Cascade, Self::SetNull, Self::NoAction];

    /// The name in schemas and answers.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Restrict => "restrict",
            Self::Cascade => "cascade",
            Self::SetNull => "set_null",
            Self::NoAction => "no_action",
        }
    }

    /// The action of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|action| action.name() == name)
    }
}

/// The annotation of the schema `owner`, which stands at `pointer`: target and action.
pub(crate) fn read(
    owner: &Value<'_>,
    annotation: &Value<'_>,
    pointer: &str,
) -> Result<(String, OnDelete), SchemaError> {
    let wrong = |message: String| Err(SchemaError::new(&format!("{pointer}/ref"), message));
    let Some(members) = annotation.as_object() else {
        return wrong("`ref` is an object {type, onDelete}".to_owned());
    };
    let known = |name: &str| name == "type" || name == "onDelete";
    if let Some((name, _)) = members.iter().find(|(name, _)| !known(name)) {
        return wrong(format!(
            "`ref` has no member {name:?}, only type and onDelete"
        ));
    }
    let Some(target) = annotation.get("type").and_then(Value::as_str) else {
        return wrong("`ref` needs the name of a type as `type`".to_owned());
    };
    if !is_type_name(target) {
        return wrong(format!("{target:?} is no name of a type"));
    }
    let on_delete = match annotation.get("onDelete") {
        None => OnDelete::default(),
        Some(name) => match name.as_str().and_then(OnDelete::from_name) {
            Some(action) => action,
            None => {
                return wrong("`onDelete` is restrict, cascade, set_null or no_action".to_owned());
            }
        },
    };
    if !may_be_string(owner) {
        return wrong("`ref` stands where no string is allowed".to_owned());
    }
    Ok((target.to_owned(), on_delete))
}

fn is_type_name(name: &str) -> bool {
    let body = name.strip_prefix('~').unwrap_or(name);
    let first = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let rest = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    body.len() <= TYPE_NAME_BYTES_MAX
        && body.bytes().next().is_some_and(first)
        && body.bytes().all(rest)
}

/// Whether the schema's own `type`, `enum` and `const` leave room for a string.
fn may_be_string(schema: &Value<'_>) -> bool {
    let by_type = schema.get("type").is_none_or(|name| match name {
        Value::Array(names) => names.iter().any(|name| name.as_str() == Some("string")),
        name => name.as_str() == Some("string"),
    });
    let by_enum = schema
        .get("enum")
        .and_then(Value::as_array)
        .is_none_or(|values| values.iter().any(|value| value.as_str().is_some()));
    let by_const = schema
        .get("const")
        .is_none_or(|value| value.as_str().is_some());
    by_type && by_enum && by_const
}
