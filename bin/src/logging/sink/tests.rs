//! Readers that stop, readers that go, disks that are full, files that are renamed under the writer.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Read},
    os::fd::OwnedFd,
    path::Path,
    time::Duration,
};

use super::{super::style::Form, QUEUE_BYTES_MAX, Sink, Style, Target};

const PATIENCE: Duration = Duration::from_secs(60);

const STYLE: Style = Style {
    form: Form::Text,
    slot: None,
};

fn piped() -> (std::io::PipeReader, Sink) {
    let (reader, writer) = std::io::pipe().unwrap();
    let file = File::from(OwnedFd::from(writer));
    (reader, Sink::start(Target::Stderr, file, STYLE).unwrap())
}

fn to_file(path: &Path) -> Sink {
    let target = Target::File(path.to_owned());
    let file = target.open().unwrap();
    Sink::start(target, file, STYLE).unwrap()
}

#[test]
fn a_reader_that_stops_holds_nobody_up_and_learns_what_it_missed() {
    let (reader, sink) = piped();
    let line = [b"x".repeat(999), b"\n".to_vec()].concat();
    // Three times what the queue and the pipe can hold.
    let pushed = 3 * (QUEUE_BYTES_MAX / line.len()) as u64;
    for _ in 0..pushed {
        sink.push(line.clone());
    }
    assert!(!sink.flush(Duration::from_millis(1)), "nobody reads");
    // It reads again.
    let (mut seen, mut dropped) = (0, 0);
    for line in BufReader::new(reader).lines() {
        let line = line.unwrap();
        if line.starts_with('x') {
            assert_eq!(line.len(), 999, "a torn line");
            seen += 1;
        } else {
            let (_, rest) = line.split_once(" WARN ").unwrap();
            dropped += rest.split_once(' ').unwrap().0.parse::<u64>().unwrap();
        }
        if seen + dropped == pushed {
            break;
        }
    }
    assert!(dropped > 0);
    assert!(sink.flush(PATIENCE));
}

#[test]
fn a_reader_that_goes_away_holds_nobody_up() {
    let (reader, sink) = piped();
    drop(reader);
    for _ in 0..1_000 {
        sink.push(b"nobody\n".to_vec());
    }
    assert!(sink.flush(PATIENCE), "what cannot be written is let go");
}

#[test]
fn what_a_full_disk_refused_is_counted_when_there_is_room_again() {
    let folder = tempfile::tempdir().unwrap();
    let sink = to_file(Path::new("/dev/full"));
    for _ in 0..7 {
        sink.push(b"lost\n".to_vec());
    }
    assert!(sink.flush(PATIENCE));
    let target = Target::File(folder.path().join("log"));
    sink.redirect(target.clone(), target.open().unwrap(), STYLE);
    assert!(sink.flush(PATIENCE));
    sink.push(b"kept\n".to_vec());
    assert!(sink.flush(PATIENCE));
    let text = fs::read_to_string(folder.path().join("log")).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 2, "{text}");
    assert!(
        lines[0].contains(" 7 lines of the log were dropped"),
        "{text}"
    );
    assert_eq!(lines[1], "kept");
}

#[test]
fn renaming_and_reopening_loses_and_repeats_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    let sink = to_file(&path);
    let writer = std::thread::spawn({
        let sink = sink.clone();
        move || {
            for number in 0..20_000 {
                sink.push(format!("{number}\n").into_bytes());
            }
        }
    });
    for round in 0..20 {
        fs::rename(&path, folder.path().join(format!("log.{round:02}"))).unwrap();
        sink.reopen();
        assert!(sink.flush(PATIENCE));
        assert!(path.exists(), "it is made at once, not at the next line");
    }
    writer.join().unwrap();
    assert!(sink.flush(PATIENCE));
    let mut files: Vec<_> = fs::read_dir(folder.path()).unwrap().flatten().collect();
    // `log` is the last one.
    files.sort_by_key(|file| (file.path() == path, file.file_name()));
    let mut text = String::new();
    for file in files {
        File::open(file.path())
            .unwrap()
            .read_to_string(&mut text)
            .unwrap();
    }
    let numbers = text.lines().map(|line| line.parse::<u32>().unwrap());
    assert!(
        numbers.eq(0..20_000),
        "lines are missing, twice there or out of order"
    );
}

#[test]
fn a_file_that_cannot_be_opened_again_is_used_on() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    let sink = to_file(&path);
    sink.push(b"before\n".to_vec());
    assert!(sink.flush(PATIENCE));
    let moved = folder.path().join("log.1");
    fs::rename(&path, &moved).unwrap();
    fs::create_dir(&path).unwrap();
    sink.reopen();
    assert!(sink.flush(PATIENCE));
    sink.push(b"after\n".to_vec());
    assert!(sink.flush(PATIENCE));
    let text = fs::read_to_string(&moved).unwrap();
    assert!(
        text.starts_with("before\n") && text.ends_with("after\n"),
        "{text}"
    );
    assert!(text.contains("cannot be opened again"), "{text}");
}

#[test]
fn a_new_log_file_is_not_for_everybody() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    let _sink = to_file(&path);
    let mode = fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o027, 0, "{mode:o}");
}
