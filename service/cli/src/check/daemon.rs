//! Checks of the daemon: whether it answers, and what its status reports about runtimes, policies
//! and links.

use std::path::Path;

use serde_json::Value;
use tollgate_shm_abi::status::Code;

use crate::check::finding::{Finding, Verdict, bad, fine};
use crate::failure::Failure;

pub(super) fn silent(socket: &Path, failure: &Failure) -> Finding {
    let fix = match (failure.code(), socket.exists()) {
        (Code::PERMISSION_DENIED, _) => "run this command as the daemon's user, or as root",
        (_, true) => {
            "start the daemon (tollgate up --config FILE), or check whether it hangs: the socket file alone doesn't mean that it runs"
        }
        (_, false) => "start the daemon (tollgate up --config FILE), or give --socket PATH",
    };
    bad(Verdict::Failure, "daemon", failure.sentence(), fix)
}

/// The finding before the first start, when there is no socket yet. A named state directory or
/// configuration is checked then, too.
pub(super) fn not_started(failure: &Failure) -> Finding {
    let sentence = format!(
        "{}; only the host and what the command names are checked",
        failure.sentence()
    );
    fine("daemon", sentence)
}

pub(super) fn versions(status: &Value) -> Finding {
    let (ours, its) = (
        env!("CARGO_PKG_VERSION"),
        status["version"].as_str().unwrap_or("?"),
    );
    let sentence = format!("{its} answers, process {}", status["pid"]);
    if ours == its {
        return fine("daemon", sentence);
    }
    bad(
        Verdict::Warning,
        "daemon",
        format!("{sentence}; this program is {ours}"),
        "tollgate upgrade --binary NEW, or install this program in the daemon's version",
    )
}

pub(super) fn runtimes(status: &Value, cores: usize) -> Finding {
    let runtimes = status["runtimes"].as_u64().unwrap_or(1);
    if runtimes <= cores as u64 {
        return fine(
            "daemon",
            format!("{runtimes} of {cores} cores for its runtimes"),
        );
    }
    bad(
        Verdict::Warning,
        "daemon",
        format!("{runtimes} runtimes share {cores} cores: each waits for the others"),
        format!("tollgate daemon set runtimes={cores}"),
    )
}

/// The sum of a daemon's limits, beside the host's memory. A host needs less: the sum is what all
/// tenants could hold at once.
pub(super) fn capacity(capacity: &Value, whose: &str, meminfo: &str) -> Option<Finding> {
    let (needed, descriptors) = (
        capacity["memory_bytes"].as_u64()?,
        capacity["descriptors"].as_u64()?,
    );
    let lines = capacity["memory"].as_array().map_or(&[][..], Vec::as_slice);
    let largest: Vec<_> = lines
        .iter()
        .take(3)
        .filter_map(|line| {
            let (what, total) = (line["what"].as_str()?, line["total"].as_u64()?);
            Some(format!("{what} {}", binary(total)))
        })
        .collect();
    let has = host_memory(meminfo).map_or(String::new(), |has| {
        format!("; this host has {}", binary(has))
    });
    Some(fine(
        "limits",
        format!(
            "with every table full {whose} needs {descriptors} descriptors and {} of memory ({}){has}",
            binary(needed),
            largest.join(", ")
        ),
    ))
}

/// `MemTotal` of `/proc/meminfo`, in bytes.
fn host_memory(meminfo: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

/// Bytes in the largest unit of which there is at least one.
fn binary(bytes: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB"];
    let at = (0..units.len())
        .rev()
        .find(|at| bytes >> (10 * (at + 1)) > 0)
        .unwrap_or(0);
    format!(
        "{:.1} {}",
        bytes as f64 / (1_u64 << (10 * (at + 1))) as f64,
        units[at]
    )
}

/// Attachments in an unintended state.
pub(super) fn policies(status: &Value) -> Vec<Finding> {
    let all = status["attachments"]
        .as_array()
        .map_or(&[][..], Vec::as_slice);
    let mut findings = Vec::new();
    for one in all {
        let name = one["policy"].as_str().unwrap_or("?");
        let (whose, owner) = match (one["party"].as_str(), one["owner"].as_str()) {
            (Some("tenant"), Some(tenant)) => (
                format!(" of tenant {tenant}"),
                format!(" --tenant {tenant}"),
            ),
            (Some(_), _) => (" of the provider".to_owned(), " --provider".to_owned()),
            (None, _) => Default::default(),
        };
        let place = one["place"].as_str();
        let at = place.map_or_else(String::new, |place| format!(" at {place}"));
        for (key, how) in [
            ("quarantine", "is quarantined"),
            ("fallback", "isn't the wanted version"),
        ] {
            if let Some(why) = one[key].as_str() {
                findings.push(bad(
                    Verdict::Warning,
                    "policies",
                    format!("{name}{whose} {how}{at}: {why}"),
                    format!(
                        "tollgate policy show {name}{owner}; then upgrade, rollback or release it"
                    ),
                ));
            }
        }
    }
    if findings.is_empty() {
        let sentence = format!("all {} attachments have the wanted version", all.len());
        findings.push(fine("policies", sentence));
    }
    findings
}

pub(super) fn links(status: &Value) -> Vec<Finding> {
    let all = status["links"].as_array().map_or(&[][..], Vec::as_slice);
    let down = all.iter().filter(|link| link["state"] != "ready");
    let mut findings: Vec<_> = down
        .map(|link| {
            let peer = link["address"].as_str().unwrap_or("?");
            bad(
                Verdict::Warning,
                "links",
                format!("the link with {peer} is down"),
                "check that the other daemon runs and has the same key; this daemon's log has the reason",
            )
        })
        .collect();
    if findings.is_empty() {
        findings.push(fine(
            "links",
            format!("all {} links with other daemons are up", all.len()),
        ));
    }
    findings
}

/// The transports of links. A host without a device is fine.
pub(super) fn rdma(status: &Value) -> Vec<Finding> {
    let its = &status["rdma"];
    if let Some(why) = its["unavailable"].as_str() {
        return vec![fine("rdma", format!("links go over TCP: {why}"))];
    }
    let devices = its["devices"].as_array().map_or(&[][..], Vec::as_slice);
    if devices.is_empty() {
        // A daemon that predates links over RDMA may report neither.
        return Vec::new();
    }
    let mut findings = Vec::new();
    if let Some(why) = its["not_listening"].as_str() {
        let sentence = format!("peers aren't accepted over RDMA: {why}");
        let fix =
            "have the daemon listen on an address of an RDMA device (`rdma link`), or on 0.0.0.0";
        findings.push(bad(Verdict::Warning, "rdma", sentence, fix));
    }
    for link in status["links"].as_array().into_iter().flatten() {
        let peer = link["address"].as_str().unwrap_or("?");
        if let Some(why) = link["not_rdma"].as_str() {
            let sentence = format!("calls to {peer} go over TCP: {why}");
            let fix = "see docs/src/operate/troubleshooting.md, section RDMA, for the meaning of the reason";
            findings.push(bad(Verdict::Warning, "rdma", sentence, fix));
        }
        if let Some(why) = link["copies_because"].as_str() {
            let sentence = format!("messages to {peer} are copied before they are sent: {why}");
            let fix = "LimitMEMLOCK=infinity in the unit, or ulimit -l unlimited; a kernel of 6.2 or later";
            findings.push(bad(Verdict::Warning, "rdma", sentence, fix));
        }
    }
    if findings.is_empty() {
        let names: Vec<_> = devices.iter().filter_map(|d| d["name"].as_str()).collect();
        let sentence = format!(
            "links go over RDMA where the peer has it: {}",
            names.join(", ")
        );
        findings.push(fine("rdma", sentence));
    }
    findings
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::check::finding::word;

    #[test]
    fn what_is_wrong_with_a_daemon_is_said_with_what_to_do() {
        let status = json!({
            "version": "0.0.1", "pid": 7, "runtimes": 4,
            "attachments": [
                {"policy": "acl"}, {"policy": "quota", "quarantine": "five faults", "owner": "acme", "party": "tenant", "place": "client a.B/*"},
                {"policy": "jwt", "fallback": "no key", "owner": "(provider)", "party": "provider-pre", "place": "server *"},
            ],
            "links": [{"address": "10.0.0.1:1", "state": "ready"}, {"address": "10.0.0.2:1", "state": "opening"}],
        });
        let its = |findings: Vec<Finding>| {
            let shown = findings
                .iter()
                .map(|f| format!("{} {}", word(f.verdict), f.sentence));
            shown.collect::<Vec<_>>()
        };
        assert_eq!(versions(&status).verdict, Verdict::Warning);
        assert_eq!(runtimes(&status, 4).verdict, Verdict::Ok);
        assert_eq!(runtimes(&status, 2).verdict, Verdict::Warning);
        assert_eq!(
            its(policies(&status)),
            [
                "warning quota of tenant acme is quarantined at client a.B/*: five faults",
                "warning jwt of the provider isn't the wanted version at server *: no key"
            ]
        );
        let fixes: Vec<_> = policies(&status)
            .into_iter()
            .filter_map(|f| f.fix)
            .collect();
        assert!(fixes[0].starts_with("tollgate policy show quota --tenant acme;"));
        assert!(fixes[1].starts_with("tollgate policy show jwt --provider;"));
        assert_eq!(
            its(links(&status)),
            ["warning the link with 10.0.0.2:1 is down"]
        );
        let sound = json!({"attachments": [], "links": []});
        assert_eq!(
            its(policies(&sound)),
            ["ok all 0 attachments have the wanted version"]
        );
        assert_eq!(
            its(links(&sound)),
            ["ok all 0 links with other daemons are up"]
        );
    }

    #[test]
    fn of_rdma_is_said_what_links_go_over_and_why() {
        let its = |status: Value| {
            let findings = rdma(&status);
            let shown = findings.iter().map(|f| (f.verdict, f.sentence.clone()));
            shown.collect::<Vec<_>>()
        };
        assert_eq!(its(json!({"version": "0.0.1"})), []);
        let none = json!({"rdma": {"unavailable": "no device", "devices": []}});
        let sentence = "links go over TCP: no device".to_owned();
        assert_eq!(its(none), [(Verdict::Ok, sentence)]);
        let sound =
            json!({"rdma": {"devices": [{"name": "mlx5_0"}]}, "links": [{"address": "b:1"}]});
        let sentence = "links go over RDMA where the peer has it: mlx5_0".to_owned();
        assert_eq!(its(sound), [(Verdict::Ok, sentence)]);
        let unsound = json!({
            "rdma": {"devices": [{"name": "mlx5_0"}], "not_listening": "no such device"},
            "links": [{"address": "b:1", "not_rdma": "refused"}, {"address": "c:1", "copies_because": "too much"}],
        });
        let sentences = [
            "peers aren't accepted over RDMA: no such device",
            "calls to b:1 go over TCP: refused",
            "messages to c:1 are copied before they are sent: too much",
        ];
        let warned = sentences.map(|said| (Verdict::Warning, said.to_owned()));
        assert_eq!(its(unsound), warned);
    }
}
