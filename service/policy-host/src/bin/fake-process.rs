//! A policy process under an attacker's control: it does things that the daemon must survive. For
//! this crate's tests, never installed.
//!
//! ```text
//!   fake-process WHAT policy-process PARENT MEMORY SPIN USER GROUP
//! ```
//!
//! It reports that it is ready, gives every policy an instance without checking it, and then
//! answers each order as WHAT says. The bytes are written by hand, because the crate's own code
//! would never write them.

#![forbid(unsafe_code)]

use std::fs::File;
use std::io::{IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::time::Duration;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use tollgate_policy_host::limits;
use tollgate_shm_abi::heap::Block;
use tollgate_shm_abi::session::{AppEnd, SessionFds, SessionShape};

fn main() {
    let what = std::env::args().nth(1).unwrap_or_default();
    // After any failure here, the daemon sees a process that ended.
    let _ended = misbehave(&what);
}

type Failed = Box<dyn std::error::Error>;

fn misbehave(what: &str) -> Result<(), Failed> {
    let mut socket = File::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    let fds = receive_fds(&socket)?;
    let rings = File::from(fds.as_array()[0].try_clone_to_owned()?);
    let shape = SessionShape {
        ring_capacity: 4 * limits::ISOLATED_ORDERS as u32,
        send_heap_bytes: limits::ISOLATED_ANSWERS_HEAP_BYTES as u64,
        receive_heap_bytes: limits::ISOLATED_VIEWS_HEAP_BYTES as u64,
    };
    let mut end = AppEnd::attach(&shape, fds)?;
    let block = end
        .send_heap
        .alloc(limits::ISOLATED_ANSWER_BYTES)
        .ok_or("no room")?;
    match what {
        "reply-nonsense" => say(&mut socket, b"nonsense")?,
        "reply-endless" => socket.write_all(&[255; 8])?,
        _ => say(&mut socket, b"\"Ready\"")?,
    }
    std::thread::spawn(move || set_up(socket, instance_number()));
    if what == "unasked" {
        std::thread::sleep(Duration::from_millis(50));
        answer(&mut end, &entry(1, 0, 0, 0))?;
    }
    let mut fake = Fake { end, rings, block };
    loop {
        match fake.end.completions.pop()? {
            Some(order) if order[0] != 4 => fake.respond(what, &order)?,
            Some(_) => {}
            None => std::thread::sleep(Duration::from_micros(200)),
        }
    }
}

/// The instance that the process reports for the next policy; the tests' first is 0.
fn instance_number() -> u32 {
    let wrong = std::env::args().nth(1).as_deref() == Some("seat-other");
    if wrong { 77 } else { 0 }
}

fn set_up(mut socket: File, first: u32) -> Result<(), std::io::Error> {
    for instance in first.. {
        let header = read(&mut socket)?;
        let header: serde_json::Value = serde_json::from_slice(&header)?;
        let bytes = |name: &str| header[name].as_u64().unwrap_or(0);
        let parts = bytes("code_bytes") + bytes("manifest_bytes") + bytes("config_bytes");
        std::io::copy(&mut (&socket).take(parts), &mut std::io::sink())?;
        say(&mut socket, format!("{{\"Seated\":{instance}}}").as_bytes())?;
    }
    Ok(())
}

fn read(socket: &mut File) -> Result<Vec<u8>, std::io::Error> {
    let mut len = [0; 4];
    socket.read_exact(&mut len)?;
    let mut header = vec![0; u32::from_le_bytes(len) as usize];
    socket.read_exact(&mut header)?;
    Ok(header)
}

fn say(socket: &mut File, header: &[u8]) -> Result<(), std::io::Error> {
    socket.write_all(&(header.len() as u32).to_le_bytes())?;
    socket.write_all(header)
}

fn receive_fds(socket: &File) -> Result<SessionFds, Failed> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(5))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut into = [IoSliceMut::new(&mut byte)];
    recvmsg(socket, &mut into, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let mut fds: Vec<OwnedFd> = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    Ok(SessionFds::from_packet(fds)?)
}

/// An answer: kind, ticket, and the offset and length of its part.
fn entry(kind: u8, ticket: u64, offset: u64, len: u32) -> [u8; 64] {
    let mut entry = [0; 64];
    entry[0] = kind;
    entry[4..8].copy_from_slice(&len.to_le_bytes());
    entry[8..16].copy_from_slice(&ticket.to_le_bytes());
    entry[24..32].copy_from_slice(&offset.to_le_bytes());
    entry[32..36].copy_from_slice(&len.to_le_bytes());
    entry
}

fn answer(end: &mut AppEnd, entry: &[u8; 64]) -> Result<(), Failed> {
    end.submissions.push(entry)?;
    end.doorbell.ring();
    Ok(())
}

struct Fake {
    end: AppEnd,
    rings: File,
    block: Block,
}

impl Fake {
    fn respond(&mut self, what: &str, order: &[u8; 64]) -> Result<(), Failed> {
        let ticket = u64::from_le_bytes(order[16..24].try_into()?);
        let count = u32::from(u16::from_le_bytes(order[2..4].try_into()?));
        let (at, len) = (self.block.offset(), 32 * count);
        let verdict = |words: [u32; 4]| words;
        let words = match what {
            "silent" => return Ok(()),
            "die" => std::process::exit(0),
            "index-ahead" => return self.set_index(1_000_000),
            "index-back" => {
                // Valid, because the reader may be quicker than the index.
                self.fill(count, [1, 0, 0, 0]);
                answer(&mut self.end, &entry(1, ticket, at, len))?;
                return self.set_index(u32::MAX);
            }
            "kind" => return answer(&mut self.end, &entry(9, ticket, at, len)),
            "offset" => return answer(&mut self.end, &entry(1, ticket, u64::MAX - 8, len)),
            "length" => return answer(&mut self.end, &entry(1, ticket, at, u32::MAX)),
            "short" => {
                self.fill(count, [1, 0, 0, 0]);
                return answer(&mut self.end, &entry(1, ticket, at, len - 1));
            }
            "heir" => return answer(&mut self.end, &entry(3, ticket, at, len)),
            "other" => return answer(&mut self.end, &entry(1, ticket + 1, at, len)),
            "no-verdict" => verdict([0, 0, 0, 0]),
            "verdict" => verdict([9, 0, 0, 0]),
            "status" => verdict([2, 99, 0, 0]),
            "message" => verdict([2, 7, u32::MAX, 8]),
            "effects" => verdict([3, 0, 0, 16]),
            "effects-outside" => verdict([3, 0, 1 << 30, 16]),
            "reason" => {
                self.block[..4096].fill(0xff);
                return answer(&mut self.end, &entry(2, ticket, at, 4096));
            }
            "log" => {
                self.fill(count, [1, 0, 0, 0]);
                let mut log = entry(1, ticket, at, len + 100);
                log[32..36].copy_from_slice(&len.to_le_bytes());
                log[36..40].copy_from_slice(&64u32.to_le_bytes());
                log[40..48].copy_from_slice(&u64::MAX.to_le_bytes());
                self.block[len as usize..][..100].fill(0xff);
                return answer(&mut self.end, &log);
            }
            // Honest, or "twice".
            _ => verdict([1, 0, 0, 0]),
        };
        self.fill(count, words);
        answer(&mut self.end, &entry(1, ticket, at, len))?;
        if what == "twice" {
            answer(&mut self.end, &entry(1, ticket, at, len))?;
        }
        Ok(())
    }

    /// Writes these words as the verdict of every call.
    fn fill(&mut self, count: u32, words: [u32; 4]) {
        for call in 0..count as usize {
            for (k, word) in words.into_iter().enumerate() {
                let at = 32 * call + 12 + 4 * k;
                self.block[at..at + 4].copy_from_slice(&word.to_le_bytes());
            }
        }
    }

    /// Writes the producer index of the answers' ring, bypassing the ring's code and its checks.
    fn set_index(&mut self, index: u32) -> Result<(), Failed> {
        self.rings.write_all_at(&index.to_le_bytes(), 4096)?;
        self.end.doorbell.ring();
        Ok(())
    }
}
