//! Tests of the segment as private memory, and helpers for the other modules' tests.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use super::*;
use crate::owner::ClaimError;

pub(crate) const IDENTITY: Identity = Identity {
    root: [1; 16],
    boot: [2; 16],
};

pub(crate) fn private() -> Arc<Segment> {
    Segment::private(&IDENTITY).unwrap()
}

/// A process that does not live, with a pid that does.
pub(crate) fn dead() -> process::Identity {
    let me = process::Identity::current().unwrap();
    process::Identity {
        start_time: me.start_time + 1,
        ..me
    }
}

#[test]
fn private_memory_is_not_shared() {
    let segment = private();
    assert!(!segment.is_shared());
    assert_eq!(segment.path(), None);
    let info = segment.info();
    assert_eq!(
        (info.bytes, info.layout_version),
        (SEGMENT_BYTES, LAYOUT_VERSION)
    );
    assert!(info.created_unix_ms > 0);
}

#[test]
fn an_environments_row_is_its_own() {
    let segment = private();
    let row = segment.env(3).unwrap();
    assert_eq!(row.identity(), None);
    assert_eq!(row.claim(0), Err(ClaimError::Env));
    row.claim(77).unwrap();
    row.claim(77).unwrap();
    assert_eq!(row.claim(78), Err(ClaimError::OtherEnv(77)));
    assert_eq!(row.identity(), Some(77));
    assert!(segment.env(crate::ENV_COUNT_MAX).is_none());
}

#[test]
fn a_published_clock_never_goes_back() {
    let segment = private();
    let row = segment.env(0).unwrap();
    for (clock, seen) in [(5, 5), (3, 5), (6, 6)] {
        row.publish(clock);
        assert_eq!(row.clock(), seen);
        row.set_generation(clock);
        assert_eq!(row.generation(), seen);
    }
    assert_eq!(segment.env(1).unwrap().clock(), 0);
}

#[test]
fn identities_are_words_in_memory_order() {
    let bytes: [u8; 16] = std::array::from_fn(|i| u8::try_from(i).unwrap());
    let back: Vec<u8> = words_of(bytes)
        .into_iter()
        .flat_map(u64::to_ne_bytes)
        .collect();
    assert_eq!(back, bytes);
}

#[test]
fn every_word_of_the_static_part_is_covered() {
    let segment = private();
    let fixed = &segment.tables().header.fixed;
    let birth = Birth {
        nonce: segment.info().nonce,
        place: Place { dev: 0, ino: 0 },
        namespaces: Namespaces::current().unwrap(),
    };
    assert!(examine(fixed, &IDENTITY, &birth).is_ok());
    let words = [
        &fixed.magic,
        &fixed.layout,
        &fixed.size,
        &fixed.nonce,
        &fixed.root[0],
        &fixed.root[1],
        &fixed.boot[0],
        &fixed.boot[1],
        &fixed.created_unix_ms,
        &fixed.run_dev,
        &fixed.run_ino,
        &fixed.pid_namespace,
        &fixed.time_namespace,
        &fixed.checksum,
    ];
    for word in words {
        let good = word.load(Ordering::Relaxed);
        for bad in [0, good ^ 1, good ^ (1 << 63)] {
            if bad != good {
                word.store(bad, Ordering::Relaxed);
                assert!(examine(fixed, &IDENTITY, &birth).is_err());
            }
        }
        word.store(good, Ordering::Relaxed);
    }
    assert!(examine(fixed, &IDENTITY, &birth).is_ok());
}

#[test]
fn each_misfit_has_its_reason() {
    let segment = private();
    let fixed = &segment.tables().header.fixed;
    let here = Namespaces::current().unwrap();
    let nonce = segment.info().nonce;
    let place = Place { dev: 0, ino: 0 };
    let examine = |identity, nonce, place, namespaces| {
        let birth = Birth {
            nonce,
            place,
            namespaces,
        };
        match examine(fixed, &identity, &birth) {
            Err(Unfit::Stale(reason)) => reason.to_string(),
            Err(Unfit::Foreign(reason)) => reason.to_string(),
            Ok(()) => String::new(),
        }
    };
    assert_eq!(examine(IDENTITY, nonce, place, here), "");
    let root = Identity {
        root: [9; 16],
        ..IDENTITY
    };
    assert!(examine(root, nonce, place, here).contains("another root"));
    let boot = Identity {
        boot: [9; 16],
        ..IDENTITY
    };
    assert!(examine(boot, nonce, place, here).contains("another boot"));
    let copy = Place { ino: 1, ..place };
    assert!(examine(IDENTITY, nonce, copy, here).contains("another copy"));
    assert!(examine(IDENTITY, nonce ^ 1, place, here).contains("nonce"));
    let elsewhere = Namespaces {
        pid: here.pid ^ 1,
        ..here
    };
    assert!(examine(IDENTITY, nonce, place, elsewhere).contains("namespace"));
}
