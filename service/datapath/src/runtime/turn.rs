//! The turns of a runtime.

use std::time::Duration;

use tollgate_engine::fair::FlowId;
use tollgate_shm_abi::wait::{For, now_ns};

use super::Runtime;

impl Runtime {
    pub(super) fn run(mut self) {
        self.thread.start(self.options.tuning.core);
        while !self.thread.ends() {
            let since_ns = std::mem::replace(&mut self.now_ns, now_ns());
            self.thread.count(self.now_ns.saturating_sub(since_ns));
            if self.turn() {
                self.thread.has_worked();
            } else if self.thread.must_sleep(self.awaits()) {
                self.sleep();
                self.thread.has_slept();
                continue;
            }
            self.poll_wakes(Some(Duration::ZERO));
        }
        self.shut_down();
    }

    /// Whether another flow has input, or output that leaves when this round ends. Costs one load
    /// per session, and one system call for the links.
    pub(crate) fn others_wait(&mut self, flow: FlowId) -> bool {
        if self.scheduler.others_worked(flow) {
            return true;
        }
        self.sessions.others_have_posted(flow) || {
            self.poll_wakes(Some(Duration::ZERO));
            self.wakes.ask_poller(&mut self.links);
            self.links.others_have_input(flow)
        }
    }

    /// The kind of the next input, as far as it is known.
    pub(super) fn awaits(&self) -> For {
        match self.engine.live_calls() {
            0 => For::Anything,
            _ => For::Answer,
        }
    }

    /// Does a bounded amount of the pending work. Whether there was any.
    pub fn turn(&mut self) -> bool {
        let mut worked = self.take_commands();
        self.wakes.ask_poller(&mut self.links);
        self.scheduler.begin_round();
        for place in 0..self.links.places() {
            let Some((link, port)) = self.links.at(place) else {
                continue;
            };
            let flow = port.state.flow;
            worked |= self.scheduler.is_throttled(flow) || {
                let worked = self.turn_link(link);
                self.scheduler.end_turn(flow, worked)
            };
        }
        for place in 0..self.sessions.places() {
            let Some(port) = self.sessions.at(place) else {
                continue;
            };
            let (session, flow) = (port.id, port.flow);
            worked |= self.scheduler.is_throttled(flow) || {
                let worked = self.turn_session(session, flow);
                self.scheduler.end_turn(flow, worked)
            };
        }
        worked |= self.pass_time();
        worked |= self.turn_processes();
        worked |= self.turn_parked();
        worked | self.flush()
    }

    /// Handles deadlines, links' timers and redials. Whether anything was due.
    pub(super) fn pass_time(&mut self) -> bool {
        let mut worked = false;
        if self
            .engine
            .poll_timeout()
            .is_some_and(|at| at <= self.now_ns)
        {
            self.engine.expire(self.now_ns);
            self.act();
            worked = true;
        }
        for place in 0..self.links.places() {
            let Some((link, port)) = self.links.at(place) else {
                continue;
            };
            let due = |at: Option<u64>| at.is_some_and(|at| at <= self.now_ns);
            if let Some(reason) = port.overdue(self.now_ns) {
                self.lose_link(link, &reason);
                worked = true;
            } else if due(port.io.link().next_tick())
                && let Err(error) = port.io.link_mut().tick(self.now_ns)
            {
                self.lose_link(link, &error.to_string());
                worked = true;
            } else {
                worked |= self.end_replaced(link);
            }
        }
        self.policies.tend(self.now_ns, &self.engine);
        self.pass_on_events();
        worked | self.retry_due()
    }

    /// Sends and delivers everything that was queued. Whether more was queued meanwhile.
    pub(super) fn flush(&mut self) -> bool {
        self.policies.processes().flush();
        self.scheduler.begin_turns();
        let more = self.flush_links();
        for place in 0..self.sessions.places() {
            let Some(port) = self.sessions.at(place) else {
                continue;
            };
            let (session, flow) = (port.id, port.flow);
            match port.flush(Some(self.now_ns)) {
                Ok(woken) => drop(self.scheduler.end_turn(flow, woken)),
                Err(how) => self.expel(session, &how.to_string()),
            }
        }
        more
    }

    pub(crate) fn flush_links(&mut self) -> bool {
        let mut more = false;
        for place in 0..self.links.places() {
            if let Some((link, port)) = self.links.at(place) {
                let flow = port.state.flow;
                let flushed = self.flush_link(link);
                self.scheduler.end_turn(flow, flushed.sent);
                more |= flushed.more;
            }
        }
        more
    }

    /// Publishes on every ring that this runtime sleeps, and then sleeps, unless input has arrived
    /// meanwhile.
    pub(crate) fn sleep(&mut self) {
        let mut may_sleep = self.sessions.announce_sleep();
        may_sleep &= self.policies.processes().announce_sleep();
        may_sleep &= self.prepare_links_to_wait();
        if may_sleep {
            self.counters.sleeps += 1;
            let timeout = self.next_timeout();
            self.poll_wakes(timeout);
        }
        self.sessions.cancel_sleep();
        self.policies.processes().cancel_sleep();
    }

    /// Makes epoll report the input of links that were polled so far. Whether there is no input
    /// yet.
    pub(super) fn prepare_links_to_wait(&mut self) -> bool {
        let mut quiet = true;
        let mut lost = Vec::new();
        for (link, port) in self.links.iter_mut() {
            match port.io.announce_sleep() {
                Ok(is_quiet) => quiet &= is_quiet,
                Err(error) => lost.push((link, error)),
            }
        }
        quiet &= lost.is_empty();
        for (link, error) in lost {
            self.lose_link(link, &error.to_string());
        }
        quiet & self.wakes.prepare_to_wait()
    }

    /// How long nothing needs to be done if no input arrives.
    pub(super) fn next_timeout(&self) -> Option<Duration> {
        let next_ns = self
            .engine
            .poll_timeout()
            .into_iter()
            .chain(self.links.next_due_ns())
            .chain(self.dials.next_due_ns())
            .chain(self.bindings.next_due_ns())
            .chain(self.policies.next_due_ns())
            .min();
        let backlog = self.sessions.have_backlog();
        let backlog = backlog.then(|| self.now_ns + 1_000_000);
        let next_ns = next_ns.into_iter().chain(backlog).min()?;
        Some(Duration::from_nanos(next_ns.saturating_sub(now_ns())))
    }

    /// Ends every session, and sends a GOAWAY to every peer.
    pub(super) fn shut_down(&mut self) {
        for place in 0..self.sessions.places() {
            if let Some(session) = self.sessions.at(place).map(|port| port.id) {
                self.close_session(session);
            }
        }
        self.act();
        for (_, port) in self.links.iter_mut() {
            let reason = tollgate_transport::Reason::SHUTDOWN;
            let _not_ready = port
                .io
                .link_mut()
                .send_goaway(reason, "the daemon is shutting down");
            port.io.end();
        }
    }
}
