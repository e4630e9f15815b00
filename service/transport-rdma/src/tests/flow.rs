//! Credits: no message without a receive, and no deadlock.

use proptest::prelude::*;

use crate::flow::Flow;
use crate::limits;
use crate::wire::WireError;

#[test]
fn the_last_credit_is_for_giving_back() {
    let mut flow = Flow::new(8, 8);
    for _ in 0..7 {
        assert!(flow.may_send());
        assert_eq!(flow.send(), 0);
    }
    assert!(!flow.may_send() && flow.held() == 1);
    assert!(!flow.must_return(), "nothing is owed");
    for n in 1..=2 {
        flow.receive(0).unwrap();
        flow.reposted();
        assert_eq!(flow.must_return(), n == 2, "a quarter of 8");
    }
    assert_eq!(flow.send(), 2);
    assert!(!flow.must_return(), "there is no credit for it");
    flow.receive(8).unwrap();
    assert!(flow.may_send());
}

#[test]
fn credits_that_a_peer_cannot_have_are_its_fault() {
    let mut flow = Flow::new(8, 8);
    flow.send();
    let error = Flow::receive(&mut flow.clone(), 2);
    let credits = WireError::Credits {
        returned: 2,
        held: 7,
        receives: 8,
    };
    assert_eq!(error, Err(credits));
    assert_eq!(
        flow.clone().receive(u16::MAX).unwrap_err().to_string(),
        "65535 credits returned, of 8 with 7 held"
    );
    for _ in 0..8 {
        flow.receive(0).unwrap();
    }
    assert_eq!(
        flow.receive(0),
        Err(WireError::Overrun),
        "none was given back"
    );
}

/// One end's state, and the messages in flight to it: the credits that each returns, and whether it
/// is a CREDIT.
struct End {
    flow: Flow,
    coming: std::collections::VecDeque<u16>,
    unread: u16,
    sent: u32,
}

proptest! {
    /// Two ends send, read and return credits in any order: no message meets an end without a
    /// receive, and once both have read all messages, both can send.
    #[test]
    fn any_order_of_sending_and_reading_goes_on(
        receives in (limits::MIN_RECEIVES..80, limits::MIN_RECEIVES..80),
        steps in prop::collection::vec((0usize..2, 0u8..4), 0..2000),
    ) {
        let end = |own, peers| End {
            flow: Flow::new(own, peers),
            coming: Default::default(),
            unread: 0,
            sent: 0,
        };
        let mut ends = [end(receives.0, receives.1), end(receives.1, receives.0)];
        let own = [receives.0, receives.1];
        let settle = (0..400).flat_map(|_| [(0, 1), (1, 1), (0, 2), (1, 2), (0, 3), (1, 3)]);
        let chosen = steps.len();
        for (n, (at, what)) in steps.into_iter().chain(settle).enumerate() {
            match what {
                0 if ends[at].flow.may_send() && n < chosen => {
                    let returned = ends[at].flow.send();
                    ends[at].sent += 1;
                    ends[1 - at].coming.push_back(returned);
                }
                1 => while let Some(returned) = ends[at].coming.pop_front() {
                    ends[at].flow.receive(returned).unwrap();
                    ends[at].unread += 1;
                },
                2 => for _ in 0..std::mem::take(&mut ends[at].unread) {
                    ends[at].flow.reposted();
                },
                3 if ends[at].flow.must_return() => {
                    let returned = ends[at].flow.send();
                    ends[1 - at].coming.push_back(returned);
                }
                _ => {}
            }
            for at in 0..2 {
                let waiting = ends[at].coming.len() as u16 + ends[at].unread;
                prop_assert!(waiting <= own[at], "{waiting} messages for {} receives", own[at]);
            }
        }
        for end in &ends {
            prop_assert!(end.flow.may_send(), "{:?}", end.flow);
        }
    }
}
