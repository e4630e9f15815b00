//! The state of datapath and connections in a hand-over: how the predecessor sends it, and how the
//! successor continues it.
//!
//! ```text
//!   per runtime: Runtime (state, bytes) ─▶
//!     per session: Session (control socket, rings, send heap, doorbell, wake) ─▶
//!     per link: Link (socket) ─▶
//!   per connection without a request so far: Stranger (control socket) ─▶
//!   All (inventory, schemas that weren't offered) ─▶
//! ```

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use tollgate_control::Owner;
use tollgate_engine::{ServiceId, SessionId, Status};
use tollgate_shm_abi::blob::{blob_create, blob_read};

use crate::control::apps::applications::Applications;
use crate::control::apps::schema_cache::SchemaCache;
use crate::control::placement::running::{Runtimes, answered, reply};
use crate::control::policies::attachments::Attachments;
use crate::control::policies::live_policies::LivePolicies;
use crate::control::refusals::internal;
use crate::control::takeover::protocol::{
    Channel, LinkLeft, Message, SessionLeft, TransferError, borrowed,
};
use crate::limits::HANDOVER_BYTES;
use tollgate_datapath::handover::transfer::HandoverState;
use tollgate_datapath::{Command, RuntimeIndex};
use tollgate_policy_chain::ids::AttachmentId;

#[derive(Serialize, Deserialize)]
pub(in crate::control) struct BindingLeft {
    pub(in crate::control) runtime: RuntimeIndex,
    pub(in crate::control) session: SessionId,
    pub(in crate::control) tenant: String,
    pub(in crate::control) schema: [u8; 32],
    pub(in crate::control) first_handle: u32,
    pub(in crate::control) service: Option<ServiceId>,
}

/// The control plane's state that the runtimes' states refer to.
#[derive(Serialize, Deserialize)]
pub(in crate::control) struct InventoryLeft {
    pub(in crate::control) bindings: Vec<BindingLeft>,
    /// The ids of attachments.
    pub(in crate::control) attachments: Vec<(AttachmentId, Attached)>,
    #[serde(default)]
    pub(in crate::control) shared: Vec<SharedLeft>,
}

/// The shared state of a policy's instances.
#[derive(Serialize, Deserialize)]
pub(super) struct SharedLeft {
    /// `None` for the provider's.
    pub(in crate::control) tenant: Option<String>,
    pub(in crate::control) policy: String,
    /// Keys and values.
    pub(in crate::control) entries: Vec<(Vec<u8>, Vec<u8>)>,
}

/// The place of an attachment; there is one per runtime.
#[derive(PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct Attached {
    runtime: RuntimeIndex,
    party: String,
    tenant: String,
    service: String,
    method: String,
    side: String,
    policy: String,
}

/// A service's name, and a descriptor set that contains it.
pub(super) type Set = (String, Vec<u8>);

/// The schemas in memory except for some, as a blob, and their hashes.
pub(super) fn schemas(
    known: &SchemaCache,
    but: &HashSet<[u8; 32]>,
) -> Result<(OwnedFd, HashSet<[u8; 32]>), Status> {
    let others = known
        .all()
        .into_iter()
        .filter(|schema| !but.contains(&schema.layout.hash));
    let (hashes, sets): (HashSet<_>, Vec<Set>) = others
        .map(|schema| {
            let set = (schema.layout.name.clone(), schema.set.to_vec());
            (schema.layout.hash, set)
        })
        .unzip();
    Ok((blob(&sets)?, hashes))
}

fn blob(value: &impl Serialize) -> Result<OwnedFd, Status> {
    let json = serde_json::to_vec(value).map_err(internal)?;
    blob_create(&json).map_err(internal)
}

pub(super) fn read<T: for<'de> Deserialize<'de>>(blob: &OwnedFd) -> Result<T, TransferError> {
    let json = blob_read(blob, HANDOVER_BYTES)?;
    serde_json::from_slice(&json).map_err(TransferError::Unreadable)
}

/// A datapath that stands still until it learns that another process goes on, or until this is
/// dropped.
pub(super) struct Standstill {
    handover_states: Vec<HandoverState>,
    verdicts: Vec<mpsc::Sender<()>>,
}

impl Standstill {
    /// Stops every runtime between two turns, until `until` at most.
    pub(super) async fn of(
        runtimes: &Runtimes,
        with_links: bool,
        until: Instant,
    ) -> Result<Standstill, Status> {
        let (mut answers, mut verdicts) = (Vec::new(), Vec::new());
        let (mut standing, mut all_stand) = (Vec::new(), Vec::new());
        for runtime in RuntimeIndex::all(runtimes.count()) {
            let (sender, verdict) = mpsc::channel();
            verdicts.push(sender);
            let (sender, all) = mpsc::channel();
            all_stand.push(sender);
            let (stands, stood) = reply();
            standing.push(stood);
            answers.push(runtimes.begin(runtime, |reply| Command::HandOver {
                with_links,
                until,
                stands,
                all_stand: all,
                reply,
                verdict,
            }));
        }
        for stands in standing {
            answered(stands).await?;
        }
        for sender in all_stand {
            let _it_answers_or_has_ended = sender.send(());
        }
        let mut handover_states = Vec::with_capacity(answers.len());
        for answer in answers {
            handover_states.push(answered(answer).await?.map_err(internal)?);
        }
        Ok(Standstill {
            handover_states,
            verdicts,
        })
    }

    /// Sends everything.
    pub(in crate::control) async fn say(
        &mut self,
        apps: &Applications,
        policies: &LivePolicies,
        channel: &Channel,
        offered: &HashSet<[u8; 32]>,
    ) -> Result<(), TransferError> {
        let handover_states = self.handover_states.drain(..);
        for (handover_state, index) in handover_states.zip((0..).map(RuntimeIndex)) {
            let state = blob_create(&handover_state.state).map_err(io::Error::from)?;
            let bytes = blob_create(&handover_state.bytes).map_err(io::Error::from)?;
            let message = Message::Runtime { index };
            channel.say(&message, &borrowed(&[state, bytes])).await?;
            for (session, lent) in handover_state.sessions {
                let left = apps.sessions.with((index, session), |connected| {
                    let left = SessionLeft {
                        runtime: index,
                        session,
                        tenant: connected.tenant.clone(),
                        token: connected.token,
                        keeps_early_calls: connected.keeps_early_calls,
                        application: connected.application.clone(),
                    };
                    let socket = connected.socket.get_ref().0.as_fd();
                    io::Result::Ok((left, socket.try_clone_to_owned()?))
                });
                // Its connection has ended: nobody would notice the end of its application.
                let Some(left) = left else {
                    return Err(TransferError::NoConnection(session));
                };
                let (left, socket) = left?;
                let fds: Vec<OwnedFd> = std::iter::once(socket).chain(lent).collect();
                channel
                    .say(&Message::Session(left), &borrowed(&fds))
                    .await?;
            }
            for (link, socket) in handover_state.links {
                let left = LinkLeft {
                    runtime: index,
                    link,
                };
                let message = Message::Link(left);
                channel.say(&message, &borrowed(&[socket])).await?;
            }
        }
        for socket in apps.sessions.strangers_sockets()? {
            channel
                .say(&Message::Stranger, &borrowed(&[socket]))
                .await?;
        }
        let inventory = policies.read(|attachments| InventoryLeft {
            bindings: bindings(attachments),
            attachments: places(attachments),
            shared: shared(attachments),
        });
        let inventory = blob(&inventory).map_err(TransferError::Refused)?;
        let (schemas, _) = schemas(&apps.schemas, offered).map_err(TransferError::Refused)?;
        let fds = [inventory, schemas];
        channel.say(&Message::All, &borrowed(&fds)).await
    }

    /// Another process continues.
    pub(super) fn end(self) {
        for verdict in self.verdicts {
            let _runtime_ended = verdict.send(());
        }
    }
}

fn bindings(attachments: &Attachments) -> Vec<BindingLeft> {
    let left = attachments.bindings().iter().map(|binding| BindingLeft {
        runtime: binding.runtime,
        session: binding.session,
        tenant: binding.tenant.clone(),
        schema: binding.schema.layout.hash,
        first_handle: binding.first_handle,
        service: binding.service,
    });
    left.collect()
}

pub(in crate::control) fn places(attachments: &Attachments) -> Vec<(AttachmentId, Attached)> {
    let all = attachments.live().iter().map(|(id, live)| {
        let target = &live.attachment.target;
        let attached = Attached {
            runtime: live.runtime,
            party: target.party.name().to_owned(),
            tenant: target.tenant.clone(),
            service: target.service.clone(),
            method: target.method.clone(),
            side: target.side.name().to_owned(),
            policy: live.attachment.policy.clone(),
        };
        (id, attached)
    });
    all.collect()
}

fn shared(attachments: &Attachments) -> Vec<SharedLeft> {
    let shared = attachments.states().map(|(owner, policy, state)| {
        let tenant = match owner {
            Owner::Tenant(tenant) => Some(tenant.clone()),
            Owner::Provider => None,
        };
        SharedLeft {
            tenant,
            policy: policy.to_owned(),
            entries: state.entries(),
        }
    });
    shared.collect()
}
