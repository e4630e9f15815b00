//! The command line that scripts rely on: the commands and their help.
//!
//! The arguments of a command are next to its code. Values are parsed there, once, into their final
//! types.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use clap::parser::ValueSource;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use clap_complete::Shell;
use tollgate::dev::{HOST_SOCKET, SOCKET, default_socket};
use tollgate::token::{TOKEN, TOKEN_FILE};

use crate::admin::{Console, DaemonUpgrade, Prefetch, Status};
use crate::api::{Acting, Remote};
use crate::approval::{ApprovalCommand, Approve};
use crate::audit::Audit;
use crate::calls::{Explain, Tap, Trace};
use crate::ceiling::CeilingCommand;
use crate::check::Check;
use crate::context::{self, ContextCommand};
use crate::credential::CredentialCommand;
use crate::daemon::DaemonCommand;
use crate::desired::{Apply, Export};
use crate::failure::Failure;
use crate::fleet::Fleet;
use crate::policy::{Policy, PolicyCommand};
use crate::rpc::{Call, Serve};
use crate::stubs::Gen;
use crate::tenant::TenantCommand;
use crate::tenant_usage::Usage;
use crate::top::Top;
use crate::up::Up;

/// The environment variable that names a context.
const CONTEXT: &str = "TOLLGATE_CONTEXT";

/// Drives a Tollgate daemon: tenants, policies, and calls by hand.
///
/// The exit status is 0 on success. On failure it is the number of the status code, as in gRPC (3
/// INVALID_ARGUMENT, 5 NOT_FOUND, 7 PERMISSION_DENIED, 14 UNAVAILABLE, ...). It is 20 if `apply
/// --dry-run` would change something, 74 if standard output can't be written, 75 if a change waits
/// for an operator's approval, and 141, without a message, if the reader has closed standard
/// output.
#[derive(Debug, Parser)]
#[command(
    name = "tollgate",
    version,
    propagate_version = true,
    max_term_width = 100
)]
pub(crate) struct Cli {
    /// The daemon's socket; while this user's `tollgate up --dev` runs, its socket is the default
    #[arg(long, global = true, value_name = "PATH", env = SOCKET, help_heading = "Connection")]
    #[arg(default_value = HOST_SOCKET)]
    pub(crate) socket: PathBuf,

    /// The context whose daemon and token the command uses, see `tollgate context`; the one in use,
    /// if left out and no socket is named
    #[arg(long, global = true, value_name = "NAME", env = CONTEXT, help_heading = "Connection")]
    context: Option<String>,

    /// Whether the command line or the environment has the socket.
    #[arg(skip)]
    is_socket_typed: bool,

    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Cli {
    /// Parses the command line.
    pub(crate) fn typed(words: &[impl AsRef<OsStr>]) -> Result<Cli, clap::Error> {
        let mut command = Cli::command();
        // As in the libraries, an empty variable counts as unset.
        if std::env::var_os(SOCKET).is_some_and(|path| path.is_empty()) {
            command = command.mut_arg("socket", |socket| socket.env(None));
        }
        if std::env::var_os(CONTEXT).is_some_and(|name| name.is_empty()) {
            command = command.mut_arg("context", |context| context.env(None));
        }
        let matches = command.try_get_matches_from_mut(words.iter().map(AsRef::as_ref))?;
        let parsed = Cli::from_arg_matches(&matches);
        let mut cli = parsed.map_err(|error| error.format(&mut command))?;
        cli.is_socket_typed = matches.value_source("socket") != Some(ValueSource::DefaultValue);
        if !cli.is_socket_typed {
            cli.socket = default_socket();
        }
        Ok(cli)
    }

    /// Fills in what the command line and the environment leave to a context.
    pub(crate) fn use_context(&mut self) -> Result<(), Failure> {
        let needs_none = match &self.command {
            Command::Policy(args) => matches!(args.command, Policy::Tool(_)),
            Command::Up(_)
            | Command::Context(_)
            | Command::Fleet(_)
            | Command::Gen(_)
            | Command::Completions { .. }
            | Command::Man { .. } => true,
            _ => false,
        };
        let is_remote = self
            .acting()
            .is_some_and(|acting| acting.remote.endpoint().is_some());
        let is_typed = self.is_socket_typed || is_remote;
        // The token of the context in use is for its daemon, not for the one that is named.
        if needs_none || (is_typed && self.context.is_none()) {
            return Ok(());
        }
        let Some(context) = context::find(self.context.as_deref())? else {
            return Ok(());
        };
        if let (false, Some(endpoint)) = (is_typed, &context.endpoint) {
            let Some(acting) = self.acting() else {
                let sentence = format!(
                    "the context is about the daemon at {endpoint}, and this command works on a daemon's host only"
                );
                let hint = "the command on that host; or --socket PATH, for a daemon here";
                return Err(Failure::input(sentence).hint(hint));
            };
            acting.remote = Remote {
                endpoint: Some(endpoint.clone()),
                ca: context.ca.clone(),
                certificate: context.certificate.clone(),
                key: context.key.clone(),
            };
        }
        if let (false, Some(socket)) = (is_typed, context.socket) {
            self.socket = socket;
        }
        let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        // A context that is named counts more than a token that the shell happens to have.
        let is_free = self.context.is_some() || !is_set(TOKEN) && !is_set(TOKEN_FILE);
        if let Some(token_file) = self.token_file()
            && token_file.is_none()
            && is_free
        {
            *token_file = context.token_file;
        }
        Ok(())
    }

    /// Whom the command acts as, if it uses the API.
    fn acting(&mut self) -> Option<&mut Acting> {
        Some(match &mut self.command {
            Command::Policy(args) => &mut args.acting,
            Command::Credential(args) => &mut args.acting,
            Command::Usage(args) => &mut args.acting,
            Command::Status(args) => &mut args.acting,
            Command::Top(args) => &mut args.acting,
            Command::Explain(args) => &mut args.acting,
            Command::Tap(args) => &mut args.acting,
            Command::Trace(args) => &mut args.acting,
            Command::Ceiling(args) => &mut args.acting,
            Command::Apply(args) if !args.schema => &mut args.acting,
            Command::Export(args) => &mut args.acting,
            Command::Approval(args) => &mut args.acting,
            Command::Approve(args) => &mut args.acting,
            Command::Audit(Audit::Show(args)) => &mut args.acting,
            Command::Audit(Audit::Head(args)) => &mut args.acting,
            Command::Audit(Audit::Verify(args)) if !args.is_offline() => &mut args.acting,
            Command::Tenant(args) => &mut args.acting,
            Command::Daemon(args) => &mut args.acting,
            Command::Console(args) => &mut args.acting,
            Command::Prefetch(args) => &mut args.acting,
            Command::Upgrade(args) => &mut args.acting,
            _ => return None,
        })
    }

    /// Where the command's token is, if it takes one and hasn't got it itself.
    fn token_file(&mut self) -> Option<&mut Option<PathBuf>> {
        if !matches!(self.command, Command::Call(_) | Command::Serve(_)) {
            return self.acting().map(|acting| &mut acting.token_file);
        }
        let token = match &mut self.command {
            Command::Call(args) => &mut args.schema.token,
            Command::Serve(args) => &mut args.schema.token,
            _ => return None,
        };
        token.token.is_none().then_some(&mut token.token_file)
    }

    /// The socket, unless it is the default.
    pub(crate) fn typed_socket(&self) -> Option<&Path> {
        self.is_socket_typed.then_some(&*self.socket)
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a daemon in the foreground, from a configuration file or for development
    #[command(
        after_help = "With --dev, the daemon needs no root. Its socket, its state and the token of its tenant `dev` are in\n\
         $XDG_RUNTIME_DIR/tollgate, or /tmp/tollgate-UID without that variable. Commands and applications of the\n\
         same user find them there while it runs, if they name no socket and no token.\n\n\
         Examples: tollgate up --config /etc/tollgate/tollgated.toml\n          \
         tollgate up --dev"
    )]
    Up(Up),
    /// Add, list, move and remove tenants, and rotate their tokens
    Tenant(TenantCommand),
    /// Push policies, attach them, try and compare versions
    Policy(PolicyCommand),
    /// Add, list, rotate and revoke credentials of a tenant: tokens with a name, a role and an end
    Credential(CredentialCommand),
    /// Show and change what a tenant may have at most
    Ceiling(CeilingCommand),
    /// Make tenants, credentials, policies, attachments and settings what documents describe: all
    /// in one transaction, or nothing
    #[command(
        after_help = "Objects that no document names stay as they are, unless --prune deletes what was applied before.\n\n\
         Examples: tollgate apply -f state/ --dry-run\n          \
         tollgate apply -f state/ --prune --yes\n          \
         tollgate apply -f acme.yaml --token-file owner.token"
    )]
    Apply(Apply),
    /// Write what the daemon has, as documents for `tollgate apply`
    #[command(after_help = "Examples: tollgate export --out backup\n          \
         tollgate export --tenant acme --format yaml\n          \
         tollgate export --token-file owner.token --out acme")]
    Export(Export),
    /// List, show and withdraw changes of tenants that wait for an operator's approval
    Approval(ApprovalCommand),
    /// Approve or deny a change of a tenant that waits
    Approve(Approve),
    /// Show and verify the audit log: all administration, and faults of policies
    #[command(subcommand)]
    Audit(Audit),
    /// Name daemons and tokens, so that commands needn't repeat them
    #[command(subcommand)]
    Context(ContextCommand),
    /// Show what a tenant uses, beside the limits
    Usage(Usage),
    /// Show what the daemon is doing
    Status(Status),
    /// Check the host, limits, permissions, state and the daemon, and say how to fix each problem
    #[command(
        after_help = "The exit status is 0 if no check fails, even with warnings, and 9 (FAILED_PRECONDITION) otherwise.\n\n\
         Examples: tollgate check\n          \
         tollgate check --state /var/lib/tollgate --config /etc/tollgate.toml"
    )]
    Check(Check),
    /// Watch methods, policies and runtimes of the daemon: rates, percentiles, denials, CPU
    #[command(
        after_help = "In a terminal, the command shows a live view; ? shows its keys. Otherwise, and with --once, it prints one interval as a table.\n\n\
         Examples: tollgate top\n          \
         tollgate top --once --interval 10s --sort p99\n          \
         tollgate top --json --tenant acme"
    )]
    Top(Top),
    /// Show the policies on a call's way, their input and their answers; or why a call was denied
    Explain(Explain),
    /// Watch calls as they end
    Tap(Tap),
    /// Show the spans that the daemon keeps of a trace, or the newest traces
    Trace(Trace),
    /// Print a link that shows the daemon in a browser; it works once, within a minute
    #[command(
        after_help = "With a tenant's token, the page shows what is the tenant's and can change what the token's credential may change. It ends with the token.\n\n\
         The daemon listens on loopback until the last user has signed out. From another host, run\n  \
         ssh -L 8080:127.0.0.1:PORT HOST, and open the link with port 8080.\n\n\
         Examples:\n  \
         tollgate console\n  \
         tollgate console --operator\n  \
         tollgate console --tenant acme\n  \
         tollgate console --token-file owner.token"
    )]
    Console(Console),
    /// Change settings of the daemon while it runs, and show them
    Daemon(DaemonCommand),
    /// Call a method of any service, with JSON in and JSON out
    Call(Call),
    /// Serve any service, with a fixed reply or an echo
    Serve(Serve),
    /// Resolve and compile a schema in the daemon, before the first application binds it
    Prefetch(Prefetch),
    /// Replace the daemon by a newer program, or by the same one with another configuration
    Upgrade(DaemonUpgrade),
    /// Upgrade the daemons of several hosts
    #[command(subcommand)]
    Fleet(Fleet),
    /// Write stubs for applications, from a schema
    Gen(Gen),
    /// Print a completion script for a shell
    #[command(after_help = "Example: tollgate completions bash > /etc/bash_completion.d/tollgate")]
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Write the manual pages, one per command: `make dist` packages them
    #[command(hide = true)]
    Man {
        /// The directory of the pages; created if it is missing
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
    },
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
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

    /// The help of a command and of its subcommands, each under its heading.
    fn pages(command: &clap::Command, pages: &mut String) {
        let name = command.get_bin_name().unwrap_or(command.get_name());
        let depth = "#".repeat(1 + name.split(' ').count());
        // What each command has stands once, with the program.
        let mut shown = command.clone().term_width(100).mut_args(|argument| {
            let everywhere = argument.is_global_set() || argument.get_id() == "version";
            let hides = everywhere && name.contains(' ') || argument.is_hide_set();
            argument.hide_env_values(true).hide(hides)
        });
        let help = shown.render_long_help().to_string();
        let help: Vec<_> = help.lines().map(str::trim_end).collect();
        pages.push_str(&format!(
            "\n{depth} {name}\n\n```text\n{}\n```\n",
            help.join("\n").trim_end()
        ));
        let shown = |it: &&clap::Command| it.get_name() != "help" && !it.is_hide_set();
        for subcommand in command.get_subcommands().filter(shown) {
            self::pages(subcommand, pages);
        }
    }

    /// `TOLLGATE_BLESS=1` rewrites the reference.
    #[test]
    fn the_reference_is_the_help() {
        const HEAD: &str = "# Command line: `tollgate`\n\n\
             The help of each command. `TOLLGATE_BLESS=1 cargo test -p tollgate-cli the_reference` writes\n\
             this page, and a test compares it with the program. [Exit statuses](exit-codes.md) have a page\n\
             of their own.\n";
        let mut command = Cli::command();
        command.build();
        let mut written = HEAD.to_owned();
        pages(&command, &mut written);
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../docs/src/reference/cli.md"
        );
        if std::env::var_os("TOLLGATE_BLESS").is_some() {
            return std::fs::write(path, written).unwrap();
        }
        let page = std::fs::read_to_string(path).unwrap();
        let differs = (page.lines().zip(written.lines())).find(|(page, now)| page != now);
        assert!(
            page == written,
            "the first difference: {differs:?}; the head of the page says how to write it"
        );
    }

    #[test]
    fn a_socket_counts_as_typed_wherever_it_is() {
        let typed = |line: &str| {
            let words: Vec<_> = line.split(' ').collect();
            let cli = Cli::typed(&words).ok();
            cli.and_then(|cli| cli.typed_socket().map(Path::to_owned))
        };
        let socket = Some(PathBuf::from("/run/tollgate/tollgate.sock"));
        for line in [
            "tollgate --socket /run/tollgate/tollgate.sock up --config F",
            "tollgate up --config F --socket /run/tollgate/tollgate.sock",
        ] {
            assert_eq!(typed(line), socket, "{line}");
        }
        if std::env::var_os("TOLLGATE_SOCKET").is_none() {
            assert_eq!(typed("tollgate up --config F"), None);
        }
    }

    #[test]
    fn the_documented_lines_parse() {
        for line in [
            "tollgate --socket P tenant add acme",
            "tollgate tenant rotate acme --grace 60m",
            "tollgate tenant remove acme --yes",
            "tollgate policy new --lang go guard",
            "tollgate policy new --lang rust guard --proto a.proto -I . --method p.S/M",
            "tollgate policy delete acl@1 --tenant acme",
            "tollgate policy delete acl --provider",
            "tollgate policy push ./acl.wasm --tenant acme --name acl --proto a.proto -I proto",
            "tollgate policy attach acl@1 --tenant acme --service a.B --side client --proto a.proto",
            "tollgate policy upgrade acl@2 --tenant acme --proto set.binpb",
            "tollgate call --token-file F --proto p a.B/C {}",
            "tollgate serve --proto p --service a.B --echo",
            "tollgate --socket P policy push ./acl.wasm --tenant acme --name acl",
            "tollgate policy push ./acl.wasm --tenant acme --name acl --config F.json --socket P",
            "tollgate policy attach acl@1 --tenant acme --service hotel.Reservation --method Reserve --side client",
            "tollgate explain --tenant acme --method hotel.Reservation/Reserve",
            "tollgate explain --token-file F --method hotel.Reservation/Reserve {}",
            "tollgate tap --token-file F hotel.Reservation",
            "tollgate status --token-file F",
            "tollgate console --token-file F --json",
            "tollgate console --operator --tenant acme",
            "tollgate prefetch --token-file F --proto hotel.proto",
            "tollgate explain --tenant acme --method a.B/C --side server --reply --proto a.proto -I . --metadata k=v --json {}",
            "tollgate explain 00f067aa0ba902b7",
            "tollgate tap",
            "tollgate tap /hotel.Reservation/Reserve",
            "tollgate tap hotel.Reservation --tenant acme --denied --count 3 --for 10s --json",
            "tollgate trace",
            "tollgate trace 4bf92f3577b34da6a3ce929d0e0e4736 --json",
            "tollgate policy attach acl@1 --tenant acme --service hotel.Reservation --side server",
            "tollgate policy attach acl@1 --tenant acme --service a.B --side client --mode canary=10%",
            "tollgate policy attach acl@1 --provider --post --side server --on-fault open --fresh --record 1000",
            "tollgate policy attach acl@1 --provider --tenant acme --service a.B --side client --grant state,clock",
            "tollgate policy push ./acl.wasm --provider --name acl",
            "tollgate policy push oci://ghcr.io/acme/acl:1.2 --tenant acme --name acl",
            "tollgate policy push ./acl.wasm --signature acl.wasm.sig --tenant acme --name acl",
            "tollgate policy list --tenant acme --watch",
            "tollgate policy detach acl --tenant acme --service hotel.Reservation",
            "tollgate policy upgrade acl@2 --tenant acme --probation 60s",
            "tollgate policy upgrade acl@2 --tenant acme --mode shadow --side client",
            "tollgate policy promote acl --provider --pre",
            "tollgate policy rollback acl --tenant acme",
            "tollgate policy release acl --tenant acme --service a.B --method C",
            "tollgate policy show acl --tenant acme --json",
            "tollgate policy diff acl@3 acl@4 --tenant acme --last 1000",
            "tollgate ceiling show --token-file owner.token --json",
            "tollgate ceiling set versions=20 isolation=process --tenant acme --dry-run",
            "tollgate ceiling reset versions --yes",
            "tollgate apply -f a.toml -f dir --dry-run --prune --set web --json",
            "tollgate apply -f a.toml --prune --yes",
            "tollgate apply --schema",
            "tollgate export --tenant acme --format yaml",
            "tollgate export --out dir --token-file F",
            "tollgate audit show --last 5 --json",
            "tollgate audit verify --file audit.jsonl --head 7:ab",
            "tollgate audit verify --state DIR",
            "tollgate audit head",
            "tollgate audit head --endpoint https://h:7443 --ca ca.pem --token-file F",
            "tollgate audit verify --token-file F",
            "tollgate tenant list --endpoint https://h:7443 --token-file F",
            "tollgate tenant --token-file F add acme",
            "tollgate daemon set waiting=sleep --token-file F",
            "tollgate policy test ./acl.wasm --cases cases.json --proto hotel.proto -I proto --json",
            "tollgate policy bench ./acl.wasm --config F.json",
            "tollgate policy bench ./acl.wasm --cases cases.json --json",
            "tollgate policy inspect ./acl.wasm",
            "tollgate --socket P status --json",
            "tollgate top",
            "tollgate top --once --interval 100ms --sort denials --tenant acme",
            "tollgate top --json --sort p99",
            "tollgate daemon set waiting=sleep cores=0,1 policies.cpu_us=50",
            "tollgate daemon reset waiting cores",
            "tollgate --socket P daemon settings --json",
            "tollgate serve --token T --proto hotel.proto --service hotel.Reservation --reply {}",
            "tollgate serve --token T --proto hotel.proto --service hotel.Echo --echo --print-requests",
            "tollgate call --token T --proto hotel.proto --to 127.0.0.1:7472 hotel.Reservation/Reserve {}",
            "tollgate call --token T --proto hotel.proto hotel.Reservation/Reserve --deadline 5s -",
            "tollgate call --token T --proto p --metadata user=Ada --metadata t-bin=AA== --show-metadata a.B/C",
            "tollgate serve --token T --proto p --service a.B --echo --metadata a=b --print-requests --show-metadata",
            "tollgate call --token T --proto protos --proto set.binpb -I third_party hotel.Reservation/Reserve",
            "tollgate up --config host-a.toml",
            "tollgate up --dev",
            "tollgate check --state DIR --config host-a.toml --json",
            "tollgate fleet upgrade plan",
            "tollgate fleet upgrade plan --fleet F.toml --binary /usr/local/bin/tollgated --json",
            "tollgate fleet upgrade run --fleet F.toml --binary /b --timeout 2m --settle 10m",
            "tollgate fleet upgrade run --resume --accept b",
            "tollgate gen --lang rust --out stubs hotel.proto",
            "tollgate gen --check --lang python --out stubs -I proto -I more hotel.proto schema.binpb",
            "tollgate completions zsh",
            "tollgate man --out pages",
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
            "tollgate call --token T --proto hotel.proto a.B/C --metadata user",
            "tollgate serve --token T --proto hotel.proto --service a.B --echo --show-metadata",
            "tollgate call --token T hotel.Reservation/Reserve {}",
            "tollgate policy attach acl@1 --tenant acme --service hotel.Reservation --side middle",
            "tollgate explain",
            "tollgate explain --tenant acme {}",
            "tollgate explain 00f067aa0ba902b7 --reply",
            "tollgate tap hotel.Reservation/",
            "tollgate tap hotel.Reservation/Reserve/x",
            "tollgate tap /",
            "tollgate tap --count 0",
            "tollgate trace --last 0",
            "tollgate trace --last 1001",
            "tollgate policy attach acl --tenant acme --service hotel.Reservation --side client",
            "tollgate policy attach acl@1 --tenant acme --side client",
            "tollgate policy attach acl@1 --tenant acme --service a.B --side client --post",
            "tollgate policy attach acl@1 --provider --pre --post --side client",
            "tollgate policy attach acl@1 --tenant acme --service a.B --side client --mode canary=0%",
            "tollgate policy push ./acl.wasm --provider --tenant acme --name acl",
            "tollgate policy upgrade acl --tenant acme",
            "tollgate credential add --tenant acme",
            "tollgate credential add booking --role operator",
            "tollgate credential add booking --expires 30",
            "tollgate ceiling set versions",
            "tollgate ceiling set versions=1 --yes --dry-run",
            "tollgate apply -f a.toml --prune --yes --dry-run",
            "tollgate context use",
            "tollgate policy detach acl@1 --tenant acme",
            "tollgate audit verify --state DIR --file F",
            "tollgate audit verify --state DIR --token-file F",
            "tollgate audit verify --file F --token-file F",
            "tollgate audit verify --head 7:ab",
            "tollgate policy new guard",
            "tollgate policy new --lang cobol guard",
            "tollgate policy new --lang c guard --proto hotel.proto",
            "tollgate policy new --lang c guard --method hotel.Reservation/Reserve",
            "tollgate policy test ./acl.wasm --proto hotel.proto",
            "tollgate policy bench ./acl.wasm --cases cases.json --config F.json",
            "tollgate up",
            "tollgate up --dev --config host-a.toml",
            "tollgate fleet",
            "tollgate fleet upgrade",
            "tollgate fleet upgrade run --accept b",
            "tollgate fleet upgrade run --settle 11m",
            "tollgate fleet upgrade plan --resume",
            "tollgate top --interval 99ms",
            "tollgate top --sort name",
            "tollgate daemon set",
            "tollgate daemon set waiting",
            "tollgate daemon set =sleep",
            "tollgate daemon reset",
            "tollgate gen --lang go --out stubs hotel.proto",
            "tollgate gen --lang c --out stubs",
            "tollgate gen --lang c hotel.proto",
        ] {
            assert!(Cli::try_parse_from(line.split(' ')).is_err(), "{line}");
        }
    }
}
