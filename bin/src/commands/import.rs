//! `okdb import`: NDJSON records into a type, through a server or straight into the root.
//!
//! Lines go in batches. Each is acknowledged before the one after next is read, so that memory stays bounded and the last
//! acknowledged line is known: an import that was cut short goes on behind it with `--skip-lines`. Writing a record twice
//! changes nothing but its version, so a batch whose fate is unknown is simply sent again.

use std::{
    fs::File,
    io::{self, BufRead, BufReader},
    time::Duration,
};

use clap::ArgMatches;
use okdb::{
    Db,
    server::{LineRefused, import_line},
    store::{Outcome, Pending, Write},
};
use okdb_cluster::exit::ExitCode;
use serde_json::{Value, json};

use crate::{
    http_client::{Client, segment},
    output::{Failure, Progress, complain, print},
    settings::Given,
};

/// Lines of one request to a server.
const REQUEST_LINES: usize = 20_000;
/// Bytes after which a request is sent.
const REQUEST_BYTES: usize = 4 << 20;
/// Operations of one write straight into the root.
const BULK_LINES: usize = 2_000;
/// Writes under way at a time.
const BULKS_IN_FLIGHT: usize = 3;
/// The longest line.
const LINE_BYTES_MAX: u64 = 17 << 20;
/// Refused lines that are reported one by one.
const REFUSED_MAX: usize = 1000;
/// How often a request is tried again, and how long the first pause is.
const RETRIES_MAX: u32 = 8;
const RETRY_PAUSE: Duration = Duration::from_millis(250);

/// A line that was not taken.
struct Refused {
    line: u64,
    code: String,
    message: String,
}

#[derive(Default)]
struct Tally {
    imported: u64,
    refused: Vec<Refused>,
    refused_count: u64,
    /// Everything up to this line is acknowledged or refused.
    line: u64,
    clock: u64,
}

impl Tally {
    fn refuse(&mut self, line: u64, code: &str, message: String) {
        self.refused_count += 1;
        if self.refused.len() < REFUSED_MAX {
            self.refused.push(Refused {
                line,
                code: code.to_owned(),
                message,
            });
        }
    }
}

pub(crate) fn run(matches: &ArgMatches, given: &Given) -> Result<ExitCode, Failure> {
    let text = |name: &str| matches.get_one::<String>(name).map(String::as_str);
    let type_name = text("type").unwrap_or_default();
    let file = text("file").unwrap_or("-");
    let json = matches.get_flag("json");
    let (reader, bytes): (Box<dyn io::Read>, u64) = if file == "-" {
        (Box::new(io::stdin().lock()), 0)
    } else {
        let file = File::open(file).map_err(|error| Failure::usage(format!("{file}: {error}")))?;
        let bytes = file.metadata().map_or(0, |meta| meta.len());
        (Box::new(file), bytes)
    };
    let skip = matches.get_one::<u64>("skip").copied().unwrap_or(0);
    let mut lines = Lines {
        reader: BufReader::with_capacity(1 << 20, reader),
        line: 0,
        bytes: 0,
    };
    lines.skip(skip).map_err(Failure::runtime)?;
    let mut progress = Progress::new(bytes, "bytes", json);
    let env = super::env_name(matches);
    let mut tally = Tally::default();
    let key_field = text("key");
    let result = match text("url") {
        Some(url) => to_server(
            url,
            &env,
            type_name,
            key_field,
            &mut lines,
            &mut tally,
            &mut progress,
        ),
        None => to_root(
            given,
            &env,
            type_name,
            key_field,
            &mut lines,
            &mut tally,
            &mut progress,
        ),
    };
    let took = progress.finish();
    if json {
        let failed: Vec<_> = tally
            .refused
            .iter()
            .map(|refused| json!({ "line": refused.line, "code": refused.code, "message": refused.message }))
            .collect();
        print(&json!({ "imported": tally.imported, "failed": failed, "failedCount": tally.refused_count, "line": tally.line, "clock": tally.clock, "ms": took.as_millis(), "complete": result.is_ok() }).to_string())?;
    } else {
        for refused in &tally.refused {
            complain(&format!(
                "line {}: {} {}",
                refused.line, refused.code, refused.message
            ));
        }
        let rate = u128::from(tally.imported) * 1000 / took.as_millis().max(1);
        print(&format!(
            "imported {} records in {:.1} s ({rate}/s), {} refused, clock {}",
            tally.imported,
            took.as_secs_f64(),
            tally.refused_count,
            tally.clock
        ))?;
    }
    result.map_err(|failure| Failure {
        message: format!(
            "{}\nokdb: lines up to {} are acknowledged; go on with --skip-lines {}",
            failure.message, tally.line, tally.line
        ),
        ..failure
    })?;
    Ok(if tally.refused_count == 0 {
        ExitCode::Clean
    } else {
        ExitCode::RuntimeFailure
    })
}

/// Lines with their numbers.
struct Lines {
    reader: BufReader<Box<dyn io::Read>>,
    /// The number of the last line that was read, counted from 1.
    line: u64,
    bytes: u64,
}

impl Lines {
    fn skip(&mut self, count: u64) -> io::Result<()> {
        let mut line = Vec::new();
        while self.line < count && self.next(&mut line)? {}
        Ok(())
    }

    /// Reads the next line, its end included; false at the end of the file.
    fn next(&mut self, line: &mut Vec<u8>) -> io::Result<bool> {
        line.clear();
        let read = io::Read::take(&mut self.reader, LINE_BYTES_MAX).read_until(b'\n', line)?;
        if read == 0 {
            return Ok(false);
        }
        self.line += 1;
        self.bytes += read as u64;
        if !line.ends_with(b"\n") && read as u64 == LINE_BYTES_MAX {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("line {} is longer than {LINE_BYTES_MAX} bytes", self.line),
            ));
        }
        if self.line == 1 && line.starts_with(b"\xEF\xBB\xBF") {
            line.drain(..3);
        }
        Ok(true)
    }
}

fn to_server(
    url: &str,
    env: &str,
    type_name: &str,
    key_field: Option<&str>,
    lines: &mut Lines,
    tally: &mut Tally,
    progress: &mut Progress,
) -> Result<(), Failure> {
    let mut client = Client::new(url).map_err(Failure::usage)?;
    let base = format!("/api/{}", segment(env));
    request(
        &mut client,
        url,
        "PUT",
        &format!("{base}/types/{}", segment(type_name)),
        b"{}",
    )?;
    let query = key_field.map_or_else(String::new, |field| format!("?key={}", segment(field)));
    let path = format!("{base}/import/{}{query}", segment(type_name));
    let (mut batch, mut line) = (Vec::new(), Vec::new());
    loop {
        batch.clear();
        let first = lines.line;
        let mut more = true;
        while batch.len() < REQUEST_BYTES && lines.line - first < REQUEST_LINES as u64 {
            more = lines.next(&mut line).map_err(Failure::runtime)?;
            if !more {
                break;
            }
            batch.extend_from_slice(&line);
        }
        if !batch.is_empty() {
            let answer = request(&mut client, url, "POST", &path, &batch)?;
            tally.imported += answer["imported"].as_u64().unwrap_or(0);
            tally.clock = answer["clock"].as_u64().unwrap_or(tally.clock);
            let listed = answer["failed"].as_array().map_or(0, Vec::len) as u64;
            for failed in answer["failed"].as_array().into_iter().flatten() {
                let place = failed["line"].as_u64().unwrap_or(0);
                let text = |name: &str| failed[name].as_str().unwrap_or_default().to_owned();
                tally.refuse(first + place, &text("code"), text("message"));
            }
            tally.refused_count += answer["failedCount"]
                .as_u64()
                .unwrap_or(listed)
                .saturating_sub(listed);
            tally.line = lines.line;
            progress.at(lines.bytes, 0);
        }
        if !more {
            return Ok(());
        }
    }
}

/// Sends a request that may be repeated, until it is answered.
fn request(
    client: &mut Client,
    url: &str,
    method: &str,
    path: &str,
    body: &[u8],
) -> Result<Value, Failure> {
    let media = if method == "POST" {
        "application/x-ndjson"
    } else {
        "application/json"
    };
    let mut tries = 0;
    loop {
        let answer = client
            .send(method, path, media, body)
            .and_then(|answer| Ok((answer.status, answer.body.text(64 << 20)?)));
        let trouble = match answer {
            Ok((status, text)) if status < 300 => {
                return serde_json::from_str(&text)
                    .map_err(|error| Failure::runtime(format!("{url}: {error}")));
            }
            Ok((status @ (503 | 429), text)) => format!("{status}: {text}"),
            Ok((status, text)) => {
                return Err(Failure::runtime(format!("{url} answers {status}: {text}")));
            }
            Err(error) => error.to_string(),
        };
        client.disconnect();
        tries += 1;
        if tries > RETRIES_MAX {
            return Err(Failure::runtime(format!("{url}: {trouble}")));
        }
        std::thread::sleep(RETRY_PAUSE * tries);
    }
}

fn to_root(
    given: &Given,
    env: &str,
    type_name: &str,
    key_field: Option<&str>,
    lines: &mut Lines,
    tally: &mut Tally,
    progress: &mut Progress,
) -> Result<(), Failure> {
    // As a process that shows itself: who waits for the write lock sees who has it, and others hear of each commit.
    let db = Db::builder().background(false).open(super::root(given))?;
    let env = db.env(env)?;
    let register = Write::RegisterType {
        name: type_name.to_owned(),
        indexes: Vec::new(),
        schema: None,
        ensure: true,
    };
    env.submit(register).wait()?;
    let mut in_flight: std::collections::VecDeque<(Pending, Vec<u64>, u64, u64)> =
        std::collections::VecDeque::new();
    let mut line = Vec::new();
    let mut more = true;
    while more {
        let (mut operations, mut numbers) = (
            Vec::with_capacity(BULK_LINES),
            Vec::with_capacity(BULK_LINES),
        );
        let mut bytes = 0;
        while operations.len() < BULK_LINES && bytes < REQUEST_BYTES {
            more = lines.next(&mut line).map_err(Failure::runtime)?;
            if !more {
                break;
            }
            match import_line(type_name, &line, key_field) {
                Ok(None) => {}
                Ok(Some(operation)) => {
                    bytes += line.len();
                    operations.push(operation);
                    numbers.push(lines.line);
                }
                Err(refused) => tally.refuse(lines.line, refused.code.text(), refused.message),
            }
        }
        in_flight.push_back((
            env.submit(Write::Bulk(operations)),
            numbers,
            lines.line,
            lines.bytes,
        ));
        while in_flight.len() > if more { BULKS_IN_FLIGHT } else { 0 } {
            let Some((pending, numbers, line, bytes)) = in_flight.pop_front() else {
                break;
            };
            if let Outcome::Bulk { clock, results } = pending.wait()? {
                tally.clock = clock;
                for (number, result) in numbers.iter().zip(results) {
                    match result {
                        Ok(_) => tally.imported += 1,
                        Err(error) => {
                            let refused = LineRefused::from(error);
                            tally.refuse(*number, refused.code.text(), refused.message);
                        }
                    }
                }
            }
            tally.line = line;
            progress.at(bytes, 0);
        }
    }
    Ok(())
}
