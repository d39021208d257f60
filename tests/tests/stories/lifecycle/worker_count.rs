//! How many workers: the whole order of precedence, and what a value that is no
//! number of workers does.

use std::fs;

use okdb_tests::command::doctor;
use okdb_tests::server::{Launch, Place, Server};

fn count(server: &Server) -> usize {
    server.slots().len()
}

fn single(server: &mut Server) {
    assert_eq!(server.status()["mode"], "single");
    assert_eq!(server.client().get("/healthz").expect(200).worker(), 0);
    assert!(server.workers().is_empty(), "a standalone server forks");
    server.stop();
}

#[test]
fn the_first_of_four_sources_wins() {
    let place = Place::new();
    let root = place.root();
    let config = place.path("config.json");
    fs::write(&config, r#"{"http":{"workers":2}}"#).expect("the place can be written");
    let config = config.to_str().expect("a temporary path is UTF-8");

    let from_config = Launch::plain(&root).args(&["--config", config]).start();
    assert_eq!(count(&from_config), 2);
    drop(from_config);

    let from_environment = Launch::plain(&root)
        .args(&["--config", config])
        .env("OKDB_HTTP_WORKERS", "3")
        .start();
    assert_eq!(count(&from_environment), 3);
    drop(from_environment);

    let from_argument = Launch::plain(&root)
        .args(&["--config", config, "--workers", "4"])
        .env("OKDB_HTTP_WORKERS", "3")
        .start();
    assert_eq!(count(&from_argument), 4);
    assert_eq!(from_argument.workers().len(), 4);
    drop(from_argument);

    let mut alone = Launch::plain(&root)
        .args(&["--config", config, "--no-cluster"])
        .env("OKDB_HTTP_WORKERS", "3")
        .start();
    single(&mut alone);
}

#[test]
fn a_configuration_file_in_the_working_directory_or_the_root_counts() {
    let place = Place::new();
    fs::write(place.path(".kdbconfig"), r#"{"http":{"workers":3}}"#).expect("writable");
    let server = Launch::plain(&place.root()).start();
    assert_eq!(count(&server), 3);
    drop(server);

    fs::remove_file(place.path(".kdbconfig")).expect("it was written");
    fs::write(place.root().join(".kdbconfig"), r#"{"http":{"workers":2}}"#).expect("writable");
    let server = Launch::plain(&place.root()).start();
    assert_eq!(count(&server), 2);
}

#[test]
fn a_configuration_file_may_lie_in_the_root_before_its_first_start() {
    let place = Place::new();
    fs::create_dir(place.root()).expect("writable");
    fs::write(place.root().join(".kdbconfig"), r#"{"http":{"workers":2}}"#).expect("writable");
    let server = Launch::plain(&place.root()).start();
    assert_eq!(count(&server), 2);
}

#[test]
fn a_value_that_is_no_count_becomes_one_with_a_warning() {
    let place = Place::new();
    for value in ["0", "-3", "2.5", "many", ""] {
        let mut server = Launch::plain(&place.root())
            .arg(format!("--workers={value}"))
            .start();
        let log = server.log();
        assert!(log.contains("--workers"), "--workers={value:?}: {log}");
        single(&mut server);

        let mut server = Launch::plain(&place.root())
            .env("OKDB_HTTP_WORKERS", value)
            .start();
        let log = server.log();
        assert!(
            log.contains("OKDB_HTTP_WORKERS"),
            "OKDB_HTTP_WORKERS={value:?}: {log}"
        );
        single(&mut server);
    }
}

#[test]
fn without_shared_memory_it_runs_as_one_process_whatever_was_asked() {
    let place = Place::new();
    let mut server = Launch::plain(&place.root())
        .args(&["--workers", "3"])
        .env("OKDB_FORCE_SHM_FALLBACK", "1")
        .start();
    let log = server.log();
    assert!(log.contains("OKDB_FORCE_SHM_FALLBACK"), "{log}");
    let mut client = server.client();
    client.put("/api/default/types/t", "{}").expect(200);
    client
        .put("/api/default/types/t/k", r#"{"value":1}"#)
        .expect(201);
    single(&mut server);

    let root = place.root();
    let told = doctor(&root, &[("OKDB_FORCE_SHM_FALLBACK", "1")]);
    let text = format!("{}{}", told.stdout, told.stderr);
    assert!(text.contains("cluster: unavailable ("), "{text}");
    assert!(text.contains("running single-process"), "{text}");

    let mut server = Launch::at(&root).start();
    server.client().get("/api/default/types/t/k").expect(200);
    let told = doctor(&root, &[]).expect(0);
    assert!(told.stdout.contains("cluster: ready ("), "{}", told.stdout);
    server.stop();
}
