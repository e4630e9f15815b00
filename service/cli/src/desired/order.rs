//! Makes one order for the daemon from documents: reads the files that they name, and finds what
//! they refer to. Tokens become digests here and go no further.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use prost::Message as _;
use sha2::{Digest as _, Sha256};
use tollgate::token;
use tollgate_admin::proto::{self, PolicyProof, PolicySignature, content_reference};
use tollgate_admin::{APPLY_BYTES, ApplyOrder};
use tollgate_policy_tools::compat;
use tollgate_registry::SCHEME;
use tollgate_shm_abi::status::Code;

use crate::desired::model::{
    Attachment, Credential, Document, Isolation, Mode, OnFault, Part, Policy, Role, Side, Tenant,
    Trial,
};
use crate::desired::read::Read;
use crate::failure::Failure;
use crate::input::read_at_most;
use crate::policy::fetch;
use crate::values::long_duration;

/// What names a digest instead of a file.
pub(super) const SHA256: &str = "sha256:";

/// The order that documents make. An operator's name their tenants; a bearer's may leave them out.
pub(super) fn order(documents: Vec<Read>) -> Result<ApplyOrder, Failure> {
    let mut makes = Making::default();
    let mut attachments = Vec::new();
    for Read { path, document } in documents {
        let Document {
            schema: _,
            default_ceiling,
            settings,
            tenants,
            policies,
            attachments: its,
        } = document;
        for (key, value) in default_ceiling {
            makes.once(&path, format!("the value {key} of the default ceiling"))?;
            makes.ceiling("", key, value.text());
        }
        for (key, value) in settings {
            makes.once(&path, format!("setting {key}"))?;
            let value = value.text();
            let settings = &mut makes.order.state.settings;
            settings.push(proto::SettingState { key, value });
        }
        for tenant in tenants {
            makes.tenant(&path, tenant)?;
        }
        for policy in policies {
            makes.policy(&path, policy)?;
        }
        attachments.extend(its.into_iter().map(|its| (path.clone(), its)));
    }
    // They may refer to policies of any document.
    for (path, attachment) in attachments {
        makes.attachment(&path, attachment)?;
    }
    Ok(makes.order)
}

#[derive(Default)]
struct Making {
    order: ApplyOrder,
    /// Where each object is.
    places: BTreeMap<String, PathBuf>,
    /// Contents that are in the order already, by digest.
    contents: BTreeMap<[u8; 32], u32>,
    bytes: usize,
}

/// A failure about an object of a document.
fn wrong(path: &Path, sentence: impl std::fmt::Display) -> Failure {
    Failure::input(format_args!("{}: {sentence}", path.display()))
}

/// A path that a document names.
fn beside(document: &Path, named: &str) -> PathBuf {
    let directory = document.parent().unwrap_or(Path::new(""));
    directory.join(named)
}

fn owner_words(tenant: Option<&str>, provider: bool) -> String {
    match (tenant, provider) {
        (_, true) => "of the provider".to_owned(),
        (Some(tenant), false) => format!("of tenant {tenant}"),
        (None, false) => "without a tenant".to_owned(),
    }
}

impl Making {
    /// Notes an object; each is there once.
    fn once(&mut self, path: &Path, what: String) -> Result<(), Failure> {
        match self.places.get(&what) {
            None => {
                self.places.insert(what, path.to_owned());
                Ok(())
            }
            Some(first) if first == path => Err(wrong(path, format_args!("it has {what} twice"))),
            Some(first) => {
                let first = first.display();
                let sentence = format_args!("it has {what}, and so has {first}");
                Err(wrong(path, sentence))
            }
        }
    }

    /// Adds bytes; equal ones are sent once.
    fn content(&mut self, bytes: Vec<u8>) -> Result<proto::ContentReference, Failure> {
        let digest: [u8; 32] = Sha256::digest(&bytes).into();
        let next = self.contents.len() as u32;
        let number = *self.contents.entry(digest).or_insert(next);
        if number == next {
            self.bytes += bytes.len();
            if self.bytes > APPLY_BYTES {
                let sentence = format!(
                    "the documents name files of more than {APPLY_BYTES} bytes, which is the limit of one apply"
                );
                let failure = Failure::new(Code::RESOURCE_EXHAUSTED, sentence);
                return Err(failure.hint("several applies, such as one per tenant"));
            }
            self.order.contents.insert(number, bytes);
        }
        let content = Some(content_reference::Content::Number(number));
        Ok(proto::ContentReference { content })
    }

    fn ceiling(&mut self, tenant: &str, key: String, value: String) {
        let tenant = tenant.to_owned();
        let ceilings = &mut self.order.state.ceilings;
        ceilings.push(proto::CeilingState { tenant, key, value });
    }

    fn tenant(&mut self, path: &Path, tenant: Tenant) -> Result<(), Failure> {
        let name = tenant.name;
        self.once(path, format!("tenant {name}"))?;
        for (key, value) in tenant.ceiling {
            self.ceiling(&name, key, value.text());
        }
        for credential in tenant.credentials {
            let what = format!("credential {} of tenant {name}", credential.name);
            self.once(path, what)?;
            let credential = credential_state(path, &name, credential)?;
            self.order.state.credentials.push(credential);
        }
        self.order.state.tenants.push(proto::TenantState { name });
        Ok(())
    }

    fn policy(&mut self, path: &Path, policy: Policy) -> Result<(), Failure> {
        let name = policy.name;
        let whose = owner_words(policy.tenant.as_deref(), policy.provider);
        let what = match policy.version {
            Some(version) => format!("policy {name}@{version} {whose}"),
            None => format!("policy {name} {whose} without a version"),
        };
        let failed =
            |sentence: &dyn std::fmt::Display| wrong(path, format_args!("{what}: {sentence}"));
        if policy.provider && policy.tenant.is_some() {
            return Err(failed(&"it is the provider's, so it names no tenant"));
        }
        if policy.version == Some(0) {
            return Err(failed(&"versions count from 1"));
        }
        self.once(path, what.clone())?;
        let (module, proof) = module(path, &policy.module, policy.signature.as_deref())
            .map_err(|failure| failure.within(path, &what))?;
        let module = match module {
            Module::Bytes(bytes) => self.content(bytes)?,
            Module::Digest(digest) => stored(digest),
        };
        let proof = proof.map(|proof| self.content(proof.encode_to_vec()));
        let configuration = match (policy.configuration, policy.configuration_text) {
            (Some(_), Some(_)) => {
                return Err(failed(
                    &"it has `configuration` and `configuration_text`: leave one out",
                ));
            }
            (None, None) => None,
            (None, Some(text)) => Some(self.content(text.into_bytes())?),
            (Some(named), None) if named.starts_with(SHA256) => {
                let digest = digest_of(&named).map_err(|error| failed(&error))?;
                Some(stored(digest))
            }
            (Some(named), None) => {
                let bytes = read_at_most(&beside(path, &named), APPLY_BYTES as u64);
                let bytes = bytes.map_err(|failure| failure.within(path, &what))?;
                Some(self.content(bytes)?)
            }
        };
        let state = &mut self.order.state;
        state.policies.push(proto::PolicyState {
            owner: Some(proto::Owner {
                tenant: policy.tenant.unwrap_or_default(),
                provider: policy.provider,
            }),
            name,
            version: policy.version.unwrap_or(0),
            module: Some(module),
            configuration,
            proof: proof.transpose()?,
        });
        Ok(())
    }

    fn attachment(&mut self, path: &Path, attachment: Attachment) -> Result<(), Failure> {
        let Attachment {
            tenant, provider, ..
        } = &attachment;
        let whose = owner_words(tenant.as_deref(), *provider);
        let service = attachment.service.as_deref().unwrap_or("*");
        let method = attachment.method.as_deref().unwrap_or("*");
        let side = match attachment.side {
            Side::Client => "client",
            Side::Server => "server",
        };
        let part = match (provider, attachment.part) {
            (true, Some(Part::Post)) => " (post)",
            (true, _) => " (pre)",
            (false, _) => "",
        };
        let calls = match (provider, tenant) {
            (true, Some(tenant)) => format!(" for tenant {tenant}"),
            _ => String::new(),
        };
        let what = format!(
            "the attachment of {} {whose}{calls} at {side} {service}/{method}{part}",
            attachment.policy
        );
        self.once(path, what.clone())?;
        let state = attachment_state(attachment, &self.order.state.policies)
            .map_err(|sentence| wrong(path, format_args!("{what}: {sentence}")))?;
        self.order.state.attachments.push(state);
        Ok(())
    }
}

fn stored(digest: Vec<u8>) -> proto::ContentReference {
    let content = Some(content_reference::Content::Digest(digest));
    proto::ContentReference { content }
}

/// The bytes of `sha256:HEX`.
fn digest_of(text: &str) -> Result<Vec<u8>, String> {
    let hex = text.strip_prefix(SHA256).unwrap_or_default();
    let digits = hex.as_bytes().as_chunks::<2>().0.iter().map(|pair| {
        let pair = std::str::from_utf8(pair).ok()?;
        let is_lower = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        let is_hex = pair.bytes().all(is_lower);
        is_hex.then(|| u8::from_str_radix(pair, 16).ok()).flatten()
    });
    let digest: Option<Vec<u8>> = digits.collect();
    let digest = digest.filter(|digest| digest.len() == 32 && hex.len() == 64);
    digest.ok_or_else(|| format!("{text:?} isn't a digest: write sha256: and 64 hex digits, a-f"))
}

// ---- credentials ----

fn credential_state(
    path: &Path,
    tenant: &str,
    credential: Credential,
) -> Result<proto::CredentialState, Failure> {
    let what = format!("credential {} of tenant {tenant}", credential.name);
    let failed = |sentence: &dyn std::fmt::Display| wrong(path, format_args!("{what}: {sentence}"));
    let expires = credential.expires.as_deref().map(|at| {
        let parsed = at.parse::<prost_types::Timestamp>();
        parsed.map_err(|_| {
            failed(&format_args!(
                "{at:?} isn't a time: write it like 2027-01-01T00:00:00Z"
            ))
        })
    });
    let digest = match (
        &credential.token_file,
        &credential.token_env,
        &credential.token_digest,
    ) {
        (None, None, None) => Vec::new(),
        (Some(file), None, None) => {
            let file = beside(path, file);
            let found = token::from_file(&file).map_err(|status| {
                Failure::new(status.code(), status.message()).within(path, &what)
            })?;
            token_digest(&found.reveal(), &file.display()).map_err(|error| failed(&error))?
        }
        (None, Some(variable), None) => {
            let found = std::env::var(variable).ok();
            let found = found.filter(|token| !token.is_empty());
            let found =
                found.ok_or_else(|| failed(&format_args!("the environment has no {variable}")))?;
            token_digest(&found, variable).map_err(|error| failed(&error))?
        }
        (None, None, Some(digest)) => digest_of(digest).map_err(|error| failed(&error))?,
        _ => {
            return Err(failed(
                &"it names its token twice: leave one of token_file, token_env and token_digest",
            ));
        }
    };
    Ok(proto::CredentialState {
        tenant: tenant.to_owned(),
        role: match credential.role {
            Role::Owner => proto::Role::Owner.into(),
            Role::Viewer => proto::Role::Viewer.into(),
            Role::Application => proto::Role::Application.into(),
        },
        name: credential.name,
        expires: expires.transpose()?,
        token_digest: digest,
    })
}

/// The digest of a token, which is as long as those that the daemon makes: the digest of a short
/// one could be found again.
fn token_digest(token: &str, from: &dyn std::fmt::Display) -> Result<Vec<u8>, String> {
    let is_hex = |hex: &str| hex.len() == 64 && hex.bytes().all(|b| b.is_ascii_hexdigit());
    match token.strip_prefix("tg_").is_some_and(is_hex) {
        true => Ok(Sha256::digest(token.as_bytes()).to_vec()),
        false => Err(format!(
            "{from} has no token: one is tg_ and 64 random hex digits, as \"tg_$(openssl rand -hex 32)\" makes it"
        )),
    }
}

// ---- policies ----

enum Module {
    Bytes(Vec<u8>),
    Digest(Vec<u8>),
}

/// A module, and the proof of its origin.
fn module(
    path: &Path,
    named: &str,
    signature: Option<&str>,
) -> Result<(Module, Option<PolicyProof>), Failure> {
    let is_file = !named.starts_with(SHA256) && !named.starts_with(SCHEME);
    if !is_file && signature.is_some() {
        let sentence = "`signature` is for a module in a file";
        return Err(Failure::input(sentence));
    }
    if named.starts_with(SHA256) {
        let digest = digest_of(named).map_err(Failure::input)?;
        return Ok((Module::Digest(digest), None));
    }
    if named.starts_with(SCHEME) {
        if !named.contains("@sha256:") {
            let sentence = format!("{named} may be another image tomorrow");
            return Err(Failure::input(sentence).hint(format!("{named}@sha256:DIGEST")));
        }
        let (module, proof) = fetch(named)?;
        check_described(&module, named)?;
        return Ok((Module::Bytes(module), proof));
    }
    let read = |named: &str| read_at_most(&beside(path, named), APPLY_BYTES as u64);
    let module = read(named)?;
    check_described(&module, named)?;
    let signature = signature.map(|named| {
        let signature = PolicySignature {
            signature: read(named)?,
            payload: Vec::new(),
        };
        Ok(PolicyProof {
            signatures: vec![signature],
            ..PolicyProof::default()
        })
    });
    Ok((Module::Bytes(module), signature.transpose()?))
}

/// Refuses a module as another host's compiler built it: a document has no keys that describe it.
fn check_described(module: &[u8], named: &str) -> Result<(), Failure> {
    // The daemon refuses bytes that are no module.
    let Some(abi) = compat::detect(module).unwrap_or(None) else {
        return Ok(());
    };
    let sentence = format!(
        "{named} is a module for {} without a manifest, and documents don't describe modules",
        abi.name()
    );
    let hint = format!(
        "tollgate policy push {named}, with options that describe it, and apply what tollgate export --out DIR writes"
    );
    Err(Failure::input(sentence).hint(hint))
}

// ---- attachments ----

fn attachment_state(
    attachment: Attachment,
    policies: &[proto::PolicyState],
) -> Result<proto::AttachmentState, String> {
    let Attachment {
        tenant,
        provider,
        policy: name,
        ..
    } = attachment;
    let of_documents = || {
        let is_its = |policy: &proto::PolicyState| {
            let owner = policy.owner.as_ref();
            policy.name == name
                && owner.is_some_and(|owner| match provider {
                    true => owner.provider,
                    false => {
                        !owner.provider && owner.tenant == tenant.as_deref().unwrap_or_default()
                    }
                })
        };
        let its = policies.iter().enumerate();
        let mut its = its.filter(|(_, policy)| is_its(policy));
        match (its.next(), its.next()) {
            (Some((index, _)), None) => Ok(proto::VersionReference {
                version: 0,
                policy: index as u32,
            }),
            (None, _) => Err(format!(
                "it names no version, and the documents have no policy {name} of this owner"
            )),
            (Some(_), Some(_)) => Err(format!(
                "it names no version, and the documents have several of policy {name}"
            )),
        }
    };
    let numbered = |version| match version {
        Some(0) => Err("versions count from 1".to_owned()),
        Some(version) => Ok(proto::VersionReference { version, policy: 0 }),
        None => of_documents(),
    };
    let stable = match (attachment.version, &attachment.trial) {
        (None, Some(_)) => None,
        (version, _) => Some(numbered(version)?),
    };
    let trial = attachment.trial.as_ref().map(|trial| {
        let version = numbered(trial.version)?;
        trial_state(trial, version)
    });
    if attachment.part.is_some() && !provider {
        return Err("`part` is for the provider's policies".to_owned());
    }
    let names = |list: Option<Vec<String>>| list.map(|names| proto::Names { names });
    let options = proto::AttachmentOptions {
        on_fault: match attachment.on_fault {
            None => proto::OnFault::Unspecified.into(),
            Some(OnFault::Reload) => proto::OnFault::Reload.into(),
            Some(OnFault::Closed) => proto::OnFault::Closed.into(),
            Some(OnFault::Open) => proto::OnFault::Open.into(),
        },
        hooks: names(attachment.hooks),
        fields: names(attachment.fields),
        metadata: names(attachment.metadata),
        callers: names(attachment.callers),
        capabilities: names(attachment.capabilities),
        cpu_us: attachment.cpu_us,
        fresh: attachment.fresh,
        isolation: match attachment.isolation {
            None => proto::Isolation::Unspecified.into(),
            Some(Isolation::None) => proto::Isolation::None.into(),
            Some(Isolation::Process) => proto::Isolation::Process.into(),
        },
        record: attachment.record,
        max_worse: attachment.max_worse,
    };
    Ok(proto::AttachmentState {
        party: match (provider, attachment.part) {
            (false, _) => proto::Party::Tenant.into(),
            (true, Some(Part::Post)) => proto::Party::ProviderPost.into(),
            (true, _) => proto::Party::ProviderPre.into(),
        },
        side: match attachment.side {
            Side::Client => proto::Side::Client.into(),
            Side::Server => proto::Side::Server.into(),
        },
        service: attachment.service.unwrap_or_default(),
        method: attachment.method.unwrap_or_default(),
        stable,
        trial: trial.transpose()?,
        options: Some(options),
        owner: Some(proto::Owner {
            tenant: tenant.clone().unwrap_or_default(),
            provider,
        }),
        name: name.clone(),
    })
}

fn trial_state(
    trial: &Trial,
    version: proto::VersionReference,
) -> Result<proto::TrialState, String> {
    let (mode, percent) = match (trial.mode, trial.percent) {
        (Mode::Shadow, None) => (proto::Mode::Shadow, 0),
        (Mode::Shadow, Some(_)) => return Err("a shadow has no `percent`".to_owned()),
        (Mode::Canary, Some(percent)) => (proto::Mode::Canary, percent),
        (Mode::Canary, None) => return Err("a canary needs `percent`, 1 to 100".to_owned()),
    };
    let probation = trial.probation.as_deref().map(|text| {
        let time = long_duration(text)?;
        prost_types::Duration::try_from(time).map_err(|_| "the probation is too long".to_owned())
    });
    Ok(proto::TrialState {
        version: Some(version),
        mode: mode.into(),
        percent,
        probation: probation.transpose()?,
    })
}
