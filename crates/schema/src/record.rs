//! Records as the checker reads them: straight from the parsed text, and for as many steps as a check may take.
//!
//! A schema can ask for far more work than its size and the record's suggest (`oneOf` of two `$ref`s to the root
//! doubles it with each level). The checker has no bound for that, but everything it learns of a record it asks
//! here. When the steps are used up, containers look like nothing at all: the check then ends soon, and its outcome
//! is void.

use std::{borrow::Cow, cell::Cell, ops::ControlFlow};

use jsonschema::{
    JsonType, ValidationError,
    json::{Array, Json, JsonNumber, Node, NodeIdentity, Object},
};
use okdb_query::{Number, Value, compare};

use crate::convert::{Machine, equals, is_whole, to_json};

/// The steps that every check may take.
const STEPS_MIN: u64 = 1_000_000;
/// The steps that a check may take more for each byte of the record.
const STEPS_PER_BYTE: u64 = 32;
/// This many bytes that are looked at are a step too.
const BYTES_PER_STEP: u64 = 32;
/// This many members that are passed in search of one are a step too.
const MEMBERS_PER_STEP: u64 = 8;

/// As much of a string is enough to know it again.
const OUTLINE_CHARS: usize = 40;

/// After so many failures a check ends: the checker collects them all before it shows the first.
const FAILURES_MAX: u64 = 10_000;
/// The outline of every value once the steps are used up. Longer than any other.
const VOID: &str = "the steps were used up before this failure was found";

/// How many steps a check may still take, and how many failures it may still find.
pub(crate) struct Steps {
    left: Cell<u64>,
    failures: Cell<u64>,
}

impl Steps {
    pub(crate) fn for_text(text: &str) -> Self {
        let bytes = u64::try_from(text.len()).unwrap_or(u64::MAX);
        let more = bytes.saturating_mul(STEPS_PER_BYTE);
        Self {
            left: Cell::new(STEPS_MIN.saturating_add(more)),
            failures: Cell::new(FAILURES_MAX),
        }
    }

    pub(crate) fn used_up(&self) -> bool {
        self.left.get() == 0
    }

    /// Notes a failure; false if it was found after the steps were used up, and so need not be one.
    fn failure(&self) -> bool {
        if self.used_up() {
            return false;
        }
        let left = self.failures.get().saturating_sub(1);
        self.failures.set(left);
        if left == 0 {
            self.left.set(0);
        }
        true
    }

    /// Takes a step, and one more for each `size` of `amount`; false when there are no more.
    fn take(&self, amount: usize, size: u64) -> bool {
        let amount = u64::try_from(amount).unwrap_or(u64::MAX);
        let left = self.left.get().saturating_sub(1 + amount / size);
        self.left.set(left);
        left > 0
    }
}

/// Whether a failure was found before the steps were used up. Those that come later need not be true.
pub(crate) fn is_true(failure: &ValidationError<'_>) -> bool {
    failure.instance().as_str() != Some(VOID)
}

/// The representation: [`okdb_query::Value`].
pub(crate) enum Records {}

/// A value of a record, or a member's name as one.
#[derive(Clone, Copy)]
pub(crate) struct Item<'a> {
    value: &'a Value<'a>,
    /// None for a name that the checker handles by itself.
    steps: Option<&'a Steps>,
}

impl<'a> Item<'a> {
    pub(crate) fn new(value: &'a Value<'a>, steps: &'a Steps) -> Self {
        Self {
            value,
            steps: Some(steps),
        }
    }

    fn take(&self, amount: usize, size: u64) -> bool {
        self.steps.is_none_or(|steps| steps.take(amount, size))
    }

    fn text(&self) -> Option<&'a str> {
        self.value
            .as_str()
            .filter(|text| self.take(text.len(), BYTES_PER_STEP))
    }
}

impl Json for Records {
    type Node<'a> = Item<'a>;
    type PreparedKey = String;
    type StringBuffer = ();

    // A lookup passes half of the members.
    const KEYS_PER_LOOKUP: usize = 8;
    const ACYCLIC: bool = true;

    fn prepare_key(key: &str) -> String {
        key.to_owned()
    }

    fn with_string_node<T>((): &mut (), string: &str, f: impl FnOnce(Item<'_>) -> T) -> T {
        let value = Value::String(Cow::Borrowed(string));
        f(Item {
            value: &value,
            steps: None,
        })
    }
}

impl<'a> Node<'a, Records> for Item<'a> {
    type Object = Members<'a>;
    type Array = Elements<'a>;
    type Number = Digits<'a>;

    fn as_object(&self) -> Option<Members<'a>> {
        let members = self.value.as_object()?;
        self.take(0, 1).then_some(Members {
            members,
            steps: self.steps,
        })
    }

    fn as_array(&self) -> Option<Elements<'a>> {
        let elements = self.value.as_array()?;
        self.take(0, 1).then_some(Elements {
            elements,
            steps: self.steps,
        })
    }

    fn as_string(&self) -> Option<Cow<'a, str>> {
        self.text().map(Cow::Borrowed)
    }

    fn as_number(&self) -> Option<Digits<'a>> {
        let number = self.value.as_number()?;
        self.take(number.as_str().len(), BYTES_PER_STEP);
        Some(Digits {
            number,
            machine: Machine::of(number),
        })
    }

    fn as_boolean(&self) -> Option<bool> {
        self.take(0, 1);
        self.value.as_bool()
    }

    fn is_null(&self) -> bool {
        self.take(0, 1);
        self.value.is_null()
    }

    fn is_number(&self) -> bool {
        self.take(0, 1);
        self.value.as_number().is_some()
    }

    fn json_type(&self) -> JsonType {
        self.take(0, 1);
        match self.value {
            Value::Null => JsonType::Null,
            Value::Bool(_) => JsonType::Boolean,
            Value::Number(_) => JsonType::Number,
            Value::String(_) => JsonType::String,
            Value::Array(_) => JsonType::Array,
            Value::Object(_) => JsonType::Object,
        }
    }

    fn string_length_within(&self, min: u64, max: u64) -> Option<bool> {
        let text = self.text()?;
        let bytes = u64::try_from(text.len()).unwrap_or(u64::MAX);
        // A character has one to four bytes.
        let fewest = bytes.div_ceil(4);
        if bytes < min || fewest > max {
            return Some(false);
        }
        if min <= fewest && bytes <= max {
            return Some(true);
        }
        let count = u64::try_from(text.chars().count()).unwrap_or(u64::MAX);
        Some((min..=max).contains(&count))
    }

    fn equals_value(&self, expected: &serde_json::Value) -> bool {
        // How much is compared is bounded by the schema; `enum` asks for each of its values.
        self.take(0, 1) && equals(self.value, expected)
    }

    /// Only failures ask for it, each for itself and long before it is known which are shown: an outline must do.
    fn to_value(&self) -> Cow<'a, serde_json::Value> {
        if !self.steps.is_none_or(Steps::failure) {
            return Cow::Owned(VOID.into());
        }
        Cow::Owned(match self.value {
            Value::String(text) => text.chars().take(OUTLINE_CHARS).collect::<String>().into(),
            Value::Array(_) => serde_json::Value::Array(Vec::new()),
            Value::Object(_) => serde_json::Value::Object(serde_json::Map::new()),
            scalar => to_json(scalar),
        })
    }

    fn identity(&self) -> Option<NodeIdentity> {
        Some(NodeIdentity::new(
            std::ptr::from_ref::<Value<'a>>(self.value) as usize,
        ))
    }
}

/// An object.
#[derive(Clone, Copy)]
pub(crate) struct Members<'a> {
    members: &'a [(Cow<'a, str>, Value<'a>)],
    steps: Option<&'a Steps>,
}

impl<'a> Object<'a, Records> for Members<'a> {
    type Node = Item<'a>;
    type MemberName = &'a str;
    type MembersIter = MembersIter<'a>;

    fn len(&self) -> usize {
        self.members.len()
    }

    fn get(&self, key: &String) -> Option<Item<'a>> {
        let steps = self.steps;
        if !steps.is_none_or(|steps| steps.take(self.members.len(), MEMBERS_PER_STEP)) {
            return None;
        }
        let member = self.members.iter().find(|(name, _)| name == key);
        member.map(|(_, value)| Item { value, steps })
    }

    fn members(&self) -> MembersIter<'a> {
        MembersIter {
            members: self.members.iter(),
            steps: self.steps,
        }
    }

    fn try_for_each_name_node<B>(
        &self,
        (): &mut (),
        mut f: impl FnMut(Item<'_>) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        for (name, _) in self.members() {
            let value = Value::String(Cow::Borrowed(name));
            f(Item {
                value: &value,
                steps: self.steps,
            })?;
        }
        ControlFlow::Continue(())
    }
}

pub(crate) struct MembersIter<'a> {
    members: std::slice::Iter<'a, (Cow<'a, str>, Value<'a>)>,
    steps: Option<&'a Steps>,
}

impl<'a> Iterator for MembersIter<'a> {
    type Item = (&'a str, Item<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        let steps = self.steps;
        let (name, value) = self.members.next()?;
        steps
            .is_none_or(|steps| steps.take(name.len(), BYTES_PER_STEP))
            .then_some((name.as_ref(), Item { value, steps }))
    }
}

/// An array.
#[derive(Clone, Copy)]
pub(crate) struct Elements<'a> {
    elements: &'a [Value<'a>],
    steps: Option<&'a Steps>,
}

impl<'a> Array<'a, Records> for Elements<'a> {
    type Node = Item<'a>;
    type ElementsIter = ElementsIter<'a>;

    fn len(&self) -> usize {
        self.elements.len()
    }

    fn elements(&self) -> ElementsIter<'a> {
        ElementsIter {
            elements: self.elements.iter(),
            steps: self.steps,
        }
    }

    fn is_unique(&self) -> bool {
        // Sorting asks about each element some twenty times.
        if !self
            .steps
            .is_none_or(|steps| steps.take(self.elements.len(), 1))
        {
            return true;
        }
        let mut elements: Vec<&Value<'_>> = self.elements.iter().collect();
        elements.sort_unstable_by(|left, right| compare(left, right));
        elements
            .windows(2)
            .all(|pair| compare(pair[0], pair[1]).is_ne())
    }
}

pub(crate) struct ElementsIter<'a> {
    elements: std::slice::Iter<'a, Value<'a>>,
    steps: Option<&'a Steps>,
}

impl<'a> Iterator for ElementsIter<'a> {
    type Item = Item<'a>;

    fn next(&mut self) -> Option<Item<'a>> {
        let steps = self.steps;
        let value = self.elements.next()?;
        steps
            .is_none_or(|steps| steps.take(0, 1))
            .then_some(Item { value, steps })
    }
}

/// A number.
pub(crate) struct Digits<'a> {
    number: &'a Number<'a>,
    machine: Machine,
}

impl JsonNumber for Digits<'_> {
    fn as_u64(&self) -> Option<u64> {
        match self.machine {
            Machine::Signed(integer) => u64::try_from(integer).ok(),
            Machine::Unsigned(integer) => Some(integer),
            Machine::Double(_) => None,
        }
    }

    fn as_i64(&self) -> Option<i64> {
        match self.machine {
            Machine::Signed(integer) => Some(integer),
            _ => None,
        }
    }

    fn as_f64(&self) -> Option<f64> {
        self.machine.to_json().as_f64()
    }

    fn as_str(&self) -> Cow<'_, str> {
        Cow::Borrowed(self.number.as_str())
    }

    fn to_number(&self) -> Cow<'_, serde_json::Number> {
        Cow::Owned(self.machine.to_json())
    }

    fn is_integer(&self) -> bool {
        !matches!(self.machine, Machine::Double(_)) || is_whole(self.number)
    }
}
