//! Every bound of a client session, and their sum.
//!
//! The daemon announces the maximum number of outstanding calls and the maximum length of a
//! message. The bounds here limit the client's own memory. Per session: at most [`MAX_OUTSTANDING`]
//! call slots of about 100 bytes, [`MAX_HANDLERS`] handler futures, [`MAX_BINDS`] binds under way,
//! and one descriptor of backlog for each call, handler and delivered block that exists.

use std::time::Duration;

/// The most calls of one session that wait for their end, whatever the daemon allows.
pub const MAX_OUTSTANDING: usize = 65_536;

/// The most incoming calls whose handlers run at once; further ones are answered RESOURCE_EXHAUSTED.
pub const MAX_HANDLERS: usize = 4_096;

/// The most binds under way at once.
pub const MAX_BINDS: usize = 256;

/// Bytes of a file with a token, white space around it included.
pub const MAX_TOKEN_BYTES: usize = 4_096;

/// How long a driver spins before it sleeps, unless the options say otherwise.
pub const DEFAULT_SPIN: Duration = Duration::from_micros(50);

/// First and longest pause before a session whose daemon is gone tries to open itself anew; each is [`RECONNECT_GROWTH`] times as long as the one
/// before, and shortened by up to a half at random. Two attempts per second, each a refused `connect`, cost some 20 us.
pub const RECONNECT_PAUSE: (Duration, Duration) =
    (Duration::from_millis(10), Duration::from_millis(500));

/// See [`RECONNECT_PAUSE`]. A session is late by its last pause at most: by 10 ms and a third of the time that its daemon was gone, however the
/// pauses before were shortened, and by no more than 500 ms. With 1.5 it would be as late as its daemon was.
pub const RECONNECT_GROWTH: f64 = 7.0 / 6.0;

/// First and longest pause before an idempotent call that ended UNAVAILABLE is made again; doubled in between, and shortened by up to a half at
/// random.
pub const RETRY_PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// How often such a call is made again, unless the options say otherwise.
pub const DEFAULT_RETRIES: u32 = 2;

/// How often it is at most, whatever the options say.
pub const MAX_RETRIES: u32 = 10;

/// A session's budget for calls that are made again: each that ends UNAVAILABLE takes one, each reply gives a tenth back.
pub const RETRY_TOKENS: u32 = 100;

/// How long the daemon may take to answer the opening of a session.
pub const OPEN_TIMEOUT: Duration = Duration::from_secs(5);

/// How long the daemon may take to answer a bind, the connection to a peer included.
pub const BIND_TIMEOUT: Duration = Duration::from_secs(10);

/// The most completions that are handled before futures are polled again.
pub const DRAIN_BATCH: usize = 256;

/// How long a driver that never sleeps goes without a look at the control socket; one that drives several sessions, so long for each
/// of them.
pub const CONTROL_CHECK: Duration = Duration::from_millis(1);

/// How long a driver sleeps while somebody waits for room in the ring, whose consumption nobody announces.
pub const ROOM_CHECK: Duration = Duration::from_millis(1);

/// Blocks of up to this many bytes are written under the session's lock; larger ones outside of it.
pub const WRITE_LOCKED: usize = 16 << 10;

/// Delivered blocks of this many bytes together are released at once instead of with the next batch.
pub const RELEASE_BYTES: u64 = 256 << 10;

/// The most turns of a [`Pump`](crate::Pump) before its event loop gets a word in.
pub const PUMP_TURNS: usize = 64;
