//! From a stored version to what can be put into a place: loaded, found fit for that place, instantiated.
//!
//! Nothing here changes anything that is in force.

use std::sync::Arc;
use std::time::Duration;

use tollgate_control::{ALL, Attachment, Owner, PolicyVersion};
use tollgate_engine::Status;
use tollgate_policy_host::{SharedState, TenantLimits};
use tollgate_shm_abi::status::Code;

use crate::control::Control;
use crate::control::admin::invalid;
use crate::control::lifecycle::{Next, refused};
use crate::control::policies::{
    Faults, Live, Loaded, Version, check_grants, check_relevant, granted, steps_of,
};
use crate::datapath::command::{How, Place, Recipe, Running};

impl Control {
    /// A stored version, compiled.
    pub(in crate::control) async fn version(
        &self,
        owner: &Owner,
        name: &str,
        number: u32,
    ) -> Result<Version, Status> {
        let reference = PolicyVersion {
            name: name.to_owned(),
            version: number,
        };
        let stored = self.store.policy(owner, &reference).map_err(refused)?;
        let compiled = self.attachments.borrow().compiled(&stored.digest);
        let policy = match compiled {
            Some(policy) => policy,
            None => self.load(owner, stored.wasm).await?.0,
        };
        let config = stored.config.map(Arc::from);
        Ok(Version {
            number,
            loaded: Ok(Loaded { policy, config }),
        })
    }

    /// A version that may be put where the attachment is: it concerns that place, fits what is known to be called there, and is
    /// granted what it needs.
    pub(super) async fn checked(
        &self,
        attachment: &Attachment,
        number: u32,
    ) -> Result<Version, Status> {
        let Attachment {
            target,
            policy: name,
            options,
            ..
        } = attachment;
        let owner = target.owner();
        self.require_owner(&owner)?;
        let version = self.version(&owner, name, number).await?;
        let Ok(Loaded { policy, .. }) = &version.loaded else {
            return Ok(version);
        };
        let name = format!("{name}@{number}");
        check_relevant(policy, &name, target)?;
        check_grants(policy, &name, options)?;
        let live = Live {
            attachment: attachment.clone(),
            runtime: 0,
            place: 0,
            stable: Some(version.clone()),
            candidate: None,
            fallback: None,
            incarnation: 0,
            faults: Faults::default(),
        };
        for schema in self.schemas.borrow().all() {
            let (service, methods) = (&schema.layout.name, &schema.layout.methods);
            if target.service != ALL && target.service != *service {
                continue;
            }
            if !target.method.is_empty() && !methods.iter().any(|m| m.name == target.method) {
                let text = format!("service {service} has no method {:?}", target.method);
                return Err(invalid(text));
            }
            for known in methods {
                if target.method.is_empty() || known.name == target.method {
                    steps_of(0, &live, schema, known)?;
                }
            }
        }
        Ok(version)
    }

    /// CPU and memory of an instance.
    pub(in crate::control) fn limits_for(&self, cpu_us: Option<u32>) -> TenantLimits {
        let per_call = Duration::from_micros(cpu_us.unwrap_or(self.config.policies.cpu_us).into());
        TenantLimits {
            memory_bytes: self.config.policies.memory_kib as usize * 1024,
            ..TenantLimits::for_cpu(per_call, self.rate)
        }
    }

    /// A version as it is to run: instantiated on a blocking thread, for its set-up is the guest's code.
    pub(super) async fn how(
        &self,
        attachment: &Attachment,
        version: &Version,
    ) -> Result<How, Status> {
        let loaded = match &version.loaded {
            Ok(loaded) => loaded.clone(),
            Err(why) => return Ok(How::Broken(why.clone())),
        };
        let recipe = Recipe {
            policy: loaded.policy,
            limits: self.limits_for(attachment.options.cpu_us),
            config: loaded.config,
            granted: granted(&attachment.options)?,
            state: Some(self.state_of(attachment)),
        };
        let made = tokio::task::spawn_blocking(move || {
            let made = match recipe.is_foreign() {
                false => recipe
                    .instantiate()
                    .map(|instance| How::Kept(Box::new(instance))),
                true => recipe
                    .instantiate_foreign()
                    .map(|instance| How::Foreign(Box::new(instance))),
            };
            made.map(|kept| (kept, recipe))
        });
        let made = made.await.map_err(|error| {
            let text = format!("instantiating the policy failed: {error}");
            Status::new(Code::INTERNAL, text)
        })?;
        let (kept, recipe) = made.map_err(|error| invalid(error.to_string()))?;
        Ok(if attachment.options.fresh {
            How::Fresh(Box::new(recipe))
        } else {
            kept
        })
    }

    pub(super) async fn place(
        &self,
        attachment: &Attachment,
        next: &Next,
    ) -> Result<Place, Status> {
        Ok(match next {
            Next::Keep => Place::Keep,
            Next::Empty => Place::Empty,
            Next::FromCandidate => Place::FromCandidate,
            Next::Put { version, inherit } => Place::Put(Running {
                version: version.number,
                how: self.how(attachment, version).await?,
                inherit: *inherit,
            }),
        })
    }

    fn state_of(&self, attachment: &Attachment) -> SharedState {
        let owner = attachment.target.owner();
        let mut attachments = self.attachments.borrow_mut();
        attachments.state_of(owner, &attachment.policy)
    }
}
