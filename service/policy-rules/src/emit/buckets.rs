//! The token buckets of rules that limit rates, in the policy's shared state.
//!
//! ```text
//!   rule and key --hash--> set (an entry of the shared state, 8 ways) --hash--> way: hash u64 | full again at, in ns, u64
//! ```
//!
//! They are those of the SDK for Rust (`guest-sdk/src/bucket.rs`), without leases: the generic cell
//! rate algorithm, in sets of which a key has one way. A key whose set is full of buckets in use
//! shares the least used one, so a limit is then too strict, never too lax.
//!
//! All rules share the sets, which are as many as the shared state has keys. The rule's name is
//! part of the hash, so a bucket stays that of its rule when the file changes.

use wasm_encoder::{BlockType, ValType};

use crate::emit::code::{Code, Local, add, at, parameter, unaligned};
use crate::emit::hash::hash_of;
use crate::emit::helper::{Helper, NO_ROOM, NO_TOKEN, TAKEN};
use crate::emit::module::{Import, Module};
use crate::limits::BUCKET_SETS;

const I32: ValType = ValType::I32;
const I64: ValType = ValType::I64;

const WAYS: u32 = 8;
const WAY_BYTES: u32 = 16;
const SET_BYTES: u32 = WAYS * WAY_BYTES;
/// What a call to the shared state works on: the entry's key, its old value, and its new one.
const KEY_BYTES: u32 = 4;
const OLD: u32 = 16;
const NEW: u32 = OLD + SET_BYTES;
const ROOM: u32 = NEW + SET_BYTES;
/// No instance's clock is so far behind another's, in ns.
const BEHIND_NS: i64 = 1_000_000_000;
/// The length that stands for no value.
const ABSENT: u32 = u32::MAX;

/// Goes on if the number on the stack is 0, else returns this outcome.
fn return_if(c: &mut Code, outcome: u32) {
    c.begin_if(BlockType::Empty);
    c.i32(outcome).op().return_();
    c.end();
}

/// Writes [`Helper::Take`].
pub(crate) fn take(module: &mut Module, c: &mut Code) {
    let (key, len, rule) = (parameter(0), parameter(1), parameter(2));
    let (interval, depth) = (parameter(3), parameter(4));
    let allocate = module.helper(Helper::Allocate);
    let [get, replace, clock] =
        [Import::Get, Import::Replace, Import::Monotonic].map(|import| module.import(import));
    let (room, there, used, way) = (c.local(I32), c.local(I32), c.local(I32), c.local(I32));
    let (now, full, latest) = (c.local(I64), c.local(I64), c.local(I64));
    c.i32(ROOM).call(allocate).tee(room).op().i32_eqz();
    return_if(c, NO_ROOM);
    c.call(clock).i64(1000).op().i64_mul();
    c.set(now);
    let hash = hash_of(c, key, len);
    c.get(hash).get(rule).op().i64_xor();
    c.set(hash);
    c.get(room).get(hash).op().i32_wrap_i64();
    c.i32(BUCKET_SETS - 1).op().i32_and().i32_store(at(0));
    let again = c.begin_loop();
    c.get(room).i32(KEY_BYTES);
    c.get(room).i32(OLD).op().i32_add();
    c.i32(SET_BYTES).call(get).tee(there);
    c.i32(ABSENT).op().i32_eq();
    c.begin_if(BlockType::Empty);
    c.i32(0).set(used);
    c.begin_else();
    // The module writes no others.
    c.get(there).i32(SET_BYTES).op().i32_gt_u();
    return_if(c, NO_ROOM);
    c.get(there).i32(WAY_BYTES).op().i32_div_u();
    c.set(used);
    c.end();
    find(
        c,
        Found {
            room,
            used,
            hash,
            way,
            full,
        },
    );
    // A time that is later is from a version with another rate, so the bucket begins anew.
    c.get(now).get(depth).op().i64_add();
    c.set(latest);
    c.get(full)
        .get(latest)
        .i64(BEHIND_NS)
        .op()
        .i64_add()
        .i64_gt_u();
    c.begin_if(BlockType::Empty);
    c.i64(0).set(full);
    c.end();
    // When the bucket is full again, with this token taken.
    c.get(full)
        .get(now)
        .get(full)
        .get(now)
        .op()
        .i64_gt_u()
        .select();
    c.get(interval).op().i64_add();
    c.tee(full).get(latest).op().i64_gt_u();
    return_if(c, NO_TOKEN);
    c.get(room).i32(NEW).op().i32_add();
    c.get(room).i32(OLD).op().i32_add();
    c.i32(SET_BYTES).op().memory_copy(0, 0);
    place(c, room, way).get(hash).op().i64_store(unaligned(NEW));
    place(c, room, way)
        .get(full)
        .op()
        .i64_store(unaligned(NEW + 8));
    c.get(room).i32(KEY_BYTES);
    c.get(room).i32(OLD).op().i32_add();
    c.get(there);
    c.get(room).i32(NEW).op().i32_add();
    // The ways in use, and this one.
    add(c, way, 1);
    c.get(used)
        .get(way)
        .get(used)
        .get(way)
        .op()
        .i32_gt_u()
        .select();
    c.i32(WAY_BYTES).op().i32_mul();
    c.call(replace).tee(there).op().i32_eqz();
    return_if(c, TAKEN);
    c.get(there).i32(1).op().i32_eq();
    return_if(c, NO_ROOM);
    // Another instance has changed it.
    c.br(again);
    c.end();
    c.op().unreachable();
}

/// Puts the address of a way on the stack: of its place in the old value, without its offset.
fn place(c: &mut Code, room: Local, way: Local) -> &mut Code {
    c.get(room).get(way).i32(WAY_BYTES).op().i32_mul().i32_add();
    c
}

/// What the search for a key's way reads and finds.
struct Found {
    room: Local,
    /// The number of ways in use.
    used: Local,
    hash: Local,
    /// Found: the way, and when its bucket is full again.
    way: Local,
    full: Local,
}

/// The key's way; else a new one; else the one that is full again first.
fn find(
    c: &mut Code,
    Found {
        room,
        used,
        hash,
        way,
        full,
    }: Found,
) {
    let (next, other) = (c.local(I32), c.local(I64));
    let found = c.block(BlockType::Empty);
    c.i64(-1).set(full);
    c.i32(0).set(next);
    let searched = c.block(BlockType::Empty);
    let search = c.begin_loop();
    c.get(next).get(used).op().i32_ge_u();
    c.br_if(searched);
    place(c, room, next).op().i64_load(unaligned(OLD + 8));
    c.set(other);
    place(c, room, next).op().i64_load(unaligned(OLD));
    c.get(hash).op().i64_eq();
    c.begin_if(BlockType::Empty);
    c.get(next).set(way).get(other).set(full);
    c.br(found);
    c.end();
    c.get(other).get(full).op().i64_lt_u();
    c.begin_if(BlockType::Empty);
    c.get(next).set(way).get(other).set(full);
    c.end();
    add(c, next, 1);
    c.br(search);
    c.end();
    c.end();
    c.get(used).i32(WAYS).op().i32_lt_u();
    c.begin_if(BlockType::Empty);
    c.get(used).set(way).i64(0).set(full);
    c.end();
    c.end();
    c.free(next);
    c.free(other);
}
