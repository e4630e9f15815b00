//! Received frames: each is validated by its header before any payload is kept, accounted for, and
//! presented as an event.

use tollgate_shm_abi::Code;
use tollgate_shm_abi::metadata::Metadata;

use super::{BodyCheck, Description, Incoming, Link};
use crate::config::Role;
use crate::error::{LinkError, Reason};
use crate::event::{Body, CallHead, Came, Credit, Event};
use crate::frame::{BIND_FIXED, Header, Kind, METADATA_FIXED, metadata_room, u16_at, u32_at};
use crate::handshake::{Action, PROOF};
use crate::limits;
use crate::seal::{TAG, What};

/// A frame that yields an event, as found by `next_frame`.
pub(super) enum Found {
    Ready,
    Frame {
        header: Header,
        start: usize,
        end: usize,
    },
    Large {
        header: Header,
        /// The position of its metadata.
        metadata: (usize, usize),
        /// The bytes of the message.
        len: usize,
    },
}

impl Link {
    /// Finds the next frame that yields an event; handles the others.
    pub(super) fn next_frame(&mut self) -> Result<Option<Found>, LinkError> {
        self.description
            .take_if(|description| description.bytes.len() == description.len);
        loop {
            if let Some(incoming) = &mut self.incoming {
                if !incoming.skip {
                    return Ok(None);
                }
                incoming.filled += self.rx.drop_up_to(incoming.len - incoming.filled);
                if incoming.filled < incoming.len {
                    return Ok(None);
                }
                self.incoming = None;
            }
            let Some(header) = self.rx.header() else {
                return Ok(None);
            };
            let header = Header::decode(header);
            self.check_header(&header)?;
            let body = header.kind.has_message();
            let Some(room) = self.metadata_room(&header)? else {
                return Ok(None);
            };
            let tag = self.tag_room();
            if body && header.len as usize - room > limits::SMALL_BODY as usize {
                let Some((start, end)) = self.rx.take_frame(tag, room + tag) else {
                    return Ok(None);
                };
                let check = self.open_head(start, end)?;
                let end = end - tag;
                self.account(&header)?;
                self.check_metadata(header.kind, start, end)?;
                let len = header.len as usize - room;
                self.incoming = Some(Incoming {
                    len,
                    filled: 0,
                    skip: false,
                    check,
                });
                return Ok(Some(Found::Large {
                    header,
                    metadata: (start, end),
                    len,
                }));
            }
            let Some((start, end)) = self.rx.take_frame(tag, header.len as usize) else {
                return Ok(None);
            };
            self.open(What::Whole, start, end)?;
            if let Some(found) = self.on_frame(header, start, end)? {
                return Ok(Some(found));
            }
        }
    }

    /// The bytes of the tag after the next frame's header.
    fn tag_room(&self) -> usize {
        match self.opener {
            Some(_) => TAG,
            None => 0,
        }
    }

    /// Checks that these bytes, after their header and tag, are what the peer sent next.
    fn open(&mut self, what: What, start: usize, end: usize) -> Result<(), LinkError> {
        let Some(opener) = &mut self.opener else {
            return Ok(());
        };
        let behind = self.rx.bytes(start, end);
        let before = self.rx.bytes(start - TAG - limits::HEADER, start);
        let (header, tag) = before.split_at(limits::HEADER);
        if !opener.cover(what).of(&[header, behind]).is(tag) {
            return Err(LinkError::Forged);
        }
        opener.advance();
        Ok(())
    }

    /// The same for the part before a large body, which ends with the body's tag.
    fn open_head(&mut self, start: usize, end: usize) -> Result<Option<BodyCheck>, LinkError> {
        let Some(opener) = &self.opener else {
            return Ok(None);
        };
        let cover = opener.cover(What::Body);
        let tag = self.rx.bytes(end - TAG, end);
        let tag = *tag.first_chunk().expect("it has so many bytes");
        self.open(What::Head, start, end)?;
        let seen = 0;
        Ok(Some(BodyCheck { tag, cover, seen }))
    }

    /// Validates a header by itself, before any of its payload is kept.
    fn check_header(&self, header: &Header) -> Result<(), LinkError> {
        let Header { kind, len, .. } = *header;
        if !kind.is_known(self.features()) {
            return Err(LinkError::UnknownKind { kind });
        }
        let limit = self.longest(header);
        if len > limit {
            return Err(LinkError::TooLong { kind, len, limit });
        }
        let field = header.reserved(self.features());
        if let Some(field) = field.or_else(|| self.out_of_range(header)) {
            return Err(LinkError::Reserved { kind, field });
        }
        let fits = match kind {
            Kind::AUTH => len as usize == PROOF,
            _ if header.is_bare() => len == 0 || header.has_metadata(),
            _ if kind.has_message() => header.aux <= len,
            Kind::REFUSED => header.amount <= u64::from(len),
            Kind::BIND => len as usize >= BIND_FIXED,
            _ => true,
        };
        if !fits {
            return Err(LinkError::Malformed { kind, len });
        }
        let binds = matches!(kind, Kind::BIND | Kind::BOUND | Kind::REFUSED | Kind::CALL);
        if binds && header.bind >= limits::MAX_BINDS {
            return Err(LinkError::BindId {
                kind,
                bind: header.bind,
            });
        }
        Ok(())
    }

    /// The longest allowed payload of such a frame at present, in bytes.
    fn longest(&self, header: &Header) -> u32 {
        let metadata = if header.has_metadata() {
            metadata_room(limits::MAX_METADATA) as u32
        } else {
            0
        };
        let limit = match header.kind {
            Kind::HELLO => limits::MAX_HANDSHAKE,
            Kind::AUTH => PROOF as u32,
            Kind::BIND => (BIND_FIXED + limits::MAX_TENANT + limits::MAX_SERVICE) as u32,
            Kind::BOUND if self.carries_protobuf() => limits::MAX_CONTROL,
            Kind::REFUSED => limits::MAX_CONTROL,
            kind if kind.has_message() => limits::MAX_MESSAGE + metadata,
            Kind::STATUS => limits::MAX_TEXT as u32 + metadata,
            Kind::GOAWAY => limits::MAX_TEXT as u32,
            _ => 0,
        };
        if self.is_ready() {
            limit
        } else {
            limit.min(limits::MAX_HANDSHAKE)
        }
    }

    /// The first field of this kind with an invalid value.
    fn out_of_range(&self, header: &Header) -> Option<&'static str> {
        let Header {
            kind, aux, amount, ..
        } = *header;
        match kind {
            Kind::STATUS if aux == Code::OK.0 && !self.carries_streams() => Some("code"),
            Kind::STATUS
            | Kind::REQUEST
            | Kind::RESPONSE
            | Kind::REQUEST_CREDIT
            | Kind::RESPONSE_CREDIT
                if amount > u64::from(u32::MAX) =>
            {
                Some("amount")
            }
            Kind::REQUEST_CREDIT | Kind::RESPONSE_CREDIT if aux == 0 && amount == 0 => {
                Some("credit")
            }
            _ => None,
        }
    }

    /// The bytes of a frame's payload for its metadata, validated before they are kept. `None`: the
    /// length hasn't come yet.
    fn metadata_room(&self, header: &Header) -> Result<Option<usize>, LinkError> {
        if !header.has_metadata() {
            return Ok(Some(0));
        }
        let malformed = LinkError::Malformed {
            kind: header.kind,
            len: header.len,
        };
        if (header.len as usize) < METADATA_FIXED {
            return Err(malformed);
        }
        let Some(fixed) = self.rx.payload(self.tag_room(), METADATA_FIXED) else {
            return Ok(None);
        };
        let block = u32_at(fixed, 0) as usize;
        if block == 0 || block > limits::MAX_METADATA {
            return Err(LinkError::Reserved {
                kind: header.kind,
                field: "metadata length",
            });
        }
        let room = metadata_room(block);
        let rest = header.len.checked_sub(room as u32).filter(|len| {
            if header.is_bare() {
                *len == 0
            } else if header.kind == Kind::STATUS {
                *len as usize <= limits::MAX_TEXT
            } else {
                header.aux <= *len && *len <= limits::MAX_MESSAGE
            }
        });
        match rest {
            Some(_) => Ok(Some(room)),
            None => Err(malformed),
        }
    }

    /// Validates the metadata at the beginning of a payload, if there is any.
    fn check_metadata(&self, kind: Kind, start: usize, end: usize) -> Result<(), LinkError> {
        let block = self.rx.bytes(start, end).get(METADATA_FIXED..);
        match Metadata::check(block.unwrap_or_default()) {
            Ok(_) => Ok(()),
            Err(error) => Err(LinkError::Metadata { kind, error }),
        }
    }

    /// Accounts for a frame of a call; refuses frames that the peer had no right to send.
    fn account(&mut self, header: &Header) -> Result<(), LinkError> {
        self.handshake.on_other(header.kind)?;
        match header.kind {
            Kind::CALL => {
                let Credit { calls, bytes } = self.granted;
                if calls == 0 || bytes < u64::from(header.len) {
                    return Err(LinkError::CreditOverrun {
                        len: header.len,
                        calls,
                        bytes,
                    });
                }
                self.granted = Credit {
                    calls: calls - 1,
                    bytes: bytes - u64::from(header.len),
                };
            }
            Kind::RESPONSE if self.unanswered == 0 => {
                return Err(LinkError::Unasked { call: header.call });
            }
            Kind::REPLY | Kind::STATUS => {
                let left = self.unanswered.checked_sub(1);
                self.unanswered = left.ok_or(LinkError::Unasked { call: header.call })?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Processes a whole frame; returns whether it yields an event.
    fn on_frame(
        &mut self,
        header: Header,
        start: usize,
        end: usize,
    ) -> Result<Option<Found>, LinkError> {
        let frame = Some(Found::Frame { header, start, end });
        match header.kind {
            Kind::HELLO => {
                let action = self.handshake.on_hello(self.rx.bytes(start, end))?;
                return Ok(self.proceed(action));
            }
            Kind::AUTH => {
                let action = self.handshake.on_auth(self.rx.bytes(start, end))?;
                return Ok(self.proceed(action));
            }
            Kind::GOAWAY if !self.is_ready() => {
                let message = utf8(Kind::GOAWAY, self.rx.bytes(start, end))?.to_owned();
                return Err(LinkError::RefusedByPeer {
                    reason: header.aux,
                    message,
                });
            }
            _ => self.account(&header)?,
        }
        let text = start + self.whole_metadata(&header, start);
        self.check_metadata(header.kind, start, text)?;
        match header.kind {
            Kind::BOUND => {
                let complete = self.describe(&header, start, end)?;
                return Ok(frame.filter(|_| complete));
            }
            Kind::BIND => {
                split_bind(self.rx.bytes(start, end))?;
            }
            Kind::REFUSED => {
                split_refused(&header, self.rx.bytes(start, end))?;
            }
            Kind::STATUS | Kind::GOAWAY => {
                utf8(header.kind, self.rx.bytes(text, end))?;
                self.going_away |= header.kind == Kind::GOAWAY;
            }
            Kind::CREDIT => self.on_credit(header.aux, header.amount)?,
            Kind::FEATURES => {
                if !self.handshake.on_features(header.aux) {
                    let (kind, field) = (header.kind, "features");
                    return Err(LinkError::Reserved { kind, field });
                }
                return Ok(None);
            }
            Kind::PING => {
                self.pong = Some(header.call);
                return Ok(None);
            }
            // It only shows that the peer is alive, which `heard` already records.
            Kind::PONG => return Ok(None),
            // Everything else is in the header, or in a message that isn't validated here.
            _ => {}
        }
        Ok(frame)
    }

    /// The bytes of metadata in a whole frame whose length was validated.
    fn whole_metadata(&self, header: &Header, start: usize) -> usize {
        if !header.has_metadata() {
            return 0;
        }
        let fixed = self.rx.bytes(start, start + METADATA_FIXED);
        metadata_room(u32_at(fixed, 0) as usize)
    }

    /// Adds a BOUND's piece of the peer's schema description; returns whether it is complete.
    fn describe(&mut self, header: &Header, start: usize, end: usize) -> Result<bool, LinkError> {
        let malformed = LinkError::Malformed {
            kind: Kind::BOUND,
            len: header.len,
        };
        let len = header.aux as usize;
        if len > limits::MAX_DESCRIPTION {
            return Err(LinkError::TooLong {
                kind: Kind::BOUND,
                len: header.aux,
                limit: limits::MAX_DESCRIPTION as u32,
            });
        }
        let fresh = Description {
            bind: header.bind,
            len,
            bytes: Vec::new(),
        };
        let description = self.description.get_or_insert(fresh);
        let fits = (description.bind, description.len) == (header.bind, len)
            && description.bytes.len() + (end - start) <= len
            && (end > start || len == 0);
        if !fits {
            return Err(malformed);
        }
        description
            .bytes
            .extend_from_slice(self.rx.bytes(start, end));
        if description.bytes.len() < len {
            return Ok(false);
        }
        utf8(Kind::BOUND, &description.bytes).map(|_| true)
    }

    fn on_credit(&mut self, calls: u32, bytes: u64) -> Result<(), LinkError> {
        let sum_calls = u64::from(self.credit.calls) + u64::from(calls);
        let sum_bytes = self.credit.bytes.saturating_add(bytes);
        if sum_calls > limits::MAX_WINDOW_CALLS.into() || sum_bytes > limits::MAX_WINDOW_BYTES {
            return Err(LinkError::CreditOverflow {
                calls: sum_calls,
                bytes: sum_bytes,
            });
        }
        self.credit = Credit {
            calls: self.credit.calls + calls,
            bytes: sum_bytes,
        };
        Ok(())
    }

    /// Carries out the handshake's decision.
    fn proceed(&mut self, action: Action) -> Option<Found> {
        let (own, theirs) = match self.handshake.role() {
            Role::Initiator => (Role::Initiator, Role::Responder),
            Role::Responder => (Role::Responder, Role::Initiator),
        };
        if matches!(action, Action::Prove | Action::ProveAndWelcome) {
            self.tx
                .frame(Header::new(Kind::AUTH), &self.handshake.proof());
            self.tx.seal_with(self.handshake.seal(own, 0));
        }
        if !matches!(action, Action::Welcome | Action::ProveAndWelcome) {
            return None;
        }
        self.opener = self.handshake.seal(theirs, 0);
        let peer = self.handshake.peer().expect("welcomed after its HELLO");
        self.credit = Credit {
            calls: peer.window_calls,
            bytes: peer.window_bytes,
        };
        Some(Found::Ready)
    }

    /// Presents a validated frame as an event.
    pub(super) fn present(&mut self, found: Found) -> Event<'_> {
        let (header, metadata, payload) = match found {
            Found::Ready => {
                let peer = self.handshake.peer().expect("welcomed after its HELLO");
                return Event::Ready {
                    name: &peer.name,
                    version: peer.version,
                };
            }
            Found::Large {
                header,
                metadata: (start, end),
                len,
            } => {
                self.moved.received += len as u64;
                let metadata = present_metadata(self.rx.bytes(start, end));
                return present_message(&header, metadata, Body::Large(len));
            }
            Found::Frame { header, start, end } => {
                let room = self.whole_metadata(&header, start);
                let (metadata, payload) = self.rx.bytes_mut(start, end).split_at_mut(room);
                (header, present_metadata(metadata), payload)
            }
        };
        const VALIDATED: &str = "on_frame has validated the payload";
        match header.kind {
            kind if kind.has_message() => {
                self.moved.received += payload.len() as u64;
                present_message(&header, metadata, Body::Whole(payload))
            }
            Kind::BIND => {
                let (schema_hash, tenant, service) = split_bind(payload).expect(VALIDATED);
                Event::Bind {
                    bind: header.bind,
                    tenant,
                    service,
                    schema_hash,
                }
            }
            Kind::BOUND => {
                let description = self.description.as_ref().map_or(&[][..], |d| &d.bytes);
                Event::Bound {
                    bind: header.bind,
                    description: utf8(header.kind, description).expect(VALIDATED),
                }
            }
            Kind::REFUSED => {
                let (sentence, description) = split_refused(&header, payload).expect(VALIDATED);
                Event::Refused {
                    bind: header.bind,
                    code: Code(header.aux),
                    sentence,
                    description,
                }
            }
            Kind::STATUS => Event::Status {
                call: header.call,
                code: Code(header.aux),
                retry_after_ms: header.amount as u32,
                message: utf8(header.kind, payload).expect(VALIDATED),
                metadata,
            },
            Kind::REQUEST_CREDIT => Event::RequestCredit {
                call: header.call,
                messages: header.aux,
                bytes: header.amount as u32,
            },
            Kind::RESPONSE_CREDIT => Event::ResponseCredit {
                call: header.call,
                messages: header.aux,
                bytes: header.amount as u32,
            },
            Kind::CANCEL => Event::Cancel { call: header.call },
            Kind::GOAWAY => Event::GoAway {
                reason: Reason(header.aux),
                message: utf8(header.kind, payload).expect(VALIDATED),
            },
            _ => Event::Credit,
        }
    }
}

/// A frame's metadata, already validated.
fn present_metadata(bytes: &[u8]) -> Metadata<'_> {
    Metadata::of_checked(bytes.get(METADATA_FIXED..).unwrap_or_default())
}

/// Presents a frame with a message, or a bare one, as an event.
fn present_message<'a>(header: &Header, metadata: Metadata<'a>, body: Body<'a>) -> Event<'a> {
    let call = header.call;
    let (protobuf, bare, more) = (header.is_protobuf(), header.is_bare(), header.more());
    let charge = header.amount as u32;
    let came = Came {
        inline_len: header.aux,
        metadata,
        body,
    };
    match header.kind {
        Kind::CALL => Event::Call {
            head: CallHead {
                call,
                bind: header.bind,
                method: header.method,
                deadline_us: header.amount,
                protobuf,
                more,
                bare,
            },
            came,
        },
        Kind::REQUEST => Event::Request {
            call,
            more,
            bare,
            protobuf,
            charge,
            came,
        },
        Kind::RESPONSE => Event::Response {
            call,
            bare,
            protobuf,
            charge,
            came,
        },
        _ => Event::Reply {
            call,
            protobuf,
            came,
        },
    }
}

fn utf8(kind: Kind, bytes: &[u8]) -> Result<&str, LinkError> {
    std::str::from_utf8(bytes).map_err(|_| LinkError::NotUtf8 { kind })
}

/// A BIND's schema hash, tenant and service.
fn split_bind(payload: &[u8]) -> Result<([u8; 32], &str, &str), LinkError> {
    let malformed = LinkError::Malformed {
        kind: Kind::BIND,
        len: payload.len() as u32,
    };
    let (Some((hash, rest)), true) = (
        payload.split_first_chunk::<32>(),
        payload.len() >= BIND_FIXED,
    ) else {
        return Err(malformed);
    };
    let (tenant_len, service_len) = (usize::from(u16_at(rest, 0)), usize::from(u16_at(rest, 2)));
    let names = &rest[4..];
    let fits = tenant_len <= limits::MAX_TENANT && service_len <= limits::MAX_SERVICE;
    if !fits || names.len() != tenant_len + service_len {
        return Err(malformed);
    }
    let (tenant, service) = names.split_at(tenant_len);
    Ok((*hash, utf8(Kind::BIND, tenant)?, utf8(Kind::BIND, service)?))
}

/// A REFUSED's message and description.
fn split_refused<'a>(header: &Header, payload: &'a [u8]) -> Result<(&'a str, &'a str), LinkError> {
    let malformed = LinkError::Malformed {
        kind: Kind::REFUSED,
        len: header.len,
    };
    let at = usize::try_from(header.amount)
        .ok()
        .filter(|at| *at <= payload.len())
        .ok_or(malformed)?;
    let (sentence, description) = payload.split_at(at);
    Ok((
        utf8(Kind::REFUSED, sentence)?,
        utf8(Kind::REFUSED, description)?,
    ))
}
