//! Third-party modules in real daemons: the examples of the crate proxy-wasm, the plugin in the
//! README of its Go SDK, and policies from OPA's compiler.
//!
//! `.ci/foreign` builds them; without it these tests fail and name it.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use tollgate_conformance::process::Process;
use tollgate_conformance::testbed::{
    Daemon, Options, Outcome, SOON, Testbed, eventually, foreign_file, proto_file,
};

/// The seed of the hash tables of a filter in Rust.
const NEEDS: &str = "--needs random";
const GRANT: &str = "--grant state,change,random";

const RESERVE: &str = "hotel.Reservation/Reserve";

/// These modules are large, and some machines are slow.
const PATIENT: &str = "[compile]\ntimeout_ms = 120000\n";

/// A daemon with a caller of tenant `acme`, and a server: here, or on another host.
struct Host {
    bed: Testbed,
    daemon: Daemon,
    token: String,
    to: String,
    server: Option<Process>,
}

impl Host {
    /// Its server answers with this reply.
    fn new(reply: &str) -> Host {
        Host::serving(&["--reply", reply])
    }

    fn serving(answer: &[&str]) -> Host {
        let mut host = Host::caller("");
        let proto = proto_file("hotel.proto").display().to_string();
        let service = ["--service", "hotel.Reservation"];
        let args = ["--token", &host.token, "--proto", &proto];
        let told = ["--print-requests", "--show-metadata"];
        let args = args.iter().chain(&service).chain(&told).chain(answer);
        host.server = Some(host.daemon.serve(args));
        host
    }

    /// It has no server, and calls another host's.
    fn caller(to: &str) -> Host {
        let bed = Testbed::new();
        let options = Options {
            config: PATIENT.to_owned(),
            ..Options::default()
        };
        let daemon = bed.daemon_with("a", &options);
        let token = daemon.tenant("acme");
        let (to, server) = (to.to_owned(), None);
        Host {
            bed,
            daemon,
            token,
            to,
            server,
        }
    }

    fn push(&self, module: &str, config: &str, description: &str) -> Outcome {
        let config = self.bed.file("config", config).display().to_string();
        let file = foreign_file(module).display().to_string();
        let args = [
            "policy", "push", &file, "--tenant", "acme", "--name", "guest", "--config", &config,
        ];
        let described = description.split_whitespace();
        self.daemon.tollgate(args.into_iter().chain(described))
    }

    /// Pushes a module and attaches it to its callers.
    #[track_caller]
    fn run(&self, module: &str, config: &str, description: &str, grants: &str) {
        let attached = self.attach("client", module, config, description, grants);
        assert_eq!(attached.code, 0, "{module}: {attached}");
    }

    #[track_caller]
    fn attach(
        &self,
        side: &str,
        module: &str,
        config: &str,
        description: &str,
        grants: &str,
    ) -> Outcome {
        let pushed = self.push(module, config, description);
        assert_eq!(pushed.code, 0, "{module}: {pushed}");
        let policy = pushed.out.trim().to_owned();
        let attach = ["policy", "attach", &policy, "--tenant", "acme"];
        let place = ["--service", "hotel.Reservation", "--side", side];
        let budget = ["--cpu-us", "2000"];
        let args = attach.into_iter().chain(place).chain(budget);
        self.daemon.tollgate(args.chain(grants.split_whitespace()))
    }

    fn book(&self, customer: &str) -> Outcome {
        self.book_with(customer, &[])
    }

    /// Calls with this metadata; the second line of the output is the reply's.
    fn book_with(&self, customer: &str, metadata: &[&str]) -> Outcome {
        let proto = proto_file("hotel.proto").display().to_string();
        let request = format!("{{\"customer_name\": \"{customer}\"}}");
        let to = Some(["--to", &self.to]).filter(|_| !self.to.is_empty());
        let args = [
            "call",
            "--token",
            &self.token,
            "--proto",
            &proto,
            "--show-metadata",
            RESERVE,
            &request,
        ];
        let metadata = metadata.iter().flat_map(|pair| ["--metadata", pair]);
        let to = to.into_iter().flatten();
        self.daemon
            .tollgate(args.into_iter().chain(to).chain(metadata))
    }

    /// Waits until the server has printed this metadata of a request.
    #[track_caller]
    fn heard(&self, metadata: &str) {
        let server = self.server.as_ref().unwrap();
        let line = format!("{{\"metadata\":{metadata}}}");
        let heard = server.line(SOON, |heard| heard == line);
        assert!(heard.is_ok(), "{line} isn't among {:#?}", server.said());
    }

    /// Waits until the daemon's log has a line of the policy. A runtime that is awake collects
    /// lines from time to time, so the tenant continues to call.
    #[track_caller]
    fn logged(&mut self, text: &str) {
        let told = || {
            let said = self.daemon.process().said();
            let told = said.iter().any(|line| line.contains(text));
            told || {
                self.book("Ada");
                false
            }
        };
        let told = eventually(SOON, told);
        let said = self.daemon.process().said();
        assert!(told.is_ok(), "{text} isn't among {said:#?}");
    }
}

#[test]
fn http_headers_sees_a_grpc_call() {
    let mut host = Host::new("{}");
    host.run(
        "http_headers",
        "",
        &format!("{NEEDS} --hooks request,reply"),
        GRANT,
    );
    let booked = host.book("Ada");
    assert_eq!(booked.code, 0, "{booked}");
    host.logged("-> :path: /hotel.Reservation/Reserve");
    host.logged("-> content-type: application/grpc");
    host.logged("<- :status: 200");
    host.logged("completed.");
}

#[test]
fn http_headers_sees_the_metadata_that_it_is_granted() {
    let mut host = Host::serving(&["--reply", "{}", "--metadata", "served-by=acme"]);
    let description = "--hooks request,reply --metadata x-user,trace-bin,x-more --reply-metadata *";
    let grants = format!("{GRANT} --metadata x-user,trace-bin,served-by");
    host.run(
        "http_headers",
        "",
        &format!("{NEEDS} {description}"),
        &grants,
    );
    let sent = [
        "x-user=ada",
        "x-pin=hidden-1",
        "trace-bin=AP8=",
        "x-more=hidden-2",
        "x-user=bob",
    ];
    let booked = host.book_with("Ada", &sent);
    assert_eq!(booked.code, 0, "{booked}");
    host.heard(
        r#"{"trace-bin":["AP8="],"x-more":["hidden-2"],"x-pin":["hidden-1"],"x-user":["ada","bob"]}"#,
    );
    host.logged("-> x-user: ada");
    host.logged("-> x-user: bob");
    host.logged("-> trace-bin: AP8");
    host.logged("<- served-by: acme");
    // All its lines about a call come before this.
    host.logged("completed.");
    let said = host.daemon.process().said().join("\n");
    assert!(!said.contains("hidden"), "{said}");
}

#[test]
fn http_auth_random_can_ask_nobody_so_its_calls_are_refused() {
    let host = Host::new("{}");
    host.run("http_auth_random", "", NEEDS, GRANT);
    let refused = host.book("Ada");
    assert_ne!(refused.code, 0, "{refused}");
    assert!(refused.err.contains("guest@1"), "{refused}");
}

#[test]
fn http_body_reads_replies_if_it_may_and_a_text_is_no_reply() {
    let book = |hotel: &str, body: &str| {
        let host = Host::new(&format!("{{\"hotel_ids\": [\"{hotel}\"]}}"));
        let description = format!("{NEEDS} --hooks reply {body}");
        host.run("http_body", "", &description, GRANT);
        host.book("Ada")
    };
    let open = book("a", "--reply-body change");
    assert_eq!(open.code, 0, "{open}");
    let unseen = book("a secret", "");
    assert_eq!(unseen.code, 0, "it wasn't shown the body: {unseen}");
    let redacted = book("a secret", "--reply-body change");
    assert_ne!(redacted.code, 0, "{redacted}");
    assert!(redacted.err.contains("gRPC frame"), "{redacted}");
    assert!(!redacted.out.contains("secret"), "{redacted}");
    let refused = book("a secret", "--reply-body read");
    assert!(refused.err.contains("which it isn't granted"), "{refused}");
}

#[test]
fn http_config_changes_no_header_that_it_is_not_granted() {
    let host = Host::new("{}");
    host.run(
        "http_config",
        "from the configuration",
        &format!("{NEEDS} --hooks reply"),
        GRANT,
    );
    let refused = host.book("Ada");
    assert_ne!(refused.code, 0, "{refused}");
    assert!(refused.err.contains("custom-header"), "{refused}");
}

#[test]
fn a_header_that_http_config_adds_is_metadata_of_the_reply() {
    let host = Host::serving(&["--reply", "{}", "--metadata", "served-by=acme"]);
    let added = format!("{NEEDS} --hooks reply --reply-metadata-changes custom-header");
    host.run("http_config", "from the configuration", &added, GRANT);
    let booked = host.book("Ada");
    assert_eq!(booked.code, 0, "{booked}");
    let came = r#"{"metadata":{"custom-header":["from the configuration"],"served-by":["acme"]}}"#;
    assert_eq!(booked.out.lines().nth(1), Some(came), "{booked}");
    // The grants are the keys that an attachment lists; a policy that may change all keys is
    // limited to those.
    let held = host.attach(
        "client",
        "http_config",
        "v",
        &added,
        &format!("{GRANT} --metadata none"),
    );
    assert_ne!(held.code, 0, "{held}");
    assert!(
        held.err.contains("changes the metadata key custom-header"),
        "{held}"
    );
    let odd = host.attach(
        "client",
        "http_config",
        "v",
        &added,
        &format!("{GRANT} --metadata x"),
    );
    assert!(
        odd.err.contains("doesn't declare that metadata key"),
        "{odd}"
    );
    let any = format!("{NEEDS} --hooks reply --reply-metadata-changes *");
    let less = format!("{GRANT} --metadata served-by");
    host.run("http_config", "v", &any, &less);
    let refused = host.book("Ada");
    assert_ne!(refused.code, 0, "{refused}");
    assert!(refused.err.contains("custom-header"), "{refused}");
    assert!(refused.err.contains("which it isn't granted"), "{refused}");
}

#[test]
fn a_header_that_can_not_be_metadata_is_the_filters_fault_and_one_without_room_the_calls() {
    let added = format!("{NEEDS} --hooks reply --reply-metadata-changes custom-header");
    let host = Host::new("{}");
    host.run("http_config", "two\nlines", &added, GRANT);
    let refused = host.book("Ada");
    assert!(refused.err.contains("it can't be metadata"), "{refused}");
    let big = format!("big={}", "x".repeat(8192 - 4 - 7));
    let host = Host::serving(&["--reply", "{}", "--metadata", &big]);
    host.run("http_config", "more", &added, GRANT);
    for _ in 0..2 {
        let full = host.book("Ada");
        assert_eq!(full.code, 8, "{full}");
        assert!(full.err.contains("exceed the limit of 8192"), "{full}");
    }
    let status = host.daemon.status();
    assert_eq!(status["policies"][0]["faults"], 0, "{status:#}");
}

#[test]
fn changes_of_both_hosts_meet_at_the_other_side() {
    let far = Host::serving(&["--reply", "{}", "--metadata", "served-by=acme"]);
    let near = Host::caller(&far.daemon.listen().to_string());
    let set = r#"{"set": {"x-user": null, "x-role": "guest", "x-unseen": null}}"#;
    let reads = "--metadata x-user --metadata-changes x-user,x-role,x-unseen";
    near.run("caller", set, reads, "");
    let added = format!("{NEEDS} --hooks reply --reply-metadata-changes custom-header");
    let attached = far.attach("server", "http_config", "from far", &added, GRANT);
    assert_eq!(attached.code, 0, "{attached}");
    let sent = ["x-user=ada", "x-role=admin", "x-unseen=1", "x-kept=1"];
    let booked = near.book_with("Ada", &sent);
    assert_eq!(booked.code, 0, "{booked}");
    far.heard(r#"{"x-kept":["1"],"x-role":["guest"]}"#);
    let came = r#"{"metadata":{"custom-header":["from far"],"served-by":["acme"]}}"#;
    assert_eq!(booked.out.lines().nth(1), Some(came), "{booked}");
}

#[test]
fn hello_world_ticks_with_a_clock_and_randomness() {
    let mut host = Host::new("{}");
    host.run(
        "hello_world",
        "",
        "--hooks tick --needs clock,random",
        "--grant state,clock,random",
    );
    host.logged("Hello, World!");
    host.logged("your lucky number is");
    let booked = host.book("Ada");
    assert_eq!(booked.code, 0, "it isn't asked about calls: {booked}");
}

#[test]
fn a_plugin_in_go_says_hello_to_every_request() {
    let mut host = Host::new("{}");
    host.run("go_plugin", "", "", "");
    for _ in 0..100 {
        let booked = host.book("Ada");
        assert_eq!(booked.code, 0, "{booked}");
    }
    host.logged("Hello, world!");
    let status = host.daemon.status();
    assert_eq!(status["policies"][0]["faults"], 0, "{status:#}");
}

#[test]
fn a_policy_of_opas_decides_by_its_data() {
    let host = Host::new("{}");
    let data = "{\"blocked\": [\"Mallory\"]}";
    let description = "--methods hotel.Reservation/Reserve --fields customer_name";
    host.run(
        "authz",
        data,
        &format!("{description} --entrypoint hotel/authz/allow"),
        "",
    );
    let (ada, mallory) = (host.book("Ada"), host.book("Mallory"));
    assert_eq!(ada.code, 0, "{ada}");
    assert_eq!(mallory.code, 7, "{mallory}");
    // Another version, with the reason; and a policy without the grant for the name.
    host.run(
        "authz",
        data,
        &format!("{description} --entrypoint hotel/authz/decision"),
        "",
    );
    let (ada, mallory) = (host.book("Ada"), host.book("Mallory"));
    assert_eq!(ada.code, 0, "{ada}");
    assert_eq!(mallory.code, 9, "{mallory}");
    assert!(mallory.err.contains("Mallory may not reserve"), "{mallory}");
    host.run(
        "authz",
        data,
        &format!("{description} --entrypoint hotel/authz/decision"),
        "--fields none",
    );
    let unseen = host.book("Mallory");
    assert_eq!(unseen.code, 0, "nobody told it the name: {unseen}");
}

#[test]
fn a_policy_of_opas_decides_by_metadata_and_changes_it() {
    let host = Host::new("{}");
    let set = r#"{"set": {"x-user": null, "x-role": ["guest", "vip"], "t-bin": "AP8="}}"#;
    let reads = "--metadata x-user --metadata-changes *";
    host.run("caller", set, reads, "");
    let stranger = host.book_with("Ada", &["x-user=bob"]);
    assert_eq!(stranger.code, 16, "{stranger}");
    assert!(stranger.err.contains("who are you"), "{stranger}");
    let known = host.book_with("Ada", &["x-user=bob", "x-user=ada", "x-kept=1"]);
    assert_eq!(known.code, 0, "{known}");
    host.heard(r#"{"t-bin":["AP8="],"x-kept":["1"],"x-role":["guest","vip"]}"#);
    // The key isn't granted any more, so it is absent.
    host.run("caller", set, reads, "--metadata none");
    let unseen = host.book_with("Ada", &["x-user=ada"]);
    assert_eq!(unseen.code, 16, "{unseen}");
    // Reserved keys can't be described, nor changed by a policy that may change all.
    let reserved = host.push("caller", set, "--metadata-changes grpc-timeout");
    assert!(reserved.err.contains("are the daemon's own"), "{reserved}");
    let reserved = r#"{"set": {"tollgate-route": "b"}}"#;
    host.run("caller", reserved, reads, "--metadata x-user");
    let refused = host.book_with("Ada", &["x-user=ada"]);
    assert_ne!(refused.code, 0, "{refused}");
    assert!(refused.err.contains("tollgate-route"), "{refused}");
    assert!(refused.err.contains("which it isn't granted"), "{refused}");
}

#[test]
fn a_foreign_module_moves_in_documents_once_it_is_described() {
    let host = Host::new("{}");
    let document = |module: &str| {
        let file = foreign_file(module);
        let policy =
            format!("[[policies]]\ntenant = \"acme\"\nname = \"guest\"\nmodule = {file:?}\n");
        host.bed.file("state.toml", policy).display().to_string()
    };
    // As its compiler made it, nothing says what it is shown.
    for (module, abi) in [("authz", "opa"), ("http_headers", "proxy-wasm")] {
        let refused = host
            .daemon
            .tollgate(["apply", "-f", &document(module), "--dry-run"]);
        assert_eq!(refused.code, 3, "{refused}");
        let words = [
            &*format!("{module}.wasm is a module for {abi} without a manifest"),
            "Try: tollgate policy push ",
        ];
        for words in words {
            assert!(refused.err.contains(words), "{words}: {refused}");
        }
    }
    // What an export writes has the description in the module.
    let data = "{\"blocked\": [\"Mallory\"]}";
    let description = "--methods hotel.Reservation/Reserve --fields customer_name";
    let entrypoint = "--entrypoint hotel/authz/decision";
    host.run("authz", data, &format!("{description} {entrypoint}"), "");
    let pushed = host.push("http_headers", "", NEEDS);
    assert_eq!(pushed.code, 0, "{pushed}");
    let out = host.bed.path("out").display().to_string();
    host.daemon.ok(&format!("export --out {out}"));
    let other = Host::caller("");
    let again = other.daemon.tollgate(["apply", "-f", &out]);
    assert_eq!(again.code, 0, "{again}");
    assert_eq!(other.daemon.ok("export"), host.daemon.ok("export"));
    // And it decides there.
    let proto = proto_file("hotel.proto").display().to_string();
    let serve = ["--token", &host.token, "--proto", &proto];
    let service = ["--service", "hotel.Reservation", "--reply", "{}"];
    let _server = other.daemon.serve(serve.iter().chain(&service));
    let other = Host {
        token: host.token.clone(),
        ..other
    };
    assert_eq!(other.book("Ada").code, 0);
    let mallory = other.book("Mallory");
    assert_eq!(mallory.code, 9, "{mallory}");
}

#[test]
fn a_filter_without_the_randomness_that_it_needs_is_refused_when_it_is_pushed() {
    let host = Host::new("{}");
    let refused = host.push("http_config", "", "--hooks reply");
    assert_ne!(refused.code, 0, "{refused}");
    assert!(refused.err.contains("failed in its set-up"), "{refused}");
}

#[test]
fn what_can_not_run_here_is_refused_when_it_is_pushed() {
    let host = Host::new("{}");
    let needy = host.push("needy", "{}", "");
    assert_ne!(needy.code, 0, "{needy}");
    assert!(needy.err.contains("http.send"), "{needy}");
    let garbled = host.push("authz", "[", "");
    assert!(garbled.err.contains("isn't JSON"), "{garbled}");
    let wrong = host.push("authz", "{}", "--body read");
    assert!(wrong.err.contains("has a body"), "{wrong}");
}
