//! Plans against a runtime that runs one turn at a time.

#![allow(clippy::unwrap_used)]

use tollgate_control::{Candidate, Isolation, Owner, Party, Side, Target, Trial};
use tollgate_shm_abi::status::Code;

use super::*;
use crate::control::policies::attachment_index::{AttachmentIndex, Instances};
use crate::control::policies::model::{Faults, LiveAttachment};
use crate::control::tests::{control, wait};
use crate::limits::MAX_ATTACHMENTS;
use tollgate_datapath::RuntimeIndex;

fn attachment(policy: usize) -> Attachment {
    Attachment {
        target: Target {
            party: Party::Tenant,
            tenant: "t".to_owned(),
            service: "t.S".to_owned(),
            method: String::new(),
            side: Side::Client,
        },
        policy: format!("p{policy}"),
        slot: Default::default(),
        options: Default::default(),
    }
}

fn live(attachment: Attachment) -> LiveAttachment {
    LiveAttachment {
        attachment,
        runtime: RuntimeIndex::FIRST,
        place: 0,
        stable: None,
        candidate: None,
        fallback: None,
        incarnation: 0,
        faults: Faults::default(),
    }
}

#[test]
fn an_attachment_beyond_the_limit_is_refused_before_it_is_stored() {
    let (control, mut runtime) = control();
    let tenant = Owner::Tenant("t".to_owned());
    control
        .changes
        .store()
        .add_tenant(Actor::Daemon, "t")
        .unwrap();
    for policy in 1..MAX_ATTACHMENTS {
        let live = live(attachment(policy));
        control.policies.insert(live).unwrap();
    }
    let mut attach = |policy| {
        let plan = Plan {
            attachment: attachment(policy),
            stable: Next::Empty,
            candidate: Next::Empty,
        };
        let told = Told {
            actor: Actor::Daemon,
            event: Event::Attach,
            details: json!({}),
            approval: None,
        };
        let attached = async {
            tokio::select! {
                attached = control.carry_out(vec![plan], PreparedInstances::default(), told) => attached,
                () = async { loop { runtime.turn(); tokio::task::yield_now().await; } } => unreachable!(),
            }
        };
        wait(attached)
    };
    assert_eq!(attach(0), Ok(()), "the last one that there is room for");
    let refused = attach(MAX_ATTACHMENTS).unwrap_err();
    assert_eq!(refused.code, Code::RESOURCE_EXHAUSTED);
    let words = "the daemon has 65536 attachments, which is the limit";
    assert_eq!(refused.message, words);
    assert_eq!(attach(1), Ok(()), "one that is there may be changed");
    let stored = control.changes.store().attachments().unwrap();
    let stored = stored.iter().filter(|a| a.target.owner() == tenant);
    let stored: Vec<&str> = stored.map(|a| a.policy.as_str()).collect();
    assert_eq!(stored, ["p0", "p1"]);
}

/// Attachments with every combination of what decides how many instances they hold.
fn all_kinds() -> Vec<Attachment> {
    let mut kinds = Vec::new();
    for party in [Party::Tenant, Party::ProviderPre] {
        for isolation in [None, Some(Isolation::None), Some(Isolation::Process)] {
            for (fresh, stable, candidate) in [
                (false, None, None),
                (false, Some(1), None),
                (false, Some(1), Some(2)),
                (true, Some(1), Some(2)),
            ] {
                let mut kind = attachment(kinds.len());
                kind.target.party = party;
                kind.options.fresh = fresh;
                kind.options.isolation = isolation;
                kind.slot.stable = stable;
                kind.slot.candidate = candidate.map(|version| Candidate {
                    version,
                    trial: Trial::Shadow,
                    probation_ms: None,
                });
                kinds.push(kind);
            }
        }
    }
    kinds
}

#[test]
fn instances_are_counted_as_attachments_come_change_and_go() {
    let held = |kind: &Attachment| {
        [Isolation::None, Isolation::Process].map(|setting| Instances::of(kind).under(setting))
    };
    let kinds = all_kinds();
    let of_all: Vec<_> = kinds.iter().map(held).collect();
    let of_tenants = [
        [0, 0],
        [1, 0],
        [2, 0],
        [0, 0],
        [0, 0],
        [1, 1],
        [2, 2],
        [0, 0],
        [0, 0],
        [0, 0],
        [0, 0],
        [0, 0],
    ];
    assert_eq!(of_all[..12], of_tenants);
    assert_eq!(of_all[12..], [[0, 0]; 12]);
    let mut index = AttachmentIndex::default();
    let counted = |index: &AttachmentIndex| {
        let mut all = Instances::default();
        for (_, its) in index.iter() {
            all += Instances::of(&its.attachment);
        }
        all == index.instances()
    };
    for before in &kinds {
        for after in kinds.iter().filter(|kind| kind.target == before.target) {
            let id = index.insert(live(before.clone())).unwrap();
            assert!(counted(&index), "{before:?}");
            index.change(id, |live| live.attachment = after.clone());
            assert!(counted(&index), "{before:?} becomes {after:?}");
            if after.options.fresh {
                index.remove(id).unwrap();
                assert!(counted(&index), "{after:?} ends");
            }
        }
    }
}
