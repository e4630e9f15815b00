//! Desired state in the API's words, in both directions. What comes in is anybody's: whose objects
//! a caller may name is checked here, and each object is there once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tollgate_admin::proto;
use tollgate_admin::{ApplyOrder, Status, proto::content_reference};
use tollgate_control::audit::Actor;
use tollgate_control::{
    ALL, Attachment, Candidate, DocumentSet, Hashed, Isolation, OnFault, Options, Owner, Party,
    PolicyInfo, Side, Snapshot, Target, TokenDigest, Trial, WantedCredential,
};
use tollgate_shm_abi::status::Code;

use crate::control::api::words::{
    duration, invalid, one_side, options, or_all, party, refused, role, trial as kind_of,
};
use crate::control::operators::desired::{
    Action, Content, ObjectChange, Wanted, WantedAttachment, WantedPolicy, WantedTrial,
    WantedVersion,
};
use crate::control::operators::pushing::read_proof;
use crate::control::operators::visitor::role_of;
use crate::control::refusals::store_failed;
use crate::limits::MAX_PROBATION;

type Result<T> = std::result::Result<T, Status>;

/// The name of a set that isn't named.
const DEFAULT_SET: &str = "default";

/// What documents want, if the caller may want it. The contents are hashed on a blocking thread:
/// there may be 64 MiB of them.
pub(super) async fn wanted(mut order: ApplyOrder, actor: &Actor) -> Result<Wanted> {
    let contents = std::mem::take(&mut order.contents).into_iter();
    let hashed = tokio::task::spawn_blocking(move || {
        let contents = contents.map(|(number, bytes)| (number, Content::Bytes(Hashed::of(bytes))));
        contents.collect()
    });
    let hashed = hashed.await.map_err(|error| {
        let text = format!("hashing the contents failed: {error}");
        Status::new(Code::INTERNAL, text)
    })?;
    wanted_of(order, hashed, actor)
}

fn wanted_of(order: ApplyOrder, contents: BTreeMap<u32, Content>, actor: &Actor) -> Result<Wanted> {
    let ApplyOrder { header, state, .. } = order;
    let by = match actor {
        Actor::Credential { tenant, .. } => Some(tenant.clone()),
        Actor::Admin { .. } | Actor::Operator { .. } | Actor::Daemon => None,
    };
    let only = Some(header.tenant).filter(|tenant| !tenant.is_empty());
    let scope = Scope {
        only: only.as_deref(),
        is_tenants: by.is_some(),
    };
    let name = match header.set.is_empty() {
        true => DEFAULT_SET.to_owned(),
        false => header.set,
    };
    let mut wanted = Wanted {
        set: DocumentSet { by, name },
        dry_run: header.dry_run,
        prune: header.prune,
        ..Wanted::default()
    };
    let twice = |what: String| Err(invalid(format!("the documents have {what} twice")));
    for tenant in state.tenants {
        let name = scope.tenant(tenant.name, "a tenant")?;
        if !wanted.tenants.insert(name.clone()) {
            return twice(format!("tenant {name}"));
        }
    }
    for ceiling in state.ceilings {
        scope.operators_only("a ceiling")?;
        let of = match ceiling.tenant.is_empty() {
            true => scope.whole("the default ceiling").map(|()| String::new())?,
            false => scope.tenant(ceiling.tenant, "a ceiling")?,
        };
        let key = (of, ceiling.key);
        if wanted.ceilings.contains_key(&key) {
            let (of, key) = key;
            return twice(format!("the value {key} of the ceiling of {of:?}"));
        }
        wanted.ceilings.insert(key, ceiling.value);
    }
    for credential in state.credentials {
        let tenant = scope.tenant(credential.tenant.clone(), "a credential")?;
        let key = (tenant, credential.name.clone());
        if wanted.credentials.contains_key(&key) {
            let (tenant, name) = key;
            return twice(format!("credential {name} of tenant {tenant}"));
        }
        wanted.credentials.insert(key, credential_of(&credential)?);
    }
    let (mut known, mut proofs) = (BTreeSet::new(), BTreeMap::new());
    // Equal ones are shared by all that name them.
    let contents = |number: u32, what: &str| {
        let content = contents.get(&number).cloned();
        content.ok_or_else(|| invalid(format!("{what} names content {number}, which didn't come")))
    };
    for policy in state.policies {
        let owner = scope.owner(policy.owner, "a policy")?;
        let (name, version) = (policy.name, policy.version);
        let words = format!("policy {name} of {owner}");
        if !known.insert((owner.clone(), name.clone(), version)) {
            return twice(match version {
                0 => format!("{words} without a version"),
                version => format!("version {version} of {words}"),
            });
        }
        let content = |reference: Option<proto::ContentReference>, what: &str| {
            let what = format!("the {what} of {words}");
            let content = reference.map(|its| its.content);
            Ok(match content {
                None => None,
                Some(Some(content_reference::Content::Number(number))) => {
                    Some(contents(number, &what)?)
                }
                Some(Some(content_reference::Content::Digest(digest))) => {
                    Some(Content::Digest(digest_of(&digest, &what)?))
                }
                Some(None) => return Err(invalid(format!("{what} names no content"))),
            })
        };
        let module = content(policy.module, "module")?;
        let proof = match policy.proof.and_then(|its| its.content) {
            None => None,
            Some(content_reference::Content::Number(number)) => {
                let what = format!("the proof of {words}");
                match (proofs.get(&number), contents(number, &what)?) {
                    (Some(known), _) => Some(Arc::clone(known)),
                    (None, Content::Bytes(hashed)) => {
                        let proof = read_proof(hashed.bytes(), &what).map_err(refused)?;
                        let proof = Arc::new(proof);
                        proofs.insert(number, Arc::clone(&proof));
                        Some(proof)
                    }
                    (None, Content::Digest(_)) => {
                        return Err(invalid(format!("{what} isn't stored")));
                    }
                }
            }
            Some(content_reference::Content::Digest(_)) => {
                return Err(invalid(format!("the proof of {words} isn't stored")));
            }
        };
        wanted.policies.push(WantedPolicy {
            module: module.ok_or_else(|| invalid(format!("{words} has no module")))?,
            configuration: content(policy.configuration, "configuration")?,
            owner,
            name,
            version: (version > 0).then_some(version),
            proof,
        });
    }
    let mut known = BTreeSet::new();
    for attachment in state.attachments {
        let attachment = attachment_of(attachment, scope, &wanted.policies)?;
        let key = (attachment.target.clone(), attachment.policy.clone());
        if !known.insert(key) {
            let WantedAttachment { target, policy, .. } = attachment;
            return twice(format!("the attachment of {policy} at {target}"));
        }
        wanted.attachments.push(attachment);
    }
    for setting in state.settings {
        scope.operators_only("a setting")?;
        scope.whole("a setting")?;
        let proto::SettingState { key, value } = setting;
        if wanted.settings.insert(key.clone(), value).is_some() {
            return twice(format!("setting {key}"));
        }
    }
    wanted.only = only;
    Ok(wanted)
}

/// Whose objects the caller may name.
#[derive(Clone, Copy)]
struct Scope<'a> {
    only: Option<&'a str>,
    /// The caller is a tenant's principal, rather than an operator who applies a tenant's part.
    is_tenants: bool,
}

impl Scope<'_> {
    /// A tenant that an object names.
    fn tenant(&self, named: String, what: &str) -> Result<String> {
        let Some(only) = self.only else {
            return match named.is_empty() {
                true => Err(invalid(format!("{what} names no tenant"))),
                false => Ok(named),
            };
        };
        if named.is_empty() || named == only {
            return Ok(only.to_owned());
        }
        // To a tenant, others are nobody.
        match self.is_tenants {
            true => {
                let text = format!("there is no tenant {named:?}");
                Err(Status::new(Code::NOT_FOUND, text))
            }
            false => Err(invalid(format!(
                "the documents are applied for tenant {only:?} alone, and {what} is of tenant {named:?}"
            ))),
        }
    }

    fn owner(&self, owner: Option<proto::Owner>, what: &str) -> Result<Owner> {
        let proto::Owner { tenant, provider } = owner.unwrap_or_default();
        if !provider {
            return self.tenant(tenant, what).map(Owner::Tenant);
        }
        self.operators_only("the provider's policies")?;
        self.whole("the provider's policies")?;
        Ok(Owner::Provider)
    }

    fn operators_only(&self, what: &str) -> Result<()> {
        if !self.is_tenants {
            return Ok(());
        }
        let text = format!("ApplyState about {what} is an operator's request");
        Err(Status::new(Code::PERMISSION_DENIED, text))
    }

    /// Refuses what is no tenant's, if the documents are about one tenant.
    fn whole(&self, what: &str) -> Result<()> {
        match self.only {
            None => Ok(()),
            Some(only) => Err(invalid(format!(
                "the documents are applied for tenant {only:?} alone, and {what} isn't its own"
            ))),
        }
    }
}

fn digest_of(digest: &[u8], what: &str) -> Result<[u8; 32]> {
    let bytes = digest.len();
    let digest = digest.try_into();
    digest.map_err(|_| {
        invalid(format!(
            "{what} has a digest of {bytes} bytes instead of 32"
        ))
    })
}

fn credential_of(credential: &proto::CredentialState) -> Result<WantedCredential> {
    let name = &credential.name;
    let what = format!("the token of credential {name}");
    let token = match credential.token_digest.is_empty() {
        true => None,
        false => Some(TokenDigest::from_bytes(digest_of(
            &credential.token_digest,
            &what,
        )?)),
    };
    let expires = credential.expires.map(|at| {
        let at = SystemTime::try_from(at);
        at.map_err(|error| invalid(format!("the end of credential {name}: {error}")))
    });
    Ok(WantedCredential {
        role: role(credential.role)?,
        token,
        expires: expires.transpose()?,
    })
}

fn attachment_of(
    attachment: proto::AttachmentState,
    scope: Scope<'_>,
    policies: &[WantedPolicy],
) -> Result<WantedAttachment> {
    let calls = attachment.owner.clone().unwrap_or_default();
    let owner = scope.owner(attachment.owner, "an attachment")?;
    let provider = owner == Owner::Provider;
    let target = Target {
        party: party(attachment.party, provider)?.unwrap_or(Party::ProviderPre),
        tenant: match &owner {
            Owner::Tenant(tenant) => tenant.clone(),
            Owner::Provider => or_all(calls.tenant, provider),
        },
        service: or_all(attachment.service, provider),
        method: attachment.method,
        side: one_side(attachment.side)?,
    };
    let name = attachment.name;
    let version = |reference: proto::VersionReference| match reference.version {
        0 => {
            let index = reference.policy as usize;
            let is_its = |policy: &&WantedPolicy| policy.owner == owner && policy.name == name;
            match policies.get(index).filter(is_its) {
                Some(_) => Ok(WantedVersion::Of(index)),
                None => Err(invalid(format!(
                    "the attachment at {target} refers to policy {index} of the documents, which isn't {name} of {owner}"
                ))),
            }
        }
        number => Ok(WantedVersion::Number(number)),
    };
    let trial = attachment.trial.map(|trial| {
        let Some(kind) = kind_of(trial.mode, trial.percent)? else {
            let text = format!("the trial at {target} has the mode enforce: leave the trial out");
            return Err(invalid(text));
        };
        let probation = trial.probation.map(|time| duration("probation", time));
        let probation = probation.transpose()?;
        if let Some(time) = probation.filter(|time| *time > MAX_PROBATION) {
            let text =
                format!("a probation of {time:?} is too long: the limit is {MAX_PROBATION:?}");
            return Err(invalid(text));
        }
        let of_trial = trial.version.unwrap_or_default();
        Ok(WantedTrial {
            version: version(of_trial)?,
            trial: kind,
            probation_ms: probation.map(|time| time.as_millis() as u64),
        })
    });
    let stable = attachment.stable.map(version).transpose()?;
    let trial = trial.transpose()?;
    if stable.is_none() && trial.is_none() {
        return Err(invalid(format!(
            "the attachment of {name} at {target} has neither a version nor a trial"
        )));
    }
    let given = options(attachment.options.unwrap_or_default())?;
    let conditions = given.over(Options::default());
    Ok(WantedAttachment {
        target,
        policy: name,
        stable,
        trial,
        options: conditions.map_err(|error| refused(store_failed(&error)))?,
    })
}

/// What happens to objects.
pub(super) fn changes(objects: Vec<ObjectChange>) -> Vec<proto::StateChange> {
    let changes = objects.into_iter().map(|change| {
        let action = match change.action {
            Action::Keep => proto::StateAction::Keep,
            Action::Create => proto::StateAction::Create,
            Action::Change => proto::StateAction::Change,
            Action::Delete => proto::StateAction::Delete,
        };
        proto::StateChange {
            action: action.into(),
            object: change.object,
            details: change.details,
        }
    });
    changes.collect()
}

/// What there is. Of one tenant, neither the settings nor the default ceiling; for its principals
/// no ceiling at all, which isn't theirs to apply.
pub(super) fn state(found: Snapshot, is_whole: bool, with_ceilings: bool) -> proto::State {
    let mut state = proto::State::default();
    let tenants = found.tenants.into_iter();
    state.tenants = tenants.map(|name| proto::TenantState { name }).collect();
    for (tenant, values) in found.ceilings {
        if !with_ceilings || (tenant.is_empty() && !is_whole) {
            continue;
        }
        let values = values.into_iter().map(|(key, value)| proto::CeilingState {
            tenant: tenant.clone(),
            key,
            value,
        });
        state.ceilings.extend(values);
    }
    let credentials = found.credentials.into_iter();
    let credentials = credentials.map(|((tenant, name), its)| proto::CredentialState {
        tenant,
        name,
        role: role_of(its.role).into(),
        expires: its.expires.map(Into::into),
        token_digest: its.token.bytes().to_vec(),
    });
    state.credentials = credentials.collect();
    state.policies = found.policies.into_iter().map(policy).collect();
    // A place whose trial ended without a version evaluates nothing.
    let attachments = found.attachments.into_iter();
    let attachments =
        attachments.filter(|its| its.slot.stable.is_some() || its.slot.candidate.is_some());
    state.attachments = attachments.map(attachment).collect();
    if is_whole {
        let settings = found.settings.into_iter();
        let settings = settings.map(|(key, value)| proto::SettingState { key, value });
        state.settings = settings.collect();
    }
    state
}

fn policy(info: PolicyInfo) -> proto::PolicyState {
    let content = |digest: [u8; 32]| proto::ContentReference {
        content: Some(content_reference::Content::Digest(digest.to_vec())),
    };
    proto::PolicyState {
        owner: Some(proto::Owner {
            tenant: info.owner.tenant().unwrap_or_default().to_owned(),
            provider: info.owner == Owner::Provider,
        }),
        name: info.policy.name,
        version: info.policy.version,
        module: Some(content(info.digest)),
        configuration: info.config_digest.map(content),
        proof: None,
    }
}

fn attachment(attachment: Attachment) -> proto::AttachmentState {
    let Attachment {
        target,
        policy,
        slot,
        options,
    } = attachment;
    let version = |version| proto::VersionReference { version, policy: 0 };
    let provider = target.party != Party::Tenant;
    let or_empty = |name: String| match name == ALL {
        true => String::new(),
        false => name,
    };
    let trial = slot.candidate.map(|candidate| {
        let Candidate {
            version: number,
            trial,
            probation_ms,
        } = candidate;
        let (mode, percent) = match trial {
            Trial::Shadow => (proto::Mode::Shadow, 0),
            Trial::Canary(percent) => (proto::Mode::Canary, percent.into()),
        };
        let probation = probation_ms.map(Duration::from_millis);
        proto::TrialState {
            version: Some(version(number)),
            mode: mode.into(),
            percent,
            probation: probation.and_then(|time| time.try_into().ok()),
        }
    });
    proto::AttachmentState {
        owner: Some(proto::Owner {
            tenant: or_empty(target.tenant),
            provider,
        }),
        name: policy,
        service: or_empty(target.service),
        method: target.method,
        side: match target.side {
            Side::Client => proto::Side::Client.into(),
            Side::Server => proto::Side::Server.into(),
        },
        party: match target.party {
            Party::Tenant => proto::Party::Tenant.into(),
            Party::ProviderPre => proto::Party::ProviderPre.into(),
            Party::ProviderPost => proto::Party::ProviderPost.into(),
        },
        stable: slot.stable.map(version),
        trial,
        options: Some(conditions(options)),
    }
}

/// All conditions that differ from the defaults.
fn conditions(options: Options) -> proto::AttachmentOptions {
    let default = Options::default();
    let names = |list: Option<Vec<String>>| list.map(|names| proto::Names { names });
    proto::AttachmentOptions {
        on_fault: match options.on_fault {
            OnFault::Reload => proto::OnFault::Unspecified.into(),
            OnFault::Closed => proto::OnFault::Closed.into(),
            OnFault::Open => proto::OnFault::Open.into(),
        },
        hooks: names(options.hooks),
        fields: names(options.fields),
        metadata: names(options.metadata),
        callers: names(options.callers),
        capabilities: names(options.capabilities),
        cpu_us: options.cpu_us,
        fresh: Some(options.fresh).filter(|fresh| *fresh != default.fresh),
        isolation: match options.isolation {
            None => proto::Isolation::Unspecified.into(),
            Some(Isolation::None) => proto::Isolation::None.into(),
            Some(Isolation::Process) => proto::Isolation::Process.into(),
        },
        record: Some(options.record).filter(|record| *record != default.record),
        max_worse: Some(options.max_worse)
            .filter(|points| *points != default.max_worse)
            .map(u32::from),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use tollgate_admin::APPLY_BYTES;

    use super::*;

    #[test]
    fn contents_are_hashed_while_others_have_their_turn() {
        let reactor = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        let order = ApplyOrder {
            contents: [(0, vec![7; APPLY_BYTES])].into(),
            ..ApplyOrder::default()
        };
        let mut turns = 0;
        reactor.block_on(async {
            let mut wanted = std::pin::pin!(wanted(order, &Actor::Daemon));
            loop {
                tokio::select! {
                    biased;
                    done = &mut wanted => return drop(done.unwrap()),
                    () = tokio::task::yield_now() => turns += 1,
                }
            }
        });
        assert!(turns > 0);
    }
}
