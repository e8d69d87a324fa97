//! A repository of a registry: requests with who we are, and with patience.

use std::io::Read;
use std::thread;
use std::time::Duration;

use casemate_rootfs::transport::RegistryReference;
use serde::Deserialize;
use ureq::SendBody;
use ureq::http::{Method, Request, header};

use crate::challenge::Challenge;
use crate::credentials::Credentials;
use crate::error::{RegistryError, Said, tls_error};
use crate::http::{self, Locality, Origin, Response, Scheme};

/// Longest answer that is an error or a token, in bytes.
const MAX_ANSWER_BYTES: u64 = 256 * 1024;
/// Most redirects in a row.
const MAX_REDIRECTS: usize = 5;
/// Longest wait between two tries, also where the registry asks for more.
const MAX_WAIT: Duration = Duration::from_mins(1);

/// What is to be done with a repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Read images.
    Pull,
    /// Write images.
    Push,
}

/// Where plain HTTP is spoken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlainHttp {
    /// To this machine, if the registry has no TLS.
    Loopback,
    /// To any registry that has no TLS.
    Anywhere,
}

/// How often and how fast something is tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retries {
    /// Most tries after the first that failed, without progress between.
    pub count: u32,
    /// Wait before the first of them; each further one is twice as long.
    pub first_wait: Duration,
}

/// How a registry is spoken to.
#[derive(Debug, Clone)]
pub struct Options {
    /// Who we are; `None` asks anonymously.
    pub credentials: Option<Credentials>,
    /// Where plain HTTP is spoken.
    pub plain_http: PlainHttp,
    /// How often something is tried again.
    pub retries: Retries,
}

/// A repository of a registry.
#[derive(Debug)]
pub struct Registry {
    agent: ureq::Agent,
    origin: Origin,
    repository: String,
    access: Access,
    credentials: Option<Credentials>,
    /// Value of the `Authorization` header, once a challenge asked for it.
    authorization: Option<Secret>,
    pub(crate) retries: Retries,
}

/// A text that is never shown.
struct Secret(String);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

/// One request.
pub(crate) struct Call<'a> {
    pub(crate) operation: &'static str,
    pub(crate) method: Method,
    pub(crate) url: String,
    pub(crate) headers: Vec<(header::HeaderName, String)>,
    /// What is sent, and its size.
    pub(crate) body: Option<(&'a mut dyn Read, u64)>,
}

impl Call<'_> {
    pub(crate) fn new(operation: &'static str, method: Method, url: String) -> Self {
        Self {
            operation,
            method,
            url,
            headers: Vec::new(),
            body: None,
        }
    }
}

impl Registry {
    /// Reaches the registry of `reference` and finds out whether it speaks TLS.
    pub fn connect(
        reference: &RegistryReference,
        access: Access,
        options: Options,
    ) -> Result<Self, RegistryError> {
        let locality = Locality::of(reference.host_name());
        let mut registry = Self {
            agent: http::agent(locality),
            origin: Origin {
                scheme: Scheme::Https,
                host: api_host(&reference.host),
            },
            repository: reference.repository.clone(),
            access,
            credentials: options.credentials,
            authorization: None,
            retries: options.retries,
        };
        match registry.retrying(Self::ping) {
            Ok(()) => return Ok(registry),
            Err(RegistryError::Transfer { source, .. }) if is_no_tls(&source) => {}
            Err(error) => return Err(error),
        }
        if locality != Locality::Loopback && options.plain_http != PlainHttp::Anywhere {
            return Err(RegistryError::PlainHttp {
                host: reference.host.clone(),
            });
        }
        registry.origin.scheme = Scheme::Http;
        registry.retrying(Self::ping)?;
        Ok(registry)
    }

    /// Asks whether this is a registry; a challenge is answered when something is wanted of it.
    fn ping(&mut self) -> Result<(), RegistryError> {
        const OPERATION: &str = "reach the registry";
        let mut call = Call::new(OPERATION, Method::GET, self.origin.url("/v2/"));
        let answer = self.exchange(&mut call)?;
        match answer.status().as_u16() {
            200 | 401 => Ok(()),
            _ => Err(self.unexpected(OPERATION, answer)),
        }
    }

    pub(crate) fn host(&self) -> &str {
        &self.origin.host
    }

    /// Returns the URL of something in the repository.
    pub(crate) fn url(&self, path: &str) -> String {
        self.origin.url(&format!("/v2/{}/{path}", self.repository))
    }

    /// Does the request, answering a challenge and following redirects; whatever the status of
    /// the answer is then. A body is sent once.
    pub(crate) fn send(&mut self, mut call: Call<'_>) -> Result<Response, RegistryError> {
        let mut challenged = false;
        let mut redirects = 0;
        loop {
            let replayable = call.body.is_none();
            let answer = self.exchange(&mut call)?;
            let ours = Origin::of(&call.url).as_ref() == Some(&self.origin);
            match answer.status().as_u16() {
                401 if ours && replayable && !challenged => {
                    challenged = true;
                    self.authenticate(call.operation, &answer)?;
                }
                301 | 302 | 303 | 307 | 308 if replayable && call.method != Method::POST => {
                    redirects += 1;
                    if redirects > MAX_REDIRECTS {
                        return Err(self.wrong(call.operation, "redirects without end"));
                    }
                    call.url = self.location(call.operation, &call.url, &answer)?;
                }
                _ => return Ok(answer),
            }
        }
    }

    /// Returns the absolute URL in an answer's `Location`.
    pub(crate) fn location(
        &self,
        operation: &'static str,
        asked: &str,
        answer: &Response,
    ) -> Result<String, RegistryError> {
        let location = header_text(answer, &header::LOCATION);
        let from = Origin::of(asked).unwrap_or_else(|| self.origin.clone());
        location
            .and_then(|location| from.resolve(location))
            .ok_or_else(|| {
                self.wrong(
                    operation,
                    "leads nowhere, or from TLS to plain HTTP (its Location header)",
                )
            })
    }

    fn exchange(&self, call: &mut Call<'_>) -> Result<Response, RegistryError> {
        let mut request = Request::builder()
            .method(call.method.clone())
            .uri(call.url.as_str());
        for (name, value) in &call.headers {
            request = request.header(name, value.as_str());
        }
        // Credentials are for the registry alone, also where it sends us elsewhere.
        if let Some(Secret(value)) = &self.authorization
            && Origin::of(&call.url).as_ref() == Some(&self.origin)
        {
            request = request.header(header::AUTHORIZATION, value.as_str());
        }
        let sent = match &mut call.body {
            Some((reader, bytes)) => request
                .header(header::CONTENT_LENGTH, *bytes)
                .body(SendBody::from_reader(*reader))
                .map_err(ureq::Error::Http)
                .and_then(|request| self.agent.run(request)),
            None if call.method == Method::POST => request
                .body(&b""[..])
                .map_err(ureq::Error::Http)
                .and_then(|request| self.agent.run(request)),
            None => request
                .body(())
                .map_err(ureq::Error::Http)
                .and_then(|request| self.agent.run(request)),
        };
        sent.map_err(|source| self.transfer(call.operation, source))
    }

    /// Answers the challenge of a 401.
    fn authenticate(
        &mut self,
        operation: &'static str,
        answer: &Response,
    ) -> Result<(), RegistryError> {
        let headers = answer.headers().get_all(header::WWW_AUTHENTICATE);
        let values = headers.iter().filter_map(|value| value.to_str().ok());
        let value = match Challenge::of(values) {
            None => {
                return Err(self.wrong(operation, "asks for a kind of login that is not known"));
            }
            Some(Challenge::Basic) => match &self.credentials {
                Some(credentials) => credentials.basic(),
                None => {
                    return Err(RegistryError::Denied {
                        operation,
                        host: self.origin.host.clone(),
                        given: false,
                        said: Said::default(),
                    });
                }
            },
            Some(Challenge::Bearer { realm, service }) => {
                format!("Bearer {}", self.token(&realm, service.as_deref())?)
            }
        };
        self.authorization = Some(Secret(value));
        Ok(())
    }

    /// Asks the token server for a token.
    fn token(&self, realm: &str, service: Option<&str>) -> Result<String, RegistryError> {
        const OPERATION: &str = "log in";
        #[derive(Deserialize)]
        struct Answer {
            #[serde(default)]
            token: String,
            #[serde(default)]
            access_token: String,
        }
        let allowed = Origin::of(realm).is_some() && self.origin.resolve(realm).is_some();
        if !allowed {
            return Err(self.wrong(OPERATION, "names a token server that cannot be used"));
        }
        let actions = match self.access {
            Access::Pull => "pull",
            Access::Push => "pull,push",
        };
        let scope = format!("repository:{}:{actions}", self.repository);
        let mut request = self.agent.get(realm).query("scope", scope);
        if let Some(service) = service {
            request = request.query("service", service);
        }
        if let Some(credentials) = &self.credentials {
            request = request.header(header::AUTHORIZATION, credentials.basic());
        }
        let answer = request
            .call()
            .map_err(|source| self.transfer(OPERATION, source))?;
        if answer.status() != 200 {
            return Err(self.unexpected(OPERATION, answer));
        }
        let body = self.bounded(OPERATION, answer, MAX_ANSWER_BYTES)?;
        let Ok(Answer {
            token,
            access_token,
        }) = serde_json::from_slice(&body)
        else {
            return Err(self.wrong(OPERATION, "is no token"));
        };
        let token = if token.is_empty() {
            access_token
        } else {
            token
        };
        let printable = token.bytes().all(|byte| byte.is_ascii_graphic());
        if token.is_empty() || !printable {
            return Err(self.wrong(OPERATION, "has no usable token"));
        }
        Ok(token)
    }

    /// Reads a whole answer of at most `limit` bytes.
    pub(crate) fn bounded(
        &self,
        operation: &'static str,
        answer: Response,
        limit: u64,
    ) -> Result<Vec<u8>, RegistryError> {
        let mut body = Vec::new();
        answer
            .into_body()
            .into_reader()
            .take(limit + 1)
            .read_to_end(&mut body)
            .map_err(|error| self.transfer(operation, ureq::Error::Io(error)))?;
        if body.len() as u64 > limit {
            return Err(self.wrong(operation, "is too long"));
        }
        Ok(body)
    }

    /// Turns an answer with a status that is not wanted into an error.
    pub(crate) fn unexpected(&self, operation: &'static str, answer: Response) -> RegistryError {
        let status = answer.status().as_u16();
        let retry_after =
            header_text(&answer, &header::RETRY_AFTER).and_then(|text| text.trim().parse().ok());
        let host = self.origin.host.clone();
        // The status says enough where the explanation cannot be read.
        let said = Said::of(
            &self
                .bounded(operation, answer, MAX_ANSWER_BYTES)
                .unwrap_or_default(),
        );
        match status {
            401 | 403 => RegistryError::Denied {
                operation,
                host,
                given: self.credentials.is_some(),
                said,
            },
            404 => RegistryError::NotFound {
                operation,
                host,
                said,
            },
            _ => RegistryError::Status {
                operation,
                host,
                status,
                said,
                retry_after,
            },
        }
    }

    pub(crate) fn wrong(&self, operation: &'static str, wrong: &'static str) -> RegistryError {
        RegistryError::Answer {
            operation,
            host: self.origin.host.clone(),
            wrong,
        }
    }

    fn transfer(&self, operation: &'static str, source: ureq::Error) -> RegistryError {
        let host = self.origin.host.clone();
        let source = Box::new(source);
        if is_bad_certificate(&source) {
            return RegistryError::Certificate { host, source };
        }
        RegistryError::Transfer {
            operation,
            host,
            source,
        }
    }

    /// Does something again while it may succeed a little later.
    pub(crate) fn retrying<T>(
        &mut self,
        mut act: impl FnMut(&mut Self) -> Result<T, RegistryError>,
    ) -> Result<T, RegistryError> {
        let mut failures = 0;
        loop {
            match act(self) {
                Err(error) if error.is_transient() && failures < self.retries.count => {
                    self.retries.wait(failures, &error);
                    failures += 1;
                }
                other => return other,
            }
        }
    }
}

impl Retries {
    /// Waits before a further try, after `failures` that were waited for.
    pub(crate) fn wait(&self, failures: u32, error: &RegistryError) {
        let asked = if let RegistryError::Status { retry_after, .. } = error {
            retry_after.map(Duration::from_secs)
        } else {
            None
        };
        let doubled = self.first_wait * 2u32.saturating_pow(failures.min(16));
        thread::sleep(asked.unwrap_or(doubled).min(MAX_WAIT));
    }
}

pub(crate) fn header_text<'a>(answer: &'a Response, name: &header::HeaderName) -> Option<&'a str> {
    answer.headers().get(name)?.to_str().ok()
}

/// The one registry whose name is not that of its interface.
fn api_host(host: &str) -> String {
    match host {
        "docker.io" => "registry-1.docker.io".to_owned(),
        other => other.to_owned(),
    }
}

fn is_bad_certificate(error: &ureq::Error) -> bool {
    matches!(
        tls_error(error),
        Some(rustls::Error::InvalidCertificate(_) | rustls::Error::NoCertificatesPresented)
    )
}

/// Whether the other side answered the greeting of TLS with something else.
fn is_no_tls(error: &ureq::Error) -> bool {
    matches!(tls_error(error), Some(rustls::Error::InvalidMessage(_)))
}
