//! `tollgate policy push`: a module from a file or a registry, to the daemon.

use std::os::fd::AsFd;
use std::path::Path;

use prost::Message as _;
use tollgate_policy_tools::{LoadError, compat};
use tollgate_registry::{FetchError, SCHEME};
use tollgate_shm_abi::messages::{
    PolicyProof, PolicyPush, PolicySignature, RequestBody, ResponseBody,
};
use tollgate_shm_abi::status::Code;

use crate::failure::Failure;
use crate::output::plain;
use crate::policy::against::against;
use crate::policy::args::{Abi, Body, Push};
use crate::request::{ask, blob, unexpected};
use crate::stderr::{self, warn};

/// `tollgate policy push`
pub(super) fn push(socket: &Path, args: &Push) -> Result<String, Failure> {
    let (module, proof) = origin(args)?;
    let mut blobs = vec![blob("the module", &module)?];
    if let Some(path) = &args.config {
        blobs.push(blob("the configuration", &read(path)?)?);
    }
    let description = description(args, &module)?;
    if let Some(manifest) = &description {
        blobs.push(blob("the description", manifest.as_bytes())?);
    }
    if let Some(proof) = &proof {
        blobs.push(blob("the signature", &proof.encode_to_vec())?);
    }
    let schema = against(&args.against)?;
    let has_schema = schema.is_some();
    blobs.extend(schema);
    let push = PolicyPush {
        tenant: args.tenant.clone().unwrap_or_default(),
        name: args.name.clone(),
        has_config: args.config.is_some(),
        provider: args.provider,
        has_proof: proof.is_some(),
        has_description: description.is_some(),
        has_schema,
    };
    let fds: Vec<_> = blobs.iter().map(AsFd::as_fd).collect();
    match ask(socket, RequestBody::PolicyPush(push), &fds)? {
        (ResponseBody::PolicyPushed(pushed), _) => {
            pushed
                .warnings
                .iter()
                .for_each(|warning| warn(&plain(warning)));
            Ok(format!("{}@{}\n", pushed.name, pushed.version))
        }
        (other, _) => Err(unexpected(&other)),
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

/// The module, and the proof of its origin, if the module doesn't contain it.
fn origin(args: &Push) -> Result<(Vec<u8>, Option<PolicyProof>), Failure> {
    if args.module.starts_with(SCHEME) {
        return image(args);
    }
    let module = read(Path::new(&args.module))?;
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

fn image(args: &Push) -> Result<(Vec<u8>, Option<PolicyProof>), Failure> {
    if args.signature.is_some() {
        return Err(Failure::new(
            Code::INVALID_ARGUMENT,
            format_args!(
                "--signature is for a file; the signatures of {} are in its registry",
                args.module
            ),
        ));
    }
    let fetched = tollgate_registry::fetch(&args.module).map_err(|error| {
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
