//! The modules: the catalogue's null and ACL, as they are attached in production, and one that
//! repeats a single operation.

use std::path::PathBuf;
use tollgate_policy_host::{Capabilities, Host, HostConfig, Instance, Policy, Setup, TenantLimits};

/// Names on the access list.
pub const BLOCKED: usize = 1_000;

/// The operations of the single-minded module, one for each call that it evaluates.
pub const DEEDS: [(&str, &str); 13] = [
    ("nothing", ""),
    (
        "log, 32 bytes",
        "(call $log (i32.const 3) (i32.const 64) (i32.const 32))",
    ),
    ("counter", "(call $counter (i32.const 0) (i64.const 1))"),
    ("gauge", "(call $gauge (i32.const 0) (i64.const 1))"),
    (
        "histogram",
        "(call $histogram (i32.const 0) (i64.const 1000))",
    ),
    ("now_ms", "(drop (call $now_ms))"),
    ("monotonic_us", "(drop (call $monotonic_us))"),
    (
        "random, 16 bytes",
        "(call $random (i32.const 128) (i32.const 16))",
    ),
    (
        "state_set, 8 bytes",
        "(drop (call $state_set (i32.const 0) (i32.const 8) (i32.const 64) (i32.const 8)))",
    ),
    (
        "state_get, 8 bytes",
        "(drop (call $state_get (i32.const 16) (i32.const 8) (i32.const 128) (i32.const 8)))",
    ),
    (
        "state_replace, 8 bytes by 8",
        "(drop (call $state_replace (i32.const 16) (i32.const 8) (i32.const 64) (i32.const 8) (i32.const 64) (i32.const 8)))",
    ),
    (
        "state_add",
        "(drop (call $state_add (i32.const 8) (i32.const 8) (i64.const 1)))",
    ),
    (
        "state_set and state_delete of a new key",
        "(drop (call $state_set (i32.const 24) (i32.const 8) (i32.const 64) (i32.const 8)))
         (drop (call $state_delete (i32.const 24) (i32.const 8)))",
    ),
];

/// An operation that ends the instance.
pub const TRAP: &str = "unreachable";

/// Bytes of state that the single-minded module hands over.
pub const SAVED: usize = 48 << 10;

/// The smallest module with the hooks to evaluate, tick, save and restore. It allows every call,
/// and does `deed` each time. It finds keys at 0, 8, 16 and 24; the third exists.
fn single_minded(deed: &str) -> String {
    let manifest = r#"{"abi":1,"name":"deed","hooks":["request","reply","tick"],"tick_ms":1000,"state":{"version":1},
        "methods":[{"method":"*"}],"capabilities":["state","clock","random"],
        "counters":["c"],"gauges":["g"],"histograms":["h"]}"#;
    format!(
        r#"(module
  (import "tollgate" "log" (func $log (param i32 i32 i32)))
  (import "tollgate" "counter" (func $counter (param i32 i64)))
  (import "tollgate" "gauge" (func $gauge (param i32 i64)))
  (import "tollgate" "histogram" (func $histogram (param i32 i64)))
  (import "tollgate" "now_ms" (func $now_ms (result i64)))
  (import "tollgate" "monotonic_us" (func $monotonic_us (result i64)))
  (import "tollgate" "random" (func $random (param i32 i32)))
  (import "tollgate" "state_set" (func $state_set (param i32 i32 i32 i32) (result i32)))
  (import "tollgate" "state_get" (func $state_get (param i32 i32 i32 i32) (result i32)))
  (import "tollgate" "state_replace" (func $state_replace (param i32 i32 i32 i32 i32 i32) (result i32)))
  (import "tollgate" "state_delete" (func $state_delete (param i32 i32) (result i32)))
  (import "tollgate" "state_add" (func $state_add (param i32 i32 i64) (result i64)))
  (memory (export "memory") 2)
  (data (i32.const 0) "the key.another.a third.a fourth")
  (data (i32.const 64) "a line of text of 32 bytes here.")
  (func (export "tollgate_abi_v1"))
  (func (export "tollgate_buffer") (param i32) (result i32) (i32.const 4096))
  (func (export "tollgate_configure") (param i32) (result i32)
    (drop (call $state_set (i32.const 16) (i32.const 8) (i32.const 64) (i32.const 8)))
    (i32.const 0))
  (func $judge (param $count i32) (result i32) (local $entry i32) (local $end i32)
    (local.set $entry (i32.const 4096))
    (local.set $end (i32.add (local.get $entry) (i32.mul (local.get $count) (i32.const 32))))
    (loop $next
      {deed}
      (i32.store offset=12 (local.get $entry) (i32.const 1))
      (local.set $entry (i32.add (local.get $entry) (i32.const 32)))
      (br_if $next (i32.lt_u (local.get $entry) (local.get $end))))
    (i32.const 0))
  (export "tollgate_request" (func $judge))
  (export "tollgate_reply" (func $judge))
  (func (export "tollgate_tick") (result i32) (i32.const 0))
  (func (export "tollgate_save") (result i64) (i64.const {saved}))
  (func (export "tollgate_restore") (param i32 i32) (result i32) (i32.const 0))
  (@custom "tollgate.manifest" {manifest:?}))"#,
        saved = 4096 + ((SAVED as u64) << 32),
    )
}

/// A host, and its loaded policies. Clones share both.
#[derive(Clone)]
pub struct Guests {
    /// The host.
    pub host: Host,
    /// `policies-wasm/null`.
    pub null: Policy,
    /// `policies-wasm/hotel-acl`.
    pub acl: Policy,
    limits: TenantLimits,
}

impl Guests {
    /// A host with room for this many instances.
    ///
    /// # Errors
    /// A module that isn't built, or isn't accepted.
    pub fn new(instances: u32) -> Result<Guests, String> {
        let host = Host::new(HostConfig {
            instances,
            ..HostConfig::default()
        });
        let host = host.map_err(|error| error.to_string())?;
        Ok(Guests {
            null: load(&host, "null")?,
            acl: load(&host, "hotel_acl")?,
            // A batch of such host calls needs more than a call's default.
            limits: TenantLimits {
                fuel_per_call: 35_000_000,
                ..TenantLimits::default()
            },
            host,
        })
    }

    /// The single-minded module.
    ///
    /// # Errors
    /// It isn't accepted.
    pub fn deed(&self, deed: &str) -> Result<Policy, String> {
        let wasm = wat::parse_str(single_minded(deed)).map_err(|error| error.to_string())?;
        self.host.load(&wasm).map_err(|error| error.to_string())
    }

    /// An instance with every capability and a state of its own.
    ///
    /// # Errors
    /// It can't be made.
    pub fn start(&self, policy: &Policy, config: Option<&[u8]>) -> Result<Instance, String> {
        let setup = Setup {
            config,
            granted: Capabilities::ALL,
            ..Setup::new(&self.limits)
        };
        policy
            .instantiate(&setup)
            .map_err(|error| error.to_string())
    }

    /// An instance that is made at first use.
    pub fn later(&self, policy: &Policy, config: Option<&str>) -> Later {
        Later {
            guests: self.clone(),
            policy: policy.clone(),
            config: config.map(str::to_owned),
            instance: None,
        }
    }
}

/// An instance that is made at first use, because each reserves 4 GiB of address space and valgrind
/// has 128 GiB for all.
pub struct Later {
    guests: Guests,
    policy: Policy,
    config: Option<String>,
    instance: Option<Instance>,
}

impl Later {
    /// The instance.
    ///
    /// # Panics
    /// It can't be made.
    pub fn get(&mut self) -> &mut Instance {
        let Later {
            guests,
            policy,
            config,
            instance,
        } = self;
        instance.get_or_insert_with(|| {
            let config = config.as_deref().map(str::as_bytes);
            let made = guests.start(policy, config);
            made.unwrap_or_else(|sentence| panic!("no instance can be made: {sentence}"))
        })
    }
}

/// The ACL's configuration: [`BLOCKED`] names, none of which is in the messages.
pub fn access_list() -> String {
    let names: Vec<String> = (0..BLOCKED).map(blocked).collect();
    serde_json::json!({ "blocked": names }).to_string()
}

/// A name on the list.
pub fn blocked(k: usize) -> String {
    format!("blocked customer {k:05}")
}

fn load(host: &Host, name: &str) -> Result<Policy, String> {
    let file = directory()?.join(format!("{name}.wasm"));
    let wasm = std::fs::read(&file).map_err(|error| {
        format!(
            "cannot read {}: {error}; build it: cargo build --profile policy --target wasm32-unknown-unknown -p policy-{}",
            file.display(),
            name.replace('_', "-")
        )
    })?;
    host.load(&wasm).map_err(|error| error.to_string())
}

/// The directory of the built policies: next to the profile's directory of this program.
fn directory() -> Result<PathBuf, String> {
    let program = std::env::current_exe().map_err(|e| format!("cannot find this program: {e}"))?;
    let mut target = program.ancestors().skip(2);
    let policies = |target: &std::path::Path| target.join("wasm32-unknown-unknown/policy");
    let found = target.find(|target| policies(target).is_dir());
    found
        .map(policies)
        .ok_or_else(|| format!("no policies are built beside {}", program.display()))
}
