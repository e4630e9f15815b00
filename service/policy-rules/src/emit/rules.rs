//! Code for rules, and the functions that the host calls.
//!
//! ```text
//!   tollgate_request(count)   for each entry: the function of its method
//!   function of a method      allow; rule, rule, ..; the next function of this method, if there are many rules
//!   rule                      condition? values, then effects, then count, then deny or allow or go on
//! ```

use wasm_encoder::{BlockType, ValType};

use crate::emit::code::{Code, Label, Local, at};
use crate::emit::hash::hash;
use crate::emit::helper::{Helper, NO_TOKEN};
use crate::emit::helpers::{ALLOW, RECORD, VERDICT};
use crate::emit::module::{EFFECTS, HEAP, HEAP_BASE, Import, Module, PAGE, Span};
use crate::emit::values::Values;
use crate::error::{ErrorAt, fail};
use crate::file::{ERRORS, Hook, RulesFile};
use crate::limits;
use crate::ops::Typed;
use crate::plan::{ActionPlan, Condition, EndPlan, Plan, RatePlan, RulePlan, Side};
use crate::types::{Scalar, Type};

const I32: ValType = ValType::I32;
const I64: ValType = ValType::I64;

/// Bytes of an entry of the host's.
const ENTRY: u32 = 32;
/// The method's index in it.
const METHOD: u32 = 8;

/// Kinds of effects.
const CLEAR: u32 = 1;
const SET_BITS: u32 = 2;
const SET_BYTES: u32 = 3;
const SET_METADATA: u32 = 4;
const REMOVE_METADATA: u32 = 5;
const DELAY: u32 = 6;
const PRIORITY: u32 = 7;
const ROUTE: u32 = 8;

/// The level of a rule's log lines: information.
const LOG_LEVEL: u32 = 3;

/// Names of the counters: errors, and each rule's matches, as far as the ABI has room.
pub(crate) fn counters(file: &RulesFile) -> Vec<&str> {
    let rules = file.rules.iter().map(|rule| rule.name.as_str());
    let names = [ERRORS].into_iter().chain(rules);
    names.take(limits::COUNTERS).collect()
}

/// Writes a module.
pub(crate) fn emit(file: &RulesFile, plan: &Plan, manifest: &[u8]) -> Result<Vec<u8>, ErrorAt> {
    let sides = || plan.entries.iter().flat_map(|entry| &entry.sides);
    let mut imports = vec![Import::Counter];
    if sides().flat_map(|side| &side.rules).any(logs) {
        imports.push(Import::Log);
    }
    if sides().any(|side| side.usage.uses_clock) {
        imports.push(Import::Now);
    }
    if sides().any(|side| side.usage.limits_rates) {
        imports.extend([Import::Monotonic, Import::Get, Import::Replace]);
    }
    let mut module = Module::new(imports);
    let mut methods = [Vec::new(), Vec::new()];
    for entry in &plan.entries {
        for hook in Hook::ALL {
            let function = method(&mut module, file, &entry.sides[hook as usize]);
            methods[hook as usize].push(function);
        }
    }
    module.define_helpers();
    let mut exports = exports(&mut module);
    for hook in Hook::ALL {
        let functions = &methods[hook as usize];
        if functions.iter().any(Option::is_some) {
            let name = match hook {
                Hook::Request => "tollgate_request",
                Hook::Reply => "tollgate_reply",
            };
            exports.push((name, evaluate(&mut module, functions)));
        }
    }
    let limited = [
        ("constants", module.data_bytes(), limits::DATA_BYTES),
        (
            "code in one function",
            module.largest_function(),
            limits::FUNCTION_BYTES,
        ),
    ];
    for (what, bytes, most) in limited {
        if bytes > most {
            return fail(
                0,
                format!("the module has {bytes} bytes of {what}; the limit is {most}"),
            );
        }
    }
    let bytes = module.finish(&exports, manifest);
    match bytes.len() {
        len if len > limits::MODULE_BYTES => {
            let most = limits::MODULE_BYTES;
            fail(
                0,
                format!("the module has {len} bytes; the limit is {most}"),
            )
        }
        _ => Ok(bytes),
    }
}

fn logs(rule: &RulePlan) -> bool {
    let is_log = |action: &ActionPlan| matches!(action, ActionPlan::Log(_));
    rule.actions.iter().any(is_log)
}

/// The function of a method, if it has rules.
fn method(module: &mut Module, file: &RulesFile, side: &Side) -> Option<u32> {
    if side.rules.is_empty() {
        return None;
    }
    let first = module.declare(&[I32, I32], &[]);
    let mut chunk = Chunk::new(first);
    chunk
        .code
        .get(Local(0))
        .i32(ALLOW)
        .op()
        .i32_store(at(VERDICT));
    let records = records(side);
    if records > 0 {
        chunk.code.i32(0).op().global_set(EFFECTS);
    }
    for rule in &side.rules {
        if chunk.code.len() > limits::CHUNK_BYTES {
            let next = module.declare(&[I32, I32], &[]);
            chunk.code.get(Local(0)).get(Local(1)).call(next);
            let done = std::mem::replace(&mut chunk, Chunk::new(next));
            module.define(done.function, done.code);
        }
        RuleWriter {
            module,
            file,
            side,
            rule,
            records,
            code: &mut chunk.code,
        }
        .write();
    }
    if records > 0 {
        finish(module, &mut chunk.code, records);
    }
    module.define(chunk.function, chunk.code);
    Some(first)
}

/// A function with some of a method's rules. Its parameters are the host's entry and the view.
struct Chunk {
    function: u32,
    code: Code,
}

impl Chunk {
    fn new(function: u32) -> Chunk {
        let code = Code::new(2);
        Chunk { function, code }
    }
}

/// Places in the list of effects: each thing that can be changed has one of its own, so a later
/// rule replaces what an earlier one has set.
fn records(side: &Side) -> u32 {
    let usage = &side.usage;
    let others = [usage.uses_delay, usage.uses_priority, usage.uses_route];
    let others = others.iter().filter(|used| **used).count();
    (usage.field_changes.len() + usage.key_changes.len() + others) as u32
}

fn finish(module: &mut Module, code: &mut Code, records: u32) {
    let finish = module.helper(Helper::Finish);
    code.get(Local(0)).i32(records).call(finish);
}

/// Writes one rule into a function.
struct RuleWriter<'a> {
    module: &'a mut Module,
    file: &'a RulesFile,
    side: &'a Side,
    rule: &'a RulePlan,
    records: u32,
    code: &'a mut Code,
}

/// An action's value in locals.
#[derive(Clone, Copy)]
enum Kept {
    Nothing,
    Number(Local),
    Bytes(Local, Local),
    /// Whether there is something to do.
    Flag(Local),
}

impl RuleWriter<'_> {
    fn values(&mut self) -> Values<'_> {
        Values {
            module: self.module,
            code: self.code,
            view: Local(1),
            fields: self.side.usage.fields.len(),
            loops: Vec::new(),
        }
    }

    fn write(mut self) {
        let next = self.code.block(BlockType::Empty);
        match &self.rule.when {
            Condition::Always => {}
            Condition::If(condition) => self.condition(condition, next),
            Condition::Never(reason) => {
                let number = self.module.reason(reason);
                self.code.i32(number);
                self.error(next);
                self.code.end();
                return;
            }
        }
        if let Some(rate) = &self.rule.beyond {
            self.beyond(rate, next);
        }
        let kept = self.keep(next);
        for (action, kept) in self.rule.actions.iter().zip(kept) {
            self.act(action, kept);
        }
        if let Some(counter) = self.counter() {
            let count = self.module.import(Import::Counter);
            self.code.i32(counter).i64(1).call(count);
        }
        match &self.rule.end {
            EndPlan::Next => {}
            EndPlan::Allow => {
                if self.records > 0 {
                    finish(self.module, self.code, self.records);
                }
                self.code.op().return_();
            }
            EndPlan::Deny { status, text } => self.deny(*status, text),
        }
        self.code.end();
    }

    /// The rule's counter, unless there are too many rules.
    fn counter(&self) -> Option<u32> {
        let counter = self.rule.rule + 1;
        (counter < limits::COUNTERS).then_some(counter as u32)
    }

    /// Goes on, unless the condition is true.
    fn condition(&mut self, condition: &Typed, next: Label) {
        self.values().boolean(condition);
        if !condition.fails {
            self.code.op().i32_eqz();
            self.code.br_if(next);
            return;
        }
        let found = self.code.local(I32);
        self.code.tee(found).op().i32_eqz();
        self.code.br_if(next);
        self.code.get(found).i32(1).op().i32_gt_u();
        self.code.begin_if(BlockType::Empty);
        self.code.get(found);
        self.error(next);
        self.code.end();
        self.code.free(found);
    }

    /// Goes on if there is a token.
    fn beyond(&mut self, rate: &RatePlan, next: Label) {
        let take = self.module.helper(Helper::Take);
        let no_room = self.module.reason("the policy's shared state is full");
        let name = hash(self.file.rules[self.rule.rule].name.as_bytes());
        let outcome = self.code.local(I32);
        let done = self.code.block(BlockType::Empty);
        let error = self.code.block(BlockType::Result(I32));
        let (key, len) = self.values().span(&rate.key, error);
        self.code.get(key).get(len).i64(name.cast_signed());
        for ns in [rate.interval_ns, rate.depth_ns] {
            self.code.i64(ns.cast_signed());
        }
        self.code.call(take).tee(outcome).op().i32_eqz();
        self.code.br_if(next);
        self.code.get(outcome).i32(NO_TOKEN).op().i32_eq();
        self.code.br_if(done);
        self.code.i32(no_room);
        self.code.end();
        self.error(next);
        self.code.end();
        self.code.free_all([outcome, key, len]);
    }

    /// The error whose number is on the stack denies the call, or skips the rule.
    fn error(&mut self, next: Label) {
        let rule = &self.file.rules[self.rule.rule];
        if rule.skips_errors {
            let count = self.module.import(Import::Counter);
            self.code.op().drop();
            self.code.i32(0).i64(1).call(count);
            self.code.br(next);
            return;
        }
        let status = match &rule.end {
            crate::file::End::Deny { status, .. } => status.0,
            _ => tollgate_shm_abi::status::Code::INTERNAL.0,
        };
        self.fail(status);
    }

    /// Denies the call because of the error whose number is on the stack.
    fn fail(&mut self, status: u32) {
        let rule = &self.file.rules[self.rule.rule];
        let prefix = match self.file.names_rules {
            true => format!("rule {} (line {}) can't be decided: ", rule.name, rule.line),
            false => "a rule can't be decided: ".to_owned(),
        };
        let prefix = self.module.constant(prefix.as_bytes());
        let fail = self.module.helper(Helper::Fail);
        let number = self.code.local(I32);
        self.code.set(number).get(Local(0)).i32(status);
        self.code
            .i32(prefix.address)
            .i32(prefix.len)
            .get(number)
            .call(fail);
        self.code.op().return_();
        self.code.free(number);
    }

    fn deny(&mut self, status: u32, text: &Typed) {
        let deny = self.module.helper(Helper::Deny);
        if !text.fails {
            self.code.get(Local(0)).i32(status);
            // No branch leads to it: the text can't fail.
            let error = self.code.block(self.module.block(&[I32, I32]));
            self.values().value(text, error);
            self.code.end();
            self.code.call(deny).op().return_();
            return;
        }
        let error = self.code.block(BlockType::Result(I32));
        let (address, len) = self.values().span(text, error);
        self.code
            .get(Local(0))
            .i32(status)
            .get(address)
            .get(len)
            .call(deny);
        self.code.op().return_();
        self.code.end();
        self.code.free(address);
        self.code.free(len);
        self.fail(status);
    }

    /// Computes the values of all actions, so that an error in one leaves the others undone.
    fn keep(&mut self, next: Label) -> Vec<Kept> {
        let rule = self.rule;
        if rule.actions.iter().all(|action| !can_fail(action)) {
            // Nothing leads to the label: see `can_fail`.
            return rule
                .actions
                .iter()
                .map(|action| self.value_of(action, next))
                .collect();
        }
        let done = self.code.block(BlockType::Empty);
        let error = self.code.block(BlockType::Result(I32));
        let kept = rule
            .actions
            .iter()
            .map(|action| self.value_of(action, error));
        let kept = kept.collect();
        self.code.br(done);
        self.code.end();
        self.error(next);
        self.code.end();
        kept
    }

    fn value_of(&mut self, action: &ActionPlan, error: Label) -> Kept {
        match action {
            ActionPlan::SetField {
                scalar,
                value,
                inside,
                misfit,
                ..
            } => {
                if let Some((entry, absent)) = inside {
                    let present = crate::ops::present(*entry);
                    let mut values = self.values();
                    values.boolean(&present);
                    values.code.op().i32_eqz();
                    values.fail_if(absent, error);
                }
                self.number_or_bytes(*scalar, value, misfit, error)
            }
            ActionPlan::ClearField { inside, .. } => match inside {
                None => Kept::Nothing,
                Some(entry) => {
                    let present = crate::ops::present(*entry);
                    self.values().boolean(&present);
                    let flag = self.code.local(I32);
                    self.code.set(flag);
                    Kept::Flag(flag)
                }
            },
            ActionPlan::SetMetadata { value, misfit, .. } => {
                let check = misfit.as_ref().map(|misfit| (Helper::IsPrintable, misfit));
                self.checked(value, check, error)
            }
            ActionPlan::Route { label, misfit } => {
                let check = label
                    .as_const()
                    .is_none()
                    .then_some((Helper::IsRoute, misfit));
                self.checked(label, check, error)
            }
            ActionPlan::Log(line) => self.checked(line, None, error),
            ActionPlan::RemoveMetadata { .. }
            | ActionPlan::Delay { .. }
            | ActionPlan::Priority(_) => Kept::Nothing,
        }
    }

    /// Bytes that pass a test.
    fn checked(&mut self, value: &Typed, check: Option<(Helper, &String)>, error: Label) -> Kept {
        let (address, len) = self.values().span(value, error);
        if let Some((helper, misfit)) = check {
            let helper = self.module.helper(helper);
            self.code.get(address).get(len).call(helper).op().i32_eqz();
            self.values().fail_if(misfit, error);
        }
        Kept::Bytes(address, len)
    }

    /// A field's new value as the ABI wants it.
    fn number_or_bytes(
        &mut self,
        scalar: Scalar,
        value: &Typed,
        misfit: &str,
        error: Label,
    ) -> Kept {
        if value.ty.is_span() {
            return self.checked(value, None, error);
        }
        let bits = self.code.local(I64);
        let mut values = self.values();
        values.value(value, error);
        match value.ty {
            Type::Bool => {
                values.code.op().i64_extend_i32_u();
            }
            Type::Double if scalar == Scalar::Float => {
                values
                    .code
                    .op()
                    .f32_demote_f64()
                    .i32_reinterpret_f32()
                    .i64_extend_i32_u();
            }
            Type::Double => {
                values.code.op().i64_reinterpret_f64();
            }
            _ => {}
        }
        values.code.set(bits);
        let is_narrow = matches!(scalar, Scalar::Int32 | Scalar::Uint32);
        if is_narrow && value.as_const().is_none() {
            values.code.get(bits).get(bits);
            match scalar {
                Scalar::Int32 => values.code.op().i64_extend32_s(),
                _ => values.code.op().i64_const(0xffff_ffff).i64_and(),
            };
            values.code.op().i64_ne();
            values.fail_if(misfit, error);
        }
        Kept::Number(bits)
    }

    fn act(&mut self, action: &ActionPlan, kept: Kept) {
        let usage = &self.side.usage;
        let fields = usage.field_changes.len() as u32;
        let after_keys = fields + usage.key_changes.len() as u32;
        let after_delay = after_keys + u32::from(usage.uses_delay);
        let after_priority = after_delay + u32::from(usage.uses_priority);
        match action {
            ActionPlan::SetField { change, scalar, .. } => {
                let kind = match scalar {
                    Scalar::String | Scalar::Bytes => SET_BYTES,
                    _ => SET_BITS,
                };
                self.record(*change as u32, kind, *change as u32, kept);
            }
            ActionPlan::ClearField { change, .. } => {
                if let Kept::Flag(flag) = kept {
                    self.code.get(flag);
                    self.code.begin_if(BlockType::Empty);
                }
                self.record(*change as u32, CLEAR, *change as u32, Kept::Nothing);
                if let Kept::Flag(flag) = kept {
                    self.code.end();
                    self.code.free(flag);
                }
            }
            ActionPlan::SetMetadata { key, .. } => {
                self.record(fields + *key as u32, SET_METADATA, *key as u32, kept);
            }
            ActionPlan::RemoveMetadata { key } => {
                self.record(fields + *key as u32, REMOVE_METADATA, *key as u32, kept);
            }
            ActionPlan::Delay { us } => {
                let bits = self.constant_bits(*us);
                self.record(after_keys, DELAY, 0, bits);
            }
            ActionPlan::Priority(priority) => {
                let bits = self.constant_bits((*priority).into());
                self.record(after_delay, PRIORITY, 0, bits);
            }
            ActionPlan::Route { .. } => self.record(after_priority, ROUTE, 0, kept),
            ActionPlan::Log(_) => {
                if let Kept::Bytes(address, len) = kept {
                    let log = self.module.import(Import::Log);
                    self.code.i32(LOG_LEVEL).get(address).get(len).call(log);
                    self.code.free(address);
                    self.code.free(len);
                }
            }
        }
    }

    fn constant_bits(&mut self, value: u32) -> Kept {
        let bits = self.code.local(I64);
        self.code.i64(value.into()).set(bits);
        Kept::Number(bits)
    }

    /// Fills a record's place in the list.
    fn record(&mut self, place: u32, kind: u32, field: u32, kept: Kept) {
        let list = self.module.helper(Helper::List);
        let begin = self.code.local(I32);
        let offset = place * RECORD;
        self.code.i32(self.records * RECORD).call(list).tee(begin);
        self.code.i32(kind).op().i32_store(at(offset));
        self.code
            .get(begin)
            .i32(field)
            .op()
            .i32_store(at(offset + 4));
        match kept {
            Kept::Number(bits) => {
                self.code
                    .get(begin)
                    .get(bits)
                    .op()
                    .i64_store(at(offset + 8));
                self.code.free(bits);
            }
            Kept::Bytes(address, len) => {
                self.code
                    .get(begin)
                    .get(address)
                    .op()
                    .i32_store(at(offset + 8));
                self.code
                    .get(begin)
                    .get(len)
                    .op()
                    .i32_store(at(offset + 12));
                self.code.free(address);
                self.code.free(len);
            }
            Kept::Nothing | Kept::Flag(_) => {}
        }
        self.code.free(begin);
    }
}

/// Whether an action's value can end in an error.
fn can_fail(action: &ActionPlan) -> bool {
    match action {
        ActionPlan::SetField { value, inside, .. } => {
            value.fails || inside.is_some() || value.as_const().is_none()
        }
        ActionPlan::SetMetadata { value, misfit, .. } => value.fails || misfit.is_some(),
        ActionPlan::Route { label, .. } => label.fails || label.as_const().is_none(),
        ActionPlan::Log(line) => line.fails,
        _ => false,
    }
}

/// `tollgate_request` or `tollgate_reply`: the functions of all methods.
fn evaluate(module: &mut Module, methods: &[Option<u32>]) -> u32 {
    let function = module.declare(&[I32], &[I32]);
    let mut code = Code::new(1);
    let (entry, left, buffer) = (code.local(I32), Local(0), module.buffer());
    code.op().global_get(HEAP_BASE).global_set(HEAP);
    code.i32(buffer).set(entry);
    let done = code.block(BlockType::Empty);
    let top = code.begin_loop();
    code.get(left).op().i32_eqz();
    code.br_if(done);
    match methods {
        [Some(only)] => call(&mut code, entry, buffer, Some(*only)),
        _ => choose(&mut code, entry, buffer, methods),
    }
    code.get(entry).i32(ENTRY).op().i32_add();
    code.set(entry);
    code.get(left).i32(1).op().i32_sub();
    code.set(left);
    code.br(top);
    code.end();
    code.end();
    code.i32(0);
    module.define(function, code);
    function
}

/// Evaluates an entry by one method's rules; without rules the call passes.
fn call(code: &mut Code, entry: Local, buffer: u32, method: Option<u32>) {
    match method {
        Some(method) => {
            code.get(entry).get(entry).op().i32_load(at(0));
            code.i32(buffer).op().i32_add();
            code.call(method);
        }
        None => {
            code.get(entry).i32(ALLOW).op().i32_store(at(VERDICT));
        }
    }
}

/// A branch for each method.
fn choose(code: &mut Code, entry: Local, buffer: u32, methods: &[Option<u32>]) {
    let end = code.block(BlockType::Empty);
    let labels: Vec<_> = methods
        .iter()
        .map(|_| code.block(BlockType::Empty))
        .collect();
    // The innermost block is the first method's.
    let targets: Vec<_> = labels
        .iter()
        .rev()
        .map(|label| code.relative(*label))
        .collect();
    let last = targets.last().copied().unwrap_or(0);
    code.get(entry).op().i32_load(at(METHOD));
    code.op().br_table(targets, last);
    for method in methods {
        code.end();
        call(code, entry, buffer, *method);
        code.br(end);
    }
    code.end();
}

/// The functions that every module has.
fn exports(module: &mut Module) -> Vec<(&'static str, u32)> {
    let text = module.constant(b"rules have no configuration: what they do is in their file");
    let configure = configure(module, text);
    let buffer = buffer(module);
    let marker = module.declare(&[], &[]);
    module.define(marker, Code::new(0));
    vec![
        ("tollgate_abi_v1", marker),
        ("tollgate_buffer", buffer),
        ("tollgate_configure", configure),
    ]
}

/// The buffer stays where it is; only the heap behind it moves.
fn buffer(module: &mut Module) -> u32 {
    let function = module.declare(&[I32], &[I32]);
    let begin = module.buffer();
    let mut code = Code::new(1);
    let c = &mut code;
    let heap = c.local(I32);
    c.get(Local(0)).i32(begin + 7).op().i32_add();
    c.i32(!7).op().i32_and();
    c.tee(heap).op().global_set(HEAP_BASE);
    c.op().memory_size(0);
    c.i32(16).op().i32_shl();
    c.get(heap).op().i32_lt_u();
    c.begin_if(BlockType::Empty);
    c.get(heap).op().memory_size(0);
    c.i32(16).op().i32_shl().i32_sub();
    c.i32(PAGE - 1).op().i32_add();
    c.i32(16).op().i32_shr_u().memory_grow(0);
    c.i32(u32::MAX).op().i32_eq();
    c.begin_if(BlockType::Empty);
    c.op().unreachable();
    c.end();
    c.end();
    c.i32(begin);
    module.define(function, code);
    function
}

fn configure(module: &mut Module, text: Span) -> u32 {
    let function = module.declare(&[I32], &[I32]);
    let begin = module.buffer();
    let mut code = Code::new(1);
    code.get(Local(0)).op().i32_eqz();
    code.begin_if(BlockType::Empty);
    code.i32(0).op().return_();
    code.end();
    code.i32(begin)
        .i32(text.address)
        .i32(text.len)
        .op()
        .memory_copy(0, 0);
    code.i32(text.len);
    module.define(function, code);
    function
}
