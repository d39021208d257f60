//! However a body arrives, its lines are the same, and each is told apart from its neighbours.
#![allow(clippy::unwrap_used, reason = "a test that fails should panic")]

use proptest::prelude::*;

use bytes::Bytes;
use okdb_store::Action;

use super::{
    line::Form,
    lines::{BYTE_ORDER_MARK, CHUNK_LINES_MAX, Chunk, Lines},
};
use crate::codes::Code;

/// Feeds bytes in pieces and collects what comes out: line number and text, in order.
fn split(text: &[u8], pieces: &[usize], line_bytes_max: usize) -> Vec<(u64, Option<Vec<u8>>)> {
    let mut lines = Lines::new(line_bytes_max);
    let mut found = Vec::new();
    let mut take = |chunk: Chunk| {
        if chunk.too_long {
            found.push((chunk.first_line, None));
            return;
        }
        let bytes = chunk.bytes.strip_suffix(b"\n").unwrap_or(&chunk.bytes);
        for (place, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
            found.push((chunk.first_line + place as u64, Some(line.to_vec())));
        }
    };
    let mut rest = text;
    let mut sizes = pieces.iter().copied().cycle();
    while !rest.is_empty() {
        let (piece, more) = rest.split_at(sizes.next().unwrap_or(1).clamp(1, rest.len()));
        rest = more;
        lines.push(piece);
        while let Some(chunk) = lines.full_chunk() {
            take(chunk);
        }
    }
    while let Some(chunk) = lines.last_chunk() {
        take(chunk);
    }
    found
}

fn texts(found: &[(u64, Option<Vec<u8>>)]) -> Vec<&[u8]> {
    found
        .iter()
        .map(|(_, text)| text.as_deref().unwrap())
        .collect()
}

#[test]
fn a_mark_and_a_missing_last_newline_are_fine() {
    for pieces in [[1], [2], [3], [100]] {
        let found = split(b"\xEF\xBB\xBFa\n\nb\r\nc", &pieces, 100);
        assert_eq!(texts(&found), [&b"a"[..], b"", b"b\r", b"c"]);
        assert_eq!(found.last().unwrap().0, 4);
        assert_eq!(split(b"", &pieces, 100), []);
    }
}

#[test]
fn chunks_are_bounded_by_lines() {
    let text = "{}\n".repeat(CHUNK_LINES_MAX * 2 + 5);
    let mut lines = Lines::new(100);
    lines.push(text.as_bytes());
    let mut counts = Vec::new();
    while let Some(chunk) = lines.full_chunk() {
        counts.push(chunk.bytes.len() / 3);
    }
    assert_eq!(counts, [CHUNK_LINES_MAX, CHUNK_LINES_MAX]);
    assert_eq!(lines.last_chunk().unwrap().bytes.len(), 15);
    assert!(lines.last_chunk().is_none());
}

#[test]
fn a_line_too_long_is_skipped_and_the_rest_goes_on() {
    let text = [b"short\n".as_slice(), &[b'x'; 50], b"\nnext\n", &[b'y'; 50]].concat();
    let found = split(&text, &[7], 20);
    let numbers: Vec<_> = found
        .iter()
        .map(|(line, text)| (*line, text.is_some()))
        .collect();
    assert_eq!(numbers, [(1, true), (2, false), (3, true), (4, false)]);
}

/// Lines with their key and value.
type Good = Vec<(u64, String, String)>;

fn parse(lines: &str, key_field: Option<&str>) -> (Good, Vec<(u64, Code)>) {
    let form = Form {
        type_name: "t".into(),
        key_field: key_field.map(str::to_owned),
    };
    let bytes = Bytes::copy_from_slice(lines.as_bytes());
    let parsed = form.parse(&Chunk {
        first_line: 1,
        bytes,
        too_long: false,
    });
    let operations = parsed
        .operations
        .into_iter()
        .zip(parsed.lines)
        .map(|(operation, line)| {
            let Action::Put(value) = operation.action else {
                panic!("not a put")
            };
            (line, operation.key, value)
        });
    (
        operations.collect(),
        parsed
            .failed
            .iter()
            .map(|(line, problem)| (*line, problem.code()))
            .collect(),
    )
}

#[test]
fn lines_become_operations_and_bad_ones_are_named() {
    let (good, bad) = parse(
        "{\"key\":\"a\",\"value\":{\"n\": 1.0}}\r\n  \n{\"key\":\"b\"}\n{\"key\":1,\"value\":1}\nnonsense\n{\"key\":\"\",\"value\":1}\n{\"key\":\"c\",\"value\":1,\"x\":2}\n{\"value\":null,\"key\":\"d\"}",
        None,
    );
    assert_eq!(
        good,
        [
            (1, "a".to_owned(), "{\"n\":1.0}".to_owned()),
            (8, "d".to_owned(), "null".to_owned())
        ]
    );
    assert_eq!(
        bad,
        [
            (3, Code::InvalidParameter),
            (4, Code::InvalidParameter),
            (5, Code::InvalidJson),
            (6, Code::InvalidKey),
            (7, Code::UnknownParameter),
        ]
    );
}

#[test]
fn bare_documents_give_their_own_key() {
    let (good, bad) = parse(
        "{\"id\": \"a\", \"n\":1}\n{\"id\":12345678901234567890}\n{\"id\":null}\n{}\n[1]",
        Some("id"),
    );
    assert_eq!(
        good,
        [
            (1, "a".to_owned(), "{\"id\":\"a\",\"n\":1}".to_owned()),
            (
                2,
                "12345678901234567890".to_owned(),
                "{\"id\":12345678901234567890}".to_owned()
            ),
        ]
    );
    assert_eq!(
        bad,
        [
            (3, Code::InvalidParameter),
            (4, Code::InvalidParameter),
            (5, Code::InvalidJson)
        ]
    );
}

proptest! {
    #[test]
    fn however_the_bytes_come_the_lines_are_the_same(
        text in proptest::collection::vec(prop_oneof![Just(b'\n'), Just(b'\r'), Just(0xEF_u8), any::<u8>()], 0..300),
        pieces in proptest::collection::vec(1_usize..40, 1..5),
        line_bytes_max in 1_usize..60,
    ) {
        let body = text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&text);
        let mut expected: Vec<&[u8]> = body.split(|byte| *byte == b'\n').collect();
        if expected.last().is_some_and(|last| last.is_empty()) {
            expected.pop();
        }
        let found = split(&text, &pieces, line_bytes_max);
        prop_assert_eq!(found.len(), expected.len());
        for (place, (line, text)) in found.iter().enumerate() {
            prop_assert_eq!(*line, place as u64 + 1);
            match text {
                Some(text) => prop_assert_eq!(text.as_slice(), expected[place]),
                None => prop_assert!(expected[place].len() > line_bytes_max),
            }
        }
    }
}
