//! What instructions cost: the price list that turns fuel into a bound on time.
//!
//! wasmtime charges one unit per instruction by default, which bounds instructions and not time: 20,000
//! units would be 1 us of additions but 400 us of `memory.grow`. The prices below were tuned until no
//! instruction took much more than [`FUEL_PER_MICROSECOND`] says. The unit is defined from the slow end: a budget of
//! 100 us is not exceeded by the slowest instruction, and ordinary code gets 350,000 instructions
//! for it, which it executes in 20 to 40 us.
//!
//! `examples/cost.rs` measures all of this again.
//!
//! Absent: an epoch deadline. It would need a ticker, is coarse (half a millisecond at best), and can't interrupt
//! `memory.fill`, which fuel charges by the byte.

use wasmtime::OperatorCost;

/// Units of fuel that the most expensive instruction sequences burn in a microsecond, at least.
pub const FUEL_PER_MICROSECOND: u64 = 3_500;

/// Fuel taken for a `counter` call.
pub(crate) const COUNTER: u64 = 50;
/// Fuel taken for a `log` call, besides one unit per byte.
pub(crate) const LOG: u64 = 500;

/// The price list.
pub(crate) fn operators() -> OperatorCost {
    let mut cost = OperatorCost::default();
    bulk(&mut cost);
    arithmetic(&mut cost);
    loads(&mut cost);
    cost.Call = 10;
    cost.CallIndirect = 20;
    cost
}

/// Instructions that leave the compiled code for the runtime.
fn bulk(cost: &mut OperatorCost) {
    cost.MemoryGrow = 250;
    cost.TableGrow = 250;
    cost.MemorySize = 2;
    for price in [&mut cost.MemoryFill, &mut cost.MemoryCopy] {
        *price = 40;
    }
    for price in [
        &mut cost.MemoryInit,
        &mut cost.TableFill,
        &mut cost.TableCopy,
        &mut cost.TableInit,
    ] {
        *price = 60;
    }
    cost.variable.memory_grow_per_page = 255;
}

/// Division and roots.
fn arithmetic(cost: &mut OperatorCost) {
    for price in [
        &mut cost.I32DivS,
        &mut cost.I32DivU,
        &mut cost.I32RemS,
        &mut cost.I32RemU,
        &mut cost.I64DivS,
        &mut cost.I64DivU,
        &mut cost.I64RemS,
        &mut cost.I64RemU,
    ] {
        *price = 10;
    }
    for price in [
        &mut cost.F32Sqrt,
        &mut cost.F64Sqrt,
        &mut cost.F32Div,
        &mut cost.F64Div,
    ] {
        *price = 20;
    }
}

/// Loads may miss every cache.
fn loads(cost: &mut OperatorCost) {
    for price in [
        &mut cost.I32Load,
        &mut cost.I64Load,
        &mut cost.F32Load,
        &mut cost.F64Load,
        &mut cost.I32Load8U,
        &mut cost.I32Load8S,
        &mut cost.I32Load16U,
        &mut cost.I32Load16S,
        &mut cost.I64Load8U,
        &mut cost.I64Load8S,
        &mut cost.I64Load16U,
        &mut cost.I64Load16S,
        &mut cost.I64Load32U,
        &mut cost.I64Load32S,
    ] {
        *price = 4;
    }
}
