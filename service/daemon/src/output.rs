//! The program's output: a line on standard output, sentences on standard error, and the log.
//!
//! Text that others chose is escaped here, once for every place that logs: a tenant's text in a
//! field can't start a second line or control a terminal. If standard error takes nothing (a full
//! disk, a closed pipe), only the log is lost. `println!` and `eprintln!` would panic, so this
//! crate denies them.
//!
//! Log lines pass through a bounded queue to a thread that writes them. A standard error that
//! blocks (a pipe that nobody reads) therefore stops no call: the queue fills, further lines are
//! dropped, and [`dropped_lines`] counts them.

use std::fmt;
use std::io::{self, IsTerminal, Write as _};
use std::sync::OnceLock;

use tollgate_shm_abi::secret::without_tokens;
use tollgate_shm_abi::text;
use tracing_appender::non_blocking::{ErrorCounter, NonBlocking, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::{DefaultFields, Writer};

use crate::limits::MAX_LOG_LINES;

/// The default filter of the log. TLS is off: the errors of its users report TLS failures once.
const LOGGED: &str = "warn,tollgate_daemon=info,tollgate_datapath=info,tollgate_telemetry=info,rustls=off,rustls_platform_verifier=off";

/// Counts the lines that the log's queue had no room for.
static DROPPED: OnceLock<ErrorCounter> = OnceLock::new();

/// The running log. When it is dropped, the lines in its queue are written; a standard error that
/// blocks delays that by at most 1.1 s.
#[must_use = "the log ends when this is dropped"]
pub struct Log {
    _writer: WorkerGuard,
}

/// Starts the log, on standard error; TOLLGATE_LOG is its filter.
pub fn log() -> Log {
    let filter = EnvFilter::try_from_env("TOLLGATE_LOG");
    let (queue, writer) = queue(io::stderr());
    DROPPED.get_or_init(|| queue.error_counter());
    tracing_subscriber::fmt()
        .with_env_filter(filter.unwrap_or_else(|_| LOGGED.into()))
        .with_writer(queue)
        .with_ansi(io::stderr().is_terminal() && !has_no_color())
        .with_target(false)
        .fmt_fields(Escaped)
        .log_internal_errors(false)
        .init();
    Log { _writer: writer }
}

/// Whether the environment asks for no colours (https://no-color.org).
fn has_no_color() -> bool {
    std::env::var_os("NO_COLOR").is_some_and(|text| !text.is_empty())
}

/// The queue of log lines, and the thread that writes them to `output`.
fn queue(output: impl io::Write + Send + 'static) -> (NonBlocking, WorkerGuard) {
    NonBlockingBuilder::default()
        .buffered_lines_limit(MAX_LOG_LINES)
        .lossy(true)
        .thread_name("log")
        .finish(output)
}

/// The log lines that were dropped since the start because standard error didn't take them.
pub fn dropped_lines() -> u64 {
    let dropped = DROPPED.get().map_or(0, ErrorCounter::dropped_lines);
    u64::try_from(dropped).unwrap_or(u64::MAX)
}

/// Prints to standard output.
///
/// # Errors
/// It can't be written.
pub fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text::escape_lines(text).as_bytes())?;
    out.flush()
}

/// Writes a sentence to standard error, on its own line, without the tokens in it. A failure is
/// ignored: there is nowhere left to report it.
pub fn tell(sentence: &str) {
    let line = format!("{}\n", text::escape_lines(&without_tokens(sentence)));
    let _lost = io::stderr().lock().write_all(line.as_bytes());
}

/// Formats like [`DefaultFields`], but escapes text that others chose.
struct Escaped;

impl<'writer> FormatFields<'writer> for Escaped {
    fn format_fields<R: RecordFields>(
        &self,
        mut writer: Writer<'writer>,
        fields: R,
    ) -> fmt::Result {
        let mut escaping = text::Escaping(&mut writer);
        DefaultFields::new().format_fields(Writer::new(&mut escaping), fields)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::mpsc::{self, Receiver};
    use std::sync::{Arc, Mutex};

    use super::*;

    /// Blocks writes until the test opens it.
    struct Blocked(Receiver<()>);

    impl io::Write for Blocked {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _open = self.0.recv();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_beyond_the_queue_are_dropped_and_counted() {
        let (open, blocked) = mpsc::channel();
        let (mut queue, writer) = queue(Blocked(blocked));
        let surplus = 10;
        for _ in 0..MAX_LOG_LINES + surplus {
            queue.write_all(b"line\n").unwrap();
        }
        // The writer may hold one line.
        let dropped = queue.error_counter().dropped_lines();
        assert!((surplus - 1..=surplus).contains(&dropped), "{dropped}");
        drop(open);
        drop(writer);
    }

    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Log {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if let Ok(mut log) = self.0.lock() {
                log.extend_from_slice(bytes);
            }
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn what_others_chose_stays_in_its_line_of_the_log() {
        let hostile = "a\u{1b}[2J\u{7}\u{9b}\nINFO forged\r\u{2028}b\u{202e}";
        let log = Log::default();
        let made = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_writer(move || made.clone())
            .with_ansi(true)
            .fmt_fields(Escaped)
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            let span = tracing::info_span!("of", tenant = hostile);
            let _in = span.enter();
            tracing::info!(shown = %hostile, debugged = ?hostile, plain = hostile, "says {hostile}");
        });
        let log = log
            .0
            .lock()
            .map(|log| String::from_utf8_lossy(&log).into_owned());
        let log = log.unwrap_or_default();
        assert_eq!(log.matches('\n').count(), 1, "{log:?}");
        assert_eq!(log.matches("forged").count(), 5, "{log:?}");
        // The formatter itself writes colours; the ESC of other texts is escaped.
        for obeyed in ["\u{1b}[2J", "\u{7}", "\u{9b}", "\r", "\u{2028}", "\u{202e}"] {
            assert!(!log.contains(obeyed), "{obeyed:?} in {log:?}");
        }
    }
}
