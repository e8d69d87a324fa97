//! A connection that breaks.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

/// Forwards to a server, and cuts each connection after a number of bytes from it.
pub(crate) struct Proxy {
    pub(crate) host: String,
    /// Bytes that came from the server, over all connections.
    pub(crate) bytes: Arc<AtomicU64>,
    pub(crate) connections: Arc<AtomicU64>,
}

impl Proxy {
    pub(crate) fn start(server: &str, cut_after: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let (bytes, connections) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (server, counted, opened) = (
            server.to_owned(),
            Arc::clone(&bytes),
            Arc::clone(&connections),
        );
        thread::spawn(move || {
            for client in listener.incoming() {
                let (Ok(client), Ok(upstream)) = (client, TcpStream::connect(&server)) else {
                    continue;
                };
                opened.fetch_add(1, Ordering::Relaxed);
                let (mut up, mut down) =
                    (client.try_clone().unwrap(), upstream.try_clone().unwrap());
                thread::spawn(move || {
                    let _sent = std::io::copy(&mut up, &mut down);
                    let _shut = down.shutdown(Shutdown::Write);
                });
                let counted = Arc::clone(&counted);
                thread::spawn(move || relay(upstream, client, cut_after, &counted));
            }
        });
        Self {
            host,
            bytes,
            connections,
        }
    }
}

fn relay(mut from: TcpStream, mut to: TcpStream, cut_after: u64, counted: &AtomicU64) {
    let mut left = cut_after;
    let mut buffer = [0; 16 * 1024];
    while left > 0 {
        let Ok(count) = from.read(&mut buffer) else {
            break;
        };
        let count = count.min(usize::try_from(left).unwrap());
        if count == 0 || to.write_all(&buffer[..count]).is_err() {
            break;
        }
        left -= count as u64;
        counted.fetch_add(count as u64, Ordering::Relaxed);
    }
    let _shut = (to.shutdown(Shutdown::Both), from.shutdown(Shutdown::Both));
}
