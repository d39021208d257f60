//! Owns the client side of HTTP/1.1: blocking, small, and honest about failure.
//!
//! It never repeats a request by itself: a story about crashes must know that
//! an answer was lost. [`Client::call`] returns such failures; the short forms
//! ([`Client::get`] and so on) end the story instead.

use std::io::{self, BufRead as _, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;

use crate::wait::patient;

/// How long an answer may take; the slowest thing asked for is a large import.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);

/// The longest header section that is read.
const HEAD_BYTES_MAX: usize = 64 * 1024;

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// An IP address and port.
    Tcp(SocketAddr),
    /// The path of a Unix socket.
    Unix(PathBuf),
}

trait Stream: Read + Write + Send {
    fn set_limit(&self, limit: Duration) -> io::Result<()>;
}

impl Stream for TcpStream {
    fn set_limit(&self, limit: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(limit))?;
        self.set_write_timeout(Some(limit))
    }
}

impl Stream for UnixStream {
    fn set_limit(&self, limit: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(limit))?;
        self.set_write_timeout(Some(limit))
    }
}

/// A whole answer.
#[derive(Clone, Debug)]
pub struct Response {
    /// The status code.
    pub status: u16,
    /// Header names in lower case, with their values.
    pub headers: Vec<(String, String)>,
    /// The body, after chunked coding was taken off.
    pub body: Vec<u8>,
}

impl Response {
    /// A header's value, by its name in lower case.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.as_str())
    }

    /// The slot of the worker that answered.
    #[must_use]
    #[track_caller]
    pub fn worker(&self) -> usize {
        self.header("okdb-worker")
            .and_then(|slot| slot.parse().ok())
            .unwrap_or_else(|| panic!("no okdb-worker header in {self:?}"))
    }

    /// The body as text.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON (numbers beyond 64 bits lose digits here).
    #[must_use]
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error} in the body {:?}", self.text()))
    }

    /// The error code, if the body is an error.
    #[must_use]
    pub fn code(&self) -> Option<String> {
        let body: Value = serde_json::from_slice(&self.body).ok()?;
        body.pointer("/error/code")?.as_str().map(str::to_owned)
    }

    /// Ends the story unless this is the status.
    #[track_caller]
    pub fn expect(self, status: u16) -> Self {
        assert_eq!(self.status, status, "the answer was {}", self.text());
        self
    }

    /// Ends the story unless this is the status and error code.
    #[track_caller]
    pub fn expect_error(self, status: u16, code: &str) -> Self {
        assert_eq!(
            (self.status, self.code().as_deref()),
            (status, Some(code)),
            "the answer was {}",
            self.text()
        );
        self
    }
}

/// A connection to a server, opened at the first request and kept; a client made
/// by [`Client::fresh`] opens a new one for each request.
pub struct Client {
    address: Address,
    keep: bool,
    limit: Duration,
    stream: Option<BufReader<Box<dyn Stream>>>,
}

impl Client {
    /// A client that keeps its connection, and so stays with one worker.
    #[must_use]
    pub fn new(address: &Address) -> Self {
        Self {
            address: address.clone(),
            keep: true,
            limit: patient(ANSWER_LIMIT),
            stream: None,
        }
    }

    /// A client whose every request is a connection of its own, to any worker.
    #[must_use]
    pub fn fresh(address: &Address) -> Self {
        Self {
            keep: false,
            ..Self::new(address)
        }
    }

    /// Gives answers at most this long.
    #[must_use]
    pub fn within(mut self, limit: Duration) -> Self {
        self.limit = patient(limit);
        if let Some(stream) = &self.stream {
            stream.get_ref().set_limit(self.limit).expect("a socket");
        }
        self
    }

    /// Opens the connection now.
    ///
    /// # Errors
    /// What connecting meets.
    pub fn connect(&mut self) -> io::Result<()> {
        let stream: Box<dyn Stream> = match &self.address {
            Address::Tcp(address) => {
                let stream = TcpStream::connect_timeout(address, self.limit)?;
                stream.set_nodelay(true)?;
                Box::new(stream)
            }
            Address::Unix(path) => Box::new(UnixStream::connect(path)?),
        };
        stream.set_limit(self.limit)?;
        self.stream = Some(BufReader::new(stream));
        Ok(())
    }

    /// Closes the connection.
    pub fn close(&mut self) {
        self.stream = None;
    }

    fn open(&mut self) -> io::Result<&mut BufReader<Box<dyn Stream>>> {
        if self.stream.is_none() {
            self.connect()?;
        }
        self.stream
            .as_mut()
            .ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// Sends bytes as they are.
    ///
    /// # Errors
    /// What writing meets.
    pub fn send_raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        let stream = self.open()?.get_mut();
        stream.write_all(bytes)?;
        stream.flush()
    }

    /// Reads one answer to what was sent; `head` when the request was a HEAD.
    ///
    /// # Errors
    /// `UnexpectedEof` when the connection ends first; what reading meets.
    pub fn receive(&mut self, head: bool) -> io::Result<Response> {
        let read = read_response(self.open()?, head);
        let close = match &read {
            Ok(response) => response
                .header("connection")
                .is_some_and(|value| value.eq_ignore_ascii_case("close")),
            Err(_) => true,
        };
        if close || !self.keep {
            self.close();
        }
        read
    }

    /// One request and its answer.
    ///
    /// # Errors
    /// The connection could not be made, or was lost before the whole answer.
    pub fn call(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<&[u8]>,
    ) -> io::Result<Response> {
        let mut request = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\n");
        if let Some(body) = body {
            if !headers.iter().any(|(name, _)| *name == "content-type") {
                request.push_str("content-type: application/json\r\n");
            }
            request.push_str("content-length: ");
            request.push_str(&body.len().to_string());
            request.push_str("\r\n");
        }
        for (name, value) in headers {
            request.push_str(name);
            request.push_str(": ");
            request.push_str(value);
            request.push_str("\r\n");
        }
        if !self.keep {
            request.push_str("connection: close\r\n");
        }
        request.push_str("\r\n");
        let mut bytes = request.into_bytes();
        bytes.extend_from_slice(body.unwrap_or_default());
        if let Err(error) = self.send_raw(&bytes) {
            // A server may refuse a body before it has read it whole.
            let refusal = self.receive(method == "HEAD");
            self.close();
            return refusal.map_err(|_| error);
        }
        self.receive(method == "HEAD")
    }

    #[track_caller]
    fn must(&mut self, method: &str, path: &str, body: Option<&str>) -> Response {
        match self.call(method, path, &[], body.map(str::as_bytes)) {
            Ok(response) => response,
            Err(error) => panic!("{method} {path}: {error}"),
        }
    }

    /// GET; ends the story when there is no answer.
    #[track_caller]
    pub fn get(&mut self, path: &str) -> Response {
        self.must("GET", path, None)
    }

    /// PUT of a JSON body; ends the story when there is no answer.
    #[track_caller]
    pub fn put(&mut self, path: &str, body: &str) -> Response {
        self.must("PUT", path, Some(body))
    }

    /// POST of a JSON body; ends the story when there is no answer.
    #[track_caller]
    pub fn post(&mut self, path: &str, body: &str) -> Response {
        self.must("POST", path, Some(body))
    }

    /// PATCH with an okdb patch; ends the story when there is no answer.
    #[track_caller]
    pub fn patch(&mut self, path: &str, body: &str) -> Response {
        self.must("PATCH", path, Some(body))
    }

    /// DELETE; ends the story when there is no answer.
    #[track_caller]
    pub fn delete(&mut self, path: &str) -> Response {
        self.must("DELETE", path, None)
    }

    /// POST of NDJSON to an import route; ends the story when there is no answer.
    #[track_caller]
    pub fn import(&mut self, path: &str, lines: &str) -> Response {
        let kind = [("content-type", "application/x-ndjson")];
        match self.call("POST", path, &kind, Some(lines.as_bytes())) {
            Ok(response) => response,
            Err(error) => panic!("POST {path}: {error}"),
        }
    }
}

/// One segment of a path, percent-encoded.
#[must_use]
pub fn segment(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push('%');
            for nibble in [byte >> 4, byte & 15] {
                out.push(char::from(b"0123456789ABCDEF"[usize::from(nibble)]));
            }
        }
    }
    out
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

fn read_line(stream: &mut impl io::BufRead) -> io::Result<String> {
    let mut line = Vec::new();
    let count = stream
        .take(HEAD_BYTES_MAX as u64)
        .read_until(b'\n', &mut line)?;
    if count == 0 || line.last() != Some(&b'\n') {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let line = String::from_utf8(line).map_err(|_| invalid("a header is not UTF-8"))?;
    Ok(line.trim_end_matches(['\r', '\n']).to_owned())
}

fn read_response(stream: &mut impl io::BufRead, head: bool) -> io::Result<Response> {
    let line = read_line(stream)?;
    let status: u16 = line
        .strip_prefix("HTTP/1.")
        .and_then(|rest| rest.split(' ').nth(1)?.parse().ok())
        .ok_or_else(|| invalid(&format!("not a status line: {line:?}")))?;
    let mut headers = Vec::new();
    loop {
        let line = read_line(stream)?;
        if line.is_empty() {
            break;
        }
        let (name, value) = line
            .split_once(':')
            .ok_or_else(|| invalid(&format!("not a header: {line:?}")))?;
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    if status == 100 {
        return read_response(stream, head);
    }
    let mut response = Response {
        status,
        headers,
        body: Vec::new(),
    };
    if head || status == 204 || status == 304 {
        return Ok(response);
    }
    if response.header("transfer-encoding") == Some("chunked") {
        response.body = read_chunks(stream)?;
    } else if let Some(length) = response.header("content-length") {
        let length = length
            .parse()
            .map_err(|_| invalid("content-length is no number"))?;
        response.body = vec![0; length];
        stream.read_exact(&mut response.body)?;
    } else {
        stream.read_to_end(&mut response.body)?;
    }
    Ok(response)
}

fn read_chunks(stream: &mut impl io::BufRead) -> io::Result<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let line = read_line(stream)?;
        let size = line.split(';').next().unwrap_or_default().trim();
        let size =
            usize::from_str_radix(size, 16).map_err(|_| invalid("a chunk without a size"))?;
        if size == 0 {
            while !read_line(stream)?.is_empty() {}
            return Ok(body);
        }
        let begin = body.len();
        body.resize(begin + size, 0);
        stream.read_exact(&mut body[begin..])?;
        if !read_line(stream)?.is_empty() {
            return Err(invalid("a chunk is longer than its size"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{read_response, segment};

    #[test]
    fn a_chunked_answer_is_put_together() {
        let bytes = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nA;x=y\r\n0123456789\r\n0\r\n\r\nrest";
        let mut stream = &bytes[..];
        let response = read_response(&mut stream, false).expect("a whole answer");
        assert_eq!(response.text(), "abc0123456789");
        assert_eq!(stream, b"rest");
    }

    #[test]
    fn a_cut_answer_is_an_error() {
        let whole = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nabcde";
        for length in 0..whole.len() {
            let mut stream = &whole[..length];
            assert!(read_response(&mut stream, false).is_err(), "{length} bytes");
        }
        assert!(read_response(&mut &whole[..], false).is_ok());
    }

    #[test]
    fn a_head_or_an_empty_answer_has_no_body() {
        for (text, head) in [
            ("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n", true),
            ("HTTP/1.1 204 No Content\r\n\r\n", false),
            ("HTTP/1.1 304 Not Modified\r\netag: \"1\"\r\n\r\n", false),
        ] {
            let response = read_response(&mut text.as_bytes(), head).expect("whole");
            assert!(response.body.is_empty());
        }
    }

    #[test]
    fn segments_are_encoded() {
        assert_eq!(segment("a/b %é"), "a%2Fb%20%25%C3%A9");
    }
}
