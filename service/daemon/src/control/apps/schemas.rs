//! Schemas that applications have bound: resolved once per descriptor set, shared by hash, and
//! compiled per method when it is first called (see [`tollgate_jit::on_demand`]).
//!
//! ```text
//!   (SHA-256 of a descriptor set, service) ──▶ service's hash ──▶ layouts, programs, machine code
//!        at most MAX_KNOWN_SETS                    at most MAX_SCHEMAS; unused ones are dropped first
//! ```
//!
//! All tenants share both tables; an entry counts against the share of the tenant that brought it.
//! An application's answer depends on the descriptor set alone: on the names, numbers and types
//! that decide a layout, not on comments, options or file names, nor on earlier bindings. Only the
//! speed of a binding shows that a set is cached; an application that has the whole set learns from
//! it only that another one has it, too. The set itself is kept for a successor, and shown to
//! nobody else.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use serde::Serialize;
use sha2::{Digest, Sha256};
use tollgate_engine::Status;
use tollgate_jit::Codec;
use tollgate_marshal::program::{Step, StructProgram};
use tollgate_marshal::wire::WireField;
use tollgate_marshal::{Program, Programs};
use tollgate_schema::evolution::{MethodMatch, match_methods};
use tollgate_schema::{
    FieldLayout, MessageLayout, MethodLayout, Schema, SchemaError, ServiceLayout,
};
use tollgate_shm_abi::status::Code;

use crate::control::apps::turns::Turn;
use crate::limits::{
    MAX_KNOWN_SETS, MAX_KNOWN_SETS_PER_TENANT, MAX_PREFETCHED, MAX_SCHEMA_BYTES_PER_TENANT,
    MAX_SCHEMAS, MAX_SCHEMAS_PER_TENANT,
};
use tollgate_datapath::binds::ServiceSchema;
use tollgate_jit::on_demand::{Compiler, Method, Streams};

/// A service's schema, with the data that chains need.
pub(crate) struct BoundSchema {
    pub(crate) service: Arc<ServiceSchema>,
    pub(crate) layout: ServiceLayout,
    pub(crate) compiler: Compiler,
    /// A descriptor set that contains it.
    pub(crate) set: Arc<[u8]>,
}

/// Bytes of a message type in memory without its fields: its layout and its program.
const MESSAGE_BYTES: usize = size_of::<MessageLayout>() + size_of::<StructProgram>();
/// Bytes of a field: its layout, its step, and its protobuf record.
const FIELD_BYTES: usize = size_of::<FieldLayout>() + size_of::<Step>() + size_of::<WireField>();
/// Bytes of a method with its two programs.
const METHOD_BYTES: usize =
    size_of::<MethodLayout>() + size_of::<Method>() + 2 * size_of::<Program>();

/// A service of a descriptor set, with the programs that check and convert its messages. Making it
/// takes time proportional to the set.
#[derive(Clone, Debug)]
pub(crate) struct Resolved {
    pub(crate) layout: ServiceLayout,
    programs: Programs,
}

impl Resolved {
    fn of(layout: ServiceLayout) -> Resolved {
        let programs = Programs::new(&layout.layouts);
        Resolved { layout, programs }
    }

    /// Approximate bytes in memory.
    fn bytes(&self) -> usize {
        let layout = &self.layout;
        let messages = layout.layouts.messages.iter();
        let of_messages = messages.map(|message| {
            let names = message.fields.iter().map(|field| field.name.len());
            let names: usize = message.name.len() + names.sum::<usize>();
            MESSAGE_BYTES + message.fields.len() * FIELD_BYTES + names
        });
        let methods = layout.methods.iter();
        let of_methods = methods.map(|method| METHOD_BYTES + 2 * method.name.len());
        layout.description.len() + of_messages.sum::<usize>() + of_methods.sum::<usize>()
    }
}

/// The key of a binding: the digest of its descriptor set, and the service.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SetKey {
    digest: [u8; 32],
    service: String,
}

impl SetKey {
    /// Takes about 1 ms per MiB.
    pub(crate) fn new(descriptor_set: &[u8], service: &str) -> Self {
        Self {
            digest: Sha256::digest(descriptor_set).into(),
            service: service.to_owned(),
        }
    }
}

/// Counters for `status --json`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct SchemaCounters {
    /// Schemas in memory.
    pub(crate) held: usize,
    /// Known descriptor sets.
    pub(crate) known_sets: usize,
    /// Prefetched schemas.
    pub(crate) prefetched: usize,
    /// Bindings whose descriptor set was known.
    pub(crate) hits: u64,
    /// Bindings whose descriptor set had to be resolved.
    pub(crate) misses: u64,
}

/// The tenant that brought a schema; `None`: the operator did.
pub(crate) type Bringer = Option<Arc<str>>;

struct Held {
    schema: Arc<BoundSchema>,
    by: Bringer,
    /// Approximate bytes in memory, including the descriptor set.
    bytes: usize,
}

impl Held {
    fn is_used(&self) -> bool {
        Arc::strong_count(&self.schema) > 1 || Arc::strong_count(&self.schema.service) > 1
    }
}

/// Cached schemas.
pub(crate) struct Schemas {
    compiler: Compiler,
    by_hash: HashMap<[u8; 32], Held>,
    by_set: HashMap<SetKey, [u8; 32]>,
    /// Prefetched schemas, which are never dropped.
    kept: Vec<Arc<BoundSchema>>,
    /// The keys of `by_set` with their tenants, oldest first.
    set_order: VecDeque<(Bringer, SetKey)>,
    counters: SchemaCounters,
}

impl Schemas {
    pub(crate) fn new(compiler: Compiler) -> Self {
        Self {
            compiler,
            by_hash: HashMap::new(),
            by_set: HashMap::new(),
            kept: Vec::new(),
            set_order: VecDeque::new(),
            counters: SchemaCounters::default(),
        }
    }

    /// The schema of a descriptor set that was bound before, if it is still in memory.
    pub(crate) fn known(&mut self, key: &SetKey) -> Option<Arc<BoundSchema>> {
        let hash = self.by_set.get(key);
        let found = hash.and_then(|hash| self.of_hash(hash));
        match found {
            Some(_) => self.counters.hits += 1,
            None => self.counters.misses += 1,
        }
        found
    }

    /// The cached schema that equals this one, or a new one. `key` is cached, too.
    pub(crate) fn intern(
        &mut self,
        key: SetKey,
        resolved: Resolved,
        set: &[u8],
        by: &Bringer,
    ) -> Result<Arc<BoundSchema>, Status> {
        let hash = resolved.layout.hash;
        let schema = match self.of_hash(&hash) {
            Some(known) => known,
            None => self.add(resolved, set, by)?,
        };
        self.remember(key, hash, by);
        Ok(schema)
    }

    /// Like [`intern`](Self::intern), but before a binding; the schema is never dropped.
    ///
    /// # Errors
    /// [`MAX_PREFETCHED`] schemas are kept already, or there is no room for another schema.
    pub(crate) fn keep(
        &mut self,
        key: SetKey,
        resolved: Resolved,
        set: &[u8],
    ) -> Result<Arc<BoundSchema>, Status> {
        let hash = resolved.layout.hash;
        let is_kept = self.kept.iter().any(|kept| kept.layout.hash == hash);
        if !is_kept && self.kept.len() >= MAX_PREFETCHED {
            let text = format!(
                "{} can't be prefetched: {MAX_PREFETCHED} services are already, which is the limit",
                resolved.layout.name
            );
            return Err(Status::new(Code::RESOURCE_EXHAUSTED, text));
        }
        let schema = self.intern(key, resolved, set, &None)?;
        if !is_kept {
            self.kept.push(Arc::clone(&schema));
        }
        Ok(schema)
    }

    /// Like [`intern`](Self::intern), but the schema isn't cached.
    pub(crate) fn lent(&self, resolved: Resolved, set: &[u8], by: &Bringer) -> Arc<BoundSchema> {
        let known = self.by_hash.get(&resolved.layout.hash);
        known.map_or_else(
            || self.make(resolved, set, by),
            |held| Arc::clone(&held.schema),
        )
    }

    /// The number of schemas that a tenant has brought, and their bytes.
    fn of(&self, by: &Bringer) -> (usize, usize) {
        let its = self.by_hash.values().filter(|held| held.by == *by);
        its.fold((0, 0), |(count, bytes), held| {
            (count + 1, bytes + held.bytes)
        })
    }

    fn has_room(&self, by: &Bringer, more: usize) -> bool {
        let (count, bytes) = self.of(by);
        count < MAX_SCHEMAS_PER_TENANT && bytes + more <= MAX_SCHEMA_BYTES_PER_TENANT
    }

    /// Makes room for a tenant's schema of this many bytes.
    fn make_room(&mut self, by: &Bringer, more: usize) -> Result<(), Status> {
        let full = |text| Err(Status::new(Code::RESOURCE_EXHAUSTED, text));
        if let Some(tenant) = by {
            if !self.has_room(by, more) {
                self.by_hash
                    .retain(|_, held| held.by != *by || held.is_used());
            }
            if !self.has_room(by, more) {
                let (count, bytes) = self.of(by);
                return full(format!(
                    "tenant {tenant} has {count} schemas in use, of {bytes} bytes, and this one has {more} bytes; the limit of one tenant is \
                     {MAX_SCHEMAS_PER_TENANT} schemas, of {MAX_SCHEMA_BYTES_PER_TENANT} bytes"
                ));
            }
        }
        if self.by_hash.len() >= MAX_SCHEMAS {
            self.by_hash.retain(|_, held| held.is_used());
        }
        if self.by_hash.len() >= MAX_SCHEMAS {
            return full(format!(
                "the daemon has {MAX_SCHEMAS} schemas in use, which is the limit"
            ));
        }
        Ok(())
    }

    fn add(
        &mut self,
        resolved: Resolved,
        set: &[u8],
        by: &Bringer,
    ) -> Result<Arc<BoundSchema>, Status> {
        let bytes = resolved.bytes() + set.len();
        self.make_room(by, bytes)?;
        let schema = self.make(resolved, set, by);
        let held = Held {
            schema: Arc::clone(&schema),
            by: by.clone(),
            bytes,
        };
        self.by_hash.insert(schema.layout.hash, held);
        Ok(schema)
    }

    fn make(&self, resolved: Resolved, set: &[u8], by: &Bringer) -> Arc<BoundSchema> {
        let Resolved { layout, programs } = resolved;
        let compiler = self.compiler.of(by);
        let method = |method: &MethodLayout| {
            let name = format!("{}/{}", layout.name, method.name);
            let request = Codec::of(programs.of(method.input));
            let reply = Codec::of(programs.of(method.output));
            let streams = Streams {
                requests: method.client_streaming,
                responses: method.server_streaming,
            };
            Arc::new(Method::new(name, request, reply, streams, &compiler))
        };
        let service = Arc::new(ServiceSchema {
            name: layout.name.clone(),
            hash: layout.hash,
            description: layout.description.clone(),
            methods: layout.methods.iter().map(method).collect(),
        });
        Arc::new(BoundSchema {
            service,
            layout,
            compiler: compiler.clone(),
            set: set.into(),
        })
    }

    fn remember(&mut self, key: SetKey, hash: [u8; 32], by: &Bringer) {
        if self.by_set.insert(key.clone(), hash).is_none() {
            self.set_order.push_back((by.clone(), key));
        }
        // A tenant with too many entries evicts its own.
        let its = self.set_order.iter().filter(|(of, _)| of == by).count();
        let at = match by.is_some() && its > MAX_KNOWN_SETS_PER_TENANT {
            true => self.set_order.iter().position(|(of, _)| of == by),
            false => (self.set_order.len() > MAX_KNOWN_SETS).then_some(0),
        };
        if let Some((_, oldest)) = at.and_then(|at| self.set_order.remove(at)) {
            self.by_set.remove(&oldest);
        }
    }

    /// The cached schema with this hash.
    pub(crate) fn of_hash(&self, hash: &[u8; 32]) -> Option<Arc<BoundSchema>> {
        let held = self.by_hash.get(hash);
        held.map(|held| Arc::clone(&held.schema))
    }

    /// Every cached schema.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<BoundSchema>> {
        self.by_hash.values().map(|held| &held.schema)
    }

    pub(crate) fn counters(&self) -> SchemaCounters {
        SchemaCounters {
            held: self.by_hash.len(),
            known_sets: self.by_set.len(),
            prefetched: self.kept.len(),
            ..self.counters
        }
    }
}

fn refused(error: SchemaError) -> Status {
    Status::new(Code::INVALID_ARGUMENT, error.to_string())
}

/// Every service of a descriptor set.
pub(crate) fn parse_all(descriptor_set: &[u8]) -> Result<Vec<(SetKey, Resolved)>, Status> {
    let schema = Schema::from_descriptor_set(descriptor_set).map_err(refused)?;
    let digest = Sha256::digest(descriptor_set).into();
    let parsed = schema.services().map(|service| {
        let layout = schema.service(service).map_err(refused)?;
        let service = service.to_owned();
        Ok((SetKey { digest, service }, Resolved::of(layout)))
    });
    parsed.collect()
}

/// Parses an application's descriptor set.
pub(crate) fn parse(descriptor_set: &[u8], service: &str) -> Result<Resolved, Status> {
    let schema = Schema::from_descriptor_set(descriptor_set).map_err(refused)?;
    let layout = schema.service(service).map_err(refused)?;
    Ok(Resolved::of(layout))
}

/// The match of each method of `ours` in a schema with the description `theirs`, which may be
/// arbitrary. Runs on a blocking thread: the time is linear in both, up to milliseconds for large
/// ones.
pub(crate) async fn compare(
    turn: &Turn,
    ours: &Arc<ServiceSchema>,
    theirs: String,
) -> Vec<MethodMatch> {
    let (schema, methods) = (Arc::clone(ours), ours.methods.len());
    let compared = turn.on_blocking_thread(move || match_methods(&schema.description, &theirs));
    let compared = compared.await;
    let mut matches = compared.unwrap_or_else(|failed| {
        tracing::error!(
            "the schemas of {} couldn't be compared: {}",
            ours.name,
            failed.message
        );
        Vec::new()
    });
    matches.resize_with(methods, || MethodMatch::Refused {
        reason: "the daemon failed to compare the schemas".to_owned(),
    });
    matches
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn set(proto: &str) -> Vec<u8> {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("private-name.proto");
        std::fs::write(&file, proto).unwrap();
        let schema = Schema::compile_proto(&[&file], &[directory.path()]).unwrap();
        schema.descriptor_set().to_vec()
    }

    fn proto(field: &str) -> String {
        format!(
            r#"syntax = "proto3"; package p; import "google/protobuf/descriptor.proto";
            extend google.protobuf.MessageOptions {{ string note = 50000; }}
            // A private comment.
            message M {{ option (note) = "a private note"; string {field} = 1; }}
            service S {{ rpc Do(M) returns (M); }} service T {{ rpc Do(M) returns (M); }}"#
        )
    }

    fn schemas() -> Schemas {
        Schemas::new(tollgate_jit::on_demand::queue(1).0)
    }

    /// Resolves and interns a set, as for a binding.
    fn bind(schemas: &mut Schemas, set: &[u8], service: &str) -> Arc<BoundSchema> {
        let key = SetKey::new(set, service);
        match schemas.known(&key) {
            Some(known) => known,
            None => schemas
                .intern(key, parse(set, service).unwrap(), set, &None)
                .unwrap(),
        }
    }

    #[test]
    fn a_set_is_resolved_once_per_service() {
        let mut schemas = schemas();
        let (one, other) = (set(&proto("name")), set(&proto("other")));
        let first = bind(&mut schemas, &one, "p.S");
        assert!(Arc::ptr_eq(&first, &bind(&mut schemas, &one, "p.S")));
        assert!(!Arc::ptr_eq(&first, &bind(&mut schemas, &one, "p.T")));
        assert!(!Arc::ptr_eq(&first, &bind(&mut schemas, &other, "p.S")));
        let want = SchemaCounters {
            held: 3,
            known_sets: 3,
            prefetched: 0,
            hits: 1,
            misses: 3,
        };
        assert_eq!(schemas.counters(), want);
    }

    #[test]
    fn sets_that_say_the_same_differently_share_a_schema() {
        let mut schemas = schemas();
        let first = bind(&mut schemas, &set(&proto("name")), "p.S");
        let without_note = proto("name").replace("a private note", "another one");
        let second = bind(&mut schemas, &set(&without_note), "p.S");
        assert!(Arc::ptr_eq(&first, &second));
        assert_eq!(schemas.counters().held, 1);
        assert_eq!(schemas.counters().known_sets, 2);
    }

    /// Methods that share large messages are charged once for these.
    #[test]
    fn methods_share_the_steps_of_their_messages() {
        let proto = |methods: usize| {
            let messages = (0..200).map(|k| {
                let next = (k + 1) % 200;
                format!("message M{k} {{ M{next} next = 1; string name = 2; }}")
            });
            let methods = (0..methods).map(|k| format!("rpc Do{k}(M{0}) returns (M{0});", k % 200));
            let (messages, methods): (String, String) = (messages.collect(), methods.collect());
            format!(r#"syntax = "proto3"; package p; {messages} service S {{ {methods} }}"#)
        };
        let mut schemas = schemas();
        let schema = bind(&mut schemas, &set(&proto(300)), "p.S");
        let structs = |k: usize| schema.service.methods[k].request.program().structs();
        assert_eq!(structs(0).len(), 200);
        assert!(std::ptr::eq(structs(0), structs(299)));
        let of = |k: usize| schema.service.methods[k].request.program().root();
        assert_eq!(schema.layout.layouts.get(of(7)).name, "p.M7");
        let bytes = |methods| parse(&set(&proto(methods)), "p.S").unwrap().bytes();
        let (one, many) = (bytes(1), bytes(300));
        assert!(many < 2 * one + 300 * METHOD_BYTES, "{one} {many}");
    }

    /// The tables serve every tenant: only the layout of a tenant's files reaches them.
    #[test]
    fn what_is_cached_is_the_layout_and_nothing_else_of_the_files() {
        let mut schemas = schemas();
        let schema = bind(&mut schemas, &set(&proto("name")), "p.S");
        let held = format!("{:?} {}", schema.layout, schema.service.description);
        assert!(held.contains("p.M"));
        for private in ["private-name.proto", "private comment", "private note"] {
            assert!(!held.contains(private), "{private} in {held}");
        }
    }

    #[test]
    fn known_sets_are_limited_and_the_oldest_goes_first() {
        let mut schemas = schemas();
        let set = set(&proto("name"));
        let layout = parse(&set, "p.S").unwrap();
        let key = |k: usize| SetKey::new(&k.to_le_bytes(), "p.S");
        let by = |k: usize| Some(format!("t{}", k % 8).into());
        for k in 0..=MAX_KNOWN_SETS {
            let known = schemas.intern(key(k), layout.clone(), &set, &by(k));
            known.unwrap();
        }
        assert_eq!(schemas.counters().known_sets, MAX_KNOWN_SETS);
        assert_eq!(schemas.set_order.len(), MAX_KNOWN_SETS);
        assert!(schemas.known(&key(0)).is_none(), "the oldest is forgotten");
        assert!(schemas.known(&key(1)).is_some());
        assert!(schemas.known(&key(MAX_KNOWN_SETS)).is_some());
    }

    #[test]
    fn what_is_prefetched_is_known_to_who_binds_it_and_is_limited() {
        let mut schemas = schemas();
        let set = set(&proto("name"));
        let parsed = parse_all(&set).unwrap();
        assert_eq!(parsed.len(), 2);
        for (key, resolved) in parsed.clone().into_iter().chain(parsed.clone()) {
            schemas.keep(key, resolved, &set).unwrap();
        }
        assert_eq!(schemas.counters().prefetched, 2, "once each");
        assert!(schemas.known(&SetKey::new(&set, "p.T")).is_some());
        let (key, template) = parsed[0].clone();
        for k in 2..=MAX_PREFETCHED as u64 {
            let mut other = template.clone();
            other.layout.hash[..8].copy_from_slice(&k.to_le_bytes());
            let kept = schemas.keep(key.clone(), other, &set);
            assert_eq!(kept.is_ok(), k < MAX_PREFETCHED as u64, "{k}");
        }
        assert!(
            schemas.keep(key, template, &set).is_ok(),
            "it is kept already"
        );
    }

    #[test]
    fn a_schema_that_nobody_uses_is_forgotten_although_its_set_is_known() {
        let mut schemas = schemas();
        let used = bind(&mut schemas, &set(&proto("used")), "p.S");
        let idle = set(&proto("idle"));
        drop(bind(&mut schemas, &idle, "p.S"));
        let template = Resolved::of(used.layout.clone());
        for k in 2..MAX_SCHEMAS as u64 {
            let mut other = template.clone();
            other.layout.hash[..8].copy_from_slice(&k.to_le_bytes());
            let key = SetKey::new(&k.to_le_bytes(), "p.S");
            schemas.intern(key, other, &[], &None).unwrap();
        }
        assert_eq!(schemas.counters().held, MAX_SCHEMAS);
        let more = bind(&mut schemas, &set(&proto("more")), "p.S");
        assert_eq!(schemas.counters().held, 2, "what is used stays");
        assert!(schemas.known(&SetKey::new(&idle, "p.S")).is_none());
        assert!(!Arc::ptr_eq(&more, &used));
    }

    #[test]
    fn a_tenant_has_a_share_of_schemas_and_of_known_sets() {
        let mut schemas = schemas();
        let (mallory, acme) = (Some("mallory".into()), Some("acme".into()));
        let layout = parse(&set(&proto("name")), "p.S").unwrap();
        let mut kept = Vec::new();
        let mut bring = |by: &Bringer, k: u64| {
            let mut layout = layout.clone();
            layout.layout.hash[..8].copy_from_slice(&k.to_le_bytes());
            let key = SetKey::new(&k.to_le_bytes(), "p.S");
            let brought = schemas.intern(key, layout, &[], by);
            let counters = schemas.counters();
            brought.map(|schema| {
                kept.push(schema);
                (counters, kept.len())
            })
        };
        bring(&acme, 0).unwrap();
        let share = MAX_SCHEMAS_PER_TENANT as u64;
        for k in 1..=share {
            bring(&mallory, k).unwrap();
        }
        let refused = bring(&mallory, share + 1).unwrap_err();
        assert!(
            refused.message.contains("tenant mallory has 1024 schemas"),
            "{}",
            refused.message
        );
        bring(&acme, share + 1).unwrap();
        kept.truncate(1);
        for k in share + 2..5 * share {
            kept.truncate(1);
            let key = SetKey::new(&k.to_le_bytes(), "p.S");
            let mut layout = layout.clone();
            layout.layout.hash[..8].copy_from_slice(&k.to_le_bytes());
            schemas.intern(key, layout, &[], &mallory).unwrap();
        }
        let first = SetKey::new(&0u64.to_le_bytes(), "p.S");
        assert!(
            schemas.known(&first).is_some(),
            "acme's is known as it was, whatever mallory binds"
        );
        assert!(schemas.counters().known_sets <= MAX_KNOWN_SETS_PER_TENANT + 2);
        let mut hash = [9; 32];
        let mut kept = Vec::new();
        let mut bring = |by: &Bringer, bytes: usize| {
            let mut layout = layout.clone();
            hash[0] += 1;
            layout.layout.hash = hash;
            let key = SetKey::new(&hash, "p.S");
            let brought = schemas.intern(key, layout, &vec![0; bytes], by);
            brought.map(|schema| kept.push(schema))
        };
        let small = 64 << 10;
        for _ in 0..2 {
            bring(&mallory, MAX_SCHEMA_BYTES_PER_TENANT / 2 - small).unwrap();
        }
        let refused = bring(&mallory, 2 * small).unwrap_err();
        assert!(
            refused.message.contains("134217728 bytes"),
            "{}",
            refused.message
        );
        bring(&acme, 1).unwrap();
    }
}
