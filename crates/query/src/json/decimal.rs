//! The exact value behind a number's text, and the little arithmetic that patches and filters need.

use std::cmp::Ordering;

use super::Number;

/// Arithmetic refuses an operand with more significant digits.
const OPERAND_DIGITS_MAX: usize = 100;
/// Arithmetic refuses an operand whose exponent, in scientific notation, is larger, either sign.
const OPERAND_EXPONENT_MAX: i64 = 400;
/// A sum is written out in full unless that takes more zeros than this that carry no information.
const PADDING_ZEROS_MAX: usize = 40;

/// A number as ±0.DIGITS × 10^exponent, DIGITS without zeros at either end.
///
/// Each value has exactly one such form; zero has no digits, no sign and exponent 0.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Decimal<'t> {
    pub(crate) negative: bool,
    pub(crate) exponent: i64,
    /// The digits are `head` and then `tail`; two parts, since a point may stand between them.
    head: &'t [u8],
    tail: &'t [u8],
}

impl<'t> Decimal<'t> {
    pub(crate) fn of(number: &'t Number<'_>) -> Self {
        let (text, negative) = match number.as_str().as_bytes() {
            [b'-', text @ ..] => (text, true),
            text => (text, false),
        };
        let (mantissa, exponent) = match text.iter().position(|byte| matches!(byte, b'e' | b'E')) {
            Some(at) => (&text[..at], small_integer(&text[at + 1..])),
            None => (text, 0),
        };
        let (whole, fraction) = match mantissa.iter().position(|byte| *byte == b'.') {
            Some(at) => (&mantissa[..at], &mantissa[at + 1..]),
            None => (mantissa, &[][..]),
        };
        let (mut head, mut tail) = (trim_start(whole), trim_end(fraction));
        let mut point = length(head);
        if head.is_empty() {
            head = trim_start(tail);
            point = length(head) - length(tail);
            tail = &[];
        }
        if tail.is_empty() {
            head = trim_end(head);
        }
        if head.is_empty() {
            return Self {
                negative: false,
                exponent: 0,
                head,
                tail,
            };
        }
        Self {
            negative,
            exponent: exponent.saturating_add(point),
            head,
            tail,
        }
    }

    pub(crate) fn is_zero(&self) -> bool {
        self.head.is_empty()
    }

    pub(crate) fn digit_count(&self) -> usize {
        self.head.len() + self.tail.len()
    }

    /// The digits, as values 0 to 9.
    pub(crate) fn digits(&self) -> impl Iterator<Item = u8> + use<'t> {
        self.head.iter().chain(self.tail).map(|byte| byte - b'0')
    }

    /// The power of ten that the last digit counts.
    fn last_power(&self) -> i64 {
        self.exponent
            .saturating_sub(length(self.head))
            .saturating_sub(length(self.tail))
    }

    /// Whether arithmetic takes this number as an operand.
    pub(crate) fn is_operand(&self) -> bool {
        self.digit_count() <= OPERAND_DIGITS_MAX
            && (self.is_zero() || (self.exponent - 1).abs() <= OPERAND_EXPONENT_MAX)
    }

    /// The magnitude, if it is an integer that fits.
    pub(crate) fn to_u64(self) -> Option<u64> {
        if self.is_zero() {
            return Some(0);
        }
        // 20 is the number of digits of the largest u64.
        if self.last_power() < 0 || self.exponent > 20 {
            return None;
        }
        self.whole_digits().try_fold(0_u64, |sum, digit| {
            sum.checked_mul(10)?.checked_add(u64::from(digit))
        })
    }

    /// The digits before the point, zeros at the end included; none for a magnitude below 1.
    ///
    /// As long as the exponent is large: for operands and other bounded numbers only.
    pub(crate) fn whole_digits(&self) -> impl Iterator<Item = u8> + use<'t> {
        let count = usize::try_from(self.exponent).unwrap_or(0);
        self.digits().chain(std::iter::repeat(0)).take(count)
    }

    pub(crate) fn compare(&self, other: &Decimal<'_>) -> Ordering {
        let sign = |value: &Decimal<'_>| match (value.is_zero(), value.negative) {
            (true, _) => 0,
            (false, true) => -1,
            (false, false) => 1,
        };
        sign(self).cmp(&sign(other)).then_with(|| {
            let magnitude = self
                .exponent
                .cmp(&other.exponent)
                .then_with(|| self.digits().cmp(other.digits()));
            if self.negative {
                magnitude.reverse()
            } else {
                magnitude
            }
        })
    }
}

/// Why a number is no operand, for clients.
pub(crate) fn operand_refusal() -> String {
    format!(
        "a number has more than {OPERAND_DIGITS_MAX} digits or an exponent beyond {OPERAND_EXPONENT_MAX}"
    )
}

/// The exact sum, or nothing if one of the two is no operand for arithmetic.
pub(crate) fn add(left: &Number<'_>, right: &Number<'_>) -> Option<Number<'static>> {
    let (left, right) = (Decimal::of(left), Decimal::of(right));
    if !(left.is_operand() && right.is_operand()) {
        return None;
    }
    let terms: Vec<Decimal<'_>> = [left, right]
        .into_iter()
        .filter(|term| !term.is_zero())
        .collect();
    let low = terms.iter().map(Decimal::last_power).min().unwrap_or(0);
    let high = terms.iter().map(|term| term.exponent).max().unwrap_or(0);
    // One place more than the longer operand has, for the carry. Bounded by the operands' limits.
    let width = usize::try_from(high - low).unwrap_or(0) + 1;

    // Places from the lowest power up, each a signed sum of at most two digits.
    let mut places = vec![0_i8; width];
    for term in &terms {
        let top = usize::try_from(term.exponent - low).unwrap_or(0);
        for (place, digit) in places[..top].iter_mut().rev().zip(term.digits()) {
            let digit = i8::try_from(digit).unwrap_or(0);
            *place += if term.negative { -digit } else { digit };
        }
    }
    let negative = places
        .iter()
        .rev()
        .find(|place| **place != 0)
        .is_some_and(|place| *place < 0);
    let mut carry = 0;
    for place in &mut places {
        let sum = carry + if negative { -*place } else { *place };
        *place = sum.rem_euclid(10);
        carry = sum.div_euclid(10);
    }
    Some(Number::from_checked(format(&places, low, negative)))
}

/// What dividing the whole part of `dividend`, an operand, by `divisor` leaves: digits without leading
/// zeros, so none if it divides.
///
/// `divisor` is digits too, most significant first and not zero. The sign is the caller's business.
pub(crate) fn remainder(dividend: &Decimal<'_>, divisor: &[u8]) -> Vec<u8> {
    if let Some(divisor) = digits_to_u64(divisor) {
        let rest = dividend.whole_digits().fold(0_u128, |rest, digit| {
            (rest * 10 + u128::from(digit)) % u128::from(divisor)
        });
        return match rest {
            0 => Vec::new(),
            rest => rest.to_string().bytes().map(|byte| byte - b'0').collect(),
        };
    }
    // Long division as on paper: at most nine subtractions for each digit.
    let mut rest: Vec<u8> = Vec::with_capacity(divisor.len() + 1);
    for digit in dividend.whole_digits() {
        if digit != 0 || !rest.is_empty() {
            rest.push(digit);
        }
        while rest
            .len()
            .cmp(&divisor.len())
            .then_with(|| rest[..].cmp(divisor))
            .is_ge()
        {
            subtract(&mut rest, divisor);
        }
    }
    rest
}

/// Takes `less` from `digits`, which is not smaller, and leaves no leading zeros.
fn subtract(digits: &mut Vec<u8>, less: &[u8]) {
    let mut borrow = 0;
    let less = less.iter().rev().chain(std::iter::repeat(&0));
    for (digit, less) in digits.iter_mut().rev().zip(less) {
        let take = less + borrow;
        borrow = u8::from(*digit < take);
        *digit = *digit + borrow * 10 - take;
    }
    let zeros = digits.iter().take_while(|digit| **digit == 0).count();
    digits.drain(..zeros);
}

fn digits_to_u64(digits: &[u8]) -> Option<u64> {
    digits.iter().try_fold(0_u64, |sum, digit| {
        sum.checked_mul(10)?.checked_add(u64::from(*digit))
    })
}

/// Spells ± Σ places[i] × 10^(low + i), each place a digit.
fn format(places: &[i8], low: i64, negative: bool) -> String {
    let trailing = places.iter().take_while(|place| **place == 0).count();
    let low = low + i64::try_from(trailing).unwrap_or(0);
    let digits: String = places[trailing..]
        .iter()
        .rev()
        .skip_while(|place| **place == 0)
        .map(|place| char::from(b'0' + place.unsigned_abs()))
        .collect();
    if digits.is_empty() {
        return "0".to_owned();
    }
    let sign = if negative { "-" } else { "" };
    let point = low + length(digits.as_bytes());
    let zeros = |count: i64| {
        usize::try_from(count)
            .ok()
            .filter(|n| *n <= PADDING_ZEROS_MAX)
    };
    if let Some(count) = zeros(low) {
        return format!("{sign}{digits}{:0<count$}", "");
    }
    if low < 0 && point > 0 {
        let (whole, fraction) = digits.split_at(usize::try_from(point).unwrap_or(0));
        return format!("{sign}{whole}.{fraction}");
    }
    if let Some(count) = zeros(-point) {
        return format!("{sign}0.{:0<count$}{digits}", "");
    }
    let (first, rest) = digits.split_at(1);
    let dot = if rest.is_empty() { "" } else { "." };
    format!("{sign}{first}{dot}{rest}e{}", point - 1)
}

fn trim_start(digits: &[u8]) -> &[u8] {
    let zeros = digits.iter().take_while(|byte| **byte == b'0').count();
    &digits[zeros..]
}

fn trim_end(digits: &[u8]) -> &[u8] {
    let zeros = digits
        .iter()
        .rev()
        .take_while(|byte| **byte == b'0')
        .count();
    &digits[..digits.len() - zeros]
}

fn length(digits: &[u8]) -> i64 {
    i64::try_from(digits.len()).unwrap_or(i64::MAX)
}

/// An exponent's text; [`super::EXPONENT_MAX`] bounds its value.
fn small_integer(text: &[u8]) -> i64 {
    let (digits, negative) = match text {
        [b'-', digits @ ..] => (digits, true),
        [b'+', digits @ ..] | digits => (digits, false),
    };
    let magnitude = digits.iter().fold(0_i64, |sum, byte| {
        sum.saturating_mul(10)
            .saturating_add(i64::from(byte - b'0'))
    });
    if negative { -magnitude } else { magnitude }
}
