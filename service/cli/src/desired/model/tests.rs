//! The JSON schema against the types: serde tells which keys and values a type has.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::*;

/// The names in backticks after `expected`.
fn expected(error: &str) -> BTreeSet<String> {
    let names = error.split_once("expected").unwrap().1;
    let names = names.split('`').skip(1).step_by(2);
    names.map(str::to_owned).collect()
}

/// The keys of a type.
fn keys<T: DeserializeOwned>() -> BTreeSet<String> {
    let error = serde_json::from_value::<T>(json!({"?": 0})).err().unwrap();
    expected(&error.to_string())
}

/// The values of an enumeration.
fn values<T: DeserializeOwned>() -> BTreeSet<String> {
    let error = serde_json::from_value::<T>(json!("?")).err().unwrap();
    expected(&error.to_string())
}

/// The keys that a type can't do without.
fn required<T: DeserializeOwned>() -> BTreeSet<String> {
    let mut object = json!({});
    let mut needed = BTreeSet::new();
    while let Err(error) = serde_json::from_value::<T>(object.clone()) {
        let error = error.to_string();
        let key = error.strip_prefix("missing field `").unwrap();
        let key = key.strip_suffix('`').unwrap().to_owned();
        object[&key] = match &*key {
            "role" => json!("owner"),
            "mode" => json!("shadow"),
            "side" => json!("client"),
            _ => json!("x"),
        };
        needed.insert(key);
    }
    needed
}

#[test]
fn the_schema_has_the_keys_and_values_of_the_types() {
    let schema: Value = serde_json::from_str(SCHEMA).unwrap();
    let names = |of: &Value| -> BTreeSet<String> {
        of["properties"]
            .as_object()
            .unwrap()
            .keys()
            .cloned()
            .collect()
    };
    let of = |name: &str| &schema["$defs"][name];
    assert_eq!(names(&schema), keys::<Document>());
    assert_eq!(names(of("Tenant")), keys::<Tenant>());
    assert_eq!(names(of("Credential")), keys::<Credential>());
    assert_eq!(names(of("Policy")), keys::<Policy>());
    assert_eq!(names(of("Attachment")), keys::<Attachment>());
    assert_eq!(names(of("Trial")), keys::<Trial>());
    let consts = |name: &str| -> BTreeSet<String> {
        let all = of(name)["oneOf"].as_array().unwrap().iter();
        all.map(|one| one["const"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(consts("Role"), values::<Role>());
    assert_eq!(consts("Mode"), values::<Mode>());
    assert_eq!(consts("Side"), values::<Side>());
    assert_eq!(consts("Part"), values::<Part>());
    assert_eq!(consts("OnFault"), values::<OnFault>());
    assert_eq!(consts("Isolation"), values::<Isolation>());
    for (name, needed) in [
        ("Tenant", required::<Tenant>()),
        ("Credential", required::<Credential>()),
        ("Policy", required::<Policy>()),
        ("Attachment", required::<Attachment>()),
        ("Trial", required::<Trial>()),
    ] {
        let demanded = of(name)["required"].as_array().unwrap().iter();
        let demanded = demanded.map(|key| key.as_str().unwrap().to_owned());
        assert_eq!(needed, demanded.collect(), "{name}");
    }
    // Everything has a description, and every reference leads somewhere.
    for (_, definition) in schema["$defs"].as_object().unwrap() {
        assert!(definition["description"].is_string(), "{definition}");
    }
    for reference in SCHEMA.split("\"#/$defs/").skip(1) {
        let name = reference.split('"').next().unwrap();
        assert!(of(name).is_object(), "{name}");
    }
}

#[test]
fn the_book_has_the_schema() {
    let page = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../docs/src/reference/documents.schema.json"
    );
    if std::env::var_os("TOLLGATE_BLESS").is_some() {
        return std::fs::write(page, SCHEMA).unwrap();
    }
    assert!(
        std::fs::read_to_string(page).unwrap() == SCHEMA,
        "bless {page}"
    );
}

#[test]
fn values_have_one_text() {
    for (value, text) in [
        (json!(true), "true"),
        (json!(7), "7"),
        (json!(0.5), "0.5"),
        (json!("a,b"), "a,b"),
        (json!([0, 1]), "0,1"),
        (json!([]), "none"),
    ] {
        let scalar: Scalar = serde_json::from_value(value).unwrap();
        assert_eq!(scalar.text(), text);
    }
    assert_eq!(Scalar::of("07"), Scalar::Text("07".to_owned()));
    assert_eq!(Scalar::of("-7"), Scalar::Integer(-7));
}
