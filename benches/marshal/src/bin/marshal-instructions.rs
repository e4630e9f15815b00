//! Counts the instructions of each operation on each message: `marshal-instructions [--bless]
//! FILE`; see [`tollgate_bench_marshal::counting`].

#![forbid(unsafe_code)]

use std::process::ExitCode;
use tollgate_bench_marshal::contenders;
use tollgate_bench_marshal::counting::{self, Counted};

fn main() -> ExitCode {
    counting::main(|| {
        let counted = contenders().into_iter().map(|contender| Counted {
            name: format!(
                "{} {}, {}",
                contender.message, contender.operation, contender.executor
            ),
            ours: matches!(contender.executor, "machine code" | "interpreter"),
            work: contender.work,
        });
        Ok(counted.collect())
    })
}
