//! Carries documents out: what is slow first, then the lock of changes, then one transaction.
//!
//! ```text
//!   sketch ─ verify and compile new modules ─ load versions, create instances
//!     ▲                                                     │
//!     └── something else is needed by now ──── lock ─ sketch again
//!                                                           │
//!        checks ─ runtimes' number ─ the store, one transaction ─ runtimes ─ ends ─ settings
//! ```

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use serde_json::{Value, json};
use tollgate_admin::Steps;
use tollgate_admin::proto::{ApplyStateStep, PushPolicyStep};
use tollgate_control::audit::Actor;
use tollgate_control::{
    Attachment, Ceiling, CeilingValues, Hashed, Isolation, Options, Owner, Snapshot, Store,
    StoreError, changed_values, hex,
};
use tollgate_engine::Status;
use tollgate_policy_chain::ids::VersionNumber;
use tollgate_shm_abi::status::Code;

use crate::control::changes::OneAtATime;
use crate::control::operators::ceilings::{check_values, consequences};
use crate::control::operators::console;
use crate::control::operators::desired::difference::{
    Action, Difference, ObjectChange, difference,
};
use crate::control::operators::desired::wanted::{Content, Wanted, WantedAttachment, WantedPolicy};
use crate::control::operators::ending::end_sessions;
use crate::control::operators::pushing;
use crate::control::placement::placing;
use crate::control::policies::ceilings::{check_language, check_memory, check_signers};
use crate::control::policies::isolated::isolation_of;
use crate::control::policies::lifecycle::{self, AtHand, Wish, details_of, own_isolation};
use crate::control::policies::model::{Loaded, Version};
use crate::control::refusals::{invalid, store_failed};
use crate::control::state::Control;
use crate::limits::SKETCHES;
use crate::settings::Change as SettingChange;

/// A verified module of a document, with its configuration.
struct Pushed {
    module: Hashed,
    config: Option<Hashed>,
    loaded: Result<Loaded, String>,
    /// Its owner's, under which it was verified.
    ceiling: Option<Ceiling>,
}

/// What is to be done, by what is stored now.
struct Sketch {
    found: Snapshot,
    differs: Difference,
    /// Of the owners of the documents' policies and attachments, as they will be.
    ceilings: BTreeMap<Owner, Ceiling>,
}

/// Makes objects what documents want, all or none; or, in a dry run, says what would change.
/// Returns that, and warnings.
///
/// # Errors
/// Something of the documents isn't possible. Nothing has changed then.
pub(in crate::control) async fn apply(
    control: &Rc<Control>,
    actor: Actor,
    mut wanted: Wanted,
    steps: &Steps<ApplyStateStep>,
) -> Result<(Vec<ObjectChange>, Vec<String>), Status> {
    normalize_settings(control, &mut wanted)?;
    let (mut pushed, mut known) = (BTreeMap::new(), Known::new());
    let mut at_hand = AtHand::default();
    charge(control, &actor, &sketch(control, &actor, &wanted)?.differs)?;
    // What can't be stored isn't compiled.
    try_out(control, &actor, &wanted, &mut known).await?;
    // What is read, verified, loaded and instantiated in one round is kept for the next.
    for _ in 0..SKETCHES {
        let sketch = sketch(control, &actor, &wanted)?;
        read(control, &wanted, &sketch, &mut known).await?;
        verify(
            control,
            (&actor, steps),
            &wanted,
            &sketch,
            (&known, &mut pushed),
        )
        .await?;
        let find = finder(&wanted, &sketch, &pushed);
        check_room(control, &sketch)?;
        for wish in wishes(&sketch) {
            at_hand.prepare(control, &wish, &find).await?;
        }
        let lock = control.changes.begin(&actor).await?;
        let sketch = self::sketch(control, &actor, &wanted)?;
        let find = finder(&wanted, &sketch, &pushed);
        let wishes = wishes(&sketch);
        let is_ready = sketch
            .differs
            .pushes
            .iter()
            .all(|(index, _)| is_verified(&wanted, &sketch, &pushed, *index))
            && at_hand.make_plans(&wishes, &find);
        if is_ready {
            let ready = Ready {
                control,
                actor,
                wanted: &wanted,
                pushed: &pushed,
                sketch: &sketch,
                wishes: &wishes,
            };
            steps.tell(ApplyStateStep {
                step: PushPolicyStep::Storing.into(),
                ..ApplyStateStep::default()
            });
            return ready.make(at_hand, lock).await;
        }
    }
    Err(never_still())
}

fn never_still() -> Status {
    let text = "policies change all the time, and the documents find no moment between two changes: apply them again";
    Status::new(Code::ABORTED, text)
}

/// Settings' values in the form in which they are stored.
fn normalize_settings(control: &Control, wanted: &mut Wanted) -> Result<(), Status> {
    if wanted.settings.is_empty() {
        return Ok(());
    }
    let named = wanted.settings.iter();
    let named = named.map(|(key, value)| (key.clone(), Some(value.clone())));
    let changed = control.settings.settings().changed(named.collect());
    let (_, normalized) = changed.map_err(|refused| invalid(refused.to_string()))?;
    let values = normalized
        .into_iter()
        .filter_map(|(key, value)| Some((key, value?)));
    wanted.settings = values.collect();
    Ok(())
}

fn sketch(control: &Control, actor: &Actor, wanted: &Wanted) -> Result<Sketch, Status> {
    let owners = wanted.owners();
    let found = control
        .changes
        .store()
        .snapshot(Some(&owners), Some(&wanted.set));
    let found = found.map_err(|error| store_failed(&error))?;
    let ceilings = ceilings(wanted, &found, &owners)?;
    let config = control.config();
    let normalized = |attachment: &WantedAttachment| {
        let WantedAttachment {
            target,
            policy,
            options,
            ..
        } = attachment;
        let mut options: Options = options.clone();
        let ceiling = ceilings.get(&target.owner());
        if ceiling.is_some_and(|ceiling| ceiling.isolation.is_some()) {
            options.isolation.get_or_insert(Isolation::Process);
        }
        own_isolation(&config, actor, (policy, target), &mut options)?;
        Ok(options)
    };
    let differs = difference(wanted, &found, normalized)?;
    Ok(Sketch {
        found,
        differs,
        ceilings,
    })
}

/// The ceilings that tenants will have.
fn ceilings(
    wanted: &Wanted,
    found: &Snapshot,
    owners: &BTreeSet<Owner>,
) -> Result<BTreeMap<Owner, Ceiling>, Status> {
    let after = |tenant: &str| {
        let before = found.ceilings.get(tenant).cloned().unwrap_or_default();
        let its = (tenant.to_owned(), String::new())..(format!("{tenant}\0"), String::new());
        let named = wanted
            .ceilings
            .range(its)
            .map(|((_, key), value)| (key.clone(), Some(value.clone())));
        let named: Vec<_> = named.collect();
        let after: Result<CeilingValues, _> = changed_values(&before, &named);
        let after = after.map_err(|error| store_failed(&error))?;
        check_values(&after)?;
        Ok::<_, Status>(after)
    };
    let default = after("")?;
    let tenants = owners
        .iter()
        .filter_map(|owner| Some((owner, owner.tenant()?)));
    let ceilings =
        tenants.map(|(owner, tenant)| Ok((owner.clone(), Ceiling::of(&after(tenant)?, &default))));
    ceilings.collect()
}

/// The attachments that change.
fn wishes(sketch: &Sketch) -> Vec<Wish<'_>> {
    let attachments = sketch.differs.attachments.iter();
    let wishes = attachments.map(|(after, before)| Wish {
        after,
        before: before.as_ref(),
        ceiling: sketch.ceilings.get(&after.target.owner()),
    });
    wishes.collect()
}

/// Checks that the attachments have room for their instances. Those of a tenant that ends make no
/// room yet.
fn check_room(control: &Control, sketch: &Sketch) -> Result<(), Status> {
    let after = sketch.differs.attachments.iter().map(|(after, _)| after);
    control.check_room(after, &sketch.differs.detached)
}

/// Finds a version that isn't stored yet.
fn finder(
    wanted: &Wanted,
    sketch: &Sketch,
    pushed: &BTreeMap<usize, Pushed>,
) -> impl Fn(&Owner, &str, u32) -> Option<Version> + use<> {
    let pushes = sketch.differs.pushes.iter();
    let versions = pushes.filter_map(|(index, number)| {
        let WantedPolicy { owner, name, .. } = &wanted.policies[*index];
        let version = Version {
            number: VersionNumber(*number),
            loaded: pushed.get(index)?.loaded.clone(),
        };
        Some(((owner.clone(), name.clone(), *number), version))
    });
    let versions: BTreeMap<_, _> = versions.collect();
    move |owner, name, number| {
        let key = (owner.clone(), name.to_owned(), number);
        versions.get(&key).cloned()
    }
}

/// Whether a module has been verified, under the ceiling that its owner has now.
fn is_verified(
    wanted: &Wanted,
    sketch: &Sketch,
    pushed: &BTreeMap<usize, Pushed>,
    index: usize,
) -> bool {
    let ceiling = sketch.ceilings.get(&wanted.policies[index].owner);
    let its = pushed.get(&index);
    its.is_some_and(|its| its.ceiling.as_ref() == ceiling)
}

/// Verifies and compiles the modules that are pushed, and tries their configurations.
async fn verify(
    control: &Rc<Control>,
    (actor, steps): (&Actor, &Steps<ApplyStateStep>),
    wanted: &Wanted,
    sketch: &Sketch,
    (known, pushed): (&Known, &mut BTreeMap<usize, Pushed>),
) -> Result<(), Status> {
    let pushes = &sketch.differs.pushes;
    for (position, (index, number)) in pushes.iter().enumerate() {
        if is_verified(wanted, sketch, pushed, *index) {
            continue;
        }
        // Others have their turn between two modules.
        tokio::task::yield_now().await;
        let WantedPolicy {
            owner,
            name,
            module,
            configuration,
            proof,
            ..
        } = &wanted.policies[*index];
        let policy = format!("policy {name}@{number} of {owner}");
        let in_place = |status: Status| {
            let text = format!("{policy}: {}", status.message);
            Status::new(status.code, text)
        };
        let tell = |step: PushPolicyStep| {
            steps.tell(ApplyStateStep {
                step: step.into(),
                policy: policy.clone(),
                number: position as u32 + 1,
                of: pushes.len() as u32,
            });
        };
        tell(PushPolicyStep::Verifying);
        let is_new = matches!(module, Content::Bytes(_));
        let module = content_of(owner, module, known)?;
        let config = configuration.as_ref();
        let config = config.map(|config| content_of(owner, config, known));
        let config = config.transpose()?;
        let wasm = module.bytes();
        let ceiling = sketch.ceilings.get(owner);
        let per_hour = ceiling.map(|ceiling| ceiling.compile_s_per_hour);
        // The origin of a stored one was proved when it was pushed. A tenant makes no new versions
        // of modules that it couldn't push any more.
        if is_new || matches!(actor, Actor::Credential { .. }) {
            let proof = proof.as_deref();
            let checked = control.modules.check_origin(wasm, proof);
            checked.map_err(in_place)?;
            if let (Some(tenant), Some(ceiling)) = (owner.tenant(), ceiling) {
                check_signers(tenant, ceiling, (wasm, proof), name)?;
            }
        }
        let compiled = match control.modules.compiled(module.digest()) {
            Some(compiled) => compiled,
            None => {
                let loaded = control.modules.load(owner, wasm.to_vec(), per_hour, tell);
                loaded.await.map_err(in_place)?.0
            }
        };
        if let (Some(tenant), Some(ceiling)) = (owner.tenant(), ceiling) {
            check_language(tenant, ceiling, &compiled, name)?;
            check_memory(tenant, ceiling, &compiled, name)?;
        }
        tell(PushPolicyStep::Trying);
        let tried = pushing::try_configuration(
            control,
            actor,
            owner,
            ceiling,
            compiled.clone(),
            config.as_ref().map(|config| config.bytes().to_vec()),
        );
        tried.await.map_err(in_place)?;
        let bytes = config.as_ref().map(|config| Arc::clone(config.bytes()));
        let configured = compiled.configured(bytes.as_deref());
        let loaded = configured.map(|policy| Loaded {
            policy,
            config: bytes,
        });
        let its = Pushed {
            loaded: loaded.map_err(|error| error.to_string()),
            module,
            config,
            ceiling: ceiling.cloned(),
        };
        pushed.insert(*index, its);
    }
    Ok(())
}

/// Contents that have been read from the store, by owner and digest: many objects may name one.
type Known = BTreeMap<(Owner, [u8; 32]), Hashed>;

/// Reads the contents that are pushed again from the owner's versions, those that aren't known yet,
/// on a blocking thread.
async fn read(
    control: &Control,
    wanted: &Wanted,
    sketch: &Sketch,
    known: &mut Known,
) -> Result<(), Status> {
    let mut missing = BTreeMap::new();
    for (index, _) in &sketch.differs.pushes {
        let WantedPolicy {
            owner,
            name,
            module,
            configuration,
            ..
        } = &wanted.policies[*index];
        for (content, is_module) in [(Some(module), true), (configuration.as_ref(), false)] {
            let Some(Content::Digest(digest)) = content else {
                continue;
            };
            let key = (owner.clone(), *digest);
            if known.contains_key(&key) || missing.contains_key(&key) {
                continue;
            }
            let mut policies = sketch.found.policies.iter();
            let holder = policies.find(|info| {
                info.owner == *owner
                    && match is_module {
                        true => info.digest == *digest,
                        false => info.config_digest == Some(*digest),
                    }
            });
            let holder = holder.ok_or_else(|| no_content(owner, name, is_module, digest))?;
            missing.insert(key, (holder.policy.clone(), is_module));
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    let read = move |store: &Store| {
        let read = missing.into_iter().map(|(key, (version, is_module))| {
            let stored = store.policy(&key.0, &version)?;
            let bytes = match is_module {
                true => stored.wasm,
                false => stored.config.unwrap_or_default(),
            };
            Ok((key, Hashed::of(bytes)))
        });
        read.collect::<Result<Vec<_>, StoreError>>()
    };
    known.extend(control.changes.on_blocking_thread(read).await?);
    Ok(())
}

fn no_content(owner: &Owner, name: &str, is_module: bool, digest: &[u8; 32]) -> Status {
    let what = match is_module {
        true => "module",
        false => "configuration",
    };
    let digest = hex(digest);
    let text = format!(
        "policy {name} of {owner}: no stored version of this owner has the {what} sha256:{digest}: name a file with it"
    );
    Status::new(Code::NOT_FOUND, text)
}

/// A content, its own or one that was read.
fn content_of(owner: &Owner, content: &Content, known: &Known) -> Result<Hashed, Status> {
    match content {
        Content::Bytes(hashed) => Ok(hashed.clone()),
        Content::Digest(digest) => {
            let found = known.get(&(owner.clone(), *digest)).cloned();
            found.ok_or_else(|| {
                Status::new(Code::INTERNAL, "a content of the documents wasn't read")
            })
        }
    }
}

/// The details of an attachment's record.
fn record_of(control: &Control, attachment: &Attachment) -> Value {
    let mut details = details_of(attachment);
    details["isolation"] = json!(isolation_of(&control.config(), attachment));
    details
}

/// Makes the transaction, and aborts it, on a blocking thread: names, limits and ceilings hold.
/// A version that is pushed meanwhile may be in its way; so another state gets another try.
async fn try_out(
    control: &Control,
    actor: &Actor,
    wanted: &Wanted,
    known: &mut Known,
) -> Result<(), Status> {
    for _ in 0..SKETCHES {
        let before = sketch(control, actor, wanted)?;
        let Sketch {
            found,
            differs,
            ceilings,
        } = &before;
        differs.check_counts(wanted, found, ceilings)?;
        read(control, wanted, &before, known).await?;
        // Other changes wait for the lock meanwhile.
        let _lock = control.changes.begin(actor).await?;
        let sketch = sketch(control, actor, wanted)?;
        if sketch.differs.is_empty() {
            return Ok(());
        }
        let mut contents = BTreeMap::new();
        for (index, _) in &sketch.differs.pushes {
            let WantedPolicy {
                owner,
                module,
                configuration,
                ..
            } = &wanted.policies[*index];
            let config = configuration.as_ref();
            let config = config.map(|config| content_of(owner, config, known));
            let content = content_of(owner, module, known);
            if let (Ok(module), Ok(config)) = (content, config.transpose()) {
                contents.insert(*index, (module, config));
            }
        }
        if contents.len() < sketch.differs.pushes.len() {
            continue;
        }
        let content = |index: usize| contents[&index].clone();
        let record = |attachment: &Attachment| record_of(control, attachment);
        let changes = sketch.differs.changes(wanted, content, record);
        let tried = control
            .changes
            .on_blocking_thread(move |store| store.try_all(&changes));
        let Err(status) = tried.await else {
            return Ok(());
        };
        if self::sketch(control, actor, wanted)?.found == sketch.found {
            return Err(status);
        }
    }
    Err(never_still())
}

/// A tenant's documents are as many changes of its hour as they change objects, in a dry run, too:
/// that is as much work. The request was the first of them.
fn charge(control: &Control, actor: &Actor, differs: &Difference) -> Result<(), Status> {
    let Actor::Credential { tenant, .. } = actor else {
        return Ok(());
    };
    let changed = differs.objects.len() - differs.count(Action::Keep);
    let ceiling = control.changes.store().ceiling(tenant);
    let ceiling = ceiling.map_err(|error| store_failed(&error))?;
    let more = changed.saturating_sub(1);
    let charged = control.paces.charge(tenant, ceiling.changes_per_hour, more);
    charged.map_err(|status| Status::new(status.code, status.message))
}

/// Everything that can be prepared is; nothing else changes until it is made.
struct Ready<'a> {
    control: &'a Rc<Control>,
    actor: Actor,
    wanted: &'a Wanted,
    pushed: &'a BTreeMap<usize, Pushed>,
    sketch: &'a Sketch,
    wishes: &'a [Wish<'a>],
}

impl Ready<'_> {
    async fn make(
        self,
        at_hand: AtHand,
        _lock: OneAtATime<'_>,
    ) -> Result<(Vec<ObjectChange>, Vec<String>), Status> {
        let (control, differs) = (self.control, &self.sketch.differs);
        check_room(control, self.sketch)?;
        let mut warnings = self.above_ceilings()?;
        warnings.extend(at_hand.check(control, &self.actor, self.wishes)?);
        let answer = (differs.objects.clone(), warnings);
        if differs.is_empty() {
            return Ok(answer);
        }
        let content = |index: usize| {
            let Pushed { module, config, .. } = &self.pushed[&index];
            (module.clone(), config.clone())
        };
        let changes = differs.changes(self.wanted, content, |attachment| {
            record_of(control, attachment)
        });
        let before = control.settings.settings();
        let values: Vec<SettingChange> = differs.settings.clone();
        let after = match values.is_empty() {
            true => None,
            false => {
                let changed = before.changed(values);
                Some(changed.map_err(|refused| invalid(refused.to_string()))?.0)
            }
        };
        if self.wanted.dry_run {
            return Ok(answer);
        }
        let mut ended = differs.detached.clone();
        for tenant in &differs.ended {
            let had = control.changes.store().holdings(tenant);
            ended.extend(had.map_err(|error| store_failed(&error))?.attachments);
        }
        if let Some(after) = &after {
            // Runtimes may refuse this. So it comes first, and is reverted if nothing is made.
            control.resize(&after.in_force()).await?;
        }
        let (actor, is_stored) = (self.actor.clone(), Cell::new(false));
        let made = at_hand
            .carry_out(control, |store| {
                store.change_all(&actor, &changes)?;
                is_stored.set(true);
                Ok(())
            })
            .await;
        if let (Err(status), false) = (&made, is_stored.get()) {
            if after.is_some()
                && let Err(status) = control.resize(&before.in_force()).await
            {
                tracing::error!(
                    "the change of the number of runtimes can't be reverted: {}",
                    status.message
                );
            }
            return Err(status.clone());
        }
        // What is stored counts, also if a runtime refused a part of it.
        let ended = self.end(&ended).await;
        let before = before.in_force();
        let cpu = self.changes_ceiling("cpu_us")
            || after
                .as_ref()
                .is_some_and(|after| after.in_force().policies.cpu_us != before.policies.cpu_us);
        // Shares of a core may be others then.
        let is_retuned = after.is_some()
            || cpu
            || self.changes_ceiling("cpu_share_percent")
            || !self.sketch.differs.ended.is_empty();
        if let Some(after) = after {
            control.settings.replace(after);
        }
        if is_retuned {
            control.tune(cpu).await?;
        }
        made.and(ended).map(|()| answer)
    }

    fn changes_ceiling(&self, key: &str) -> bool {
        let mut changed = self.sketch.differs.ceilings.values().flatten();
        changed.any(|(changed, _)| changed == key)
    }

    /// What tenants have above their ceilings then.
    fn above_ceilings(&self) -> Result<Vec<String>, Status> {
        let (found, differs) = (&self.sketch.found, &self.sketch.differs);
        let mut sentences = Vec::new();
        for (tenant, changes) in &differs.ceilings {
            let of = tenant.as_deref();
            if of.is_some_and(|tenant| !found.tenants.contains(tenant)) {
                continue;
            }
            let before = found.ceilings.get(of.unwrap_or_default());
            let before = before.cloned().unwrap_or_default();
            let after = changed_values(&before, changes).map_err(|error| store_failed(&error))?;
            sentences.extend(consequences(self.control, of, &after)?);
        }
        Ok(sentences)
    }

    /// Ends what the store has no more: sessions first, so that no call passes without evaluation.
    async fn end(&self, attachments: &[Attachment]) -> Result<(), Status> {
        let (control, differs) = (self.control, &self.sketch.differs);
        let revoked = differs.revoked.iter().map(|(tenant, _)| tenant);
        let tenants: BTreeSet<_> = revoked.chain(&differs.ended).collect();
        let sessions = &control.apps.sessions;
        for tenant in tenants {
            let store = control.changes.store();
            end_sessions(sessions, store, &control.runtimes, Some(tenant));
        }
        console::end_sessions(control);
        sessions.token_ends();
        if !attachments.is_empty() {
            lifecycle::end_attachments(&control.policies, &control.runtimes, attachments).await?;
        }
        for tenant in &differs.ended {
            control.policies.forget_misfits(tenant);
            if control.homes.forget(tenant) {
                placing::tell(&control.homes, &control.runtimes).await?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use tollgate_control::DocumentSet;

    use super::*;
    use crate::control::tests::{control, wait};

    #[test]
    fn the_transaction_is_tried_while_others_have_their_turn() {
        let (control, _runtime) = control();
        let set = DocumentSet {
            by: None,
            name: "web".to_owned(),
        };
        let mut wanted = Wanted {
            set,
            tenants: BTreeSet::from(["acme".to_owned()]),
            ..Wanted::default()
        };
        wanted.policies.push(WantedPolicy {
            owner: Owner::Tenant("acme".to_owned()),
            name: "acl".to_owned(),
            version: None,
            module: Content::Bytes(Hashed::of(vec![0; 4 << 20])),
            configuration: None,
            proof: None,
        });
        let tried = |wanted: &Wanted| {
            wait(async {
                let (mut turns, mut known) = (0, Known::new());
                let mut trying =
                    std::pin::pin!(try_out(&control, &Actor::Daemon, wanted, &mut known));
                loop {
                    tokio::select! {
                        biased;
                        done = &mut trying => return (turns, done),
                        () = tokio::task::yield_now() => turns += 1,
                    }
                }
            })
        };
        let (turns, done) = tried(&wanted);
        assert_eq!(done, Ok(()));
        assert!(turns > 0);
        let found = control.changes.store().tenants().unwrap();
        assert!(found.is_empty(), "a try changes nothing");
        wanted.policies[0].name = "No Name".to_owned();
        let (_, refused) = tried(&wanted);
        assert!(refused.unwrap_err().message.contains("No Name"));
    }
}
