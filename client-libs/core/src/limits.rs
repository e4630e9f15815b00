//! Every bound of a client session, and their sum.
//!
//! The daemon announces the maximum number of outstanding calls and the maximum length of a
//! message. The bounds here limit the client's own memory. Per session: at most [`MAX_OUTSTANDING`]
//! call slots of about 100 bytes, [`MAX_HANDLERS`] handler futures, [`MAX_BINDS`] binds under way,
//! and one descriptor of backlog for each call, handler and delivered block that exists.

use std::time::Duration;

/// The most calls of one session that wait for their end, regardless of the daemon's limit.
pub const MAX_OUTSTANDING: usize = 65_536;

/// The most incoming calls with running handlers; further ones are answered RESOURCE_EXHAUSTED.
pub const MAX_HANDLERS: usize = 4_096;

/// The most binds in flight at once.
pub const MAX_BINDS: usize = 256;

/// The maximum length in bytes of a token file, including white space around the token.
pub const MAX_TOKEN_BYTES: usize = 4_096;

/// How long a driver spins before it sleeps, by default.
pub const DEFAULT_SPIN: Duration = Duration::from_micros(50);

/// First and longest pause before a session tries to reconnect after its daemon went away. Each
/// pause is [`RECONNECT_GROWTH`] times as long as the one before, and shortened by up to a half at
/// random. Two attempts per second, each a refused `connect`, cost about 20 us.
pub const RECONNECT_PAUSE: (Duration, Duration) =
    (Duration::from_millis(10), Duration::from_millis(500));

/// See [`RECONNECT_PAUSE`]. A session is late by at most its last pause: by 10 ms and a third of
/// the daemon's downtime, regardless of how the earlier pauses were shortened, and by at most 500
/// ms. With a growth of 1.5 it would be late by as much as the daemon's downtime.
pub const RECONNECT_GROWTH: f64 = 7.0 / 6.0;

/// First and longest pause before an idempotent call that ended UNAVAILABLE is made again. The
/// pause doubles each time, and is shortened by up to a half at random.
pub const RETRY_PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// How often such a call is made again, by default.
pub const DEFAULT_RETRIES: u32 = 2;

/// The maximum number of retries that the options may set.
pub const MAX_RETRIES: u32 = 10;

/// A session's retry budget, in tokens. Each call that ends UNAVAILABLE takes one token; each reply
/// gives a tenth back.
pub const RETRY_TOKENS: u32 = 100;

/// How long the daemon may take to answer the opening of a session.
pub const OPEN_TIMEOUT: Duration = Duration::from_secs(5);

/// How long the daemon may take to answer a bind, including the connection to a peer.
pub const BIND_TIMEOUT: Duration = Duration::from_secs(10);

/// The most completions that are handled before futures are polled again.
pub const DRAIN_BATCH: usize = 256;

/// The interval at which a driver that never sleeps looks at the control socket. A driver of
/// several sessions looks at each one's socket at this interval.
pub const CONTROL_CHECK: Duration = Duration::from_millis(1);

/// How long a driver sleeps while a task waits for room in the ring. The daemon doesn't announce
/// its consumption.
pub const ROOM_CHECK: Duration = Duration::from_millis(1);

/// Blocks of up to this many bytes are written under the session's lock; larger ones without it.
pub const WRITE_LOCKED: usize = 16 << 10;

/// Delivered blocks that add up to this many bytes are released at once instead of with the next
/// batch.
pub const RELEASE_BYTES: u64 = 256 << 10;

/// The most turns of a [`Pump`](crate::Pump) before its event loop runs again.
pub const PUMP_TURNS: usize = 64;
