//! The order in which modules are compiled.
//!
//! Invariant: at most one module per tenant is being compiled or is next in line for a worker. A
//! tenant with many slow modules delays another tenant by at most one compilation per worker.
//! Modules that were compiled or rejected before don't wait.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;
use tollgate_admin::proto::PushPolicyStep;
use tollgate_engine::Status;
use tollgate_policy_host::{Compiler, LoadError, Policy};
use tollgate_shm_abi::status::Code;

use crate::limits::{COMPILATIONS_QUEUED, COMPILATIONS_QUEUED_PER_TENANT};

/// The queue in front of the compile workers.
pub(crate) struct Compilation {
    compiler: Arc<Compiler>,
    workers: Arc<Semaphore>,
    lines: Arc<Mutex<HashMap<String, Line>>>,
}

/// Modules of one tenant that wait or are being compiled.
#[derive(Default)]
struct Line {
    turn: Arc<tokio::sync::Mutex<()>>,
    length: usize,
}

/// A place in a tenant's queue, released when it is dropped.
struct Place {
    lines: Arc<Mutex<HashMap<String, Line>>>,
    tenant: String,
    turn: Arc<tokio::sync::Mutex<()>>,
}

impl Compilation {
    pub(crate) fn new(compiler: Compiler, workers: usize) -> Compilation {
        Compilation {
            compiler: Arc::new(compiler),
            workers: Arc::new(Semaphore::new(workers)),
            lines: Arc::default(),
        }
    }

    /// Compiles a tenant's module, or finds the compiled one; returns the bytes, too, and the time
    /// of a compilation, also of one that failed. `may_compile` is asked before the wait and after
    /// it; `tell` is told of both.
    pub(crate) async fn load(
        &self,
        tenant: &str,
        wasm: Vec<u8>,
        may_compile: impl Fn() -> Result<(), Status>,
        tell: impl Fn(PushPolicyStep),
    ) -> Result<(Result<(Policy, Vec<u8>), Status>, Duration), Status> {
        let compiler = Arc::clone(&self.compiler);
        let (known, wasm) = blocking(move || (compiler.recall(&wasm), wasm)).await?;
        if let Some(known) = known {
            let known = known.map(|policy| (policy, wasm));
            return Ok((known.map_err(|error| refused(&error)), Duration::ZERO));
        }
        may_compile()?;
        let place = self.enter(tenant)?;
        if place.turn.try_lock().is_err() || self.workers.available_permits() == 0 {
            tell(PushPolicyStep::Waiting);
        }
        let turn = Arc::clone(&place.turn).lock_owned().await;
        may_compile()?;
        let worker = Arc::clone(&self.workers).acquire_owned().await;
        tell(PushPolicyStep::Compiling);
        let compiler = Arc::clone(&self.compiler);
        let made = blocking(move || {
            // Held to the end, even if nobody waits for the result any more.
            let _held = (worker, turn, place);
            let begun = Instant::now();
            let made = compiler.compile(&wasm).map(|policy| (policy, wasm));
            (made.map_err(|error| refused(&error)), begun.elapsed())
        });
        made.await
    }

    /// Kills the workers; waiting modules fail.
    pub(crate) fn stop(&self) {
        self.compiler.stop();
    }

    pub(crate) fn compiler(&self) -> &Compiler {
        &self.compiler
    }

    /// The counters for `status`.
    pub(crate) fn report(&self) -> serde_json::Value {
        let mut report = serde_json::json!(self.compiler.counters());
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let queued: usize = lines.values().map(|line| line.length).sum();
        report["queued"] = queued.into();
        report
    }

    fn enter(&self, tenant: &str) -> Result<Place, Status> {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let queued: usize = lines.values().map(|line| line.length).sum();
        let line = lines.get(tenant).map_or(0, |line| line.length);
        let full = |text: String| Err(Status::new(Code::RESOURCE_EXHAUSTED, text));
        if line >= COMPILATIONS_QUEUED_PER_TENANT {
            return full(format!(
                "{tenant} has {line} modules waiting for the compiler, which is the limit"
            ));
        }
        if queued >= COMPILATIONS_QUEUED {
            return full(format!(
                "{queued} modules wait for the compiler, which is the limit"
            ));
        }
        let line = lines.entry(tenant.to_owned()).or_default();
        line.length += 1;
        Ok(Place {
            lines: Arc::clone(&self.lines),
            tenant: tenant.to_owned(),
            turn: Arc::clone(&line.turn),
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(line) = lines.get_mut(&self.tenant) {
            line.length -= 1;
            if line.length == 0 {
                lines.remove(&self.tenant);
            }
        }
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Status> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| {
        Status::new(
            Code::INTERNAL,
            format!("loading the module failed: {error}"),
        )
    })
}

/// The status for a module that can't be loaded.
fn refused(error: &LoadError) -> Status {
    let code = match error {
        LoadError::CompileTimeout { .. } | LoadError::CompileMemory { .. } => {
            Code::RESOURCE_EXHAUSTED
        }
        LoadError::NoCompiler(_) | LoadError::CompilerDied { .. } => Code::UNAVAILABLE,
        _ => Code::INVALID_ARGUMENT,
    };
    Status::new(code, error.to_string())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::cell::RefCell;
    use std::rc::Rc;

    use tollgate_policy_host::{CompilerConfig, Host, HostConfig};

    use super::*;

    /// Slow workers that fail.
    fn slow(directory: &std::path::Path, workers: usize) -> Rc<Compilation> {
        let program = directory.join("slow");
        // A shell writes it: a process that another test starts meanwhile would inherit this
        // process's open file, and the kernel starts no program that somebody may still write.
        let script = r##"printf '#!/bin/sh\nsleep 0.2\nexit 101\n' >"$0" && chmod 755 "$0""##;
        let mut shell = std::process::Command::new("sh");
        let written = shell.args(["-c", script]).arg(&program).status();
        assert!(written.unwrap().success());
        let host = HostConfig {
            instances: 1,
            ..HostConfig::default()
        };
        let config = CompilerConfig {
            program,
            ..CompilerConfig::default()
        };
        let compiler = Compiler::new(Host::new(host).unwrap(), config).unwrap();
        Rc::new(Compilation::new(compiler, workers))
    }

    /// A module that passes the scan: a manifest without code.
    fn module(name: &str) -> Vec<u8> {
        let section = format!(
            "\x11tollgate.manifest{{\"abi\":1,\"name\":{name:?},\"hooks\":[\"request\"],\"methods\":[{{\"method\":\"*\"}}]}}"
        );
        let len = u8::try_from(section.len()).unwrap();
        [
            &b"\0asm\x01\0\0\0\0"[..],
            &[len & 0x7f | 0x80, len >> 7],
            section.as_bytes(),
        ]
        .concat()
    }

    /// Pushes all modules at once; returns the tenants in the order of their answers, and the
    /// answers.
    fn race(compilation: &Rc<Compilation>, pushes: &[(&str, &str)]) -> Vec<(String, String)> {
        let reactor = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let ended: Rc<RefCell<Vec<_>>> = Rc::default();
        let tasks = tokio::task::LocalSet::new();
        for &(tenant, name) in pushes {
            let (compilation, ended) = (Rc::clone(compilation), Rc::clone(&ended));
            let (tenant, wasm) = (tenant.to_owned(), module(name));
            tasks.spawn_local(async move {
                let loaded = compilation.load(&tenant, wasm, || Ok(()), |_| {}).await;
                let error = loaded.and_then(|(made, _)| made).unwrap_err();
                ended.borrow_mut().push((tenant, error.message.to_string()));
            });
        }
        reactor.block_on(tasks);
        ended.take()
    }

    #[test]
    fn a_tenants_heap_of_modules_leaves_other_tenants_room() {
        let directory = tempfile::tempdir().unwrap();
        let names = ["a", "b", "c", "d", "e"];
        let mut pushes: Vec<_> = names.iter().map(|name| ("mallory", *name)).collect();
        pushes.push(("acme", "f"));
        let ended = race(&slow(directory.path(), 1), &pushes);
        let place = ended
            .iter()
            .position(|(tenant, _)| tenant == "acme")
            .unwrap();
        assert!(place <= 2, "acme came as number {place} of {ended:?}");
        assert!(
            ended
                .iter()
                .all(|(_, error)| error.contains("the compiler crashed")),
            "{ended:?}"
        );
    }

    #[test]
    fn lines_have_an_end() {
        let directory = tempfile::tempdir().unwrap();
        let names: Vec<String> = (0..10).map(|i| format!("m{i}")).collect();
        let pushes: Vec<_> = names
            .iter()
            .map(|name| ("mallory", name.as_str()))
            .collect();
        let compilation = slow(directory.path(), 2);
        let ended = race(&compilation, &pushes);
        let full = "mallory has 8 modules waiting for the compiler, which is the limit";
        assert_eq!(
            ended.iter().filter(|(_, error)| error == full).count(),
            2,
            "{ended:?}"
        );
        assert_eq!(compilation.report()["queued"], 0);
        let tenants: Vec<String> = (0..66).map(|i| format!("t{i}")).collect();
        let pushes: Vec<_> = tenants.iter().map(|t| (t.as_str(), t.as_str())).collect();
        let ended = race(&slow(directory.path(), 32), &pushes);
        let full = "64 modules wait for the compiler, which is the limit";
        assert_eq!(
            ended.iter().filter(|(_, error)| error == full).count(),
            2,
            "{ended:?}"
        );
    }
}
