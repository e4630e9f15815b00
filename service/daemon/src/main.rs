//! The daemon's command line.
//!
//! Exit status: 0 after a requested stop, 3 (INVALID_ARGUMENT) for an invalid command line or
//! configuration, 9 (FAILED_PRECONDITION) if the daemon can't start or continue. The command line's
//! `failure.rs` has the table.
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use tollgate_daemon::config::definitions::help;
use tollgate_daemon::config::{Config, ConfigError, PeerConfig, Scheduling, SocketMode, Waiting};
use tollgate_daemon::{capacity, output, verify_audit};
use tollgate_policy_host::{isolated, worker};
use tollgate_shm_abi::status::Code;
use tollgate_shm_abi::text;

/// The exit status if standard output can't be written.
const UNWRITTEN: u8 = 74;

/// The exit status if the reader of standard output has closed it.
const CLOSED: u8 = 141;

/// The Tollgate daemon: one per host. Applications reach it through shared memory.
///
/// Options override the configuration file. The log goes to standard error; TOLLGATE_LOG sets its
/// filter (default: warn, and info for the daemon itself). SIGINT and SIGTERM stop the daemon.
#[derive(Parser)]
#[command(
    name = "tollgated",
    version,
    args_conflicts_with_subcommands = true,
    max_term_width = 100
)]
struct Arguments {
    #[command(subcommand)]
    instead: Option<Instead>,
    /// Configuration file (TOML)
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[arg(long, help = help("name"))]
    name: Option<String>,
    #[arg(long, value_name = "PATH", help = help("socket"))]
    socket: Option<PathBuf>,
    #[arg(long, value_name = "MODE", help = help("socket_mode"))]
    socket_mode: Option<SocketMode>,
    #[arg(long, value_name = "GROUP", help = help("socket_group"))]
    socket_group: Option<String>,
    #[arg(long, value_name = "IP:PORT", help = help("listen"))]
    listen: Option<SocketAddr>,
    #[arg(long, value_name = "DIR", help = help("state"))]
    state: Option<PathBuf>,
    #[arg(long, value_name = "FILE", help = help("psk_file"))]
    psk_file: Option<PathBuf>,
    /// A peer that applications may name as a target; `*` stands for any host or port. Repeatable
    #[arg(long = "peer", value_name = "HOST:PORT")]
    peers: Vec<String>,
    #[arg(long, help = help("link.open_targets"))]
    open_targets: bool,
    /// Another name by which peers reach this daemon. Repeatable
    #[arg(long, value_name = "HOST[:PORT]")]
    advertise: Vec<String>,
    #[arg(long, help = help("link.unauthenticated_loopback"))]
    unauthenticated_loopback: bool,
    #[arg(long, value_delimiter = ',', value_name = "CORES", help = help("cores"))]
    cores: Option<Vec<usize>>,
    #[arg(long, value_enum, help = help("waiting"))]
    waiting: Option<Waiting>,
    #[arg(long, value_name = "US", help = help("spin_us"))]
    spin_us: Option<u64>,
    #[arg(long, value_enum, help = help("scheduling"))]
    scheduling: Option<Scheduling>,
    #[arg(long, value_name = "US", help = help("wait_target_us"))]
    wait_target_us: Option<u64>,
    /// Add a tenant `dev`, and keep its token in this file; `tollgate up --dev` has this option
    #[arg(long, value_name = "FILE", hide = true)]
    dev_token: Option<PathBuf>,
    /// Take over from the running daemon at the other end of standard input
    #[arg(long, hide = true)]
    take_over: bool,
}

/// Commands that run instead of a daemon.
#[derive(Subcommand)]
enum Instead {
    /// Check an audit log that no daemon is writing for edits; `tollgate audit verify` runs this
    VerifyAudit {
        /// The state directory
        #[arg(long, value_name = "DIR", required_unless_present = "file")]
        #[arg(conflicts_with = "file")]
        state: Option<PathBuf>,
        /// The log alone
        #[arg(long, value_name = "FILE")]
        file: Option<PathBuf>,
        /// The output of an earlier `tollgate audit head`
        #[arg(long, value_name = "SEQ:HASH", requires = "file")]
        head: Option<String>,
    },
    /// Print the most memory and descriptors that a configuration can need, as JSON; `tollgate
    /// check --config` runs this
    Capacity {
        /// Configuration file (TOML)
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
    },
    /// Print the manual page: `make dist` packages it
    #[command(hide = true)]
    Man,
}

impl Instead {
    fn run(self) -> ExitCode {
        let said = match self {
            Instead::Man => return manual(),
            Instead::VerifyAudit { state, file, head } => {
                verify_audit::verify(state.as_deref(), file.as_deref(), head.as_deref())
            }
            Instead::Capacity { config } => capacity::of_file(&config).map_err(refused),
        };
        match said {
            Ok(text) => print(&format!("{text}\n")),
            Err((exit, sentence)) => {
                output::tell(&format!("tollgated: {exit}: {sentence}"));
                self::exit(exit)
            }
        }
    }
}

/// The status of an invalid configuration, and the sentence with the place in the file.
fn refused(error: ConfigError) -> (Code, String) {
    let shown = error.shown().map(|lines| format!("\n{lines}"));
    let sentence = text::escape(&error.to_string()).into_owned();
    (error.code(), sentence + &shown.unwrap_or_default())
}

/// Prints an answer.
fn print(text: &str) -> ExitCode {
    match output::print(text) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.kind() == ErrorKind::BrokenPipe => ExitCode::from(CLOSED),
        Err(error) => {
            output::tell(&format!(
                "tollgated: standard output can't be written: {error}"
            ));
            ExitCode::from(UNWRITTEN)
        }
    }
}

/// Prints the manual page.
fn manual() -> ExitCode {
    let page = clap_mangen::Man::new(Arguments::command()).section("8");
    let mut text = Vec::new();
    match page.render(&mut text) {
        Ok(()) => print(&String::from_utf8_lossy(&text)),
        Err(error) => {
            output::tell(&format!(
                "tollgated: the manual page can't be written: {error}"
            ));
            ExitCode::from(UNWRITTEN)
        }
    }
}

/// Help and version are answers. Clap explains errors: what is wrong, the usage, and where help is.
fn explain(error: &clap::Error) -> ExitCode {
    let text = error.render().to_string();
    if !error.use_stderr() {
        return print(&text);
    }
    output::tell(text.trim_end());
    exit(Code::INVALID_ARGUMENT)
}

fn exit(code: Code) -> ExitCode {
    ExitCode::from(u8::try_from(code.0).unwrap_or(2))
}

impl Arguments {
    fn into_config(self) -> Result<Config, ConfigError> {
        let mut config = match &self.config {
            Some(path) => Config::read(path)?,
            None => Config::default(),
        };
        fn set<T>(place: &mut T, given: Option<T>) -> bool {
            let is_given = given.is_some();
            if let Some(given) = given {
                *place = given;
            }
            is_given
        }
        set(&mut config.name, self.name);
        set(&mut config.socket, self.socket.map(Some));
        set(&mut config.socket_mode, self.socket_mode);
        set(&mut config.socket_group, self.socket_group.map(Some));
        set(&mut config.listen, self.listen.map(Some));
        set(&mut config.state, self.state.map(Some));
        set(&mut config.psk_file, self.psk_file.map(Some));
        let peers = self.peers.into_iter().map(|address| PeerConfig { address });
        config.peers.extend(peers);
        config.link.open_targets |= self.open_targets;
        config.link.advertise.extend(self.advertise);
        config.link.unauthenticated_loopback |= self.unauthenticated_loopback;
        let settings = [
            ("cores", set(&mut config.cores, self.cores)),
            ("waiting", set(&mut config.waiting, self.waiting)),
            ("spin_us", set(&mut config.spin_us, self.spin_us)),
            ("scheduling", set(&mut config.scheduling, self.scheduling)),
            (
                "wait_target_us",
                set(&mut config.wait_target_us, self.wait_target_us),
            ),
        ];
        for (key, _) in settings.into_iter().filter(|(_, is_given)| *is_given) {
            config.given_on_command_line(key);
        }
        config.dev_token = self.dev_token;
        config.check()?;
        config.check_files()?;
        Ok(config)
    }
}

/// The parser's first line, without its advice.
fn first_line(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    line.trim_start_matches("error: ").to_owned()
}

fn main() -> ExitCode {
    let mut words = std::env::args_os().skip(1);
    // The daemon starts these processes by executing itself; people don't run them.
    match words.next() {
        Some(word) if word == worker::ARGUMENT => return worker::main(words),
        Some(word) if word == isolated::ARGUMENT => return isolated::main(words),
        _ => {}
    }
    let mut arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            if std::env::args_os().any(|word| word == tollgate_daemon::TAKE_OVER) {
                tollgate_daemon::refuse_take_over(&first_line(&error.to_string()));
            }
            return explain(&error);
        }
    };
    if let Some(instead) = arguments.instead.take() {
        return instead.run();
    }
    let log = output::log();
    let takes_over = arguments.take_over;
    let (code, sentence) = match arguments.into_config() {
        Err(error) => {
            if takes_over {
                tollgate_daemon::refuse_take_over(&error.to_string());
            }
            refused(error)
        }
        Ok(config) => match tollgate_daemon::run(config, takes_over) {
            Ok(()) => return ExitCode::SUCCESS,
            Err(error) => {
                let sentence = text::escape(&error.to_string()).into_owned();
                (Code::FAILED_PRECONDITION, sentence)
            }
        },
    };
    // The log ends before the last sentence is printed.
    drop(log);
    output::tell(&format!("tollgated: {code}: {sentence}"));
    exit(code)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// `TOLLGATE_BLESS=1` rewrites the reference.
    #[test]
    fn the_reference_is_the_help() {
        let mut written = "# Command line: `tollgated`\n\n\
             The help of the daemon and of its commands. `TOLLGATE_BLESS=1 cargo test -p tollgate-daemon\n\
             --bin tollgated the_reference` writes this page, and a test compares it with the program.\n\
             [Settings](settings.md) describes each setting, also those without an option.\n"
            .to_owned();
        let mut program = Arguments::command().term_width(100);
        program.build();
        let commands = program.get_subcommands().filter(|command| {
            let is_shown = !command.is_hide_set();
            is_shown && command.get_name() != "help"
        });
        for command in std::iter::once(&program).chain(commands) {
            let name = command.get_bin_name().unwrap_or(command.get_name());
            let help = command.clone().render_long_help().to_string();
            let help: Vec<_> = help.lines().map(str::trim_end).collect();
            let help = help.join("\n");
            written += &format!("\n## {name}\n\n```text\n{}\n```\n", help.trim_end());
        }
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../docs/src/reference/tollgated.md"
        );
        if std::env::var_os("TOLLGATE_BLESS").is_some() {
            return std::fs::write(path, written).unwrap();
        }
        assert_eq!(std::fs::read_to_string(path).unwrap(), written);
    }
}
