//! A full map: the write is refused with 507, reads go on, deletes work, and
//! writes resume without a restart. Copy-on-write needs pages even to delete,
//! and a change log makes a delete a write: full stores could not be emptied.

use okdb_tests::http::Client;
use okdb_tests::oracle;
use okdb_tests::server::{Launch, Place};

const MAP_BYTES: &str = "8388608";

fn put(client: &mut Client, number: usize) -> u16 {
    let pad = format!("{number:0>1800}");
    let answer = client.put(
        &format!("/api/default/types/t/k{number:05}"),
        &format!(r#"{{"value":{{"n":{number},"pad":"{pad}"}}}}"#),
    );
    if answer.status >= 300 {
        return answer.expect_error(507, "STORAGE_FULL").status;
    }
    answer.status
}

#[test]
fn writes_are_refused_reads_go_on_and_deletes_make_room() {
    let place = Place::new();
    let server = Launch::at(&place.root())
        .args(&["--map-size", MAP_BYTES, "--durability", "fast"])
        .start();
    let pids: Vec<i32> = server.workers().iter().map(|worker| worker.pid).collect();
    let mut clients = server.client_per_worker(2);
    clients[0]
        .put("/api/default/types/t", r#"{"indexes":[{"fields":["n"]}]}"#)
        .expect(200);

    let mut next = 0;
    let mut kept: Vec<usize> = Vec::new();
    for round in 0..3 {
        while put(&mut clients[next % 2], next) < 300 {
            kept.push(next);
            next += 1;
            assert!(next < 100_000, "8 MiB never fill");
        }
        let refused = next;
        next += 1;
        println!("round {round}: full with {} records", kept.len());
        assert!(kept.len() > 500, "full with {} records", kept.len());
        // More of the same is refused as well, by every worker, in batches too.
        for client in &mut clients {
            assert_eq!(put(client, refused), 507);
        }
        let lines = format!(
            "{{\"key\":\"k{refused:05}\",\"value\":\"{}\"}}\n",
            "x".repeat(200_000)
        );
        let import = clients[0].import("/api/default/import/t", &lines);
        assert!(
            import.status == 507 || import.text().contains("STORAGE_FULL"),
            "{import:?}"
        );
        for client in &mut clients {
            client
                .get(&format!("/api/default/types/t/k{refused:05}"))
                .expect_error(404, "NOT_FOUND");
            client
                .get(&format!("/api/default/types/t/k{:05}", kept[0]))
                .expect(200);
            let count = client.post("/api/default/types/t/count", "{}").expect(200);
            assert_eq!(count.json()["count"], kept.len());
        }
        oracle::verify(&place.root());
        // Half of it goes: a few in one transaction, as much as the room kept for
        // that in so small a map bears, then one by one.
        let gone: Vec<usize> = kept
            .iter()
            .copied()
            .filter(|number| number % 2 == 0)
            .collect();
        let (at_once, singly) = gone.split_at(5);
        let removes: Vec<String> = at_once
            .iter()
            .map(|number| format!(r#"{{"action":"remove","type":"t","key":"k{number:05}"}}"#))
            .collect();
        clients[1]
            .post(
                "/api/default/transaction",
                &format!("[{}]", removes.join(",")),
            )
            .expect(200);
        for number in singly {
            clients[number % 2]
                .delete(&format!("/api/default/types/t/k{number:05}"))
                .expect(204);
        }
        kept.retain(|number| number % 2 != 0);
        oracle::verify(&place.root());
    }
    let now: Vec<i32> = server.workers().iter().map(|worker| worker.pid).collect();
    assert_eq!(now, pids, "a worker was replaced\n{}", server.log());
}

#[test]
fn a_larger_map_at_the_next_start_makes_room_and_a_smaller_one_opens_the_data() {
    let place = Place::new();
    let root = place.root();
    let mut server = Launch::at(&root)
        .args(&["--map-size", MAP_BYTES, "--durability", "fast"])
        .start();
    let mut client = server.client();
    client.put("/api/default/types/t", "{}").expect(200);
    let mut full = 0;
    while put(&mut client, full) < 300 {
        full += 1;
    }
    server.stop();

    let mut server = Launch::at(&root).args(&["--map-size", "33554432"]).start();
    let mut client = server.client();
    for number in full..full + 2_000 {
        assert_eq!(put(&mut client, number), 201);
    }
    server.stop();

    // Smaller than the data: the data must open all the same, or the start must
    // say why it does not.
    let mut server = Launch::at(&root).args(&["--map-size", MAP_BYTES]).spawn();
    okdb_tests::wait::wait_until("an outcome", okdb_tests::wait::SOON, || {
        server.is_ready() || server.try_exit().is_some()
    });
    if server.try_exit().is_some() {
        assert!(server.log().contains("map"), "{}", server.log());
    } else {
        server.wait_ready();
        let mut client = server.client();
        client.get("/api/default/types/t/k00000").expect(200);
        let count = client.post("/api/default/types/t/count", "{}").expect(200);
        assert_eq!(count.json()["count"], full + 2_000);
        server.stop();
    }
    // A start that says nothing about the size keeps what is recorded.
    let server = Launch::at(&root).start();
    server
        .client()
        .get("/api/default/types/t/k00000")
        .expect(200);
    oracle::verify(&root);
}
