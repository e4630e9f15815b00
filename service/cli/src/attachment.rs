//! One line for an attachment of a policy: where it is, and which of its versions decide.

use serde_json::Value;

use crate::output;

/// `client hotel.Reservation/*: acl@1 decides, acl@2 on trial (canary 10%)`, or with all calls on
/// trial `acl@2 decides on trial (canary 100%), instead of acl@1`
pub(crate) fn in_force(attachment: &Value) -> String {
    let name = attachment["policy"].as_str().unwrap_or("?");
    let stable = attachment["stable"].as_u64();
    let stable = stable.map(|version| format!("{name}@{version}"));
    let candidate = &attachment["candidate"];
    let versions = match (candidate["version"].as_u64(), candidate["mode"].as_str()) {
        (Some(version), Some(mode)) => {
            let promoted = candidate["probation_ms"].as_u64();
            let promoted = promoted.map_or(String::new(), |ms| {
                format!(", promoted after {} s without a failure", ms / 1_000)
            });
            let trial = format!("on trial ({mode}{promoted})");
            match (mode, stable) {
                ("canary 100%", Some(stable)) => {
                    format!("{name}@{version} decides {trial}, instead of {stable}")
                }
                ("canary 100%", None) => format!("{name}@{version} decides {trial}"),
                (_, Some(stable)) => format!("{stable} decides, {name}@{version} {trial}"),
                (_, None) => format!("nothing decides, {name}@{version} {trial}"),
            }
        }
        _ => stable.map_or("nothing decides".to_owned(), |stable| {
            format!("{stable} decides")
        }),
    };
    let quarantine = match attachment["quarantine"].as_str() {
        Some(why) => format!(", QUARANTINED: {}", output::plain(why)),
        None => String::new(),
    };
    let place = attachment["place"].as_str().unwrap_or("?");
    output::plain(&format!("{place}: {versions}{quarantine}")).into_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_attachment_is_a_line() {
        let mut attachment = json!({
            "place": "client a.B/*", "policy": "acl", "stable": 1, "quarantine": null,
            "candidate": {"version": 2, "mode": "canary 100%", "probation_ms": 60_000},
        });
        let promoted = "promoted after 60 s without a failure";
        assert_eq!(
            in_force(&attachment),
            format!(
                "client a.B/*: acl@2 decides on trial (canary 100%, {promoted}), instead of acl@1"
            )
        );
        attachment["candidate"]["mode"] = json!("canary 10%");
        assert_eq!(
            in_force(&attachment),
            format!("client a.B/*: acl@1 decides, acl@2 on trial (canary 10%, {promoted})")
        );
        let empty = json!({"place": "client a.B/*", "policy": "acl", "candidate": null, "quarantine": "5 faults"});
        assert_eq!(
            in_force(&empty),
            "client a.B/*: nothing decides, QUARANTINED: 5 faults"
        );
    }
}
