//! A filter's life cycle, and an evaluation from its first callback to its last.
//!
//! ```text
//!   instantiate ─▶ _initialize [main] | _start ─▶ context_create(1, 0) ─▶ vm_start ─▶ configure ─▶ alive
//!
//!   request   context_create(n, 1) ─▶ request_headers ─▶ [request_body] ─▶ verdict
//!   reply     response_headers ─▶ [response_body] ─▶ verdict ─▶ done ─▶ log ─▶ delete
//! ```
//!
//! Invariants:
//!
//! - A call has one context from its request to its reply, if both are evaluated here. Contexts
//!   without a reply are ended, the oldest first, when there are [`limits::OPEN_CALLS`] of them. A
//!   denied call's context ends at once.
//! - All callbacks of an evaluation share its budget.
//! - Without access to the body, a filter is shown the headers as the end of the stream.

use std::ops::ControlFlow;
use std::time::Duration;

use wasmtime::{InstancePre, Store, TypedFunc};

use super::body::{frame, unframe};
use super::headers::Headers;
use super::metrics::MeasuredMetric;
use super::properties::Properties;
use super::state::{Proxy, ROOT, Stream};
use crate::budget::{Budget, start_error, store};
use crate::compat::Body;
use crate::compat::setup::{configuration, limiter, optional};
use crate::log::Log;
use crate::{
    CompatCall, CompatChange, CompatVerdict, Fault, Hook, LoadError, LogLine, Policy, Setup,
    SharedState, Shown, StateLimits, cost, limits,
};

/// A filter with its own memory.
pub(crate) struct Filter {
    store: Store<Proxy>,
    exports: Exports,
    policy: Policy,
    fuel_per_call: u64,
    budget: Budget,
    next_context: u32,
    dead: bool,
}

impl std::fmt::Debug for Filter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Filter")
            .field("policy", &self.policy.manifest().name())
            .field("dead", &self.dead)
            .finish_non_exhaustive()
    }
}

/// All callbacks that a filter may have.
#[derive(Default)]
struct Exports {
    context_create: Option<TypedFunc<(u32, u32), ()>>,
    vm_start: Option<TypedFunc<(u32, u32), u32>>,
    configure: Option<TypedFunc<(u32, u32), u32>>,
    request_headers: Option<TypedFunc<(u32, u32, u32), u32>>,
    request_body: Option<TypedFunc<(u32, u32, u32), u32>>,
    response_headers: Option<TypedFunc<(u32, u32, u32), u32>>,
    response_body: Option<TypedFunc<(u32, u32, u32), u32>>,
    done: Option<TypedFunc<u32, u32>>,
    log: Option<TypedFunc<u32, ()>>,
    delete: Option<TypedFunc<u32, ()>>,
    tick: Option<TypedFunc<u32, ()>>,
    queue_ready: Option<TypedFunc<(u32, u32), ()>>,
}

impl Exports {
    fn of(instance: &wasmtime::Instance, store: &mut Store<Proxy>) -> Result<Exports, LoadError> {
        Ok(Exports {
            context_create: optional(instance, store, "proxy_on_context_create")?,
            vm_start: optional(instance, store, "proxy_on_vm_start")?,
            configure: optional(instance, store, "proxy_on_configure")?,
            request_headers: optional(instance, store, "proxy_on_request_headers")?,
            request_body: optional(instance, store, "proxy_on_request_body")?,
            response_headers: optional(instance, store, "proxy_on_response_headers")?,
            response_body: optional(instance, store, "proxy_on_response_body")?,
            done: optional(instance, store, "proxy_on_done")?,
            log: optional(instance, store, "proxy_on_log")?,
            delete: optional(instance, store, "proxy_on_delete")?,
            tick: optional(instance, store, "proxy_on_tick")?,
            queue_ready: optional(instance, store, "proxy_on_queue_ready")?,
        })
    }
}

/// The set-up.
impl Filter {
    pub(crate) fn new(
        policy: &Policy,
        pre: &InstancePre<Proxy>,
        setup: &Setup<'_>,
    ) -> Result<Filter, LoadError> {
        let config = configuration(setup)?;
        let limits = setup.limits;
        let (mut store, budget) = store(
            pre.module().engine(),
            state(policy, setup, config),
            |state| &mut state.limiter,
            limits.fuel_for_setup,
        );
        let instance = pre
            .instantiate(&mut store)
            .map_err(|error| start_error(&error, limits.fuel_for_setup))?;
        let memory = instance.get_memory(&mut store, "memory");
        store.data_mut().memory = Some(memory.ok_or_else(|| LoadError::CompatExport {
            name: "memory",
            found: "missing".to_owned(),
        })?);
        let allocate = optional(&instance, &mut store, "proxy_on_memory_allocate")?;
        store.data_mut().allocate = match allocate {
            Some(allocate) => Some(allocate),
            None => optional(&instance, &mut store, "malloc")?,
        };
        let exports = Exports::of(&instance, &mut store)?;
        let mut filter = Filter {
            exports,
            store,
            policy: policy.clone(),
            fuel_per_call: limits.fuel_per_call,
            budget,
            next_context: ROOT,
            dead: false,
        };
        filter.start(&instance)?;
        filter.configure(config.len() as u32)?;
        Ok(filter)
    }

    fn start(&mut self, instance: &wasmtime::Instance) -> Result<(), LoadError> {
        let store = &mut self.store;
        let initialize: Option<TypedFunc<(), ()>> = optional(instance, store, "_initialize")?;
        let failed = |fault| LoadError::Setup {
            step: "start",
            fault,
        };
        let Some(initialize) = initialize else {
            let start: Option<TypedFunc<(), ()>> = optional(instance, store, "_start")?;
            return self.callback(start, ()).map_err(failed).map(drop);
        };
        let main: Option<TypedFunc<(u32, u32), u32>> = optional(instance, store, "main")?;
        self.callback(Some(initialize), ()).map_err(failed)?;
        self.callback(main, (0, 0)).map_err(failed).map(drop)
    }

    fn configure(&mut self, config_len: u32) -> Result<(), LoadError> {
        let failed = |step| move |fault| LoadError::Setup { step, fault };
        let (create, vm_start, configure) = (
            self.exports.context_create.clone(),
            self.exports.vm_start.clone(),
            self.exports.configure.clone(),
        );
        let context = self.new_context();
        self.callback(create, (context, 0))
            .map_err(failed("context_create"))?;
        let started = self
            .callback(vm_start, (ROOT, 0))
            .map_err(failed("vm_start"))?;
        let configured = match started {
            Some(0) => Some(0),
            _ => self
                .callback(configure, (ROOT, config_len))
                .map_err(failed("configure"))?,
        };
        if configured != Some(0) {
            return Ok(());
        }
        let state = self.store.data();
        let last = state.log.last().map(|line| line.text.clone());
        Err(LoadError::ConfigRefused(
            last.unwrap_or_else(|| "it gave no reason".to_owned()),
        ))
    }
}

/// Evaluating.
impl Filter {
    pub(crate) fn evaluate(&mut self, call: &CompatCall<'_>) -> Result<CompatVerdict, Fault> {
        self.begin()?;
        let shown: usize = call
            .metadata
            .iter()
            .map(|(key, value)| key.len() + value.len())
            .sum();
        // The host's work before and after the callbacks: two copies, and a comparison.
        self.charge(cost::COMPAT_CALL + 4 * shown as u64 + 2 * call.message.len() as u64)?;
        let mut stream = self.stream_of(call)?;
        stream.paused = false;
        stream.hook = call.hook;
        match call.hook {
            Hook::Request => stream.request = Headers::of(call),
            Hook::Reply => stream.reply = Headers::of(call),
        }
        let body = match call.message {
            Shown::Protobuf(message) => Some(frame(message)),
            Shown::Nothing | Shown::Json(_) => None,
        };
        self.store.data_mut().stream = Some(stream);
        let _enough = self.show(call.hook, body)?;
        self.tell_queues()?;
        let stream = self.store.data_mut().stream.take();
        let Some(mut stream) = stream else {
            return Err(self.kill(Fault::BadAnswer("the call is lost".to_owned())));
        };
        let verdict = self
            .verdict(&mut stream)
            .map_err(|fault| self.kill(fault))?;
        stream.body = None;
        let waits = call.hook == Hook::Request
            && !matches!(verdict, CompatVerdict::Deny { .. })
            && self.policy.manifest().hooks().contains(&Hook::Reply);
        match waits {
            true => self.store.data_mut().open.push_back(stream),
            false => self.end(stream)?,
        }
        Ok(verdict)
    }

    /// Headers first, then the body; stops when the filter has answered itself.
    fn show(&mut self, hook: Hook, body: Option<Vec<u8>>) -> Result<ControlFlow<()>, Fault> {
        let (on_headers, on_body) = match hook {
            Hook::Request => (&self.exports.request_headers, &self.exports.request_body),
            Hook::Reply => (&self.exports.response_headers, &self.exports.response_body),
        };
        let (on_headers, on_body) = (on_headers.clone(), on_body.clone());
        let (context, count) = match &mut self.store.data_mut().stream {
            Some(stream) => (stream.context, stream.headers().pairs().len() as u32),
            None => return Ok(ControlFlow::Break(())),
        };
        let last = u32::from(body.is_none());
        if self.step(on_headers, context, count, last)?.is_break() {
            return Ok(ControlFlow::Break(()));
        }
        let Some(body) = body else {
            return Ok(ControlFlow::Continue(()));
        };
        let len = body.len() as u32;
        if let Some(stream) = &mut self.store.data_mut().stream {
            stream.body = Some(body);
        }
        self.step(on_body, context, len, 1)
    }

    /// A callback that returns whether the call continues. Its arguments are the number of headers
    /// or bytes, and 1 if no more follow.
    fn step(
        &mut self,
        function: Option<TypedFunc<(u32, u32, u32), u32>>,
        context: u32,
        size: u32,
        last: u32,
    ) -> Result<ControlFlow<()>, Fault> {
        self.store.data_mut().effective = context;
        // A call that the callback itself resumes continues, whatever the callback returns: so it
        // is paused first.
        let before = self.paused(true);
        match self.callback(function, (context, size, last))? {
            Some(0) => drop(self.paused(false)),
            Some(_) => {}
            None => drop(self.paused(before)),
        }
        Ok(match &self.store.data().stream {
            Some(stream) => stream.goes_on(),
            None => ControlFlow::Break(()),
        })
    }

    /// Sets whether the call is paused; returns the previous value.
    fn paused(&mut self, paused: bool) -> bool {
        match &mut self.store.data_mut().stream {
            Some(stream) => std::mem::replace(&mut stream.paused, paused),
            None => false,
        }
    }

    /// The context that began with the call's request, or a new one.
    fn stream_of(&mut self, call: &CompatCall<'_>) -> Result<Box<Stream>, Fault> {
        let open = &mut self.store.data_mut().open;
        let begun = open.iter().position(|stream| stream.call == call.call);
        let begun = begun.and_then(|place| open.remove(place));
        match (begun, call.hook) {
            (Some(stream), Hook::Reply) => return Ok(stream),
            // The number belongs to another call by now.
            (Some(stream), Hook::Request) => self.end(stream)?,
            (None, _) => {}
        }
        // A reply without its request ends at once.
        if call.hook == Hook::Request
            && self.store.data().open.len() >= limits::OPEN_CALLS
            && let Some(oldest) = self.store.data_mut().open.pop_front()
        {
            self.end(oldest)?;
        }
        let context = self.new_context();
        let create = self.exports.context_create.clone();
        self.callback(create, (context, ROOT))?;
        Ok(Box::new(Stream {
            context,
            call: call.call,
            path: call.path.to_owned(),
            request: Headers::default(),
            reply: Headers::default(),
            hook: call.hook,
            body: None,
            body_changed: false,
            local: None,
            paused: false,
            properties: Properties::default(),
        }))
    }

    fn verdict(&mut self, stream: &mut Stream) -> Result<CompatVerdict, Fault> {
        if let Some(local) = stream.local.take() {
            return Ok(CompatVerdict::Deny {
                code: local.code,
                message: local.message,
            });
        }
        if stream.paused {
            return Ok(CompatVerdict::Deny {
                code: 14,
                message: "the filter paused the call, and nothing here would resume it".to_owned(),
            });
        }
        let hook = stream.hook;
        let Some(grants) = self.policy.manifest().compat() else {
            return Ok(CompatVerdict::Allow);
        };
        let metadata = stream
            .headers()
            .changes(|key| grants.changes_key(hook, key))?;
        let body = match (
            std::mem::take(&mut stream.body_changed),
            stream.body.as_deref(),
        ) {
            (true, Some(body)) if grants.body(hook) == Body::Change => Some(unframe(body)?),
            (true, _) => {
                return Err(Fault::NotItsToChange {
                    what: format!("the {hook}'s body"),
                });
            }
            (false, _) => None,
        };
        if metadata.is_empty() && body.is_none() {
            return Ok(CompatVerdict::Allow);
        }
        Ok(CompatVerdict::Change(CompatChange { metadata, body }))
    }

    /// Tells the filter that a call is over.
    fn end(&mut self, stream: Box<Stream>) -> Result<(), Fault> {
        let context = stream.context;
        let state = self.store.data_mut();
        let current = state.stream.replace(stream);
        state.effective = context;
        let (done, log, delete) = (
            self.exports.done.clone(),
            self.exports.log.clone(),
            self.exports.delete.clone(),
        );
        self.callback(done, context)?;
        self.callback(log, context)?;
        self.callback(delete, context)?;
        let state = self.store.data_mut();
        state.stream = current;
        state.effective = ROOT;
        Ok(())
    }

    /// Notifies the root context of queues with new items, once each, so a queue that feeds itself
    /// waits for the next call.
    fn tell_queues(&mut self) -> Result<(), Fault> {
        for _ in 0..limits::QUEUES {
            let Some(queue) = self.store.data_mut().queues.take_news() else {
                break;
            };
            self.store.data_mut().effective = ROOT;
            let ready = self.exports.queue_ready.clone();
            self.callback(ready, (ROOT, queue))?;
        }
        Ok(())
    }
}

/// Work between calls.
impl Filter {
    pub(crate) fn memory_bytes(&self) -> usize {
        let memory = self.store.data().memory;
        memory.map_or(0, |memory| memory.data_size(&self.store))
    }

    pub(crate) fn tick_period(&self) -> Option<Duration> {
        let ms = self.store.data().tick_ms;
        let ticks = ms > 0 && self.exports.tick.is_some() && self.policy.manifest().ticks();
        ticks.then(|| Duration::from_millis(ms.into()))
    }

    pub(crate) fn tick(&mut self) -> Result<(), Fault> {
        self.begin()?;
        if self.tick_period().is_none() {
            return Ok(());
        }
        self.store.data_mut().effective = ROOT;
        let tick = self.exports.tick.clone();
        self.callback(tick, ROOT)?;
        self.tell_queues()
    }

    pub(crate) fn policy(&self) -> &Policy {
        &self.policy
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.dead
    }

    pub(crate) fn fuel_used(&self) -> u64 {
        self.budget.used()
    }

    pub(crate) fn set_fuel_per_call(&mut self, fuel: u64) {
        self.fuel_per_call = fuel;
    }

    pub(crate) fn set_time_ms(&mut self, now_ms: u64) {
        self.store.data_mut().now_ms = now_ms;
    }

    pub(crate) fn take_log(&mut self) -> (Vec<LogLine>, u64) {
        self.store.data_mut().log.take()
    }

    pub(crate) fn metrics(&self) -> &[MeasuredMetric] {
        self.store.data().metrics.all()
    }
}

/// Entering the guest.
impl Filter {
    fn begin(&mut self) -> Result<(), Fault> {
        if self.dead {
            return Err(Fault::Dead);
        }
        self.budget = Budget::default();
        self.budget.grant(self.fuel_per_call);
        self.store
            .set_fuel(self.fuel_per_call)
            .expect("the engine counts fuel");
        Ok(())
    }

    fn charge(&mut self, units: u64) -> Result<(), Fault> {
        if let Err(fault) = self.budget.charge(units) {
            return Err(self.kill(fault));
        }
        let left = self.budget.left();
        self.store.set_fuel(left).expect("the engine counts fuel");
        Ok(())
    }

    /// Runs a callback if there is one, with the rest of the budget.
    fn callback<P: wasmtime::WasmParams, R: wasmtime::WasmResults>(
        &mut self,
        function: Option<TypedFunc<P, R>>,
        arguments: P,
    ) -> Result<Option<R>, Fault> {
        let Some(function) = function else {
            return Ok(None);
        };
        let returned = function.call(&mut self.store, arguments);
        let settled = self.budget.settle(&self.store, returned);
        settled.map(Some).map_err(|fault| self.kill(fault))
    }

    fn new_context(&mut self) -> u32 {
        let context = self.next_context;
        // The root's number isn't assigned twice.
        self.next_context = context.checked_add(1).unwrap_or(ROOT + 1);
        context
    }

    #[cold]
    fn kill(&mut self, fault: Fault) -> Fault {
        self.dead = true;
        fault
    }
}

fn state(policy: &Policy, setup: &Setup<'_>, config: &[u8]) -> Proxy {
    let manifest = policy.manifest();
    let own = || SharedState::new(&StateLimits::default());
    Proxy {
        limiter: limiter(setup.limits),
        memory: None,
        allocate: None,
        allocating: false,
        capabilities: manifest.capabilities(),
        config: config.into(),
        name: manifest.name().to_owned(),
        root_id: manifest
            .compat()
            .map_or("", |compat| compat.root_id())
            .to_owned(),
        log: Log::default(),
        shared: setup.state.cloned().unwrap_or_else(own),
        queues: Default::default(),
        metrics: Default::default(),
        now_ms: 0,
        tick_ms: 0,
        effective: ROOT,
        stream: None,
        open: Default::default(),
    }
}
