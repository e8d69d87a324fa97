//! Writing: blobs, then the manifest that names them.

use std::io::{self, Read};

use casemate_rootfs::transport::Version;
use casemate_rootfs::{Counted, Digest};
use ureq::http::{Method, header};

use crate::error::RegistryError;
use crate::session::{Call, Registry};

impl Registry {
    /// Whether the repository has a blob.
    pub fn has_blob(&mut self, digest: &Digest) -> Result<bool, RegistryError> {
        const OPERATION: &str = "look for a layer";
        self.retrying(|registry| {
            let url = registry.url(&format!("blobs/{digest}"));
            let call = Call::new(OPERATION, Method::HEAD, url);
            let answer = registry.send(call)?;
            match answer.status().as_u16() {
                200 => Ok(true),
                404 => Ok(false),
                _ => Err(registry.unexpected(OPERATION, answer)),
            }
        })
    }

    /// Sends a blob of `bytes` bytes. `open` gives it from its beginning, once for each try;
    /// `progress` gets how much of it is sent.
    pub fn push_blob(
        &mut self,
        digest: &Digest,
        bytes: u64,
        open: &mut dyn FnMut() -> io::Result<Box<dyn Read>>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), RegistryError> {
        self.retrying(|registry| {
            let upload = registry.begin_upload()?;
            let separator = if upload.contains('?') { '&' } else { '?' };
            let mut content = Counted::new(open().map_err(RegistryError::Read)?, progress);
            let mut call = Call::new(
                "send a layer or configuration",
                Method::PUT,
                format!("{upload}{separator}digest={digest}"),
            );
            call.headers
                .push((header::CONTENT_TYPE, "application/octet-stream".to_owned()));
            let operation = call.operation;
            call.body = Some((&mut content, bytes));
            let answer = registry.send(call)?;
            match answer.status().as_u16() {
                201 => Ok(()),
                _ => Err(registry.unexpected(operation, answer)),
            }
        })
    }

    /// Returns the URL that a blob is sent to.
    fn begin_upload(&mut self) -> Result<String, RegistryError> {
        const OPERATION: &str = "begin an upload";
        let url = self.url("blobs/uploads/");
        let answer = self.send(Call::new(OPERATION, Method::POST, url.clone()))?;
        match answer.status().as_u16() {
            202 => self.location(OPERATION, &url, &answer),
            _ => Err(self.unexpected(OPERATION, answer)),
        }
    }

    /// Gives the repository a manifest, and a tag to it where `version` is one. All that it names
    /// must be there.
    pub fn push_manifest(
        &mut self,
        version: &Version,
        media_type: &str,
        bytes: &[u8],
    ) -> Result<(), RegistryError> {
        const OPERATION: &str = "send the manifest";
        let name = match version {
            Version::Tag(tag) => tag.as_str(),
            Version::Digest(digest) => digest.as_str(),
        };
        self.retrying(|registry| {
            let mut content = bytes;
            let url = registry.url(&format!("manifests/{name}"));
            let mut call = Call::new(OPERATION, Method::PUT, url);
            call.headers
                .push((header::CONTENT_TYPE, media_type.to_owned()));
            call.body = Some((&mut content, bytes.len() as u64));
            let answer = registry.send(call)?;
            match answer.status().as_u16() {
                201 => Ok(()),
                _ => Err(registry.unexpected(OPERATION, answer)),
            }
        })
    }
}
