//! `tollgate policy push`: a module from a file, a registry or rules, to the daemon.

use std::path::Path;

use prost::Message as _;
use tollgate_admin::PushOrder;
use tollgate_admin::proto::{
    PolicyPart, PolicyProof, PolicySignature, PushPolicyHeader, PushPolicyStep,
};
use tollgate_policy_tools::{LoadError, compat};
use tollgate_registry::{FetchError, SCHEME};
use tollgate_shm_abi::status::Code;

use crate::api::Api;
use crate::failure::Failure;
use crate::output::plain;
use crate::policy::against::{against, schema_of};
use crate::policy::args::{Abi, Body, Push};
use crate::stderr::{self, warn};

/// `tollgate policy push`
pub(super) fn push(api: &Api, args: &Push) -> Result<String, Failure> {
    let header = PushPolicyHeader {
        owner: Some(api.owner(args.tenant.as_deref(), args.provider)?),
        name: args.name.clone(),
    };
    let (module, proof) = match &args.rules {
        Some(path) => (rules(args, path)?, None),
        None => origin(args, args.module.as_deref().unwrap_or_default())?,
    };
    let config = args.config.as_deref().map(read).transpose()?;
    let description = description(args, &module)?;
    let schema = Some(against(&args.against)?).filter(|schema| !schema.is_empty());
    let parts = [
        (PolicyPart::Module, Some(module)),
        (PolicyPart::Configuration, config),
        (PolicyPart::Description, description.map(String::into_bytes)),
        (PolicyPart::Proof, proof.map(|proof| proof.encode_to_vec())),
        (PolicyPart::Schema, schema),
    ];
    let parts = parts.into_iter();
    let order = PushOrder {
        header,
        parts: parts
            .filter_map(|(part, bytes)| Some((part.into(), bytes?)))
            .collect(),
        ..PushOrder::default()
    };
    let pushed = api.push(order, |step| stderr::step(doing(step)))?;
    pushed
        .warnings
        .iter()
        .for_each(|warning| warn(&plain(warning)));
    Ok(format!("{}@{}\n", pushed.name, pushed.version))
}

/// What the daemon does in a step.
pub(crate) fn doing(step: PushPolicyStep) -> Option<&'static str> {
    match step {
        PushPolicyStep::Unspecified => None,
        PushPolicyStep::Verifying => Some("uploaded; verifying where it comes from"),
        PushPolicyStep::Waiting => Some("waiting for a compile worker"),
        PushPolicyStep::Compiling => Some("scanning and compiling"),
        PushPolicyStep::Trying => Some("trying the configuration"),
        PushPolicyStep::Storing => Some("storing"),
    }
}

/// The manifest for a module that was made for another proxy's ABI.
fn description(args: &Push, module: &[u8]) -> Result<Option<String>, Failure> {
    let failed = |error: LoadError| Failure::new(Code::INVALID_ARGUMENT, error);
    let typed = &args.described;
    let abi = match typed.abi {
        Some(Abi::Tollgate) => None,
        Some(Abi::ProxyWasm) => Some(compat::Abi::ProxyWasm),
        Some(Abi::Opa) => Some(compat::Abi::Opa),
        // The daemon refuses bytes that are no module.
        None => compat::detect(module).unwrap_or(None),
    };
    let Some(abi) = abi else {
        return match typed.is_empty() {
            true => Ok(None),
            false => Err(Failure::input(
                "options that describe a module don't apply: the module has its own manifest, or an unknown interface",
            )
            .hint("--abi proxy-wasm or --abi opa, for a module without a manifest")),
        };
    };
    let body = |body: Option<Body>| match body {
        None | Some(Body::None) => compat::Body::None,
        Some(Body::Read) => compat::Body::Read,
        Some(Body::Change) => compat::Body::Change,
    };
    let description = compat::Description {
        abi: Some(abi),
        name: args.name.clone(),
        hooks: typed.hooks.clone(),
        methods: typed.methods.clone(),
        fields: typed.fields.clone(),
        reply_fields: typed.reply_fields.clone(),
        metadata: typed.metadata.clone(),
        reply_metadata: typed.reply_metadata.clone(),
        metadata_changes: typed.metadata_changes.clone(),
        reply_metadata_changes: typed.reply_metadata_changes.clone(),
        body: body(typed.body),
        reply_body: body(typed.reply_body),
        capabilities: typed.needs.clone(),
        root_id: typed.root_id.clone(),
        entrypoint: typed.entrypoint.clone(),
    };
    description.to_manifest(module).map(Some).map_err(failed)
}

fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    std::fs::read(path).map_err(|error| Failure::file(path, &error))
}

/// The module that a file of rules becomes.
fn rules(args: &Push, path: &Path) -> Result<Vec<u8>, Failure> {
    let schema = schema_of(&args.against)?;
    let compiled = crate::rules::compiled(path, &args.name, schema.as_ref())?;
    Ok(compiled.module)
}

/// The module, and the proof of its origin, if the module doesn't contain it.
fn origin(args: &Push, module: &str) -> Result<(Vec<u8>, Option<PolicyProof>), Failure> {
    if module.starts_with(SCHEME) {
        return image(args, module);
    }
    let module = read(Path::new(module))?;
    let Some(path) = &args.signature else {
        return Ok((module, None));
    };
    let signature = PolicySignature {
        signature: read(path)?,
        payload: Vec::new(),
    };
    let proof = PolicyProof {
        signatures: vec![signature],
        ..PolicyProof::default()
    };
    Ok((module, Some(proof)))
}

fn image(args: &Push, image: &str) -> Result<(Vec<u8>, Option<PolicyProof>), Failure> {
    if args.signature.is_some() {
        return Err(Failure::new(
            Code::INVALID_ARGUMENT,
            format_args!(
                "--signature is for a file; the signatures of {image} are in its registry"
            ),
        ));
    }
    fetch(image)
}

/// A module from a registry, and the proof of its origin.
pub(crate) fn fetch(image: &str) -> Result<(Vec<u8>, Option<PolicyProof>), Failure> {
    let fetched = tollgate_registry::fetch(image).map_err(|error| {
        let code = match error {
            FetchError::Reference { .. } | FetchError::Image { .. } | FetchError::Index { .. } => {
                Code::INVALID_ARGUMENT
            }
            FetchError::NotFound { .. } => Code::NOT_FOUND,
            FetchError::Unauthorized { .. } | FetchError::Credentials { .. } => {
                Code::UNAUTHENTICATED
            }
            FetchError::Registry { .. } | FetchError::Timeout { .. } => Code::UNAVAILABLE,
        };
        Failure::new(code, error)
    })?;
    stderr::tell(&format!(
        "fetched {} ({} layout)",
        fetched.pinned, fetched.layout
    ));
    if let Some(why) = fetched.unsigned {
        stderr::tell(&format!("without signatures: {why}"));
    }
    let signatures = fetched.signatures.into_iter().map(|one| PolicySignature {
        signature: one.signature,
        payload: one.payload,
    });
    let proof = PolicyProof {
        signatures: signatures.collect(),
        manifest: fetched.manifest,
        layer: fetched.layer,
    };
    let signed = !proof.signatures.is_empty();
    Ok((fetched.module, signed.then_some(proof)))
}
