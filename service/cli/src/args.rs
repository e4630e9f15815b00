//! The command line, as others script against it.
//!
//! Everything a user can type is in this file, with its help; what it does is in the siblings
//! ([`crate::admin`], [`crate::rpc`], [`crate::stubs`], [`crate::up`]). Values are parsed here, once: what leaves
//! this file has its final type.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use tollgate_gen::Language;

/// Drives a Tollgate daemon: tenants, policies, and calls by hand.
///
/// The exit status is 0, or the number of the status code that says what went wrong
/// (the numbers of gRPC: 3 INVALID_ARGUMENT, 5 NOT_FOUND, 7 PERMISSION_DENIED, 14 UNAVAILABLE, ...).
#[derive(Debug, Parser)]
#[command(
    name = "tollgate",
    version,
    propagate_version = true,
    max_term_width = 100
)]
pub(crate) struct Cli {
    /// The daemon's socket
    #[arg(long, global = true, value_name = "PATH", env = "TOLLGATE_SOCKET")]
    #[arg(default_value = "/run/tollgate/tollgate.sock")]
    pub(crate) socket: PathBuf,

    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a daemon in the foreground, from a configuration file
    Up(Up),
    /// Add and list tenants
    #[command(subcommand)]
    Tenant(Tenant),
    /// Push, attach, detach and list tenants' policies
    #[command(subcommand)]
    Policy(Policy),
    /// Show what the daemon is doing
    Status(Status),
    /// Call a method of any service, with JSON in and JSON out
    Call(Call),
    /// Serve any service, with a fixed reply or an echo
    Serve(Serve),
    /// Write stubs for applications, from a schema
    Gen(Gen),
    /// Print a completion script for a shell
    #[command(after_help = "Example: tollgate completions bash > /etc/bash_completion.d/tollgate")]
    Completions {
        /// The shell
        shell: Shell,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Up {
    /// The daemon's configuration (TOML)
    #[arg(long, value_name = "FILE")]
    pub(crate) config: PathBuf,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Tenant {
    /// Add a tenant and print its token, this once
    Add {
        /// Lower-case letters, digits, `-`, `_` and `.`; at most 64
        name: String,
    },
    /// List the tenants
    List,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Policy {
    /// Upload a policy and print its name@version
    Push(Push),
    /// Let a policy judge a service's calls
    Attach(Attach),
    /// Stop a policy from judging a service's calls
    Detach(Detach),
    /// List the policies and where they are attached
    List,
}

#[derive(Debug, Args)]
pub(crate) struct Push {
    /// The policy: a core WebAssembly module with a manifest
    #[arg(value_name = "FILE.wasm")]
    pub(crate) module: PathBuf,
    /// The tenant whose calls it may judge
    #[arg(long)]
    pub(crate) tenant: String,
    /// The policy's name; pushing it again makes the next version
    #[arg(long)]
    pub(crate) name: String,
    /// The policy's configuration, in the format that the policy defines
    #[arg(long, value_name = "FILE.json")]
    pub(crate) config: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Attach {
    /// The policy, as `policy push` printed it
    #[arg(value_name = "NAME@VERSION")]
    pub(crate) policy: String,
    #[command(flatten)]
    pub(crate) place: Place,
    /// Where it judges: before the call leaves its host, or before the server sees it
    #[arg(long)]
    pub(crate) side: Side,
}

#[derive(Debug, Args)]
pub(crate) struct Detach {
    /// The policy's name
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) place: Place,
    /// Only this side; both if left out
    #[arg(long)]
    pub(crate) side: Option<Side>,
}

#[derive(Debug, Args)]
pub(crate) struct Place {
    /// The tenant
    #[arg(long)]
    pub(crate) tenant: String,
    /// The service, such as hotel.Reservation
    #[arg(long)]
    pub(crate) service: String,
    /// One method of the service; all if left out
    #[arg(long)]
    pub(crate) method: Option<String>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Side {
    /// On the caller's host
    Client,
    /// On the server's host
    Server,
}

#[derive(Debug, Args)]
pub(crate) struct Status {
    /// Print JSON, for programs
    #[arg(long)]
    pub(crate) json: bool,
}

/// Who calls or serves, and what.
#[derive(Debug, Args)]
pub(crate) struct Schema {
    /// The tenant's token, as `tenant add` printed it
    #[arg(long, env = "TOLLGATE_TOKEN", hide_env_values = true)]
    pub(crate) token: String,
    /// What defines the service: a .proto file, a directory of them, or a serialized descriptor set; repeat for more
    #[arg(long, value_name = "PATH", required = true)]
    pub(crate) proto: Vec<PathBuf>,
    /// Where imports are; the directories of the .proto files if left out
    #[arg(long, short = 'I', value_name = "DIR")]
    pub(crate) include: Vec<PathBuf>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Example: tollgate call --token T --proto hotel.proto --to 127.0.0.1:7472 \\
         hotel.Reservation/Reserve '{\"customer_name\": \"Ada\"}'"
)]
pub(crate) struct Call {
    #[command(flatten)]
    pub(crate) schema: Schema,
    /// The peer daemon that serves it; this host if left out
    #[arg(
        long,
        value_name = "HOST:PORT",
        default_value = "",
        hide_default_value = true
    )]
    pub(crate) to: String,
    /// Give up after this time, such as 500ms, 5s or 1m
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "10s")]
    pub(crate) deadline: Duration,
    /// The method, such as hotel.Reservation/Reserve
    #[arg(value_name = "SERVICE/METHOD")]
    pub(crate) method: MethodName,
    /// The request as JSON; `-` reads it from standard input
    #[arg(value_name = "JSON", default_value = "{}")]
    pub(crate) request: String,
}

#[derive(Debug, Args)]
#[command(after_help = "Example: tollgate serve --token T --proto hotel.proto \\
         --service hotel.Reservation --reply '{\"reservation_id\": 7}'")]
pub(crate) struct Serve {
    #[command(flatten)]
    pub(crate) schema: Schema,
    /// The service, such as hotel.Reservation
    #[arg(long)]
    pub(crate) service: String,
    #[command(flatten)]
    pub(crate) answer: Answer,
    /// Print every request as one line of JSON
    #[arg(long)]
    pub(crate) print_requests: bool,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct Answer {
    /// Answer every request with this reply, as JSON; `-` reads it from standard input
    #[arg(long, value_name = "JSON")]
    pub(crate) reply: Option<String>,
    /// Answer every request with itself, where request and reply have one type
    #[arg(long)]
    pub(crate) echo: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Example: tollgate gen --lang c --out stubs proto/hotel.proto\n\n\
         Prints the files that have changed. There is one per package, also for packages that are imported."
)]
pub(crate) struct Gen {
    /// The language
    #[arg(long)]
    pub(crate) lang: Lang,
    /// Where the stubs go; made if it isn't there
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
    /// Where imports are; the directories of the .proto files if left out
    #[arg(long, short = 'I', value_name = "DIR")]
    pub(crate) include: Vec<PathBuf>,
    /// Write nothing, and fail if a file isn't what would be written: for CI
    #[arg(long)]
    pub(crate) check: bool,
    /// The schema: .proto files, directories of them, serialized descriptor sets
    #[arg(value_name = "INPUT", required = true)]
    pub(crate) inputs: Vec<PathBuf>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Lang {
    /// `<package>.rs`, for include!, on top of the tollgate crate
    Rust,
    /// `<package>.tollgate.h` for C11 and C++17, and tollgate_block.h
    C,
    /// `<package>_tollgate.py` for Python 3.9 and newer, and tollgate_block.py
    Python,
}

impl Lang {
    pub(crate) fn language(self) -> Language {
        match self {
            Lang::Rust => Language::Rust,
            Lang::C => Language::C,
            Lang::Python => Language::Python,
        }
    }
}

/// A method's full name, `package.Service/Method`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MethodName {
    pub(crate) service: String,
    pub(crate) method: String,
}

impl std::str::FromStr for MethodName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.trim_start_matches('/').split_once('/') {
            Some((service, method))
                if !service.is_empty() && !method.is_empty() && !method.contains('/') =>
            {
                Ok(MethodName {
                    service: service.to_owned(),
                    method: method.to_owned(),
                })
            }
            _ => Err("a method is written package.Service/Method".to_owned()),
        }
    }
}

/// A time with its unit: `ms`, `s` or `m`, whole numbers, longer than zero, up to a day.
fn duration(text: &str) -> Result<Duration, String> {
    const DAY: Duration = Duration::from_secs(24 * 60 * 60);
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit());
    let unit_ms = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        _ => return Err("a time is a whole number and its unit: 500ms, 5s, 1m".to_owned()),
    };
    let number = text
        .trim_end_matches(unit)
        .parse::<u64>()
        .map_err(|error| error.to_string())?;
    let time = Duration::from_millis(number.saturating_mul(unit_ms));
    if time.is_zero() || time > DAY {
        return Err("a time is longer than zero and at most one day".to_owned());
    }
    Ok(time)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_well_formed_and_has_help_on_everything() {
        fn check(command: &clap::Command) {
            assert!(
                command.get_about().is_some(),
                "{} has no help",
                command.get_name()
            );
            for argument in command.get_arguments() {
                let help = argument.get_help().or(argument.get_long_help());
                assert!(
                    help.is_some(),
                    "{} {} has no help",
                    command.get_name(),
                    argument.get_id()
                );
            }
            command.get_subcommands().for_each(check);
        }
        let mut command = Cli::command();
        command.build();
        command.clone().debug_assert();
        check(&command);
    }

    #[test]
    fn the_documented_lines_parse() {
        for line in [
            "tollgate --socket P tenant add acme",
            "tollgate --socket P policy push ./acl.wasm --tenant acme --name acl",
            "tollgate policy push ./acl.wasm --tenant acme --name acl --config F.json --socket P",
            "tollgate policy attach acl@1 --tenant acme --service hotel.Reservation --method Reserve --side client",
            "tollgate policy attach acl@1 --tenant acme --service hotel.Reservation --side server",
            "tollgate policy detach acl --tenant acme --service hotel.Reservation",
            "tollgate --socket P status --json",
            "tollgate serve --token T --proto hotel.proto --service hotel.Reservation --reply {}",
            "tollgate serve --token T --proto hotel.proto --service hotel.Echo --echo --print-requests",
            "tollgate call --token T --proto hotel.proto --to 127.0.0.1:7472 hotel.Reservation/Reserve {}",
            "tollgate call --token T --proto hotel.proto hotel.Reservation/Reserve --deadline 5s -",
            "tollgate call --token T --proto protos --proto set.binpb -I third_party hotel.Reservation/Reserve",
            "tollgate up --config host-a.toml",
            "tollgate gen --lang rust --out stubs hotel.proto",
            "tollgate gen --check --lang python --out stubs -I proto -I more hotel.proto schema.binpb",
            "tollgate completions zsh",
        ] {
            let parsed = Cli::try_parse_from(line.split(' '));
            assert!(parsed.is_ok(), "{line}: {parsed:?}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for line in [
            "tollgate serve --token T --proto hotel.proto --service hotel.Echo",
            "tollgate serve --token T --proto hotel.proto --service hotel.Echo --echo --reply {}",
            "tollgate call --token T --proto hotel.proto Reserve {}",
            "tollgate call --token T hotel.Reservation/Reserve {}",
            "tollgate policy attach acl@1 --tenant acme --service hotel.Reservation --side middle",
            "tollgate gen --lang go --out stubs hotel.proto",
            "tollgate gen --lang c --out stubs",
            "tollgate gen --lang c hotel.proto",
        ] {
            assert!(Cli::try_parse_from(line.split(' ')).is_err(), "{line}");
        }
    }

    #[test]
    fn times_have_a_unit_and_a_bound() {
        let check = |text, expected: Option<u64>| {
            assert_eq!(
                duration(text).ok(),
                expected.map(Duration::from_millis),
                "{text}"
            );
        };
        check("500ms", Some(500));
        check("5s", Some(5_000));
        check("1m", Some(60_000));
        check("1440m", Some(86_400_000));
        for wrong in [
            "",
            "5",
            "s",
            "5h",
            "-5s",
            "0s",
            "1441m",
            "99999999999999999999ms",
            "5 s",
            "1.5s",
        ] {
            check(wrong, None);
        }
    }
}
