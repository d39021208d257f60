//! Sort orders of queries: a list of paths, each ascending or descending.

use std::cmp::Ordering;

use thiserror::Error;

use crate::{
    compare,
    extract::sort_value,
    json::{Number, Value},
    path::{Path, PathError},
};

/// A sort order. Records that are equal in all its fields are for the caller to tell apart.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Sort {
    fields: Vec<SortField>,
}

/// One field of a sort order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SortField {
    /// Where the values are.
    pub path: Path,
    /// Whether large values come first.
    pub descending: bool,
}

/// Why a sort order was refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SortError {
    /// Neither of the two forms.
    #[error("a sort is an object {{\"path\": 1 or -1}} or an array of [\"path\", 1 or -1]")]
    Form,
    /// A direction other than 1 and -1.
    #[error("the direction of {0:?} must be 1 or -1")]
    Direction(String),
    /// A path that cannot be one.
    #[error("{0:?}: {1}")]
    Path(String, PathError),
    /// A path that is named twice.
    #[error("{0:?} is named twice")]
    Twice(String),
    /// More than [`Sort::FIELDS_MAX`] fields.
    #[error("a sort has at most {} fields", Sort::FIELDS_MAX)]
    TooMany,
}

impl Sort {
    /// The most fields of a sort order.
    pub const FIELDS_MAX: usize = 32;

    /// Reads `{"a": 1, "b.c": -1}`, in written order, or `[["a", 1], ["b.c", -1]]`.
    ///
    /// # Errors
    /// When the value has neither form, or names a path twice.
    pub fn parse(value: &Value<'_>) -> Result<Self, SortError> {
        let mut sort = Self::default();
        match value {
            Value::Object(members) => {
                for (path, direction) in members {
                    sort.push(path, direction)?;
                }
            }
            Value::Array(pairs) => {
                for pair in pairs {
                    match pair.as_array() {
                        Some([Value::String(path), direction]) => sort.push(path, direction)?,
                        _ => return Err(SortError::Form),
                    }
                }
            }
            _ => return Err(SortError::Form),
        }
        Ok(sort)
    }

    fn push(&mut self, text: &str, direction: &Value<'_>) -> Result<(), SortError> {
        if self.fields.len() == Self::FIELDS_MAX {
            return Err(SortError::TooMany);
        }
        let path = Path::parse(text).map_err(|error| SortError::Path(text.to_owned(), error))?;
        let descending = match direction.as_number().and_then(Number::to_i64) {
            Some(1) => false,
            Some(-1) => true,
            _ => return Err(SortError::Direction(text.to_owned())),
        };
        if self.fields.iter().any(|field| field.path == path) {
            return Err(SortError::Twice(text.to_owned()));
        }
        self.fields.push(SortField { path, descending });
        Ok(())
    }

    /// The fields, the most significant first.
    #[must_use]
    pub fn fields(&self) -> &[SortField] {
        &self.fields
    }

    /// Whether there is nothing to sort by.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }

    /// What places a record in this order: one value per field, independent of the record.
    #[must_use]
    pub fn keys(&self, doc: &Value<'_>) -> Vec<Value<'static>> {
        self.fields
            .iter()
            .map(|field| {
                sort_value(doc, &field.path, field.descending)
                    .clone()
                    .into_owned()
            })
            .collect()
    }

    /// Compares two records by their [`Sort::keys`].
    #[must_use]
    pub fn compare(&self, a: &[Value<'_>], b: &[Value<'_>]) -> Ordering {
        self.fields
            .iter()
            .zip(a.iter().zip(b))
            .map(|(field, (a, b))| {
                let ordering = compare(a, b);
                if field.descending {
                    ordering.reverse()
                } else {
                    ordering
                }
            })
            .find(|ordering| ordering.is_ne())
            .unwrap_or(Ordering::Equal)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;
    use crate::testing::parse;

    fn sort(text: &str) -> Result<Sort, SortError> {
        Sort::parse(&parse(text))
    }

    #[test]
    fn both_forms_mean_the_same() {
        let object = sort(r#"{"b":1,"a.c":-1.0}"#).unwrap();
        assert_eq!(object, sort(r#"[["b",1],["a.c",-1]]"#).unwrap());
        let fields: Vec<_> = object
            .fields()
            .iter()
            .map(|field| (field.path.as_str(), field.descending))
            .collect();
        assert_eq!(fields, [("b", false), ("a.c", true)]);
        assert!(sort("{}").unwrap().is_empty() && sort("[]").unwrap().is_empty());
    }

    #[test]
    fn mistakes_are_refused() {
        for text in [
            "1",
            "\"a\"",
            "null",
            r#"["a"]"#,
            r#"[["a"]]"#,
            r#"[["a",1,1]]"#,
            "[[1,1]]",
        ] {
            assert_eq!(sort(text), Err(SortError::Form), "{text}");
        }
        for text in [
            r#"{"a":0}"#,
            r#"{"a":2}"#,
            r#"{"a":"asc"}"#,
            r#"{"a":true}"#,
        ] {
            assert_eq!(sort(text), Err(SortError::Direction("a".into())), "{text}");
        }
        assert_eq!(
            sort(r#"[["a",1],["a",-1]]"#),
            Err(SortError::Twice("a".into()))
        );
        assert!(matches!(sort(r#"{"a..b":1}"#), Err(SortError::Path(..))));
        let many = |count: usize| {
            let fields: Vec<_> = (0..count).map(|i| format!("\"f{i}\":1")).collect();
            sort(&format!("{{{}}}", fields.join(",")))
        };
        assert!(many(Sort::FIELDS_MAX).is_ok());
        assert_eq!(many(Sort::FIELDS_MAX + 1), Err(SortError::TooMany));
    }

    #[test]
    fn records_are_ordered_field_by_field() {
        let sort = sort(r#"{"a":1,"b":-1}"#).unwrap();
        let mut docs = [
            r#"{"a":[9,2],"b":1}"#,
            r#"{"a":"x"}"#,
            r#"{"b":[1,7]}"#,
            r#"{"a":2.0,"b":3}"#,
            r#"{"a":null,"b":9}"#,
            r#"{"a":1}"#,
        ];
        docs.sort_by(|a, b| sort.compare(&sort.keys(&parse(a)), &sort.keys(&parse(b))));
        assert_eq!(
            docs,
            [
                r#"{"a":null,"b":9}"#,
                r#"{"b":[1,7]}"#,
                r#"{"a":1}"#,
                r#"{"a":2.0,"b":3}"#,
                r#"{"a":[9,2],"b":1}"#,
                r#"{"a":"x"}"#,
            ]
        );
    }
}
