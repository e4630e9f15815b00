//! A telemetry collector over HTTP. It reads what daemons send, counts it, and keeps nothing, so
//! its cost is the lower bound for a collector.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate_conformance::testbed::{SOON, eventually};

/// Listens until the process ends.
#[derive(Debug)]
pub(crate) struct Collector {
    /// The address that it listens on.
    pub(crate) address: SocketAddr,
    span_bytes: Arc<AtomicU64>,
}

impl Collector {
    /// # Errors
    /// No port is free.
    pub(crate) fn start() -> Result<Collector, String> {
        let failed = |error: io::Error| format!("no collector: {error}");
        let listener = TcpListener::bind("127.0.0.1:0").map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let span_bytes = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&span_bytes);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let counted = Arc::clone(&counted);
                std::thread::spawn(move || answer(&stream, &counted));
            }
        });
        Ok(Collector {
            address,
            span_bytes,
        })
    }

    /// # Errors
    /// No spans have come, so the measurement didn't include tracing.
    pub(crate) fn has_spans(&self) -> Result<(), String> {
        let came = eventually(SOON, || self.span_bytes.load(Ordering::Relaxed) > 0);
        came.map(drop)
            .map_err(|_| "the collector got no span".to_owned())
    }
}

/// Answers one request after the other, until the daemon closes the connection.
fn answer(stream: &TcpStream, span_bytes: &AtomicU64) -> io::Result<()> {
    let mut from = BufReader::with_capacity(1 << 16, stream);
    loop {
        let (mut is_spans, mut length) = (false, 0);
        loop {
            let mut line = String::new();
            if from.read_line(&mut line)? == 0 {
                return Ok(());
            }
            let line = line.trim_end().to_ascii_lowercase();
            is_spans |= line.starts_with("post /v1/traces ");
            if let Some(value) = line.strip_prefix("content-length: ") {
                length = value.parse().map_err(io::Error::other)?;
            }
            if line.is_empty() {
                break;
            }
        }
        let read = io::copy(&mut from.by_ref().take(length), &mut io::sink())?;
        if is_spans {
            span_bytes.fetch_add(read, Ordering::Relaxed);
        }
        (&*stream).write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")?;
    }
}
