//! `okdb export`: the records of a type as NDJSON.

use std::{
    fs::File,
    io::{self, BufWriter, Read, Write},
};

use clap::ArgMatches;
use okdb_cluster::exit::ExitCode;
use serde_json::json;

use crate::{
    http_client::{Client, segment},
    output::{Failure, Progress, complain},
    settings::Given,
};

const CHUNK_BYTES: usize = 1 << 20;

pub(crate) fn run(matches: &ArgMatches, given: &Given) -> Result<ExitCode, Failure> {
    let type_name = matches
        .get_one::<String>("type")
        .map(String::as_str)
        .unwrap_or_default();
    let consistent = matches.get_flag("consistent");
    let json = matches.get_flag("json");
    let output = matches
        .get_one::<String>("output")
        .filter(|path| *path != "-");
    let sink: Box<dyn Write> = match output {
        Some(path) => Box::new(
            File::create(path).map_err(|error| Failure::runtime(format!("{path}: {error}")))?,
        ),
        None => Box::new(io::stdout().lock()),
    };
    let mut sink = Counting {
        sink: BufWriter::new(sink),
        lines: 0,
        bytes: 0,
        progress: Progress::new(0, "records", json),
    };
    let env = super::env_name(matches);
    match matches.get_one::<String>("url") {
        Some(url) => from_server(url, &env, type_name, consistent, &mut sink)?,
        None => from_root(given, &env, type_name, consistent, &mut sink)?,
    }
    sink.sink.flush().map_err(Failure::runtime)?;
    let (lines, bytes, took) = (sink.lines, sink.bytes, sink.progress.finish());
    // Standard output may be the data itself.
    if json {
        complain(&json!({ "exported": lines, "bytes": bytes, "ms": took.as_millis() }).to_string());
    } else if output.is_some() {
        complain(&format!(
            "exported {lines} records, {bytes} bytes in {:.1} s",
            took.as_secs_f64()
        ));
    }
    Ok(ExitCode::Clean)
}

struct Counting {
    sink: BufWriter<Box<dyn Write>>,
    lines: u64,
    bytes: u64,
    progress: Progress,
}

impl Counting {
    fn take(&mut self, chunk: &[u8]) -> Result<(), Failure> {
        self.sink.write_all(chunk).map_err(Failure::runtime)?;
        self.bytes += chunk.len() as u64;
        self.lines += chunk.split(|byte| *byte == b'\n').count().saturating_sub(1) as u64;
        self.progress.at(self.lines, 0);
        Ok(())
    }
}

fn from_root(
    given: &Given,
    env: &str,
    type_name: &str,
    consistent: bool,
    sink: &mut Counting,
) -> Result<(), Failure> {
    let store = super::open_tool(given)?;
    let mut export = store.env(env)?.export(type_name, consistent)?;
    let mut chunk = Vec::with_capacity(CHUNK_BYTES + 4096);
    loop {
        chunk.clear();
        let more = export.next_chunk(&mut chunk, CHUNK_BYTES)?;
        sink.take(&chunk)?;
        if !more {
            return Ok(());
        }
    }
}

fn from_server(
    url: &str,
    env: &str,
    type_name: &str,
    consistent: bool,
    sink: &mut Counting,
) -> Result<(), Failure> {
    let mut client = Client::new(url).map_err(Failure::usage)?;
    let query = if consistent { "?consistent=true" } else { "" };
    let path = format!("/api/{}/export/{}{query}", segment(env), segment(type_name));
    let answer = client
        .send("GET", &path, "", b"")
        .map_err(|error| Failure::runtime(format!("{url}: {error}")))?;
    let (status, mut body) = (answer.status, answer.body);
    if status != 200 {
        let text = body.text(1 << 16).map_err(Failure::runtime)?;
        return Err(Failure::runtime(format!("{url} answers {status}: {text}")));
    }
    let mut chunk = vec![0; 64 * 1024];
    loop {
        let read = body.read(&mut chunk).map_err(|error| {
            Failure::runtime(format!("{url}: the export was cut short: {error}"))
        })?;
        if read == 0 {
            return Ok(());
        }
        sink.take(chunk.get(..read).unwrap_or_default())?;
    }
}
