//! Messages in the form in which links send them.

use tollgate_marshal::MAX_EXTENTS;
use tollgate_policy_chain::message::{Body, Message};
use tollgate_shm_abi::io::Part;
use tollgate_shm_abi::metadata::Metadata;
use tollgate_transport::{Image, metadata_room};

/// The credit that a message uses on a link.
pub(crate) fn credit_bytes(message: &Message) -> u64 {
    u64::from(message.message_len()) + metadata_room(message.metadata.len()) as u64
}

/// Calls `send` with the message's parts. `None` if the message is in a receive heap: nothing is
/// sent from there. The table of parts is made only for messages with parts: it takes longer than a
/// small message.
#[inline]
pub(crate) fn on_wire<R>(message: &Message, send: impl FnOnce(&Image<'_>) -> R) -> Option<R> {
    let mut parts;
    let (inline, extents): (&[u8], &[Part<'_>]) = match &message.body {
        _ if message.bare => (&[], &[]),
        Body::Private { bytes, extents, .. } => match extents.first() {
            None => (bytes, &[]),
            // An image's extents are contiguous, padding included: one part.
            Some(&first) => {
                let (inline, all) = (message.inline_len as usize, first as usize);
                (&bytes[..inline], &[Part::Private(&bytes[all..])])
            }
        },
        Body::Gathered { inline, spans, .. } => {
            parts = [Part::Private(&[]); MAX_EXTENTS];
            for (part, span) in parts.iter_mut().zip(spans) {
                *part = Part::Shared { span, at: 0 };
            }
            (inline, &parts[..spans.len()])
        }
        Body::Encoded { bytes, start } => (&bytes[*start..], &[]),
        Body::Landed { .. } => return None,
    };
    let metadata = Metadata::of_checked(&message.metadata);
    Some(send(&Image {
        inline,
        extents,
        metadata,
    }))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use tollgate_engine::SessionId;
    use tollgate_policy_chain::message::{Pool, Source};
    use tollgate_shm_abi::session::{AppEnd, SessionFds, SessionShape, create};

    /// A message with extents in a send heap, as an application posts it.
    fn gathered() -> Message {
        let shape = SessionShape::default();
        let (daemon, fds) = create(&shape).unwrap();
        let fds = fds
            .as_array()
            .iter()
            .map(|fd| fd.try_clone_to_owned().unwrap())
            .collect();
        let mut app = AppEnd::attach(&shape, SessionFds::from_packet(fds).unwrap()).unwrap();
        let mut block = app.send_heap.alloc(32).unwrap();
        block[..13].copy_from_slice(b"first--second");
        let offset = app.send_heap.commit(block);
        let span = |at, len| daemon.send_heap.span(offset + at, len).unwrap();
        let spans = vec![span(0, 5), span(7, 6)];
        let source = Source {
            session: SessionId(1),
            offset,
        };
        let body = Body::Gathered {
            inline: b"inline part".to_vec(),
            spans,
            source,
        };
        Message {
            body,
            inline_len: 11,
            total_len: 30,
            metadata: Vec::new(),
            bare: false,
        }
    }

    #[test]
    fn an_image_is_inline_part_and_padded_extents() {
        let mut message = gathered();
        assert_eq!(
            message.evaluated().0,
            b"inline part",
            "only the private part is shown"
        );
        let freed = message.make_private(&mut Pool::new()).unwrap();
        assert_eq!(freed.session, SessionId(1));
        let want = b"inline part\0\0\0\0\0first\0\0\0second";
        assert_eq!(message.evaluated(), (&want[..], &[16, 24][..]));
        assert_eq!(
            message.make_private(&mut Pool::new()),
            None,
            "it is private already"
        );
    }

    #[test]
    fn the_wire_carries_the_same_bytes_however_they_are_held() {
        let bytes_of = |message: &Message| {
            let sent = on_wire(message, |image| {
                let mut bytes = image.inline.to_vec();
                for part in image.extents {
                    bytes.resize(bytes.len().next_multiple_of(8), 0);
                    match part {
                        Part::Private(extent) => bytes.extend_from_slice(extent),
                        Part::Shared { span, .. } => {
                            let at = bytes.len();
                            bytes.resize(at + span.len(), 0);
                            span.copy_to(&mut bytes[at..]).unwrap();
                        }
                    }
                }
                bytes
            });
            sent.unwrap()
        };
        let mut message = gathered();
        let shared = bytes_of(&message);
        message.make_private(&mut Pool::new());
        assert_eq!(bytes_of(&message), shared);
        assert_eq!(shared.len(), 30);
    }
}
