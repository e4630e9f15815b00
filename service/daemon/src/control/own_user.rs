//! This process's user, for comparison with others.
//!
//! A user namespace shows all users that it doesn't map as the overflow user, usually 65534
//! (user_namespaces(7)). A daemon that runs as this user can't tell itself from them. Then only
//! root is the operator.

use std::sync::OnceLock;

use rustix::process::geteuid;

/// The overflow user, if the kernel doesn't tell it.
const OVERFLOW: u32 = 65_534;

/// This process's user, unless other users look like it.
pub(crate) fn own_user() -> Option<u32> {
    static OWN: OnceLock<Option<u32>> = OnceLock::new();
    *OWN.get_or_init(|| {
        let map = std::fs::read_to_string("/proc/self/uid_map").ok();
        let overflow = std::fs::read_to_string("/proc/sys/kernel/overflowuid").ok();
        let overflow = overflow.and_then(|text| text.trim().parse().ok());
        told_apart(
            geteuid().as_raw(),
            overflow.unwrap_or(OVERFLOW),
            map.as_deref(),
        )
    })
}

/// Whether this is the process's own user.
pub(crate) fn is_own(user: u32) -> bool {
    own_user() == Some(user)
}

/// Root and the daemon's own user are operators; only root where other users look like the daemon's
/// own.
pub(crate) fn is_operator(user: u32) -> bool {
    user == 0 || is_own(user)
}

/// Who may administer the daemon without a token, for a refusal.
pub(crate) fn operators() -> String {
    match own_user() {
        Some(0) => "root may".to_owned(),
        Some(own) => format!("root and user {own} may"),
        None => "only root may, because in this daemon's user namespace unmapped users look like the daemon's own".to_owned(),
    }
}

/// `map` is `None` if the kernel has no user namespaces.
fn told_apart(own: u32, overflow: u32, map: Option<&str>) -> Option<u32> {
    let is_identity = map.is_none_or(|map| map.split_whitespace().eq(["0", "0", "4294967295"]));
    (own != overflow || is_identity).then_some(own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_overflow_user_is_its_own_only_where_every_user_is_mapped() {
        let identity = "         0          0 4294967295\n";
        let one = "     65534       4000          1\n";
        let many = "         0     100000      65536\n";
        for (own, map, expected) in [
            (65_534, Some(identity), Some(65_534)),
            (65_534, None, Some(65_534)),
            (65_534, Some(one), None),
            (65_534, Some(many), None),
            (65_534, Some("0 100000 4294967295\n"), None),
            (65_534, Some(""), None),
            (1_000, Some(many), Some(1_000)),
            (0, Some(many), Some(0)),
        ] {
            assert_eq!(told_apart(own, 65_534, map), expected, "{own} {map:?}");
        }
        assert_eq!(told_apart(4_711, 4_711, Some(many)), None);
        assert_eq!(told_apart(65_534, 4_711, Some(many)), Some(65_534));
    }
}
