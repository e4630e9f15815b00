//! A test bench for policies: native, with `cargo test`, without a daemon.
//!
//! ```
//! use tollgate_policy::testing::{Answer, Desk, Field, counter, set_now_ms};
//! use tollgate_policy::{Call, Status, Verdict, policy};
//!
//! #[derive(Default)]
//! struct OfficeHours;
//!
//! #[policy(name = "office-hours", proto = "tests/desk.proto", counters(late), capabilities(clock))]
//! impl OfficeHours {
//!     #[request("desk.Desk/Ask", reads(name))]
//!     fn ask(&mut self, request: &Ask<'_>) -> Verdict<'_> {
//!         if request.name() != "boss" && tollgate_policy::now_ms() / 3_600_000 % 24 >= 17 {
//!             LATE.add(1);
//!             return Verdict::deny(Status::UNAVAILABLE, "come back tomorrow");
//!         }
//!         Verdict::Allow
//!     }
//! }
//!
//! let mut desk = Desk::<OfficeHours>::new("").unwrap();
//! set_now_ms(18 * 3_600_000);
//! let answer = desk.request("desk.Desk/Ask", &[("name", Field::Text("Ada"))]);
//! assert_eq!(answer, Answer::deny(Status::UNAVAILABLE, "come back tomorrow"));
//! assert_eq!(counter(0), 1);
//! assert_eq!(desk.request("desk.Desk/Ask", &[("name", Field::Text("boss"))]), Answer::Allow);
//! ```
//!
//! The host functions use one host per thread, which [`Desk::new`] resets. The clock stands still
//! until it is set; random bytes come from a fixed seed. A field that a test doesn't give has
//! protobuf's default: zero, empty, or absent. Use `tollgate policy test` for tests that need the
//! real sandbox (budgets, memory).

use std::time::Duration;

use crate::{Call, Effect, Effects, NewValue, Policy, Status, Verdict, value};

pub use host::{counter, gauge, histogram, log, set_monotonic_us, set_now_ms, set_state_room};

/// A field's value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Field<'a> {
    /// No value.
    Absent,
    /// Signed integers and enums.
    Int(i64),
    /// Unsigned integers.
    Uint(u64),
    /// A bool.
    Bool(bool),
    /// A float.
    Float(f32),
    /// A double.
    Double(f64),
    /// A string.
    Text(&'a str),
    /// A bytes field.
    Bytes(&'a [u8]),
    /// The values of a metadata key; an empty list is the same as [`Field::Absent`].
    Values(&'a [&'a [u8]]),
}

/// Writes the view of these fields, like the host.
pub fn view(fields: &[Field<'_>]) -> Vec<u8> {
    view_with(fields, 0..0)
}

/// Writes the view of these fields, like the host. Those in `typed` are fields that the
/// configuration names, so their entries have their types.
pub fn view_with(fields: &[Field<'_>], typed: std::ops::Range<usize>) -> Vec<u8> {
    let mut data_at = 8 + 16 * fields.len();
    let mut data = Vec::new();
    let mut view = Vec::new();
    for (at, field) in fields.iter().enumerate() {
        let (len, value) = match *field {
            Field::Absent => (0, 0),
            Field::Int(value) => (0, value.cast_unsigned()),
            Field::Uint(value) => (0, value),
            Field::Bool(value) => (0, value.into()),
            Field::Float(value) => (0, value.to_bits().into()),
            Field::Double(value) => (0, value.to_bits()),
            Field::Text(text) => append(&mut data, &mut data_at, text.as_bytes()),
            Field::Bytes(bytes) => append(&mut data, &mut data_at, bytes),
            Field::Values([]) => (0, 0),
            Field::Values(values) => append(&mut data, &mut data_at, &list(values)),
        };
        let present = match field {
            Field::Values(values) => values.len() as u32,
            Field::Absent => 0,
            field if typed.contains(&at) => field.tag(),
            _ => 1,
        };
        view.extend(present.to_le_bytes());
        view.extend((len as u32).to_le_bytes());
        view.extend(value.to_le_bytes());
    }
    let mut whole = Vec::with_capacity(data_at);
    whole.extend((data_at as u32).to_le_bytes());
    whole.extend((fields.len() as u32).to_le_bytes());
    whole.extend(view);
    whole.extend(data);
    whole
}

fn append(data: &mut Vec<u8>, at: &mut usize, bytes: &[u8]) -> (usize, u64) {
    let begin = *at as u64;
    data.extend(bytes);
    *at += bytes.len();
    (bytes.len(), begin)
}

/// The values of a metadata key, encoded as in a view.
fn list(values: &[&[u8]]) -> Vec<u8> {
    let one = |value: &&[u8]| [&(value.len() as u32).to_le_bytes()[..], value].concat();
    values.iter().flat_map(one).collect()
}

/// The type of a field.
#[allow(missing_docs, reason = "the variants are those of `Field`")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Int,
    Uint,
    Bool,
    Float,
    Double,
    Text,
    Bytes,
}

/// A field that a policy declares.
#[derive(Clone, Copy, Debug)]
pub struct FieldInfo {
    /// The path, as in the manifest.
    pub path: &'static str,
    /// Its type.
    pub kind: Kind,
    /// Whether the field can be absent.
    pub optional: bool,
}

/// One direction of a method.
#[derive(Clone, Copy, Debug)]
pub struct HookInfo {
    /// Whether the policy has a function for it.
    pub judged: bool,
    /// The fields that it reads, in the order of the view.
    pub reads: &'static [FieldInfo],
    /// The fields that it may change.
    pub changes: &'static [FieldInfo],
    /// Lists of the configuration whose fields it reads, after `reads`.
    pub read_lists: &'static [&'static str],
    /// Lists of the configuration whose fields it may change, after `changes`.
    pub change_lists: &'static [&'static str],
    /// The metadata keys that it reads, in the order of the view.
    pub metadata: Keys,
    /// The metadata keys that it may change.
    pub metadata_changes: Keys,
}

/// Metadata keys that a policy declares.
#[derive(Clone, Copy, Debug)]
pub enum Keys {
    /// These keys.
    Listed(&'static [&'static str]),
    /// The keys that the configuration lists.
    Configured,
}

/// An entry of the manifest's `methods`.
#[derive(Clone, Copy, Debug)]
pub struct MethodInfo {
    /// The method, or the wildcard.
    pub pattern: &'static str,
    /// Requests.
    pub request: HookInfo,
    /// Replies.
    pub reply: HookInfo,
}

/// A policy whose fields are known by name. [`policy`](crate::policy) implements it.
pub trait Described {
    /// The manifest's methods.
    const METHODS: &'static [MethodInfo];
}

/// The outcome of a call.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// It passes unchanged.
    Allow,
    /// It passes with these fields changed, and without other effects.
    Change(Vec<(&'static str, Changed)>),
    /// It passes with effects.
    Effects(Done),
    /// It ends with this status and message.
    Deny(Status, String),
}

/// The effects on a call.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Done {
    /// The changed fields.
    pub fields: Vec<(&'static str, Changed)>,
    /// The metadata keys that were set to one value, or removed.
    pub metadata: Vec<(String, Option<Vec<u8>>)>,
    /// The delay.
    pub delay: Duration,
    /// Its priority, if that was set.
    pub priority: Option<u8>,
    /// The label of its route, if one was chosen.
    pub route: Option<String>,
}

/// The new value of a field.
#[allow(missing_docs, reason = "the variants are those of `Field`")]
#[derive(Clone, Debug, PartialEq)]
pub enum Changed {
    Clear,
    Int(i64),
    Uint(u64),
    Bool(bool),
    Float(f32),
    Double(f64),
    Text(String),
    Bytes(Vec<u8>),
}

impl Answer {
    /// A denial.
    pub fn deny(status: Status, message: &str) -> Answer {
        Answer::Deny(status, message.to_owned())
    }

    /// True unless the call was denied.
    pub fn passes(&self) -> bool {
        !matches!(self, Answer::Deny(..))
    }
}

/// A configured policy under test.
#[derive(Debug)]
pub struct Desk<P> {
    policy: P,
    /// The keys that the configuration lists, for policies that leave keys to it: `metadata`, then
    /// `metadata_changes`.
    keys: [Vec<String>; 2],
    /// The configuration's lists of fields.
    lists: Vec<(&'static str, Vec<&'static str>)>,
}

impl<P: Policy + Described> Desk<P> {
    /// Configures the policy on a host that is reset first.
    ///
    /// # Errors
    /// The policy's own message about its configuration.
    pub fn new(config: &str) -> Result<Desk<P>, String> {
        host::reset();
        Desk::beside(config)
    }

    /// Configures another instance on the current host, like several runtimes or two versions.
    ///
    /// # Errors
    /// The policy's own message about its configuration.
    pub fn beside(config: &str) -> Result<Desk<P>, String> {
        let policy = P::configure(config.as_bytes())?;
        Ok(Desk {
            policy,
            keys: Default::default(),
            lists: Vec::new(),
        })
    }

    /// Repeats a list of fields of the configuration, for a policy that takes fields from it: the
    /// test bench doesn't parse configurations. A call's values for them have the type of the
    /// [`Field`]; those that a test doesn't give are absent.
    #[must_use]
    pub fn with_list(mut self, name: &'static str, paths: &[&'static str]) -> Desk<P> {
        self.lists.push((name, paths.to_vec()));
        self
    }

    /// The paths of some of the configuration's lists.
    fn paths(&self, lists: &[&str]) -> Vec<&'static str> {
        let paths = |name: &&str| {
            let mut given = self.lists.iter();
            let given = given.find(|(given, _)| given == name);
            given.map_or(Vec::new(), |(_, paths)| paths.clone())
        };
        lists.iter().flat_map(paths).collect()
    }

    /// Repeats the configuration's `metadata` and `metadata_changes`, for a policy that leaves keys
    /// to it: the test bench doesn't parse configurations.
    #[must_use]
    pub fn with_keys(mut self, metadata: &[&str], changes: &[&str]) -> Desk<P> {
        self.keys =
            [metadata, changes].map(|keys| keys.iter().map(|key| (*key).to_owned()).collect());
        self
    }

    /// The policy itself.
    pub fn policy(&mut self) -> &mut P {
        &mut self.policy
    }

    /// Requests a verdict on a request to `service/method`, a full name.
    ///
    /// # Panics
    /// If the policy has no hook for the method, or no such field, or one of another type. Then the
    /// test is wrong.
    pub fn request(&mut self, method: &str, fields: &[(&str, Field<'_>)]) -> Answer {
        self.request_with(method, fields, &[])
    }

    /// Requests a verdict on a request with metadata: pairs of key and value. The policy sees only
    /// declared keys.
    ///
    /// # Panics
    /// Like [`Desk::request`].
    pub fn request_with(
        &mut self,
        method: &str,
        fields: &[(&str, Field<'_>)],
        metadata: &[(&str, &[u8])],
    ) -> Answer {
        let (index, entry) = find::<P>(method);
        let hook = &entry.request;
        let (reads, changes) = (self.paths(hook.read_lists), self.paths(hook.change_lists));
        let view = view_of(hook, method, fields, metadata, (&reads, &self.keys[0]));
        let verdict = self.policy.request(&Call::new(index, &view));
        answer(verdict, hook, (&changes, &self.keys[1]))
    }

    /// Requests a verdict on a reply.
    ///
    /// # Panics
    /// Like [`Desk::request`].
    pub fn reply(&mut self, method: &str, fields: &[(&str, Field<'_>)]) -> Answer {
        self.reply_with(method, fields, &[])
    }

    /// Requests a verdict on a reply with metadata.
    ///
    /// # Panics
    /// Like [`Desk::request`].
    pub fn reply_with(
        &mut self,
        method: &str,
        fields: &[(&str, Field<'_>)],
        metadata: &[(&str, &[u8])],
    ) -> Answer {
        let (index, entry) = find::<P>(method);
        let hook = &entry.reply;
        let (reads, changes) = (self.paths(hook.read_lists), self.paths(hook.change_lists));
        let view = view_of(hook, method, fields, metadata, (&reads, &self.keys[0]));
        let verdict = self.policy.reply(&Call::new(index, &view));
        answer(verdict, hook, (&changes, &self.keys[1]))
    }
}

/// The most specific entry, chosen like the host does.
fn find<P: Described>(method: &str) -> (u32, &'static MethodInfo) {
    let wildcard = method
        .split_once('/')
        .map(|(service, _)| format!("{service}/*"));
    let candidates = [Some(method), wildcard.as_deref(), Some("*")];
    let found = candidates.iter().flatten().find_map(|pattern| {
        let at = P::METHODS.iter().position(|m| m.pattern == *pattern)?;
        Some((at as u32, &P::METHODS[at]))
    });
    found.unwrap_or_else(|| panic!("the policy has no hook for {method}"))
}

impl Keys {
    /// The keys, with those of the configuration.
    fn names<'a>(&self, configured: &'a [String]) -> Vec<&'a str> {
        match self {
            Keys::Listed(keys) => keys.to_vec(),
            Keys::Configured => configured.iter().map(String::as_str).collect(),
        }
    }
}

fn view_of(
    hook: &HookInfo,
    method: &str,
    given: &[(&str, Field<'_>)],
    metadata: &[(&str, &[u8])],
    (lists, configured): (&[&'static str], &[String]),
) -> Vec<u8> {
    assert!(
        hook.judged,
        "the policy has no hook for this direction of {method}"
    );
    for (path, _) in given {
        let is_declared = hook.reads.iter().any(|field| field.path == *path);
        let known = is_declared || lists.contains(path);
        assert!(known, "the policy doesn't read `{path}` of {method}");
    }
    let mut fields: Vec<Field<'_>> = hook
        .reads
        .iter()
        .map(
            |field| match given.iter().find(|(path, _)| *path == field.path) {
                Some((_, value)) => {
                    let fits = value.kind().is_none_or(|kind| kind == field.kind);
                    assert!(fits, "`{}` is {:?}, not {value:?}", field.path, field.kind);
                    *value
                }
                None if field.optional => Field::Absent,
                None => Field::zero(field.kind),
            },
        )
        .collect();
    let typed = fields.len()..fields.len() + lists.len();
    let value = |path: &&str| given.iter().find(|(given, _)| given == path);
    let values = lists.iter().map(value);
    fields.extend(values.map(|given| given.map_or(Field::Absent, |(_, value)| *value)));
    let keys = hook.metadata.names(configured);
    let values: Vec<Vec<&[u8]>> = keys
        .iter()
        .map(|key| {
            let pairs = metadata.iter().filter(|(found, _)| found == key);
            pairs.map(|(_, value)| *value).collect()
        })
        .collect();
    fields.extend(values.iter().map(|values| Field::Values(values)));
    view_with(&fields, typed)
}

impl Field<'_> {
    /// The type of a field that the configuration names.
    fn tag(&self) -> u32 {
        match self {
            Field::Absent | Field::Values(_) => 0,
            Field::Bool(_) => value::BOOL,
            Field::Int(_) => value::INT,
            Field::Uint(_) => value::UINT,
            Field::Float(_) => value::FLOAT,
            Field::Double(_) => value::DOUBLE,
            Field::Text(_) => value::TEXT,
            Field::Bytes(_) => value::BYTES,
        }
    }

    fn kind(&self) -> Option<Kind> {
        Some(match self {
            Field::Absent | Field::Values(_) => return None,
            Field::Int(_) => Kind::Int,
            Field::Uint(_) => Kind::Uint,
            Field::Bool(_) => Kind::Bool,
            Field::Float(_) => Kind::Float,
            Field::Double(_) => Kind::Double,
            Field::Text(_) => Kind::Text,
            Field::Bytes(_) => Kind::Bytes,
        })
    }

    const fn zero(kind: Kind) -> Field<'static> {
        match kind {
            Kind::Int => Field::Int(0),
            Kind::Uint => Field::Uint(0),
            Kind::Bool => Field::Bool(false),
            Kind::Float => Field::Float(0.0),
            Kind::Double => Field::Double(0.0),
            Kind::Text => Field::Text(""),
            Kind::Bytes => Field::Bytes(&[]),
        }
    }
}

fn answer(
    verdict: Verdict<'_>,
    hook: &HookInfo,
    configured: (&[&'static str], &[String]),
) -> Answer {
    match verdict {
        Verdict::Allow => Answer::Allow,
        Verdict::Deny(status, message) => Answer::Deny(status, message.into_owned()),
        Verdict::Effects(effects) => {
            let done = done(&effects, hook, configured);
            let rest = Done {
                fields: Vec::new(),
                ..done.clone()
            };
            match rest == Done::default() {
                true => Answer::Change(done.fields),
                false => Answer::Effects(done),
            }
        }
    }
}

fn done(
    effects: &Effects,
    hook: &HookInfo,
    (lists, configured): (&[&'static str], &[String]),
) -> Done {
    let keys = hook.metadata_changes.names(configured);
    let mut done = Done::default();
    for effect in effects.iter() {
        match effect {
            Effect::Field(field, value) => done.fields.push(changed(*field, value, hook, lists)),
            Effect::Metadata(key, value) => {
                let key = keys[*key as usize].to_owned();
                done.metadata.push((key, value.clone()));
            }
            Effect::Delay(us) => done.delay = Duration::from_micros((*us).into()),
            Effect::Priority(priority) => done.priority = Some(*priority),
            Effect::Route(route) => done.route = Some(route.label().to_owned()),
        }
    }
    done
}

fn changed(
    field: u32,
    value: &NewValue,
    hook: &HookInfo,
    lists: &[&'static str],
) -> (&'static str, Changed) {
    let Some(FieldInfo { path, kind, .. }) = hook.changes.get(field as usize).copied() else {
        return (lists[field as usize - hook.changes.len()], untyped(value));
    };
    let value = match (value, kind) {
        (NewValue::Clear, _) => Changed::Clear,
        (NewValue::Bits(bits), Kind::Int) => Changed::Int(bits.cast_signed()),
        (NewValue::Bits(bits), Kind::Bool) => Changed::Bool(*bits != 0),
        (NewValue::Bits(bits), Kind::Float) => Changed::Float(f32::from_bits(*bits as u32)),
        (NewValue::Bits(bits), Kind::Double) => Changed::Double(f64::from_bits(*bits)),
        (NewValue::Bits(bits), _) => Changed::Uint(*bits),
        (NewValue::Bytes(bytes), Kind::Text) => {
            Changed::Text(String::from_utf8(bytes.clone()).expect("setters take `&str`"))
        }
        (NewValue::Bytes(bytes), _) => Changed::Bytes(bytes.clone()),
    };
    (path, value)
}

/// The new value of a field that the configuration names: its type isn't known.
fn untyped(value: &NewValue) -> Changed {
    match value {
        NewValue::Clear => Changed::Clear,
        NewValue::Bits(bits) => Changed::Uint(*bits),
        NewValue::Bytes(bytes) => match String::from_utf8(bytes.clone()) {
            Ok(text) => Changed::Text(text),
            Err(_) => Changed::Bytes(bytes.clone()),
        },
    }
}

/// The host functions, natively. They enforce the daemon's default limits.
pub(crate) mod host {
    use std::cell::RefCell;
    use std::collections::BTreeMap;

    use crate::Level;

    #[derive(Default)]
    struct Host {
        log: Vec<(Level, String)>,
        counters: BTreeMap<u32, u64>,
        gauges: BTreeMap<u32, i64>,
        histograms: BTreeMap<u32, Vec<i64>>,
        state: BTreeMap<Vec<u8>, Vec<u8>>,
        /// `None`: no limit.
        state_room: Option<usize>,
        /// How often the state was read.
        state_gets: u64,
        now_ms: u64,
        monotonic_us: u64,
        random: u64,
    }

    thread_local! {
        static HOST: RefCell<Host> = RefCell::default();
    }

    fn with<R>(f: impl FnOnce(&mut Host) -> R) -> R {
        HOST.with_borrow_mut(f)
    }

    pub(crate) fn reset() {
        with(|host| *host = Host::default());
    }

    /// Takes the lines of the log.
    pub fn log() -> Vec<(Level, String)> {
        with(|host| std::mem::take(&mut host.log))
    }

    /// A counter's value, by its position in the manifest.
    pub fn counter(id: u32) -> u64 {
        with(|host| host.counters.get(&id).copied().unwrap_or(0))
    }

    /// A gauge's value.
    pub fn gauge(id: u32) -> Option<i64> {
        with(|host| host.gauges.get(&id).copied())
    }

    /// The values that a histogram got.
    pub fn histogram(id: u32) -> Vec<i64> {
        with(|host| host.histograms.get(&id).cloned().unwrap_or_default())
    }

    /// Sets both clocks: to this Unix time, and to as much since the arbitrary time.
    pub fn set_now_ms(now: u64) {
        with(|host| (host.now_ms, host.monotonic_us) = (now, now * 1000));
    }

    /// Sets the monotonic clock.
    pub fn set_monotonic_us(now: u64) {
        with(|host| host.monotonic_us = now);
    }

    /// Limits the number of further keys in the shared state, to test a policy when it is full.
    pub fn set_state_room(keys: usize) {
        with(|host| host.state_room = Some(keys));
    }

    #[cfg(test)]
    pub(crate) fn state_gets() -> u64 {
        with(|host| host.state_gets)
    }

    pub(crate) mod calls {
        use super::{Level, with};

        pub(crate) fn log(level: u32, line: &str) {
            let level = match level {
                1 => Level::Error,
                2 => Level::Warning,
                3 => Level::Info,
                _ => Level::Debug,
            };
            let kept = &line[..line.floor_char_boundary(512)];
            with(|host| host.log.push((level, kept.to_owned())));
        }

        pub(crate) fn counter(id: u32, delta: u64) {
            with(|host| {
                let value = host.counters.entry(id).or_default();
                *value = value.wrapping_add(delta);
            });
        }

        pub(crate) fn gauge(id: u32, value: i64) {
            with(|host| host.gauges.insert(id, value));
        }

        pub(crate) fn histogram(id: u32, value: i64) {
            with(|host| host.histograms.entry(id).or_default().push(value));
        }

        pub(crate) fn now_ms() -> u64 {
            with(|host| host.now_ms)
        }

        pub(crate) fn monotonic_us() -> u64 {
            with(|host| host.monotonic_us)
        }

        pub(crate) fn state_get(key: &[u8], room: &mut [u8]) -> Option<usize> {
            with(|host| {
                host.state_gets += 1;
                let value = host.state.get(key)?;
                let copied = value.len().min(room.len());
                room[..copied].copy_from_slice(&value[..copied]);
                Some(value.len())
            })
        }

        pub(crate) fn state_set(key: &[u8], value: &[u8]) -> bool {
            with(|host| {
                let full = host.state_room.is_some_and(|room| host.state.len() >= room);
                if full && !host.state.contains_key(key) {
                    return false;
                }
                host.state.insert(key.to_owned(), value.to_owned());
                true
            })
        }

        pub(crate) fn state_replace(key: &[u8], old: Option<&[u8]>, value: &[u8]) -> i32 {
            if with(|host| host.state.get(key).map(|there| &there[..]) != old) {
                return 2;
            }
            i32::from(!state_set(key, value))
        }

        pub(crate) fn state_delete(key: &[u8]) {
            with(|host| host.state.remove(key));
        }

        pub(crate) fn state_add(key: &[u8], delta: i64) -> i64 {
            let mut old = [0; 8];
            let len = state_get(key, &mut old).unwrap_or(8);
            assert_eq!(
                len, 8,
                "state_add found a value of {len} bytes; an integer has 8"
            );
            let sum = i64::from_le_bytes(old).wrapping_add(delta);
            assert!(
                state_set(key, &sum.to_le_bytes()),
                "the shared state is full"
            );
            sum
        }

        pub(crate) fn random(bytes: &mut [u8]) {
            assert!(
                bytes.len() <= 256,
                "random was asked for {} bytes",
                bytes.len()
            );
            with(|host| {
                for byte in bytes {
                    // splitmix64, one byte of each step.
                    host.random = host.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
                    let mixed =
                        (host.random ^ host.random >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                    *byte = (mixed >> 40) as u8;
                }
            });
        }
    }
}
