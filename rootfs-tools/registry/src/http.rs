//! Single requests: where they may go, and how long they may take.

use std::sync::Arc;
use std::time::Duration;

use ureq::http::{Uri, uri};
use ureq::tls::{RootCerts, TlsConfig};

/// How long a connection or a piece of an answer may take.
const PATIENCE: Duration = Duration::from_mins(1);

pub(crate) type Response = ureq::http::Response<ureq::Body>;

/// Scheme, host and port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Origin {
    pub(crate) scheme: Scheme,
    /// With the port where it is not the scheme's.
    pub(crate) host: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scheme {
    Https,
    Http,
}

impl Scheme {
    fn as_str(self) -> &'static str {
        match self {
            Self::Https => "https",
            Self::Http => "http",
        }
    }

    fn port(self) -> u16 {
        match self {
            Self::Https => 443,
            Self::Http => 80,
        }
    }
}

impl Origin {
    pub(crate) fn url(&self, path: &str) -> String {
        format!("{}://{}{path}", self.scheme.as_str(), self.host)
    }

    /// Reads the origin of a URL, which must be absolute and without credentials. Port and case
    /// are brought to one form, so that equal origins are equal.
    pub(crate) fn of(url: &str) -> Option<Self> {
        let uri: Uri = url.parse().ok()?;
        let scheme = match uri.scheme() {
            Some(scheme) if *scheme == uri::Scheme::HTTPS => Scheme::Https,
            Some(scheme) if *scheme == uri::Scheme::HTTP => Scheme::Http,
            _ => return None,
        };
        let authority = uri.authority()?;
        if authority.as_str().contains('@') || authority.host().is_empty() {
            return None;
        }
        let name = authority.host().to_ascii_lowercase();
        let host = match authority.port_u16() {
            Some(port) if port != scheme.port() => format!("{name}:{port}"),
            _ => name,
        };
        Some(Self { scheme, host })
    }

    /// Returns the URL that a `Location` header of an answer from here stands for. It never leads
    /// from TLS to plain HTTP.
    pub(crate) fn resolve(&self, location: &str) -> Option<String> {
        if location.starts_with('/') && !location.starts_with("//") {
            return Some(self.url(location));
        }
        let target = Self::of(location)?;
        (self.scheme == Scheme::Http || target.scheme == Scheme::Https).then(|| location.to_owned())
    }
}

/// Returns an agent that does one request at a time and follows nothing by itself. A proxy of the
/// environment is used, but not towards this machine.
pub(crate) fn agent(local: Locality) -> ureq::Agent {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = TlsConfig::builder()
        .root_certs(RootCerts::PlatformVerifier)
        .unversioned_rustls_crypto_provider(provider)
        .build();
    let config = ureq::Agent::config_builder()
        .tls_config(tls)
        .http_status_as_error(false)
        .max_redirects(0)
        .max_redirects_will_error(false)
        .user_agent(concat!("casemate/", env!("CARGO_PKG_VERSION")))
        .timeout_resolve(Some(PATIENCE))
        .timeout_connect(Some(PATIENCE))
        .timeout_recv_response(Some(PATIENCE))
        .timeout_per_read(Some(PATIENCE))
        .timeout_per_write(Some(PATIENCE));
    match local {
        Locality::Loopback => config.proxy(None).build(),
        Locality::Elsewhere => config.build(),
    }
    .new_agent()
}

/// Whether a host is this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Locality {
    Loopback,
    Elsewhere,
}

impl Locality {
    pub(crate) fn of(host_name: &str) -> Self {
        let address = host_name.parse::<std::net::IpAddr>();
        if host_name == "localhost" || address.is_ok_and(|address| address.is_loopback()) {
            Self::Loopback
        } else {
            Self::Elsewhere
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_origins_are_equal_and_odd_ones_are_none() {
        let of = |url| Origin::of(url);
        assert_eq!(of("https://R.example:443/x?y"), of("https://r.example"));
        assert_eq!(of("http://r.example:80"), of("http://r.example"));
        assert_ne!(of("http://r.example"), of("https://r.example"));
        assert_ne!(of("https://r.example:444"), of("https://r.example"));
        assert_eq!(of("http://[::1]:5000/x").unwrap().host, "[::1]:5000");
        for none in [
            "https://user:pw@r.example",
            "ftp://r.example",
            "/x",
            "r.example/x",
            "https:///x",
        ] {
            assert_eq!(of(none), None, "{none}");
        }
    }

    #[test]
    fn a_location_never_leads_from_tls_to_plain_http() {
        let tls = Origin::of("https://r.example").unwrap();
        let plain = Origin::of("http://127.0.0.1:5000").unwrap();
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(tls.resolve("/v2/x"), some("https://r.example/v2/x"));
        assert_eq!(
            tls.resolve("https://cdn.example/x"),
            some("https://cdn.example/x")
        );
        assert_eq!(tls.resolve("http://r.example/x"), None);
        assert_eq!(tls.resolve("//cdn.example/x"), None);
        assert_eq!(tls.resolve("x"), None);
        assert_eq!(
            plain.resolve("http://127.0.0.1:1/x"),
            some("http://127.0.0.1:1/x")
        );
    }

    #[test]
    fn this_machine_is_told_from_others() {
        for here in ["localhost", "127.0.0.1", "127.9.9.9", "::1"] {
            assert_eq!(Locality::of(here), Locality::Loopback, "{here}");
        }
        for there in ["localhost.example", "10.0.0.1", "127.0.0.1.example", "::2"] {
            assert_eq!(Locality::of(there), Locality::Elsewhere, "{there}");
        }
    }
}
