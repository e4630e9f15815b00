//! The repository's policies, built once per test run with the profile that authors use.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use tollgate_policy_host::{Host, HostConfig, Policy, Setup, TenantLimits};

/// One small pool for all tests of the process.
pub(crate) static HOST: LazyLock<Host> = LazyLock::new(|| {
    Host::new(HostConfig {
        instances: 200,
        ..HostConfig::default()
    })
    .unwrap()
});

static ARTIFACTS: LazyLock<PathBuf> = LazyLock::new(|| {
    let target_dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("guests");
    let output = Command::new(env!("CARGO"))
        .args([
            "build",
            "--profile",
            "policy",
            "--target",
            "wasm32-unknown-unknown",
        ])
        .args([
            "-p",
            "policy-null",
            "-p",
            "policy-hotel-acl",
            "-p",
            "policy-spin",
        ])
        .arg("--target-dir")
        .arg(&target_dir)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    target_dir.join("wasm32-unknown-unknown/policy")
});

/// A policy's module, by its library's name.
pub(crate) fn guest(name: &str) -> Policy {
    HOST.load(&guest_bytes(name)).unwrap()
}

pub(crate) fn guest_bytes(name: &str) -> Vec<u8> {
    std::fs::read(ARTIFACTS.join(name).with_extension("wasm")).unwrap()
}

pub(crate) fn limits() -> TenantLimits {
    TenantLimits::default()
}

pub(crate) fn setup<'a>(limits: &'a TenantLimits, config: Option<&'a [u8]>) -> Setup<'a> {
    Setup {
        config,
        ..Setup::new(limits)
    }
}

/// The view of string fields, implemented here again as an independent check of host and SDK
/// against the ABI's page.
pub(crate) fn view(fields: &[&str]) -> Vec<u8> {
    let fixed = 8 + 16 * fields.len();
    let total = fixed + fields.iter().map(|f| f.len()).sum::<usize>();
    let mut view = Vec::new();
    view.extend((total as u32).to_le_bytes());
    view.extend((fields.len() as u32).to_le_bytes());
    let mut at = fixed as u64;
    for field in fields {
        view.extend(1u32.to_le_bytes());
        view.extend((field.len() as u32).to_le_bytes());
        view.extend(at.to_le_bytes());
        at += field.len() as u64;
    }
    fields.iter().for_each(|f| view.extend(f.as_bytes()));
    view
}

/// Makes `program` this script. A shell writes it: a process that another test starts meanwhile
/// would inherit this process's open file, and the kernel starts no program that somebody may still
/// write.
pub(crate) fn executable(program: &Path, script: &str) {
    let written = Command::new("sh")
        .args(["-c", r#"printf %s "$1" >"$0" && chmod 755 "$0""#])
        .arg(program)
        .arg(script)
        .status();
    assert!(written.unwrap().success());
}

/// A writer of these bytes.
pub(crate) fn write(bytes: &[u8]) -> impl FnOnce(&mut [u8]) -> Result<usize, Infallible> {
    move |room| {
        room[..bytes.len()].copy_from_slice(bytes);
        Ok(bytes.len())
    }
}
