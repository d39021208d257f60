//! What is refused before anything starts: wrong usage, and doors left open.

use std::fs;

use okdb_tests::command::okdb;
use okdb_tests::server::{Launch, Place};

const USAGE: i32 = 2;

#[test]
fn a_wrong_argument_is_a_usage_error() {
    let place = Place::new();
    for argument in [
        "--no-such-option",
        "--durability=sometimes",
        "--map-size=many",
    ] {
        let (code, words) = Launch::at(&place.root()).arg(argument).refused();
        assert_eq!(code, USAGE, "{argument}: {words}");
    }
    let _ = okdb(["no-such-command"]).expect(USAGE);
    assert!(!place.root().exists(), "a refused start made a root");
}

#[test]
fn an_address_that_others_can_reach_needs_a_token_or_a_plain_word() {
    let place = Place::new();
    let (code, words) = Launch::at(&place.root()).listen("0.0.0.0:0").refused();
    assert_eq!(code, USAGE, "{words}");
    assert!(words.contains("--insecure-no-auth"), "{words}");
    assert!(words.contains("token"), "{words}");

    let server = Launch::at(&place.root())
        .arg("--insecure-no-auth")
        .listen("0.0.0.0:0")
        .start();
    drop(server);
}

#[test]
fn an_unknown_configuration_key_names_the_nearest_known_one() {
    let place = Place::new();
    let file = place.path("config.json");
    fs::write(&file, r#"{"http":{"worker":2}}"#).expect("the place can be written");
    let (code, words) = Launch::plain(&place.root())
        .arg("--config")
        .arg(&file)
        .refused();
    assert_eq!(code, USAGE, "{words}");
    assert!(words.contains("http.worker"), "{words}");
    assert!(words.contains("http.workers"), "{words}");

    fs::write(&file, "{").expect("the place can be written");
    let (code, words) = Launch::plain(&place.root())
        .arg("--config")
        .arg(&file)
        .refused();
    assert_eq!(code, USAGE, "{words}");
    assert!(words.contains("config.json"), "{words}");
}

#[test]
fn an_address_that_is_none_is_a_usage_error() {
    let place = Place::new();
    for listen in ["", "nowhere", "127.0.0.1", "127.0.0.1:99999", "unix:"] {
        let (code, words) = Launch::at(&place.root()).listen(listen).refused();
        assert_eq!(code, USAGE, "--listen {listen:?}: {words}");
    }
}
