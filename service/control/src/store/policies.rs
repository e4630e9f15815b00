//! Versions of policies, and their attachments.

use redb::{ReadTransaction, ReadableTable, WriteTransaction};
use serde_json::{Value, json};

use super::{Store, note};
use crate::audit::{Actor, Event};
use crate::check::{check_module, module_lost, sha256};
use crate::error::{StoreError, full, no_policy};
use crate::limits;
use crate::model::{
    Attachment, Hashed, PolicyBytes, PolicyInfo, Selection, Stored, check_name, check_size, hex,
};
use crate::policy::{Owner, PolicyVersion};
use crate::rows::{
    attached_to, ceiling_in, check_growth, forget_version, kept_versions, make_room, names_kept,
    names_used, put, require_owner, require_owner_in, size_of, stored_in, stored_of, successor,
    use_module,
};
use crate::tables::{
    COUNTERS, MODULES, POLICIES, PolicyKey, PolicyRow, SIZES, SLOTS, TENANTS, in_order, key_of,
};

impl Store {
    /// Stores a validated module as the next version of a policy.
    ///
    /// # Errors
    /// The tenant doesn't exist, the name is invalid, the module or configuration is too large, or
    /// there are too many policies.
    pub fn push_policy(
        &self,
        actor: Actor,
        owner: &Owner,
        name: &str,
        wasm: &[u8],
        config: Option<&[u8]>,
    ) -> Result<PolicyVersion, StoreError> {
        // Before the transaction, which others wait for.
        let (module, config) = (Hashed::of(wasm), config.map(Hashed::of));
        self.change(|change| {
            let content = (&module, config.as_ref(), Keeps::All);
            let before = stored_in(change, owner)?;
            let (pushed, details) = push(change, owner, (name, None), content)?;
            check_growth(change, owner, &before)?;
            Ok((pushed, note(actor, Event::Push, details)))
        })
    }

    /// Deletes a version of a policy, or all versions. Their numbers aren't used again.
    ///
    /// # Errors
    /// The owner or version doesn't exist, or an attachment needs the version.
    pub fn delete_policy(
        &self,
        actor: Actor,
        owner: &Owner,
        name: &str,
        version: Option<u32>,
    ) -> Result<Vec<PolicyVersion>, StoreError> {
        self.change(|change| {
            let (deleted, details) = delete(change, owner, name, version)?;
            Ok((deleted, note(actor, Event::PolicyDelete, details)))
        })
    }

    /// What a tenant has stored of policies.
    ///
    /// # Errors
    /// The file failed.
    pub fn stored_of(&self, tenant: &str) -> Result<Stored, StoreError> {
        self.read(|read| {
            stored_of(
                &read.open_table(POLICIES)?,
                &read.open_table(SIZES)?,
                &read.open_table(MODULES)?,
                tenant,
            )
        })
    }

    /// Everything needed to load a version of a policy.
    ///
    /// # Errors
    /// The version doesn't exist, or its module is lost.
    pub fn policy(&self, owner: &Owner, policy: &PolicyVersion) -> Result<PolicyBytes, StoreError> {
        self.read(|read| {
            let row = read.open_table(POLICIES)?;
            let row = row.get((owner.key(), policy.name.as_str(), policy.version))?;
            let row = row.ok_or_else(|| no_policy(owner, policy))?;
            let (digest, config) = row.value();
            let module = read.open_table(MODULES)?.get(digest)?;
            let module = module.ok_or_else(|| module_lost(digest))?;
            let wasm = module.value().1.to_vec();
            check_module(digest, &wasm)?;
            let config = config.map(<[u8]>::to_vec);
            Ok(PolicyBytes {
                digest,
                wasm,
                config,
            })
        })
    }

    /// All versions of all policies, by owner, name and version.
    ///
    /// # Errors
    /// The file failed, or lost a module.
    pub fn policies(&self) -> Result<Vec<PolicyInfo>, StoreError> {
        self.read(|read| infos(read, read.open_table(POLICIES)?.iter()?))
    }

    /// All versions of an owner's policies, by name and version.
    ///
    /// # Errors
    /// The file failed, or lost a module.
    pub fn policies_of(&self, owner: &Owner) -> Result<Vec<PolicyInfo>, StoreError> {
        let after = successor(owner.key());
        let its = (owner.key(), "", 0)..(after.as_str(), "", 0);
        self.read(|read| infos(read, read.open_table(POLICIES)?.range(its.clone())?))
    }

    /// Stores attachments, all or none. New ones get the end of their target's chain; others keep
    /// their place.
    ///
    /// # Errors
    /// A target's name is invalid, the tenant or version doesn't exist, an option is out of range,
    /// or there are too many attachments.
    pub fn put(
        &self,
        actor: Actor,
        event: Event,
        details: Value,
        attachments: &[Attachment],
    ) -> Result<(), StoreError> {
        self.change(|change| {
            for attachment in attachments {
                put_checked(change, attachment)?;
            }
            Ok(((), note(actor, event, details)))
        })
    }

    /// Removes a policy's attachments that `which` selects; returns them.
    ///
    /// # Errors
    /// There is no such tenant, or no attachment is selected.
    pub fn detach(
        &self,
        actor: Actor,
        owner: &Owner,
        policy: &str,
        which: &Selection,
    ) -> Result<Vec<Attachment>, StoreError> {
        self.change(|change| {
            let (ended, details) = detach(change, owner, policy, which)?;
            Ok((ended, note(actor, Event::Detach, details)))
        })
    }

    /// All attachments; those of one target and party are in the chain's order.
    ///
    /// # Errors
    /// The file failed.
    pub fn attachments(&self) -> Result<Vec<Attachment>, StoreError> {
        self.read(|read| in_order(read.open_table(SLOTS)?.iter()?))
    }

    /// The attachments of an owner, in the same order.
    ///
    /// # Errors
    /// There is no such owner, or the file failed.
    pub fn attachments_of(&self, owner: &Owner) -> Result<Vec<Attachment>, StoreError> {
        self.read(|read| {
            require_owner_in(&read.open_table(TENANTS)?, owner)?;
            attached_to(&read.open_table(SLOTS)?, owner)
        })
    }
}

/// What a transaction writes of versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keeps {
    All,
    /// All but the bytes of modules. Such a transaction is aborted.
    NoModules,
}

/// Stores a version: with this number, which has never been given out, or the next one. Returns it,
/// and the details of the record. The caller checks the ceiling of all that is stored.
pub(super) fn push(
    change: &WriteTransaction,
    owner: &Owner,
    (name, number): (&str, Option<u32>),
    (module, config, keeps): (&Hashed, Option<&Hashed>, Keeps),
) -> Result<(PolicyVersion, Value), StoreError> {
    let wasm = module.bytes();
    let config_bytes = config.map(|config| &**config.bytes());
    let config_len = config_bytes.map_or(0, <[u8]>::len);
    check_name("policy", name)?;
    check_size("module", wasm.len(), limits::MAX_MODULE_BYTES)?;
    check_size("configuration", config_len, limits::MAX_CONFIG_BYTES)?;
    require_owner(change, owner)?;
    let key = owner.key();
    let mut counters = change.open_table(COUNTERS)?;
    let last = counters.get((key, name))?.map(|last| last.value());
    if last.is_none() && names_used(&counters, key)? >= limits::MAX_POLICY_NAMES {
        let limit = limits::MAX_POLICY_NAMES;
        return Err(full(
            "names of policies that this owner has ever used",
            limit,
        ));
    }
    {
        let policies = change.open_table(POLICIES)?;
        let is_new = kept_versions(&policies, key, name)?.is_empty();
        if is_new && names_kept(&policies, key)?.len() >= limits::MAX_POLICIES {
            return Err(full("policies of this owner", limits::MAX_POLICIES));
        }
    }
    let exhausted = full("versions of this policy", u32::MAX as usize);
    let next = last.unwrap_or(0).checked_add(1).ok_or(exhausted)?;
    let pushed = PolicyVersion {
        name: name.to_owned(),
        version: number.unwrap_or(next),
    };
    if pushed.version < next {
        return Err(StoreError::VersionUsed {
            owner: owner.clone(),
            policy: pushed,
        });
    }
    make_room(change, owner, name)?;
    if let (Some(tenant), Some(ceiling)) = (owner.tenant(), ceiling_in(change, owner)?)
        && let Some(sentence) = ceiling.module_above(tenant, name, wasm.len())
    {
        return Err(StoreError::AtCeiling { sentence });
    }
    counters.insert((key, name), pushed.version)?;
    let digest = *module.digest();
    let kept = match keeps {
        Keeps::All => &**wasm,
        Keeps::NoModules => &[],
    };
    use_module(change, digest, kept, wasm.len() as u64)?;
    change
        .open_table(POLICIES)?
        .insert((key, name, pushed.version), (digest, config_bytes))?;
    let details = json!({
        "owner": owner.to_string(), "policy": pushed.to_string(), "module": hex(&digest), "bytes": wasm.len(),
        "configuration": config.map(|config| hex(config.digest())),
    });
    Ok((pushed, details))
}

/// Deletes a version, or all versions. Returns them, and the details of the record.
pub(super) fn delete(
    change: &WriteTransaction,
    owner: &Owner,
    name: &str,
    version: Option<u32>,
) -> Result<(Vec<PolicyVersion>, Value), StoreError> {
    require_owner(change, owner)?;
    let kept = kept_versions(&change.open_table(POLICIES)?, owner.key(), name)?;
    let is_meant = |kept: &u32| version.is_none_or(|version| version == *kept);
    let deleted: Vec<_> = kept.into_iter().filter(is_meant).collect();
    if deleted.is_empty() {
        return Err(match version {
            Some(version) => {
                let name = name.to_owned();
                no_policy(owner, &PolicyVersion { name, version })
            }
            None => StoreError::NoPolicyNamed {
                owner: owner.clone(),
                policy: name.to_owned(),
            },
        });
    }
    for attachment in attached_to(&change.open_table(SLOTS)?, owner)? {
        let slot = &attachment.slot;
        let needed = deleted.iter().find_map(|v| Some((*v, slot.need_of(*v)?)));
        if let Some((version, need)) = needed.filter(|_| attachment.policy == name) {
            let name = name.to_owned();
            return Err(StoreError::Needed {
                policy: PolicyVersion { name, version },
                need,
                place: attachment.target.to_string(),
            });
        }
    }
    let of = |version| PolicyVersion {
        name: name.to_owned(),
        version,
    };
    let deleted: Vec<_> = deleted.into_iter().map(of).collect();
    for policy in &deleted {
        forget_version(change, owner.key(), policy)?;
    }
    let shown: Vec<_> = deleted.iter().map(PolicyVersion::to_string).collect();
    let details = json!({"owner": owner.to_string(), "policies": shown});
    Ok((deleted, details))
}

/// Stores an attachment, if its values are in their ranges.
pub(super) fn put_checked(
    change: &WriteTransaction,
    attachment: &Attachment,
) -> Result<(), StoreError> {
    attachment.check()?;
    put(change, attachment)
}

/// Removes attachments. Returns them, and the details of the record.
pub(super) fn detach(
    change: &WriteTransaction,
    owner: &Owner,
    policy: &str,
    which: &Selection,
) -> Result<(Vec<Attachment>, Value), StoreError> {
    require_owner(change, owner)?;
    let mut slots = change.open_table(SLOTS)?;
    let mut ended = attached_to(&slots, owner)?;
    ended.retain(|a| a.policy == policy && which.selects(&a.target));
    if ended.is_empty() {
        let (owner, policy) = (owner.clone(), policy.to_owned());
        return Err(StoreError::NotAttached { owner, policy });
    }
    for attachment in &ended {
        slots.remove(key_of(attachment, owner.key()))?;
    }
    let places = ended.iter().map(|a| a.target.to_string());
    let details = json!({
        "owner": owner.to_string(), "policy": policy, "places": places.collect::<Vec<_>>(),
    });
    Ok((ended, details))
}

/// Versions, with the sizes of their modules.
pub(super) fn infos(
    read: &ReadTransaction,
    rows: redb::Range<'_, PolicyKey, PolicyRow>,
) -> Result<Vec<PolicyInfo>, StoreError> {
    let (sizes, modules) = (read.open_table(SIZES)?, read.open_table(MODULES)?);
    let mut infos = Vec::new();
    for row in rows {
        let (key, value) = row?;
        let ((owner, name, version), (digest, config)) = (key.value(), value.value());
        let bytes = size_of(&sizes, &modules, digest)?;
        infos.push(PolicyInfo {
            owner: Owner::from_key(owner),
            policy: PolicyVersion {
                name: name.to_owned(),
                version,
            },
            digest,
            module_bytes: bytes.ok_or_else(|| module_lost(digest))?,
            config_digest: config.map(sha256),
        });
    }
    Ok(infos)
}
