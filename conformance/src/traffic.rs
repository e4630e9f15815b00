//! Bystanders: an honest tenant's calls, which flow during attacks on others.
//!
//! One server, one client, one call at a time, as fast as possible. Every answer is compared with
//! its request. A test attacks, and calls [`Traffic::assert_flows`] in between.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tollgate::{Session, SessionOptions, block_on};
use tollgate_schema::Schema;
use tollgate_schema::dynamic::{from_json, write_block};

use crate::testbed::{Daemon, SOON, eventually, proto_file};

/// The latencies kept until they are taken.
const LATENCIES: usize = 1 << 20;

/// The service that echoes.
pub const ECHO: &str = "hotel.Echo";

/// Calls of an honest tenant, flowing until dropped.
#[derive(Debug)]
pub struct Traffic {
    shared: Arc<Shared>,
    client: Option<JoinHandle<()>>,
    /// Serves as long as it lives.
    _server: Session,
}

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    answered: AtomicU64,
    /// The latencies of answers since the last reset, in nanoseconds; bounded.
    latencies: Mutex<Vec<u64>>,
    failure: Mutex<Option<String>>,
}

impl Traffic {
    /// Starts a tenant with this name: its server on `server`'s host, its client on `client`'s.
    ///
    /// # Panics
    /// If the first call fails.
    pub fn start(tenant: &str, client: &Daemon, server: &Daemon) -> Traffic {
        let schema = hotel();
        let open = |daemon: &Daemon| {
            let mut options = SessionOptions::new(daemon.socket(), daemon.tenant(tenant));
            options.app = "honest".to_owned();
            Session::open(options).unwrap_or_else(|status| panic!("no session: {status}"))
        };
        let is_local = std::ptr::eq(client, server);
        let target = if is_local {
            String::new()
        } else {
            server.listen().to_string()
        };
        let serving = open(server);
        let bound = serving.serve_raw(schema.descriptor_set(), ECHO, |_, request| {
            Ok(request.to_vec())
        });
        block_on(&serving, bound).unwrap_or_else(|status| panic!("not serving: {status}"));
        let calling = if is_local {
            serving.clone()
        } else {
            open(client)
        };
        let shared = Arc::new(Shared::default());
        let flow = {
            let shared = shared.clone();
            move || {
                let ended = flow(&calling, &schema, &target, &shared);
                *shared
                    .failure
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner) = ended.err();
            }
        };
        let client = std::thread::spawn(flow);
        let traffic = Traffic {
            shared,
            client: Some(client),
            _server: serving,
        };
        traffic.assert_flows();
        traffic
    }

    /// Waits for some more answers; no call may ever have failed.
    ///
    /// # Panics
    /// If a call failed, got a wrong answer, or no answer comes.
    pub fn assert_flows(&self) {
        let before = self.shared.answered.load(Ordering::Relaxed);
        let more = eventually(SOON, || {
            self.assert_unharmed();
            self.shared.answered.load(Ordering::Relaxed) >= before + 50
        });
        more.unwrap_or_else(|waited| {
            panic!("an honest tenant's calls have stalled for {waited:?}")
        });
    }

    /// The latencies of calls answered while `meanwhile` runs, sorted, in nanoseconds.
    pub fn latencies(&self, meanwhile: impl FnOnce()) -> Vec<u64> {
        let take = || {
            let kept = self.shared.latencies.lock();
            std::mem::take(&mut *kept.unwrap_or_else(PoisonError::into_inner))
        };
        let _before = take();
        meanwhile();
        let mut latencies = take();
        latencies.sort_unstable();
        latencies
    }

    fn assert_unharmed(&self) {
        let failure = self
            .shared
            .failure
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        assert_eq!(failure, None, "an honest tenant's call failed");
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        let joined = self.client.take().map(JoinHandle::join);
        if !std::thread::panicking() {
            assert!(
                !matches!(joined, Some(Err(_))),
                "the honest tenant's thread panicked"
            );
            self.assert_unharmed();
        }
    }
}

/// The hotel schema.
///
/// # Panics
/// If the repository's own file doesn't compile.
pub fn hotel() -> Schema {
    let file = proto_file("hotel.proto");
    let include = file.parent().expect("a file is in a directory").to_owned();
    Schema::compile_proto(&[&file], &[&include]).unwrap_or_else(|error| panic!("{error}"))
}

/// The block of a request to [`ECHO`].
///
/// # Panics
/// If the hotel schema has no echo message.
pub fn echo_block(schema: &Schema, payload_base64: &str) -> Vec<u8> {
    let json = format!("{{\"payload\": \"{payload_base64}\"}}");
    let descriptor = schema
        .message("hotel.EchoMessage")
        .expect("hotel.proto has it");
    let layout = schema.service(ECHO).expect("hotel.proto has it");
    let message = from_json(&descriptor, &json).expect("the JSON is an echo message");
    write_block(&layout.layouts, layout.methods[0].input, &message)
        .expect("an echo message fits a block")
}

fn flow(session: &Session, schema: &Schema, target: &str, shared: &Shared) -> Result<(), String> {
    let request = echo_block(schema, "aG9uZXN0");
    block_on(session, async {
        let failed = |status: tollgate::Status| status.to_string();
        let binding = session
            .bind_client(schema.descriptor_set(), ECHO, target)
            .await
            .map_err(failed)?;
        let handle = binding.handle("Echo").ok_or("the binding lacks Echo")?;
        while !shared.stop.load(Ordering::Relaxed) {
            let begin = Instant::now();
            let reply = session
                .call_raw(handle, &request, Some(Duration::from_secs(20)))
                .await
                .map_err(failed)?;
            if *reply != *request {
                return Err("an answer differs from its request".to_owned());
            }
            shared.answered.fetch_add(1, Ordering::Relaxed);
            let mut latencies = shared
                .latencies
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            if latencies.len() < LATENCIES {
                latencies.push(begin.elapsed().as_nanos() as u64);
            }
        }
        Ok(())
    })
}
