//! The arguments of `tollgate policy`, with their help.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use tollgate_policy_tools::limits::{CPU_US_MAX, CPU_US_MIN};

use crate::api::Acting;
use crate::approval::Waiting;
use crate::policy::against::Against;
use crate::policy_tools::Tool;
use crate::values::{Side, duration, number};

/// Which policies are listed.
#[derive(Debug, Args)]
pub(crate) struct List {
    /// Only this tenant's; with a token, the token's
    #[arg(long, value_name = "NAME")]
    pub(crate) tenant: Option<String>,
    /// Stay, and print the list again whenever it differs, as while a version is on trial
    #[arg(long)]
    pub(crate) watch: bool,
}

/// Policies, and whom the command acts as.
#[derive(Debug, Args)]
pub(crate) struct PolicyCommand {
    #[command(flatten)]
    pub(crate) acting: Acting,
    #[command(subcommand)]
    pub(crate) command: Policy,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Policy {
    /// Upload a policy and print its name@version
    Push(Box<Push>),
    /// Attach a policy to calls, in force or on trial
    Attach(Attach),
    /// Detach a policy: it evaluates no more calls
    Detach(Select),
    /// Put a new version on trial next to the one that decides
    Upgrade(Upgrade),
    /// Let the version on trial decide from now on
    Promote(Promote),
    /// End the trial; without a trial, go back to the previous version
    Rollback(Select),
    /// End a quarantine, or give a fresh instance to a policy that is closed after a fault
    Release(Select),
    /// Show a policy: manifest, versions, attachments, and the number of its decisions
    Show(Show),
    /// Compare the decisions of two versions on recorded calls; the exit status is 0 if none
    /// changes
    Diff(Diff),
    /// List the policies and their attachments
    List(List),
    /// Delete a version of a policy, or all versions; refused while a version is attached or the
    /// target of a rollback
    #[command(after_help = "The numbers of deleted versions aren't reused.\n\n\
         Examples: tollgate policy delete acl@1 --tenant acme\n          \
         tollgate policy delete audit --provider")]
    Delete(Delete),
    #[command(flatten)]
    Tool(Tool),
}

/// Whose policy it is.
#[derive(Debug, Args)]
pub(crate) struct Owner {
    /// The tenant that owns the policy and whose calls it evaluates; with --provider, the tenant
    /// whose calls it evaluates, all if left out; with a token, the token's tenant if left out
    #[arg(long)]
    pub(crate) tenant: Option<String>,
    /// The provider owns the policy; tenants don't see it
    #[arg(long)]
    pub(crate) provider: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples: tollgate policy push ./acl.wasm --tenant acme --name acl --config acl.json\n          \
         tollgate policy push oci://ghcr.io/acme/audit:1.2 --provider --name audit\n          \
         tollgate policy push --rules rules.toml --proto hotel.proto --tenant acme --name gate"
)]
pub(crate) struct Push {
    /// The policy: a core WebAssembly module with a manifest, in a file or an OCI registry
    #[arg(
        value_name = "FILE.wasm|oci://IMAGE",
        required_unless_present = "rules"
    )]
    pub(crate) module: Option<String>,
    /// Rules in CEL, which this command compiles to a module; --proto has the schema of their
    /// methods
    #[arg(long, value_name = "FILE.toml", conflicts_with_all = ["module", "signature"])]
    pub(crate) rules: Option<PathBuf>,
    /// A signature of the file's bytes, as `cosign sign-blob` prints it; images have their own
    #[arg(long, value_name = "FILE.sig")]
    pub(crate) signature: Option<PathBuf>,
    /// The tenant whose calls the policy may evaluate; with a token, the token's tenant if left out
    #[arg(long, conflicts_with = "provider")]
    pub(crate) tenant: Option<String>,
    /// The provider owns the policy; the policy may evaluate every tenant's calls
    #[arg(long)]
    pub(crate) provider: bool,
    /// The policy's name; another push under this name makes the next version
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

/// What a module may see that was made for another host, and so has no manifest. Without any of
/// these it sees which method is called.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "For modules made for Envoy or by OPA")]
pub(crate) struct Described {
    /// The host that the module was made for, if its exports don't show it
    #[arg(long, value_enum)]
    pub(crate) abi: Option<Abi>,
    /// The hooks at which it runs: request, reply, tick; request if left out
    #[arg(long, value_name = "HOOK,..", value_delimiter = ',')]
    pub(crate) hooks: Vec<String>,
    /// The methods that the policy evaluates: package.Service/Method or package.Service/*; all if
    /// left out
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
    /// The filter's access to the request's bytes; none if left out
    #[arg(long, value_enum)]
    pub(crate) body: Option<Body>,
    /// The filter's access to the reply's bytes; none if left out
    #[arg(long, value_enum)]
    pub(crate) reply_body: Option<Body>,
    /// Fields of the request in the input of an OPA policy
    #[arg(long, value_name = "FIELD,..", value_delimiter = ',')]
    pub(crate) fields: Vec<String>,
    /// Fields of the reply in the input of an OPA policy
    #[arg(long, value_name = "FIELD,..", value_delimiter = ',')]
    pub(crate) reply_fields: Vec<String>,
    /// Further capabilities that it needs: clock, random
    #[arg(long, value_name = "CAPABILITY,..", value_delimiter = ',')]
    pub(crate) needs: Vec<String>,
    /// The name of a filter's root context, if it has several
    #[arg(long, value_name = "NAME")]
    pub(crate) root_id: Option<String>,
    /// The entrypoint of an OPA policy, if it has several
    #[arg(long, value_name = "PATH")]
    pub(crate) entrypoint: Option<String>,
}

impl Described {
    /// Whether no option that describes a module was given.
    pub(super) fn is_empty(&self) -> bool {
        let lists = [
            &self.hooks,
            &self.methods,
            &self.metadata,
            &self.reply_metadata,
            &self.metadata_changes,
            &self.reply_metadata_changes,
            &self.fields,
            &self.reply_fields,
            &self.needs,
        ];
        let names = [&self.root_id, &self.entrypoint];
        let bodies = [self.body, self.reply_body];
        lists.into_iter().all(Vec::is_empty)
            && names.into_iter().all(Option::is_none)
            && bodies.into_iter().all(|body| body.is_none())
    }
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
    /// The filter doesn't see them.
    None,
    /// The filter reads them.
    Read,
    /// The filter replaces them.
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
    pub(crate) policy: VersionName,
    #[command(flatten)]
    pub(crate) owner: Owner,
    /// Run the provider's policy before the tenant's; this is the default
    #[arg(long, requires = "provider", conflicts_with = "post")]
    pub(crate) pre: bool,
    /// Run the provider's policy after the tenant's, on the message as it is sent
    #[arg(long, requires = "provider")]
    pub(crate) post: bool,
    /// The service, such as hotel.Reservation; with --provider, all if left out
    #[arg(long, required_unless_present = "provider")]
    pub(crate) service: Option<String>,
    /// One method of the service; all if left out
    #[arg(long)]
    pub(crate) method: Option<String>,
    /// The side on which the policy runs: before the call leaves the client's host, or before the
    /// server sees it
    #[arg(long)]
    pub(crate) side: Side,
    /// enforce: it decides; shadow: it runs and decides nothing; canary=N%: it decides N percent of
    /// the calls
    #[arg(long, default_value = "enforce")]
    pub(crate) mode: Mode,
    #[command(flatten)]
    pub(crate) against: Against,
    #[command(flatten)]
    pub(crate) options: Options,
    #[command(flatten)]
    pub(crate) waiting: Waiting,
}

/// The conditions of the attachment. Omitted options keep their current values.
#[derive(Debug, Args)]
#[command(next_help_heading = "Conditions; unchanged if left out")]
pub(crate) struct Options {
    /// After a fault, its calls are refused until a fresh instance is ready (reload), refused until
    /// the policy is released or upgraded (closed), or pass without evaluation until a fresh
    /// instance is ready (open)
    #[arg(long)]
    pub(crate) on_fault: Option<OnFault>,
    /// Its capabilities, in addition to log and metrics: state, change, clock, random, delay,
    /// priority, route; or none. Initially: state,change
    #[arg(long, value_name = "CAPABILITIES", value_delimiter = ',')]
    pub(crate) grant: Option<Vec<String>>,
    /// The declared fields that it may see, as dotted paths; or none. Initially: all
    #[arg(long, value_name = "PATHS", value_delimiter = ',')]
    pub(crate) fields: Option<Vec<String>>,
    /// The declared metadata keys that it may see; or none. Initially: all
    #[arg(long, value_name = "KEYS", value_delimiter = ',')]
    pub(crate) metadata: Option<Vec<String>>,
    /// Whose calls it evaluates, with --side client: application=NAME of a credential, uid=NUMBER,
    /// gid=NUMBER; or all. Initially: all
    #[arg(long, value_name = "CALLERS", value_delimiter = ',')]
    pub(crate) callers: Option<Vec<String>>,
    /// The declared hooks at which it runs: request, reply, tick. Initially: all
    #[arg(long, value_delimiter = ',')]
    pub(crate) hooks: Option<Vec<String>>,
    #[arg(long, value_name = "US", value_parser = number, help = cpu_us())]
    pub(crate) cpu_us: Option<u32>,
    /// Every call gets a new instance: nothing stays from one call to the next
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub(crate) fresh: Option<bool>,
    /// Where it runs: in a process of its tenant (process), or in the daemon (none). Initially: the
    /// value of the daemon's configuration
    #[arg(long)]
    pub(crate) isolation: Option<Isolation>,
    /// The number of evaluated calls that the daemon records in memory for `policy diff`.
    /// Initially: 0
    #[arg(long, value_name = "CALLS", value_parser = number)]
    pub(crate) record: Option<u32>,
    /// Percentage points by which a canary's rate of denials and faults may exceed the stable
    /// version's. Initially: 5
    #[arg(long, value_name = "POINTS", value_parser = number)]
    pub(crate) max_worse: Option<u32>,
}

fn cpu_us() -> String {
    format!(
        "Its CPU time per call in microseconds, {CPU_US_MIN} to {CPU_US_MAX}. Initially: the value of the daemon's configuration"
    )
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

/// A policy's name without a version. Operations on an attachment apply to all versions of the
/// policy there.
fn bare_name(text: &str) -> Result<String, String> {
    match text.split_once('@') {
        Some((name, _)) => Err(format!("write the policy's name without a version: {name}")),
        None => Ok(text.to_owned()),
    }
}

#[derive(Debug, Args)]
#[command(
    after_help = "Without --mode, the new version decides all calls at once and takes over the old version's state. It becomes \
         the stable version after the probation. The first fault restores the old version, which then evaluates that call.\n\n\
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
    /// shadow or canary=N%: until `policy promote` or `policy rollback`; enforce: stable at once,
    /// with the old version's state
    #[arg(long)]
    pub(crate) mode: Option<Mode>,
    /// The time without a fault before it is promoted, such as 60s; with --mode, it isn't promoted
    /// if left out
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) probation: Option<Duration>,
    #[command(flatten)]
    pub(crate) against: Against,
    #[command(flatten)]
    pub(crate) waiting: Waiting,
}

#[derive(Debug, Args)]
#[command(after_help = "Example: tollgate policy promote acl --tenant acme")]
pub(crate) struct Promote {
    #[command(flatten)]
    pub(crate) select: Select,
    #[command(flatten)]
    pub(crate) waiting: Waiting,
}

#[derive(Debug, Args)]
pub(crate) struct Delete {
    /// The policy; without a version, all its versions
    #[arg(value_name = "NAME[@VERSION]")]
    pub(crate) policy: String,
    #[command(flatten)]
    pub(crate) owner: Owner,
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
    after_help = "Calls are recorded where the policy is attached with --record N.\n\n\
         Example: tollgate policy diff acl@3 acl@4 --tenant acme --last 1000"
)]
pub(crate) struct Diff {
    /// The version to compare with
    #[arg(value_name = "BEFORE")]
    pub(crate) before: VersionName,
    /// The version to compare
    #[arg(value_name = "AFTER")]
    pub(crate) after: VersionName,
    #[command(flatten)]
    pub(crate) place: Place,
    /// Compare at most this many calls, the newest ones
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
    /// Only attachments before the tenant's policies
    #[arg(long, requires = "provider", conflicts_with = "post")]
    pub(crate) pre: bool,
    /// Only attachments after the tenant's policies
    #[arg(long, requires = "provider")]
    pub(crate) post: bool,
    /// Only attachments to this service; all if left out
    #[arg(long)]
    pub(crate) service: Option<String>,
    /// Only attachments to this method; all if left out
    #[arg(long)]
    pub(crate) method: Option<String>,
    /// Only attachments on this side; both if left out
    #[arg(long)]
    pub(crate) side: Option<Side>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum OnFault {
    /// Refuse calls until a fresh instance is ready
    Reload,
    /// Refuse calls until the policy is released or upgraded
    Closed,
    /// Let calls pass without evaluation until a fresh instance is ready
    Open,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Isolation {
    /// In the daemon, in a sandbox
    None,
    /// In a process of its tenant, in a sandbox
    Process,
}

/// The extent to which a version decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Enforce,
    Shadow,
    Canary(u32),
}

impl FromStr for Mode {
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

impl FromStr for VersionName {
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
