//! The floor of the benchmarks: a hyper server that keeps nothing.
//!
//! What a request costs here is what HTTP costs; whatever okdb costs more is
//! okdb's own. One process is one worker: a single-threaded runtime with its own
//! `SO_REUSEPORT` listener, as a worker of okdb is. Start as many on one port as
//! okdb has workers. A GET answers a record of 200 bytes, any other method reads
//! its body and answers as a PUT does.
//!
//!     bare 127.0.0.1:PORT

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;

use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use socket2::{Domain, Socket, Type};
use tokio::net::TcpListener;

const BACKLOG: i32 = 1024;

const RECORD: &[u8] = br#"{"key":"k000001","value":{"name":"a record of the bench","kind":"floor","count":1,"tags":["north","copper"],"text":"the quick brown fox jumps over the lazy dog and runs away to sea with a cat"},"version":1}"#;
const WRITTEN: &[u8] = br#"{"key":"k000001","version":2}"#;

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, hyper::Error> {
    let body = if request.method() == Method::GET {
        RECORD
    } else {
        request.into_body().collect().await?;
        WRITTEN
    };
    let mut response = Response::new(Full::new(Bytes::from_static(body)));
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, json);
    Ok(response)
}

async fn serve(address: SocketAddr) -> io::Result<Infallible> {
    let listener = listen(address)?;
    eprintln!("bare ready on http://{}", listener.local_addr()?);
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        tokio::task::spawn_local(async move {
            let connection =
                http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(answer));
            // A client that hangs up is the usual end of a connection here.
            let _ = connection.await;
        });
    }
}

fn main() -> io::Result<()> {
    let address = std::env::args()
        .nth(1)
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "usage: bare ADDRESS:PORT"))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()?;
    match tokio::task::LocalSet::new().block_on(&runtime, serve(address))? {}
}
