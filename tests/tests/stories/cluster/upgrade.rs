//! `SIGUSR2`: the primary becomes the program that now has its name, under the
//! same pid; and if that cannot be, nothing has changed.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use okdb_tests::binary;
use okdb_tests::load::Load;
use okdb_tests::process::{Process, Signal, leaks_no_files, open_files};
use okdb_tests::server::{Launch, Place, Server};
use okdb_tests::torture::{Table, rounds};
use okdb_tests::wait::{SOON, wait_until};

/// A copy of the command that a story may replace.
fn copy(place: &Place) -> PathBuf {
    let program = place.path("okdb");
    fs::copy(binary::okdb(), &program).expect("copied");
    program
}

/// Puts another program in its place, as a package manager does.
fn replace(program: &Path, write: impl FnOnce(&Path)) {
    let new = program.with_extension("new");
    write(&new);
    let mode = fs::Permissions::from_mode(0o755);
    fs::set_permissions(&new, mode).expect("executable");
    fs::rename(&new, program).expect("renamed");
}

fn pids(server: &Server) -> Vec<Option<i32>> {
    server.slots().iter().map(|slot| slot.pid).collect()
}

/// Asks for an upgrade and waits until it is over.
fn upgrade(server: &Server, times_before: usize) {
    let before = pids(server);
    server.signal(Signal::SIGUSR2);
    wait_until("the new program, with new workers", SOON, || {
        server.log().matches("upgraded in place").count() == times_before + 1
            && server.slots().iter().all(|slot| {
                slot.state == "ready" && slot.pid.is_some() && !before.contains(&slot.pid)
            })
    });
}

#[test]
fn an_upgrade_under_load_fails_no_request_and_keeps_the_pid() {
    let rounds = rounds(3, 50);
    let place = Place::new();
    let program = copy(&place);
    let socket = place.path("socket");
    let mut server = Launch::of(&program, &place.root())
        .arg("--auto-types")
        .listen("127.0.0.1:0")
        .listen(format!("unix:{}", socket.display()))
        .start();
    let me = Process::find(server.pid()).expect("a primary");
    let load = Load::start(&server.addresses()[0], "upgrade", 6, 6);
    let by_file = Load::start(&server.addresses()[1], "upgrade-unix", 2, 2);
    load.wait_for_more(100);
    let mut files = None;
    for round in 0..rounds {
        replace(&program, |new| {
            fs::copy(binary::okdb(), new).expect("copied");
        });
        upgrade(&server, round);
        load.wait_for_more(50);
        by_file.wait_for_more(20);
        super::reload::wait_for_no_leavers(&server);
        let now = open_files(server.pid());
        let first = *files.get_or_insert(now);
        wait_until(
            "no descriptor more than after the first upgrade",
            SOON,
            || leaks_no_files(server.pid(), first),
        );
    }
    let (outcome, by_file) = (load.finish(), by_file.finish());
    outcome.tally.expect_no_failure();
    by_file.tally.expect_no_failure();
    outcome.expect_written(&mut server.client());
    by_file.expect_written(&mut server.client());
    assert!(me.lives(), "the same process, by pid and start time");
    let mut table = Table::new(
        "upgrades in place under load",
        &["", "upgrades", "answered", "failed"],
    );
    let answered = outcome.tally.answered + by_file.tally.answered;
    table.row("2 workers", &[rounds as u64, answered, 0]);
    table.print();

    // It still is a primary: it replaces the dead, holds the root, and ends.
    let victim = server.slots()[1]
        .pid
        .and_then(Process::find)
        .expect("ready");
    victim.signal(Signal::SIGKILL);
    wait_until("the next worker", SOON, || {
        let slot = server.slots()[1].clone();
        slot.state == "ready" && slot.pid != Some(victim.pid)
    });
    let (code, words) = Launch::at(&place.root()).refused();
    assert_eq!(code, 3, "{words}");
    assert!(words.contains(&server.pid().to_string()), "{words}");
    server.stop();
    assert!(
        !socket.exists(),
        "the socket's file is gone with the server"
    );
}

#[test]
fn what_cannot_go_on_changes_nothing() {
    let place = Place::new();
    let program = copy(&place);
    let mut server = Launch::of(&program, &place.root()).start();
    let before = pids(&server);
    let spoiled = place.path("spoiled");
    let passes_and_spoils_itself = format!(
        "#!/bin/sh\n{} \"$@\"; code=$?\nprintf '\\000' > {spoiled}; chmod +x {spoiled}; mv {spoiled} {}\nexit $code\n",
        binary::okdb().display(),
        program.display(),
        spoiled = spoiled.display(),
    );
    let attempts: [(&str, &str); 4] = [
        ("#!/bin/sh\nexit 0\n", "upgrade refused"),
        ("#!/bin/sh\necho not today >&2\nexit 1\n", "not today"),
        ("#!/bin/sh\nkill -KILL $$\n", "upgrade refused"),
        (&passes_and_spoils_itself, "the upgrade failed"),
    ];
    for (attempt, (text, said)) in (1..).zip(attempts) {
        replace(&program, |new| fs::write(new, text).expect("written"));
        server.signal(Signal::SIGUSR2);
        wait_until("the last word", SOON, || {
            server.log().matches("nothing has changed").count() == attempt
        });
        assert!(server.log().contains(said), "{}", server.log());
        assert_eq!(pids(&server), before);
        server.client().get("/healthz").expect(200);
    }
    fs::remove_file(&program).expect("removed");
    server.signal(Signal::SIGUSR2);
    wait_until("the refusal", SOON, || {
        server.log().contains("the check cannot be started")
    });
    assert_eq!(pids(&server), before);

    // Background work goes on: an index is built after all that.
    let mut client = server.client();
    client
        .post("/api/default/types", r#"{"name":"t"}"#)
        .expect(201);
    client
        .put("/api/default/types/t/a", r#"{"value":{"n":1}}"#)
        .expect(201);
    client
        .post("/api/default/indexes/t", r#"{"fields":["n"]}"#)
        .expect(201);
    wait_until("a ready index", SOON, || {
        let indexes = client.get("/api/default/indexes/t").expect(200).json();
        indexes["indexes"][0]["state"] == "ready"
    });

    replace(&program, |new| {
        fs::copy(binary::okdb(), new).expect("copied");
    });
    upgrade(&server, 0);
    server.stop();
}

#[test]
fn a_stop_that_comes_with_an_upgrade_is_not_lost() {
    for round in 0..rounds(3, 100) {
        let place = Place::new();
        let program = copy(&place);
        let mut server = Launch::of(&program, &place.root()).start();
        server.signal(Signal::SIGUSR2);
        // At another moment of the upgrade each time.
        let checks = round % 3;
        if checks > 0 {
            wait_until("the check", SOON, || {
                server.log().contains("checking whether")
            });
        }
        if checks > 1 {
            wait_until("the hand-over", SOON, || {
                server.log().contains("handing over")
            });
        }
        server.signal(Signal::SIGTERM);
        server.expect_clean_exit();
    }
}

#[test]
fn what_only_a_restart_can_change_is_left_as_it_is() {
    let place = Place::new();
    let program = copy(&place);
    let file = place.path("okdb.json");
    let configure = |text: &str| fs::write(&file, text).expect("written");
    configure(r#"{"http":{"workers":2}}"#);
    let mut server = Launch::program(&program, &place.root())
        .arg("--config")
        .arg(&file)
        .start();
    // No command-line option says how many workers, so that the file does.
    configure(r#"{"http":{"workers":3},"storage":{"durability":"fast","mapSize":1073741824}}"#);
    server.signal(Signal::SIGUSR2);
    wait_until("the new program, and a worker more", SOON, || {
        server.log().contains("upgraded in place")
            && server
                .slots()
                .iter()
                .filter(|slot| slot.state == "ready")
                .count()
                == 3
    });
    let info = server.client().get("/api/info").expect(200).json();
    assert_eq!(info["durability"], "strict");

    wait_until("the end of the reload", SOON, || {
        server.log().contains("reloaded")
    });
    // A log that cannot be opened is found out by the check.
    let before = pids(&server);
    configure(r#"{"http":{"workers":3},"log":{"file":"/nonexistent/okdb.log"}}"#);
    server.signal(Signal::SIGUSR2);
    wait_until("the refusal", SOON, || {
        server.log().contains("the new program cannot go on")
    });
    assert!(server.log().contains("/nonexistent/okdb.log"));
    assert_eq!(pids(&server), before);
    server.stop();
}

#[test]
fn no_thread_but_the_main_one_hears_signals() {
    let place = Place::new();
    let program = copy(&place);
    let log = place.path("okdb.log");
    let mut server = Launch::of(&program, &place.root())
        .arg("--log-file")
        .arg(&log)
        .start();
    let term = 1_u64 << (Signal::SIGTERM as u64 - 1);
    let pid = server.pid();
    let threads = fs::read_dir(format!("/proc/{pid}/task")).expect("threads");
    let mut hearing = Vec::new();
    for thread in threads {
        let status = fs::read_to_string(thread.expect("a thread").path().join("status"));
        // One that has ended meanwhile hears nothing.
        let Ok(status) = status else { continue };
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.map(|line| line.trim().to_owned()).expect("a field")
        };
        let blocked = u64::from_str_radix(&field("SigBlk:"), 16).expect("a mask");
        if blocked & term == 0 {
            hearing.push((field("Pid:"), field("Name:")));
        }
    }
    let main = [pid.to_string()];
    let pids: Vec<&String> = hearing.iter().map(|(pid, _)| pid).collect();
    assert_eq!(pids, main.iter().collect::<Vec<_>>(), "{hearing:?}");
    server.stop();
}
