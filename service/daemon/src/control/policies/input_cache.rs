//! Cached inputs of policy versions, kept from one chain to the next.
//!
//! A chain is rebuilt on every change that covers its method, mostly with the versions that it had
//! before. A version's input follows from the schema, the version and the grants of its attachment;
//! so the input and its machine code are made once. Without this cache, a change to a service of a
//! dozen methods took milliseconds.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use tollgate_control::{Attachment, Owner};
use tollgate_engine::Status;
use tollgate_policy_host::Hook;

use crate::control::policies::model::{Loaded, Version};
use crate::limits::{CACHED_INPUTS, CACHED_INPUTS_PER_OWNER};
use tollgate_policy_chain::ids::VersionNumber;
use tollgate_policy_chain::plan::PolicyInput;

/// The sources of an input. Module and configuration are part of the key: a tenant that was removed
/// and added again numbers its versions from the beginning.
struct Key {
    schema: [u8; 32],
    owner: Owner,
    policy: String,
    version: VersionNumber,
    module: [u8; 32],
    config: Option<Arc<[u8]>>,
    hooks: Option<Vec<String>>,
    fields: Option<Vec<String>>,
    metadata: Option<Vec<String>>,
}

impl Key {
    pub(crate) fn new(
        attachment: &Attachment,
        version: VersionNumber,
        loaded: &Loaded,
        schema: &[u8; 32],
    ) -> Key {
        let options = &attachment.options;
        Key {
            schema: *schema,
            owner: attachment.target.owner(),
            policy: attachment.policy.clone(),
            version,
            module: *loaded.policy.digest(),
            config: loaded.config.clone(),
            hooks: options.hooks.clone(),
            fields: options.fields.clone(),
            metadata: options.metadata.clone(),
        }
    }

    fn is_of(
        &self,
        attachment: &Attachment,
        version: VersionNumber,
        loaded: &Loaded,
        schema: &[u8; 32],
    ) -> bool {
        let options = &attachment.options;
        // The fields that most often differ come first.
        self.version == version
            && self.policy == attachment.policy
            && self.module == *loaded.policy.digest()
            && self.schema == *schema
            && self.owner == attachment.target.owner()
            && self.config == loaded.config
            && self.hooks == options.hooks
            && self.fields == options.fields
            && self.metadata == options.metadata
    }
}

/// Inputs for a method's request and reply. `None`: not known yet; `Some(None)`: the policy isn't
/// evaluated there.
type Known = [Option<Option<PolicyInput>>; 2];

/// Inputs by method, for at most [`CACHED_INPUTS`] versions; the oldest entry is dropped first.
#[derive(Default)]
pub(crate) struct InputCache(RefCell<VecDeque<(Key, HashMap<String, Known>)>>);

impl InputCache {
    /// The cached input, or the result of `work_out`, which is then cached.
    pub(crate) fn of(
        &self,
        (attachment, version): (&Attachment, &Version),
        (schema, method): (&[u8; 32], &str),
        hook: Hook,
        work_out: impl FnOnce() -> Result<Option<PolicyInput>, Status>,
    ) -> Result<Option<PolicyInput>, Status> {
        let Ok(loaded) = &version.loaded else {
            return work_out();
        };
        let number = version.number;
        let is_its = |key: &Key| key.is_of(attachment, number, loaded, schema);
        let mut kept = self.0.borrow_mut();
        let at = kept.iter().position(|(key, _)| is_its(key));
        let known = at.and_then(|at| kept[at].1.get(method)?[hook as usize].clone());
        if let Some(known) = known {
            return Ok(known);
        }
        let input = work_out()?;
        let at = at.unwrap_or_else(|| {
            // An owner with many entries evicts its own.
            let owner = attachment.target.owner();
            let is_its = |(key, _): &(Key, _)| key.owner == owner;
            let its = kept.iter().filter(|kept| is_its(kept)).count();
            if its >= CACHED_INPUTS_PER_OWNER {
                let at = kept.iter().position(is_its);
                at.and_then(|at| kept.remove(at));
            } else if kept.len() >= CACHED_INPUTS {
                kept.pop_front();
            }
            kept.push_back((Key::new(attachment, number, loaded, schema), HashMap::new()));
            kept.len() - 1
        });
        let methods = &mut kept[at].1;
        methods.entry(method.to_owned()).or_default()[hook as usize] = Some(input.clone());
        Ok(input)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use tollgate_control::{Options, Party, Side, Slot, Target};
    use tollgate_policy_host::{Host, HostConfig};

    use super::*;

    const SCHEMA: [u8; 32] = [7; 32];

    fn attachment() -> Attachment {
        Attachment {
            target: Target {
                party: Party::Tenant,
                tenant: "t".into(),
                service: "p.S".into(),
                method: String::new(),
                side: Side::Client,
            },
            policy: "p".to_owned(),
            slot: Slot::enforcing(1),
            options: Options::default(),
        }
    }

    fn version(number: VersionNumber) -> Version {
        let manifest = r#"{"abi":1,"name":"p","hooks":["request"],"methods":[{"method":"p.S/*"}]}"#;
        let text = format!(
            r#"(module (memory (export "memory") 1) (func (export "tollgate_abi_v1"))
              (func (export "tollgate_buffer") (param i32) (result i32) (i32.const 8))
              (func (export "tollgate_configure") (param i32) (result i32) (i32.const 0))
              (func (export "tollgate_request") (param i32) (result i32) (i32.const 0))
              (@custom "tollgate.manifest" {manifest:?}))"#
        );
        let host = Host::new(HostConfig::default()).unwrap();
        let policy = host.load(&wat::parse_str(text).unwrap()).unwrap();
        let config = None;
        Version {
            number,
            loaded: Ok(Loaded { policy, config }),
        }
    }

    /// Whether the input is missing in the cache.
    fn is_news(
        inputs: &InputCache,
        of: (&Attachment, &Version),
        schema: &[u8; 32],
        hook: Hook,
    ) -> bool {
        let mut news = false;
        let work_out = || {
            news = true;
            Ok(None)
        };
        assert!(inputs.of(of, (schema, "m"), hook, work_out).is_ok());
        news
    }

    #[test]
    fn what_a_version_is_shown_is_worked_out_once_for_all_that_it_follows_from() {
        let (inputs, attachment, version) = (
            InputCache::default(),
            attachment(),
            version(VersionNumber(1)),
        );
        let is_news = |attachment: &Attachment, version: &Version, schema, hook| {
            is_news(&inputs, (attachment, version), schema, hook)
        };
        for is_first in [true, false] {
            assert_eq!(
                is_news(&attachment, &version, &SCHEMA, Hook::Request),
                is_first
            );
            assert_eq!(
                is_news(&attachment, &version, &SCHEMA, Hook::Reply),
                is_first
            );
        }
        assert!(is_news(&attachment, &version, &[8; 32], Hook::Request));
        let mut other = attachment.clone();
        other.options.fields = Some(vec!["a".to_owned()]);
        assert!(is_news(&other, &version, &SCHEMA, Hook::Request));
        let mut other = attachment.clone();
        other.target.tenant = "u".into();
        assert!(is_news(&other, &version, &SCHEMA, Hook::Request));
        let mut other = version.clone();
        other.loaded.as_mut().unwrap().config = Some(Arc::from(*b"c"));
        assert!(is_news(&attachment, &other, &SCHEMA, Hook::Request));
        other.loaded = Err("it can't run".to_owned());
        for _ in 0..2 {
            assert!(is_news(&attachment, &other, &SCHEMA, Hook::Request));
        }
        assert!(!is_news(&attachment, &version, &SCHEMA, Hook::Request));
    }

    #[test]
    fn the_oldest_is_forgotten_when_there_are_too_many() {
        let (inputs, mut attachment, mut version) = (
            InputCache::default(),
            attachment(),
            version(VersionNumber(0)),
        );
        // An owner's entries don't evict those of another one.
        attachment.target.tenant = "other".into();
        assert!(is_news(
            &inputs,
            (&attachment, &version),
            &SCHEMA,
            Hook::Request
        ));
        attachment.target.tenant = "t".into();
        for number in 0..=CACHED_INPUTS_PER_OWNER as u32 {
            version.number = VersionNumber(number);
            assert!(is_news(
                &inputs,
                (&attachment, &version),
                &SCHEMA,
                Hook::Request
            ));
        }
        version.number = VersionNumber(1);
        assert!(!is_news(
            &inputs,
            (&attachment, &version),
            &SCHEMA,
            Hook::Request
        ));
        version.number = VersionNumber(0);
        assert!(is_news(
            &inputs,
            (&attachment, &version),
            &SCHEMA,
            Hook::Request
        ));
        attachment.target.tenant = "other".into();
        version.number = VersionNumber(0);
        let is_news = |attachment: &Attachment| {
            is_news(&inputs, (attachment, &version), &SCHEMA, Hook::Request)
        };
        assert!(!is_news(&attachment));
        for k in 0..CACHED_INPUTS {
            attachment.target.tenant = format!("t{k}").as_str().into();
            assert!(is_news(&attachment));
        }
        assert_eq!(inputs.0.borrow().len(), CACHED_INPUTS);
    }
}
