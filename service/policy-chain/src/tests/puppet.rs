//! A policy that is scripted by its configuration, and a test rig for a runtime's policies.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use tollgate_engine::chain::{OnFault, Party, Trial};
use tollgate_engine::{CallKey, ChainId, Engine, ServiceId, Stage, Status};
use tollgate_jit::{Codec, Projector};
use tollgate_marshal::Patch;
use tollgate_policy_host::{
    Capabilities, Hook, Host, HostConfig, Instance, Policy, Rate, Setup, TenantLimits,
};
use tollgate_schema::{Layouts, MessageId};
use tollgate_shm_abi::wait::now_ns;

use super::layout_of;
use crate::accounts::Accounts;
use crate::counts::{PolicyReport, ReportedPlace};
use crate::evaluation::Evaluation;
use crate::events::PolicyEvent;
use crate::ids::{AccountId, AttachmentId, VersionNumber};
use crate::isolated::ProcessWatch;
use crate::message::{Body, Message, Pool};
use crate::parked::Position;
use crate::plan::{
    ChangeError, How, Installed, MethodSteps, Patcher, Place, PolicyChange, PolicyInput, Recipe,
    Running, Scope, Step,
};
use crate::policies::Policies;
use crate::slot::SavedState;
use crate::stopwatch::thread_ns;
use tollgate_jit::on_demand::{Compiler, LazyProjector, queue};

/// What a puppet does with each call; the second byte of its configuration is `k`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    Allow = 0,
    /// With status `k`.
    Deny = 1,
    /// `n` becomes `n * 31 + k`.
    Change = 2,
    Trap = 3,
    Loop = 4,
    /// It sets a string field to a number.
    BadChange = 5,
    /// `text` becomes 100 times the byte `k`.
    Write = 6,
    /// It denies with the number of calls that this instance has evaluated, 1 to 16 and again from
    /// 1.
    Count = 7,
    /// It uses most of its CPU limit.
    Burn = 8,
    /// It delays the call by `k` ms.
    Delay = 9,
}

const WAT: &str = r#"(module
  (memory (export "memory") 4)
  (func (export "tollgate_abi_v1"))
  (func (export "tollgate_buffer") (param i32) (result i32)
    (if (i32.gt_u (local.get 0) (i32.const 250000)) (then unreachable))
    (i32.const 4096))
  (func (export "tollgate_configure") (param i32) (result i32)
    (i32.store8 (i32.const 16) (i32.load8_u (i32.const 4096)))
    (i32.store8 (i32.const 17) (i32.load8_u (i32.const 4097)))
    (memory.fill (i32.const 2048) (i32.load8_u (i32.const 17)) (i32.const 100))
    (i32.const 0))
  (func $effect (param $entry i32) (param $i i32) (param $kind i32) (param $field i32) (param $value i64)
    (local $record i32)
    (local.set $record (i32.add (i32.const 1024) (i32.mul (local.get $i) (i32.const 16))))
    (i32.store (local.get $record) (local.get $kind))
    (i32.store offset=4 (local.get $record) (local.get $field))
    (i64.store offset=8 (local.get $record) (local.get $value))
    (i32.store offset=12 (local.get $entry) (i32.const 3))
    (i32.store offset=20 (local.get $entry) (local.get $record))
    (i32.store offset=24 (local.get $entry) (i32.const 16)))
  (func $evaluate (param $count i32) (result i32)
    (local $entry i32) (local $i i32) (local $n i64) (local $act i32) (local $k i32)
    (local.set $act (i32.load8_u (i32.const 16)))
    (local.set $k (i32.load8_u (i32.const 17)))
    (local.set $entry (i32.const 4096))
    (block $done (loop $next
      (br_if $done (i32.ge_u (local.get $i) (local.get $count)))
      (local.set $n (i64.load offset=16 (i32.add (i32.const 4096) (i32.load (local.get $entry)))))
      (i64.store (i32.const 24) (i64.add (i64.load (i32.const 24)) (i64.const 1)))
      (if (i32.eq (local.get $act) (i32.const 0))
        (then (i32.store offset=12 (local.get $entry) (i32.const 1))))
      (if (i32.eq (local.get $act) (i32.const 1))
        (then (i32.store offset=12 (local.get $entry) (i32.const 2))
              (i32.store offset=16 (local.get $entry) (local.get $k))))
      (if (i32.eq (local.get $act) (i32.const 2))
        (then (call $effect (local.get $entry) (local.get $i) (i32.const 2) (i32.const 0)
          (i64.add (i64.mul (local.get $n) (i64.const 31)) (i64.extend_i32_u (local.get $k))))))
      (if (i32.eq (local.get $act) (i32.const 3)) (then unreachable))
      (if (i32.eq (local.get $act) (i32.const 4)) (then (loop $ever (br $ever))))
      (if (i32.eq (local.get $act) (i32.const 5))
        (then (call $effect (local.get $entry) (local.get $i) (i32.const 2) (i32.const 1) (i64.const 1))))
      (if (i32.eq (local.get $act) (i32.const 6))
        (then (call $effect (local.get $entry) (local.get $i) (i32.const 3) (i32.const 1)
          (i64.or (i64.const 2048) (i64.shl (i64.const 100) (i64.const 32))))))
      (if (i32.eq (local.get $act) (i32.const 7))
        (then (i32.store offset=12 (local.get $entry) (i32.const 2))
              (i64.store32 offset=16 (local.get $entry) (i64.add (i64.const 1) (i64.and (i64.const 15)
                (i64.sub (i64.load (i32.const 24)) (i64.const 1)))))))
      (if (i32.eq (local.get $act) (i32.const 9))
        (then (call $effect (local.get $entry) (local.get $i) (i32.const 6) (i32.const 0)
          (i64.mul (i64.extend_i32_u (local.get $k)) (i64.const 1000)))))
      (if (i32.eq (local.get $act) (i32.const 8))
        (then (local.set $n (i64.const 30000))
              (loop $work (br_if $work (i64.ne (i64.const 0)
                (local.tee $n (i64.sub (local.get $n) (i64.const 1))))))
              (i32.store offset=12 (local.get $entry) (i32.const 1))))
      (local.set $entry (i32.add (local.get $entry) (i32.const 32)))
      (local.set $i (i32.add (local.get $i) (i32.const 1)))
      (br $next)))
    (i32.const 0))
  (export "tollgate_request" (func $evaluate))
  (export "tollgate_reply" (func $evaluate))
  (func (export "tollgate_tick") (result i32)
    (i64.store (i32.const 32) (i64.add (i64.load (i32.const 32)) (i64.const 1)))
    (i32.load8_u (i32.const 17)))
  (func (export "tollgate_save") (result i64)
    (if (i32.eq (i32.load8_u (i32.const 17)) (i32.const 99)) (then unreachable))
    (if (i32.eq (i32.load8_u (i32.const 17)) (i32.const 97))
      (then (return (i64.shl (i64.const 262144) (i64.const 32)))))
    (i64.or (i64.const 24) (i64.shl (i64.const 8) (i64.const 32))))
  (func (export "tollgate_restore") (param $version i32) (param $len i32) (result i32)
    (i64.store (i32.const 24) (i64.load (i32.const 4096)))
    (i32.eq (i32.load8_u (i32.const 17)) (i32.const 98)))
  (@custom "tollgate.manifest" MANIFEST)
)"#;

fn manifest(extra: &str) -> String {
    format!(
        r#"{{"abi":1,"name":"puppet","capabilities":["change","delay"],{extra}
        "methods":[{{"method":"t.S/M","fields":["n","text"],"changes":["n","text"],
        "reply_fields":["n","text"],"reply_changes":["n","text"]}}]}}"#
    )
}

fn load(manifest: &str) -> Policy {
    let text = WAT.replace("MANIFEST", &format!("{manifest:?}"));
    HOST.load(&wat::parse_str(text).unwrap()).unwrap()
}

static HOST: LazyLock<Host> = LazyLock::new(|| Host::new(HostConfig::default()).unwrap());

static PUPPET: LazyLock<Policy> = LazyLock::new(|| {
    load(&manifest(
        r#""hooks":["request","reply"],"state":{"version":1},"#,
    ))
});

static TICKING: LazyLock<Policy> =
    LazyLock::new(|| load(&manifest(r#""hooks":["request","tick"],"tick_ms":100,"#)));

static STATELESS: LazyLock<Policy> =
    LazyLock::new(|| load(&manifest(r#""hooks":["request","reply"],"#)));

static STATELESS_REPLIES: LazyLock<Policy> = LazyLock::new(|| {
    load(&manifest(
        r#""hooks":["request","reply"],"state":{"version":1,"stateless_replies":true},"#,
    ))
});

/// The limits of every puppet: its memory is small.
pub(super) fn limits() -> TenantLimits {
    TenantLimits {
        memory_bytes: 256 << 10,
        ..TenantLimits::default()
    }
}

fn instance_of(policy: &Policy, act: Act, k: u8) -> Box<Instance> {
    instance_within(&limits(), policy, act, k)
}

fn instance_within(limits: &TenantLimits, policy: &Policy, act: Act, k: u8) -> Box<Instance> {
    let setup = Setup {
        config: Some(&[act as u8, k]),
        granted: Capabilities::ALL,
        ..Setup::new(limits)
    };
    Box::new(policy.instantiate(&setup).unwrap())
}

/// A puppet whose save faults.
pub(super) const CANT_SAVE: u8 = 99;
/// A puppet that restores nothing.
pub(super) const CANT_RESTORE: u8 = 98;
/// A puppet that saves all of its memory.
pub(super) const SAVES_ALL: u8 = 97;

pub(super) fn kept(act: Act, k: u8) -> How {
    How::Kept(instance_of(&PUPPET, act, k))
}

/// A puppet without state to hand over.
pub(super) fn stateless(act: Act, k: u8) -> How {
    How::Kept(instance_of(&STATELESS, act, k))
}

/// A puppet whose evaluation of replies doesn't change its state.
pub(super) fn stateless_replies(act: Act, k: u8) -> How {
    How::Kept(instance_of(&STATELESS_REPLIES, act, k))
}

/// A puppet with this much fuel per call.
pub(super) fn with_fuel(act: Act, fuel_per_call: u64) -> How {
    let limits = TenantLimits {
        fuel_per_call,
        ..limits()
    };
    How::Kept(instance_within(&limits, &PUPPET, act, 0))
}

/// It ticks every 100 ms; its tick fails unless `k` is 0.
pub(super) fn ticking(k: u8) -> How {
    How::Kept(instance_of(&TICKING, Act::Allow, k))
}

pub(super) fn fresh(act: Act, k: u8) -> How {
    How::Fresh(Box::new(Recipe {
        policy: PUPPET.clone(),
        limits: limits(),
        config: Some(Arc::new([act as u8, k])),
        granted: Capabilities::ALL,
        state: None,
    }))
}

pub(super) fn put(version: u32, how: How) -> Place {
    Place::Put(Running {
        version: VersionNumber(version),
        how,
        inherit: false,
    })
}

pub(super) fn successor(version: u32, how: How) -> Place {
    Place::Put(Running {
        version: VersionNumber(version),
        how,
        inherit: true,
    })
}

/// An attachment of tenant `t` with empty places.
pub(super) fn installed(id: u32) -> Installed {
    Installed {
        id: AttachmentId(id),
        label: format!("p{id} of tenant t"),
        party: Party::Tenant,
        account: "t".into(),
        on_fault: OnFault::Reload,
        max_worse: 5,
        stable: Place::Keep,
        candidate: Place::Keep,
        trial: None,
        record: 0,
    }
}

/// One method whose request and reply are `{ uint64 n = 1; string text = 2; }`.
pub(super) struct World {
    layouts: Arc<Layouts>,
    root: MessageId,
    codec: Codec,
    compiler: Compiler,
}

impl World {
    fn new() -> Self {
        let (layouts, root) = layout_of("uint64 n = 1; string text = 2;");
        let codec = Codec::new(&layouts, root);
        Self {
            layouts,
            root,
            codec,
            compiler: queue(1).0,
        }
    }

    pub(super) fn message(&self, n: u64, text: &str) -> Message {
        let mut protobuf = vec![8];
        let mut rest = n;
        while rest >= 128 {
            protobuf.push(rest as u8 | 128);
            rest >>= 7;
        }
        protobuf.extend([rest as u8, 18, text.len() as u8]);
        protobuf.extend(text.as_bytes());
        let mut image = Vec::new();
        self.codec.decode(&protobuf, &mut image).unwrap();
        let inline_len = image.len() as u32;
        Message::accepted(image, inline_len)
    }

    /// The decoded bytes of the message as it is sent.
    pub(super) fn read(&self, message: &mut Message) -> (u64, String) {
        let Body::Private {
            bytes, accepted, ..
        } = &mut message.body
        else {
            panic!("every message here is private");
        };
        if !*accepted {
            let inline_len = message.inline_len as usize;
            self.codec.accept(bytes, inline_len).unwrap();
            *accepted = true;
        }
        let mut view = vec![0; 64 << 10];
        let projector = Projector::new(&self.layouts, self.root, &["n", "text"]).unwrap();
        let len = projector.project(bytes, &[], &mut view).unwrap();
        read_view(&view[..len])
    }

    /// The puppet's input, with these of its fields granted.
    pub(super) fn input(&self, granted: [bool; 2]) -> PolicyInput {
        let fields = [("n", granted[0]), ("text", granted[1])];
        let projector = Projector::new_granted(&self.layouts, self.root, &fields).unwrap();
        let label = "what a puppet reads".to_owned();
        let patch = Patch::new(&self.layouts, self.root, &["n", "text"]).unwrap();
        PolicyInput {
            version: VersionNumber(0),
            method: 0,
            projector: Arc::new(LazyProjector::new(projector, label, &self.compiler)),
            shown: Arc::default(),
            patch: Some(Arc::new(Patcher {
                patch,
                keys: Vec::new(),
                layouts: Arc::clone(&self.layouts),
            })),
            compat: None,
        }
    }
}

/// The values of `n` and `text` in a view.
pub(super) fn read_view(view: &[u8]) -> (u64, String) {
    let u64_at = |at: usize| u64::from_le_bytes(view[at..at + 8].try_into().unwrap());
    let u32_at = |at: usize| u32::from_le_bytes(view[at..at + 4].try_into().unwrap()) as usize;
    let text = &view[u64_at(32) as usize..][..u32_at(28)];
    (u64_at(16), String::from_utf8(text.to_vec()).unwrap())
}

/// A runtime's policies, and what their evaluation needs.
pub(super) struct Rig {
    pub(super) world: World,
    pub(super) policies: Policies,
    engine: Engine<Box<Message>>,
    service: Option<ServiceId>,
    pool: Pool,
    /// CPU time of evaluations by the thread's clock, in ns.
    pub(super) core_ns: u64,
    /// Outcomes of posted calls, by key.
    pub(super) fates: HashMap<u64, Fate>,
    /// The policy epoch in which the requests of the evaluated replies were evaluated.
    pub(super) evaluated_in: u32,
    /// Requests that were evaluated in no single policy epoch.
    pub(super) split: Vec<u64>,
}

/// The outcome of a call.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Passed(u64, String),
    Denied(u32, String),
}

/// The code that a call was denied with.
pub(super) fn code(fate: &Fate) -> Option<u32> {
    match fate {
        Fate::Denied(code, _) => Some(*code),
        Fate::Passed(..) => None,
    }
}

impl Rig {
    pub(super) fn new() -> Self {
        Self::with_share(100)
    }

    pub(super) fn with_share(percent: u8) -> Self {
        Self {
            world: World::new(),
            policies: Policies::new(percent, Rate::default()),
            engine: Engine::new(),
            service: None,
            pool: Pool::new(),
            core_ns: 0,
            fates: HashMap::new(),
            evaluated_in: 0,
            split: Vec::new(),
        }
    }

    pub(super) fn apply(&mut self, install: Vec<Installed>) -> Result<(), ChangeError> {
        let change = PolicyChange {
            install,
            ..Default::default()
        };
        self.change(change)
    }

    /// Applies any change, for tenant `t`.
    pub(super) fn change(&mut self, change: PolicyChange) -> Result<(), ChangeError> {
        self.policies
            .apply(change, &mut self.engine, |_| "t".into())
    }

    /// The states for another process.
    pub(super) fn save(&mut self) -> Vec<SavedState> {
        self.policies.save()
    }

    pub(super) fn remove(&mut self, remove: Vec<u32>) {
        let change = PolicyChange {
            remove: remove.into_iter().map(AttachmentId).collect(),
            ..Default::default()
        };
        self.policies
            .apply(change, &mut self.engine, |_| "t".into())
            .unwrap();
    }

    /// A chain of these attachments, each of which covers the method in both versions.
    pub(super) fn chain(&mut self, ids: &[u32]) -> ChainId {
        let input = self.world.input([true, true]);
        let step = |&policy: &u32| {
            Step::new(
                AttachmentId(policy),
                Some(input.clone()),
                Some(input.clone()),
            )
        };
        self.chain_of(ids.iter().map(step).collect())
    }

    /// The same for calls of another tenant.
    pub(super) fn chain_of_other(&mut self, ids: &[u32]) -> ChainId {
        let input = self.world.input([true, true]);
        let step = |&policy: &u32| Step::new(AttachmentId(policy), Some(input.clone()), None);
        self.chain_for("other", ids.iter().map(step).collect())
    }

    /// The same for calls of tenant `t`.
    pub(super) fn chain_of(&mut self, request: Vec<Step>) -> ChainId {
        self.chain_for("t", request)
    }

    pub(super) fn chain_for(&mut self, tenant: &str, request: Vec<Step>) -> ChainId {
        let steps = MethodSteps {
            request,
            reply: Vec::new(),
        };
        self.policies
            .check_order([&steps].into_iter(), &[])
            .unwrap();
        let made = self.policies.make_chains(&tenant.into(), vec![steps]);
        made.unwrap()[0].request.unwrap()
    }

    /// The steps of a method that tenant `t` serves, and their scope.
    pub(super) fn served(&mut self, ids: &[u32]) -> (Scope, MethodSteps) {
        let service = *self
            .service
            .get_or_insert_with(|| self.engine.add_service("t.S", 1));
        let input = self.world.input([true, true]);
        let step = |&policy: &u32| Step::new(AttachmentId(policy), Some(input.clone()), None);
        let request = ids.iter().map(step).collect();
        let steps = MethodSteps {
            request,
            reply: Vec::new(),
        };
        (Scope::Server { service, method: 0 }, steps)
    }

    /// Puts a chain in force, or replaces it.
    pub(super) fn put_chain(&mut self, scope: &Scope, steps: MethodSteps) -> Option<ChainId> {
        let change = PolicyChange {
            chains: vec![(scope.clone(), steps)],
            ..Default::default()
        };
        self.policies
            .apply(change, &mut self.engine, |_| "t".into())
            .unwrap();
        let Scope::Server { service, method } = *scope else {
            panic!("a service's chain");
        };
        self.engine
            .service_chains_mut(service, method)
            .unwrap()
            .request
    }

    /// The current policy epoch.
    pub(super) fn policy_epoch(&self) -> u32 {
        self.engine.policy_epoch()
    }

    pub(super) fn reply_chain(&mut self, scope: &Scope) -> Option<ChainId> {
        let Scope::Server { service, method } = *scope else {
            panic!("a service's chain");
        };
        let chains = self.engine.service_chains_mut(service, method);
        chains.unwrap().reply
    }

    /// The account of tenant `t`.
    pub(super) fn account() -> AccountId {
        Accounts::new(1).of(&"t".into(), 0).unwrap()
    }

    pub(super) fn drop_chain(&mut self, chain: ChainId) {
        self.policies.drop_chains(tollgate_engine::MethodChains {
            request: Some(chain),
            reply: None,
        });
    }

    /// Evaluates calls with these keys and contents together, and waits for those that stop.
    pub(super) fn evaluate(
        &mut self,
        chain: ChainId,
        hook: Hook,
        calls: &[(u64, u64)],
    ) -> Vec<Fate> {
        self.post(chain, hook, calls);
        self.finish();
        let mut fates = std::mem::take(&mut self.fates);
        let fate = |(key, _): &(u64, u64)| fates.remove(key).expect("every call has a fate");
        calls.iter().map(fate).collect()
    }

    /// Evaluates calls with these keys and contents together, as far as they get now.
    pub(super) fn post(&mut self, chain: ChainId, hook: Hook, calls: &[(u64, u64)]) {
        let stage = match hook {
            Hook::Request => Stage::ClientRequest,
            Hook::Reply => Stage::ServerReply,
        };
        let position = Position {
            stage,
            chain: Some(chain),
            step: 0,
        };
        let evaluation = |&(key, n): &(u64, u64)| {
            let message = self.world.message(n, "as it was");
            Evaluation {
                evaluated_in: self.evaluated_in,
                ..Evaluation::new(CallKey::from_wire(key), Box::new(message))
            }
        };
        let evaluations = calls.iter().map(evaluation).collect();
        if self.policies.must_wait(chain) {
            return self.settle(position, evaluations, true);
        }
        self.input(position, false, evaluations);
    }

    fn input(&mut self, position: Position, is_resumed: bool, mut evaluations: Vec<Evaluation>) {
        let pool = &mut self.pool;
        // Reading the clock takes time as well, which no account pays for.
        let (first_ns, before_ns) = (thread_ns(), thread_ns());
        self.policies
            .evaluate(position, is_resumed, &mut evaluations, pool);
        let looking_ns = before_ns - first_ns;
        self.core_ns += (thread_ns() - before_ns).saturating_sub(looking_ns);
        let stopped = evaluations.partition_point(|evaluation| evaluation.stop.is_none());
        let mut stopped = evaluations.split_off(stopped);
        stopped.reverse();
        self.settle(position, stopped, true);
        self.settle(position, evaluations, false);
    }

    fn settle(&mut self, position: Position, evaluations: Vec<Evaluation>, stops: bool) {
        for mut evaluation in evaluations {
            if stops {
                let stop = evaluation.stop.take();
                match self.policies.park(position, stop, evaluation, now_ns()) {
                    Ok(()) => continue,
                    Err((refused, status)) => {
                        evaluation = refused;
                        evaluation.deny(status);
                    }
                }
            }
            self.end(evaluation);
        }
    }

    fn end(&mut self, mut evaluation: Evaluation) {
        if evaluation.is_split {
            self.split.push(evaluation.call.to_wire());
        }
        let fate = match evaluation.denied.map(|status| *status) {
            Some(Status { code, message, .. }) => Fate::Denied(code.0, message.into_owned()),
            None => {
                let (n, text) = self.world.read(&mut evaluation.message);
                Fate::Passed(n, text)
            }
        };
        let twice = self.fates.insert(evaluation.call.to_wire(), fate);
        assert!(twice.is_none(), "a call ended twice");
    }

    /// Continues the calls that are due.
    pub(super) fn go_on(&mut self, now_ns: u64) {
        let mut evaluations = Vec::new();
        self.policies.wake(now_ns, &mut evaluations);
        evaluations
            .drain(..)
            .for_each(|evaluation| self.end(evaluation));
        while let Some(position) = self.policies.next_parked(&mut evaluations) {
            self.input(position, true, std::mem::take(&mut evaluations));
        }
    }

    /// Waits until no call is parked.
    pub(super) fn finish(&mut self) {
        while self.policies.parked() > 0 {
            self.go_on(now_ns());
            let due_ns = self.policies.next_due_ns().unwrap_or(0);
            let pause_ns = due_ns.saturating_sub(now_ns());
            std::thread::sleep(std::time::Duration::from_nanos(pause_ns));
        }
    }

    /// Moves tenant `t` to another runtime, with these attachments and chains. Returns the chains'
    /// new ids.
    pub(super) fn go_to(
        &mut self,
        there: &mut Rig,
        attachments: &[u32],
        chains: &[ChainId],
        same: &HashMap<u32, u32>,
    ) -> Result<HashMap<ChainId, ChainId>, String> {
        let tenant: Arc<str> = "t".into();
        let attachments: Vec<_> = attachments.iter().copied().map(AttachmentId).collect();
        let same = same
            .iter()
            .map(|(&here, &there)| (AttachmentId(here), AttachmentId(there)));
        let same: HashMap<_, _> = same.collect();
        let moving = self
            .policies
            .part(&tenant, &attachments, chains.iter().copied());
        if let Some(refusal) = there.policies.refusal_of(&tenant, &moving) {
            return Err(refusal);
        }
        let epoll = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC);
        let epoll = Arc::new(epoll.unwrap());
        let watch = ProcessWatch {
            epoll: &epoll,
            token: |_| 0,
        };
        let policies = &mut there.policies;
        Ok(policies.absorb(&tenant, moving, &same, &watch, now_ns()))
    }

    /// Evaluates one request.
    pub(super) fn evaluate_one(&mut self, chain: ChainId, key: u64) -> Fate {
        self.evaluate(chain, Hook::Request, &[(key, 1)]).remove(0)
    }

    pub(super) fn tend(&mut self, now_ns: u64) {
        self.policies.tend(now_ns, &self.engine);
    }

    pub(super) fn events(&mut self) -> Vec<PolicyEvent> {
        self.policies.take_events()
    }

    /// The whole memory of an attachment's stable version, which is a puppet that [`SAVES_ALL`].
    pub(super) fn memory(&mut self, id: u32) -> Vec<u8> {
        let instance = self.policies.instance_of(AttachmentId(id)).unwrap();
        instance.save().unwrap().unwrap()
    }

    /// The counts of an attachment's version.
    pub(super) fn report(&self, id: u32, place: ReportedPlace) -> Option<PolicyReport> {
        let mut reports = self.policies.report().into_iter();
        reports.rfind(|report| report.id == AttachmentId(id) && report.place == place)
    }
}

/// A trial that decides every call.
pub(super) const ALL: Option<Trial> = Some(Trial::Canary(100));
