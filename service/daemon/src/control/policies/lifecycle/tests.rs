//! Plans against a runtime that runs one turn at a time.

#![allow(clippy::unwrap_used)]

use tollgate_control::{Owner, Party, Side, Target};
use tollgate_shm_abi::status::Code;

use super::*;
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
        let live = LiveAttachment {
            attachment: attachment(policy),
            runtime: RuntimeIndex::FIRST,
            place: 0,
            stable: None,
            candidate: None,
            fallback: None,
            incarnation: 0,
            faults: Faults::default(),
        };
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
