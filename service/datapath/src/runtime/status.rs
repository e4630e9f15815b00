//! Reports of a runtime about itself.

use super::Runtime;
use crate::links::dial::peer_reports;
use crate::report::{LinkBytes, Report, RuntimeReport};

impl Runtime {
    /// The report, with the data that only metrics show.
    pub(super) fn measured_report(&self) -> Report {
        let links = self.links.iter();
        let links = links.map(|(_, port)| {
            let moved = port.io.link().moved();
            LinkBytes {
                address: port.state.address.clone(),
                tenant: port.state.tenant.clone(),
                sent: moved.private_copied + moved.shared_copied + moved.shared_in_place,
                received: moved.received,
                retransmits: port.io.retransmits(),
            }
        });
        Report {
            measured: self.observer.measured(),
            times: vec![(self.options.index, self.thread.times())],
            untraced: self.observer.untraced(),
            unrecorded: self.observer.unrecorded(),
            link_bytes: links.collect(),
            ..self.report()
        }
    }

    pub(super) fn report(&self) -> Report {
        let mut bytes = self.bytes;
        for (_, port) in self.links.iter() {
            bytes.add_link(&port.io.link().moved());
        }
        let service = |key| self.bindings.service_of(key);
        let links = self.links.iter().map(|(_, port)| port.report(service));
        let tuning = &self.options.tuning;
        let runtime = RuntimeReport {
            runtime: self.options.index,
            core: self.thread.core(),
            waiting: tuning.waiting,
            spin_us: tuning.spin_us,
            scheduling: tuning.scheduling,
            wait_target_us: tuning
                .wait_target
                .map_or(0, |target| target.as_micros() as u64),
            cpu_share_percent: tuning.cpu_share_percent,
            sleeps: self.counters.sleeps,
            rdma: self.wakes.report(),
        };
        Report {
            runtimes: vec![runtime],
            sessions: self
                .sessions
                .iter()
                .map(|port| port.report(&self.engine))
                .collect(),
            problems: self.guests.problems(self.now_ns),
            links: links.collect(),
            peers: peer_reports(&self.links, &self.dials, &self.bindings),
            services: self.services.report(&self.engine),
            policies: self.policies.report(),
            accounts: self.policies.report_accounts(),
            shares: self.scheduler.report(),
            calls: self.counters,
            bytes,
            live_calls: self.engine.live_calls(),
            ..Report::default()
        }
    }
}
