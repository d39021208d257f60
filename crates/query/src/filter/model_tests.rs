//! Filters against a second, naive evaluator: it reads the JSON form directly, copies everything, and
//! states each rule as plainly as can be.

use std::borrow::Cow;

use proptest::prelude::*;

use super::*;
use crate::{
    compare, index_values,
    testing::{object_of, parse},
};

fn naive(filter: &Value<'_>, doc: &Value<'_>) -> bool {
    filter.as_object().unwrap().iter().all(|(name, operand)| {
        let filters = || operand.as_array().unwrap();
        match &**name {
            "$and" => filters().iter().all(|filter| naive(filter, doc)),
            "$or" => filters().iter().any(|filter| naive(filter, doc)),
            "$nor" => !filters().iter().any(|filter| naive(filter, doc)),
            path => naive_field(operand, &reached(doc, &path.split('.').collect::<Vec<_>>())),
        }
    })
}

fn is_operators(value: &Value<'_>) -> bool {
    value
        .as_object()
        .is_some_and(|m| m.iter().any(|(name, _)| name.starts_with('$')))
}

type Targets = Vec<Option<Value<'static>>>;

fn naive_field(operand: &Value<'_>, targets: &Targets) -> bool {
    if !is_operators(operand) {
        return naive_operator("$eq", operand, targets);
    }
    let operators = operand.as_object().unwrap();
    operators
        .iter()
        .all(|(name, operand)| naive_operator(name, operand, targets))
}

fn naive_operator(name: &str, operand: &Value<'_>, targets: &Targets) -> bool {
    let null = Value::Null;
    let with_elements: Targets = targets
        .iter()
        .flat_map(|target| {
            let elements = target
                .as_ref()
                .and_then(Value::as_array)
                .unwrap_or_default();
            elements.iter().cloned().map(Some).chain([target.clone()])
        })
        .collect();
    let any = |holds: &dyn Fn(&Value<'_>) -> bool| {
        with_elements
            .iter()
            .any(|target| holds(target.as_ref().unwrap_or(&null)))
    };
    let range = |wanted: &dyn Fn(std::cmp::Ordering) -> bool| {
        any(&|value| value.kind() == operand.kind() && wanted(compare(value, operand)))
    };
    match name {
        "$eq" => any(&|value| value == operand),
        "$ne" => !naive_operator("$eq", operand, targets),
        "$gt" => range(&|ordering| ordering.is_gt()),
        "$gte" => range(&|ordering| ordering.is_ge()),
        "$lt" => range(&|ordering| ordering.is_lt()),
        "$lte" => range(&|ordering| ordering.is_le()),
        "$in" => any(&|value| operand.as_array().unwrap().contains(value)),
        "$nin" => !naive_operator("$in", operand, targets),
        "$exists" => targets.iter().any(Option::is_some) == operand.as_bool().unwrap(),
        "$size" => targets
            .iter()
            .flatten()
            .filter_map(Value::as_array)
            .any(|elements| {
                elements.len() as u64 == operand.as_number().unwrap().to_u64().unwrap()
            }),
        "$type" => with_elements
            .iter()
            .flatten()
            .any(|value| value.kind().ends_with(operand.as_str().unwrap())),
        "$all" => {
            let list = operand.as_array().unwrap();
            !list.is_empty()
                && list
                    .iter()
                    .all(|value| naive_operator("$eq", value, targets))
        }
        "$elemMatch" => targets
            .iter()
            .flatten()
            .filter_map(Value::as_array)
            .flatten()
            .any(|e| {
                if is_operators(operand) {
                    // One element, not looked into: as if it stood alone in an array of its own.
                    operand
                        .as_object()
                        .unwrap()
                        .iter()
                        .all(|(name, operand)| match e {
                            Value::Array(_) => naive_whole(name, operand, e),
                            _ => naive_operator(name, operand, &vec![Some(e.clone())]),
                        })
                } else {
                    e.as_object().is_some() && naive(operand, e)
                }
            }),
        "$not" => !naive_field(operand, targets),
        _ => panic!("{name}"),
    }
}

/// An operator on an array that counts as one value; the generator uses only these there.
fn naive_whole(name: &str, operand: &Value<'_>, value: &Value<'_>) -> bool {
    let ordering = compare(value, operand);
    let same = value.kind() == operand.kind();
    match name {
        "$eq" => ordering.is_eq(),
        "$gt" => same && ordering.is_gt(),
        "$lte" => same && ordering.is_le(),
        "$ne" => ordering.is_ne(),
        _ => panic!("{name}"),
    }
}

fn reached(value: &Value<'_>, path: &[&str]) -> Targets {
    let Some((name, rest)) = path.split_first() else {
        return vec![Some(value.clone().into_owned())];
    };
    match value {
        Value::Object(_) => value
            .get(name)
            .map_or(vec![None], |member| reached(member, rest)),
        Value::Array(elements) => {
            let at = name
                .parse::<usize>()
                .ok()
                .and_then(|index| elements.get(index));
            let mut targets = at.map_or(Vec::new(), |element| reached(element, rest));
            for element in elements
                .iter()
                .filter(|element| element.as_object().is_some())
            {
                if at.is_none() || element.get(name).is_some() {
                    targets.extend(reached(element, path));
                }
            }
            targets
        }
        _ => vec![None],
    }
}

fn small_scalar() -> impl Strategy<Value = Value<'static>> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Bool),
        prop_oneof!["[0-3]", "[0-3]\\.0", "[0-3]e0"].prop_map(|text| parse(&text)),
        "[xy]{0,2}".prop_map(|text| Value::String(Cow::Owned(text))),
    ]
}

fn small_value() -> impl Strategy<Value = Value<'static>> {
    small_scalar().prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::Array),
            object_of("[ab0]", inner, 3),
        ]
    })
}

fn small_doc() -> impl Strategy<Value = Value<'static>> {
    let container = prop_oneof![
        prop::collection::vec(small_value(), 0..4).prop_map(Value::Array),
        object_of("[ab01]", small_value(), 3),
    ];
    object_of("[ab]", prop_oneof![2 => container, 1 => small_value()], 2)
}

fn single(name: &str, value: Value<'static>) -> Value<'static> {
    Value::Object(vec![(Cow::Owned(name.to_owned()), value)])
}

/// A field's test, plain or by operator.
fn small_test() -> impl Strategy<Value = Value<'static>> {
    let list = || prop::collection::vec(small_value(), 0..4).prop_map(Value::Array);
    let named = |name: &'static str| move |value| single(name, value);
    let element =
        ("\\$(eq|gt|lte|ne)", small_value()).prop_map(|(name, value)| single(&name, value));
    let inner = ("[ab]", small_value()).prop_map(|(name, value)| single(&name, value));
    let types = prop::sample::select(vec![
        "null", "number", "string", "array", "object", "boolean",
    ]);
    let test = prop_oneof![
        4 => ("\\$(eq|ne|gt|gte|lt|lte)", small_value()).prop_map(|(name, value)| single(&name, value)),
        2 => ("\\$(in|nin|all)", list()).prop_map(|(name, value)| single(&name, value)),
        1 => any::<bool>().prop_map(Value::Bool).prop_map(named("$exists")),
        1 => (0_u64..3).prop_map(|size| Value::Number(size.into())).prop_map(named("$size")),
        1 => types.prop_map(|name| Value::String(name.into())).prop_map(named("$type")),
        1 => element.prop_map(named("$elemMatch")),
        1 => inner.prop_map(named("$elemMatch")),
    ];
    prop_oneof![
        2 => small_value(),
        6 => test.clone(),
        1 => test.prop_map(named("$not")),
    ]
}

fn small_filter() -> impl Strategy<Value = Value<'static>> {
    let field = object_of("[ab](\\.[ab01]){0,2}", small_test(), 2);
    field.prop_recursive(2, 6, 2, |inner| {
        ("\\$(and|or|nor)", prop::collection::vec(inner, 1..3))
            .prop_map(|(name, filters)| single(&name, Value::Array(filters)))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(800))]

    #[test]
    fn filters_mean_what_the_naive_evaluator_says(text in small_filter(), docs in prop::collection::vec(small_doc(), 8)) {
        let filter = Filter::parse(&text).unwrap();
        for doc in docs {
            prop_assert_eq!(filter.matches(&doc), naive(&text, &doc), "{} {}", text.to_json(), doc.to_json());
        }
    }

    #[test]
    fn every_match_meets_the_constraints(text in small_filter(), docs in prop::collection::vec(small_doc(), 8)) {
        let filter = Filter::parse(&text).unwrap();
        for doc in docs.iter().filter(|doc| filter.matches(doc)) {
            for Constraint { path, test } in filter.constraints() {
                let met = index_values(doc, path).values.iter().any(|value| match test {
                    Test::Equal(wanted) => *value == wanted,
                    Test::In(wanted) => wanted.contains(value),
                    Test::Lower { value: bound, inclusive } => {
                        value.kind() == bound.kind() && (*value > bound || inclusive && *value == bound)
                    }
                    Test::Upper { value: bound, inclusive } => {
                        value.kind() == bound.kind() && (*value < bound || inclusive && *value == bound)
                    }
                });
                prop_assert!(met, "{path} {test:?} {}", doc.to_json());
            }
        }
    }

    #[test]
    fn any_value_is_a_filter_or_refused(value in small_value(), doc in small_doc()) {
        if let Ok(filter) = Filter::parse(&value) {
            let _ = filter.matches(&doc);
        }
    }
}
