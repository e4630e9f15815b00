//! Policies' modules: their origin, their compilation, and the limits of their instances.
//!
//! Invariant: no borrow outlives a method, so none is held across a wait.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tollgate_admin::proto::{PolicyProof, PushPolicyStep};
use tollgate_control::{Owner, PolicyVersion, Store, at_ceiling};
use tollgate_engine::Status;
use tollgate_policy_host::limits::ISOLATED_STALL;
use tollgate_policy_host::{Capabilities, Instance, Policy, Rate, TenantLimits};
use tollgate_provenance::TrustedKeys;
use tollgate_shm_abi::status::Code;

use crate::config::Config;
use crate::control::budget::Budget;
use crate::control::policies::compile::Compilation;
use crate::control::policies::model::{Loaded, Version};
use crate::control::policies::origin;
use crate::control::refusals::store_failed;
use crate::limits::{COMPILED_POLICIES, QUICK_SETUP};
use tollgate_policy_chain::ids::VersionNumber;
use tollgate_policy_chain::plan::{CpuLimit, Recipe};

/// Modules of all policies.
pub(in crate::control) struct Modules {
    /// Keys of trusted signers; empty: no signature is needed.
    trusted: TrustedKeys,
    compilation: Compilation,
    /// Recently used modules by digest, oldest first.
    compiled: RefCell<VecDeque<([u8; 32], Policy)>>,
    /// Seconds of compilation, by tenant.
    compiling: RefCell<HashMap<String, Budget>>,
    /// How fast this machine burns policies' fuel.
    rate: Rate,
}

impl Modules {
    pub(in crate::control) fn new(
        trusted: TrustedKeys,
        compilation: Compilation,
        rate: Rate,
    ) -> Modules {
        Modules {
            trusted,
            compilation,
            compiled: RefCell::default(),
            compiling: RefCell::default(),
            rate,
        }
    }

    /// Rejects a module that no trusted signer has signed.
    pub(in crate::control) fn check_origin(
        &self,
        module: &[u8],
        proof: Option<&PolicyProof>,
    ) -> Result<(), Status> {
        origin::check(&self.trusted, module, proof)
    }

    /// Compiles an owner's module, or finds the compiled one; returns the bytes, too. `per_hour`
    /// limits a tenant's seconds of compilation. `tell` is called when the module waits for a
    /// worker, and when one compiles it.
    pub(in crate::control) async fn load(
        &self,
        owner: &Owner,
        wasm: Vec<u8>,
        per_hour: Option<u32>,
        tell: impl Fn(PushPolicyStep),
    ) -> Result<(Policy, Vec<u8>), Status> {
        /// Larger modules are hashed on a blocking thread, where they are read, too. One of this
        /// size takes about 0.3 ms.
        const HASHED_HERE: usize = 256 << 10;
        let spends = owner.tenant().zip(per_hour);
        // What was used lately needn't be read again.
        if wasm.len() <= HASHED_HERE
            && let Some(policy) = self.compiled(&Sha256::digest(&wasm).into())
        {
            return Ok((policy, wasm));
        }
        // Asked before the wait for a worker, and after it.
        let may_compile = || spends.map_or(Ok(()), |spends| self.may_compile(spends));
        let line = owner.to_string();
        let made = self.compilation.load(&line, wasm, may_compile, tell);
        let (made, took) = made.await?;
        if let Some(spends) = spends
            && !took.is_zero()
        {
            self.compiled_for(spends, took);
        }
        let (policy, wasm) = made?;
        self.remember(*policy.digest(), policy.clone());
        Ok((policy, wasm))
    }

    /// Charges a tenant for a compilation.
    pub(in crate::control) fn compiled_for(&self, (tenant, per_hour): (&str, u32), took: Duration) {
        let now = Instant::now();
        let mut compiling = self.compiling.borrow_mut();
        compiling.retain(|_, budget| !budget.is_old(now));
        let budget = compiling.entry(tenant.to_owned());
        let budget = budget.or_insert_with(|| Budget::new(now));
        budget.spend(now, per_hour, took.as_secs_f64());
    }

    /// Refuses a compilation to a tenant that has used its hour's.
    pub(in crate::control) fn may_compile(
        &self,
        (tenant, per_hour): (&str, u32),
    ) -> Result<(), Status> {
        let spent = self.compile_s(tenant, per_hour);
        if spent < f64::from(per_hour) {
            return Ok(());
        }
        let has = format!("compilation has taken {spent:.0} s of the last hour");
        let text = at_ceiling(tenant, has, "compile_s_per_hour", per_hour);
        Err(Status::new(Code::RESOURCE_EXHAUSTED, text))
    }

    /// Seconds of compilation that count now.
    pub(in crate::control) fn compile_s(&self, tenant: &str, per_hour: u32) -> f64 {
        let compiling = self.compiling.borrow();
        let budget = compiling.get(tenant);
        budget.map_or(0.0, |budget| budget.spent(Instant::now(), per_hour))
    }

    /// A stored version, compiled. See [`Modules::load`] for `per_hour`.
    pub(in crate::control) async fn version(
        &self,
        store: &Store,
        owner: &Owner,
        name: &str,
        number: VersionNumber,
        per_hour: Option<u32>,
    ) -> Result<Version, Status> {
        let reference = PolicyVersion {
            name: name.to_owned(),
            version: number.0,
        };
        let stored = store.policy(owner, &reference);
        let stored = stored.map_err(|error| store_failed(&error))?;
        let policy = match self.compiled(&stored.digest) {
            Some(policy) => policy,
            None => self.load(owner, stored.wasm, per_hour, |_| {}).await?.0,
        };
        let config: Option<Arc<[u8]>> = stored.config.map(Arc::from);
        // The configuration was accepted when the version was pushed.
        let policy = policy.configured(config.as_deref());
        let loaded = policy.map(|policy| Loaded { policy, config });
        Ok(Version {
            number,
            loaded: loaded.map_err(|error| error.to_string()),
        })
    }

    /// A recently used compiled module.
    pub(in crate::control) fn compiled(&self, digest: &[u8; 32]) -> Option<Policy> {
        let compiled = self.compiled.borrow();
        let mut compiled = compiled.iter();
        let found = compiled.find(|(known, _)| known == digest);
        found.map(|(_, policy)| policy.clone())
    }

    fn remember(&self, digest: [u8; 32], policy: Policy) {
        if self.compiled(&digest).is_some() {
            return;
        }
        let mut compiled = self.compiled.borrow_mut();
        compiled.push_back((digest, policy));
        if compiled.len() > COMPILED_POLICIES {
            compiled.pop_front();
        }
    }

    /// Limits of CPU and memory for an instance.
    pub(in crate::control) fn limits_for(&self, config: &Config, cpu_us: u32) -> TenantLimits {
        let per_call = Duration::from_micros(cpu_us.into());
        TenantLimits {
            memory_bytes: config.policies.memory_kib as usize * 1024,
            ..TenantLimits::for_cpu(per_call, self.rate)
        }
    }

    /// The CPU limit of one call's evaluation.
    pub(in crate::control) fn cpu_limit(&self, config: &Config, cpu_us: u32) -> CpuLimit {
        let fuel_per_call = self.limits_for(config, cpu_us).fuel_per_call;
        CpuLimit {
            fuel_per_call,
            isolated_ns: self.isolated_ns(fuel_per_call),
        }
    }

    /// Time limit of a process for work that takes this much fuel.
    pub(super) fn isolated_ns(&self, fuel: u64) -> u64 {
        let time = self.rate.time(fuel).saturating_mul(ISOLATED_STALL);
        u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
    }

    /// An instance whose set-up takes at most [`QUICK_SETUP`], without a switch of threads. A
    /// set-up that takes longer is discarded, so this isn't tried if the set-up could leave
    /// something behind.
    pub(super) fn set_up_quickly(&self, recipe: &Recipe) -> Option<Instance> {
        let manifest = recipe.policy.manifest();
        let leaves_nothing = !manifest.capabilities().contains(Capabilities::STATE);
        let quick = TenantLimits::for_cpu(QUICK_SETUP, self.rate);
        let limits = TenantLimits {
            fuel_for_setup: quick.fuel_per_call.min(recipe.limits.fuel_for_setup),
            ..recipe.limits.clone()
        };
        let quick = Recipe {
            policy: recipe.policy.clone(),
            limits,
            config: recipe.config.clone(),
            granted: recipe.granted,
            state: None,
        };
        // The complete attempt reports a failure, and in more detail.
        let is_tried = leaves_nothing && !recipe.is_compat();
        is_tried.then(|| quick.instantiate().ok()).flatten()
    }

    /// Why compiled modules can't be kept in files, if they can't.
    pub(in crate::control) fn problem(&self) -> Option<&str> {
        self.compilation.compiler().problem()
    }

    /// The compiler's counters for `status`.
    pub(in crate::control) fn report(&self) -> Value {
        self.compilation.report()
    }

    /// Kills the compile workers; waiting modules fail.
    pub(in crate::control) fn stop(&self) {
        self.compilation.stop();
    }
}
