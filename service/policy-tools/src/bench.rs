//! Measures a policy's cost per call: in fuel, which is exact and equal everywhere, and in time on
//! this machine.
//!
//! The measured part is the daemon's call into the sandbox: a view is copied into the guest's
//! memory, the guest evaluates it, and its verdict is read and checked. Each kind of round runs
//! several times; the fastest, the median and the slowest are reported. If two of them differ much,
//! the machine was busy.

use std::fmt;
use std::time::{Duration, Instant};

use serde_json::json;
use tollgate_policy_chain::sample::Sample;
use tollgate_policy_host::{BatchError, EvaluateError, Fault, Hook, Instance, Rate};
use tollgate_schema::Schema;
use tollgate_shm_abi::text::escape;

use crate::cases::Setting;
use crate::inspect::Module;
use crate::limits::{BATCH, ROUND, ROUNDS};
use crate::session::Session;
use crate::target::Target;
use crate::{Cases, ToolError};

/// All measurements of a module.
#[derive(Debug)]
pub struct Bench<'a> {
    module: &'a Module,
    /// Units of fuel per microsecond.
    rate: Rate,
    fuel_per_call: u64,
    /// Bytes of linear memory after the set-up.
    pub memory_bytes: usize,
    /// Fuel of the set-up.
    pub setup_fuel: u64,
    /// One entry per message.
    pub measured: Vec<Measured>,
}

/// The cost of one message.
#[derive(Debug)]
pub struct Measured {
    /// The case's name, or the method and hook.
    pub name: String,
    /// Highest fuel of one call.
    pub fuel: u64,
    /// Time per call, one at a time and in batches; or the policy's fault.
    pub times: Result<[Spread; 2], Fault>,
}

/// The fastest, the median and the slowest round, in nanoseconds per call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// The fastest.
    pub min_ns: f64,
    /// The median.
    pub median_ns: f64,
    /// The slowest.
    pub max_ns: f64,
}

/// A view to evaluate.
struct Subject {
    name: String,
    hook: Hook,
    method: u32,
    view: Vec<u8>,
}

/// Measures the cases' messages.
pub fn bench_cases<'a>(
    module: &'a Module,
    schema: &Schema,
    cases: &Cases,
) -> Result<Bench<'a>, ToolError> {
    let policy = module.policy().configured(Some(&cases.setting.config))?;
    let manifest = policy.manifest();
    let mut subjects = Vec::new();
    for case in &cases.cases {
        let target = Target::new(schema, manifest, &cases.setting.grant, case)?;
        let Some(entry) = &target.entry else {
            continue;
        };
        let message = Sample {
            block: target.block(&case.message).map_err(|e| case.error(e))?,
            metadata: case.metadata.clone(),
        };
        let mut view = vec![0; message.view_max(&entry.projector, &entry.shown)];
        let len = target.project(entry, &message, &mut view);
        view.truncate(len.map_err(|e| case.error(e))?);
        subjects.push(Subject {
            name: case.name.clone(),
            hook: case.hook,
            method: entry.method,
            view,
        });
    }
    run(module, &cases.setting, subjects)
}

/// Measures without a schema: one message per method and hook, with all fields absent.
pub fn bench<'a>(module: &'a Module, setting: &Setting) -> Result<Bench<'a>, ToolError> {
    let policy = module.policy().configured(Some(&setting.config))?;
    let manifest = policy.manifest();
    let mut subjects = Vec::new();
    for (method, entry) in (0..).zip(manifest.methods()) {
        for &hook in manifest.hooks() {
            let name = format!("{} {hook}, all absent", entry.pattern());
            let view = absent(entry.fields(hook).len() + entry.metadata(hook).len());
            subjects.push(Subject {
                name,
                hook,
                method,
                view,
            });
        }
    }
    run(module, setting, subjects)
}

/// The view of a message with all fields absent.
fn absent(fields: usize) -> Vec<u8> {
    use tollgate_marshal::projection::{ENTRY_LEN, HEADER_LEN};
    let len = HEADER_LEN + fields * ENTRY_LEN;
    let mut view = vec![0; len];
    view[..4].copy_from_slice(&(len as u32).to_le_bytes());
    view[4..8].copy_from_slice(&(fields as u32).to_le_bytes());
    view
}

fn run<'a>(
    module: &'a Module,
    setting: &Setting,
    subjects: Vec<Subject>,
) -> Result<Bench<'a>, ToolError> {
    let rate = Rate::default();
    let mut session = Session::new(module.policy(), setting, rate)?;
    let instance = session.instance()?;
    let (memory_bytes, setup_fuel) = (instance.memory_bytes(), instance.fuel_used());
    let mut measured = Vec::new();
    for subject in subjects {
        // Each starts with a fresh instance.
        let mut session = Session::new(module.policy(), setting, rate)?;
        measured.push(measure(session.instance()?, subject)?);
    }
    Ok(Bench {
        module,
        rate,
        fuel_per_call: session.fuel_per_call(),
        memory_bytes,
        setup_fuel,
        measured,
    })
}

fn measure(instance: &mut Instance, subject: Subject) -> Result<Measured, ToolError> {
    let mut fuel = 0;
    let single = rounds(|| {
        evaluate_one(instance, &subject)?;
        fuel = fuel.max(instance.fuel_used());
        Ok(1)
    })?;
    let batched = match &single {
        Ok(_) => rounds(|| evaluate_batch(instance, &subject).map(|()| BATCH))?,
        Err(fault) => Err(fault.clone()),
    };
    if single.is_err() {
        fuel = instance.fuel_used();
    }
    let times = single.and_then(|single| Ok([single, batched?]));
    Ok(Measured {
        name: subject.name,
        fuel,
        times,
    })
}

/// Why a measurement ends: the policy's fault is a result, anything else an error.
enum Stop {
    Fault(Fault),
    Tool(ToolError),
}

fn evaluate_one(instance: &mut Instance, subject: &Subject) -> Result<(), Stop> {
    let (hook, method, view) = (subject.hook, subject.method, &subject.view);
    let verdict = instance.evaluate(hook, method, view.len(), |room| {
        room[..view.len()].copy_from_slice(view);
        Ok::<_, std::convert::Infallible>(view.len())
    });
    match verdict {
        Ok(_any) => Ok(()),
        Err(EvaluateError::Fault(fault)) => Err(Stop::Fault(fault)),
        Err(other) => Err(Stop::Tool(ToolError::internal(format!("{other:?}")))),
    }
}

fn evaluate_batch(instance: &mut Instance, subject: &Subject) -> Result<(), Stop> {
    let (view, method) = (&subject.view, subject.method);
    let room = BATCH * view.len().next_multiple_of(8);
    let batch = instance.batch(subject.hook, BATCH, room);
    let mut batch = batch.map_err(|error| match error {
        BatchError::Fault(fault) => Stop::Fault(fault),
        BatchError::Misuse(misuse) => Stop::Tool(ToolError::internal(misuse)),
    })?;
    for _ in 0..BATCH {
        let pushed = batch.push(method, view.len(), |room| {
            room[..view.len()].copy_from_slice(view);
            Ok::<_, std::convert::Infallible>(view.len())
        });
        pushed.map_err(|error| Stop::Tool(ToolError::internal(format!("{error:?}"))))?;
    }
    let evaluated = batch.evaluate(|_, _any| {});
    evaluated.map_err(Stop::Fault)
}

/// Runs rounds of `work`, which returns its number of calls.
fn rounds(
    mut work: impl FnMut() -> Result<usize, Stop>,
) -> Result<Result<Spread, Fault>, ToolError> {
    let mut round = |time: Duration| {
        let (start, mut calls) = (Instant::now(), 0);
        while start.elapsed() < time {
            // The clock is read once per 16 calls: reading it costs as much as a small call.
            for _ in 0..16 {
                calls += work()?;
            }
        }
        Ok(start.elapsed().as_nanos() as f64 / calls as f64)
    };
    // The first round fills the caches.
    let all = round(ROUND / 4).and_then(|_warm| {
        let rounds = (0..ROUNDS).map(|_| round(ROUND));
        rounds.collect::<Result<Vec<_>, _>>()
    });
    match all {
        Ok(mut ns) => {
            ns.sort_by(f64::total_cmp);
            Ok(Ok(Spread {
                min_ns: ns[0],
                median_ns: ns[ns.len() / 2],
                max_ns: ns[ns.len() - 1],
            }))
        }
        Err(Stop::Fault(fault)) => Ok(Err(fault)),
        Err(Stop::Tool(error)) => Err(error),
    }
}

impl Bench<'_> {
    /// CPU time that a call may use, in microseconds.
    pub fn bound_us(&self) -> f64 {
        self.in_us(self.fuel_per_call)
    }

    /// Longest time that this fuel lasts, in microseconds.
    fn in_us(&self, fuel: u64) -> f64 {
        self.rate.time(fuel).as_nanos() as f64 / 1e3
    }

    /// The JSON form, which includes [`Module::to_json`].
    pub fn to_json(&self) -> serde_json::Value {
        let spread =
            |s: &Spread| json!({ "min": s.min_ns, "median": s.median_ns, "max": s.max_ns });
        let measured = self.measured.iter().map(|m| {
            let times = m.times.as_ref().ok();
            json!({
                "name": m.name,
                "fuel": m.fuel,
                "bound_us": self.in_us(m.fuel),
                "single_ns": times.map(|[single, _]| spread(single)),
                "batch_of_8_ns": times.map(|[_, batch]| spread(batch)),
                "fault": m.times.as_ref().err().map(Fault::to_string),
            })
        });
        let mut all = self.module.to_json();
        all["memory_bytes"] = json!(self.memory_bytes);
        all["setup_fuel"] = json!(self.setup_fuel);
        all["fuel_per_call"] = json!(self.fuel_per_call);
        all["cpu_bound_us"] = json!(self.bound_us());
        all["rounds"] = json!(ROUNDS);
        all["calls"] = json!(measured.collect::<Vec<_>>());
        all
    }
}

impl fmt::Display for Bench<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.module)?;
        let (memory, setup) = (self.memory_bytes, self.setup_fuel);
        writeln!(
            f,
            "memory        {memory} bytes after a set-up of {setup} fuel"
        )?;
        let (fuel, us) = (self.fuel_per_call, self.bound_us());
        writeln!(f, "CPU bound     {us:.0} us per call, {fuel} fuel")?;
        writeln!(
            f,
            "\n{:>8} {:>9}  {:>22}  {:>22}",
            "fuel", "at most", "ns, one at a time", "ns, 8 at a time"
        )?;
        writeln!(
            f,
            "{:>8} {:>9}  {:>22}  {:>22}",
            "per call", "", "median (min to max)", "median (min to max)"
        )?;
        for m in &self.measured {
            let (name, us) = (escape(&m.name), format!("{:.2} us", self.in_us(m.fuel)));
            write!(f, "{:>8} {us:>9}", m.fuel)?;
            match &m.times {
                Ok(times) => {
                    for Spread {
                        min_ns,
                        median_ns,
                        max_ns,
                    } in times
                    {
                        let text = format!("{median_ns:.0} ({min_ns:.0} to {max_ns:.0})");
                        write!(f, "  {text:>22}")?;
                    }
                    writeln!(f, "  {name}")?;
                }
                Err(fault) => writeln!(f, "  {name}: fails: {}", escape(&fault.to_string()))?,
            }
        }
        Ok(())
    }
}
