//! Every request of the API, made from its own definition, so that a new one is attacked, too.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use prost::Message as _;
use prost_reflect::{
    DescriptorPool, DynamicMessage, FieldDescriptor, Kind, MessageDescriptor, ReflectMessage as _,
    Value,
};
use tollgate_admin::client::Client;
use tollgate_admin::proto::{
    ApplyStateHeader, ContentReference, Owner, PolicyPart, PolicyState, PushPolicyHeader, State,
    content_reference,
};
use tollgate_admin::{ALL, ApplyOrder, Operation, PushOrder, Secret, Status, socket_beside};
use tollgate_conformance::testbed::{Daemon, policy_file};

/// A kind of request: one per method, and two for an apply, whose objects are messages of their
/// own.
pub(crate) struct RequestKind {
    pub(crate) method: &'static str,
    row: &'static Operation,
    message: MessageDescriptor,
    make: fn(&Operation, Vec<u8>) -> Request,
}

/// A request that can be sent.
pub(crate) enum Request {
    Bytes(String, Vec<u8>),
    Push(PushOrder),
    Apply(ApplyOrder),
}

impl RequestKind {
    /// The paths of all fields of this sort, through all messages in it.
    pub(crate) fn paths(&self, is_meant: impl Fn(&FieldDescriptor) -> bool) -> Vec<Vec<String>> {
        paths(&self.message, 3, &is_meant)
    }

    /// A message with plausible values: objects of the bearer, by names that it may have.
    pub(crate) fn plausible(&self) -> DynamicMessage {
        plausible(&self.message)
    }

    pub(crate) fn request(&self, message: &DynamicMessage) -> Request {
        (self.make)(self.row, message.encode_to_vec())
    }
}

/// All of them.
pub(crate) fn kinds() -> Vec<RequestKind> {
    let pool = DescriptorPool::decode(tollgate_admin::DESCRIPTOR_SET).unwrap();
    let message = |name: &str| {
        let name = format!("tollgate.admin.v1.{name}");
        pool.get_message_by_name(&name).unwrap()
    };
    let mut kinds = Vec::new();
    for row in ALL {
        let method = row.method;
        let mut add = |message: MessageDescriptor, make: fn(&Operation, Vec<u8>) -> Request| {
            kinds.push(RequestKind {
                method,
                row,
                message,
                make,
            });
        };
        match method {
            "PushPolicy" => add(message("PushPolicyHeader"), push),
            "ApplyState" => {
                add(message("ApplyStateHeader"), apply_with_header);
                add(message("State"), apply_state);
            }
            _ => {
                let service = format!("tollgate.admin.v1.{}", row.service);
                let service = pool.get_service_by_name(&service).unwrap();
                let mut methods = service.methods();
                let found = methods.find(|found| found.name() == method).unwrap();
                add(found.input(), |row, bytes| {
                    Request::Bytes(row.path(), bytes)
                });
            }
        }
    }
    kinds
}

fn null() -> Vec<u8> {
    std::fs::read(policy_file("null")).unwrap()
}

fn push(_row: &Operation, header: Vec<u8>) -> Request {
    Request::Push(PushOrder {
        header: PushPolicyHeader::decode(&header[..]).unwrap(),
        parts: [(PolicyPart::Module.into(), null())].into(),
        ..PushOrder::default()
    })
}

/// The first content of an apply.
fn first_content() -> ContentReference {
    ContentReference {
        content: Some(content_reference::Content::Number(0)),
    }
}

/// With an object, which the set would remember.
fn apply_with_header(_row: &Operation, header: Vec<u8>) -> Request {
    let policy = PolicyState {
        name: "p".to_owned(),
        module: Some(first_content()),
        ..PolicyState::default()
    };
    Request::Apply(ApplyOrder {
        header: ApplyStateHeader::decode(&header[..]).unwrap(),
        state: State {
            policies: vec![policy],
            ..State::default()
        },
        contents: [(0, null())].into(),
        ..ApplyOrder::default()
    })
}

fn apply_state(_row: &Operation, state: Vec<u8>) -> Request {
    let mut state = State::decode(&state[..]).unwrap();
    for policy in &mut state.policies {
        policy.module = Some(first_content());
        policy.owner.get_or_insert_with(Owner::default);
    }
    Request::Apply(ApplyOrder {
        state,
        contents: [(0, null())].into(),
        ..ApplyOrder::default()
    })
}

fn plausible(of: &MessageDescriptor) -> DynamicMessage {
    let mut message = DynamicMessage::new(of.clone());
    for field in of.fields() {
        let value = match (field.name(), field.kind()) {
            ("tenant" | "provider", _) => continue,
            ("name", Kind::String) => Value::String("p".to_owned()),
            ("service", Kind::String) => Value::String("hotel.Echo".to_owned()),
            ("method", Kind::String) => Value::String("Echo".to_owned()),
            ("owner" | "at" | "header", Kind::Message(inner)) => Value::Message(plausible(&inner)),
            (_, Kind::Enum(_)) if !field.is_list() => Value::EnumNumber(1),
            ("version" | "from" | "to" | "before" | "after", Kind::Uint32) => Value::U32(1),
            ("number", Kind::Uint64) => Value::U64(1),
            _ => continue,
        };
        message.set_field(&field, value);
    }
    message
}

fn paths(
    of: &MessageDescriptor,
    depth: usize,
    is_meant: &dyn Fn(&FieldDescriptor) -> bool,
) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for field in of.fields() {
        let name = field.name().to_owned();
        match field.kind() {
            _ if is_meant(&field) => found.push(vec![name]),
            Kind::Message(inner) if depth > 0 && !field.is_map() => {
                let inner = paths(&inner, depth - 1, is_meant).into_iter();
                found.extend(inner.map(|path| [vec![name.clone()], path].concat()));
            }
            _ => {}
        }
    }
    found
}

/// Writes a value at a path. What is on the way is made plausible.
pub(crate) fn put(message: &mut DynamicMessage, path: &[String], value: &Value) {
    let field = message.descriptor().get_field_by_name(&path[0]).unwrap();
    let value = match (field.kind(), path.len()) {
        (Kind::Message(inner), 2..) => {
            let mut inside = match message.get_field(&field).into_owned() {
                Value::Message(inside) if message.has_field(&field) => inside,
                _ => plausible(&inner),
            };
            put(&mut inside, &path[1..], value);
            Value::Message(inside)
        }
        _ => value.clone(),
    };
    let value = match field.is_list() {
        true => Value::List(vec![value]),
        false => value,
    };
    message.set_field(&field, value);
}

/// Pushes and applies have few places, which are all attackers'.
static PLACE: Mutex<()> = Mutex::new(());

/// Sends a request. The bytes of its answer are those of the first message, if it has one.
pub(crate) fn send(client: &Client, request: Request) -> Result<Vec<u8>, Status> {
    let _place = match request {
        Request::Bytes(..) => None,
        _ => Some(PLACE.lock().unwrap_or_else(PoisonError::into_inner)),
    };
    match request {
        Request::Bytes(path, bytes) => client.ask_bytes(&path, bytes),
        Request::Push(order) => {
            let pushed = client.push(order, |_step| {})?;
            Ok(pushed.encode_to_vec())
        }
        Request::Apply(order) => Ok(client.apply(order, |_step| {})?.encode_to_vec()),
    }
}

pub(crate) fn client(daemon: &Daemon, token: &str) -> Client {
    let patience = Duration::from_secs(60);
    let token = Secret::new(token);
    Client::connect(&socket_beside(daemon.socket()), Some(&token), patience).unwrap()
}

/// Everything that a tenant has.
pub(crate) fn all_of(daemon: &Daemon, tenant: &str) -> String {
    let export = daemon.ok(&format!("export --tenant {tenant}"));
    let log = daemon.ok(&format!("audit show --last 1000 --tenant {tenant}"));
    export + &log
}
