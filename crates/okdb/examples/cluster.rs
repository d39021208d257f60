//! Serves a root with workers that are copies of this program, and writes to it meanwhile:
//! `cargo run -p okdb --example cluster -- FOLDER [WORKERS] [ADDRESS]`.
//!
//! `TERM` or Ctrl-C stops it, `HUP` replaces the workers, `TTIN` and `TTOU` scale it.

use std::error::Error;

use okdb::Server;
use serde_json::json;

fn main() -> Result<(), Box<dyn Error>> {
    // In a copy that was started as a worker this serves, and never returns.
    okdb::serve_if_worker();

    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().unwrap_or_else(|| "./okdb-data".into());
    let workers = arguments.next().map_or(Ok(2), |text| text.parse())?;
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:8484".into());
    let server = Server::builder(folder)
        .listen(address)
        .workers(workers)
        .handle_signals()
        .start()?;

    // Our own writes and those of the workers' clients meet in the same root.
    let starts = server.db().ensure_type("starts")?;
    starts.put("latest", &json!({ "pid": std::process::id() }))?;

    println!("serving on {}", server.urls().join(" "));
    let status = server.status();
    for worker in status["workers"].as_array().into_iter().flatten() {
        println!("worker {} has pid {}", worker["slot"], worker["pid"]);
    }
    Ok(server.wait()?)
}
