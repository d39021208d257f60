//! A small blocking HTTP/1.1 client: what the commands need to talk to a server, and no more.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    net::TcpStream,
    time::Duration,
};

/// How long a server may be silent.
const TIMEOUT: Duration = Duration::from_secs(60);
/// The longest header line or count of headers worth reading.
const LINE_BYTES_MAX: u64 = 16 * 1024;
const HEADERS_MAX: usize = 100;

/// An answer. Its body is read from the connection.
pub(crate) struct Answer<'c> {
    pub(crate) status: u16,
    pub(crate) body: Body<'c>,
}

/// A connection to one server, kept open between requests.
pub(crate) struct Client {
    host: String,
    stream: Option<BufReader<TcpStream>>,
}

impl Client {
    /// For a URL `http://HOST:PORT`. Connects at the first request.
    pub(crate) fn new(url: &str) -> Result<Self, String> {
        let host = url
            .strip_prefix("http://")
            .ok_or_else(|| format!("{url:?}: only http://HOST:PORT is understood"))?;
        let host = host.trim_end_matches('/');
        if host.is_empty() || host.contains('/') {
            return Err(format!("{url:?}: only http://HOST:PORT is understood"));
        }
        let host = if host
            .rsplit(']')
            .next()
            .is_some_and(|rest| rest.contains(':'))
        {
            host.to_owned()
        } else {
            format!("{host}:80")
        };
        Ok(Self { host, stream: None })
    }

    /// Forgets the connection; the next request makes a new one.
    pub(crate) fn disconnect(&mut self) {
        self.stream = None;
    }

    /// Sends a request and reads the head of its answer.
    ///
    /// An error means that nothing is known about what the server did.
    pub(crate) fn send(
        &mut self,
        method: &str,
        path: &str,
        media: &str,
        body: &[u8],
    ) -> io::Result<Answer<'_>> {
        let stream = if let Some(stream) = self.stream.take() {
            stream
        } else {
            let stream = TcpStream::connect(&self.host)?;
            stream.set_read_timeout(Some(TIMEOUT))?;
            stream.set_write_timeout(Some(TIMEOUT))?;
            stream.set_nodelay(true)?;
            BufReader::with_capacity(64 * 1024, stream)
        };
        let stream = self.stream.insert(stream);
        let content = if body.is_empty() {
            String::new()
        } else {
            format!(
                "content-type: {media}\r\ncontent-length: {}\r\n",
                body.len()
            )
        };
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: {}\r\n{content}\r\n",
            self.host
        );
        stream.get_mut().write_all(head.as_bytes())?;
        stream.get_mut().write_all(body)?;
        let head = read_head(stream)?;
        Ok(Answer {
            status: head.status,
            body: Body {
                stream,
                framing: head.framing,
            },
        })
    }
}

struct Head {
    status: u16,
    framing: Framing,
}

enum Framing {
    /// This many bytes are left.
    Length(u64),
    /// Chunks; this many bytes are left of the present one, `None` before a chunk's head.
    Chunks(Option<u64>),
    /// Over.
    End,
}

fn bad(what: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("the server's answer is no HTTP: {what}"),
    )
}

fn read_line(stream: &mut impl BufRead) -> io::Result<String> {
    let mut line = String::new();
    stream.take(LINE_BYTES_MAX).read_line(&mut line)?;
    match line.strip_suffix('\n') {
        Some(line) => Ok(line.trim_end_matches('\r').to_owned()),
        None => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

fn read_head(stream: &mut impl BufRead) -> io::Result<Head> {
    loop {
        let line = read_line(stream)?;
        let status: u16 = line
            .strip_prefix("HTTP/1.1 ")
            .and_then(|rest| rest.get(..3))
            .and_then(|status| status.parse().ok())
            .ok_or_else(|| bad("no status line"))?;
        let mut framing = Framing::End;
        for count in 0.. {
            let line = read_line(stream)?;
            if line.is_empty() {
                break;
            }
            if count == HEADERS_MAX {
                return Err(bad("too many headers"));
            }
            let Some((name, value)) = line.split_once(':') else {
                return Err(bad("a header without a colon"));
            };
            let value = value.trim();
            if name.eq_ignore_ascii_case("content-length") {
                framing = Framing::Length(value.parse().map_err(|_| bad("no length"))?);
            } else if name.eq_ignore_ascii_case("transfer-encoding")
                && value.eq_ignore_ascii_case("chunked")
            {
                framing = Framing::Chunks(None);
            }
        }
        // Interim answers come before the one that counts.
        if status >= 200 {
            return Ok(Head { status, framing });
        }
    }
}

/// The body of an answer.
pub(crate) struct Body<'c> {
    stream: &'c mut BufReader<TcpStream>,
    framing: Framing,
}

impl Body<'_> {
    /// The whole of it, as text, up to a bound.
    pub(crate) fn text(mut self, bytes_max: u64) -> io::Result<String> {
        let mut text = String::new();
        (&mut self).take(bytes_max).read_to_string(&mut text)?;
        Ok(text)
    }
}

impl Read for Body<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = match &mut self.framing {
            Framing::End => return Ok(0),
            Framing::Length(left) | Framing::Chunks(Some(left)) => left,
            Framing::Chunks(none) => {
                let line = read_line(self.stream)?;
                let size = line.split(';').next().unwrap_or_default().trim();
                let size = u64::from_str_radix(size, 16).map_err(|_| bad("no chunk size"))?;
                if size == 0 {
                    while !read_line(self.stream)?.is_empty() {}
                    self.framing = Framing::End;
                    return Ok(0);
                }
                none.insert(size)
            }
        };
        if *left == 0 {
            self.framing = Framing::End;
            return Ok(0);
        }
        let wanted = buffer
            .len()
            .min(usize::try_from(*left).unwrap_or(usize::MAX));
        let Some(space) = buffer.get_mut(..wanted) else {
            return Ok(0);
        };
        let read = self.stream.read(space)?;
        if read == 0 && wanted > 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        *left -= read as u64;
        if *left == 0 && matches!(self.framing, Framing::Chunks(_)) {
            read_line(self.stream)?;
            self.framing = Framing::Chunks(None);
        }
        Ok(read)
    }
}

/// Percent-encodes one segment of a path.
pub(crate) fn segment(text: &str) -> String {
    use std::fmt::Write as _;
    text.bytes()
        .fold(String::with_capacity(text.len()), |mut out, byte| {
            if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
                out.push(char::from(byte));
            } else {
                // Writing to a string does not fail.
                let _ = write!(out, "%{byte:02X}");
            }
            out
        })
}
