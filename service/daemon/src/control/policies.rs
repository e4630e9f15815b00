//! Attachments in force: which instance judges which method of which application, and how that changes while calls flow.
//!
//! ```text
//!   attach:  load (compile) → check against every known schema → instantiate, configure → store → one command to the
//!            tenant's runtime: install, chains, remove the old version → answered when it is in force
//!   fault:   the runtime refuses the calls → a pause that grows → a fresh instance
//! ```
//!
//! Invariant: what can fail comes before the store is changed, so a refused attach leaves everything as it was.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use tollgate_control::{Attachment, PolicyVersion, Side, Target};
use tollgate_engine::chain::{OnFault, Party};
use tollgate_engine::slots::Slots;
use tollgate_engine::{ServiceId, SessionId, Status};
use tollgate_jit::Projector;
use tollgate_marshal::{Patch, ProjectError};
use tollgate_policy_host::{Hook, Policy};
use tollgate_schema::MessageId;
use tollgate_shm_abi::status::Code;

use crate::control::schemas::BoundSchema;
use crate::datapath::command::{
    Ask, How, Installed, LazyProjector, MethodSteps, Patcher, Place, Running, Scope, Step,
};
use crate::limits::{COMPILED_POLICIES, FAULT_MEMORY, RELOAD_PAUSE};

/// What one attachment runs.
pub(crate) struct Live {
    pub(crate) attachment: Attachment,
    /// `None`: it couldn't be loaded at start-up; its calls are refused.
    pub(crate) policy: Option<Policy>,
    pub(crate) config: Option<Vec<u8>>,
    faults_in_a_row: u32,
    last_fault: Option<Instant>,
}

impl Live {
    pub(crate) fn new(
        attachment: Attachment,
        policy: Option<Policy>,
        config: Option<Vec<u8>>,
    ) -> Self {
        Self {
            attachment,
            policy,
            config,
            faults_in_a_row: 0,
            last_fault: None,
        }
    }

    /// `acl of tenant acme`.
    pub(crate) fn label(&self) -> String {
        format!(
            "{} of tenant {}",
            self.attachment.policy.name, self.attachment.target.tenant
        )
    }

    /// What a runtime is told: this version is in force.
    pub(crate) fn installed(&self, id: u32, how: How) -> Installed {
        Installed {
            id,
            label: self.label(),
            party: Party::Tenant,
            account: self.attachment.target.tenant.as_str().into(),
            on_fault: OnFault::Reload,
            max_worse: 0,
            stable: Place::Put(Running {
                version: self.attachment.policy.version,
                how,
                inherit: false,
            }),
            candidate: Place::Empty,
            trial: None,
            record: 0,
        }
    }

    /// Notes a fault; returns how long to wait before the next instance.
    pub(crate) fn faulted(&mut self) -> std::time::Duration {
        let recent = self
            .last_fault
            .is_some_and(|at| at.elapsed() < FAULT_MEMORY);
        self.faults_in_a_row = if recent {
            (self.faults_in_a_row + 1).min(16)
        } else {
            0
        };
        self.last_fault = Some(Instant::now());
        let (first, longest) = RELOAD_PAUSE;
        (first * (1 << self.faults_in_a_row)).min(longest)
    }
}

/// A binding that chains are for.
pub(crate) struct LiveBinding {
    pub(crate) runtime: usize,
    pub(crate) session: SessionId,
    pub(crate) tenant: String,
    pub(crate) schema: Arc<BoundSchema>,
    pub(crate) first_handle: u32,
    /// For servers.
    pub(crate) service: Option<ServiceId>,
}

impl LiveBinding {
    fn side(&self) -> Side {
        if self.service.is_some() {
            Side::Server
        } else {
            Side::Client
        }
    }

    fn scope(&self, method: u16) -> Scope {
        match self.service {
            Some(service) => Scope::Server { service, method },
            None => Scope::Client {
                session: self.session,
                handle: self.first_handle + u32::from(method),
            },
        }
    }
}

/// All attachments in force, and the bindings that they apply to.
#[derive(Default)]
pub(crate) struct Attachments {
    pub(crate) live: Slots<Live>,
    pub(crate) bindings: Vec<LiveBinding>,
    /// Rises with every change, so that a binding made meanwhile notices.
    pub(crate) generation: u64,
    compiled: VecDeque<([u8; 32], Policy)>,
}

impl Attachments {
    /// The installed id of an attachment's place: same target, same policy name.
    pub(crate) fn id_at(&self, target: &Target, name: &str) -> Option<u32> {
        let same =
            |live: &Live| live.attachment.target == *target && live.attachment.policy.name == name;
        self.live
            .iter()
            .find(|(_, live)| same(live))
            .map(|(id, _)| id)
    }

    /// The chains of every method of a service, for one side of one tenant.
    pub(crate) fn chains_for(
        &self,
        order: &[Attachment],
        tenant: &str,
        schema: &BoundSchema,
        side: Side,
    ) -> Result<Vec<MethodSteps>, Status> {
        let methods = schema.layout.methods.iter();
        methods
            .map(|method| self.chain_for(order, tenant, schema, &method.name, side))
            .collect()
    }

    fn chain_for(
        &self,
        order: &[Attachment],
        tenant: &str,
        schema: &BoundSchema,
        method: &str,
        side: Side,
    ) -> Result<MethodSteps, Status> {
        let mut chain = MethodSteps::default();
        for attachment in order {
            if !covers(
                &attachment.target,
                tenant,
                &schema.layout.name,
                method,
                side,
            ) {
                continue;
            }
            let Some(id) = self.id_at(&attachment.target, &attachment.policy.name) else {
                continue;
            };
            let Some(live) = self.live.get(id) else {
                continue;
            };
            let steps = match &live.policy {
                Some(policy) => steps_of(id, policy, &attachment.policy, schema, method)?,
                None => refuse_all(id, schema, method)?,
            };
            chain.request.extend(steps.request);
            chain.reply.extend(steps.reply);
        }
        Ok(chain)
    }

    /// The changed chains of every binding that `target` covers.
    pub(crate) fn changed_chains(
        &self,
        order: &[Attachment],
        target: &Target,
        runtime: usize,
    ) -> Result<Vec<(Scope, MethodSteps)>, Status> {
        let mut changed = Vec::new();
        for binding in self
            .bindings
            .iter()
            .filter(|binding| binding.runtime == runtime)
        {
            for (method, k) in binding.schema.layout.methods.iter().zip(0u16..) {
                if covers(
                    target,
                    &binding.tenant,
                    &binding.schema.layout.name,
                    &method.name,
                    binding.side(),
                ) {
                    let steps = self.chain_for(
                        order,
                        &binding.tenant,
                        &binding.schema,
                        &method.name,
                        binding.side(),
                    )?;
                    changed.push((binding.scope(k), steps));
                }
            }
        }
        Ok(changed)
    }

    /// The chains of one binding, all methods.
    pub(crate) fn rebound(
        &self,
        order: &[Attachment],
        binding: &LiveBinding,
    ) -> Result<Vec<(Scope, MethodSteps)>, Status> {
        let chains = self.chains_for(order, &binding.tenant, &binding.schema, binding.side())?;
        Ok(chains
            .into_iter()
            .zip(0u16..)
            .map(|(steps, k)| (binding.scope(k), steps))
            .collect())
    }

    /// A compiled module, if it was used lately.
    pub(crate) fn compiled(&self, digest: &[u8; 32]) -> Option<Policy> {
        self.compiled
            .iter()
            .find(|(known, _)| known == digest)
            .map(|(_, policy)| policy.clone())
    }

    pub(crate) fn remember(&mut self, digest: [u8; 32], policy: Policy) {
        if self.compiled(&digest).is_none() {
            self.compiled.push_back((digest, policy));
            if self.compiled.len() > COMPILED_POLICIES {
                self.compiled.pop_front();
            }
        }
    }
}

/// Whether an attachment applies to calls of a method.
fn covers(target: &Target, tenant: &str, service: &str, method: &str, side: Side) -> bool {
    target.tenant == tenant
        && target.service == service
        && target.side == side
        && (target.method.is_empty() || target.method == method)
}

/// What `policy` does about one method: a step per hook that it has.
pub(crate) fn steps_of(
    id: u32,
    policy: &Policy,
    version: &PolicyVersion,
    schema: &BoundSchema,
    method: &str,
) -> Result<MethodSteps, Status> {
    let manifest = policy.manifest();
    let mut steps = MethodSteps::default();
    let Some(index) = manifest.method_index(&schema.layout.name, method) else {
        return Ok(steps);
    };
    let Some(layout) = schema.layout.methods.iter().find(|m| m.name == method) else {
        return Ok(steps);
    };
    for &hook in manifest.hooks() {
        let (message, place) = match hook {
            Hook::Request => (layout.input, &mut steps.request),
            Hook::Reply => (layout.output, &mut steps.reply),
        };
        let entry = &manifest.methods()[index as usize];
        let layouts = &schema.layout.layouts;
        let unfit = |error: ProjectError| {
            let text = format!(
                "policy {version} doesn't fit the schema of {}/{method}: {error}",
                schema.layout.name
            );
            Status::new(Code::FAILED_PRECONDITION, text)
        };
        let projector = Projector::new(layouts, message, entry.fields(hook)).map_err(unfit)?;
        let patch = match entry.changes(hook) {
            [] => None,
            changes => {
                let patch = Patch::new(layouts, message, changes).map_err(unfit)?;
                let layouts = Arc::clone(layouts);
                Some(Arc::new(Patcher { patch, layouts }))
            }
        };
        let label = format!(
            "what policy {version} reads of {}/{method}",
            schema.layout.name
        );
        place.push(Step {
            policy: id,
            stable: Some(Ask {
                method: index,
                projector: Arc::new(LazyProjector::new(projector, label, &schema.compiler)),
                patch,
            }),
            candidate: None,
        });
    }
    Ok(steps)
}

/// A policy that couldn't be loaded refuses every call: fail closed.
fn refuse_all(id: u32, schema: &BoundSchema, method: &str) -> Result<MethodSteps, Status> {
    let layout = schema.layout.methods.iter().find(|m| m.name == method);
    let message = layout.map_or(MessageId(0), |layout| layout.input);
    let nothing: [&str; 0] = [];
    let projector = Projector::new(&schema.layout.layouts, message, &nothing)
        .map_err(|error| Status::new(Code::INTERNAL, error.to_string()))?;
    let label = format!(
        "what a lost policy reads of {}/{method}",
        schema.layout.name
    );
    let request = vec![Step {
        policy: id,
        stable: Some(Ask {
            method: 0,
            projector: Arc::new(LazyProjector::new(projector, label, &schema.compiler)),
            patch: None,
        }),
        candidate: None,
    }];
    Ok(MethodSteps {
        request,
        reply: Vec::new(),
    })
}

/// Whether the policy has anything to say about the target, by its manifest; otherwise why not.
pub(crate) fn check_relevant(
    policy: &Policy,
    version: &PolicyVersion,
    target: &Target,
) -> Result<(), Status> {
    let manifest = policy.manifest();
    let of_service = |pattern: &str| {
        pattern == "*"
            || pattern
                .rsplit_once('/')
                .is_some_and(|(service, _)| service == target.service)
    };
    let relevant = if target.method.is_empty() {
        manifest
            .methods()
            .iter()
            .any(|method| of_service(method.pattern()))
    } else {
        manifest
            .method_index(&target.service, &target.method)
            .is_some()
    };
    if relevant {
        return Ok(());
    }
    let patterns: Vec<&str> = manifest
        .methods()
        .iter()
        .map(|method| method.pattern())
        .collect();
    let what = if target.method.is_empty() {
        target.service.clone()
    } else {
        format!("{}/{}", target.service, target.method)
    };
    let text = format!(
        "policy {version} is for {}, not for {what}",
        patterns.join(", ")
    );
    Err(Status::new(Code::INVALID_ARGUMENT, text))
}

/// Live attachments by what they say, for `policy list` and status.
pub(crate) fn by_policy(order: &[Attachment]) -> HashMap<(String, PolicyVersion), Vec<Target>> {
    let mut map: HashMap<_, Vec<Target>> = HashMap::new();
    for attachment in order {
        let key = (attachment.target.tenant.clone(), attachment.policy.clone());
        map.entry(key).or_default().push(attachment.target.clone());
    }
    map
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn pauses_between_instances_double_up_to_the_limit() {
        let target = Target {
            tenant: "evil".to_owned(),
            service: "hotel.Reservation".to_owned(),
            method: String::new(),
            side: Side::Client,
        };
        let policy = PolicyVersion {
            name: "spin".to_owned(),
            version: 1,
        };
        let mut live = Live::new(Attachment { target, policy }, None, None);
        assert_eq!(live.label(), "spin of tenant evil");
        let pauses: Vec<u128> = (0..9).map(|_| live.faulted().as_millis()).collect();
        assert_eq!(pauses, [10, 20, 40, 80, 160, 320, 640, 1000, 1000]);
        live.last_fault = Instant::now().checked_sub(FAULT_MEMORY + Duration::from_secs(1));
        assert_eq!(
            live.faulted(),
            RELOAD_PAUSE.0,
            "forgiven after {FAULT_MEMORY:?} without a fault"
        );
    }

    #[test]
    fn an_attachment_covers_its_method_or_all_of_its_side() {
        let target = |method: &str| Target {
            tenant: "acme".to_owned(),
            service: "hotel.Reservation".to_owned(),
            method: method.to_owned(),
            side: Side::Client,
        };
        let reserve = |target: &Target, tenant, side| {
            covers(target, tenant, "hotel.Reservation", "Reserve", side)
        };
        assert!(reserve(&target(""), "acme", Side::Client));
        assert!(reserve(&target("Reserve"), "acme", Side::Client));
        assert!(!reserve(&target("Cancel"), "acme", Side::Client));
        assert!(
            !reserve(&target(""), "evil", Side::Client),
            "another tenant's calls"
        );
        assert!(
            !reserve(&target(""), "acme", Side::Server),
            "the other side"
        );
    }
}
