//! The price of instructions: the list that turns fuel into a bound on time.
//!
//! wasmtime charges one unit per instruction by default, which bounds instructions and not time:
//! 20,000 units would be 1 us of additions but 400 us of `memory.grow`. The prices below were tuned
//! until a loop over any one instruction, each waiting for the previous one, took no longer than
//! [`FUEL_PER_MICROSECOND`] says. So the slowest instructions define the unit: 350,000 units are at
//! most 100 us of the slowest instructions, or 350,000 plain ones, which take 20 to 40 us.
//! `examples/cost.rs` measures all of this again.
//!
//! One case escapes: a load that misses every cache. A guest that chases pointers over 4 MiB was
//! measured at 1.7 ns per unit on a busy 2-core machine and at 3.8 ns on an overloaded one, so it
//! gets 0.6 to 1.3 ms out of a budget of 100 us. If every load were priced as a miss, honest
//! policies would get only a few thousand loads. The solution is an account of CPU time per tenant;
//! it isn't implemented yet.
//!
//! Absent: an epoch deadline. It would need a ticker, is coarse (half a millisecond at best), and
//! can't interrupt `memory.fill`, which fuel charges by the byte.

use wasmtime::OperatorCost;

/// Units of fuel that the most expensive instruction sequences burn in a microsecond, at least.
pub const FUEL_PER_MICROSECOND: u64 = 3_500;

/// Fuel taken for a `counter`, `gauge`, `histogram`, `now_ms` or `monotonic_us` call.
pub(crate) const METRIC: u64 = 50;
/// Fuel taken for a `log` call, besides one unit per byte.
pub(crate) const LOG: u64 = 500;
/// Fuel taken for a `state_get` call, besides one unit per byte of key and room.
pub(crate) const STATE: u64 = 1000;
/// Fuel taken for a call that changes the state, besides one unit per byte of key and values.
pub(crate) const STATE_SET: u64 = 2000;
/// Fuel taken for a `random` call.
pub(crate) const RANDOM: u64 = 3000;
/// Fuel taken for each random byte.
pub(crate) const RANDOM_BYTE: u64 = 10;
/// Fuel taken for each record of an effect list, besides one unit per byte of its value.
pub(crate) const EFFECT: u64 = 100;
/// Fuel taken for a denial's message, besides one unit per byte.
pub(crate) const MESSAGE: u64 = 100;

/// Fuel taken for a call of most functions of compat modules, besides one unit per byte in or out.
pub(crate) const COMPAT: u64 = 300;
/// Fuel taken for each header that is examined, besides one unit per byte.
pub(crate) const HEADER: u64 = 60;
/// Fuel taken for an evaluation by a compat module, besides the bytes that the host copies for it.
pub(crate) const COMPAT_CALL: u64 = 5000;

/// The price list.
pub(crate) fn operators() -> OperatorCost {
    let mut cost = OperatorCost::default();
    runtime(&mut cost);
    integers(&mut cost);
    floats(&mut cost);
    conversions(&mut cost);
    loads(&mut cost);
    cost
}

fn price<const N: usize>(units: u8, operators: [&mut u8; N]) {
    operators.into_iter().for_each(|operator| *operator = units);
}

/// Calls, and instructions that leave the compiled code for the runtime.
fn runtime(c: &mut OperatorCost) {
    price(10, [&mut c.Call, &mut c.TableGet, &mut c.TableSet]);
    c.CallIndirect = 20;
    c.MemorySize = 2;
    // About 33 ns, where 200 units are 37 ns.
    c.RefFunc = 200;
    price(250, [&mut c.MemoryGrow, &mut c.TableGrow]);
    c.variable.memory_grow_per_page = 255;
    price(40, [&mut c.MemoryFill, &mut c.MemoryCopy]);
    price(
        60,
        [
            &mut c.MemoryInit,
            &mut c.TableFill,
            &mut c.TableCopy,
            &mut c.TableInit,
        ],
    );
}

/// Division.
fn integers(c: &mut OperatorCost) {
    price(
        14,
        [
            &mut c.I32DivS,
            &mut c.I32DivU,
            &mut c.I32RemS,
            &mut c.I32RemU,
        ],
    );
    price(
        14,
        [
            &mut c.I64DivS,
            &mut c.I64DivU,
            &mut c.I64RemS,
            &mut c.I64RemU,
        ],
    );
}

/// Floating point, when each instruction waits for the previous one.
fn floats(c: &mut OperatorCost) {
    price(6, [&mut c.F32Add, &mut c.F32Sub, &mut c.F32Mul]);
    price(6, [&mut c.F64Add, &mut c.F64Sub, &mut c.F64Mul]);
    price(
        10,
        [&mut c.F32Min, &mut c.F32Max, &mut c.F64Min, &mut c.F64Max],
    );
    price(
        14,
        [
            &mut c.F32Ceil,
            &mut c.F32Floor,
            &mut c.F32Trunc,
            &mut c.F32Nearest,
        ],
    );
    price(
        14,
        [
            &mut c.F64Ceil,
            &mut c.F64Floor,
            &mut c.F64Trunc,
            &mut c.F64Nearest,
        ],
    );
    price(
        24,
        [&mut c.F32Sqrt, &mut c.F64Sqrt, &mut c.F32Div, &mut c.F64Div],
    );
}

/// Between integers and floats; the trapping and the saturating kind.
fn conversions(c: &mut OperatorCost) {
    price(
        14,
        [
            &mut c.I32TruncF32S,
            &mut c.I32TruncF32U,
            &mut c.I32TruncF64S,
            &mut c.I32TruncF64U,
        ],
    );
    price(
        14,
        [
            &mut c.I64TruncF32S,
            &mut c.I64TruncF32U,
            &mut c.I64TruncF64S,
            &mut c.I64TruncF64U,
        ],
    );
    price(14, [&mut c.I32TruncSatF32S, &mut c.I32TruncSatF32U]);
    price(14, [&mut c.I32TruncSatF64S, &mut c.I32TruncSatF64U]);
    price(14, [&mut c.I64TruncSatF32S, &mut c.I64TruncSatF32U]);
    price(14, [&mut c.I64TruncSatF64S, &mut c.I64TruncSatF64U]);
    price(14, [&mut c.F32ConvertI32S, &mut c.F32ConvertI32U]);
    price(14, [&mut c.F32ConvertI64S, &mut c.F32ConvertI64U]);
    price(14, [&mut c.F64ConvertI32S, &mut c.F64ConvertI32U]);
    price(14, [&mut c.F64ConvertI64S, &mut c.F64ConvertI64U]);
    price(6, [&mut c.F32DemoteF64, &mut c.F64PromoteF32]);
}

/// Loads, which may wait for the second-level cache.
fn loads(c: &mut OperatorCost) {
    price(
        6,
        [
            &mut c.I32Load,
            &mut c.I64Load,
            &mut c.F32Load,
            &mut c.F64Load,
        ],
    );
    price(
        6,
        [
            &mut c.I32Load8U,
            &mut c.I32Load8S,
            &mut c.I32Load16U,
            &mut c.I32Load16S,
        ],
    );
    price(
        6,
        [
            &mut c.I64Load8U,
            &mut c.I64Load8S,
            &mut c.I64Load16U,
            &mut c.I64Load16S,
        ],
    );
    price(6, [&mut c.I64Load32U, &mut c.I64Load32S]);
}
