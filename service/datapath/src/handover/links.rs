//! Links in a hand-over: the new runtime continues the same connections at the exact byte where the
//! old one stopped.
//!
//! [`FrozenLink`] has the state of the protocol; this module has the runtime's state. A large body
//! that was being received into a receive heap continues in private memory, because the next
//! process has another heap. A link that the next process can't continue ends with the old process:
//! its calls end with UNAVAILABLE, and the daemon that dialled it dials again. That applies to
//! links over RDMA: a queue pair can't change its process.
//!
//! [`FrozenLink`]: tollgate_transport::FrozenLink

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use tollgate_engine::{Direction, Encoding, LinkId, Unportable};
use tollgate_shm_abi::descriptor::BlockRef;
use tollgate_shm_abi::stream::Credit;
use tollgate_transport::TcpLink;

use super::state::{name_of, named, source_of};
use crate::carrier::Carrier;
use crate::handover::error::{LeaveError, ResumeError};
use crate::handover::link_forms::{KeptForm, LargeForm, LinkForm, OutboundForm, WhatForm};
use crate::handover::message_forms::Bytes;
use crate::landing::{Landing, Place};
use crate::links::table::Links;
use crate::migration::NO_BINDING;
use crate::ports::{Answer, FurtherRequest, Kept, LargeBody, LargeKind, LinkPort, Outbound};
use crate::runtime::Runtime;
use tollgate_policy_chain::message::Source;

/// The state of a runtime's links.
#[derive(Default)]
pub(super) struct LinksLeft {
    pub(super) forms: Vec<LinkForm>,
    pub(super) sockets: Vec<(LinkId, OwnedFd)>,
    /// The keys of the next links; the very next one is last.
    pub(super) free: Vec<u32>,
    /// Blocks of send heaps that are free once this state is taken over.
    pub(super) sources: Vec<Source>,
}

impl Runtime {
    /// Removes nothing from the links, but they stand still from here on.
    pub(super) fn leave_links(&self, bytes: &mut Bytes) -> Result<LinksLeft, LeaveError> {
        let places = self.bindings.iter().zip(0..);
        let places: HashMap<u32, usize> = places.map(|((key, _), place)| (key, place)).collect();
        let mut left = LinksLeft {
            free: self.links.free().collect(),
            ..LinksLeft::default()
        };
        for (id, port) in self.links.iter() {
            // A replaced link has no bindings to continue.
            let goes_on = !port.state.replaced;
            let frozen = goes_on.then(|| port.io.freeze(&mut bytes.0)).flatten();
            let Some((link, socket)) = frozen else {
                left.free.insert(0, next_key(id.0));
                continue;
            };
            let socket = socket.try_clone_to_owned();
            let socket = socket.map_err(LeaveError::NoDescriptors)?;
            left.sockets.push((id, socket));
            let state = &port.state;
            let outbound = state.outbound.iter().map(|bound| OutboundForm {
                binding: places.get(&bound.binding).copied(),
                unanswered: bound.unanswered,
            });
            let filled = port
                .io
                .link()
                .pending_body()
                .map_or(0, |(_, filled)| filled);
            let large = state.large.as_ref();
            let form = LinkForm {
                id,
                link,
                address: state.address.clone(),
                dialled: state.dialled.as_ref().and(state.at),
                name: state.dialled.as_ref().and_then(name_of),
                tenant: state.tenant.as_deref().map(str::to_owned),
                inbound: state
                    .inbound
                    .iter()
                    .map(|(bind, id)| (*bind, *id))
                    .collect(),
                outbound: outbound.collect(),
                large: large.map(|large| large_form(large, filled, bytes)),
                kept: state
                    .kept
                    .iter()
                    .map(|kept| kept_form(kept, bytes, &mut left.sources))
                    .collect(),
                ends: state.ends,
                behind: state.behind_since_ns.is_some(),
            };
            left.forms.push(form);
        }
        Ok(left)
    }

    /// Continues links. Links that can't continue are gone. `bindings` are the handed-over
    /// bindings, by place.
    pub(super) fn resume_links(
        &mut self,
        forms: Vec<LinkForm>,
        free: &[u32],
        sockets: Vec<(LinkId, OwnedFd)>,
        bytes: &[u8],
        bindings: &[u32],
    ) -> Result<(), ResumeError> {
        let mut sockets: HashMap<LinkId, OwnedFd> = sockets.into_iter().collect();
        let mut free = free.to_vec();
        let mut ports = Vec::with_capacity(forms.len());
        for form in forms {
            let (id, address, form_dialled) = (form.id, form.address.clone(), form.dialled);
            let socket = sockets.remove(&id);
            let socket = socket.ok_or(ResumeError::NoSocket { address })?;
            match self.resume_link(form, socket, bytes, bindings)? {
                Some(port) => {
                    if form_dialled.is_none() && !port.state.proven {
                        self.guests.add_stranger(id, port.io.peer_address());
                    }
                    ports.push((id, port));
                }
                None => free.insert(0, next_key(id.0)),
            }
        }
        let table = Links::resume(ports, &free);
        self.links = table.ok_or(ResumeError::Keys("links"))?;
        Ok(())
    }

    fn resume_link(
        &mut self,
        form: LinkForm,
        socket: OwnedFd,
        bytes: &[u8],
        bindings: &[u32],
    ) -> Result<Option<Box<LinkPort>>, ResumeError> {
        let LinkForm { id, address, .. } = form;
        let failed = |why| ResumeError::Link {
            address: address.clone(),
            why,
        };
        let tcp = match TcpLink::resume(socket, form.link, bytes, &self.options.tuning.link) {
            Ok(tcp) => tcp,
            Err(why) => {
                tracing::warn!("the link with {address} ends: {why}");
                return Ok(None);
            }
        };
        let mut io = Carrier::Tcp(tcp);
        let watched = self.wakes.watch_link(id, &mut io);
        watched.map_err(|error| failed(error.into()))?;
        let tenant: Option<Arc<str>> = form.tenant.map(Into::into);
        let is_known = form.dialled.is_some() || !form.inbound.is_empty();
        let flow = match tenant.as_ref().filter(|_| is_known) {
            Some(tenant) => self.scheduler.of(tenant),
            None => self.scheduler.of_strangers(),
        };
        let name = form.name.as_deref();
        let dialled = form.dialled.map(|at| named(name, at));
        let mut port = LinkPort::new(io, address.clone(), dialled, tenant, flow);
        port.state.at = form.dialled;
        let again_ns = self.rdma_again_ns();
        let state = &mut port.state;
        for (bind, service) in form.inbound {
            if self.services.get(service).is_none() {
                return Err(failed(format!("there is no service {}", service.0).into()));
            }
            state.inbound.insert(bind, service);
        }
        for OutboundForm {
            binding,
            unanswered,
        } in form.outbound
        {
            let key = binding.map(|place| bindings.get(place).copied());
            let key = key.unwrap_or(Some(NO_BINDING));
            state.outbound.push(Outbound {
                binding: key
                    .ok_or_else(|| failed("it has a binding that wasn't handed over".into()))?,
                unanswered,
            });
        }
        let is_ready = port.io.link().is_ready();
        let pending = port.io.link().pending_body();
        state.large = match (form.large, pending) {
            (None, None) => None,
            (Some(large), Some(pending)) if (large.len, large.filled) == pending => Some(
                self.large_again(large, bytes)
                    .map_err(|why| failed(why.into()))?,
            ),
            _ => return Err(failed("a large body isn't what its frame announced".into())),
        };
        for kept in form.kept {
            let kept = self
                .kept_again(kept, bytes)
                .map_err(|why| failed(why.into()))?;
            state.kept.extend(kept);
        }
        state.proven = is_ready;
        state.peer = port.io.link().peer_identity().map(Into::into);
        state.ends = form.ends;
        if form.dialled.is_some() {
            state.not_rdma = Some("another process of this daemon has dialled it".into());
            state.rdma_again_ns = again_ns;
        }
        state.behind_since_ns = form.behind.then_some(self.now_ns);
        Ok(Some(Box::new(port)))
    }

    fn large_again(&mut self, large: LargeForm, bytes: &[u8]) -> Result<LargeBody, &'static str> {
        let rest = bytes.get(large.at..).unwrap_or_default();
        let both = rest.split_at_checked(large.filled);
        let both = both.and_then(|(body, behind)| Some((body, behind.get(..large.metadata)?)));
        let (body, metadata) = both.ok_or("the bytes of a large body are missing")?;
        let mut place = self.pool.take(large.len);
        let begun = place.get_mut(..body.len());
        begun
            .ok_or("a large body has more bytes than its length")?
            .copy_from_slice(body);
        let landing = Landing {
            place: Place::Private(place),
            inline_len: large.inline_len,
            len: large.len,
            metadata: metadata.to_vec(),
        };
        let what = match large.what {
            WhatForm::Call(head) => LargeKind::Call(head),
            WhatForm::Request {
                call,
                more,
                protobuf,
                charge,
            } => LargeKind::Request(FurtherRequest {
                call,
                more,
                protobuf,
                charge,
            }),
            WhatForm::Answer {
                call,
                protobuf,
                charge,
            } => LargeKind::Answer(Answer {
                key: call,
                protobuf,
                charge,
            }),
        };
        Ok(LargeBody { what, landing })
    }

    /// None: the session that has it has gone.
    fn kept_again(&mut self, kept: KeptForm, bytes: &[u8]) -> Result<Option<Kept>, Unportable> {
        Ok(Some(match kept {
            KeptForm::PutOff {
                session,
                call,
                offset,
                len,
                extents,
                metadata,
            } => {
                if self.sessions.get(session).is_none() {
                    return Ok(None);
                }
                Kept::PutOff {
                    session,
                    call,
                    block: BlockRef {
                        offset,
                        len,
                        extents,
                        metadata,
                    },
                }
            }
            KeptForm::Reply {
                call,
                protobuf,
                request_bytes,
                message,
            } => {
                let message = message.message(bytes)?;
                Kept::Reply {
                    call,
                    encoding: match protobuf {
                        true => Encoding::Protobuf,
                        false => Encoding::Native,
                    },
                    request_bytes,
                    message: self.pool.boxed(message),
                }
            }
            KeptForm::Status {
                call,
                request_bytes,
                status,
            } => Kept::Status {
                call,
                request_bytes,
                status: status.into(),
            },
            KeptForm::Credit {
                call,
                of_requests,
                messages,
                bytes,
            } => Kept::Credit {
                call,
                of: match of_requests {
                    true => Direction::Requests,
                    false => Direction::Responses,
                },
                credit: Credit { messages, bytes },
            },
        }))
    }
}

/// The key after this one, as after a close of its slot.
pub(super) fn next_key(key: u32) -> u32 {
    key.wrapping_add(1 << 16)
}

fn large_form(large: &LargeBody, filled: usize, bytes: &mut Bytes) -> LargeForm {
    let landing = &large.landing;
    let at = bytes.append(&landing.bytes()[..filled]);
    bytes.append(&landing.metadata);
    LargeForm {
        at,
        filled,
        metadata: landing.metadata.len(),
        inline_len: landing.inline_len,
        len: landing.len,
        what: match large.what {
            LargeKind::Call(head) => WhatForm::Call(head),
            LargeKind::Request(FurtherRequest {
                call,
                more,
                protobuf,
                charge,
            }) => WhatForm::Request {
                call,
                more,
                protobuf,
                charge,
            },
            LargeKind::Answer(Answer {
                key,
                protobuf,
                charge,
            }) => WhatForm::Answer {
                call: key,
                protobuf,
                charge,
            },
        },
    }
}

fn kept_form(kept: &Kept, bytes: &mut Bytes, sources: &mut Vec<Source>) -> KeptForm {
    match kept {
        Kept::PutOff {
            session,
            call,
            block,
        } => KeptForm::PutOff {
            session: *session,
            call: *call,
            offset: block.offset,
            len: block.len,
            extents: block.extents,
            metadata: block.metadata,
        },
        Kept::Reply {
            call,
            encoding,
            request_bytes,
            message,
        } => {
            sources.extend(source_of(message));
            KeptForm::Reply {
                call: *call,
                protobuf: *encoding == Encoding::Protobuf,
                request_bytes: *request_bytes,
                message: bytes.keep(message),
            }
        }
        Kept::Status {
            call,
            request_bytes,
            status,
        } => KeptForm::Status {
            call: *call,
            request_bytes: *request_bytes,
            status: status.into(),
        },
        Kept::Credit { call, of, credit } => KeptForm::Credit {
            call: *call,
            of_requests: matches!(of, Direction::Requests),
            messages: credit.messages,
            bytes: credit.bytes,
        },
    }
}
