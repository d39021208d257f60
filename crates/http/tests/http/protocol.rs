//! HTTP/1.1 and HTTP/2 as protocols.

use http_body_util::{BodyExt as _, Full};
use hyper::{Request, StatusCode, body::Bytes, client::conn::http2};
use hyper_util::rt::{TokioExecutor, TokioIo};

use crate::{client::Client, server::Server};

#[test]
fn a_connection_is_kept_and_answers_pipelined_requests_in_order() {
    let server = Server::with_type();
    let mut client = server.client();
    client.store("a", "1");
    client.store("b", "2");
    let get = |key: &str| format!("GET /api/default/types/t/{key} HTTP/1.1\r\nhost: t\r\n\r\n");
    let put =
        "PUT /api/default/types/t/c HTTP/1.1\r\nhost: t\r\ncontent-length: 11\r\n\r\n{\"value\":3}";
    client
        .raw(
            [get("a"), get("none"), put.into(), get("c"), get("b")]
                .concat()
                .as_bytes(),
        )
        .unwrap();
    let answers: Vec<_> = (0..5).map(|_| client.read().unwrap()).collect();
    let statuses: Vec<_> = answers.iter().map(|answer| answer.status).collect();
    assert_eq!(statuses, [200, 404, 201, 200, 200]);
    assert!(answers[3].text().contains("\"value\":3") && answers[4].text().contains("\"value\":2"));
}

#[test]
fn chunked_bodies_and_continue_are_understood() {
    let server = Server::with_type();
    let mut client = server.client();
    client.raw(b"PUT /api/default/types/t/k HTTP/1.1\r\nhost: t\r\ntransfer-encoding: chunked\r\n\r\n4\r\n{\"va\r\n7;x=y\r\nlue\":1}\r\n0\r\ntrailer: x\r\n\r\n").unwrap();
    client.read().unwrap().expect(201);
    client
        .raw(b"PUT /api/default/types/t/k HTTP/1.1\r\nhost: t\r\nexpect: 100-continue\r\ncontent-length: 11\r\n\r\n")
        .unwrap();
    let mut leave = [0; 25];
    std::io::Read::read_exact(client.open(), &mut leave).unwrap();
    assert_eq!(&leave, b"HTTP/1.1 100 Continue\r\n\r\n");
    client.raw(b"{\"value\":2}").unwrap();
    client.read().unwrap().expect(200);
    // Refused before it has sent a byte: there is no leave to send.
    client.raw(b"PUT /api/default/types/t/k HTTP/1.1\r\nhost: t\r\nexpect: 100-continue\r\ncontent-length: 999999999\r\n\r\n").unwrap();
    client.read().unwrap().refused(413, "TOO_LARGE");
}

#[test]
fn old_and_closing_clients_are_served_once() {
    let server = Server::start();
    let mut client = server.client();
    client.raw(b"GET /healthz HTTP/1.0\r\n\r\n").unwrap();
    let rest = String::from_utf8(client.rest()).unwrap();
    assert!(
        rest.starts_with("HTTP/1.0 200 OK\r\n") && rest.ends_with("ok\n"),
        "{rest}"
    );
    let mut client = server.client();
    client
        .call("GET", "/healthz", &[("connection", "close")], b"")
        .expect(200);
    let mut client = server.client();
    client
        .raw(b"GET http://elsewhere/healthz HTTP/1.1\r\nhost: t\r\n\r\n")
        .unwrap();
    client.read().unwrap().expect(200);
}

#[test]
fn a_request_says_once_whom_it_is_for() {
    let server = Server::start();
    let mut client = server.client();
    for hosts in [
        "",
        "host: a\r\nhost: a\r\n",
        "host: a b\r\n",
        "host: user@a\r\n",
        "host: a/b\r\n",
        "host: \u{e4}\r\n",
    ] {
        client
            .raw(format!("GET /healthz HTTP/1.1\r\n{hosts}\r\n").as_bytes())
            .unwrap();
        client.read().unwrap().refused(400, "INVALID_PARAMETER");
    }
    for host in ["", "a", "a-b.example:8484", "[::1]:1", "a%20b", "A_1"] {
        client
            .raw(format!("GET /healthz HTTP/1.1\r\nhost: {host}\r\n\r\n").as_bytes())
            .unwrap();
        client.read().unwrap().expect(200);
    }
}

#[test]
fn bytes_that_come_one_by_one_are_a_request_too() {
    let server = Server::with_type();
    let mut client = server.client();
    for byte in
        b"PUT /api/default/types/t/k HTTP/1.1\r\nhost: t\r\ncontent-length: 11\r\n\r\n{\"value\":1}"
    {
        client.raw(&[*byte]).unwrap();
    }
    client.read().unwrap().expect(201);
}

/// Runs requests over one HTTP/2 connection.
fn h2<T>(server: &Server, run: impl AsyncFnOnce(http2::SendRequest<Full<Bytes>>) -> T) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let stream = tokio::net::TcpStream::connect(server.address)
            .await
            .unwrap();
        let (send, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .unwrap();
        tokio::spawn(connection);
        run(send).await
    })
}

pub async fn ask(
    mut send: http2::SendRequest<Full<Bytes>>,
    method: &str,
    path: &str,
    body: Vec<u8>,
) -> (StatusCode, Bytes) {
    let request = Request::builder()
        .method(method)
        .uri(format!("http://t{path}"))
        .body(Full::from(body))
        .unwrap();
    send.ready().await.unwrap();
    let answer = send.send_request(request).await.unwrap();
    assert_eq!(answer.headers()["okdb-worker"], "3");
    (
        answer.status(),
        answer.into_body().collect().await.unwrap().to_bytes(),
    )
}

#[test]
fn http2_with_prior_knowledge_serves_many_streams() {
    let server = Server::with_type();
    h2(&server, async |send| {
        let tasks: Vec<_> = (0..200)
            .map(|n| {
                let send = send.clone();
                tokio::spawn(async move {
                    let path = format!("/api/default/types/t/{n}");
                    let put = ask(
                        send.clone(),
                        "PUT",
                        &path,
                        format!("{{\"value\":{n}}}").into(),
                    )
                    .await;
                    assert_eq!(put.0, 201);
                    let (status, body) = ask(send.clone(), "GET", &path, Vec::new()).await;
                    assert_eq!(status, 200);
                    assert!(String::from_utf8_lossy(&body).contains(&format!("\"value\":{n},")));
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        let value = format!("{{\"value\":\"{}\"}}", "x".repeat(3_000_000));
        assert_eq!(
            ask(
                send.clone(),
                "PUT",
                "/api/default/types/t/big",
                value.into()
            )
            .await
            .0,
            201
        );
        assert!(
            ask(send.clone(), "GET", "/api/default/types/t/big", Vec::new())
                .await
                .1
                .len()
                > 3_000_000
        );
        let (status, export) = ask(send.clone(), "GET", "/api/default/export/t", Vec::new()).await;
        assert_eq!(
            (
                status.as_u16(),
                export.iter().filter(|byte| **byte == b'\n').count()
            ),
            (200, 201)
        );
        let (status, _) = ask(
            send.clone(),
            "PUT",
            "/api/default/types/t/k",
            vec![b'x'; 20_000_000],
        )
        .await;
        assert_eq!(status, 413);
        assert_eq!(ask(send, "GET", "/none", Vec::new()).await.0, 404);
    });
    Client::new(server.address).get("/healthz").expect(200);
}
