//! The table of streaming calls, outgoing and incoming: what has been received, and what may be
//! sent.
//!
//! A stream's two ends work alike, so one table serves both. Incoming messages wait in an inbox,
//! which the sender's window bounds. Outgoing messages wait for the reader's credit. Pure: no ring,
//! no clock. Unary calls aren't here.

use std::collections::{HashMap, VecDeque};
use std::task::{Poll, Waker};

use tollgate_shm_abi::descriptor::Image;
use tollgate_shm_abi::limits::STREAM_WINDOW_MESSAGES;
use tollgate_shm_abi::stream::{Consumed, Credit, Window};

/// The side that chose a call's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Side {
    /// This application. It sends requests and reads responses.
    Own,
    /// The daemon. This application reads requests and sends responses.
    Incoming,
}

/// The key of a stream.
pub(crate) type StreamKey = (Side, u64);

/// An incoming message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Item {
    pub(crate) image: Image,
    /// It has no message, at most metadata.
    pub(crate) bare: bool,
    /// The credit for reading it.
    pub(crate) charge: u32,
}

/// The next item of a reader.
#[derive(Debug)]
pub(crate) enum Next {
    /// A message, and the credit for its sender.
    Item(Item, Option<Credit>),
    /// Nothing yet.
    Wait,
    /// No more will come.
    End,
    /// The call is over.
    Over,
}

#[derive(Debug, Default)]
struct Stream {
    inbox: VecDeque<Item>,
    /// The last incoming item is in the inbox.
    ended: bool,
    reader: Option<Waker>,
    consumed: Consumed,
    window: Window,
    writer: Option<Waker>,
    /// Nothing more can be sent, and no more messages come.
    over: bool,
}

/// Error: a daemon sent more than was granted.
#[derive(Debug)]
pub(crate) struct Overrun;

#[derive(Debug, Default)]
pub(crate) struct StreamTable {
    streams: HashMap<StreamKey, Stream>,
    /// The session has ended, and so has each stream that is opened from now on.
    all_over: bool,
}

impl StreamTable {
    /// Whether there is no stream, as in most programs.
    pub(crate) fn is_empty(&self) -> bool {
        self.streams.is_empty()
    }

    /// Opens a stream, unless it is open.
    pub(crate) fn open(&mut self, key: StreamKey) {
        let over = self.all_over;
        let stream = self.streams.entry(key);
        stream.or_insert_with(|| Stream {
            over,
            ..Stream::default()
        });
    }

    /// Whether nothing more can be sent.
    pub(crate) fn is_over(&self, key: StreamKey) -> bool {
        self.streams.get(&key).is_none_or(|stream| stream.over)
    }

    /// Handles an incoming message; `last` if none follows. Returns the waker to wake, or the
    /// message if the stream has no reader.
    pub(crate) fn came(
        &mut self,
        key: StreamKey,
        item: Item,
        last: bool,
    ) -> Result<Result<Option<Waker>, Item>, Overrun> {
        let Some(stream) = self.streams.get_mut(&key).filter(|s| !s.over) else {
            return Ok(Err(item));
        };
        if stream.inbox.len() > STREAM_WINDOW_MESSAGES as usize {
            return Err(Overrun);
        }
        stream.ended |= last;
        // An end without metadata is no message.
        if !item.bare || item.image.exists(true) || !last {
            stream.inbox.push_back(item);
        }
        Ok(Ok(stream.reader.take()))
    }

    /// Adds credit, because the other side has read messages. Returns the waker to wake.
    pub(crate) fn credit(&mut self, key: StreamKey, credit: Credit) -> Option<Waker> {
        let stream = self.streams.get_mut(&key)?;
        stream.window.give_back(credit);
        stream.writer.take()
    }

    /// Ends the call. Messages that have come can still be read.
    pub(crate) fn end(&mut self, key: StreamKey, wakers: &mut Vec<Waker>) {
        if let Some(stream) = self.streams.get_mut(&key) {
            stream.over = true;
            wakers.extend(stream.reader.take());
            wakers.extend(stream.writer.take());
        }
    }

    /// Ends all calls, also those whose streams are opened later.
    pub(crate) fn end_all(&mut self, wakers: &mut Vec<Waker>) {
        self.all_over = true;
        let keys: Vec<_> = self.streams.keys().copied().collect();
        for key in keys {
            self.end(key, wakers);
        }
    }

    /// The next item; keeps the waker if there is none yet.
    pub(crate) fn next(&mut self, key: StreamKey, waker: &Waker) -> Next {
        let Some(stream) = self.streams.get_mut(&key) else {
            return Next::Over;
        };
        if let Some(item) = stream.inbox.pop_front() {
            let credit = stream.consumed.add(item.charge);
            return Next::Item(item, credit);
        }
        if stream.ended {
            return Next::End;
        }
        if stream.over {
            return Next::Over;
        }
        stream.reader = Some(waker.clone());
        Next::Wait
    }

    /// Whether a message of this charge may be sent; false once the call is over. Keeps the waker
    /// until it may.
    pub(crate) fn poll_send(&mut self, key: StreamKey, charge: u32, waker: &Waker) -> Poll<bool> {
        match self.streams.get_mut(&key) {
            Some(stream) if !stream.over => {
                if stream.window.affords(charge) {
                    return Poll::Ready(true);
                }
                stream.writer = Some(waker.clone());
                Poll::Pending
            }
            _ => Poll::Ready(false),
        }
    }

    /// Whether the call is over; keeps the waker until it is.
    pub(crate) fn poll_over(&mut self, key: StreamKey, waker: &Waker) -> Poll<()> {
        match self.streams.get_mut(&key) {
            Some(stream) if !stream.over => {
                stream.writer = Some(waker.clone());
                Poll::Pending
            }
            _ => Poll::Ready(()),
        }
    }

    /// Counts a sent message of this charge, which was [allowed](Self::poll_send).
    pub(crate) fn sent(&mut self, key: StreamKey, charge: u32) {
        if let Some(stream) = self.streams.get_mut(&key) {
            let affords = stream.window.take(charge);
            debug_assert!(affords, "it was asked before");
        }
    }

    /// Forgets a stream. Returns its unread items.
    pub(crate) fn remove(&mut self, key: StreamKey) -> VecDeque<Item> {
        let removed = self.streams.remove(&key);
        removed.map(|stream| stream.inbox).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use tollgate_shm_abi::limits::STREAM_WINDOW_BYTES;

    const KEY: StreamKey = (Side::Own, 7);

    fn item(charge: u32) -> Item {
        Item {
            image: Image::default(),
            bare: false,
            charge,
        }
    }

    fn end() -> Item {
        Item {
            bare: true,
            ..item(0)
        }
    }

    fn table() -> StreamTable {
        let mut streams = StreamTable::default();
        streams.open(KEY);
        streams
    }

    #[test]
    fn what_came_is_read_in_order_also_after_the_end() {
        let mut streams = table();
        assert!(matches!(streams.next(KEY, Waker::noop()), Next::Wait));
        let woken = streams.came(KEY, item(1), false).unwrap().unwrap();
        assert!(woken.is_some(), "the reader waits");
        streams
            .came(KEY, item(STREAM_WINDOW_BYTES), false)
            .unwrap()
            .unwrap();
        streams.came(KEY, end(), true).unwrap().unwrap();
        streams.end(KEY, &mut Vec::new());
        assert!(streams.came(KEY, item(9), false).unwrap().is_err(), "over");
        assert!(matches!(
            streams.next(KEY, Waker::noop()),
            Next::Item(Item { charge: 1, .. }, None)
        ));
        let Next::Item(_, Some(credit)) = streams.next(KEY, Waker::noop()) else {
            panic!("a quarter of the window has been read");
        };
        assert_eq!(
            (credit.messages, credit.bytes),
            (2, STREAM_WINDOW_BYTES + 1)
        );
        assert!(matches!(streams.next(KEY, Waker::noop()), Next::End));
        streams.remove(KEY);
        assert!(matches!(streams.next(KEY, Waker::noop()), Next::Over));
        assert!(streams.is_empty());
    }

    #[test]
    fn a_writer_waits_for_credit_and_for_the_end() {
        let mut streams = table();
        let send = |streams: &mut StreamTable| {
            let polled = streams.poll_send(KEY, STREAM_WINDOW_BYTES, Waker::noop());
            if polled == Poll::Ready(true) {
                streams.sent(KEY, STREAM_WINDOW_BYTES);
            }
            polled
        };
        assert_eq!(send(&mut streams), Poll::Ready(true));
        assert_eq!(send(&mut streams), Poll::Pending);
        let credit = Credit {
            messages: 1,
            bytes: STREAM_WINDOW_BYTES,
        };
        assert!(streams.credit(KEY, credit).is_some());
        assert_eq!(send(&mut streams), Poll::Ready(true));
        assert_eq!(send(&mut streams), Poll::Pending);
        let mut wakers = Vec::new();
        streams.end_all(&mut wakers);
        assert_eq!((wakers.len(), send(&mut streams)), (1, Poll::Ready(false)));
        assert!(streams.poll_over(KEY, Waker::noop()).is_ready());
        // A handler on a thread of its own learns of the session's end, too.
        let late = (Side::Incoming, 8);
        streams.open(late);
        assert!(streams.poll_over(late, Waker::noop()).is_ready());
        assert!(matches!(streams.next(late, Waker::noop()), Next::Over));
    }

    #[test]
    fn a_daemon_that_sends_more_than_was_granted_is_found_out() {
        let mut streams = table();
        for _ in 0..=STREAM_WINDOW_MESSAGES {
            streams.came(KEY, item(0), false).unwrap().unwrap();
        }
        assert!(streams.came(KEY, item(0), false).is_err());
        assert_eq!(
            streams.remove(KEY).len(),
            STREAM_WINDOW_MESSAGES as usize + 1
        );
    }
}
