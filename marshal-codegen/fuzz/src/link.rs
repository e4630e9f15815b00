//! Links between two daemons, without a socket, for the targets `frames` and `links`.

use tollgate_shm_abi::Code;
use tollgate_shm_abi::limits::MAX_METADATA_BYTES;
use tollgate_shm_abi::metadata::{Metadata, MetadataBuf};
use tollgate_transport::frame::{
    FLAG_BARE, FLAG_END_STREAM, FLAG_METADATA, FLAG_PROTOBUF, Header, Kind, metadata_room,
};
use tollgate_transport::limits::{
    HEADER, MAX_BINDS, MAX_DESCRIPTION, MAX_MESSAGE, MAX_SERVICE, MAX_TENANT, MAX_TEXT, SMALL_BODY,
    WINDOW_BYTES, WINDOW_CALLS,
};
use tollgate_transport::{
    Body, CallHead, Came, Event, Image, Link, LinkConfig, LinkError, LinkSetup, PresharedKey,
    Queued, Reason, Role, SendError, StreamCredit, StreamHead, Token,
};

/// The calls that an end makes as soon as it can, so that its peer may answer some.
pub(crate) const CALLS: u64 = 4;

/// The bytes of the large body with which a [`transcript`] ends. All are zero.
pub(crate) const LARGE: usize = SMALL_BODY as usize + 100;

/// The key of both ends, if they have one.
const KEY: [u8; 16] = *b"\xf3\x1e\x99\x07\x5a\xd2\x48\xc6\xb1\x60\x0d\x83\x2f\xea\x74\x15";

/// The address that the initiator dials.
const ADDRESS: ([u8; 4], u16) = ([127, 0, 0, 1], 7471);

/// The configuration of one end.
pub(crate) fn config(role: Role, has_key: bool) -> LinkConfig {
    let (name, instance) = match role {
        Role::Initiator => ("host-a", [0xa; 16]),
        Role::Responder => ("host-b", [0xb; 16]),
    };
    let key = has_key.then(|| PresharedKey::new(&KEY).expect("it isn't easy to guess"));
    LinkConfig {
        key,
        unauthenticated_loopback: !has_key,
        instance,
        ..LinkConfig::new(name)
    }
}

pub(crate) fn other(role: Role) -> Role {
    match role {
        Role::Initiator => Role::Responder,
        Role::Responder => Role::Initiator,
    }
}

/// A link, and what its daemon does and keeps.
pub(crate) struct End {
    pub(crate) link: Link,
    /// Its events as frames; see [`frame_of`].
    pub(crate) heard: Vec<u8>,
    /// The large body that is being read.
    body: Option<Vec<u8>>,
}

impl End {
    /// An end of a fresh link. It is the same for the same arguments.
    pub(crate) fn new(role: Role, has_key: bool) -> End {
        let (target, nonce) = match role {
            Role::Initiator => ("127.0.0.1:7471".to_owned(), [1; 32]),
            Role::Responder => (String::new(), [2; 32]),
        };
        let setup = LinkSetup {
            role,
            loopback: true,
            target,
            address: ADDRESS.into(),
            nonce,
            now_ns: 0,
        };
        let link = Link::new(&config(role, has_key), &setup);
        End::of(link.expect("its configuration is valid"))
    }

    /// An end that goes on with a link. The bytes of its large body so far are zero.
    pub(crate) fn of(link: Link) -> End {
        let body = link.pending_body().map(|(len, _)| vec![0; len]);
        let heard = Vec::new();
        End { link, heard, body }
    }

    /// The large body that is being read: the number of its bytes that are missing.
    pub(crate) fn missing(&self) -> Option<usize> {
        self.link.pending_body().map(|(len, filled)| len - filled)
    }

    /// Takes bytes from the peer.
    pub(crate) fn hear(&mut self, mut bytes: &[u8]) -> Result<(), LinkError> {
        loop {
            let taken = self.link.receive(bytes);
            bytes = &bytes[taken..];
            self.poll()?;
            if bytes.is_empty() {
                return Ok(());
            }
        }
    }

    fn poll(&mut self) -> Result<(), LinkError> {
        loop {
            if let Some(body) = &mut self.body {
                if !self.link.fill_body(body)?.is_empty() {
                    return Ok(());
                }
                self.heard.append(body);
                self.body = None;
            }
            let Some(event) = self.link.poll_event()? else {
                return Ok(());
            };
            let begins = matches!(event, Event::Ready { .. });
            self.heard.extend(frame_of(&event).unwrap_or_default());
            self.body = large(&event).map(|len| vec![0; len]);
            if begins {
                self.begin();
            }
        }
    }

    /// Calls, as far as the peer has granted it.
    fn begin(&mut self) {
        for call in 0..CALLS {
            let _may_have_no_credit =
                self.link
                    .send_call(&head(call), &Image::inline(b"call"), Token(0));
        }
    }

    /// All bytes that are queued.
    pub(crate) fn sent(&mut self) -> Vec<u8> {
        let mut out = Vec::new();
        self.link.transmit(&mut out, usize::MAX);
        out
    }
}

/// Moves bytes both ways until there are none left, and both ends are ready. Returns what `near`
/// got.
pub(crate) fn settle(near: &mut End, far: &mut End) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        let (to_far, to_near) = (near.sent(), far.sent());
        if to_far.is_empty() && to_near.is_empty() {
            assert!(near.link.is_ready() && far.link.is_ready());
            return all;
        }
        far.hear(&to_far).expect("the other end is honest");
        near.hear(&to_near).expect("the other end is honest");
        all.extend(to_near);
    }
}

/// All that the honest peer of a fresh end says: its handshake, frames of every kind, and a large
/// message.
pub(crate) fn transcript(role: Role, has_key: bool) -> Vec<u8> {
    let (mut near, mut far) = (End::new(role, has_key), End::new(other(role), has_key));
    let mut all = settle(&mut near, &mut far);
    far.link.tick(11 << 30).expect("it has heard its peer");
    far.link.tick(22 << 30).expect("it pings its peer");
    let (calls, bytes) = (2 * WINDOW_CALLS, 2 * WINDOW_BYTES);
    far.link.set_window(calls, bytes).expect("it is in range");
    say_everything(&mut far.link).expect("it is allowed");
    all.extend(far.sent());
    all
}

fn say_everything(link: &mut Link) -> Result<Queued, SendError> {
    let none = Metadata::default();
    let empty = Image::inline(b"");
    let plain = StreamHead {
        bare: false,
        protobuf: false,
        charge: 5,
    };
    let bare = StreamHead {
        bare: true,
        ..plain
    };
    let consumed = StreamCredit {
        messages: 1,
        bytes: 5,
    };
    let mut pairs = MetadataBuf::new();
    pairs.push("user", b"Ada").expect("it is valid");
    let pairs = pairs.view();
    link.send_bind(1, "acme", "hotel.Reservation", &[7; 32])?;
    let call = Image::inline(b"a request").with_metadata(pairs);
    link.send_call(&head(11), &call, Token(0))?;
    let protobuf = CallHead {
        protobuf: true,
        ..head(12)
    };
    link.send_call(&protobuf, &Image::inline(b"\x0a\x01x"), Token(0))?;
    link.send_cancel(12)?;
    let opens = CallHead {
        more: true,
        bare: true,
        ..head(13)
    };
    link.send_call(&opens, &empty.with_metadata(pairs), Token(0))?;
    link.send_request(13, true, &plain, &Image::inline(b"one"), Token(0))?;
    link.send_request(13, false, &bare, &empty, Token(0))?;
    link.send_response_credit(13, consumed)?;
    link.send_bound(2, "message hotel.Empty {}")?;
    link.send_bound(3, "")?;
    link.send_refused(4, Code::NOT_FOUND, "no such service", "service p.S {}")?;
    link.send_request_credit(0, consumed)?;
    let early = empty.with_metadata(pairs);
    link.send_response(0, &bare, &early, Token(0))?;
    link.send_response(0, &plain, &Image::inline(b"two"), Token(0))?;
    link.send_status(0, Code::OK, 0, "", pairs)?;
    link.send_status(1, Code::UNAVAILABLE, 250, "later", none)?;
    let reply = Image::inline(b"\x0a\x01y").with_metadata(pairs);
    link.send_reply(2, true, &reply, Token(0))?;
    link.send_goaway(Reason::SHUTDOWN, "bye")?;
    link.send_reply(3, false, &Image::inline(&[0; LARGE]), Token(0))
}

fn head(call: u64) -> CallHead {
    CallHead {
        call,
        bind: 3,
        method: 1,
        deadline_us: 250_000,
        protobuf: false,
        more: false,
        bare: false,
    }
}

/// A whole frame.
pub(crate) fn frame(header: Header, payload: &[u8]) -> Vec<u8> {
    let len = payload.len() as u32;
    let header = Header { len, ..header };
    [&header.encode()[..], payload].concat()
}

fn large(event: &Event<'_>) -> Option<usize> {
    match event {
        Event::Call { came, .. }
        | Event::Request { came, .. }
        | Event::Response { came, .. }
        | Event::Reply { came, .. } => match came.body {
            Body::Large(len) => Some(len),
            Body::Whole(_) => None,
        },
        _ => None,
    }
}

/// The frame that an event came in, by what is written in `frame.rs`, without a large body. `None`
/// for those that say less than their frame, or came in several. Panics if a limit doesn't hold.
fn frame_of(event: &Event<'_>) -> Option<Vec<u8>> {
    match event {
        Event::Ready { .. } | Event::Credit => None,
        Event::Bind {
            bind,
            tenant,
            service,
            schema_hash,
        } => {
            assert!(tenant.len() <= MAX_TENANT && service.len() <= MAX_SERVICE);
            let lens = [tenant, service].map(|name| (name.len() as u16).to_le_bytes());
            let names = [tenant.as_bytes(), service.as_bytes()].concat();
            let payload = [&schema_hash[..], lens.as_flattened(), &names].concat();
            Some(frame(of_bind(Kind::BIND, *bind), &payload))
        }
        // As one piece.
        Event::Bound { bind, description } => {
            assert!(description.len() <= MAX_DESCRIPTION);
            let aux = description.len() as u32;
            let header = of_bind(Kind::BOUND, *bind);
            Some(frame(Header { aux, ..header }, description.as_bytes()))
        }
        Event::Refused {
            bind,
            code,
            sentence,
            description,
        } => {
            let header = Header {
                aux: code.0,
                amount: sentence.len() as u64,
                ..of_bind(Kind::REFUSED, *bind)
            };
            Some(frame(header, [*sentence, *description].concat().as_bytes()))
        }
        Event::Call { head, came } => {
            let header = Header {
                method: head.method,
                amount: head.deadline_us,
                ..of_bind(Kind::CALL, head.bind)
            };
            let header = of_call(header, head.call, head.more);
            Some(message(header, head.protobuf, head.bare, came))
        }
        Event::Request {
            call,
            more,
            bare,
            protobuf,
            charge,
            came,
        } => {
            assert!(came.metadata.is_empty());
            let amount = u64::from(*charge);
            let header = of_call(Header::new(Kind::REQUEST), *call, *more);
            Some(message(Header { amount, ..header }, *protobuf, *bare, came))
        }
        Event::Response {
            call,
            bare,
            protobuf,
            charge,
            came,
        } => {
            let header = Header {
                call: *call,
                amount: u64::from(*charge),
                ..Header::new(Kind::RESPONSE)
            };
            Some(message(header, *protobuf, *bare, came))
        }
        Event::Reply {
            call,
            protobuf,
            came,
        } => {
            let header = of_call(Header::new(Kind::REPLY), *call, false);
            Some(message(header, *protobuf, false, came))
        }
        Event::RequestCredit {
            call,
            messages,
            bytes,
        } => Some(credit(Kind::REQUEST_CREDIT, *call, *messages, *bytes)),
        Event::ResponseCredit {
            call,
            messages,
            bytes,
        } => Some(credit(Kind::RESPONSE_CREDIT, *call, *messages, *bytes)),
        Event::Status {
            call,
            code,
            retry_after_ms,
            message,
            metadata,
        } => {
            assert!(message.len() <= MAX_TEXT);
            let header = Header {
                aux: code.0,
                amount: u64::from(*retry_after_ms),
                ..of_call(Header::new(Kind::STATUS), *call, false)
            };
            Some(with_metadata(header, metadata, message.as_bytes(), 0))
        }
        Event::Cancel { call } => {
            let header = Header::new(Kind::CANCEL);
            Some(frame(of_call(header, *call, true), &[]))
        }
        Event::GoAway { reason, message } => {
            assert!(message.len() <= MAX_TEXT);
            let header = Header::new(Kind::GOAWAY);
            let aux = reason.0;
            Some(frame(Header { aux, ..header }, message.as_bytes()))
        }
    }
}

fn of_bind(kind: Kind, bind: u32) -> Header {
    assert!(bind < MAX_BINDS);
    let header = Header::new(kind);
    Header { bind, ..header }
}

/// A header with this call, which ends its direction of it unless there is more.
fn of_call(header: Header, call: u64, more: bool) -> Header {
    let flags = match more {
        true => header.flags & !FLAG_END_STREAM,
        false => header.flags | FLAG_END_STREAM,
    };
    Header {
        call,
        flags,
        ..header
    }
}

fn credit(kind: Kind, call: u64, messages: u32, bytes: u32) -> Vec<u8> {
    assert!((messages, bytes) != (0, 0));
    let header = Header {
        call,
        aux: messages,
        amount: u64::from(bytes),
        ..Header::new(kind)
    };
    frame(header, &[])
}

fn message(header: Header, protobuf: bool, bare: bool, came: &Came<'_>) -> Vec<u8> {
    let (body, large): (&[u8], usize) = match &came.body {
        Body::Whole(body) => (&body[..], 0),
        Body::Large(len) => (&[], *len),
    };
    let len = body.len() + large;
    assert!(body.len() <= SMALL_BODY as usize && len <= MAX_MESSAGE as usize);
    assert!(large == 0 || large > SMALL_BODY as usize);
    assert!(came.inline_len as usize <= len);
    assert!(!bare || len == 0);
    let mut flags = header.flags;
    for (is_so, flag) in [(protobuf, FLAG_PROTOBUF), (bare, FLAG_BARE)] {
        flags |= if is_so { flag } else { 0 };
    }
    let aux = came.inline_len;
    let header = Header {
        aux,
        flags,
        ..header
    };
    with_metadata(header, &came.metadata, body, large)
}

/// A frame that begins with metadata, if there is any, and goes on with so many bytes that aren't
/// written here.
fn with_metadata(header: Header, metadata: &Metadata<'_>, rest: &[u8], large: usize) -> Vec<u8> {
    let block = metadata.as_bytes();
    assert!(block.len() <= MAX_METADATA_BYTES);
    assert_eq!(Metadata::check(block), Ok(*metadata));
    let room = metadata_room(block.len());
    let mut header = Header {
        len: (room + rest.len() + large) as u32,
        ..header
    };
    if room > 0 {
        header.flags |= FLAG_METADATA;
    }
    let mut frame = header.encode().to_vec();
    if room > 0 {
        frame.extend((block.len() as u32).to_le_bytes());
    }
    frame.extend_from_slice(block);
    frame.extend_from_slice(rest);
    frame
}

/// The frames among these bytes that make events, each as [`frame_of`] writes it, and how many of
/// the bytes are of whole ones.
pub(crate) fn frames_of_events(mut bytes: &[u8]) -> (Vec<u8>, usize) {
    let (mut frames, mut whole) = (Vec::new(), 0);
    let mut description = Vec::new();
    while let Some((head, rest)) = bytes.split_first_chunk::<HEADER>() {
        let header = Header::decode(head);
        let len = header.len as usize;
        let (payload, behind) = rest.split_at(len.min(rest.len()));
        match header.kind {
            Kind::HELLO | Kind::AUTH | Kind::CREDIT | Kind::PING | Kind::PONG | Kind::FEATURES => {}
            Kind::BOUND => {
                description.extend_from_slice(payload);
                if description.len() >= header.aux as usize {
                    frames.extend(frame(header, &description));
                    description.clear();
                }
            }
            _ => {
                frames.extend_from_slice(head);
                frames.extend_from_slice(payload);
            }
        }
        if payload.len() == len {
            whole = frames.len();
        }
        bytes = behind;
    }
    (frames, whole)
}
