//! A root of a newer storage format is refused in plain words, and untouched;
//! a folder that is no root is not made one by a tool.

use std::fs;

use okdb_tests::command::okdb;
use okdb_tests::server::{Launch, Place};

#[test]
fn a_newer_format_is_refused_by_the_server_and_by_every_tool() {
    let place = Place::new();
    let root = place.root();
    let mut server = Launch::at(&root).start();
    let mut client = server.client();
    client.put("/api/default/types/t", "{}").expect(200);
    client
        .put("/api/default/types/t/k", r#"{"value":1}"#)
        .expect(201);
    server.stop();

    let file = root.join("format");
    let known = fs::read_to_string(&file).expect("a root says its format");
    let digits: String = known.chars().filter(char::is_ascii_digit).collect();
    assert!(!digits.is_empty(), "{known:?}");
    fs::write(&file, known.replacen(&digits, "9999", 1)).expect("ours");

    let (code, words) = Launch::at(&root).refused();
    assert!(matches!(code, 1 | 2), "exit code {code}: {words}");
    assert!(
        words.contains("9999") && words.contains("format"),
        "{words}"
    );
    let path = root.to_str().expect("UTF-8");
    let copy = place.path("copy");
    for arguments in [
        vec!["verify", "--root", path],
        vec!["export", "t", "--root", path],
        vec!["backup", "--root", path, copy.to_str().expect("UTF-8")],
    ] {
        let done = okdb(&arguments);
        assert!(matches!(done.code, 1 | 2), "{arguments:?}: {done:?}");
        assert!(done.stderr.contains("9999"), "{arguments:?}: {done:?}");
    }
    assert!(!copy.exists(), "a refused backup left something");

    fs::write(&file, known).expect("ours");
    let server = Launch::at(&root).start();
    server.client().get("/api/default/types/t/k").expect(200);
}

#[test]
fn a_garbled_format_is_refused_too() {
    let place = Place::new();
    let root = place.root();
    Launch::at(&root).start().stop();
    for garbage in ["", "not a number", "-1"] {
        fs::write(root.join("format"), garbage).expect("ours");
        let (code, words) = Launch::at(&root).refused();
        assert!(
            matches!(code, 1 | 2),
            "{garbage:?}: exit code {code}: {words}"
        );
        assert!(words.contains("format"), "{garbage:?}: {words}");
    }
}

#[test]
fn a_folder_that_is_no_root_stays_what_it_is() {
    let place = Place::new();
    let folder = place.path("photos");
    fs::create_dir(&folder).expect("writable");
    fs::write(folder.join("cat.jpg"), b"meow").expect("writable");
    let path = folder.to_str().expect("UTF-8");
    for arguments in [
        vec!["verify", "--root", path],
        vec!["export", "t", "--root", path],
    ] {
        let done = okdb(&arguments);
        assert!(matches!(done.code, 1 | 2), "{arguments:?}: {done:?}");
    }
    let (code, words) = Launch::at(&folder).refused();
    assert!(matches!(code, 1 | 2), "exit code {code}: {words}");
    assert!(words.contains(path), "{words}");
    let left: Vec<_> = fs::read_dir(&folder).expect("there").flatten().collect();
    assert_eq!(left.len(), 1, "{left:?}");
}
