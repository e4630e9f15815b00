//! Administration: tenants, policies, attachments, status. For root and the daemon's own user.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use serde_json::json;
use tollgate_control::{Attachment, Cause, Detach, PolicyVersion, Side, StoreError, Target};
use tollgate_engine::Status;
use tollgate_policy_host::{Instance, Policy, Setup, limits as policy_limits};
use tollgate_shm_abi::blob::{blob_create, blob_read};
use tollgate_shm_abi::control::ControlSocket;
use tollgate_shm_abi::messages::{
    AttachmentInfo, Empty, Policies, PolicyAttach, PolicyDetach, PolicyInfo, PolicyPush,
    PolicyPushed, RequestBody, ResponseBody, SIDE_ANY, SIDE_CLIENT, SIDE_SERVER, StatusReport,
    TenantAdded, Tenants,
};
use tollgate_shm_abi::status::Code;

use crate::control::connection::Answer;
use crate::control::policies::{Live, by_policy, check_relevant, steps_of};
use crate::control::{Control, DaemonError};
use crate::datapath::Command;
use crate::datapath::command::{How, PolicyChange, Report};
use crate::limits::MAX_ATTACHMENTS;

/// Refuses everybody but root and the daemon's own user.
pub(crate) fn authorize(socket: &ControlSocket) -> Result<(), Status> {
    let peer = socket
        .peer()
        .map_err(|error| Status::new(Code::UNAUTHENTICATED, error.to_string()))?;
    let own = rustix::process::geteuid().as_raw();
    if peer.uid == 0 || peer.uid == own {
        return Ok(());
    }
    let text = format!(
        "user {} may not administer this daemon; root and user {own} may",
        peer.uid
    );
    Err(Status::new(Code::PERMISSION_DENIED, text))
}

/// The status for what the store refuses.
pub(crate) fn store_failed(error: &StoreError) -> Status {
    let code = match error.cause() {
        Cause::Invalid => Code::INVALID_ARGUMENT,
        Cause::Exists => Code::ALREADY_EXISTS,
        Cause::Missing => Code::NOT_FOUND,
        Cause::Limit => Code::RESOURCE_EXHAUSTED,
        Cause::Broken => Code::INTERNAL,
    };
    Status::new(code, error.to_string())
}

/// Carries out one administrative request.
pub(crate) async fn handle(
    control: &Rc<Control>,
    body: RequestBody,
    fds: Vec<OwnedFd>,
) -> Result<Answer, Status> {
    let store = &control.store;
    Ok(match body {
        RequestBody::TenantAdd(request) => {
            let token = store
                .add_tenant(&request.name)
                .map_err(|error| store_failed(&error))?;
            ResponseBody::TenantAdded(TenantAdded {
                token: token.reveal().to_owned(),
            })
            .into()
        }
        RequestBody::TenantList(_) => {
            let names = store.tenants().map_err(|error| store_failed(&error))?;
            ResponseBody::Tenants(Tenants { names }).into()
        }
        RequestBody::PolicyPush(request) => push(control, request, fds).await?.into(),
        RequestBody::PolicyAttach(request) => {
            let _one_at_a_time = control.changing.lock().await;
            attach(control, request).await?;
            ResponseBody::Done(Empty {}).into()
        }
        RequestBody::PolicyDetach(request) => {
            let _one_at_a_time = control.changing.lock().await;
            detach(control, request).await?;
            ResponseBody::Done(Empty {}).into()
        }
        RequestBody::PolicyList(_) => list(control)?.into(),
        RequestBody::Status(_) => status(control).await?,
        RequestBody::OpenSession(_) | RequestBody::Bind(_) => {
            return Err(Status::new(
                Code::INTERNAL,
                "an application's request reached the administration",
            ));
        }
    })
}

fn invalid(text: impl Into<std::borrow::Cow<'static, str>>) -> Status {
    Status::new(Code::INVALID_ARGUMENT, text)
}

async fn push(
    control: &Control,
    request: PolicyPush,
    fds: Vec<OwnedFd>,
) -> Result<ResponseBody, Status> {
    let (module, config) = match (fds.as_slice(), request.has_config) {
        ([module], false) => (module, None),
        ([module, config], true) => (module, Some(config)),
        _ => {
            return Err(invalid(format!(
                "a push carries a module and maybe a configuration; this one carried {} descriptors",
                fds.len()
            )));
        }
    };
    let wasm = blob_read(module, policy_limits::MODULE_BYTES)
        .map_err(|error| invalid(format!("the module can't be read: {error}")))?;
    let config = config
        .map(|config| blob_read(config, policy_limits::CONFIG_BYTES))
        .transpose()
        .map_err(|error| invalid(format!("the configuration can't be read: {error}")))?;
    // A tenant that doesn't exist shall not make us compile.
    let tenants = control
        .store
        .tenants()
        .map_err(|error| store_failed(&error))?;
    if !tenants.contains(&request.tenant) {
        return Err(store_failed(&StoreError::NoTenant {
            tenant: request.tenant,
        }));
    }
    let (policy, wasm) = control.load(wasm).await?;
    // A configuration that the policy refuses is refused now, not when it is attached.
    control.instantiate(policy, config.clone()).await?;
    let pushed =
        control
            .store
            .push_policy(&request.tenant, &request.name, &wasm, config.as_deref());
    let PolicyVersion { name, version } = pushed.map_err(|error| store_failed(&error))?;
    Ok(ResponseBody::PolicyPushed(PolicyPushed { name, version }))
}

async fn attach(control: &Control, request: PolicyAttach) -> Result<(), Status> {
    let version: PolicyVersion = request
        .policy
        .parse()
        .map_err(|error| store_failed(&error))?;
    let side = match request.side {
        SIDE_CLIENT => Side::Client,
        SIDE_SERVER => Side::Server,
        other => {
            return Err(invalid(format!(
                "side {other} is neither client (0) nor server (1)"
            )));
        }
    };
    let target = Target {
        tenant: request.tenant,
        service: request.service,
        method: request.method,
        side,
    };
    let attachment = Attachment {
        target: target.clone(),
        policy: version.clone(),
    };
    let mut live = control.prepare(&attachment).await?;
    let policy = live
        .policy
        .clone()
        .expect("prepare fails rather than leave a policy out");
    check_relevant(&policy, &version, &target)?;
    control.check_fit(&policy, &attachment)?;
    let instance = control.instantiate(policy, live.config.clone()).await?;
    control
        .store
        .attach(&attachment)
        .map_err(|error| store_failed(&error))?;
    let runtime = control.runtime_of(&target.tenant);
    let change = {
        let order = control
            .store
            .attachments()
            .map_err(|error| store_failed(&error))?;
        let mut attachments = control.attachments.borrow_mut();
        attachments.generation += 1;
        let replaced = attachments.id_at(&target, &version.name);
        if let Some(id) = replaced {
            attachments.live.remove(id);
        }
        live.attachment = attachment;
        let id = attachments.live.insert(live).ok_or_else(|| {
            Status::new(
                Code::RESOURCE_EXHAUSTED,
                format!("the daemon has {MAX_ATTACHMENTS} attachments, which is the limit"),
            )
        })?;
        let chains = attachments.changed_chains(&order, &target, runtime)?;
        let live = attachments.live.get(id).expect("it was just inserted");
        PolicyChange {
            install: vec![live.installed(id, How::Kept(Box::new(instance)))],
            chains,
            remove: replaced.into_iter().collect(),
        }
    };
    control.apply(runtime, change).await
}

async fn detach(control: &Control, request: PolicyDetach) -> Result<(), Status> {
    let side = match request.side {
        SIDE_ANY => None,
        SIDE_CLIENT => Some(Side::Client),
        SIDE_SERVER => Some(Side::Server),
        other => {
            return Err(invalid(format!(
                "side {other} is neither client (0), server (1) nor any (-1)"
            )));
        }
    };
    let some = |text: String| if text.is_empty() { None } else { Some(text) };
    let which = Detach {
        service: some(request.service),
        method: some(request.method),
        side,
    };
    let ended = control
        .store
        .detach(&request.tenant, &request.policy, &which)
        .map_err(|error| store_failed(&error))?;
    let runtime = control.runtime_of(&request.tenant);
    let change = {
        let order = control
            .store
            .attachments()
            .map_err(|error| store_failed(&error))?;
        let mut attachments = control.attachments.borrow_mut();
        attachments.generation += 1;
        let mut change = PolicyChange::default();
        for Attachment { target, policy } in &ended {
            if let Some(id) = attachments.id_at(target, &policy.name) {
                attachments.live.remove(id);
                change.remove.push(id);
            }
            change
                .chains
                .extend(attachments.changed_chains(&order, target, runtime)?);
        }
        change
    };
    control.apply(runtime, change).await
}

impl Control {
    /// Compiles a module, or finds it compiled; gives the bytes back.
    async fn load(&self, wasm: Vec<u8>) -> Result<(Policy, Vec<u8>), Status> {
        let host = self.host.clone();
        let loaded =
            tokio::task::spawn_blocking(move || host.load(&wasm).map(|policy| (policy, wasm)))
                .await;
        let loaded = loaded.map_err(|error| {
            Status::new(
                Code::INTERNAL,
                format!("loading the module failed: {error}"),
            )
        })?;
        let (policy, wasm) = loaded.map_err(|error| invalid(error.to_string()))?;
        self.attachments
            .borrow_mut()
            .remember(*policy.digest(), policy.clone());
        Ok((policy, wasm))
    }

    /// A fresh, configured instance, made on a blocking thread: its set-up is the guest's code.
    pub(super) async fn instantiate(
        &self,
        policy: Policy,
        config: Option<Vec<u8>>,
    ) -> Result<Instance, Status> {
        let limits = self.limits.clone();
        let made = tokio::task::spawn_blocking(move || {
            let config = config.as_deref();
            policy.instantiate(&Setup {
                config,
                ..Setup::new(&limits)
            })
        })
        .await;
        let made = made.map_err(|error| {
            Status::new(
                Code::INTERNAL,
                format!("instantiating the policy failed: {error}"),
            )
        })?;
        made.map_err(|error| invalid(error.to_string()))
    }

    /// The stored policy of an attachment, compiled.
    async fn prepare(&self, attachment: &Attachment) -> Result<Live, Status> {
        let stored = self
            .store
            .policy(&attachment.target.tenant, &attachment.policy);
        let stored = stored.map_err(|error| store_failed(&error))?;
        let compiled = self.attachments.borrow().compiled(&stored.digest);
        let policy = match compiled {
            Some(policy) => policy,
            None => self.load(stored.wasm).await?.0,
        };
        Ok(Live::new(attachment.clone(), Some(policy), stored.config))
    }

    /// Checks the policy's fields against every known schema of the service.
    fn check_fit(&self, policy: &Policy, attachment: &Attachment) -> Result<(), Status> {
        let Target {
            service, method, ..
        } = &attachment.target;
        for schema in self.schemas.borrow().named(service) {
            if !method.is_empty() && !schema.layout.methods.iter().any(|m| m.name == *method) {
                return Err(invalid(format!(
                    "service {service} has no method {method:?}"
                )));
            }
            for known in schema
                .layout
                .methods
                .iter()
                .filter(|m| method.is_empty() || m.name == *method)
            {
                steps_of(0, policy, &attachment.policy, schema, &known.name)?;
            }
        }
        Ok(())
    }

    /// Puts the stored attachments in force when the daemon starts. One that can't be loaded refuses its calls.
    pub(super) async fn restore(&self) -> Result<(), DaemonError> {
        let order = self
            .store
            .attachments()
            .map_err(|error| DaemonError(format!("the store can't be read: {error}")))?;
        for attachment in order {
            let runtime = self.runtime_of(&attachment.target.tenant);
            let (live, how) = match self.revive(&attachment).await {
                Ok((live, instance)) => (live, How::Kept(Box::new(instance))),
                Err(status) => {
                    tracing::error!(
                        "{} of tenant {} refuses its calls: {}",
                        attachment.policy,
                        attachment.target.tenant,
                        status.message
                    );
                    let reason = "it could not be loaded when the daemon started";
                    let live = Live::new(attachment, None, None);
                    (live, How::Broken(reason.to_owned()))
                }
            };
            let change = {
                let mut attachments = self.attachments.borrow_mut();
                let id = attachments.live.insert(live).ok_or_else(|| {
                    DaemonError(format!(
                        "more than {MAX_ATTACHMENTS} attachments are stored"
                    ))
                })?;
                let live = attachments.live.get(id).expect("it was just inserted");
                PolicyChange {
                    install: vec![live.installed(id, how)],
                    ..Default::default()
                }
            };
            let applied = self.apply(runtime, change).await;
            applied.map_err(|status| {
                DaemonError(format!("a policy can't be installed: {}", status.message))
            })?;
        }
        Ok(())
    }

    async fn revive(&self, attachment: &Attachment) -> Result<(Live, Instance), Status> {
        let live = self.prepare(attachment).await?;
        let policy = live
            .policy
            .clone()
            .expect("prepare fails rather than leave a policy out");
        let instance = self.instantiate(policy, live.config.clone()).await?;
        Ok((live, instance))
    }
}

fn list(control: &Control) -> Result<ResponseBody, Status> {
    let stored = control
        .store
        .policies()
        .map_err(|error| store_failed(&error))?;
    let order = control
        .store
        .attachments()
        .map_err(|error| store_failed(&error))?;
    let mut attached = by_policy(&order);
    let policies = stored.into_iter().map(|info| {
        let targets = attached
            .remove(&(info.tenant.clone(), info.policy.clone()))
            .unwrap_or_default();
        PolicyInfo {
            tenant: info.tenant,
            name: info.policy.name,
            version: info.policy.version,
            module_bytes: info.module_bytes,
            digest: tollgate_control::hex(&info.digest),
            attachments: targets.into_iter().map(attachment_info).collect(),
        }
    });
    Ok(ResponseBody::Policies(Policies {
        policies: policies.collect(),
    }))
}

fn attachment_info(target: Target) -> AttachmentInfo {
    let side = match target.side {
        Side::Client => SIDE_CLIENT,
        Side::Server => SIDE_SERVER,
    };
    AttachmentInfo {
        service: target.service,
        method: target.method,
        side,
    }
}

async fn status(control: &Control) -> Result<Answer, Status> {
    let mut report = Report::default();
    for runtime in 0..control.runtimes.len() {
        let part = control
            .ask(runtime, |reply| Command::Report { reply })
            .await?;
        report.absorb(part);
    }
    let text = serde_json::to_vec(&json!({
        "name": control.config.name,
        "version": env!("CARGO_PKG_VERSION"),
        "pid": std::process::id(),
        "socket": control.config.socket_path(),
        "listen": control.listen.map(|address| address.to_string()),
        "runtimes": control.runtimes.len(),
        "tenants": control.store.tenants().map_err(|error| store_failed(&error))?,
        "sessions": report.sessions,
        "links": report.links,
        "services": report.services,
        "policies": policy_status(control, &report)?,
        "accounts": report.accounts,
        "calls": report.calls,
        "bytes": report.bytes,
        "schemas": control.schemas.borrow().counters(),
        "live_calls": report.live_calls,
    }));
    let text = text.map_err(|error| Status::new(Code::INTERNAL, error.to_string()))?;
    let blob = blob_create(&text)
        .map_err(|error| Status::new(Code::RESOURCE_EXHAUSTED, error.to_string()))?;
    Ok(Answer {
        body: ResponseBody::Status(StatusReport {}),
        fds: vec![blob],
    })
}

/// Every stored version, with its attachments and what they have judged.
fn policy_status(control: &Control, report: &Report) -> Result<Vec<serde_json::Value>, Status> {
    let stored = control
        .store
        .policies()
        .map_err(|error| store_failed(&error))?;
    let attachments = control.attachments.borrow();
    let counted: HashMap<_, _> = report
        .policies
        .iter()
        .map(|policy| ((policy.id, policy.version), policy))
        .collect();
    let one = |info: &tollgate_control::PolicyInfo| {
        let (mut allowed, mut denied, mut faults, mut refused) = (0, 0, 0, 0);
        let mut places = Vec::new();
        for (id, live) in attachments.live.iter() {
            let Attachment { target, policy } = &live.attachment;
            if target.tenant != info.tenant || *policy != info.policy {
                continue;
            }
            let Some(judged) = counted.get(&(id, policy.version)) else {
                continue;
            };
            let counts = &judged.counts;
            (allowed, denied) = (allowed + counts.allowed, denied + counts.denied);
            (faults, refused) = (faults + counts.faults, refused + counts.refused);
            places.push(json!({
                "service": target.service,
                "method": target.method,
                "side": match target.side { Side::Client => "client", Side::Server => "server" },
                "alive": judged.alive,
                "last_fault": judged.last_fault,
            }));
        }
        json!({
            "tenant": info.tenant, "name": info.policy.name, "version": info.policy.version,
            "digest": tollgate_control::hex(&info.digest), "module_bytes": info.module_bytes,
            "attachments": places, "allowed": allowed, "denied": denied, "faults": faults, "refused": refused,
        })
    };
    Ok(stored.iter().map(one).collect())
}
