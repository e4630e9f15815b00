//! The command line, as others script against it.
//!
//! Everything a user can type is in this file, with its help; what it does is in the siblings
//! ([`crate::admin`], [`crate::calls`], [`crate::check`], [`crate::daemon`], [`crate::policy`], [`crate::audit`], [`crate::rpc`], [`crate::stubs`], [`crate::top`], [`crate::up`]). Only [`crate::desk`]
//! and [`crate::fleet`] define their own words. Values are parsed here, once: what leaves this file has its final type.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::parser::ValueSource;
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use tollgate_gen::Language;

use crate::desk::Desk;
use crate::fleet::Fleet;
use crate::limits::MIN_INTERVAL;
use crate::metadata::Pair;

/// Drives a Tollgate daemon: tenants, policies, and calls by hand.
///
/// The exit status is 0, or the number of the status code that says what went wrong
/// (the numbers of gRPC: 3 INVALID_ARGUMENT, 5 NOT_FOUND, 7 PERMISSION_DENIED, 14 UNAVAILABLE, ...);
/// 74 if standard output can't be written, and 141, without a message, if its reader has closed it.
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

    /// Whether the command line or the environment has the socket.
    #[arg(skip)]
    is_socket_typed: bool,

    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Cli {
    /// What was typed.
    pub(crate) fn typed(words: &[impl AsRef<OsStr>]) -> Result<Cli, clap::Error> {
        let mut command = Cli::command();
        let matches = command.try_get_matches_from_mut(words.iter().map(AsRef::as_ref))?;
        let parsed = Cli::from_arg_matches(&matches);
        let mut cli = parsed.map_err(|error| error.format(&mut command))?;
        cli.is_socket_typed = matches.value_source("socket") != Some(ValueSource::DefaultValue);
        Ok(cli)
    }

    /// The socket, unless it is the default.
    pub(crate) fn typed_socket(&self) -> Option<&Path> {
        self.is_socket_typed.then_some(&*self.socket)
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a daemon in the foreground, from a configuration file
    Up(Up),
    /// Add, list, move and remove tenants, and rotate their tokens
    #[command(subcommand)]
    Tenant(Tenant),
    /// Push policies, put them in force, try and compare versions
    #[command(subcommand)]
    Policy(Policy),
    /// Show and verify the log of all administration and of policies' faults
    #[command(subcommand)]
    Audit(Audit),
    /// Show what the daemon is doing
    Status(Status),
    /// Check host, limits, permissions, state and the daemon, and say how to mend what isn't right
    #[command(
        after_help = "The exit status is 0 if nothing fails, warnings or not, and 9 (FAILED_PRECONDITION) otherwise.\n\n\
         Example: tollgate check --state /var/lib/tollgate"
    )]
    Check(Check),
    /// Watch methods, policies and runtimes of the daemon: rates, percentiles, denials, CPU
    #[command(
        after_help = "In a terminal it is a live view; ? shows its keys. Otherwise, and with --once, one interval is printed as a table.\n\n\
         Examples: tollgate top\n          \
         tollgate top --once --interval 10s --sort p99\n          \
         tollgate top --json --tenant acme"
    )]
    Top(Top),
    /// Say which policies a call would meet, what they would be shown, and what they would answer; or why a call was denied
    Explain(Explain),
    /// Watch calls as they end
    Tap(Tap),
    /// Show what is kept of a trace, or the newest traces
    Trace(Trace),
    /// Look at the daemon in a browser: prints a link that works once, within a minute
    #[command(
        after_help = "The daemon listens on loopback from then on, until nobody is signed in any more. From another host:\n  \
         ssh -L 8080:127.0.0.1:PORT HOST, and the link with port 8080.\n\n\
         Examples:\n  \
         tollgate console\n  \
         tollgate console --operator"
    )]
    Console(Console),
    /// Change settings of the daemon while it runs, and show them
    #[command(subcommand)]
    Daemon(Daemon),
    /// Call a method of any service, with JSON in and JSON out
    Call(Call),
    /// Serve any service, with a fixed reply or an echo
    Serve(Serve),
    /// Have the daemon resolve and compile a schema before the first application binds it
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
    #[command(
        after_help = "The token is all that the tenant's applications need: keep it from others.\n\n\
         Example: (umask 077; tollgate tenant add acme > acme.token)"
    )]
    Add {
        /// Lower-case letters, digits, `-`, `_` and `.`; at most 64
        name: String,
    },
    /// Give a tenant another token and print it, this once; the one before ends
    #[command(
        after_help = "Without --grace the token before ends at once, and so do the sessions that were opened with it. With --grace they go on, and \
         more can be opened, until the time is over; so applications can be restarted one by one with the new token. Rotating again ends \
         earlier tokens.\n\n\
         Examples: (umask 077; tollgate tenant rotate acme > acme.token)\n          \
         (umask 077; tollgate tenant rotate acme --grace 60m > acme.token)"
    )]
    Rotate {
        /// Its name
        name: String,
        /// For how long the token before still opens sessions, such as 30s or 60m; at most a day
        #[arg(long, value_name = "TIME", value_parser = duration)]
        grace: Option<Duration>,
    },
    /// Remove a tenant with all that it has: token, sessions, policies, attachments
    #[command(
        after_help = "It says what ends and asks. What the provider has attached to this tenant by name ends, too. Calls in flight end once, with a \
         status. Policies can't be had back; a tenant of the same name that is added later has nothing of this one's.\n\n\
         Examples: tollgate tenant remove acme\n          \
         tollgate tenant remove acme --yes"
    )]
    Remove {
        /// Its name
        name: String,
        /// Don't ask
        #[arg(long)]
        yes: bool,
    },
    /// List the tenants
    List,
    /// Have a tenant live on another runtime, with all that it has: its calls go on there
    #[command(
        after_help = "It stays so until it is moved again or reset, also after a restart; `tollgate status --json` has where each tenant lives.\n\n\
         Examples: tollgate tenant move acme --runtime 1\n          \
         tollgate tenant move acme --reset"
    )]
    Move(TenantMove),
}

#[derive(Debug, Args)]
pub(crate) struct TenantMove {
    /// Its name
    pub(crate) name: String,
    /// The runtime's number, from 0 on
    #[arg(long, value_name = "N", required_unless_present = "reset", value_parser = number)]
    pub(crate) runtime: Option<u32>,
    /// It lives where its name says, as if it had never been moved
    #[arg(long, conflicts_with = "runtime")]
    pub(crate) reset: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Policy {
    /// Upload a policy and print its name@version
    Push(Box<Push>),
    /// Let a policy judge calls: at once, or on trial where nothing decides yet
    Attach(Attach),
    /// Stop a policy from judging calls
    Detach(Select),
    /// Put another version on trial beside the one that decides
    Upgrade(Upgrade),
    /// Let the version on trial decide from now on
    Promote(Select),
    /// End the trial; without one, let the version before decide again
    Rollback(Select),
    /// End a quarantine, or give a policy that stays closed after a fault a fresh instance
    Release(Select),
    /// Show a policy: manifest, versions, where it is attached, what it has judged
    Show(Show),
    /// Compare what two versions decide about recorded calls; the exit status is 0 if nothing changes
    Diff(Diff),
    /// List the policies and where they are attached
    List,
    /// Forget a version of a policy, or all of them; refused while it is attached or what a rollback goes back to
    #[command(
        after_help = "The numbers of deleted versions aren't given out again.\n\n\
         Examples: tollgate policy delete acl@1 --tenant acme\n          \
         tollgate policy delete audit --provider"
    )]
    Delete(Delete),
    #[command(flatten)]
    Desk(Desk),
}

/// Whose policy it is.
#[derive(Debug, Args)]
pub(crate) struct Owner {
    /// The tenant whose policy it is, and whose calls it judges; with --provider, all tenants' if left out
    #[arg(long, required_unless_present = "provider")]
    pub(crate) tenant: Option<String>,
    /// It is the provider's policy, which tenants don't see
    #[arg(long)]
    pub(crate) provider: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples: tollgate policy push ./acl.wasm --tenant acme --name acl --config acl.json\n          \
         tollgate policy push oci://ghcr.io/acme/audit:1.2 --provider --name audit"
)]
pub(crate) struct Push {
    /// The policy: a core WebAssembly module with a manifest, in a file or an OCI registry
    #[arg(value_name = "FILE.wasm|oci://IMAGE")]
    pub(crate) module: String,
    /// A signature of the file's bytes, as `cosign sign-blob` prints it; images bring theirs along
    #[arg(long, value_name = "FILE.sig")]
    pub(crate) signature: Option<PathBuf>,
    /// The tenant whose calls it may judge
    #[arg(
        long,
        required_unless_present = "provider",
        conflicts_with = "provider"
    )]
    pub(crate) tenant: Option<String>,
    /// It is the provider's policy and may judge every tenant's calls
    #[arg(long)]
    pub(crate) provider: bool,
    /// The policy's name; pushing it again makes the next version
    #[arg(long)]
    pub(crate) name: String,
    /// The policy's configuration, in the format that the policy defines
    #[arg(long, value_name = "FILE.json")]
    pub(crate) config: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) against: Against,
    #[command(flatten)]
    pub(crate) described: Described,
}

/// What a module may see that was made for another host, and so has no manifest. Without any of these it sees which method is called.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "For modules that were made for Envoy or by OPA")]
pub(crate) struct Described {
    /// What the module was made for, if its exports don't say it
    #[arg(long, value_enum)]
    pub(crate) abi: Option<Abi>,
    /// When it is asked: request, reply, tick; request if left out
    #[arg(long, value_name = "HOOK,..", value_delimiter = ',')]
    pub(crate) hooks: Vec<String>,
    /// Which methods it is for: package.Service/Method, package.Service/*, or all if left out
    #[arg(long, value_name = "METHOD,..", value_delimiter = ',')]
    pub(crate) methods: Vec<String>,
    /// Keys of the request's metadata that it reads; * for all
    #[arg(long, value_name = "KEY,..", value_delimiter = ',')]
    pub(crate) metadata: Vec<String>,
    /// Keys of the reply's metadata that it reads; * for all
    #[arg(long, value_name = "KEY,..", value_delimiter = ',')]
    pub(crate) reply_metadata: Vec<String>,
    /// Keys of the request's metadata that it changes; * for all
    #[arg(long, value_name = "KEY,..", value_delimiter = ',')]
    pub(crate) metadata_changes: Vec<String>,
    /// Keys of the reply's metadata that it changes; * for all
    #[arg(long, value_name = "KEY,..", value_delimiter = ',')]
    pub(crate) reply_metadata_changes: Vec<String>,
    /// What a filter does with the request's bytes; none if left out
    #[arg(long, value_enum)]
    pub(crate) body: Option<Body>,
    /// What a filter does with the reply's bytes; none if left out
    #[arg(long, value_enum)]
    pub(crate) reply_body: Option<Body>,
    /// Fields of the request that a policy of OPA's is shown
    #[arg(long, value_name = "FIELD,..", value_delimiter = ',')]
    pub(crate) fields: Vec<String>,
    /// Fields of the reply that a policy of OPA's is shown
    #[arg(long, value_name = "FIELD,..", value_delimiter = ',')]
    pub(crate) reply_fields: Vec<String>,
    /// What it needs besides: clock, random
    #[arg(long, value_name = "CAPABILITY,..", value_delimiter = ',')]
    pub(crate) needs: Vec<String>,
    /// The name of a filter's root context, if it has several
    #[arg(long, value_name = "NAME")]
    pub(crate) root_id: Option<String>,
    /// The decision that a policy of OPA's is asked for, if it makes several
    #[arg(long, value_name = "PATH")]
    pub(crate) entrypoint: Option<String>,
}

/// An interface between a host and a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Abi {
    /// Tollgate's own: the module has a manifest.
    Tollgate,
    /// Envoy's.
    ProxyWasm,
    /// OPA's.
    Opa,
}

/// What a filter does with a message's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Body {
    /// It doesn't see them.
    None,
    /// It sees them.
    Read,
    /// It replaces them.
    Change,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples: tollgate policy attach acl@1 --tenant acme --service hotel.Reservation --side client\n          \
         tollgate policy attach acl@1 --tenant acme --service hotel.Reservation --side client --mode shadow\n          \
         tollgate policy attach audit@1 --provider --post --side server --on-fault open\n          \
         tollgate policy attach quota@2 --tenant acme --service a.B --side client --grant state,clock --cpu-us 20"
)]
pub(crate) struct Attach {
    /// The policy, as `policy push` printed it
    #[arg(value_name = "NAME@VERSION")]
    pub(crate) policy: String,
    #[command(flatten)]
    pub(crate) owner: Owner,
    /// The provider's policy is asked before the tenant's; this is the default
    #[arg(long, requires = "provider", conflicts_with = "post")]
    pub(crate) pre: bool,
    /// The provider's policy is asked after the tenant's, and sees what is sent
    #[arg(long, requires = "provider")]
    pub(crate) post: bool,
    /// The service, such as hotel.Reservation; with --provider, all if left out
    #[arg(long, required_unless_present = "provider")]
    pub(crate) service: Option<String>,
    /// One method of the service; all if left out
    #[arg(long)]
    pub(crate) method: Option<String>,
    /// Where it judges: before the call leaves its host, or before the server sees it
    #[arg(long)]
    pub(crate) side: Side,
    /// enforce: it decides; shadow: it is asked and decides nothing; canary=N%: it decides N percent of the calls
    #[arg(long, default_value = "enforce")]
    pub(crate) mode: Mode,
    #[command(flatten)]
    pub(crate) against: Against,
    #[command(flatten)]
    pub(crate) options: Options,
}

/// Under which conditions it judges. What is left out stays as it is there.
#[derive(Debug, Args)]
#[command(next_help_heading = "Conditions, which stay as they are if left out")]
pub(crate) struct Options {
    /// After a fault, its calls are refused until a fresh instance is there (reload), refused until somebody acts (closed),
    /// or pass unjudged until a fresh instance is there (open)
    #[arg(long)]
    pub(crate) on_fault: Option<OnFault>,
    /// What it may use beside log and metrics: state, change, clock, random; none. At first: state,change
    #[arg(long, value_name = "CAPABILITIES", value_delimiter = ',')]
    pub(crate) grant: Option<Vec<String>>,
    /// The declared fields that it may see, as dotted paths; none. At first: all of them
    #[arg(long, value_name = "PATHS", value_delimiter = ',')]
    pub(crate) fields: Option<Vec<String>>,
    /// The declared metadata keys that it may see; none. At first: all of them
    #[arg(long, value_name = "KEYS", value_delimiter = ',')]
    pub(crate) metadata: Option<Vec<String>>,
    /// The declared hooks at which it is asked: request, reply, tick. At first: all of them
    #[arg(long, value_delimiter = ',')]
    pub(crate) hooks: Option<Vec<String>>,
    /// Its CPU time per call in microseconds, 5 to 10000; at first what the daemon's configuration says
    #[arg(long, value_name = "US", value_parser = number)]
    pub(crate) cpu_us: Option<u32>,
    /// Every call gets a new instance: nothing stays from one call to the next
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub(crate) fresh: Option<bool>,
    /// Where it runs: in a process of its tenant's (process), or in the daemon (none); at first what the daemon's configuration says
    #[arg(long)]
    pub(crate) isolation: Option<Isolation>,
    /// How many views of judged calls the daemon keeps in memory for `policy diff`; at first 0
    #[arg(long, value_name = "CALLS", value_parser = number)]
    pub(crate) record: Option<u32>,
    /// Percentage points by which a canary's rate of denials and faults may be above the stable's; at first 5
    #[arg(long, value_name = "POINTS", value_parser = number)]
    pub(crate) max_worse: Option<u32>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples: tollgate policy promote acl --tenant acme\n          \
         tollgate policy rollback acl --tenant acme --service hotel.Reservation --side client\n          \
         tollgate policy release acl --tenant acme --service hotel.Reservation\n          \
         tollgate policy detach audit --provider --post"
)]
pub(crate) struct Select {
    /// The policy's name
    #[arg(value_parser = bare_name)]
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) place: Place,
}

/// What is done to an attachment is done to all versions of a policy there, so none is named.
fn bare_name(text: &str) -> Result<String, String> {
    match text.split_once('@') {
        Some((name, _)) => Err(format!(
            "this takes the policy's name without a version: {name}"
        )),
        None => Ok(text.to_owned()),
    }
}

#[derive(Debug, Args)]
#[command(
    after_help = "Without --mode the new version decides all calls at once, takes over the old one's state, and becomes the \
         stable after the probation; the first fault puts the old one back, and the call that met it is judged by that.\n\n\
         Examples: tollgate policy upgrade acl@2 --tenant acme\n          \
         tollgate policy upgrade acl@2 --tenant acme --mode canary=10%\n          \
         tollgate policy upgrade acl@2 --tenant acme --mode enforce"
)]
pub(crate) struct Upgrade {
    /// The new version, as `policy push` printed it
    #[arg(value_name = "NAME@VERSION")]
    pub(crate) policy: VersionName,
    #[command(flatten)]
    pub(crate) place: Place,
    /// shadow or canary=N%, until `policy promote` or `policy rollback`; enforce: the stable at once, with the old one's state
    #[arg(long)]
    pub(crate) mode: Option<Mode>,
    /// How long it has to go without a fault before it is promoted, such as 60s; with --mode, it isn't promoted if left out
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) probation: Option<Duration>,
    #[command(flatten)]
    pub(crate) against: Against,
}

#[derive(Debug, Args)]
pub(crate) struct Delete {
    /// The policy; without a version, all of them
    #[arg(value_name = "NAME[@VERSION]")]
    pub(crate) policy: String,
    #[command(flatten)]
    pub(crate) owner: Owner,
}

/// A schema that a policy is checked against.
#[derive(Debug, Default, Args)]
pub(crate) struct Against {
    /// Check the policy against this schema, too: a .proto file, a directory of them, or a serialized descriptor set; repeat for more
    #[arg(long, value_name = "PATH")]
    pub(crate) proto: Vec<PathBuf>,
    /// Where imports are; the directories of the .proto files if left out
    #[arg(long, short = 'I', value_name = "DIR", requires = "proto")]
    pub(crate) include: Vec<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = "Example: tollgate policy show acl@2 --tenant acme --json")]
pub(crate) struct Show {
    /// The policy; without a version, the newest
    #[arg(value_name = "NAME[@VERSION]")]
    pub(crate) policy: String,
    #[command(flatten)]
    pub(crate) owner: Owner,
    /// Print everything, indented
    #[arg(long, conflicts_with = "json")]
    pub(crate) verbose: bool,
    /// Print JSON, for programs
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Views are recorded where the policy is attached with --record N.\n\n\
         Example: tollgate policy diff acl@3 acl@4 --tenant acme --last 1000"
)]
pub(crate) struct Diff {
    /// The version that decisions are compared with
    #[arg(value_name = "BEFORE")]
    pub(crate) before: VersionName,
    /// The version whose decisions may be others
    #[arg(value_name = "AFTER")]
    pub(crate) after: VersionName,
    #[command(flatten)]
    pub(crate) place: Place,
    /// The most calls, the newest ones
    #[arg(long, value_name = "CALLS", default_value_t = 1_000, value_parser = number)]
    pub(crate) last: u32,
    /// Print JSON, for programs
    #[arg(long)]
    pub(crate) json: bool,
}

/// Which attachments of a policy are meant: all, unless something restricts them.
#[derive(Debug, Args)]
pub(crate) struct Place {
    #[command(flatten)]
    pub(crate) owner: Owner,
    /// Only the provider's before the tenant's
    #[arg(long, requires = "provider", conflicts_with = "post")]
    pub(crate) pre: bool,
    /// Only the provider's after the tenant's
    #[arg(long, requires = "provider")]
    pub(crate) post: bool,
    /// Only to this service; all if left out
    #[arg(long)]
    pub(crate) service: Option<String>,
    /// Only to this method; all if left out
    #[arg(long)]
    pub(crate) method: Option<String>,
    /// Only on this side; both if left out
    #[arg(long)]
    pub(crate) side: Option<Side>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum OnFault {
    /// Refused until a fresh instance is there
    Reload,
    /// Refused until somebody acts
    Closed,
    /// Unjudged until a fresh instance is there
    Open,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Isolation {
    /// In the daemon, in a sandbox
    None,
    /// In a process of its tenant's, in a sandbox
    Process,
}

/// How much a version decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Enforce,
    Shadow,
    Canary(u32),
}

impl std::str::FromStr for Mode {
    type Err = String;

    /// `enforce`, `shadow`, and `canary` with its percentage after `=`, `:` or a space.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let canary = || {
            let percent = text.strip_prefix("canary")?.strip_prefix(['=', ':', ' '])?;
            let percent = percent.trim().strip_suffix('%').unwrap_or(percent);
            percent.parse().ok().filter(|n| (1..=100).contains(n))
        };
        match text {
            "enforce" => Ok(Mode::Enforce),
            "shadow" => Ok(Mode::Shadow),
            _ => canary().map(Mode::Canary).ok_or_else(|| {
                "a mode is enforce, shadow, or canary=N% with N from 1 to 100".to_owned()
            }),
        }
    }
}

/// A policy's version, `name@version`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VersionName {
    pub(crate) name: String,
    pub(crate) version: u32,
}

impl std::str::FromStr for VersionName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parsed = text.split_once('@').and_then(|(name, version)| {
            Some((name.to_owned(), version.parse().ok().filter(|v| *v > 0)?))
        });
        let (name, version) = parsed.ok_or_else(|| {
            "a version of a policy is written name@version, like acl@1".to_owned()
        })?;
        Ok(VersionName { name, version })
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Audit {
    /// Print the newest records, oldest first
    Show {
        /// The most records
        #[arg(long, value_name = "N", default_value_t = 20, value_parser = number)]
        last: u32,
        /// Print the records' own lines, which are JSON
        #[arg(long)]
        json: bool,
    },
    /// Find any edit of the log; the exit status is 0 if there is none, and 15 (DATA_LOSS) if there is
    Verify(Verify),
    /// Print where the log ends, as SEQ:HASH: kept elsewhere, it gives away a log that was rewritten
    Head,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Without an option the running daemon verifies its own log.\n\n\
         Examples: tollgate audit verify\n          \
         tollgate audit verify --state /var/lib/tollgate\n          \
         tollgate audit verify --file copy.jsonl --head 41:5f0c..."
)]
pub(crate) struct Verify {
    /// Verify the log in this state directory, which no daemon may be using
    #[arg(long, value_name = "DIR", conflicts_with = "file")]
    pub(crate) state: Option<PathBuf>,
    /// Verify this file
    #[arg(long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// What `audit head` printed once; the log has to contain it
    #[arg(long, value_name = "SEQ:HASH", requires = "file")]
    pub(crate) head: Option<String>,
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
    /// Print everything, indented
    #[arg(long, conflicts_with = "json")]
    pub(crate) verbose: bool,
    /// Print JSON, for programs
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Check {
    /// The state directory; the running daemon's if left out
    #[arg(long, value_name = "DIRECTORY")]
    pub(crate) state: Option<PathBuf>,
    /// Print JSON, for programs
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Top {
    /// What rates and percentiles are of, such as 500ms, 1s or 1m; at least 100ms
    #[arg(long, value_name = "TIME", value_parser = interval, default_value = "1s")]
    pub(crate) interval: Duration,
    /// Only this tenant's calls and policies
    #[arg(long, value_name = "NAME")]
    pub(crate) tenant: Option<String>,
    /// Print one interval as a table, also to a terminal
    #[arg(long)]
    pub(crate) once: bool,
    /// Print one interval as JSON, for programs
    #[arg(long)]
    pub(crate) json: bool,
    /// What comes first
    #[arg(long, value_enum, default_value_t = Sort::Cpu)]
    pub(crate) sort: Sort,
}

#[derive(Debug, Args)]
pub(crate) struct Console {
    /// Let whoever follows the link change policies, too; it is recorded as done by you
    #[arg(long)]
    pub(crate) operator: bool,
    /// Print JSON, for programs
    #[arg(long)]
    pub(crate) json: bool,
}

/// What comes first among methods and among policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Sort {
    /// Policies that use most CPU, methods with most calls
    Cpu,
    /// Methods and policies with most calls
    Rate,
    /// The slowest methods, policies that use most CPU
    P99,
    /// Methods and policies with most denials
    Denials,
}

impl Sort {
    pub(crate) fn next(self) -> Sort {
        match self {
            Sort::Cpu => Sort::Rate,
            Sort::Rate => Sort::P99,
            Sort::P99 => Sort::Denials,
            Sort::Denials => Sort::Cpu,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Sort::Cpu => "cpu",
            Sort::Rate => "rate",
            Sort::P99 => "p99",
            Sort::Denials => "denials",
        }
    }
}

/// A time between two looks at a daemon.
fn interval(text: &str) -> Result<Duration, String> {
    let time = duration(text)?;
    match time < MIN_INTERVAL {
        true => Err(format!("an interval is at least {MIN_INTERVAL:?}")),
        false => Ok(time),
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Daemon {
    /// Change settings while calls run, all of these or none, until they are reset
    #[command(
        after_help = "They are kept in the daemon's state, and override its configuration file and command line also after a restart.\n\n\
             Examples: tollgate daemon set waiting=sleep\n          \
             tollgate daemon set wait_target_us=1000 policies.cpu_us=50"
    )]
    Set {
        /// A setting as the configuration file has it, and its new value; `daemon settings --json` says what it takes
        #[arg(value_name = "KEY=VALUE", required = true)]
        settings: Vec<SettingValue>,
    },
    /// Forget what settings were set to: what the daemon's configuration file or command line says holds again, or the default
    #[command(after_help = "Example: tollgate daemon reset waiting policies.cpu_us")]
    Reset {
        /// A setting
        #[arg(value_name = "KEY", required = true)]
        settings: Vec<String>,
    },
    /// Show all settings that can change while the daemon runs, their values, and where those are from
    Settings {
        /// Print JSON, for programs
        #[arg(long)]
        json: bool,
    },
}

/// A setting and its value, `KEY=VALUE`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SettingValue {
    pub(crate) key: String,
    pub(crate) value: String,
}

impl std::str::FromStr for SettingValue {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once('=') {
            Some((key, value)) if !key.is_empty() => Ok(SettingValue {
                key: key.trim().to_owned(),
                value: value.trim().to_owned(),
            }),
            _ => Err("a setting is written KEY=VALUE, like spin_us=50".to_owned()),
        }
    }
}

/// Who calls or serves, and what.
#[derive(Debug, Args)]
pub(crate) struct Schema {
    #[command(flatten)]
    pub(crate) token: Token,
    #[command(flatten)]
    pub(crate) files: Files,
}

/// Where the tenant's token is. Left out, it is in the environment: TOLLGATE_TOKEN has it, or TOLLGATE_TOKEN_FILE a file's path.
#[derive(Debug, Args)]
pub(crate) struct Token {
    /// A file with the tenant's token, as `tenant add` printed it; `-` is standard input. If left out, the environment has the token in
    /// TOLLGATE_TOKEN, or the path of a file with it in TOLLGATE_TOKEN_FILE
    #[arg(long, value_name = "FILE", conflicts_with = "token")]
    pub(crate) token_file: Option<PathBuf>,
    /// The token itself. Every user of this host can see it there: TOLLGATE_TOKEN or --token-file is better
    #[arg(long, value_name = "TOKEN")]
    pub(crate) token: Option<Secret>,
}

/// What nobody gets to see.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(pub(crate) String);

impl std::str::FromStr for Secret {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Secret(text.to_owned()))
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// A schema's files.
#[derive(Debug, Args)]
pub(crate) struct Files {
    /// What defines the service: a .proto file, a directory of them, or a serialized descriptor set; repeat for more
    #[arg(long, value_name = "PATH", required = true)]
    pub(crate) proto: Vec<PathBuf>,
    /// Where imports are; the directories of the .proto files if left out
    #[arg(long, short = 'I', value_name = "DIR")]
    pub(crate) include: Vec<PathBuf>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples: tollgate explain --tenant acme --method hotel.Reservation/Reserve '{\"customer_name\": \"Ada\"}'\n          \
         tollgate explain 00f067aa0ba902b7\n\n\
        Policies are asked in instances that are thrown away, which begin without state: one that counts calls answers as to its first.\n\
        The schema is the one that the tenant's application has bound; if none has, give it with --proto."
)]
pub(crate) struct Explain {
    /// Whose call it would be
    #[arg(long, value_name = "NAME", requires = "method")]
    pub(crate) tenant: Option<String>,
    /// The method, such as hotel.Reservation/Reserve
    #[arg(long, value_name = "SERVICE/METHOD", requires = "tenant")]
    pub(crate) method: Option<MethodName>,
    /// Only this side; both if left out, as of a call within the host
    #[arg(long, requires = "tenant")]
    pub(crate) side: Option<Side>,
    /// The message is a reply
    #[arg(long, requires = "tenant")]
    pub(crate) reply: bool,
    /// This would be beside the message; in base64 if the key ends in -bin. Repeat for more, also of one key
    #[arg(long, value_name = "KEY=VALUE", requires = "tenant")]
    pub(crate) metadata: Vec<Pair>,
    /// What defines the service, if no application has bound it: a .proto file, a directory of them, or a serialized descriptor set
    #[arg(long, value_name = "PATH", requires = "tenant")]
    pub(crate) proto: Vec<PathBuf>,
    /// Where imports are; the directories of the .proto files if left out
    #[arg(long, short = 'I', value_name = "DIR", requires = "proto")]
    pub(crate) include: Vec<PathBuf>,
    /// Print JSON, for programs
    #[arg(long)]
    pub(crate) json: bool,
    /// With --tenant and --method: the message as JSON, which is then judged; `-` reads it from standard input. Without: a call, by its
    /// trace or its span
    #[arg(value_name = "JSON|CALL", required_unless_present = "tenant")]
    pub(crate) subject: Option<String>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples: tollgate tap hotel.Reservation/Reserve --denied\n          \
         tollgate tap --tenant acme --json --count 100\n\n\
        Nothing of what is in messages is shown, but for what the status of a failed call says. What a daemon has too much of is counted."
)]
pub(crate) struct Tap {
    /// Of these calls only: a method, such as hotel.Reservation/Reserve, or a service
    #[arg(value_name = "SERVICE[/METHOD]")]
    pub(crate) of: Option<Watched>,
    /// Only this tenant's
    #[arg(long, value_name = "NAME")]
    pub(crate) tenant: Option<String>,
    /// Only those that a policy denied
    #[arg(long)]
    pub(crate) denied: bool,
    /// Only those that didn't end with OK
    #[arg(long)]
    pub(crate) failed: bool,
    /// End after so many
    #[arg(long, value_name = "N", value_parser = positive)]
    pub(crate) count: Option<u64>,
    /// End after this time, such as 10s or 5m
    #[arg(long = "for", value_name = "TIME", value_parser = duration)]
    pub(crate) time: Option<Duration>,
    /// Print a line of JSON per call, for programs
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Example: tollgate trace 4bf92f3577b34da6a3ce929d0e0e4736\n\n\
        A daemon keeps its newest spans (telemetry.kept_spans): of calls that are sampled, of calls whose application has a span of its own that is, \
        and of calls that fail. Those of other daemons are theirs to show."
)]
pub(crate) struct Trace {
    /// The trace, or one of its spans, in hexadecimal; the newest traces if left out
    #[arg(value_name = "ID", default_value = "", hide_default_value = true)]
    pub(crate) id: String,
    /// How many of the newest, at most 1000
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = traces)]
    pub(crate) last: u32,
    /// Print JSON, for programs
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Example: tollgate prefetch --proto hotel.proto\n\n\
        It lasts until the daemon ends; its configuration can name descriptor sets to prefetch at every start.")]
pub(crate) struct Prefetch {
    #[command(flatten)]
    pub(crate) files: Files,
    /// Print JSON, for programs
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Example: tollgate upgrade --binary /usr/local/bin/tollgated\n\n\
        The new process is started with the arguments of the one that runs. It reads its configuration, loads all policies and proves \
        that it can serve before it takes over; if anything fails, the daemon goes on as it is."
)]
pub(crate) struct DaemonUpgrade {
    /// The new program; by default the one that the daemon was started from, as it is there now
    #[arg(long, value_name = "FILE")]
    pub(crate) binary: Option<PathBuf>,
    /// How long it may take until it is ready, such as 500ms, 30s or 2m; at most 10m
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "30s")]
    pub(crate) timeout: Duration,
    /// Print JSON, for programs
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Example: tollgate call --token-file acme.token --proto hotel.proto --to 127.0.0.1:7472 \\
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
    /// Give up after this time, such as 500ms, 5s or 1m; if left out after 10s, or a day if requests are read from standard input as they come
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) deadline: Option<Duration>,
    /// Send this beside the request; in base64 if the key ends in -bin. Repeat for more, also of one key
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) metadata: Vec<Pair>,
    /// Print what came beside the reply, as a further line of JSON, and what came when the call ended, if anything, as another
    #[arg(long)]
    pub(crate) show_metadata: bool,
    /// The method, such as hotel.Reservation/Reserve
    #[arg(value_name = "SERVICE/METHOD")]
    pub(crate) method: MethodName,
    /// The request as JSON, {} if left out; `-` reads it from standard input. Of a method that takes a stream of them, several that follow each
    /// other: from standard input each is sent when it is complete
    #[arg(value_name = "JSON")]
    pub(crate) request: Option<String>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Example: tollgate serve --token-file acme.token --proto hotel.proto \\
         --service hotel.Reservation --reply '{\"reservation_id\": 7}'"
)]
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
    /// Serve under this label, which policies can route calls to; without it, for calls without a route
    #[arg(long, default_value = "", hide_default_value = true)]
    pub(crate) label: String,
    /// Send this beside every reply; in base64 if the key ends in -bin. Repeat for more, also of one key
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) metadata: Vec<Pair>,
    /// Print what came beside a request, too, as a further line of JSON
    #[arg(long, requires = "print_requests")]
    pub(crate) show_metadata: bool,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct Answer {
    /// Answer every call with this reply, as JSON, and every request of a conversation; several, which follow each other, are a stream's.
    /// `-` reads from standard input
    #[arg(long, value_name = "JSON")]
    pub(crate) reply: Option<String>,
    /// Answer every request with itself and its metadata, where request and reply have one type; several with the last, if there is one
    /// reply
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
    /// `<package>.tollgate.h` and `<package>.tollgate_service.h` for C11 and C++17, and tollgate_block.h
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

/// A number.
fn number(text: &str) -> Result<u32, String> {
    let wrong = |_| format!("it must be a whole number, {} at most", u32::MAX);
    text.parse().map_err(wrong)
}

/// How many of the newest traces.
fn traces(text: &str) -> Result<u32, String> {
    let number = text.parse().ok().filter(|n| (1..=1_000).contains(n));
    number.ok_or_else(|| "it must be a whole number from 1 to 1000".to_owned())
}

/// Whose calls are watched: a service's, or one method's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Watched {
    pub(crate) service: String,
    pub(crate) method: Option<String>,
}

impl std::str::FromStr for Watched {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let service = text.trim_start_matches('/');
        if !service.is_empty() && !service.contains('/') {
            return Ok(Watched {
                service: service.to_owned(),
                method: None,
            });
        }
        let MethodName { service, method } = text.parse().map_err(|_| {
            "a service is written package.Service, a method package.Service/Method".to_owned()
        })?;
        Ok(Watched {
            service,
            method: Some(method),
        })
    }
}

/// A number of things, of which there is one at least.
fn positive(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(number @ 1..) => Ok(number),
        _ => Err("it must be a whole number, 1 at least".to_owned()),
    }
}

/// The longest time that can be typed.
pub(crate) const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// What a time is.
const TIME: &str =
    "a time is a whole number and its unit, such as 500ms, 5s or 1m; at most one day";

/// A time with its unit: `ms`, `s` or `m`, whole numbers, longer than zero, up to a day.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit());
    let unit_ms = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        _ => return Err(TIME.to_owned()),
    };
    let number = text
        .trim_end_matches(unit)
        .parse::<u64>()
        .map_err(|_| TIME.to_owned())?;
    let time = Duration::from_millis(number.saturating_mul(unit_ms));
    if time.is_zero() || time > DAY {
        return Err("a time is longer than zero and at most one day".to_owned());
    }
    Ok(time)
}

#[cfg(test)]
mod tests {
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
            "tollgate policy detach acl --tenant acme --service hotel.Reservation",
            "tollgate policy upgrade acl@2 --tenant acme --probation 60s",
            "tollgate policy upgrade acl@2 --tenant acme --mode shadow --side client",
            "tollgate policy promote acl --provider --pre",
            "tollgate policy rollback acl --tenant acme",
            "tollgate policy release acl --tenant acme --service a.B --method C",
            "tollgate policy show acl --tenant acme --json",
            "tollgate policy diff acl@3 acl@4 --tenant acme --last 1000",
            "tollgate audit show --last 5 --json",
            "tollgate audit verify --file audit.jsonl --head 7:ab",
            "tollgate audit verify --state DIR",
            "tollgate audit head",
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
            "tollgate fleet upgrade plan",
            "tollgate fleet upgrade plan --fleet F.toml --binary /usr/local/bin/tollgated --json",
            "tollgate fleet upgrade run --fleet F.toml --binary /b --timeout 2m --settle 10m",
            "tollgate fleet upgrade run --resume --accept b",
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
            "tollgate call --token T --proto hotel.proto a.B/C --metadata user",
            "tollgate serve --token T --proto hotel.proto --service a.B --echo --show-metadata",
            "tollgate call --token T hotel.Reservation/Reserve {}",
            "tollgate policy attach acl@1 --tenant acme --service hotel.Reservation --side middle",
            "tollgate explain",
            "tollgate explain --tenant acme {}",
            "tollgate explain --method a.B/C {}",
            "tollgate explain 00f067aa0ba902b7 --reply",
            "tollgate tap hotel.Reservation/",
            "tollgate tap hotel.Reservation/Reserve/x",
            "tollgate tap /",
            "tollgate tap --count 0",
            "tollgate trace --last 0",
            "tollgate trace --last 1001",
            "tollgate policy attach acl@1 --service hotel.Reservation --side client",
            "tollgate policy attach acl@1 --tenant acme --side client",
            "tollgate policy attach acl@1 --tenant acme --service a.B --side client --post",
            "tollgate policy attach acl@1 --provider --pre --post --side client",
            "tollgate policy attach acl@1 --tenant acme --service a.B --side client --mode canary=0%",
            "tollgate policy push ./acl.wasm --provider --tenant acme --name acl",
            "tollgate policy upgrade acl --tenant acme",
            "tollgate policy promote acl",
            "tollgate policy detach acl@1 --tenant acme",
            "tollgate audit verify --state DIR --file F",
            "tollgate audit verify --head 7:ab",
            "tollgate policy test ./acl.wasm --proto hotel.proto",
            "tollgate policy bench ./acl.wasm --cases cases.json --config F.json",
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

    #[test]
    fn modes_have_their_percentage() {
        let check = |text: &str, expected| assert_eq!(text.parse().ok(), expected, "{text}");
        check("enforce", Some(Mode::Enforce));
        check("shadow", Some(Mode::Shadow));
        for canary in ["canary=10%", "canary 10%", "canary:10", "canary=10"] {
            check(canary, Some(Mode::Canary(10)));
        }
        check("canary=100%", Some(Mode::Canary(100)));
        for wrong in [
            "",
            "canary",
            "canary=",
            "canary=0%",
            "canary=101%",
            "canary=-1",
            "canary10",
            "Shadow",
        ] {
            check(wrong, None);
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
