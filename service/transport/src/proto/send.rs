//! Sent frames: each `send_*` queues one whole frame, or refuses it and changes nothing.

use tollgate_shm_abi::Code;
use tollgate_shm_abi::metadata::Metadata;

use super::Link;
use crate::Part;
use crate::Span;
use crate::config::{ConfigError, check_window};
use crate::error::{Reason, SendError, cut};
use crate::event::{CallHead, Credit, Image, Queued, StreamCredit, StreamHead, part_len};
use crate::frame::{
    BIND_FIXED, FEATURE_RETRY, FLAG_BARE, FLAG_METADATA, FLAG_PROTOBUF, Header, Kind, metadata_room,
};
use crate::handshake::State;
use crate::limits;
use crate::tx::Token;

/// The form of a body that isn't an image.
#[derive(Clone, Copy)]
struct Form {
    protobuf: bool,
    bare: bool,
}

impl Link {
    /// Starts a call. Hot: one header and one copy, no system call, and no allocation once the
    /// buffers are warm.
    ///
    /// # Errors
    /// [`SendError`]; nothing was queued.
    pub fn send_call(
        &mut self,
        head: &CallHead,
        image: &Image<'_>,
        token: Token,
    ) -> Result<Queued, SendError> {
        self.may_begin()?;
        bind_in_range(head.bind)?;
        if head.more {
            self.may_stream()?;
        }
        let CallHead { protobuf, bare, .. } = *head;
        let header = self.body_header(Kind::CALL, image, Form { protobuf, bare })?;
        let len = header.len;
        if self.credit.calls == 0 || self.credit.bytes < u64::from(len) {
            let Credit { calls, bytes } = self.credit;
            return Err(SendError::NoCredit {
                calls,
                bytes,
                needed: len.into(),
            });
        }
        self.credit.calls -= 1;
        self.credit.bytes -= u64::from(len);
        self.unanswered += 1;
        let header = Header {
            method: head.method,
            call: head.call,
            bind: head.bind,
            amount: head.deadline_us,
            ..header.with_more(head.more)
        };
        Ok(self.put_image(header, image, token))
    }

    /// Sends a further message of a call of this end, and whether `more` follow. It uses no credit
    /// of the link: the caller manages the stream's window. It can't have metadata.
    ///
    /// # Errors
    /// [`SendError`]; nothing was queued.
    pub fn send_request(
        &mut self,
        call: u64,
        more: bool,
        head: &StreamHead,
        image: &Image<'_>,
        token: Token,
    ) -> Result<Queued, SendError> {
        let header = Header {
            call,
            ..self.stream_header(Kind::REQUEST, image, head)?
        };
        if header.has_metadata() {
            return Err(SendError::Field {
                field: "metadata",
                value: image.metadata.as_bytes().len() as u64,
            });
        }
        Ok(self.put_image(header.with_more(more), image, token))
    }

    /// Sends a message of the reply to one of the peer's calls, without answering it:
    /// [`Link::send_reply`] or [`Link::send_status`] still follows. The first may have metadata.
    /// The caller manages the stream's window.
    ///
    /// # Errors
    /// [`SendError`]; nothing was queued.
    pub fn send_response(
        &mut self,
        call: u64,
        head: &StreamHead,
        image: &Image<'_>,
        token: Token,
    ) -> Result<Queued, SendError> {
        let header = Header {
            call,
            ..self.stream_header(Kind::RESPONSE, image, head)?
        };
        Ok(self.put_image(header, image, token))
    }

    /// Tells the peer how much of its own call's requests was consumed.
    ///
    /// # Errors
    /// [`SendError`]; nothing was queued.
    pub fn send_request_credit(
        &mut self,
        call: u64,
        consumed: StreamCredit,
    ) -> Result<(), SendError> {
        self.stream_credit(Kind::REQUEST_CREDIT, call, consumed)
    }

    /// Tells the peer how much of the reply to a call of this end was consumed.
    ///
    /// # Errors
    /// [`SendError`]; nothing was queued.
    pub fn send_response_credit(
        &mut self,
        call: u64,
        consumed: StreamCredit,
    ) -> Result<(), SendError> {
        self.stream_credit(Kind::RESPONSE_CREDIT, call, consumed)
    }

    /// Answers one of the peer's calls with a message: as protobuf if the call was.
    ///
    /// # Errors
    /// [`SendError`]; nothing was queued.
    pub fn send_reply(
        &mut self,
        call: u64,
        protobuf: bool,
        image: &Image<'_>,
        token: Token,
    ) -> Result<Queued, SendError> {
        self.may_send()?;
        let form = Form {
            protobuf,
            bare: false,
        };
        let header = Header {
            call,
            ..self.body_header(Kind::REPLY, image, form)?
        };
        Ok(self.put_image(header, image, token))
    }

    /// Answers one of the peer's calls with a status, which may be OK only on a link that [carries
    /// streams](Link::carries_streams). A message over [`limits::MAX_TEXT`] bytes is cut at a
    /// character. The time until a retry (0: unknown) and the trailers are omitted if the peer
    /// doesn't support them.
    ///
    /// # Errors
    /// [`SendError`]; nothing was queued.
    pub fn send_status(
        &mut self,
        call: u64,
        code: Code,
        retry_after_ms: u32,
        message: &str,
        metadata: Metadata<'_>,
    ) -> Result<(), SendError> {
        self.may_send()?;
        if code == Code::OK && !self.carries_streams() {
            return Err(SendError::Field {
                field: "code",
                value: 0,
            });
        }
        let text = cut(message).as_bytes();
        let metadata = if self.carries_streams() && self.carries_metadata() {
            metadata
        } else {
            Metadata::default()
        };
        let room = metadata_room(metadata.as_bytes().len());
        let plain = Header::new(Kind::STATUS);
        let header = Header {
            len: (room + text.len()) as u32,
            flags: plain.flags | if room > 0 { FLAG_METADATA } else { 0 },
            call,
            aux: code.0,
            amount: match self.features() & FEATURE_RETRY {
                0 => 0,
                _ => retry_after_ms.into(),
            },
            ..plain
        };
        self.begin(header, metadata, text);
        Ok(())
    }

    /// Tells the peer that this end no longer waits for its call. The call is still answered once.
    ///
    /// # Errors
    /// [`SendError`]; nothing was queued.
    pub fn send_cancel(&mut self, call: u64) -> Result<(), SendError> {
        self.may_send()?;
        self.tx.frame(
            Header {
                call,
                ..Header::new(Kind::CANCEL)
            },
            &[],
        );
        Ok(())
    }

    /// Asks the peer to accept calls for a service on behalf of a tenant. Calls may follow at once;
    /// they fail if the bind is refused.
    ///
    /// # Errors
    /// [`SendError`]; nothing was queued.
    pub fn send_bind(
        &mut self,
        bind: u32,
        tenant: &str,
        service: &str,
        schema_hash: &[u8; 32],
    ) -> Result<(), SendError> {
        self.may_begin()?;
        bind_in_range(bind)?;
        let tenant_len = text_len("tenant", tenant, limits::MAX_TENANT)?;
        let service_len = text_len("service", service, limits::MAX_SERVICE)?;
        let mut payload = Vec::with_capacity(BIND_FIXED + tenant.len() + service.len());
        payload.extend_from_slice(schema_hash);
        payload.extend_from_slice(&tenant_len.to_le_bytes());
        payload.extend_from_slice(&service_len.to_le_bytes());
        payload.extend_from_slice(tenant.as_bytes());
        payload.extend_from_slice(service.as_bytes());
        self.tx.frame(
            Header {
                bind,
                ..Header::new(Kind::BIND)
            },
            &payload,
        );
        Ok(())
    }

    /// Accepts one of the peer's binds. `description` is this end's schema if it differs from the
    /// BIND's, otherwise empty; it needs a link that [carries protobuf](Link::carries_protobuf).
    ///
    /// # Errors
    /// [`SendError`]; nothing was queued.
    pub fn send_bound(&mut self, bind: u32, description: &str) -> Result<(), SendError> {
        self.may_send()?;
        bind_in_range(bind)?;
        let limit = if self.carries_protobuf() {
            limits::MAX_DESCRIPTION
        } else {
            0
        };
        if description.len() > limit {
            return Err(SendError::Field {
                field: "description",
                value: description.len() as u64,
            });
        }
        let header = Header {
            bind,
            aux: description.len() as u32,
            ..Header::new(Kind::BOUND)
        };
        if description.is_empty() {
            self.tx.frame(header, &[]);
        }
        for piece in description.as_bytes().chunks(limits::MAX_CONTROL as usize) {
            self.tx.frame(header, piece);
        }
        Ok(())
    }

    /// Refuses one of the peer's binds. `description` is this end's schema, if the schemas differ;
    /// one that doesn't fit into [`limits::MAX_CONTROL`] is omitted, since half of it would mislead
    /// a comparison.
    ///
    /// # Errors
    /// [`SendError`]; nothing was queued.
    pub fn send_refused(
        &mut self,
        bind: u32,
        code: Code,
        sentence: &str,
        description: &str,
    ) -> Result<(), SendError> {
        self.may_send()?;
        bind_in_range(bind)?;
        let sentence = cut(sentence);
        let room = limits::MAX_CONTROL as usize - sentence.len();
        let description = if description.len() <= room {
            description
        } else {
            ""
        };
        let payload = [sentence.as_bytes(), description.as_bytes()].concat();
        let amount = sentence.len() as u64;
        self.tx.frame(
            Header {
                bind,
                aux: code.0,
                amount,
                ..Header::new(Kind::REFUSED)
            },
            &payload,
        );
        Ok(())
    }

    /// Announces that this end takes no new calls or binds and makes none; calls in flight are
    /// still answered.
    ///
    /// # Errors
    /// [`SendError`]; nothing was queued.
    pub fn send_goaway(&mut self, reason: Reason, message: &str) -> Result<(), SendError> {
        self.may_send()?;
        self.going_away = true;
        self.tx.frame(
            Header {
                aux: reason.0,
                ..Header::new(Kind::GOAWAY)
            },
            cut(message).as_bytes(),
        );
        Ok(())
    }

    /// The daemon has released this many of the peer's calls, with this many payload bytes: the
    /// peer may send as many again. It is told once a quarter of the window has accumulated. Any
    /// excess over the peer's use is ignored.
    pub fn return_credit(&mut self, calls: u32, bytes: u64) {
        let used_calls = self.window.calls + self.surplus.calls - self.granted.calls;
        let used_bytes = self.window.bytes + self.surplus.bytes - self.granted.bytes;
        self.returned.calls = self.returned.calls.saturating_add(calls).min(used_calls);
        self.returned.bytes = self.returned.bytes.saturating_add(bytes).min(used_bytes);
        self.keep_surplus();
        let due = self.returned.calls >= self.window.calls.div_ceil(4)
            || self.returned.bytes >= self.window.bytes / 4;
        if due {
            self.grant_returned();
        }
    }

    /// Sets the unanswered calls, and their payload bytes, that the peer may have. A larger window
    /// is announced at once. A smaller one isn't announced: the excess isn't returned after its
    /// answers.
    ///
    /// # Errors
    /// Either is outside the range of a [`LinkConfig`](crate::LinkConfig).
    pub fn set_window(&mut self, calls: u32, bytes: u64) -> Result<(), ConfigError> {
        check_window(calls, bytes)?;
        let before = std::mem::replace(&mut self.window, Credit { calls, bytes });
        // The peer's unused and used credit is the whole window, so neither sum shrinks.
        let had_calls = before.calls + self.surplus.calls;
        let had_bytes = before.bytes + self.surplus.bytes;
        self.surplus = Credit {
            calls: had_calls.saturating_sub(calls),
            bytes: had_bytes.saturating_sub(bytes),
        };
        self.returned.calls += calls.saturating_sub(had_calls);
        self.returned.bytes += bytes.saturating_sub(had_bytes);
        self.keep_surplus();
        self.grant_returned();
        Ok(())
    }

    fn keep_surplus(&mut self) {
        let calls = self.surplus.calls.min(self.returned.calls);
        let bytes = self.surplus.bytes.min(self.returned.bytes);
        self.surplus.calls -= calls;
        self.surplus.bytes -= bytes;
        self.returned.calls -= calls;
        self.returned.bytes -= bytes;
    }

    /// Announces returned credit to the peer. Before the link is ready, it is kept.
    fn grant_returned(&mut self) {
        if !self.is_ready() || (self.returned.calls == 0 && self.returned.bytes == 0) {
            return;
        }
        let Credit { calls, bytes } =
            std::mem::replace(&mut self.returned, Credit { calls: 0, bytes: 0 });
        self.granted.calls += calls;
        self.granted.bytes += bytes;
        self.tx.frame(
            Header {
                aux: calls,
                amount: bytes,
                ..Header::new(Kind::CREDIT)
            },
            &[],
        );
    }

    fn may_send(&self) -> Result<(), SendError> {
        match self.handshake.state() {
            State::Ready if self.tx.is_full() => Err(SendError::Full {
                queued: self.tx.copied(),
            }),
            State::Ready => Ok(()),
            State::Ended => Err(SendError::Ended),
            State::AwaitHello | State::AwaitAuth => Err(SendError::NotReady),
        }
    }

    fn may_begin(&self) -> Result<(), SendError> {
        self.may_send()?;
        if self.going_away {
            Err(SendError::GoingAway)
        } else {
            Ok(())
        }
    }

    fn may_stream(&self) -> Result<(), SendError> {
        if self.carries_streams() {
            Ok(())
        } else {
            Err(SendError::Field {
                field: "streams",
                value: 1,
            })
        }
    }

    fn stream_credit(
        &mut self,
        kind: Kind,
        call: u64,
        consumed: StreamCredit,
    ) -> Result<(), SendError> {
        self.may_send()?;
        self.may_stream()?;
        let StreamCredit { messages, bytes } = consumed;
        if messages == 0 && bytes == 0 {
            return Err(SendError::Field {
                field: "credit",
                value: 0,
            });
        }
        self.tx.frame(
            Header {
                call,
                aux: messages,
                amount: bytes.into(),
                ..Header::new(kind)
            },
            &[],
        );
        Ok(())
    }

    /// The header of a REQUEST or RESPONSE, without its call.
    fn stream_header(
        &self,
        kind: Kind,
        image: &Image<'_>,
        head: &StreamHead,
    ) -> Result<Header, SendError> {
        self.may_send()?;
        self.may_stream()?;
        let StreamHead {
            bare,
            protobuf,
            charge,
        } = *head;
        Ok(Header {
            amount: charge.into(),
            ..self.body_header(kind, image, Form { protobuf, bare })?
        })
    }

    /// The header of a body; refused here if the link doesn't support it.
    fn body_header(&self, kind: Kind, image: &Image<'_>, form: Form) -> Result<Header, SendError> {
        let metadata = image.metadata.as_bytes().len();
        let refused = |field, value| Err(SendError::Field { field, value });
        let mut header = Header {
            len: image_len(image)? + metadata_room(metadata) as u32,
            aux: inline_len(image),
            ..Header::new(kind)
        };
        if metadata > 0 {
            if !self.carries_metadata() {
                return refused("metadata", metadata as u64);
            }
            header.flags |= FLAG_METADATA;
        }
        if form.bare {
            self.may_stream()?;
            if image.len() > 0 {
                return refused("bare", image.len() as u64);
            }
            header.flags |= FLAG_BARE;
        }
        if form.protobuf {
            let formless = form.bare && kind != Kind::CALL;
            if !self.carries_protobuf() || !image.extents.is_empty() || formless {
                return refused("protobuf", 1);
            }
            header.flags |= FLAG_PROTOBUF;
            header.aux = 0;
        }
        Ok(header)
    }

    /// Queues a header, its metadata, and the first bytes of the message.
    fn begin(&mut self, header: Header, metadata: Metadata<'_>, first: &[u8]) {
        if header.has_metadata() {
            let block = metadata.as_bytes();
            self.tx.begin(header, &(block.len() as u32).to_le_bytes());
            self.tx.copy(block);
            self.tx.copy(first);
        } else {
            self.tx.begin(header, first);
        }
    }

    fn put_image(&mut self, header: Header, image: &Image<'_>, token: Token) -> Queued {
        self.begin(header, image.metadata, image.inline);
        self.moved.private_copied += image.inline.len() as u64;
        let mut end = image.inline.len();
        let mut queued = Queued::Copied;
        for part in image.extents {
            let len = part_len(part);
            self.tx.copy(&[0; 8][..end.next_multiple_of(8) - end]);
            end = end.next_multiple_of(8) + len;
            match *part {
                Part::Private(bytes) => {
                    self.tx.copy(bytes);
                    self.moved.private_copied += len as u64;
                }
                Part::Shared { span, at } if len < self.share_min || self.tx.seal().is_some() => {
                    self.tx.copy_shared(span, at);
                    self.moved.shared_copied += len as u64;
                }
                Part::Shared { span, at } => {
                    self.tx.share(Span::clone(span), at);
                    self.moved.shared_in_place += len as u64;
                    queued = Queued::Held;
                }
            }
        }
        if queued == Queued::Held {
            self.tx.mark(token);
        }
        queued
    }
}

fn image_len(image: &Image<'_>) -> Result<u32, SendError> {
    if image.extents.len() > limits::MAX_EXTENTS {
        return Err(SendError::TooManyExtents {
            extents: image.extents.len(),
        });
    }
    let len = image.len();
    u32::try_from(len)
        .ok()
        .filter(|len| *len <= limits::MAX_MESSAGE)
        .ok_or(SendError::TooLarge { len })
}

fn inline_len(image: &Image<'_>) -> u32 {
    u32::try_from(image.inline.len()).expect("image_len has bounded the whole")
}

fn bind_in_range(bind: u32) -> Result<(), SendError> {
    if bind < limits::MAX_BINDS {
        Ok(())
    } else {
        Err(SendError::Field {
            field: "bind",
            value: bind.into(),
        })
    }
}

fn text_len(field: &'static str, text: &str, limit: usize) -> Result<u16, SendError> {
    let error = SendError::Field {
        field,
        value: text.len() as u64,
    };
    u16::try_from(text.len())
        .ok()
        .filter(|len| usize::from(*len) <= limit)
        .ok_or(error)
}
