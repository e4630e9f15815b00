//! `tollgate export`: what the daemon has, as documents that `tollgate apply` takes.

use std::collections::BTreeMap;
use std::fs::{DirBuilder, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use tollgate_admin::proto::{
    self, AttachmentState, DownloadPolicyRequest, ExportStateRequest, PolicyState, State,
    content_reference,
};
use tollgate_shm_abi::status::Code;

use crate::api::Api;
use crate::desired::args::{Export, Format};
use crate::desired::model::{
    Attachment, Credential, Document, Isolation, Mode, OnFault, Part, Policy, Role, Scalar, Side,
    Tenant, Trial,
};
use crate::desired::order::SHA256;
use crate::failure::Failure;
use crate::values::written_duration;

/// Directories of the contents beside a document.
const MODULES: &str = "modules";
const CONFIGURATIONS: &str = "configurations";

/// `tollgate export`
pub(crate) fn export(socket: &Path, args: &Export) -> Result<String, Failure> {
    let api = Api::connect(socket, &args.acting)?;
    let tenant = args.tenant.clone().unwrap_or_default();
    let state = api.ask(ExportStateRequest { tenant })?.state;
    let state = state.unwrap_or_default();
    let Some(out) = &args.out else {
        return text(
            &document(&state, &|_, digest| format!("{SHA256}{digest}")),
            args.format,
        );
    };
    make_directory(out)?;
    for directory in [MODULES, CONFIGURATIONS] {
        make_directory(&out.join(directory))?;
    }
    download(&api, &state, out)?;
    let document = document(&state, &|kind, digest| match kind {
        MODULES => format!("{MODULES}/{digest}.wasm"),
        kind => format!("{kind}/{digest}"),
    });
    let name = match args.format {
        Format::Toml => "tollgate.toml",
        Format::Yaml => "tollgate.yaml",
    };
    write(&out.join(name), text(&document, args.format)?.as_bytes())?;
    Ok(String::new())
}

fn text(document: &Document, format: Format) -> Result<String, Failure> {
    let failed = |error: &dyn std::fmt::Display| {
        Failure::new(Code::INTERNAL, format_args!("the document: {error}"))
    };
    match format {
        Format::Toml => toml::to_string(document).map_err(|error| failed(&error)),
        Format::Yaml => serde_saphyr::to_string(document).map_err(|error| failed(&error)),
    }
}

fn make_directory(path: &Path) -> Result<(), Failure> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(|error| unwritten(path, &error))
}

/// Configurations may have secrets: only this user reads what is written.
fn write(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path);
    let written = file.and_then(|mut file| file.write_all(bytes));
    written.map_err(|error| unwritten(path, &error))
}

fn unwritten(path: &Path, error: &std::io::Error) -> Failure {
    let sentence = format!("{} can't be written: {error}", path.display());
    Failure::new(Failure::code_of(error), sentence)
}

/// Writes each module and configuration once, under its digest.
fn download(api: &Api, state: &State, out: &Path) -> Result<(), Failure> {
    let mut written = std::collections::BTreeSet::new();
    for policy in &state.policies {
        let module = digest(policy.module.as_ref());
        let configuration = digest(policy.configuration.as_ref());
        let is_new = |kind: &'static str, digest: &Option<String>| {
            let digest = digest.as_ref();
            digest.is_some_and(|digest| !written.contains(&(kind, digest.clone())))
        };
        if !is_new(MODULES, &module) && !is_new(CONFIGURATIONS, &configuration) {
            continue;
        }
        let found = api.ask(DownloadPolicyRequest {
            owner: policy.owner.clone(),
            name: policy.name.clone(),
            version: policy.version,
        })?;
        if let Some(digest) = module {
            let path = out.join(MODULES).join(format!("{digest}.wasm"));
            write(&path, &found.module)?;
            written.insert((MODULES, digest));
        }
        if let (Some(digest), Some(bytes)) = (configuration, found.configuration) {
            write(&out.join(CONFIGURATIONS).join(&digest), &bytes)?;
            written.insert((CONFIGURATIONS, digest));
        }
    }
    Ok(())
}

/// A content's digest in hex.
fn digest(content: Option<&proto::ContentReference>) -> Option<String> {
    match content?.content.as_ref()? {
        content_reference::Content::Digest(digest) => Some(hex(digest)),
        content_reference::Content::Number(_) => None,
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The document of a state. `content` says how it names a module or configuration.
fn document(state: &State, content: &dyn Fn(&'static str, &str) -> String) -> Document {
    let mut tenants: BTreeMap<&str, Tenant> = BTreeMap::new();
    let empty = |name: &str| Tenant {
        name: name.to_owned(),
        ceiling: BTreeMap::new(),
        credentials: Vec::new(),
    };
    for tenant in &state.tenants {
        tenants.insert(&tenant.name, empty(&tenant.name));
    }
    let mut document = Document::default();
    for ceiling in &state.ceilings {
        let proto::CeilingState { tenant, key, value } = ceiling;
        let values = match tenant.as_str() {
            "" => &mut document.default_ceiling,
            name => &mut tenants.entry(name).or_insert_with(|| empty(name)).ceiling,
        };
        values.insert(key.clone(), Scalar::of(value));
    }
    for credential in &state.credentials {
        let name = credential.tenant.as_str();
        let tenant = tenants.entry(name).or_insert_with(|| empty(name));
        tenant.credentials.push(Credential {
            name: credential.name.clone(),
            role: match credential.role() {
                proto::Role::Owner => Role::Owner,
                proto::Role::Application => Role::Application,
                // An export has no operators' credentials.
                proto::Role::Viewer | proto::Role::Operator | proto::Role::Unspecified => {
                    Role::Viewer
                }
            },
            expires: credential.expires.as_ref().map(ToString::to_string),
            token_file: None,
            token_env: None,
            token_digest: Some(format!("{SHA256}{}", hex(&credential.token_digest))),
        });
    }
    document.tenants = tenants.into_values().collect();
    let settings = state.settings.iter();
    let settings = settings.map(|its| (its.key.clone(), Scalar::of(&its.value)));
    document.settings = settings.collect();
    let policies = state.policies.iter();
    document.policies = policies
        .map(|policy| self::policy(policy, content))
        .collect();
    document.attachments = state.attachments.iter().map(attachment).collect();
    document
}

fn policy(policy: &PolicyState, content: &dyn Fn(&'static str, &str) -> String) -> Policy {
    let owner = policy.owner.clone().unwrap_or_default();
    let module = digest(policy.module.as_ref()).unwrap_or_default();
    let configuration = digest(policy.configuration.as_ref());
    Policy {
        tenant: Some(owner.tenant).filter(|tenant| !tenant.is_empty()),
        provider: owner.provider,
        name: policy.name.clone(),
        version: Some(policy.version),
        module: content(MODULES, &module),
        signature: None,
        configuration: configuration.map(|digest| content(CONFIGURATIONS, &digest)),
        configuration_text: None,
    }
}

fn attachment(state: &AttachmentState) -> Attachment {
    let owner = state.owner.clone().unwrap_or_default();
    let options = state.options.clone().unwrap_or_default();
    let some = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
    let names = |names: Option<proto::Names>| names.map(|names| names.names);
    let number = |version: &proto::VersionReference| version.version;
    Attachment {
        tenant: some(&owner.tenant),
        provider: owner.provider,
        policy: state.name.clone(),
        version: state.stable.as_ref().map(number),
        trial: state.trial.as_ref().map(|trial| Trial {
            version: trial.version.as_ref().map(number),
            mode: match trial.mode() {
                proto::Mode::Canary => Mode::Canary,
                _ => Mode::Shadow,
            },
            percent: Some(trial.percent).filter(|percent| *percent > 0),
            probation: trial.probation.as_ref().map(|time| {
                let time = Duration::try_from(*time).unwrap_or_default();
                written_duration(time)
            }),
        }),
        service: some(&state.service),
        method: some(&state.method),
        side: match state.side() {
            proto::Side::Server => Side::Server,
            _ => Side::Client,
        },
        part: match state.party() {
            proto::Party::ProviderPost => Some(Part::Post),
            proto::Party::ProviderPre => Some(Part::Pre),
            _ => None,
        },
        on_fault: match options.on_fault() {
            proto::OnFault::Unspecified => None,
            proto::OnFault::Reload => Some(OnFault::Reload),
            proto::OnFault::Closed => Some(OnFault::Closed),
            proto::OnFault::Open => Some(OnFault::Open),
        },
        isolation: match options.isolation() {
            proto::Isolation::Unspecified => None,
            proto::Isolation::None => Some(Isolation::None),
            proto::Isolation::Process => Some(Isolation::Process),
        },
        hooks: names(options.hooks),
        fields: names(options.fields),
        metadata: names(options.metadata),
        callers: names(options.callers),
        capabilities: names(options.capabilities),
        cpu_us: options.cpu_us,
        fresh: options.fresh,
        record: options.record,
        max_worse: options.max_worse,
    }
}
