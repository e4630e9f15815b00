//! The thread that compiles methods and projections when they are first used: see
//! [`tollgate_jit::on_demand`].

use tollgate_jit::limits::COMPILE_QUEUE;
use tollgate_jit::on_demand::{Compiler, queue};

use tollgate_datapath::log_limited;

/// Starts the compile thread. It ends with the daemon, or when nobody can ask any more.
pub(crate) fn start() -> std::io::Result<Compiler> {
    let (compiler, jobs) = queue(COMPILE_QUEUE);
    std::thread::Builder::new()
        .name("compiler".to_owned())
        .spawn(move || {
            while let Some(job) = jobs.next() {
                if let Err(error) = job.run() {
                    log_limited!(warn, "stays interpreted", "", "{error}");
                }
            }
        })?;
    Ok(compiler)
}
