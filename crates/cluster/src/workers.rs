//! How many workers to run: one pure function over the places where an operator can say so.
//!
//! It reads neither the environment nor files; the caller passes what it found there.

use std::fmt;
use std::num::NonZeroU16;

/// The most slots one primary supervises. The shared segment has 256 rows for processes; the rest is left to the
/// primary, to commands and to library processes.
pub const WORKER_COUNT_MAX: u16 = 224;

/// What was said about the worker count, in falling order of precedence. `None` means "not said there".
#[derive(Clone, Copy, Debug, Default)]
pub struct Knobs<'a> {
    /// `--no-cluster` was given: one process, whatever else is said.
    pub no_cluster: bool,
    /// The value of `--workers`.
    pub flag: Option<&'a str>,
    /// The value of the environment variable `OKDB_HTTP_WORKERS`.
    pub env: Option<&'a str>,
    /// The value of `http.workers` in the configuration file, as text.
    pub config: Option<&'a str>,
}

/// The place that decided the worker count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// `--no-cluster`.
    NoCluster,
    /// `--workers`.
    Flag,
    /// `OKDB_HTTP_WORKERS`.
    Env,
    /// `http.workers`.
    Config,
    /// Nothing was said: one less than the cores.
    Cores,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoCluster => "--no-cluster",
            Self::Flag => "--workers",
            Self::Env => "OKDB_HTTP_WORKERS",
            Self::Config => "http.workers",
            Self::Cores => "the number of cores",
        })
    }
}

/// The decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerCount {
    /// How many workers to run; 1 means one standalone process.
    pub count: NonZeroU16,
    /// Who decided.
    pub source: Source,
    /// What to tell the operator, when the value had to be bent.
    pub warning: Option<String>,
}

/// Decides the worker count: the first place that says anything wins, even when what it says is unusable.
///
/// A value that is not an integer of at least 1 becomes 1, one above [`WORKER_COUNT_MAX`] becomes that; both with a
/// warning that names the source. `cores` is what the process may use (affinity and cgroup quota respected).
#[must_use]
pub fn worker_count(knobs: Knobs<'_>, cores: usize) -> WorkerCount {
    if knobs.no_cluster {
        return WorkerCount {
            count: NonZeroU16::MIN,
            source: Source::NoCluster,
            warning: None,
        };
    }
    let said = [
        (knobs.flag, Source::Flag),
        (knobs.env, Source::Env),
        (knobs.config, Source::Config),
    ]
    .into_iter()
    .find_map(|(value, source)| value.map(|value| (value, source)));
    let Some((value, source)) = said else {
        let wanted = cores.saturating_sub(1).min(usize::from(WORKER_COUNT_MAX));
        let count = u16::try_from(wanted)
            .ok()
            .and_then(NonZeroU16::new)
            .unwrap_or(NonZeroU16::MIN);
        return WorkerCount {
            count,
            source: Source::Cores,
            warning: None,
        };
    };
    let Some(digits) = read_integer(value) else {
        return clamped(
            value,
            source,
            NonZeroU16::MIN,
            "is not an integer of at least 1",
        );
    };
    // Only digits are left, so what does not parse is too large for the type.
    let count = digits.parse::<u16>().unwrap_or(u16::MAX);
    if count > WORKER_COUNT_MAX {
        let most = NonZeroU16::new(WORKER_COUNT_MAX).unwrap_or(NonZeroU16::MIN);
        return clamped(value, source, most, "is more than can be supervised");
    }
    NonZeroU16::new(count).map_or_else(
        || clamped(value, source, NonZeroU16::MIN, "is below 1"),
        |count| WorkerCount {
            count,
            source,
            warning: None,
        },
    )
}

/// The digits of a plain decimal integer without its sign and leading zeros, so that no length of it overflows.
fn read_integer(value: &str) -> Option<&str> {
    let value = value.trim();
    let digits = value.strip_prefix('+').unwrap_or(value);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let significant = digits.trim_start_matches('0');
    Some(if significant.is_empty() {
        "0"
    } else {
        significant
    })
}

fn clamped(value: &str, source: Source, count: NonZeroU16, why: &str) -> WorkerCount {
    /// Enough of a value to recognise it by; a warning is one line.
    const SHOWN_CHARS_MAX: usize = 40;
    let mut shown: String = value.chars().take(SHOWN_CHARS_MAX).collect();
    if shown.len() < value.len() {
        shown.push('…');
    }
    let warning = format!("{source}: the worker count {shown:?} {why}; using {count}");
    WorkerCount {
        count,
        source,
        warning: Some(warning),
    }
}

#[cfg(test)]
mod tests {
    use super::{Knobs, Source, WORKER_COUNT_MAX, worker_count};
    use proptest::prelude::*;

    fn decide(flag: Option<&str>, env: Option<&str>, config: Option<&str>) -> (u16, Source, bool) {
        let decision = worker_count(
            Knobs {
                no_cluster: false,
                flag,
                env,
                config,
            },
            8,
        );
        (
            decision.count.get(),
            decision.source,
            decision.warning.is_some(),
        )
    }

    #[test]
    fn the_first_that_speaks_wins() {
        assert_eq!(
            decide(Some("2"), Some("3"), Some("4")),
            (2, Source::Flag, false)
        );
        assert_eq!(decide(None, Some("3"), Some("4")), (3, Source::Env, false));
        assert_eq!(decide(None, None, Some("4")), (4, Source::Config, false));
        assert_eq!(decide(None, None, None), (7, Source::Cores, false));
        let alone = worker_count(
            Knobs {
                no_cluster: true,
                flag: Some("x"),
                ..Knobs::default()
            },
            8,
        );
        assert_eq!(
            (alone.count.get(), alone.source, alone.warning),
            (1, Source::NoCluster, None)
        );
    }

    #[test]
    fn an_unusable_value_still_wins_and_is_named() {
        for bad in ["", "0", "-1", "2.5", "1e2", "0x4", "four", "4 4", "٣", "00"] {
            let decision = worker_count(
                Knobs {
                    env: Some(bad),
                    config: Some("4"),
                    ..Knobs::default()
                },
                8,
            );
            assert_eq!(decision.count.get(), 1, "{bad:?}");
            assert_eq!(decision.source, Source::Env);
            let warning = decision.warning.unwrap_or_default();
            assert!(warning.contains("OKDB_HTTP_WORKERS"), "{warning}");
        }
    }

    #[test]
    fn large_values_are_bounded_not_wrapped() {
        for huge in [
            "225",
            "65536",
            "65537",
            "18446744073709551617",
            "99999999999999999999999999",
        ] {
            assert_eq!(
                decide(Some(huge), None, None),
                (WORKER_COUNT_MAX, Source::Flag, true),
                "{huge}"
            );
        }
        assert_eq!(decide(Some("224"), None, None), (224, Source::Flag, false));
        assert_eq!(
            decide(Some(" +0008\n"), None, None),
            (8, Source::Flag, false)
        );
    }

    #[test]
    fn cores_leave_one_for_the_primary() {
        for (cores, count) in [(0, 1), (1, 1), (2, 1), (3, 2), (192, 191), (100_000, 224)] {
            assert_eq!(worker_count(Knobs::default(), cores).count.get(), count);
        }
    }

    proptest! {
        #[test]
        fn any_text_gives_a_usable_count(text in ".{0,60}") {
            let decision = worker_count(Knobs { flag: Some(&text), ..Knobs::default() }, 4);
            prop_assert!((1..=WORKER_COUNT_MAX).contains(&decision.count.get()));
            if let Some(warning) = decision.warning {
                prop_assert!(!warning.contains('\n'));
            }
        }
    }
}
