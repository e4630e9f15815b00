//! The scheduler: it assigns waiting bytes to work requests, and decides which of them are copied
//! first.
//!
//! A device fetches each element of a scatter-gather list on its own, and small elements between
//! large ones cost it most (the mRPC paper, section 5, after Kong et al.). So small neighbours are
//! *fused*: copied one after another into one registered place. The place is then one element of at
//! most 16 KB, as in the paper. Calls of all applications to one peer share its link, so fusing
//! joins the end of one call with the beginning of the next, whichever applications made them:
//! BytePS's 8-byte key, tensor, 4-byte length become length and key, tensor, length and key. Large
//! elements are *gathered*: their bytes leave from their own memory.
//!
//! Bytes in unregistered memory must be fused, whatever their size. Frames marshalled one after
//! another into registered memory form one element already. They are copied once more only next to
//! fused bytes. If a device takes few elements, the last ones are fused, too, as far as there is
//! room.
//!
//! Pure: elements in, steps out. It knows no verbs.

/// Waiting bytes, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Element {
    /// Length in bytes.
    pub len: usize,
    /// Their memory.
    pub lies: Lies,
}

/// The kind of memory that holds bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lies {
    /// In memory that no device can read.
    Unregistered,
    /// In a heap that a device can read.
    Heap,
    /// In the link's marshalling memory, which a device can read as well.
    Marshalled,
}

/// The limits of a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Most elements of its scatter-gather list, at least 1.
    pub max_elements: usize,
    /// Most bytes of its message.
    pub message_bytes: usize,
    /// Most fused bytes of these: the size of their place.
    pub fused_bytes: usize,
    /// Elements of up to this many bytes are fused.
    pub small_bytes: usize,
}

/// A range of an element, and its treatment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Copied after the previous step into the same element of the list, if that step is fused;
    /// otherwise begins an element.
    Fuse(Range),
    /// An element of the list.
    Gather(Range),
}

/// Bytes of one element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// The element's index.
    pub element: usize,
    /// Its first byte.
    pub at: usize,
    /// Length in bytes.
    pub len: usize,
}

/// The place in the elements where the next message begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// The element's index.
    pub element: usize,
    /// Its first byte that isn't in a message.
    pub at: usize,
}

/// Plans one message from `from` on: appends its steps, returns the start of the next one. Without
/// waiting bytes, it appends no steps.
pub fn next_message(
    elements: &[Element],
    from: Position,
    shape: &Shape,
    steps: &mut Vec<Step>,
) -> Position {
    let mut message = Message::new(*shape);
    let mut next = from;
    while let Some(element) = elements.get(next.element) {
        let rest = element.len - next.at;
        let following = elements.get(next.element + 1).map(|element| element.len);
        let Some((len, fused)) = message.take(*element, rest, following) else {
            break;
        };
        let range = Range {
            element: next.element,
            at: next.at,
            len,
        };
        if len > 0 {
            steps.push(match fused {
                true => Step::Fuse(range),
                false => Step::Gather(range),
            });
        }
        if len < rest {
            next.at += len;
            break;
        }
        next = Position {
            element: next.element + 1,
            at: 0,
        };
    }
    next
}

/// Number of list elements of these steps.
pub fn elements_of(steps: &[Step]) -> usize {
    let mut fusing = false;
    steps
        .iter()
        .filter(|step| {
            let begins = !(fusing && matches!(step, Step::Fuse(_)));
            fusing = matches!(step, Step::Fuse(_));
            begins
        })
        .count()
}

/// A message that is being filled.
struct Message {
    shape: Shape,
    bytes: usize,
    fused: usize,
    elements: usize,
    /// Whether the last step was fused: another one adds no element.
    fusing: bool,
}

impl Message {
    fn new(shape: Shape) -> Message {
        Message {
            shape,
            bytes: 0,
            fused: 0,
            elements: 0,
            fusing: false,
        }
    }

    /// The number of these bytes that fit, and whether they are fused; `None` if the message is
    /// full.
    fn take(
        &mut self,
        element: Element,
        rest: usize,
        following: Option<usize>,
    ) -> Option<(usize, bool)> {
        let Shape {
            max_elements,
            message_bytes,
            fused_bytes,
            small_bytes,
        } = self.shape;
        let room = message_bytes - self.bytes;
        let fusable = room.min(fused_bytes - self.fused);
        let full = self.elements == max_elements;
        // The list's last element should take the bytes that would otherwise need a separate
        // message.
        let scarce = match following {
            _ if full && self.fusing => rest <= fusable,
            Some(len) if self.elements + 1 == max_elements => rest + len <= fusable,
            _ => false,
        };
        let small = rest <= small_bytes;
        let fuse = match element.lies {
            Lies::Unregistered => true,
            Lies::Heap => small || scarce,
            Lies::Marshalled => (small && self.fusing) || scarce,
        };
        let room = if fuse { fusable } else { room };
        let begins = !(fuse && self.fusing);
        if rest > 0 && (room == 0 || (full && begins)) {
            return None;
        }
        let len = rest.min(room);
        if len > 0 {
            self.elements += usize::from(begins);
            self.fusing = fuse;
            self.bytes += len;
            self.fused += if fuse { len } else { 0 };
        }
        Some((len, fuse))
    }
}
