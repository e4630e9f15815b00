//! A daemon's report for a person: `status` and `policy show`, each within one screen.
//!
//! ```text
//!   tollgated 0.1.0, daemon a, process 4711, up 2d 3h
//!   wrong     policy acl of acme is quarantined at client hotel.Reservation/*: 5 faults
//!   calls     812/s, 5 in flight; 1234567 since the start, 12 failed
//!   tenants   acme  3 sessions, 2 services, 5 calls in flight
//!   ...
//! ```
//!
//! Problems come first. Each part has a bounded number of lines, and says how many are left out.
//! Fields that a report lacks are left out, and no report is refused: daemons may be older or
//! newer. Untrusted text has no effect on the terminal.
//!
//! Absent on purpose: everything else. `--verbose` prints it as an outline, and `--json` prints it
//! for programs.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;

use crate::attachment::in_force;
use crate::limits::MAX_SHOWN_EACH;
use crate::output::plain;
use crate::render::{age, flat, items};

/// Lines under a heading.
struct Screen {
    text: String,
}

/// Characters of the first column.
const HEADING_CHARS: usize = 10;

impl Screen {
    /// Adds the first lines, up to the limit, under one heading; adds nothing if there are none.
    fn part(&mut self, heading: &str, lines: &[String]) {
        let shown = match lines.len() > MAX_SHOWN_EACH {
            true => &lines[..MAX_SHOWN_EACH - 1],
            false => lines,
        };
        let left = lines.len() - shown.len();
        let more = (left > 0).then(|| format!("and {left} more"));
        for (at, line) in shown.iter().chain(&more).enumerate() {
            let heading = if at == 0 { heading } else { "" };
            let line = format!("{heading:HEADING_CHARS$}{line}");
            self.text.extend([line.trim_end(), "\n"]);
        }
    }

    fn line(&mut self, heading: &str, line: String) {
        self.part(heading, &[line]);
    }
}

/// A daemon, from two reports. The number of calls between them gives the rate.
pub(crate) fn of_status(before: &Value, now: &Value) -> String {
    let uptime = now["uptime_ms"].as_u64().map(Duration::from_millis);
    let up = uptime.map_or(String::new(), |uptime| format!(", up {}", age(uptime)));
    let (version, name, pid) = (word(&now["version"]), word(&now["name"]), &now["pid"]);
    let mut screen = Screen {
        text: format!("tollgated {version}, daemon {name}, process {pid}{up}\n"),
    };
    match items(&now["problems"]) {
        [] => screen.line("wrong", "no known problems".to_owned()),
        problems => screen.part(
            "wrong",
            &problems
                .iter()
                .map(|one| word(one).into_owned())
                .collect::<Vec<_>>(),
        ),
    }
    let peers = match now["listen"].as_str() {
        Some(address) => format!(", and {} for peers", plain(address)),
        None => ", without an address for peers".to_owned(),
    };
    let admin = match now["admin"].as_str() {
        Some(address) => format!(", and {} for administration", plain(address)),
        None => String::new(),
    };
    screen.line("listens", format!("{}{peers}{admin}", word(&now["socket"])));
    screen.line("calls", calls(before, now));
    screen.part("tenants", &tenants(now));
    screen.part(
        "peers",
        &items(&now["peers"]).iter().map(peer).collect::<Vec<_>>(),
    );
    screen.part(
        "policies",
        &items(&now["attachments"])
            .iter()
            .map(attached)
            .collect::<Vec<_>>(),
    );
    screen.text += "More: --verbose, or --json for programs; tollgate top for current activity\n";
    screen.text
}

/// A tenant's part of a daemon.
pub(crate) fn of_tenant(now: &Value) -> String {
    let (version, name) = (word(&now["version"]), word(&now["name"]));
    let mut screen = Screen {
        text: format!(
            "tenant {} on daemon {name}, tollgated {version}\n",
            word(&now["tenant"])
        ),
    };
    let problems = items(&now["problems"])
        .iter()
        .map(|one| word(one).into_owned());
    let mut problems: Vec<_> = problems.collect();
    if problems.is_empty() {
        problems.push("no known problems".to_owned());
    }
    screen.part("wrong", &problems);
    let sessions = items(&now["sessions"]).iter().map(|one| {
        let (app, pid) = (word(&one["app"]), &one["pid"]);
        format!(
            "{app} (process {pid}): {} calls in flight",
            one["outstanding"]
        )
    });
    screen.part("sessions", &sessions.collect::<Vec<_>>());
    let services = items(&now["services"]).iter();
    let services =
        services.map(|one| format!("{}, served by {}", word(&one["service"]), one["servers"]));
    screen.part("services", &services.collect::<Vec<_>>());
    screen.part(
        "policies",
        &items(&now["attachments"])
            .iter()
            .map(attached)
            .collect::<Vec<_>>(),
    );
    screen.text += "More: --verbose, or --json for programs; tollgate usage, tollgate top\n";
    screen.text
}

/// `812/s, 5 in flight; 1234567 since the start, 12 failed`
fn calls(before: &Value, now: &Value) -> String {
    let all = |report: &Value| {
        let of = |key: &str| report["calls"][key].as_u64().unwrap_or(0);
        of("posted").saturating_add(of("received"))
    };
    let up = |report: &Value| report["uptime_ms"].as_u64();
    // Counters can only be compared within one process.
    let is_same = before["pid"] == now["pid"];
    let rate = match (up(before), up(now)) {
        (Some(earlier), Some(later)) if is_same && later > earlier => {
            let calls = all(now).saturating_sub(all(before)) as f64;
            format!("{:.0}/s, ", calls * 1e3 / (later - earlier) as f64)
        }
        _ => String::new(),
    };
    let in_flight = now["live_calls"].as_u64().unwrap_or(0);
    let failed = now["calls"]["failed"].as_u64().unwrap_or(0);
    format!(
        "{rate}{in_flight} in flight; {} since the start, {failed} failed",
        all(now)
    )
}

/// The resources of each tenant here.
fn tenants(now: &Value) -> Vec<String> {
    let mut tenants: BTreeMap<&str, [u64; 3]> = BTreeMap::new();
    for name in items(&now["tenants"]).iter().filter_map(Value::as_str) {
        tenants.entry(name).or_default();
    }
    for session in items(&now["sessions"]) {
        if let Some(has) = session["tenant"]
            .as_str()
            .and_then(|name| tenants.get_mut(name))
        {
            has[0] += 1;
            has[2] += session["outstanding"].as_u64().unwrap_or(0);
        }
    }
    for service in items(&now["services"]) {
        if let Some(has) = service["tenant"]
            .as_str()
            .and_then(|name| tenants.get_mut(name))
        {
            has[1] += 1;
        }
    }
    let width = tenants.keys().map(|name| name.chars().count()).max();
    let width = width.unwrap_or(0).min(MAX_NAME);
    let line = |(name, [sessions, services, calls]): (&str, [u64; 3])| {
        let (name, sessions) = (plain(name), count(sessions, "session"));
        let services = count(services, "service");
        let calls = count(calls, "call");
        format!("{name:width$}  {sessions}, {services}, {calls} of its own in flight")
    };
    tenants.into_iter().map(line).collect()
}

/// Names longer than this don't make a column wider.
const MAX_NAME: usize = 24;

/// `b  10.0.0.2:7472  ready for 2h 5m`
fn peer(peer: &Value) -> String {
    let name = peer["name"].as_str().map_or_else(|| "?".into(), plain);
    let (address, state) = (word(&peer["address"]), word(&peer["state"]));
    let whence = if peer["dialled"] == false {
        " (it dialled)"
    } else {
        ""
    };
    let time = peer["for_ms"].as_u64().map(Duration::from_millis);
    let time = time.map_or(String::new(), |time| format!(" for {}", age(time)));
    let error = match peer["last_error"].as_str() {
        Some(error) if state == "ready" => format!("; before: {}", plain(error)),
        Some(error) => format!(": {}", plain(error)),
        None => String::new(),
    };
    format!("{name}  {address}{whence}  {state}{time}{error}")
}

/// `acme  client hotel.Reservation/*: acl@1 decides; 12 of 40 denied`
fn attached(attachment: &Value) -> String {
    let owner = word(&attachment["owner"]);
    format!("{owner}  {}{}", in_force(attachment), evaluated(attachment))
}

/// The verdicts of an attachment's versions.
fn evaluated(attachment: &Value) -> String {
    let versions = items(&attachment["versions"]);
    let sum = |keys: &[&str]| -> u64 {
        let counts = versions
            .iter()
            .flat_map(|version| keys.iter().map(move |key| version[*key].as_u64()));
        counts
            .map(|count| count.unwrap_or(0))
            .fold(0, u64::saturating_add)
    };
    let all = sum(&["allowed", "changed", "denied", "refused", "unjudged"]);
    let (denied, faults) = (sum(&["denied"]), sum(&["faults"]));
    match (all, faults) {
        (0, 0) => String::new(),
        (_, 0) => format!("; {denied} of {all} denied"),
        _ => format!("; {denied} of {all} denied, {}", count(faults, "fault")),
    }
}

/// A policy's version.
pub(crate) fn of_policy(report: &Value) -> String {
    let (name, version) = (word(&report["name"]), &report["version"]);
    let (owner, bytes) = (word(&report["owner"]), &report["module_bytes"]);
    let digest: String = word(&report["digest"]).chars().take(12).collect();
    let mut screen = Screen {
        text: format!("{name}@{version} of {owner}, {bytes} bytes, sha256:{digest}\n"),
    };
    let attachments = items(&report["attachments"]);
    screen.part("wrong", &wrong(report));
    screen.line("versions", flat(&report["versions"]));
    let manifest = &report["manifest"];
    let methods = items(&manifest["methods"]);
    screen.part("evaluates", &methods.iter().map(method).collect::<Vec<_>>());
    // From the configuration of a policy that takes fields from it.
    let only = &manifest["only_methods"];
    if !items(only).is_empty() {
        screen.line("only for", flat(only));
    }
    match manifest["absent"].as_str() {
        None | Some("refuse") => {}
        Some(absent) => screen.line("absent", plain(absent).into_owned()),
    }
    screen.line("may use", flat(&manifest["capabilities"]));
    match attachments {
        [] => screen.line("attached", "nowhere".to_owned()),
        some => {
            let line = |at| format!("{}{}", in_force(at), evaluated(at));
            screen.part("attached", &some.iter().map(line).collect::<Vec<_>>());
        }
    }
    screen.text += "More: --verbose, or --json for programs\n";
    screen.text
}

/// The reasons why the policy doesn't work as it should.
fn wrong(report: &Value) -> Vec<String> {
    let mut wrong = Vec::new();
    if let Some(error) = report["manifest"]["error"].as_str() {
        wrong.push(format!("it can't be loaded: {}", plain(error)));
    }
    for at in items(&report["attachments"]) {
        let place = word(&at["place"]);
        if let Some(why) = at["quarantine"].as_str() {
            wrong.push(format!("quarantined at {place}: {}", plain(why)));
        }
        for version in items(&at["versions"]) {
            if let Some(fault) = version["last_fault"].as_str() {
                let number = &version["version"];
                wrong.push(format!(
                    "version {number}'s last fault at {place}: {}",
                    plain(fault)
                ));
            }
        }
    }
    wrong
}

/// `hotel.Reservation/*: reads customer_name; changes coupon; of replies reads hotel_ids`
fn method(method: &Value) -> String {
    let names = |key: &str| {
        let names = items(&method[key]);
        (!names.is_empty()).then(|| names.iter().map(flat).collect::<Vec<_>>().join(" "))
    };
    let parts = [
        ("reads", names("fields")),
        ("metadata", names("metadata")),
        ("changes", names("changes")),
        ("of replies reads", names("reply_fields")),
        ("of replies changes", names("reply_changes")),
    ];
    let parts: Vec<_> = parts
        .into_iter()
        .filter_map(|(what, names)| Some(format!("{what} {}", names?)))
        .collect();
    let parts = if parts.is_empty() {
        "no fields".to_owned()
    } else {
        parts.join("; ")
    };
    format!("{}: {parts}", word(&method["method"]))
}

fn word(value: &Value) -> Cow<'_, str> {
    value.as_str().map_or_else(|| "?".into(), plain)
}

fn count(number: u64, what: &str) -> String {
    let s = if number == 1 { "" } else { "s" };
    format!("{number} {what}{s}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn attachment(owner: &str, place: &str, quarantine: Option<&str>) -> Value {
        json!({
            "owner": owner, "policy": "acl", "place": place, "stable": 1, "candidate": null, "quarantine": quarantine,
            "versions": [{"version": 1, "allowed": 30, "changed": 0, "denied": 10, "refused": 1, "unjudged": 0, "faults": 0,
                          "last_fault": quarantine}],
        })
    }

    /// A daemon with three tenants and two policies.
    fn status() -> Value {
        json!({
            "name": "a", "version": "0.1.0", "pid": 4711, "uptime_ms": 183_600_250, "socket": "/run/tollgate.sock", "listen": "127.0.0.1:7472",
            "problems": ["policy acl of bank is quarantined at server a.B/*: 5 faults\u{1b}[2J", "peer 10.0.0.9:7472 can't be reached: refused"],
            "tenants": ["acme", "bank", "zeus"], "live_calls": 5,
            "calls": {"posted": 1_000, "received": 234, "delivered": 900, "completed": 1_200, "failed": 12},
            "sessions": [
                {"session": 1, "tenant": "acme", "outstanding": 4}, {"session": 2, "tenant": "acme", "outstanding": 0},
                {"session": 3, "tenant": "zeus", "outstanding": 1},
            ],
            "services": [{"tenant": "acme", "service": "a.B"}],
            "peers": [
                {"name": "b", "address": "10.0.0.2:7472", "dialled": true, "state": "ready", "for_ms": 7_500_000, "last_error": "reset", "tenants": ["acme"]},
                {"name": "c", "address": "10.0.0.3", "dialled": false, "state": "ready", "for_ms": null, "last_error": null, "tenants": ["acme"]},
                {"name": null, "address": "10.0.0.9:7472", "dialled": true, "state": "lost", "for_ms": 12_000, "last_error": "refused", "tenants": ["acme"]},
            ],
            "attachments": [attachment("acme", "client a.B/*", None), attachment("bank", "server a.B/*", Some("5 faults"))],
        })
    }

    #[test]
    fn a_daemon_fits_a_screen() {
        let now = status();
        let mut before = now.clone();
        (before["uptime_ms"], before["calls"]["posted"]) = (json!(183_600_000), json!(900));
        let expected = "\
tollgated 0.1.0, daemon a, process 4711, up 2d 3h
wrong     policy acl of bank is quarantined at server a.B/*: 5 faults?[2J
          peer 10.0.0.9:7472 can't be reached: refused
listens   /run/tollgate.sock, and 127.0.0.1:7472 for peers
calls     400/s, 5 in flight; 1234 since the start, 12 failed
tenants   acme  2 sessions, 1 service, 4 calls of its own in flight
          bank  0 sessions, 0 services, 0 calls of its own in flight
          zeus  1 session, 0 services, 1 call of its own in flight
peers     b  10.0.0.2:7472  ready for 2h 5m; before: reset
          c  10.0.0.3 (it dialled)  ready
          ?  10.0.0.9:7472  lost for 12s: refused
policies  acme  client a.B/*: acl@1 decides; 10 of 41 denied
          bank  server a.B/*: acl@1 decides, QUARANTINED: 5 faults; 10 of 41 denied
More: --verbose, or --json for programs; tollgate top for current activity
";
        let shown = of_status(&before, &now);
        // As a terminal shows it: the daemon's text has no effect, regardless of the replacement
        // characters.
        let printable = |text: &str| {
            text.replace('?', "")
                .replace("\\u{1b}", "")
                .replace("\\x1b", "")
        };
        assert_eq!(printable(&shown), printable(expected));
        assert!(shown.lines().count() <= 24 && !shown.contains('\u{1b}'));
    }

    #[test]
    fn however_much_there_is_a_screen_is_enough() {
        let mut now = status();
        let many = |of: &Value| json!(vec![of; 1_000]);
        for part in ["problems", "peers", "attachments"] {
            now[part] = many(&now[part][0]);
        }
        now["tenants"] = (0..1_000).map(|k| json!(format!("t{k}"))).collect();
        let shown = of_status(&now, &now);
        assert_eq!(shown.lines().count(), 4 + 4 * MAX_SHOWN_EACH, "{shown}");
        assert_eq!(shown.matches("and 995 more").count(), 4, "{shown}");
        // There is no interval between the two reports.
        assert!(shown.contains("\ncalls     5 in flight;"), "{shown}");
    }

    #[test]
    fn no_report_is_refused() {
        for report in [
            json!(null),
            json!({"name": 7, "problems": {}, "tenants": "all", "peers": [1, null], "attachments": [[]], "calls": -1}),
            json!({"calls": {"posted": u64::MAX, "received": u64::MAX}, "uptime_ms": u64::MAX, "versions": 3, "manifest": []}),
        ] {
            assert!(of_status(&json!({}), &report).starts_with("tollgated "));
            assert!(of_policy(&report).contains("\nattached  "));
        }
        // An older daemon doesn't report its uptime.
        let mut old = status();
        old["uptime_ms"] = json!(null);
        let shown = of_status(&old, &old);
        assert!(
            shown.starts_with("tollgated 0.1.0, daemon a, process 4711\n"),
            "{shown}"
        );
        // Another process has restarted the counters.
        let (mut before, now) = (status(), status());
        (before["pid"], before["uptime_ms"]) = (json!(1), json!(1));
        assert!(!of_status(&before, &now).contains("/s,"));
    }

    #[test]
    fn a_policy_fits_a_screen() {
        let report = json!({
            "owner": "acme", "name": "acl", "version": 2, "versions": [1, 2], "module_bytes": 1823, "digest": "0123456789abcdef",
            "manifest": {
                "capabilities": ["log", "clock"],
                "methods": [
                    {"method": "hotel.Reservation/*", "fields": ["customer_name", "stay.in_date"], "reply_fields": ["hotel_ids"],
                     "changes": ["coupon"], "reply_changes": [], "metadata": ["user"]},
                    {"method": "hotel.Echo/*", "fields": []},
                ],
            },
            "attachments": [attachment("acme", "client hotel.Reservation/*", None), attachment("acme", "server a.B/*", Some("it trapped"))],
        });
        let expected = "\
acl@2 of acme, 1823 bytes, sha256:0123456789ab
wrong     quarantined at server a.B/*: it trapped
          version 1's last fault at server a.B/*: it trapped
versions  1 2
evaluates hotel.Reservation/*: reads customer_name stay.in_date; metadata user; changes coupon; of replies reads hotel_ids
          hotel.Echo/*: no fields
may use   log clock
attached  client hotel.Reservation/*: acl@1 decides; 10 of 41 denied
          server a.B/*: acl@1 decides, QUARANTINED: it trapped; 10 of 41 denied
More: --verbose, or --json for programs
";
        assert_eq!(of_policy(&report), expected);
        let mut configured = report;
        configured["manifest"]["absent"] = "skip".into();
        configured["manifest"]["only_methods"] = json!(["a.B/*", "c.D/E"]);
        let configured = of_policy(&configured);
        let lines = "no fields\nonly for  a.B/* c.D/E\nabsent    skip\nmay use   log";
        assert!(configured.contains(lines), "{configured}");
        let broken = json!({"manifest": {"error": "its module is damaged"}});
        assert!(
            of_policy(&broken).contains("\nwrong     it can't be loaded: its module is damaged\n")
        );
    }
}
