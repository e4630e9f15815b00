//! The call graph of the hosts, as the daemons' links show it now, and the order that follows from
//! it.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use tollgate_shm_abi::status::Code;

use crate::failure::Failure;
use crate::fleet::file::{Fleet, Host};
use crate::fleet::order::{Step, receivers_first};
use crate::render::flat;

/// Known facts about one host.
#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) version: String,
    pub(crate) pid: u64,
    /// The hosts of the fleet that it calls.
    pub(crate) calls: BTreeSet<usize>,
    /// Other hosts that it calls: names and addresses.
    pub(crate) outside: BTreeSet<String>,
}

/// The order, and the reasons for it.
#[derive(Debug)]
pub(crate) struct Plan {
    /// Known facts by host, in the order of the fleet file.
    pub(crate) known: Vec<Known>,
    pub(crate) steps: Vec<Step>,
}

/// The status of a host, if the host has the expected identity.
pub(crate) fn status(host: &Host) -> Result<Value, Failure> {
    let of_host = |failure: Failure| {
        let sentence = format!("host {}: {}", host.name, failure.sentence());
        Failure::new(failure.code(), sentence)
    };
    let status = host.reach.status().map_err(of_host)?;
    match status["name"].as_str() {
        Some(name) if name == host.name => Ok(status),
        name => {
            let sentence = format!(
                "the daemon's name is {:?}, and links use that name",
                name.unwrap_or_default()
            );
            Err(
                of_host(Failure::new(Code::FAILED_PRECONDITION, sentence)).hint(
                    "use that name in the fleet file, or set the host's name in its daemon's configuration",
                ),
            )
        }
    }
}

/// The links that a host has dialled.
pub(crate) fn dialled(status: &Value) -> impl Iterator<Item = &Value> {
    let links = status["links"].as_array().into_iter().flatten();
    links.filter(|link| link["dialled"] == true)
}

impl Plan {
    /// Asks all the hosts.
    pub(crate) fn of(fleet: &Fleet) -> Result<Plan, Failure> {
        let known = fleet.hosts.iter().map(|host| {
            let status = status(host)?;
            Ok(Known::new(fleet, &status))
        });
        let known: Vec<_> = known.collect::<Result<_, Failure>>()?;
        let calls: Vec<_> = known.iter().map(|host| host.calls.clone()).collect();
        let steps = receivers_first(&calls);
        Ok(Plan { known, steps })
    }

    pub(crate) fn json(&self, fleet: &Fleet) -> Value {
        let names = |hosts: &mut dyn Iterator<Item = usize>| -> Vec<&str> {
            hosts.map(|k| &*fleet.hosts[k].name).collect()
        };
        let step = |step: &Step| {
            let known = &self.known[step.host];
            json!({
                "host": fleet.hosts[step.host].name,
                "version": known.version,
                "pid": known.pid,
                "binary": fleet.hosts[step.host].binary,
                "calls": names(&mut known.calls.iter().copied()),
                "before": names(&mut step.before.iter().copied()),
                "outside": known.outside,
            })
        };
        let order: Vec<_> = self.steps.iter().map(step).collect();
        json!({"fleet": fleet.path, "order": order})
    }

    pub(crate) fn text(&self, fleet: &Fleet) -> String {
        let mut text = String::new();
        for (number, step) in (1..).zip(&self.steps) {
            let (known, host) = (&self.known[step.host], &fleet.hosts[step.host]);
            let (name, version, pid) = (&host.name, &known.version, known.pid);
            let calls = match known.calls.is_empty() {
                true => "no other host of the fleet".to_owned(),
                false => fleet.names(known.calls.iter().copied()),
            };
            text += &format!("{number}. {name}: {version}, process {pid}, calls {calls}");
            if !known.outside.is_empty() {
                let outside: Vec<_> = known.outside.iter().map(String::as_str).collect();
                text += &format!("; outside of the fleet: {}", outside.join(", "));
            }
            if !step.before.is_empty() {
                let before = fleet.names(step.before.iter().copied());
                text += &format!(
                    "; goes before {before} although it calls them, because they call each other in a circle"
                );
            }
            text.push('\n');
        }
        text
    }
}

impl Known {
    fn new(fleet: &Fleet, status: &Value) -> Known {
        let (mut calls, mut outside) = (BTreeSet::new(), BTreeSet::new());
        for link in dialled(status) {
            match link["peer"].as_str().and_then(|peer| fleet.find(peer)) {
                Some(host) => {
                    calls.insert(host);
                }
                None => {
                    outside.insert(format!(
                        "{} ({})",
                        flat(&link["peer"]),
                        flat(&link["address"])
                    ));
                }
            }
        }
        Known {
            version: flat(&status["version"]),
            pid: status["pid"].as_u64().unwrap_or_default(),
            calls,
            outside,
        }
    }
}
