//! What a worker must not inherit, and what a root must not show to others.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use okdb_tests::server::{Launch, Place};

#[test]
fn nothing_of_systemd_reaches_a_worker() {
    let place = Place::new();
    let socket = place.path("notify");
    let server = Launch::at(&place.root())
        .env("NOTIFY_SOCKET", &socket)
        .env("WATCHDOG_USEC", "2000000")
        .env("WATCHDOG_PID", "1")
        .env("LISTEN_PID", "1")
        .env("LISTEN_FDS", "1")
        .start();
    let workers = server.workers();
    assert_eq!(workers.len(), 2);
    for worker in workers {
        let foreign: Vec<String> = worker
            .environment()
            .into_iter()
            .filter(|entry| {
                ["NOTIFY_", "WATCHDOG_", "LISTEN_"]
                    .iter()
                    .any(|prefix| entry.starts_with(prefix))
            })
            .collect();
        assert!(foreign.is_empty(), "{foreign:?}");
    }
}

#[test]
fn a_root_is_private_to_its_owner() {
    fn walk(path: &Path, look: &mut impl FnMut(&Path, &fs::Metadata)) {
        let metadata = path.symlink_metadata().expect("it was listed");
        look(path, &metadata);
        if metadata.is_dir() {
            for entry in fs::read_dir(path).expect("it is ours").flatten() {
                walk(&entry.path(), look);
            }
        }
    }
    let place = Place::new();
    let mut server = Launch::at(&place.root()).start();
    let mut client = server.client();
    client.put("/api/default/types/t", "{}").expect(200);
    server.stop();
    walk(&place.root(), &mut |path, metadata| {
        let mode = metadata.permissions().mode() & 0o777;
        let wanted = if metadata.is_dir() { 0o700 } else { 0o600 };
        assert_eq!(mode, wanted, "{} has mode {mode:o}", path.display());
    });
}
