//! Writes views into a guest's buffer and reads verdicts from it.
//!
//! ```text
//!   buffer: | entry 0 | entry 1 | .. up to the announced count | view 0 | view 1 | .. | zeroed up to `used` |
//!             32 bytes: view_off view_len method verdict status msg_off msg_len zero
//! ```
//!
//! Invariant: when the guest runs, the buffer holds the entries and views of this batch, and zeros
//! in place of leftovers from earlier batches. The host doesn't read back what it wrote: it never
//! uses offsets and lengths that the guest may have changed.

use std::ops::Range;

use crate::effects::{self, Subject};
use crate::sandbox::Sandbox;
use crate::span::Span;
use crate::text::text;
use crate::{EvaluateError, Fault, Hook, Manifest, Misuse, Verdict, cost, limits};

/// Bytes of one entry.
pub(crate) const ENTRY_BYTES: usize = 32;

const ALLOW: u32 = 1;
const DENY: u32 = 2;
const EFFECTS: u32 = 3;

const _: () = assert!(limits::METHODS <= 256, "a method's index is a byte");

/// The last status code of gRPC.
const STATUS_MAX: u32 = 16;

/// Calls of one evaluation. Dropping it discards them.
#[derive(Debug)]
pub struct Batch<'a> {
    sandbox: &'a mut Sandbox,
    hook: Hook,
    /// Maximum number of entries.
    room: usize,
    /// Entries written.
    count: usize,
    /// Their methods. The host keeps its own copy because the guest can change the entries in its
    /// memory.
    methods: [u8; limits::BATCH],
    /// Where the next view begins, from the buffer's start; a multiple of 8.
    next: usize,
    /// End of the space for views.
    end: usize,
}

impl<'a> Batch<'a> {
    /// The instance's buffer must have `end` bytes.
    pub(crate) fn new(sandbox: &'a mut Sandbox, hook: Hook, room: usize, end: usize) -> Batch<'a> {
        Batch {
            sandbox,
            hook,
            room,
            count: 0,
            methods: [0; limits::BATCH],
            next: room * ENTRY_BYTES,
            end,
        }
    }

    /// Calls pushed so far.
    pub fn len(&self) -> usize {
        self.count
    }

    /// True if nothing was pushed.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Adds a call; arguments as for [`crate::Instance::evaluate`].
    ///
    /// # Errors
    /// The writer failed, or the call doesn't fit. The batch is unchanged and usable.
    pub fn push<E>(
        &mut self,
        method: u32,
        view_len_max: usize,
        write_view: impl FnOnce(&mut [u8]) -> Result<usize, E>,
    ) -> Result<(), EvaluateError<E>> {
        self.fill().push(method, view_len_max, write_view)
    }

    /// For adding several calls: the guest's buffer is looked up once for all of them.
    #[inline]
    pub fn fill(&mut self) -> Filling<'_> {
        let Sandbox {
            memory,
            store,
            buffer,
            used,
            methods: methods_max,
            ..
        } = &mut *self.sandbox;
        Filling {
            buffer: &mut memory.data_mut(store)[buffer.clone()],
            used,
            methods_max: *methods_max,
            room: self.room,
            count: &mut self.count,
            methods: &mut self.methods,
            next: &mut self.next,
            end: self.end,
        }
    }

    /// Runs the policy, and hands each call's verdict to `each`, in the order of the pushes. An
    /// empty batch runs nothing.
    ///
    /// # Errors
    /// The policy failed and is dead. All its calls failed with it: earlier verdicts handed to
    /// `each` are void.
    pub fn evaluate(mut self, mut each: impl FnMut(usize, Verdict)) -> Result<(), Fault> {
        if self.count == 0 {
            return Ok(());
        }
        self.clear_leftovers();
        let Batch {
            sandbox,
            hook,
            count,
            methods,
            ..
        } = self;
        sandbox.run(hook, count)?;
        let mut at = 0;
        while at < count {
            let allowed = count_allowed(sandbox, at..count);
            (at..at + allowed).for_each(|index| each(index, Verdict::Allow));
            at += allowed;
            if at < count {
                match read_verdict(sandbox, hook, methods[at].into(), at) {
                    Ok(verdict) => each(at, verdict),
                    Err(fault) => return Err(sandbox.kill(fault)),
                }
                at += 1;
            }
        }
        Ok(())
    }

    /// Zeroes entries that were announced but not pushed, and leftovers of earlier evaluations
    /// after the views.
    #[inline]
    fn clear_leftovers(&mut self) {
        let (pushed, announced) = (self.count * ENTRY_BYTES, self.room * ENTRY_BYTES);
        let (next, used) = (self.next, self.sandbox.used);
        let buffer = self.sandbox.buffer_mut();
        if pushed < announced {
            buffer[pushed..announced].fill(0);
        }
        if next < used {
            buffer[next..used].fill(0);
        }
        self.sandbox.used = next;
    }
}

/// A batch during the addition of calls.
#[derive(Debug)]
pub struct Filling<'b> {
    buffer: &'b mut [u8],
    used: &'b mut usize,
    methods_max: u32,
    room: usize,
    count: &'b mut usize,
    methods: &'b mut [u8; limits::BATCH],
    next: &'b mut usize,
    end: usize,
}

impl Filling<'_> {
    /// As [`Batch::push`].
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn push<E>(
        &mut self,
        method: u32,
        view_len_max: usize,
        write_view: impl FnOnce(&mut [u8]) -> Result<usize, E>,
    ) -> Result<(), EvaluateError<E>> {
        self.check(method, view_len_max)?;
        let (begin, view_end) = (*self.next, *self.next + view_len_max);
        let len = match write_view(&mut self.buffer[begin..view_end]) {
            Ok(len) if len <= view_len_max => len,
            refused => {
                // The view may be written in part; the next evaluation clears it.
                *self.used = (*self.used).max(view_end);
                return Err(match refused {
                    Ok(len) => Misuse::ViewTooLong {
                        len,
                        max: view_len_max,
                    }
                    .into(),
                    Err(error) => EvaluateError::View(error),
                });
            }
        };
        let count = *self.count;
        *self.next = (begin + len).next_multiple_of(8);
        self.buffer[begin + len..*self.next].fill(0);
        let entry = &mut self.buffer[count * ENTRY_BYTES..][..ENTRY_BYTES];
        let words = [begin as u32, len as u32, method, 0, 0, 0, 0, 0];
        for (bytes, word) in entry.as_chunks_mut::<4>().0.iter_mut().zip(words) {
            *bytes = word.to_le_bytes();
        }
        self.methods[count] = method as u8;
        *self.count += 1;
        // If this batch is dropped, the next one clears its leftovers.
        *self.used = (*self.used).max(*self.next);
        Ok(())
    }

    #[inline]
    fn check(&self, method: u32, view_len_max: usize) -> Result<(), Misuse> {
        let max = limits::VIEW_BYTES.min(self.end - *self.next);
        if *self.count == self.room {
            Err(Misuse::BatchTooLong {
                count: *self.count + 1,
                max: self.room,
            })
        } else if view_len_max > max {
            Err(Misuse::ViewTooLong {
                len: view_len_max,
                max,
            })
        } else if method >= self.methods_max {
            Err(Misuse::Method {
                index: method,
                count: self.methods_max as usize,
            })
        } else {
            Ok(())
        }
    }
}

/// Counts the entries from the start of `range` with a plain "allow": one look-up of the memory for
/// all of them.
#[inline]
fn count_allowed(sandbox: &Sandbox, range: Range<usize>) -> usize {
    let memory = sandbox.memory.data(&sandbox.store);
    let (entries, _) = memory[sandbox.buffer.clone()].as_chunks::<ENTRY_BYTES>();
    let is_allowed = |entry: &&[u8; ENTRY_BYTES]| entry[12..16] == ALLOW.to_le_bytes();
    entries[range].iter().take_while(is_allowed).count()
}

/// Reads one entry's outcome. The guest has stopped; everything here is its own claim.
#[inline]
fn read_verdict(
    sandbox: &mut Sandbox,
    hook: Hook,
    method: usize,
    index: usize,
) -> Result<Verdict, Fault> {
    let memory = sandbox.memory.data(&sandbox.store);
    let entry = sandbox.buffer.start + index * ENTRY_BYTES;
    let claim = Claim {
        memory,
        entry: &memory[entry..][..ENTRY_BYTES],
        manifest: sandbox.policy.manifest(),
        hook,
        method,
        index,
    };
    claim.read(|units| sandbox.budget.charge(units))
}

/// A guest's result for one call of a batch, as it or its process left it.
pub(crate) struct Claim<'a> {
    /// Where addresses point.
    pub(crate) memory: &'a [u8],
    /// The call's entry.
    pub(crate) entry: &'a [u8],
    pub(crate) manifest: &'a Manifest,
    pub(crate) hook: Hook,
    /// The index of the call's entry in the manifest's methods.
    pub(crate) method: usize,
    /// The call's place in its batch.
    pub(crate) index: usize,
}

impl Claim<'_> {
    /// Checks the claim; `charge` takes fuel for copied bytes.
    #[inline]
    pub(crate) fn read(
        &self,
        charge: impl FnMut(u64) -> Result<(), Fault>,
    ) -> Result<Verdict, Fault> {
        let Claim {
            memory,
            entry,
            index,
            ..
        } = *self;
        let word = |i: usize| {
            u32::from_le_bytes([
                entry[i * 4],
                entry[i * 4 + 1],
                entry[i * 4 + 2],
                entry[i * 4 + 3],
            ])
        };
        let status = word(4);
        let span = Span {
            address: word(5),
            len: word(6),
        };
        match word(3) {
            ALLOW => Ok(Verdict::Allow),
            DENY if !(1..=STATUS_MAX).contains(&status) => Err(Fault::BadStatus { index, status }),
            DENY => Ok(Verdict::Deny {
                code: status,
                message: read_message(memory, span, charge)?,
            }),
            EFFECTS => {
                let subject = Subject {
                    index,
                    hook: self.hook,
                    method: &self.manifest.methods()[self.method],
                    capabilities: self.manifest.capabilities(),
                };
                let effects = effects::read(memory, span, subject, charge)?;
                Ok(match effects.is_empty() {
                    true => Verdict::Allow,
                    false => Verdict::Effects(Box::new(effects)),
                })
            }
            verdict => Err(Fault::BadVerdict { index, verdict }),
        }
    }
}

fn read_message(
    memory: &[u8],
    span: Span,
    mut charge: impl FnMut(u64) -> Result<(), Fault>,
) -> Result<String, Fault> {
    if span.len == 0 {
        return Ok(String::new());
    }
    let bytes = span.of(memory).ok_or(Fault::BadMessage {
        address: span.address,
        len: span.len,
        memory: memory.len(),
    })?;
    let bytes_read = bytes.len().min(limits::MESSAGE_BYTES);
    charge(cost::MESSAGE + bytes_read as u64)?;
    Ok(text(bytes, limits::MESSAGE_BYTES))
}
