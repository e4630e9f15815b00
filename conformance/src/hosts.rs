//! Two joined hosts with one tenant: calls with metadata from one to the other.

use std::path::Path;

use serde_json::Value;

use crate::process::Process;
use crate::testbed::{Daemon, Options, Outcome, Testbed, proto_file};
use crate::traffic::ECHO;

/// Two linked hosts, with the tenant `acme` on both. Callers are on `a`.
#[derive(Debug)]
pub struct Hosts {
    /// The bed that they are in.
    pub bed: Testbed,
    /// The first host.
    pub a: Daemon,
    /// The second one.
    pub b: Daemon,
    /// The tenant's tokens on `a` and `b`.
    pub tokens: [String; 2],
}

impl Default for Hosts {
    fn default() -> Hosts {
        Hosts::new()
    }
}

impl Hosts {
    /// # Panics
    /// If one of them doesn't start.
    pub fn new() -> Hosts {
        Hosts::with(&Options::default())
    }

    /// Hosts with these options.
    ///
    /// # Panics
    /// If one of them doesn't start.
    pub fn with(options: &Options) -> Hosts {
        let bed = Testbed::new();
        let (a, b) = (bed.daemon_with("a", options), bed.daemon_with("b", options));
        let tokens = [a.tenant("acme"), b.tenant("acme")];
        Hosts { bed, a, b, tokens }
    }

    /// Attaches a policy of the catalogue to host `a`'s calls of the echo service.
    ///
    /// # Panics
    /// If it is refused.
    #[track_caller]
    pub fn attach(&self, policy: &str, config: &Value, flags: &str) {
        let config = self.bed.file("config.json", config.to_string());
        let file = policy.replace('-', "_");
        let pushed = self.a.push("--tenant acme", &file, policy, Some(&config));
        let line = format!("policy attach {pushed} --tenant acme --service {ECHO} --side client");
        self.a.ok(format!("{line} {flags}").trim_end());
    }

    /// An echo server on host `b` that prints the metadata of requests.
    ///
    /// # Panics
    /// If it doesn't start serving.
    pub fn serve_echo(&self, flags: &[&str]) -> Process {
        let answer = ["--echo", "--print-requests", "--show-metadata"];
        let answer = [&answer[..], flags].concat();
        self.b.serve_hotel(&self.tokens[1], ECHO, &answer)
    }

    /// Calls the echo server with this metadata.
    pub fn echo(&self, metadata: &[&str]) -> Outcome {
        let metadata = metadata.iter().flat_map(|pair| ["--metadata", pair]);
        let metadata: Vec<_> = metadata.collect();
        self.call(
            true,
            &proto_file("hotel.proto"),
            "hotel.Echo/Echo",
            &metadata,
        )
    }

    /// Calls a method from host `a`, on `b` or on the same host; the second line of its output is
    /// the reply's metadata.
    pub fn call(&self, to_b: bool, proto: &Path, method: &str, args: &[&str]) -> Outcome {
        let (proto, listen) = (proto.display().to_string(), self.b.listen().to_string());
        let to: &[&str] = if to_b { &["--to", &listen] } else { &[] };
        let token = &self.tokens[0];
        let line = [
            "call",
            "--token",
            token,
            "--proto",
            &proto,
            "--show-metadata",
        ];
        self.a
            .tollgate(line.iter().chain(to).chain(args).chain(&[method]))
    }
}
