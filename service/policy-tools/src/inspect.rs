//! Describes a module without running it.

use std::fmt;
use std::time::{Duration, Instant};

use serde_json::json;
use tollgate_policy_host::{Capabilities, FieldItem, FieldTypes, Hook, Host, HostConfig, Policy};
use tollgate_shm_abi::text::escape;

use crate::{ToolError, limits};

/// A loaded module.
#[derive(Debug)]
pub struct Module {
    policy: Policy,
    compile: Duration,
}

impl Module {
    /// Scans and compiles a module exactly like a daemon.
    pub fn load(wasm: &[u8]) -> Result<Module, ToolError> {
        let config = HostConfig {
            instances: limits::INSTANCES,
            ..HostConfig::default()
        };
        let host = Host::new(config).map_err(ToolError::internal)?;
        let start = Instant::now();
        let policy = host.load(wasm)?;
        Ok(Module {
            policy,
            compile: start.elapsed(),
        })
    }

    /// The policy.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The JSON form.
    pub fn to_json(&self) -> serde_json::Value {
        let (policy, manifest) = (&self.policy, self.policy.manifest());
        let hooks = manifest.hooks().iter().map(|hook| hook.name());
        let methods = manifest.methods().iter().map(|method| {
            json!({
                "method": method.pattern(),
                "fields": method.field_items(Hook::Request),
                "reply_fields": method.field_items(Hook::Reply),
                "changes": method.change_items(Hook::Request),
                "reply_changes": method.change_items(Hook::Reply),
                "metadata": method.metadata(Hook::Request),
                "reply_metadata": method.metadata(Hook::Reply),
                "metadata_changes": method.metadata_changes(Hook::Request),
                "reply_metadata_changes": method.metadata_changes(Hook::Reply),
            })
        });
        json!({
            "name": manifest.name(),
            "version": manifest.version(),
            "digest": hex(policy.digest()),
            "hooks": hooks.collect::<Vec<_>>(),
            "methods": methods.collect::<Vec<_>>(),
            "capabilities": self.capabilities(),
            "imports": policy.imports(),
            "wasi": manifest.has_wasi(),
            "counters": manifest.counters(),
            "gauges": manifest.gauges(),
            "histograms": manifest.histograms(),
            "state_version": manifest.state_version(),
            "tick_ms": manifest.tick().map(|tick| tick.as_millis()),
            "module_bytes": policy.wasm_bytes(),
            "code_bytes": policy.code_bytes(),
            "compile_us": self.compile.as_micros(),
        })
    }

    fn capabilities(&self) -> Vec<&'static str> {
        let granted = Capabilities::ALWAYS | self.policy.manifest().capabilities();
        granted.names().collect()
    }
}

impl fmt::Display for Module {
    /// One line per fact.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (policy, manifest) = (&self.policy, self.policy.manifest());
        let list = |items: &[&str]| match items {
            [] => "none".to_owned(),
            items => items.join(", "),
        };
        let strings =
            |items: &[String]| list(&items.iter().map(String::as_str).collect::<Vec<_>>());
        let hooks: Vec<_> = manifest.hooks().iter().map(|hook| hook.name()).collect();
        let imports: Vec<_> = policy.imports();
        let mut line = |what: &str, text: String| writeln!(f, "{what:13} {}", escape(&text));
        let version = manifest
            .version()
            .map_or(String::new(), |v| format!(" {v:?}"));
        line("policy", format!("{}{version}", manifest.name()))?;
        line("sha256", hex(policy.digest()))?;
        line("hooks", list(&hooks))?;
        for method in manifest.methods() {
            line("method", method.pattern().to_owned())?;
            for hook in [Hook::Request, Hook::Reply] {
                for (does, items) in [
                    ("reads of", method.field_items(hook)),
                    ("changes in", method.change_items(hook)),
                ] {
                    let items: Vec<_> = items.iter().map(item).collect();
                    if !items.is_empty() {
                        line("", format!("{does} the {hook}: {}", strings(&items)))?;
                    }
                }
                for (does, keys) in [
                    ("reads", method.metadata(hook)),
                    ("changes", method.metadata_changes(hook)),
                ] {
                    let keys = match keys {
                        [] => continue,
                        [key] if key == "*" => "the keys that its configuration lists".to_owned(),
                        keys => strings(keys),
                    };
                    line("", format!("{does} in the {hook}'s metadata: {keys}"))?;
                }
            }
        }
        line("capabilities", list(&self.capabilities()))?;
        line("imports", list(&imports))?;
        for (what, names) in [
            ("counters", manifest.counters()),
            ("gauges", manifest.gauges()),
            ("histograms", manifest.histograms()),
        ] {
            if !names.is_empty() {
                line(what, strings(names))?;
            }
        }
        if let Some(version) = manifest.state_version() {
            line("state", format!("is handed over, version {version}"))?;
        }
        if let Some(tick) = manifest.tick() {
            line("tick", format!("every {} ms", tick.as_millis()))?;
        }
        let (module, artifact) = (policy.wasm_bytes(), policy.code_bytes());
        line("module", format!("{module} bytes"))?;
        let compile = self.compile.as_micros() as f64 / 1e3;
        line(
            "machine code",
            format!("{artifact} bytes, compiled in {compile:.1} ms"),
        )
    }
}

/// An entry of a list of fields.
fn item(item: &FieldItem) -> String {
    match item {
        FieldItem::Path(path) => path.clone(),
        FieldItem::List(list) if list.types == FieldTypes::default() => {
            format!("the fields in its configuration's {:?}", list.config)
        }
        FieldItem::List(list) => {
            let types: Vec<_> = list.types.names().collect();
            let types = types.join(", ");
            format!(
                "the fields in its configuration's {:?} (of type {types})",
                list.config
            )
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
