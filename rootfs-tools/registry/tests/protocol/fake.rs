//! A server whose answers a test decides, one connection a request.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use casemate_registry::{
    Access, Credentials, Options, PlainHttp, Registry, RegistryError, Retries,
};
use casemate_rootfs::transport::RegistryReference;

/// A request.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) path: String,
    /// Names in lower case.
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: Vec<u8>,
}

/// An answer; `length` is what it says of the body.
#[derive(Debug, Clone, Default)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: Vec<u8>,
    pub(crate) length: Option<u64>,
}

impl Answer {
    pub(crate) fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self {
            status,
            body: body.into(),
            ..Self::default()
        }
    }

    pub(crate) fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }
}

pub(crate) struct Fake {
    pub(crate) host: String,
    seen: Arc<Mutex<Vec<Request>>>,
}

impl Fake {
    /// Serves until the test's process ends. `answer` gets the number of the request, from 0; the
    /// question whether this is a registry is answered before.
    pub(crate) fn start(
        answer: impl Fn(usize, &Request) -> Answer + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&seen);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let stream = stream.unwrap();
                let Some(request) = read(&stream) else {
                    // The greeting of TLS.
                    let _told = (&stream).write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
                    continue;
                };
                let reply = if request.path == "/v2/" {
                    Answer::new(200, "{}")
                } else {
                    answer(note(&log, &request), &request)
                };
                write(&stream, &request, &reply);
            }
        });
        Self { host, seen }
    }

    /// Returns the requests so far.
    pub(crate) fn seen(&self) -> Vec<Request> {
        self.seen.lock().unwrap().clone()
    }

    pub(crate) fn reference(&self) -> RegistryReference {
        RegistryReference::parse(&format!("{}/team/d:1", self.host)).unwrap()
    }

    pub(crate) fn connect(&self) -> Registry {
        self.connect_as(None, Access::Pull).unwrap()
    }

    pub(crate) fn connect_as(
        &self,
        credentials: Option<Credentials>,
        access: Access,
    ) -> Result<Registry, RegistryError> {
        let options = Options {
            credentials,
            plain_http: PlainHttp::Loopback,
            retries: Retries {
                count: 3,
                first_wait: Duration::from_millis(1),
            },
        };
        Registry::connect(&self.reference(), access, options)
    }
}

/// Keeps a request. Returns its number.
fn note(log: &Mutex<Vec<Request>>, request: &Request) -> usize {
    let mut log = log.lock().unwrap();
    log.push(request.clone());
    log.len() - 1
}

fn read(stream: &TcpStream) -> Option<Request> {
    let mut reader = BufReader::new(stream);
    let mut line = Vec::new();
    reader.read_until(b'\n', &mut line).ok()?;
    let line = String::from_utf8(line).ok()?;
    let mut words = line.split(' ');
    let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(':') else {
            break;
        };
        headers.insert(name.to_lowercase(), value.trim().to_owned());
    }
    let length = headers.get("content-length");
    let mut body = vec![0; length.map_or(0, |text| text.parse().unwrap())];
    reader.read_exact(&mut body).ok()?;
    Some(Request {
        method,
        path,
        headers,
        body,
    })
}

fn write(mut stream: &TcpStream, request: &Request, answer: &Answer) {
    let length = answer.length.unwrap_or(answer.body.len() as u64);
    let mut head = format!(
        "HTTP/1.1 {} X\r\nContent-Length: {length}\r\nConnection: close\r\n",
        answer.status
    );
    for (name, value) in &answer.headers {
        write!(head, "{name}: {value}\r\n").unwrap();
    }
    head.push_str("\r\n");
    // The client may have gone on its own.
    let _told = stream.write_all(head.as_bytes());
    if request.method != "HEAD" {
        let _sent = stream.write_all(&answer.body);
    }
}
