//! Whether a host is as healthy as before its upgrade.
//!
//! A snapshot of a host is taken before its daemon is replaced. The host is healthy again when the
//! new process answers, and nothing is less than in the snapshot:
//!
//! - each service has as many servers,
//! - its applications are bound to the same services over its links to each peer, and the
//!   applications of its callers over their links to it; a service counts once the peer has
//!   accepted the binding, so that calls go through,
//! - no attachment of a policy is newly out of order or has newly failed. The new process counts
//!   from zero, so its count is the number since the upgrade.
//!
//! Deliberately absent: the number of sessions (clients come and go), and all measurements: rates
//! and times vary without a reason.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::failure::Failure;
use crate::fleet::file::{Fleet, Host};
use crate::fleet::plan;
use crate::render::flat;

/// A snapshot of a host.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Picture {
    pub(crate) pid: u64,
    pub(crate) version: String,
    /// Servers, by service and tenant.
    servers: BTreeMap<String, u64>,
    /// Established bindings: which host's applications are bound to which service, and where.
    bindings: BTreeSet<String>,
    /// Attachments that are out of order, or have failed.
    out_of_order: BTreeSet<String>,
}

/// A reason why a host isn't as healthy as before.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Ill {
    /// It may be temporary.
    NotYet(String),
    /// It is permanent.
    ForGood(String),
}

impl Picture {
    /// Takes a snapshot of a host, including the bindings on its callers' links to it.
    pub(crate) fn of(fleet: &Fleet, host: &Host, callers: &[usize]) -> Result<Picture, Failure> {
        let mut picture = Picture::default();
        picture.add_host(&plan::status(host)?);
        for &caller in callers {
            let caller = &fleet.hosts[caller];
            picture.add_links(&plan::status(caller)?, Some(&host.name));
        }
        Ok(picture)
    }

    fn add_host(&mut self, status: &Value) {
        self.pid = status["pid"].as_u64().unwrap_or_default();
        self.version = flat(&status["version"]);
        for service in list(status, "services") {
            let of = format!(
                "{} of {}",
                flat(&service["service"]),
                flat(&service["tenant"])
            );
            *self.servers.entry(of).or_default() += service["servers"].as_u64().unwrap_or_default();
        }
        self.add_links(status, None);
        for attachment in list(status, "attachments") {
            let is_ill = |version: &Value| {
                version["alive"] == false || version["faults"].as_u64().is_some_and(|n| n > 0)
            };
            let failed = list(attachment, "versions").any(is_ill);
            if failed || !attachment["quarantine"].is_null() || !attachment["fallback"].is_null() {
                let (policy, place) = (flat(&attachment["policy"]), flat(&attachment["place"]));
                self.out_of_order
                    .insert(format!("policy {policy} at {place}"));
            }
        }
    }

    /// Adds the bindings on the links that a host has dialled: all links, or those to one peer.
    fn add_links(&mut self, status: &Value, to: Option<&str>) {
        for link in plan::dialled(status) {
            let peer = flat(&link["peer"]);
            if to.is_some_and(|to| to != peer) {
                continue;
            }
            let (name, tenant) = (flat(&status["name"]), flat(&link["tenant"]));
            let bound = list(link, "bound").map(flat);
            let bound =
                bound.map(|to| format!("{name}'s applications of {tenant} to {to} at {peer}"));
            self.bindings.extend(bound);
        }
    }

    /// What `now` lacks compared with this snapshot. `pid` is the process that should serve.
    pub(crate) fn lacks(&self, now: &Picture, pid: u64) -> Option<Ill> {
        if now.pid != pid {
            let sentence = format!(
                "process {} answers instead of {pid}, which took over",
                now.pid
            );
            return Some(Ill::ForGood(sentence));
        }
        if let Some(new) = now.out_of_order.difference(&self.out_of_order).next() {
            let sentence = format!("{new} has failed since the upgrade");
            return Some(Ill::ForGood(sentence));
        }
        for (of, &was) in &self.servers {
            let is = now.servers.get(of).copied().unwrap_or_default();
            if is < was {
                return Some(Ill::NotYet(format!("{of} has {is} of {was} servers")));
            }
        }
        let lost = self.bindings.difference(&now.bindings).next()?;
        Some(Ill::NotYet(format!("the binding of {lost} is missing")))
    }

    /// The observed parts, for a sentence.
    pub(crate) fn counted(&self) -> String {
        let servers: u64 = self.servers.values().sum();
        let bindings = self.bindings.len();
        format!("servers {servers}, bindings {bindings}")
    }
}

fn list<'v>(value: &'v Value, name: &str) -> impl Iterator<Item = &'v Value> {
    value[name].as_array().into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A host `b` that serves and calls, and a host `a` that calls it.
    fn picture(change: impl Fn(&mut Value, &mut Value)) -> Picture {
        let mut b = json!({
            "name": "b", "pid": 8, "version": "0.2.0",
            "services": [
                {"tenant": "acme", "service": "hotel.Echo", "servers": 2},
                {"tenant": "evil", "service": "hotel.Echo", "servers": 1},
            ],
            "links": [
                {"peer": "c", "tenant": "acme", "dialled": true, "bound": ["x.X", "y.Y"]},
                {"peer": "c", "tenant": "evil", "dialled": true, "bound": ["x.X"]},
                {"peer": "d", "tenant": "acme", "dialled": true, "bound": []},
                {"peer": "a", "tenant": "acme", "dialled": false, "bound": []},
            ],
            "attachments": [{"policy": "acl", "place": "acme", "quarantine": null, "fallback": null,
                             "versions": [{"alive": true, "faults": 0}]}],
        });
        let mut a = json!({
            "name": "a", "pid": 1,
            "links": [
                {"peer": "b", "tenant": "acme", "dialled": true, "bound": ["hotel.Echo"]},
                {"peer": "c", "tenant": "acme", "dialled": true, "bound": ["z.Z"]},
            ],
        });
        change(&mut b, &mut a);
        let mut picture = Picture::default();
        picture.add_host(&b);
        picture.add_links(&a, Some("b"));
        picture
    }

    #[test]
    fn a_host_is_well_when_nothing_is_less_than_before() {
        let before = picture(|_, _| {});
        assert_eq!(before.counted(), "servers 3, bindings 4");
        let check = |change: &dyn Fn(&mut Value, &mut Value), lacks: Option<Ill>| {
            assert_eq!(before.lacks(&picture(change), 8), lacks);
        };
        let not_yet = |sentence: &str| Some(Ill::NotYet(sentence.to_owned()));
        let for_good = |sentence: &str| Some(Ill::ForGood(sentence.to_owned()));
        check(&|_, _| {}, None);
        // More servers are fine, and so are another link and changes on other hosts.
        check(&|b, _| b["services"][1]["servers"] = 5.into(), None);
        check(&|b, _| b["links"][2]["bound"] = json!(["x.X"]), None);
        check(&|_, a| a["links"][1]["bound"] = json!([]), None);
        check(
            &|b, _| b["pid"] = 9.into(),
            for_good("process 9 answers instead of 8, which took over"),
        );
        check(
            &|b, _| b["services"][0]["servers"] = 1.into(),
            not_yet("hotel.Echo of acme has 1 of 2 servers"),
        );
        check(
            &|b, _| b["services"] = json!([]),
            not_yet("hotel.Echo of acme has 0 of 2 servers"),
        );
        check(
            &|b, _| b["links"][0]["bound"] = json!(["x.X"]),
            not_yet("the binding of b's applications of acme to y.Y at c is missing"),
        );
        check(
            &|_, a| a["links"] = json!([]),
            not_yet("the binding of a's applications of acme to hotel.Echo at b is missing"),
        );
        let failed = for_good("policy acl at acme has failed since the upgrade");
        for (key, value) in [
            ("quarantine", json!({"why": "x"})),
            ("fallback", json!({"why": "x"})),
            ("versions", json!([{"alive": false, "faults": 0}])),
            ("versions", json!([{"alive": true, "faults": 1}])),
        ] {
            let fails = |b: &mut Value, _: &mut Value| b["attachments"][0][key] = value.clone();
            check(
                &fails,
                for_good("policy acl at acme has failed since the upgrade"),
            );
            let ill_before = picture(fails);
            assert_eq!(
                ill_before.lacks(&picture(fails), 8),
                None,
                "as before: {key}"
            );
            assert_eq!(before.lacks(&ill_before, 8), failed);
        }
    }
}
