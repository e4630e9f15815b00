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

/// What waits, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Element {
    /// Its bytes.
    pub len: usize,
    /// Where it lies.
    pub lies: Lies,
}

/// Where bytes lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lies {
    /// In memory that no device can read.
    Unregistered,
    /// In a heap that one can.
    Heap,
    /// Where the link marshals, which one can read as well.
    Marshalled,
}

/// What a work request may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Elements of its scatter-gather list, at least 1.
    pub max_elements: usize,
    /// Bytes of its message.
    pub message_bytes: usize,
    /// Of these, bytes that are fused: the place that there is for them.
    pub fused_bytes: usize,
    /// Elements of up to so many bytes are fused.
    pub small_bytes: usize,
}

/// A range of an element, and what becomes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Copied behind the step before, if that is fused, into the same element of the list; otherwise it begins one.
    Fuse(Range),
    /// An element of the list.
    Gather(Range),
}

/// Bytes of one element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// Which element.
    pub element: usize,
    /// Its first byte.
    pub at: usize,
    /// Bytes.
    pub len: usize,
}

/// Where in the elements the next message begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// Which element.
    pub element: usize,
    /// Its first byte that isn't in a message.
    pub at: usize,
}

/// Plans one message from `from` on: appends its steps, returns where the next one begins. No steps were appended if nothing waits.
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

/// How many elements the list of these steps has.
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

    /// How many of these bytes fit, and whether they are fused; `None` if the message is full.
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
        // Into the list's last element there had better go what would otherwise need a message of its own.
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
