//! Owns the made-up: random numbers from a reported seed, and records that look
//! like real ones, with text in many scripts.

/// A small generator of random numbers (`SplitMix64`): one seed, one story.
#[derive(Clone)]
pub struct Random(u64);

impl Random {
    /// Starts from `OKDB_SEED` if given, else from `seed`; says which.
    #[must_use]
    pub fn new(story: &str, seed: u64) -> Self {
        let seed = std::env::var("OKDB_SEED")
            .ok()
            .and_then(|text| text.parse().ok())
            .unwrap_or(seed);
        println!("{story}: OKDB_SEED={seed}");
        Self(seed)
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number in `0..end`; 0 where `end` is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.bits() % end.max(1)
    }

    /// An index into something of that length.
    pub fn index(&mut self, length: usize) -> usize {
        usize::try_from(self.below(length as u64)).expect("below a usize")
    }

    /// One of these.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.index(of.len())]
    }

    /// That many random bytes.
    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.bits().to_le_bytes()[3]).collect()
    }
}

/// Place names in many scripts: composed and decomposed accents, right-to-left,
/// beyond the basic plane, quotes and backslashes.
const PLACES: [&str; 16] = [
    "Łódź",
    "Zürich",
    "Zu\u{308}rich",
    "São Paulo",
    "Санкт-Петербург",
    "القاهرة",
    "תל אביב",
    "東京都",
    "서울특별시",
    "กรุงเทพมหานคร",
    "Llanfair\u{a0}PG",
    "Saint \"Quote\" \\ Backslash",
    "𝔊𝔬𝔱𝔥𝔞𝔪",
    "🏙️ Emoji City",
    "line\u{2028}separator",
    "O'Fallon & <Sons>",
];

/// Country codes; few, so that an index over them has long runs.
pub const COUNTRIES: [&str; 12] = [
    "AD", "BR", "CH", "CN", "DE", "EG", "GB", "IL", "JP", "KR", "PL", "TH",
];

/// The key of record `number`.
#[must_use]
pub fn key(number: usize) -> String {
    format!("place-{number:06}")
}

/// The country that record `number` always has.
#[must_use]
pub fn country(number: usize) -> &'static str {
    COUNTRIES[(number * 7 + number / 12) % COUNTRIES.len()]
}

/// Record `number` as JSON text; `attempt` tells which write of it this is.
#[must_use]
pub fn value(number: usize, attempt: u64) -> String {
    let place = PLACES[number % PLACES.len()];
    let name = serde_json::to_string(&format!("{place} {number}")).expect("a string is JSON");
    let latitude = (number * 977) % 180_000;
    format!(
        r#"{{"name":{name},"country":"{}","lat":{}.{:03},"population":{},"tags":["t{}","t{}"],"number":{number},"attempt":{attempt}}}"#,
        country(number),
        latitude / 1_000,
        latitude % 1_000,
        number * 31 % 9_000_000,
        number % 7,
        number % 11,
    )
}

/// Lines for an import: one `{"key","value"}` for each pair of a key and JSON text.
#[must_use]
pub fn lines(records: impl IntoIterator<Item = (String, String)>) -> String {
    let mut out = String::new();
    for (key, value) in records {
        let key = serde_json::to_string(&key).expect("a string is JSON");
        for part in ["{\"key\":", &key, ",\"value\":", &value, "}\n"] {
            out.push_str(part);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::{key, lines, value};

    #[test]
    fn records_are_json_and_the_same_each_time() {
        for number in 0..200 {
            let text = value(number, 3);
            assert_eq!(text, value(number, 3));
            let parsed: serde_json::Value = serde_json::from_str(&text).expect("JSON");
            assert_eq!(parsed["attempt"], 3);
            let line = lines([(key(number), text)]);
            let line: serde_json::Value = serde_json::from_str(&line).expect("NDJSON");
            assert_eq!(line["value"], parsed);
        }
    }
}
