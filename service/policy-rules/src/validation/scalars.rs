//! The constraints of scalars that `buf.validate` has names for.

use tollgate_schema::prost_reflect::{DynamicMessage, FieldDescriptor, Kind, Value};

use super::checks::literal;
use super::options::set;

/// The constraint's name, the condition that must be true, and what is wrong otherwise.
type Named = (String, String, String);
/// The constraint's name, and why rules can't check it.
type Unable = (String, String);

/// Texts that a pattern tells: the constraint, the pattern, and what the value must be.
const PATTERNS: &[(&str, &str, &str)] = &[
    (
        "email",
        "^[a-zA-Z0-9.!#$%&'*+/=?^_`{|}~-]+@[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?(?:\\.[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?)*$",
        "an email address",
    ),
    (
        "ipv4",
        "^(?:(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])\\.){3}(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])$",
        "an IPv4 address",
    ),
    (
        "uuid",
        "^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$",
        "a UUID",
    ),
    ("tuuid", "^[0-9a-fA-F]{32}$", "a UUID without dashes"),
    (
        "ulid",
        "^[0-7][0-9A-HJKMNP-TV-Za-hjkmnp-tv-z]{25}$",
        "a ULID",
    ),
    (
        "protobuf_fqn",
        "^[A-Za-z_][A-Za-z_0-9]*(\\.[A-Za-z_][A-Za-z_0-9]*)*$",
        "a full name of protobuf",
    ),
    (
        "protobuf_dot_fqn",
        "^\\.[A-Za-z_][A-Za-z_0-9]*(\\.[A-Za-z_][A-Za-z_0-9]*)*$",
        "a full name of protobuf that begins with a dot",
    ),
];

/// A host's name: labels of letters, digits and hyphens, the last of which isn't a number.
const HOSTNAME: &str = "^(?:[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?\\.)*[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?\\.?$";
const NUMBER_AT_THE_END: &str = "(?:^|\\.)[0-9]+\\.?$";

/// Why a constraint that protovalidate has by now isn't checked.
pub(super) const UNKNOWN: &str = "rules don't know this constraint";

/// What a rule's field stands for.
enum Found {
    Check(String, String),
    Unable(&'static str),
    /// It checks nothing.
    Nothing,
}

/// The constraints in the rules of a field; `value` is the expression of its value.
pub(super) fn checks(
    rules: &DynamicMessage,
    field: &FieldDescriptor,
    value: &str,
) -> Vec<Result<Named, Unable>> {
    let typed = rules.fields().find_map(|(rule, set)| match set {
        Value::Message(inner) => Some((rule.name().to_owned(), inner.clone())),
        _ => None,
    });
    let Some((ty, rules)) = typed else {
        return Vec::new();
    };
    let all = rules
        .fields()
        .map(|(rule, set)| (rule.name().to_owned(), set.clone()));
    let all: Vec<(String, Value)> = all.collect();
    let mut found = Vec::new();
    for (name, set) in &all {
        let constraint = format!("{ty}.{name}");
        let one = match ty.as_str() {
            "string" => text(&rules, name, set, value),
            "bytes" => bytes(name, set, value),
            "bool" => match (name.as_str(), set) {
                ("const", Value::Bool(expected)) => equal(value, &expected.to_string()),
                ("example", _) => Found::Nothing,
                _ => Found::Unable(UNKNOWN),
            },
            "enum" => enumeration(field, name, set, value),
            "any" | "duration" | "field_mask" | "timestamp" | "repeated" | "map" => {
                Found::Unable("rules have no constraints of this type")
            }
            _ => number(&rules, name, set, value),
        };
        match one {
            Found::Check(condition, text) => found.push(Ok((constraint, condition, text))),
            Found::Unable(why) => found.push(Err((constraint, why.to_owned()))),
            Found::Nothing => {}
        }
    }
    // Predefined constraints are extensions of a type's rules.
    for (extension, _) in rules.extensions() {
        let constraint = format!("{ty}.({})", extension.full_name());
        found.push(Err((
            constraint,
            "rules have no predefined constraints".to_owned(),
        )));
    }
    found
}

fn equal(value: &str, expected: &str) -> Found {
    let shown = shown(expected);
    Found::Check(
        format!("{value} == {expected}"),
        format!("must equal {shown}"),
    )
}

/// A constant for a reader: without the suffix of unsigned numbers.
fn shown(constant: &str) -> &str {
    match constant.starts_with(|c: char| c.is_ascii_digit()) {
        true => constant.trim_end_matches('u'),
        false => constant,
    }
}

/// A constant of a number's type.
fn constant(value: &Value) -> Option<String> {
    Some(match value {
        Value::I32(number) | Value::EnumNumber(number) => number.to_string(),
        Value::I64(number) => number.to_string(),
        Value::U32(number) => format!("{number}u"),
        Value::U64(number) => format!("{number}u"),
        Value::F32(number) if number.is_finite() => format!("{:?}", f64::from(*number)),
        Value::F64(number) if number.is_finite() => format!("{number:?}"),
        Value::String(text) => literal(text),
        Value::Bytes(bytes) => {
            let escaped = bytes.iter().map(|byte| format!("\\x{byte:02x}"));
            format!("b'{}'", escaped.collect::<String>())
        }
        _ => return None,
    })
}

/// `in` and `not_in`.
fn among(name: &str, set: &Value, value: &str) -> Found {
    let items = set.as_list().unwrap_or_default().iter();
    let Some(items) = items.map(constant).collect::<Option<Vec<_>>>() else {
        return Found::Unable("a value of its list is no finite number");
    };
    let shown: Vec<_> = items.iter().map(|item| shown(item)).collect();
    let (items, shown) = (items.join(", "), shown.join(", "));
    match name {
        "in" => Found::Check(
            format!("{value} in [{items}]"),
            format!("must be in list [{shown}]"),
        ),
        _ => Found::Check(
            format!("!({value} in [{items}])"),
            format!("must not be in list [{shown}]"),
        ),
    }
}

fn number(rules: &DynamicMessage, name: &str, found: &Value, value: &str) -> Found {
    match name {
        "in" | "not_in" => return among(name, found, value),
        "finite" => {
            return match found.as_bool() {
                // An infinity minus itself isn't a number.
                Some(true) => Found::Check(
                    format!("{value} - {value} == 0.0"),
                    "must be finite".to_owned(),
                ),
                _ => Found::Nothing,
            };
        }
        "example" => return Found::Nothing,
        _ => {}
    }
    let Some(bound) = constant(found) else {
        return Found::Unable("its bound is no finite number");
    };
    let other = |names: [&str; 2]| {
        let mut both = names.into_iter();
        both.find_map(|name| Some((name.to_owned(), set(rules, name)?)))
    };
    match name {
        "const" => equal(value, &bound),
        // A bound from above is part of the check of the bound from below.
        "lt" | "lte" => match other(["gt", "gte"]) {
            Some((_, lower)) if constant(&lower).is_none() => {
                Found::Unable("its lower bound is no finite number")
            }
            Some(_) => Found::Nothing,
            None => {
                let (holds, text) = compared(name, value, &bound);
                Found::Check(holds, format!("must be {text}"))
            }
        },
        "gt" | "gte" => {
            let (holds, text) = compared(name, value, &bound);
            let Some((upper, set)) = other(["lt", "lte"]) else {
                return Found::Check(holds, format!("must be {text}"));
            };
            let Some(limit) = constant(&set) else {
                return Found::Unable("its bound is no finite number");
            };
            let (below, upper_text) = compared(&upper, value, &limit);
            match is_range(found, &set) {
                true => Found::Check(
                    format!("{holds} && {below}"),
                    format!("must be {text} and {upper_text}"),
                ),
                // What is between the bounds is excluded.
                false => Found::Check(
                    format!("{holds} || {below}"),
                    format!("must be {text} or {upper_text}"),
                ),
            }
        }
        _ => Found::Unable(UNKNOWN),
    }
}

/// Whether the upper bound isn't below the lower one.
fn is_range(lower: &Value, upper: &Value) -> bool {
    match (lower, upper) {
        (Value::I32(a), Value::I32(b)) => b >= a,
        (Value::I64(a), Value::I64(b)) => b >= a,
        (Value::U32(a), Value::U32(b)) => b >= a,
        (Value::U64(a), Value::U64(b)) => b >= a,
        (Value::F32(a), Value::F32(b)) => b >= a,
        (Value::F64(a), Value::F64(b)) => b >= a,
        _ => false,
    }
}

fn compared(name: &str, value: &str, bound: &str) -> (String, String) {
    let (operator, text) = match name {
        "lt" => ("<", "less than"),
        "lte" => ("<=", "less than or equal to"),
        "gt" => (">", "greater than"),
        _ => (">=", "greater than or equal to"),
    };
    (
        format!("{value} {operator} {bound}"),
        format!("{text} {}", shown(bound)),
    )
}

fn enumeration(field: &FieldDescriptor, name: &str, set: &Value, value: &str) -> Found {
    match (name, set, field.kind()) {
        ("in" | "not_in", ..) => among(name, set, value),
        ("const", Value::I32(number), _) => equal(value, &number.to_string()),
        ("defined_only", Value::Bool(true), Kind::Enum(its)) => {
            let numbers: Vec<_> = its.values().map(|one| one.number().to_string()).collect();
            Found::Check(
                format!("{value} in [{}]", numbers.join(", ")),
                "must be one of the defined enum values".to_owned(),
            )
        }
        ("defined_only" | "example", ..) => Found::Nothing,
        _ => Found::Unable(UNKNOWN),
    }
}

/// A bound of a length.
fn length(name: &str, size: &str, set: &Value, unit: &str) -> Option<Found> {
    let Value::U64(count) = set else {
        return None;
    };
    let (operator, text) = match name.split('_').next() {
        Some("min") => (">=", "at least "),
        Some("max") => ("<=", "at most "),
        _ => ("==", ""),
    };
    Some(Found::Check(
        format!("size({size}) {operator} {count}"),
        format!("must be {text}{count} {unit}"),
    ))
}

fn text(rules: &DynamicMessage, name: &str, found: &Value, value: &str) -> Found {
    match name {
        "len" | "min_len" | "max_len" => {
            return length(name, value, found, "characters").unwrap_or(Found::Nothing);
        }
        "len_bytes" | "min_bytes" | "max_bytes" => {
            let size = format!("bytes({value})");
            return length(name, &size, found, "bytes").unwrap_or(Found::Nothing);
        }
        "in" | "not_in" => return among(name, found, value),
        "strict" | "example" => return Found::Nothing,
        "well_known_regex" => return well_known(rules, found, value),
        _ => {}
    }
    if let Value::Bool(wanted) = found {
        return match wanted {
            true => well_formed(name, value),
            false => Found::Nothing,
        };
    }
    let Some(constant) = constant(found) else {
        return Found::Unable(UNKNOWN);
    };
    let holds = |function: &str| format!("{value}.{function}({constant})");
    match name {
        "const" => equal(value, &constant),
        "pattern" => Found::Check(
            holds("matches"),
            format!("must match the pattern {constant}"),
        ),
        "prefix" => Found::Check(holds("startsWith"), format!("must begin with {constant}")),
        "suffix" => Found::Check(holds("endsWith"), format!("must end with {constant}")),
        "contains" => Found::Check(holds("contains"), format!("must contain {constant}")),
        "not_contains" => Found::Check(
            format!("!{}", holds("contains")),
            format!("must not contain {constant}"),
        ),
        _ => Found::Unable(UNKNOWN),
    }
}

fn matches(value: &str, pattern: &str) -> String {
    format!("{value}.matches({})", literal(pattern))
}

fn well_formed(name: &str, value: &str) -> Found {
    if let Some((_, pattern, what)) = PATTERNS.iter().find(|(one, ..)| *one == name) {
        return Found::Check(matches(value, pattern), format!("must be {what}"));
    }
    match name {
        "hostname" => Found::Check(
            format!(
                "size({value}) <= 253 && {} && !{}",
                matches(value, HOSTNAME),
                matches(value, NUMBER_AT_THE_END)
            ),
            "must be a hostname".to_owned(),
        ),
        _ => Found::Unable("rules have no function that tells such texts"),
    }
}

/// A header's name or value; `strict` unless it is false.
fn well_known(rules: &DynamicMessage, found: &Value, value: &str) -> Found {
    let is_strict = set(rules, "strict").and_then(|strict| strict.as_bool()) != Some(false);
    let (pattern, what) = match (found.as_enum_number(), is_strict) {
        (Some(1), true) => (
            "^:?[0-9a-zA-Z!#$%&'*+-.^_|~\\x60]+$",
            "a valid HTTP header name",
        ),
        (Some(1), false) => ("^[^\\x00\\x0A\\x0D]+$", "a valid HTTP header name"),
        (Some(2), true) => (
            "^[^\\x00-\\x08\\x0A-\\x1F\\x7F]*$",
            "a valid HTTP header value",
        ),
        (Some(2), false) => ("^[^\\x00\\x0A\\x0D]*$", "a valid HTTP header value"),
        (Some(0), _) => return Found::Nothing,
        _ => return Found::Unable(UNKNOWN),
    };
    Found::Check(matches(value, pattern), format!("must be {what}"))
}

fn bytes(name: &str, found: &Value, value: &str) -> Found {
    if let Some(check) = length(name, value, found, "bytes") {
        return check;
    }
    let sizes = |sizes: &[u32], what: &str| {
        let any = sizes.iter().map(|size| format!("size({value}) == {size}"));
        Found::Check(
            any.collect::<Vec<_>>().join(" || "),
            format!("must be {what}"),
        )
    };
    match (name, found) {
        ("in" | "not_in", _) => among(name, found, value),
        ("const", Value::Bytes(_)) => equal(value, &constant(found).unwrap_or_default()),
        ("example", _) | (_, Value::Bool(false)) => Found::Nothing,
        ("ip", _) => sizes(&[4, 16], "an IP address"),
        ("ipv4", _) => sizes(&[4], "an IPv4 address"),
        ("ipv6", _) => sizes(&[16], "an IPv6 address"),
        ("uuid", _) => sizes(&[16], "a UUID"),
        _ => Found::Unable("rules have no such function of bytes"),
    }
}
