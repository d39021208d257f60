//! A blocking HTTP/1.1 client that can also send what no client should.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    os::unix::net::UnixStream,
    path::Path,
    time::Duration,
};

use serde_json::Value;

/// A whole answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.as_str())
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    /// The body as JSON; numbers beyond a double lose digits here, so compare such in [`text`](Self::text).
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    #[track_caller]
    pub fn expect(self, status: u16) -> Self {
        let body = String::from_utf8_lossy(&self.body);
        assert_eq!(self.status, status, "{body}");
        if status != 408 {
            assert_eq!(self.header("okdb-worker"), Some("3"), "{self:?}");
        }
        self
    }

    #[track_caller]
    pub fn refused(self, status: u16, code: &str) -> Value {
        let answer = self.expect(status);
        assert_eq!(answer.header("content-type"), Some("application/json"));
        assert!(
            answer
                .header("x-request-id")
                .is_some_and(|id| !id.is_empty())
        );
        let error = answer.json()["error"].take();
        assert_eq!(error["code"], code, "{error}");
        assert!(
            error["message"]
                .as_str()
                .is_some_and(|message| !message.is_empty())
        );
        error
    }
}

trait Stream: Read + Write + Send {}
impl<T: Read + Write + Send> Stream for T {}

/// One connection at a time, opened when needed.
pub struct Client {
    address: SocketAddr,
    stream: Option<BufReader<Box<dyn Stream>>>,
}

const PATIENCE: Duration = Duration::from_secs(60);

impl Client {
    pub fn new(address: SocketAddr) -> Self {
        Self {
            address,
            stream: None,
        }
    }

    pub fn unix(path: &Path) -> Self {
        let stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let address = SocketAddr::from(([0, 0, 0, 0], 0));
        Self {
            address,
            stream: Some(BufReader::new(Box::new(stream))),
        }
    }

    /// Opens the connection, if it is not open.
    pub fn open(&mut self) -> &mut BufReader<impl Read + Write + use<>> {
        let address = self.address;
        self.stream.get_or_insert_with(|| {
            let stream = TcpStream::connect(address).unwrap();
            stream.set_nodelay(true).unwrap();
            stream.set_write_timeout(Some(PATIENCE)).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            BufReader::new(Box::new(stream))
        })
    }

    pub fn close(&mut self) {
        self.stream = None;
    }

    pub fn raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.open().get_mut().write_all(bytes)
    }

    /// Reads one answer to a request that was not HEAD.
    pub fn read(&mut self) -> io::Result<Answer> {
        self.read_to("GET")
    }

    fn read_to(&mut self, method: &str) -> io::Result<Answer> {
        let answer = read_answer(self.open(), method);
        if !matches!(&answer, Ok(answer) if answer.header("connection") != Some("close")) {
            self.close();
        }
        answer
    }

    /// Reads to the end of the connection.
    pub fn rest(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        let _ = self.open().read_to_end(&mut rest);
        rest
    }

    #[track_caller]
    pub fn call(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Answer {
        let mut head = format!("{method} {path} HTTP/1.1\r\nhost: test\r\n");
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        if !body.is_empty() || ["POST", "PUT", "PATCH"].contains(&method) {
            head.push_str(&format!("content-length: {}\r\n", body.len()));
        }
        head.push_str("\r\n");
        let mut bytes = head.into_bytes();
        bytes.extend_from_slice(body);
        // A server may refuse before it has read all; its answer is what counts.
        let sent = self.raw(&bytes);
        match self.read_to(method) {
            Ok(answer) => answer,
            Err(error) => panic!("{method} {path}: {error}, sent: {sent:?}"),
        }
    }

    #[track_caller]
    pub fn get(&mut self, path: &str) -> Answer {
        self.call("GET", path, &[], b"")
    }

    #[track_caller]
    pub fn post(&mut self, path: &str, body: &str) -> Answer {
        self.call(
            "POST",
            path,
            &[("content-type", "application/json")],
            body.as_bytes(),
        )
    }

    #[track_caller]
    pub fn put(&mut self, path: &str, body: &str) -> Answer {
        self.call(
            "PUT",
            path,
            &[("content-type", "application/json")],
            body.as_bytes(),
        )
    }

    #[track_caller]
    pub fn patch(&mut self, path: &str, body: &str) -> Answer {
        self.call(
            "PATCH",
            path,
            &[("content-type", "application/json")],
            body.as_bytes(),
        )
    }

    #[track_caller]
    pub fn delete(&mut self, path: &str) -> Answer {
        self.call("DELETE", path, &[], b"")
    }

    /// Writes a value and tells its version.
    #[track_caller]
    pub fn store(&mut self, key: &str, value: &str) -> u64 {
        let answer = self.put(
            &format!("/api/default/types/t/{key}"),
            &format!("{{\"value\":{value}}}"),
        );
        assert!([200, 201].contains(&answer.status), "{}", answer.text());
        answer.json()["version"].as_u64().unwrap()
    }
}

fn broken(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

fn line(stream: &mut impl BufRead) -> io::Result<String> {
    let mut line = String::new();
    if stream.read_line(&mut line)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(line.trim_end_matches("\r\n").to_owned())
}

fn read_answer(stream: &mut impl BufRead, method: &str) -> io::Result<Answer> {
    let status_line = line(stream)?;
    let status = status_line
        .strip_prefix("HTTP/1.1 ")
        .and_then(|rest| rest.get(..3)?.parse().ok())
        .ok_or_else(|| broken(&status_line))?;
    let mut headers = Vec::new();
    loop {
        let header = line(stream)?;
        if header.is_empty() {
            break;
        }
        let (name, value) = header.split_once(": ").ok_or_else(|| broken(&header))?;
        headers.push((name.to_ascii_lowercase(), value.to_owned()));
    }
    if status == 100 {
        return read_answer(stream, method);
    }
    let mut answer = Answer {
        status,
        headers,
        body: Vec::new(),
    };
    if method == "HEAD" || [204, 304].contains(&status) {
        return Ok(answer);
    }
    if answer.header("transfer-encoding") == Some("chunked") {
        loop {
            let size = line(stream)?;
            let size = usize::from_str_radix(&size, 16).map_err(|_| broken(&size))?;
            let start = answer.body.len();
            answer.body.resize(start + size, 0);
            stream.read_exact(&mut answer.body[start..])?;
            if !line(stream)?.is_empty() {
                return Err(broken("chunk"));
            }
            if size == 0 {
                return Ok(answer);
            }
        }
    }
    let length = answer
        .header("content-length")
        .and_then(|text| text.parse().ok())
        .unwrap_or(0);
    answer.body.resize(length, 0);
    stream.read_exact(&mut answer.body)?;
    Ok(answer)
}
