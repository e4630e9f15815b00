//! `tollgate`: the command line of a Tollgate daemon.
//!
//! ```text
//!                       ┌─ admin         status, console, prefetch, upgrade: one request, one report
//!                       ├─ audit         the log of all administration
//!                       ├─ approval      changes of tenants that wait for an operator
//! args  the commands    ├─ calls         single calls: explain, tap, trace
//! usage their help      ├─ ceiling       what a tenant may have at most
//!   │                   ├─ check         what is wrong with a host or a daemon, and how to mend it
//!   │                   ├─ context       daemons and tokens by name
//!   │                   ├─ credential    who may act for a tenant
//!   │                   ├─ daemon        its settings
//!   │                   ├─ desired       desired state in files: apply and export
//!   └── main ───────────┼─ fleet         several hosts' daemons, through their sockets and ssh
//!                       ├─ policy        policies
//!                       ├─ policy_tools  policies without a daemon
//!                       ├─ project       new policies
//!                       ├─ rpc           call and serve, over the client library
//!                       ├─ stubs         code for applications
//!                       ├─ tenant        tenants and their tokens
//!                       ├─ tenant_usage  what a tenant uses
//!                       ├─ top           what the daemon does, live
//!                       └─ up            becomes the daemon
//!
//! Below them all:
//!
//! api      the daemon's API, as whom
//! request  one request to the daemon   screen, attachment  a report within a screen    failure  a sentence, a code, a hint
//! schema   .proto and JSON             render              JSON as text                output   standard output
//! values   numbers, times, methods     metadata            key=value                   stderr   standard error
//! confirm  asks before a change
//! token    the tenant's                input               messages                    limits   bounds
//! ```
//!
//! Every failure is one sentence on standard error, and its status code is the exit status.
//! Deliberately absent: state of its own (except the journal of a fleet's upgrade), and any use of
//! the daemon's crates (except in `policy_tools`, which runs the policies' sandbox in this
//! process).

#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod admin;
mod api;
mod approval;
mod args;
mod attachment;
mod audit;
mod calls;
mod ceiling;
mod check;
mod confirm;
mod context;
mod credential;
mod daemon;
mod desired;
mod failure;
mod fleet;
mod former;
mod input;
mod limits;
mod metadata;
mod output;
mod policy;
mod policy_tools;
mod private_file;
mod project;
mod render;
mod rpc;
mod rules;
mod schema;
mod screen;
mod stderr;
mod stubs;
mod tenant;
mod tenant_usage;
mod token;
mod top;
mod up;
mod usage;
mod values;

use std::path::Path;
use std::process::ExitCode;

use clap::CommandFactory;

use crate::args::{Cli, Command};
use crate::failure::Failure;
use crate::policy::{Policy, PolicyCommand};
use crate::tenant::Tenant;

fn main() -> ExitCode {
    let words: Vec<_> = std::env::args_os().collect();
    let mut cli = match Cli::typed(&words) {
        Ok(cli) => cli,
        Err(error) => return ended(usage::explain(&error, &words)),
    };
    if let Err(failure) = cli.use_context() {
        return failure.exit();
    }
    if let Command::Policy(PolicyCommand {
        command: Policy::Tool(command),
        ..
    }) = &cli.command
    {
        return policy_tools::run(command).unwrap_or_else(|failure| failure.exit());
    }
    if let Command::Apply(args) = &cli.command {
        let applied = desired::apply(&cli.socket, args);
        let printed = applied.and_then(|(text, differs)| output::print(&text).map(|()| differs));
        return match printed {
            Ok(true) => failure::would_change(),
            Ok(false) => ExitCode::SUCCESS,
            Err(failure) => failure.exit(),
        };
    }
    match run(&cli) {
        Ok(text) => {
            let printed = output::print(&text);
            ended(printed.map_err(|failure| again(&cli.command, failure)))
        }
        Err(failure) => failure.exit(),
    }
}

fn ended(result: Result<(), Failure>) -> ExitCode {
    result.map_or_else(|failure| failure.exit(), |()| ExitCode::SUCCESS)
}

/// Adds a hint how to get another token or link, if it can't be printed: it exists by then, and is
/// shown only once.
fn again(command: &Command, failure: Failure) -> Failure {
    match command {
        Command::Tenant(args) => match &args.command {
            Tenant::Add { name, .. } => failure.lost(
                format_args!("the tenant {name} was added, and its token is lost"),
                format!("tollgate tenant rotate {name}, which prints a new token"),
            ),
            Tenant::Rotate { name, .. } => failure.lost(
                format_args!("the token of tenant {name} was replaced, and the new one is lost"),
                format!("tollgate tenant rotate {name}, which prints a new token"),
            ),
            _ => failure,
        },
        Command::Console(_) => failure.lost(
            "the link is lost",
            "the same command, which prints a new link".to_owned(),
        ),
        _ => failure,
    }
}

/// Writes the manual pages.
fn manual(out: &Path) -> Result<(), Failure> {
    std::fs::create_dir_all(out)
        .and_then(|()| clap_mangen::generate_to(Cli::command(), out))
        .map_err(|error| {
            let sentence = format!("{} can't be written: {error}", out.display());
            Failure::new(Failure::code_of(&error), sentence)
        })
}

/// Runs the command; returns the text to print.
fn run(cli: &Cli) -> Result<String, Failure> {
    match &cli.command {
        Command::Up(args) => up::up(cli.typed_socket(), args).map(|never| match never {}),
        Command::Tenant(args) => tenant::tenant(&cli.socket, args),
        Command::Policy(args) => policy::policy(&cli.socket, args),
        Command::Credential(args) => credential::credential(&cli.socket, args),
        Command::Ceiling(args) => ceiling::ceiling(&cli.socket, args),
        Command::Apply(_) => unreachable!("main gives it an exit status of its own"),
        Command::Export(args) => desired::export(&cli.socket, args),
        Command::Approval(args) => approval::approval(&cli.socket, args),
        Command::Approve(args) => approval::approve(&cli.socket, args),
        Command::Audit(command) => audit::audit(&cli.socket, command),
        Command::Context(command) => context::context(cli.typed_socket(), command),
        Command::Usage(args) => tenant_usage::usage(&cli.socket, args),
        Command::Status(args) => admin::status(&cli.socket, args),
        Command::Explain(args) => calls::explain(&cli.socket, args),
        Command::Tap(args) => calls::tap(&cli.socket, args),
        Command::Trace(args) => calls::trace(&cli.socket, args),
        Command::Check(args) => check::check(&cli.socket, args),
        Command::Top(args) => top::top(&cli.socket, args),
        Command::Console(args) => admin::console(&cli.socket, args),
        Command::Daemon(args) => daemon::daemon(&cli.socket, args),
        Command::Call(args) => rpc::call(&cli.socket, args),
        Command::Prefetch(args) => admin::prefetch(&cli.socket, args),
        Command::Upgrade(args) => admin::upgrade(&cli.socket, args),
        Command::Fleet(command) => fleet::fleet(command),
        Command::Serve(args) => rpc::serve(&cli.socket, args).map(|()| String::new()),
        Command::Gen(args) => stubs::generate(args),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut Cli::command(), "tollgate", &mut script);
            Ok(String::from_utf8_lossy(&script).into_owned())
        }
        Command::Man { out } => manual(out).map(|()| String::new()),
    }
}
