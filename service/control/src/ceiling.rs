//! What a tenant may have at most, as an operator sets it.
//!
//! ```text
//!   a tenant's own values ─▶ the default ceiling's ─▶ built-in ones      per key, the first that is set
//! ```
//!
//! Values are kept as text, by key ([`KEYS`]). A ceiling that is lowered takes nothing away: what a
//! tenant has above it stays, and can't grow.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::str::FromStr;

use crate::error::StoreError;
use crate::fields::{Field, FieldPattern, FieldRefusal, refusal};
use crate::limits;
use crate::model::{Isolation, Stored};

/// Values by key.
pub type CeilingValues = BTreeMap<String, String>;

/// A key: its name, its built-in value, and what it means.
#[derive(Clone, Copy, Debug)]
pub struct CeilingKey {
    /// The name.
    pub name: &'static str,
    /// The value where nobody set one.
    pub built_in: &'static str,
    /// The values that it takes.
    pub values: &'static str,
    /// What it limits.
    pub meaning: &'static str,
}

/// All keys.
pub const KEYS: &[CeilingKey] = &[
    CeilingKey {
        name: "policies",
        built_in: "64",
        values: "0 to 64",
        meaning: "Policies, by name",
    },
    CeilingKey {
        name: "versions",
        built_in: "2048",
        values: "0 to 2048",
        meaning: "Stored versions of all policies",
    },
    CeilingKey {
        name: "module_mib",
        built_in: "512",
        values: "0 to 10240",
        meaning: "Bytes of all stored versions with their configurations, in MiB. A module that several versions share counts for each",
    },
    CeilingKey {
        name: "module_kib",
        built_in: "4096",
        values: "1 to 4096",
        meaning: "Bytes of one module that is pushed, with its manifest, in KiB",
    },
    CeilingKey {
        name: "attachments",
        built_in: "256",
        values: "0 to 256",
        meaning: "Attachments",
    },
    CeilingKey {
        name: "changes_per_hour",
        built_in: "2000",
        values: "1 to 72000",
        meaning: "Changes by the tenant's own principals. An hour's changes may come at once; each is then free again after its share of an hour. The daemon doesn't count over a restart or an upgrade",
    },
    CeilingKey {
        name: "compile_s_per_hour",
        built_in: "900",
        values: "1 to 3600",
        meaning: "Seconds of compilation, counted like changes. Known modules cost nothing. A compilation that began may end",
    },
    CeilingKey {
        name: "cpu_us",
        built_in: "10000",
        values: "5 to 10000",
        meaning: "CPU time per call of an attachment, in microseconds. One that sets none has the daemon's `policies.cpu_us`, if that is less",
    },
    CeilingKey {
        name: "cpu_share_percent",
        built_in: "daemon",
        values: "`daemon`, or 1 to 100",
        meaning: "Share of one core for all policies of the tenant together, in percent, instead of the daemon's `policies.cpu_share_percent`",
    },
    CeilingKey {
        name: "memory_mib",
        built_in: "16",
        values: "1 to 16",
        meaning: "Memory of one instance of a policy, in MiB, if the daemon's `policies.memory_kib` isn't less. A version on trial has instances of its own",
    },
    CeilingKey {
        name: "capabilities",
        built_in: "all",
        values: "`all`, `none`, or names with commas",
        meaning: "Capabilities that an attached policy may use, beside `log` and `metrics`",
    },
    CeilingKey {
        name: "fields_allow",
        built_in: "all",
        values: "`all`, `none`, or patterns with commas",
        meaning: "Fields that an attached policy may read or change: `SERVICE/METHOD:PATH`, each part a name or its beginning with `*`, such as `hotel.*/*:room.*`",
    },
    CeilingKey {
        name: "fields_deny",
        built_in: "none",
        values: "`none`, or patterns with commas",
        meaning: "Fields that it may not, even if they are allowed",
    },
    CeilingKey {
        name: "languages",
        built_in: "all",
        values: "`all`, or of `tollgate`, `proxy-wasm` and `opa`, with commas",
        meaning: "Kinds of modules that may be pushed: Tollgate's ABI, filters for Envoy, Rego compiled by OPA",
    },
    CeilingKey {
        name: "signers",
        built_in: "any",
        values: "`any`, or up to 16 public keys with commas, each the base64 text of its PEM file in one line",
        meaning: "Keys of which one must have signed a module that is pushed, in addition to what the daemon's `policies.trusted_keys` demands",
    },
    CeilingKey {
        name: "isolation",
        built_in: "any",
        values: "`any` or `process`",
        meaning: "Where policies run: as the daemon's configuration and the attachments say, or in the tenant's process in any case",
    },
    CeilingKey {
        name: "trial",
        built_in: "free",
        values: "`free` or `required`",
        meaning: "Whether a version must be on trial at a place before it decides there",
    },
    CeilingKey {
        name: "approval",
        built_in: "none",
        values: "`none` or `operator`",
        meaning: "Whose approval a change by the tenant needs that lets a version decide, now or by itself later, or decide under other options",
    },
];

/// A tenant's ceiling, each value in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ceiling {
    /// Policies, by name.
    pub policies: u32,
    /// Stored versions of all policies.
    pub versions: u32,
    /// Bytes of all stored versions with their configurations.
    pub module_bytes: u64,
    /// Bytes of one module that is pushed.
    pub largest_module_bytes: u64,
    /// Attachments.
    pub attachments: u32,
    /// Changes by the tenant's own principals.
    pub changes_per_hour: u32,
    /// Seconds of compilation.
    pub compile_s_per_hour: u32,
    /// Most CPU time per call that an attachment may set, in microseconds.
    pub cpu_us: u32,
    /// Memory of one instance of a policy.
    pub memory_bytes: usize,
    /// Capabilities; none: all.
    pub capabilities: Option<BTreeSet<String>>,
    /// Fields that policies may read or change; none: all.
    pub fields_allow: Option<Vec<FieldPattern>>,
    /// Of these, fields that they may not.
    pub fields_deny: Vec<FieldPattern>,
    /// Kinds of modules; none: all.
    pub languages: Option<BTreeSet<String>>,
    /// Public keys of which one must have signed a module, in base64; none: any or none.
    pub signers: Vec<String>,
    /// Where policies have to run.
    pub isolation: Option<Isolation>,
    /// Whether a version must be on trial at a place before it decides there.
    pub needs_trial: bool,
    /// Whether an operator must approve what the tenant puts in force.
    pub needs_approval: bool,
}

/// What a module may be made for.
pub const LANGUAGES: [&str; 3] = ["tollgate", "proxy-wasm", "opa"];

impl Ceiling {
    /// The ceiling of a tenant with these own values, over these defaults. Stored values were
    /// checked; one that an older daemon doesn't know is left out.
    pub fn of(own: &CeilingValues, default: &CeilingValues) -> Ceiling {
        let text = |name: &str| {
            let built_in = KEYS.iter().find(|key| key.name == name);
            let set = own.get(name).or_else(|| default.get(name));
            set.map_or_else(|| built_in.map_or("", |key| key.built_in), String::as_str)
        };
        Ceiling {
            policies: number(text("policies")),
            versions: number(text("versions")),
            module_bytes: number::<u64>(text("module_mib")) << 20,
            largest_module_bytes: number::<u64>(text("module_kib")) << 10,
            attachments: number(text("attachments")),
            changes_per_hour: number(text("changes_per_hour")),
            compile_s_per_hour: number(text("compile_s_per_hour")),
            cpu_us: number(text("cpu_us")),
            memory_bytes: number::<usize>(text("memory_mib")) << 20,
            capabilities: set(text("capabilities")),
            fields_allow: match text("fields_allow") {
                "all" => None,
                listed => Some(patterns(listed)),
            },
            fields_deny: patterns(text("fields_deny")),
            languages: set(text("languages")),
            signers: match text("signers") {
                "any" => Vec::new(),
                keys => keys.split(',').map(str::to_owned).collect(),
            },
            isolation: (text("isolation") == "process").then_some(Isolation::Process),
            needs_trial: text("trial") == "required",
            needs_approval: text("approval") == "operator",
        }
    }

    /// The sentence for a module that is too large for this tenant, if it is.
    pub fn module_above(&self, tenant: &str, policy: &str, bytes: usize) -> Option<String> {
        let most = self.largest_module_bytes;
        (bytes as u64 > most).then(|| {
            let has = format!("the module of policy {policy} has {bytes} bytes");
            at_ceiling(tenant, has, "module_kib", most >> 10)
        })
    }

    /// Why a tenant may not store `after` in place of `before`, if it may not: something grows, and
    /// is above the ceiling then.
    pub fn growth(&self, tenant: &str, before: &Stored, after: &Stored) -> Option<String> {
        let grows = |of: fn(&Stored) -> u64, most: u64| of(after) > of(before).max(most);
        if grows(|its| its.policies, self.policies.into()) {
            let has = format!("there would be {} policies", after.policies);
            return Some(at_ceiling(tenant, has, "policies", self.policies));
        }
        if grows(|its| its.versions, self.versions.into()) {
            let has = format!("there would be {} versions of policies", after.versions);
            return Some(at_ceiling(tenant, has, "versions", self.versions));
        }
        grows(|its| its.bytes, self.module_bytes).then(|| {
            let has = format!("there would be {} bytes of modules", after.bytes);
            at_ceiling(tenant, has, "module_mib", self.module_bytes >> 20)
        })
    }

    /// Why policies may not read or change a field, if they may not.
    pub fn field_refusal(&self, field: &Field<'_>) -> Option<FieldRefusal<'_>> {
        refusal(self.fields_allow.as_deref(), &self.fields_deny, field)
    }
}

/// The patterns of a list; `none` is an empty one.
fn patterns(text: &str) -> Vec<FieldPattern> {
    text.split(',').filter_map(FieldPattern::parse).collect()
}

fn number<N: FromStr + Default>(text: &str) -> N {
    text.parse().unwrap_or_default()
}

/// `None`: all.
fn set(text: &str) -> Option<BTreeSet<String>> {
    match text {
        "all" => None,
        "none" => Some(BTreeSet::new()),
        names => Some(names.split(',').map(str::to_owned).collect()),
    }
}

/// The key with this name.
///
/// # Errors
/// There is none.
pub(crate) fn check_key(name: &str) -> Result<&'static CeilingKey, StoreError> {
    let found = KEYS.iter().find(|key| key.name == name);
    found.ok_or_else(|| {
        let keys: Vec<_> = KEYS.iter().map(|key| key.name).collect();
        StoreError::NoCeilingKey {
            key: name.to_owned(),
            keys: keys.join(", "),
        }
    })
}

/// Checks a value for a key.
///
/// # Errors
/// There is no such key, or it doesn't take this value.
pub(crate) fn check_value(name: &str, value: &str) -> Result<(), StoreError> {
    let key = check_key(name)?;
    let range = |least: u32, most: u32| {
        // Only one form of a number, so that equal ceilings have equal texts.
        let parsed = value.parse::<u32>().ok();
        parsed.is_some_and(|n| (least..=most).contains(&n) && n.to_string() == value)
    };
    let one_of = |values: &[&str]| values.contains(&value);
    let names = |known: &dyn Fn(&str) -> bool| {
        let names: Vec<_> = value.split(',').collect();
        let distinct: BTreeSet<_> = names.iter().collect();
        distinct.len() == names.len() && names.iter().all(|name| known(name))
    };
    let is_name = |name: &str| {
        (1..=limits::MAX_NAME).contains(&name.len())
            && name.bytes().all(|b| b.is_ascii_lowercase() || b == b'-')
            && !["all", "none"].contains(&name)
    };
    let are_patterns = || {
        let mut patterns = value.split(',');
        value.len() <= limits::MAX_SETTING_BYTES
            && patterns.all(|one| FieldPattern::parse(one).is_some())
    };
    // Whether it is a key, the daemon knows.
    let is_key = |key: &str| {
        let is_base64 = |b: u8| b.is_ascii_alphanumeric() || b"+/=".contains(&b);
        let (least, most) = limits::SIGNER_BYTES;
        (least as usize..=most as usize).contains(&key.len()) && key.bytes().all(is_base64)
    };
    let are_keys = || value.split(',').count() <= limits::MAX_SIGNERS && names(&is_key);
    let (least, most) = limits::CPU_US;
    let is_good = match name {
        "policies" => range(0, limits::MAX_POLICIES as u32),
        "versions" => range(0, (limits::MAX_POLICIES * limits::MAX_VERSIONS) as u32),
        "module_mib" => range(0, 10 << 10),
        "module_kib" => range(1, (limits::MAX_MODULE_BYTES >> 10) as u32),
        "attachments" => range(0, limits::MAX_ATTACHMENTS as u32),
        "changes_per_hour" => range(1, 72_000),
        "compile_s_per_hour" => range(1, 3_600),
        "cpu_us" => range(least, most),
        "cpu_share_percent" => one_of(&["daemon"]) || range(1, 100),
        "memory_mib" => range(1, 16),
        "capabilities" => one_of(&["all", "none"]) || names(&is_name),
        "fields_allow" => one_of(&["all", "none"]) || are_patterns(),
        "fields_deny" => one_of(&["none"]) || are_patterns(),
        "languages" => one_of(&["all"]) || names(&|name| LANGUAGES.contains(&name)),
        "signers" => one_of(&["any"]) || are_keys(),
        "isolation" => one_of(&["any", "process"]),
        "approval" => one_of(&["none", "operator"]),
        _ => one_of(&["free", "required"]),
    };
    match is_good {
        true => Ok(()),
        false => Err(StoreError::CeilingValue {
            key: key.name,
            value: value.to_owned(),
            values: key.values,
        }),
    }
}

/// The sentence for a tenant at its ceiling: `has` is what it has or wants.
pub fn at_ceiling(tenant: &str, has: impl Display, key: &str, value: impl Display) -> String {
    format!(
        "{has}, and the ceiling of tenant {tenant} is `{key}` = {value}; an operator can change it: tollgate ceiling set {key}=VALUE --tenant {tenant}"
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn values(pairs: &[(&str, &str)]) -> CeilingValues {
        let owned = pairs
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        owned.collect()
    }

    #[test]
    fn own_values_come_before_default_ones_and_built_in_ones_last() {
        let own = values(&[("versions", "3"), ("capabilities", "state,clock")]);
        let default = values(&[("versions", "9"), ("attachments", "7")]);
        let ceiling = Ceiling::of(&own, &default);
        assert_eq!(ceiling.versions, 3);
        assert_eq!(ceiling.attachments, 7);
        assert_eq!(ceiling.module_bytes, 512 << 20);
        let names = ceiling.capabilities.unwrap();
        assert_eq!(names.into_iter().collect::<Vec<_>>(), ["clock", "state"]);
        assert_eq!(ceiling.languages, None);
    }

    /// `TOLLGATE_BLESS=1` rewrites the table.
    #[test]
    fn the_page_of_operators_has_the_keys() {
        const BEGIN: &str =
            "<!-- ceilings: written by TOLLGATE_BLESS=1 cargo test -p tollgate-control -->\n";
        const END: &str = "<!-- end -->";
        let page = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../docs/src/operate/hosting.md"
        );
        let text = std::fs::read_to_string(page).unwrap();
        let (before, rest) = text.split_once(BEGIN).unwrap();
        let (written, after) = rest.split_once(END).unwrap();
        let rows = KEYS.iter().map(|key| {
            format!(
                "| `{}` | {}. | {} | `{}` |\n",
                key.name, key.meaning, key.values, key.built_in
            )
        });
        let table = format!(
            "\n| key | what it limits | values | built in |\n|---|---|---|---|\n{}\n",
            rows.collect::<String>()
        );
        if std::env::var_os("TOLLGATE_BLESS").is_some() {
            return std::fs::write(page, format!("{before}{BEGIN}{table}{END}{after}")).unwrap();
        }
        assert_eq!(written, table, "see the comment above the table");
    }

    #[test]
    fn every_built_in_value_is_one_that_may_be_set() {
        for key in KEYS {
            check_value(key.name, key.built_in).unwrap();
        }
        let built_in = Ceiling::of(&values(&[]), &values(&[]));
        assert_eq!(
            built_in.versions as usize,
            limits::MAX_POLICIES * limits::MAX_VERSIONS
        );
        assert_eq!(built_in.policies as usize, limits::MAX_POLICIES);
        let largest = built_in.largest_module_bytes as usize;
        assert_eq!(largest, limits::MAX_MODULE_BYTES);
        assert_eq!(built_in.attachments as usize, limits::MAX_ATTACHMENTS);
        assert_eq!(built_in.cpu_us, limits::CPU_US.1);
        assert!(!built_in.needs_trial && !built_in.needs_approval && built_in.isolation.is_none());
    }

    #[test]
    fn values_out_of_range_are_refused_with_what_is_possible() {
        for (key, value) in [
            ("policies", "65"),
            ("versions", "2049"),
            ("versions", "-1"),
            ("versions", "07"),
            ("versions", ""),
            ("module_mib", "10241"),
            ("module_kib", "0"),
            ("module_kib", "4097"),
            ("cpu_us", "4"),
            ("cpu_us", "10001"),
            ("changes_per_hour", "0"),
            ("cpu_share_percent", "0"),
            ("cpu_share_percent", "101"),
            ("memory_mib", "0"),
            ("memory_mib", "17"),
            ("capabilities", "state,"),
            ("capabilities", "state,state"),
            ("capabilities", "state,all"),
            ("capabilities", "State"),
            ("fields_allow", "hotel.Reservation"),
            ("fields_allow", "a.B/C:d,"),
            ("fields_deny", "all"),
            ("languages", "none"),
            ("languages", "cobol"),
            ("signers", "none"),
            ("signers", "MCowBQYDK2VwAyEA"),
            ("isolation", "none"),
            ("trial", "no"),
            ("approval", "yes"),
        ] {
            let refused = check_value(key, value).err();
            let refused = refused.map(|error| error.to_string()).unwrap_or_default();
            assert!(
                refused.contains(key) && refused.contains(" takes "),
                "{key}={value}: {refused}"
            );
        }
        let unknown = check_value("version", "1").unwrap_err().to_string();
        assert!(
            unknown.contains("policies, versions, module_mib"),
            "{unknown}"
        );
        for (key, value) in [
            ("capabilities", "none"),
            ("languages", "tollgate,opa"),
            ("fields_allow", "hotel.*/*:room.*,a.B/C:d"),
            ("fields_deny", "*/*:password"),
            ("approval", "operator"),
        ] {
            check_value(key, value).unwrap();
        }
    }
}
