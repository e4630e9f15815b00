//! A filter's state on the host's side. Every part that a filter can grow has its own limit in
//! [`crate::limits`].

use std::collections::VecDeque;
use std::ops::ControlFlow;

use wasmtime::{Memory, StoreLimits, TypedFunc};

use super::headers::Headers;
use super::metrics::Defined;
use super::properties::Properties;
use super::queues::Queues;
use crate::log::Log;
use crate::wasi::Process;
use crate::{Capabilities, Hook, SharedState};

/// A store's data.
pub(crate) struct Proxy {
    pub(super) limiter: StoreLimits,
    /// Known once the module is instantiated.
    pub(super) memory: Option<Memory>,
    pub(super) allocate: Option<TypedFunc<u32, u32>>,
    /// True while the filter's allocator runs.
    pub(super) allocating: bool,
    /// The declared and granted capabilities.
    pub(super) capabilities: Capabilities,
    pub(super) config: Box<[u8]>,
    /// The policy's name, and the root context's.
    pub(super) name: String,
    pub(super) root_id: String,
    pub(super) log: Log,
    pub(super) shared: SharedState,
    pub(super) queues: Queues,
    pub(super) metrics: Defined,
    /// Unix time, as the host last set it.
    pub(super) now_ms: u64,
    /// 0: it doesn't tick.
    pub(super) tick_ms: u32,
    /// The context that functions act on.
    pub(super) effective: u32,
    /// The current call.
    pub(super) stream: Option<Box<Stream>>,
    /// Calls with an evaluated request and no evaluated reply yet, the oldest first.
    pub(super) open: VecDeque<Box<Stream>>,
}

/// The context of every filter that outlives calls.
pub(super) const ROOT: u32 = 1;

/// One call, from its request to its reply.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) context: u32,
    pub(super) call: u64,
    pub(super) path: String,
    pub(super) request: Headers,
    pub(super) reply: Headers,
    /// The hook that may change its headers now.
    pub(super) hook: Hook,
    /// The message as a gRPC frame, while its callback may read it.
    pub(super) body: Option<Vec<u8>>,
    pub(super) body_changed: bool,
    /// The response that ends the call.
    pub(super) local: Option<Local>,
    pub(super) paused: bool,
    pub(super) properties: Properties,
}

/// A response by the filter itself.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Local {
    pub(super) code: u32,
    pub(super) message: String,
}

impl Proxy {
    /// The current call, if functions act on its context.
    pub(super) fn current(&mut self) -> Option<&mut Stream> {
        let effective = self.effective;
        self.stream
            .as_deref_mut()
            .filter(|stream| stream.context == effective)
    }

    /// Whether a context belongs to a call that isn't over.
    pub(super) fn knows(&self, context: u32) -> bool {
        let all = self.stream.iter().chain(&self.open);
        context == ROOT
            || all
                .map(|stream| stream.context)
                .any(|known| known == context)
    }

    #[cfg(test)]
    pub(super) fn for_tests() -> Proxy {
        Proxy {
            limiter: StoreLimits::default(),
            memory: None,
            allocate: None,
            allocating: false,
            capabilities: Capabilities::default(),
            config: Box::default(),
            name: "test".to_owned(),
            root_id: String::new(),
            log: Log::default(),
            shared: SharedState::new(&crate::StateLimits::default()),
            queues: Queues::default(),
            metrics: Defined::default(),
            now_ms: 0,
            tick_ms: 0,
            effective: ROOT,
            stream: None,
            open: VecDeque::new(),
        }
    }
}

impl Process for Proxy {
    fn memory(&self) -> Option<Memory> {
        self.memory
    }

    fn may(&self, capability: Capabilities) -> bool {
        self.capabilities.contains(capability)
    }

    fn now_ms(&self) -> u64 {
        self.now_ms
    }

    fn log(&mut self) -> &mut Log {
        &mut self.log
    }
}

impl Stream {
    /// The headers that may be changed now.
    pub(super) fn headers(&mut self) -> &mut Headers {
        match self.hook {
            Hook::Request => &mut self.request,
            Hook::Reply => &mut self.reply,
        }
    }

    /// Whether the next callback is still wanted.
    pub(super) fn goes_on(&self) -> ControlFlow<()> {
        match self.local {
            Some(_) => ControlFlow::Break(()),
            None => ControlFlow::Continue(()),
        }
    }
}
