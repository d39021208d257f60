//! From JSON to a filter: everything that can be wrong with one is found here.

use regex::{Regex, RegexBuilder};

use super::{Clause, Conjunction, Filter, FilterError, FilterErrorKind, Modulo, Predicate, Types};
use crate::{
    compare,
    json::{
        Number, Value,
        decimal::{Decimal, operand_refusal},
    },
    path::Path,
};

type Result<T> = std::result::Result<T, FilterError>;

pub(super) fn parse(value: &Value<'_>) -> Result<Conjunction> {
    let mut parser = Parser {
        nodes_left: Filter::NODES_MAX,
        regexes_left: Filter::REGEXES_MAX,
    };
    let mut root = Conjunction::new();
    parser.filter(value, "the filter", 0, &mut root)?;
    Ok(root)
}

/// Counts what has been built, so that no filter grows past its bounds.
struct Parser {
    nodes_left: usize,
    regexes_left: usize,
}

/// An operator and where it stands, for messages.
#[derive(Clone, Copy)]
struct Place<'p> {
    operator: &'p str,
    path: &'p str,
}

impl Place<'_> {
    fn error(&self, problem: impl std::fmt::Display) -> FilterError {
        FilterError {
            kind: FilterErrorKind::Invalid,
            message: format!("{} at {}: {problem}", self.operator, quoted(self.path)),
        }
    }
}

/// Stands for the path where operators stand beside field names; no field's path starts like this.
const TOP: &str = "$";

fn quoted(path: &str) -> String {
    if path == TOP {
        "the top level".to_owned()
    } else {
        let mut out = String::new();
        crate::write_string(path, &mut out);
        out
    }
}

fn invalid(message: String) -> FilterError {
    FilterError {
        kind: FilterErrorKind::Invalid,
        message,
    }
}

impl Parser {
    fn node(&mut self) -> Result<()> {
        self.nodes_left = self
            .nodes_left
            .checked_sub(1)
            .ok_or_else(|| invalid(format!("more than {} tests", Filter::NODES_MAX)))?;
        Ok(())
    }

    fn deeper(depth: usize) -> Result<usize> {
        if depth == Filter::DEPTH_MAX {
            let max = Filter::DEPTH_MAX;
            return Err(invalid(format!("operators nest deeper than {max} levels")));
        }
        Ok(depth + 1)
    }

    /// Adds the clauses of a filter object to `clauses`.
    fn filter(
        &mut self,
        value: &Value<'_>,
        what: &str,
        depth: usize,
        clauses: &mut Conjunction,
    ) -> Result<()> {
        let members = value
            .as_object()
            .ok_or_else(|| invalid(format!("{what} must be an object, not {}", value.kind())))?;
        for (name, value) in members {
            self.node()?;
            let place = Place {
                operator: name,
                path: TOP,
            };
            match &**name {
                "$and" => {
                    let depth = Self::deeper(depth)?;
                    for filter in filters(value, place)? {
                        self.filter(filter, "an element of $and", depth, clauses)?;
                    }
                }
                "$or" => clauses.push(Clause::Any(self.alternatives(value, place, depth)?)),
                "$nor" => clauses.push(Clause::NoneOf(self.alternatives(value, place, depth)?)),
                operator if operator.starts_with('$') => {
                    return Err(place.error("unknown operator, or one that needs a field"));
                }
                text => {
                    let path = Path::parse(text)
                        .map_err(|error| invalid(format!("{}: {error}", quoted(text))))?;
                    let tests = self.field(value, text, depth)?;
                    clauses.push(Clause::Field { path, tests });
                }
            }
        }
        Ok(())
    }

    fn alternatives(
        &mut self,
        value: &Value<'_>,
        place: Place<'_>,
        depth: usize,
    ) -> Result<Vec<Conjunction>> {
        let depth = Self::deeper(depth)?;
        let what = format!("an element of {}", place.operator);
        let mut alternatives = Vec::new();
        for filter in filters(value, place)? {
            self.node()?;
            let mut clauses = Conjunction::new();
            self.filter(filter, &what, depth, &mut clauses)?;
            alternatives.push(clauses);
        }
        Ok(alternatives)
    }

    /// What a field is tested for: an object of operators, or a value to equal.
    fn field(&mut self, value: &Value<'_>, path: &str, depth: usize) -> Result<Vec<Predicate>> {
        if is_operators(value, path)? {
            self.operators(value, path, depth)
        } else {
            Ok(vec![Predicate::Equal(owned(value))])
        }
    }

    fn operators(&mut self, value: &Value<'_>, path: &str, depth: usize) -> Result<Vec<Predicate>> {
        let mut tests = Vec::new();
        for (operator, operand) in value.as_object().unwrap_or_default() {
            self.node()?;
            let place = Place { operator, path };
            tests.push(match &**operator {
                "$eq" => Predicate::Equal(owned(operand)),
                "$ne" => Predicate::Not(vec![Predicate::Equal(owned(operand))]),
                "$gt" | "$gte" => Predicate::Lower {
                    value: owned(operand),
                    inclusive: operator == "$gte",
                },
                "$lt" | "$lte" => Predicate::Upper {
                    value: owned(operand),
                    inclusive: operator == "$lte",
                },
                "$in" => Predicate::In(self.list(operand, place)?),
                "$nin" => Predicate::Not(vec![Predicate::In(self.list(operand, place)?)]),
                "$exists" => exists(operand, place)?,
                "$type" => Predicate::Type(types(operand, place)?),
                "$regex" => Predicate::Regex(self.regex(operand, value.get("$options"), place)?),
                "$options" if value.get("$regex").is_some() => continue,
                "$options" => return Err(place.error("stands only beside $regex")),
                "$mod" => Predicate::Modulo(modulo(operand, place)?),
                "$size" => Predicate::Size(
                    operand
                        .as_number()
                        .and_then(Number::to_u64)
                        .ok_or_else(|| place.error("needs a whole number, 0 or more"))?,
                ),
                "$all" => self.all(operand, place, depth)?,
                "$elemMatch" => self.element(operand, place, depth)?,
                "$not" => {
                    let depth = Self::deeper(depth)?;
                    if !is_operators(operand, path)? {
                        return Err(place.error("needs an object of operators"));
                    }
                    Predicate::Not(self.operators(operand, path, depth)?)
                }
                _ => return Err(place.error("unknown operator")),
            });
        }
        Ok(tests)
    }

    /// The operand of `$in`, in the order that searching it needs.
    fn list(&mut self, operand: &Value<'_>, place: Place<'_>) -> Result<Vec<Value<'static>>> {
        let elements = array(operand, place)?;
        let mut values = Vec::with_capacity(elements.len().min(self.nodes_left));
        for element in elements {
            self.node()?;
            values.push(owned(element));
        }
        values.sort_unstable_by(compare);
        values.dedup();
        Ok(values)
    }

    fn all(&mut self, operand: &Value<'_>, place: Place<'_>, depth: usize) -> Result<Predicate> {
        let depth = Self::deeper(depth)?;
        let mut tests = Vec::new();
        for element in array(operand, place)? {
            self.node()?;
            tests.push(match element.as_object() {
                Some([(name, inner)]) if name == "$elemMatch" => {
                    let place = Place {
                        operator: name,
                        path: place.path,
                    };
                    self.element(inner, place, depth)?
                }
                _ if is_operators(element, place.path)? => {
                    return Err(place.error("the only operator in its list is $elemMatch"));
                }
                _ => Predicate::Equal(owned(element)),
            });
        }
        Ok(Predicate::All(tests))
    }

    fn element(
        &mut self,
        operand: &Value<'_>,
        place: Place<'_>,
        depth: usize,
    ) -> Result<Predicate> {
        let depth = Self::deeper(depth)?;
        let Some(members) = operand.as_object() else {
            return Err(place.error("needs an object"));
        };
        let is_filter = members
            .iter()
            .all(|(name, _)| !name.starts_with('$') || matches!(&**name, "$and" | "$or" | "$nor"));
        if is_filter {
            let mut clauses = Conjunction::new();
            self.filter(operand, "the operand of $elemMatch", depth, &mut clauses)?;
            return Ok(Predicate::ElementObject(clauses));
        }
        // There is an operator: mixed with anything else, this refuses.
        is_operators(operand, place.path)?;
        self.operators(operand, place.path, depth)
            .map(Predicate::ElementValue)
    }

    fn regex(
        &mut self,
        pattern: &Value<'_>,
        options: Option<&Value<'_>>,
        place: Place<'_>,
    ) -> Result<Regex> {
        self.regexes_left = self.regexes_left.checked_sub(1).ok_or_else(|| {
            place.error(format_args!(
                "more than {} in one filter",
                Filter::REGEXES_MAX
            ))
        })?;
        let pattern = pattern
            .as_str()
            .ok_or_else(|| place.error("needs a string"))?;
        if pattern.len() > Filter::REGEX_PATTERN_BYTES_MAX {
            let max = Filter::REGEX_PATTERN_BYTES_MAX;
            return Err(place.error(format_args!("the pattern is longer than {max} bytes")));
        }
        let mut builder = RegexBuilder::new(pattern);
        builder
            .size_limit(Filter::REGEX_COMPILED_BYTES_MAX)
            .dfa_size_limit(Filter::REGEX_COMPILED_BYTES_MAX);
        if let Some(options) = options {
            let place = Place {
                operator: "$options",
                ..place
            };
            let letters = options
                .as_str()
                .ok_or_else(|| place.error("needs a string"))?;
            for letter in letters.chars() {
                match letter {
                    'i' => builder.case_insensitive(true),
                    'm' => builder.multi_line(true),
                    's' => builder.dot_matches_new_line(true),
                    'x' => builder.ignore_whitespace(true),
                    _ => return Err(place.error("knows the letters i, m, s and x")),
                };
            }
        }
        builder.build().map_err(|error| match error {
            regex::Error::CompiledTooBig(_) => place.error("the pattern is too large"),
            error => place.error(error),
        })
    }
}

fn owned(value: &Value<'_>) -> Value<'static> {
    value.clone().into_owned()
}

fn array<'v>(operand: &'v Value<'_>, place: Place<'_>) -> Result<&'v [Value<'v>]> {
    operand
        .as_array()
        .ok_or_else(|| place.error("needs an array"))
}

/// The operand of `$and`, `$or` or `$nor`.
fn filters<'v>(operand: &'v Value<'_>, place: Place<'_>) -> Result<&'v [Value<'v>]> {
    match array(operand, place)? {
        [] => Err(place.error("needs at least one filter")),
        filters => Ok(filters),
    }
}

/// Whether a value is an object of operators; one of both operators and names is refused.
fn is_operators(value: &Value<'_>, path: &str) -> Result<bool> {
    let members = value.as_object().unwrap_or_default();
    let operators = members
        .iter()
        .filter(|(name, _)| name.starts_with('$'))
        .count();
    if let Some((name, _)) = members.iter().find(|(name, _)| name.starts_with('$'))
        && operators < members.len()
    {
        let place = Place {
            operator: name,
            path,
        };
        return Err(
            place.error("operators and plain names do not mix; $eq compares with any object")
        );
    }
    Ok(operators > 0)
}

fn exists(operand: &Value<'_>, place: Place<'_>) -> Result<Predicate> {
    let wanted = match operand {
        Value::Bool(wanted) => *wanted,
        Value::Number(number) => !Decimal::of(number).is_zero(),
        _ => return Err(place.error("needs true or false")),
    };
    Ok(if wanted {
        Predicate::Exists
    } else {
        Predicate::Not(vec![Predicate::Exists])
    })
}

fn types(operand: &Value<'_>, place: Place<'_>) -> Result<Types> {
    let mut types = Types::default();
    for name in operand.as_array().unwrap_or(std::slice::from_ref(operand)) {
        let example = match name {
            Value::String(name) => match &**name {
                "null" => Value::Null,
                "bool" | "boolean" => Value::Bool(true),
                "number" => Value::Number(0_u64.into()),
                "string" => Value::String("".into()),
                "array" => Value::Array(Vec::new()),
                "object" => Value::Object(Vec::new()),
                _ => return Err(place.error("knows null, bool, number, string, array and object")),
            },
            // The numbers that drivers know these types by. Those of the number types are left out:
            // each names a representation, and JSON has none.
            Value::Number(code) => match code.to_i64() {
                Some(2) => Value::String("".into()),
                Some(3) => Value::Object(Vec::new()),
                Some(4) => Value::Array(Vec::new()),
                Some(8) => Value::Bool(true),
                Some(10) => Value::Null,
                _ => return Err(place.error("knows 2, 3, 4, 8 and 10; name other types")),
            },
            _ => return Err(place.error("needs a type's name or an array of names")),
        };
        types.insert(Types::of(&example));
    }
    if types == Types::default() {
        return Err(place.error("needs at least one type"));
    }
    Ok(types)
}

fn modulo(operand: &Value<'_>, place: Place<'_>) -> Result<Modulo> {
    let [Value::Number(divisor), Value::Number(remainder)] = array(operand, place)? else {
        return Err(place.error("needs two numbers, [divisor, remainder]"));
    };
    let (divisor, remainder) = (Decimal::of(divisor), Decimal::of(remainder));
    if !(divisor.is_operand() && remainder.is_operand()) {
        return Err(FilterError {
            kind: FilterErrorKind::Number,
            ..place.error(operand_refusal())
        });
    }
    let modulo = Modulo {
        divisor: divisor.whole_digits().collect(),
        remainder: remainder.whole_digits().collect(),
        remainder_negative: remainder.negative,
    };
    if modulo.divisor.is_empty() {
        return Err(place.error("cannot divide by zero"));
    }
    Ok(modulo)
}
