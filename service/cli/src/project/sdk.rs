//! The libraries for policies, as a project carries them.

use std::path::{Path, PathBuf};

use tollgate_shm_abi::status::Code;
use toml::{Table, Value};

use crate::failure::Failure;
use crate::project::written::File;

pub(crate) const C_HEADER: &str = include_str!("../../../../guest-sdk/c/tollgate_policy.h");

macro_rules! files {
    ($($path:literal from $source:literal),* $(,)?) => {
        &[$(($path, include_str!(concat!("../../../../guest-sdk/", $source)))),*]
    };
}

/// AssemblyScript's, all in one directory.
pub(crate) const ASSEMBLYSCRIPT: &[(&str, &str)] = files! {
    "build.mjs" from "assemblyscript/build.mjs",
    "exports.ts" from "assemblyscript/exports.ts",
    "package.json" from "assemblyscript/package.json",
    "package-lock.json" from "assemblyscript/package-lock.json",
    "tollgate.ts" from "assemblyscript/tollgate.ts",
};

/// Go's: a package of the project's module.
pub(crate) const GO: &[(&str, &str)] = files! {
    "tollgate/answer.go" from "go/tollgate/answer.go",
    "tollgate/call.go" from "go/tollgate/call.go",
    "tollgate/exports.go" from "go/tollgate/exports.go",
    "tollgate/host.go" from "go/tollgate/host.go",
    "tollgate/manifest/main.go" from "go/tollgate/manifest/main.go",
    "tollgate/policy.go" from "go/tollgate/policy.go",
};

/// The sources of the Rust crates.
const RUST: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/rust_sdk.rs"));

/// The crates' manifests, which inherit from the workspace's.
const RUST_MANIFESTS: [(&str, &str); 3] = [
    (
        "tollgate-policy",
        include_str!("../../../../guest-sdk/Cargo.toml"),
    ),
    (
        "tollgate-policy-macros",
        include_str!("../../../../guest-sdk/macros/Cargo.toml"),
    ),
    (
        "tollgate-schema",
        include_str!("../../../../marshal-codegen/schema/Cargo.toml"),
    ),
];
const WORKSPACE: &str = include_str!("../../../../Cargo.toml");

/// The toolchain that the crates are tested with, and the target of policies.
pub(crate) const RUST_TOOLCHAIN: &str = include_str!("../../../../rust-toolchain.toml");

/// The Rust crates below `sdk`.
pub(crate) fn rust() -> Result<Vec<File>, Failure> {
    let sdk = Path::new("sdk");
    let sources = RUST
        .iter()
        .map(|(path, text)| (sdk.join(path), (*text).to_owned()));
    let mut files: Vec<File> = sources.collect();
    for (name, text) in RUST_MANIFESTS {
        let manifest = stand_alone(text).ok_or_else(|| {
            Failure::new(
                Code::INTERNAL,
                format_args!("{name} has no usable Cargo.toml"),
            )
        })?;
        files.push((sdk.join(name).join("Cargo.toml"), manifest));
    }
    Ok(files)
}

/// A manifest without its workspace: values are those of the workspace, other crates of it lie
/// beside it. It has no tests and lints.
fn stand_alone(manifest: &str) -> Option<String> {
    let workspace: Table = WORKSPACE.parse().ok()?;
    let workspace = workspace.get("workspace")?.as_table()?;
    let package_defaults = workspace.get("package")?.as_table()?;
    let dependency_defaults = workspace.get("dependencies")?.as_table()?;
    let mut manifest: Table = manifest.parse().ok()?;
    manifest.remove("lints");
    manifest.remove("dev-dependencies");
    for (key, value) in manifest.get_mut("package")?.as_table_mut()? {
        if is_inherited(value) {
            *value = package_defaults.get(key)?.clone();
        }
    }
    for (name, dependency) in manifest.get_mut("dependencies")?.as_table_mut()? {
        if !is_inherited(dependency) {
            continue;
        }
        let mut inherited = dependency_defaults.get(name)?.clone();
        if let Some(table) = inherited.as_table_mut()
            && let Some(path) = table.get_mut("path")
        {
            let beside: PathBuf = ["..", name].iter().collect();
            *path = Value::String(beside.to_str()?.to_owned());
        }
        *dependency = inherited;
    }
    toml::to_string(&manifest).ok()
}

/// Whether a value is `{ workspace = true }`.
fn is_inherited(value: &Value) -> bool {
    value.get("workspace").and_then(Value::as_bool) == Some(true)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_crates_stand_alone() {
        let files = rust().unwrap();
        let names: Vec<_> = files
            .iter()
            .map(|(path, _)| path.to_str().unwrap())
            .collect();
        for name in [
            "sdk/tollgate-policy/src/lib.rs",
            "sdk/tollgate-policy/README.md",
            "sdk/tollgate-policy-macros/src/expand.rs",
            "sdk/tollgate-schema/src/load/features.proto",
            "sdk/tollgate-schema/LICENSE",
        ] {
            assert!(names.contains(&name), "{name} is missing: {names:?}");
        }
        assert!(names.iter().all(|name| !name.ends_with("tests.rs")));
        let manifests = files
            .iter()
            .filter(|(path, _)| path.ends_with("Cargo.toml"));
        let mut count = 0;
        for (path, text) in manifests {
            let manifest: Table = text.parse().unwrap();
            assert!(!text.contains("workspace"), "{}: {text}", path.display());
            assert!(manifest["package"]["version"].is_str());
            count += 1;
        }
        assert_eq!(count, 3);
    }
}
