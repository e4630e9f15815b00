//! An administrator with one connection to a daemon: it sends the command line's requests without a
//! process per request, as fast as the daemon answers.
//!
//! For tests that need thousands of changes. Users have the command line, so other tests use
//! [`crate::testbed::Daemon::tollgate`].

use std::os::fd::{AsFd, OwnedFd};

use serde_json::Value;
use tollgate_shm_abi::blob::{blob_create, blob_read};
use tollgate_shm_abi::messages::{
    Empty, Failure, MODE_ENFORCE, Names, PARTY_PROVIDER_POST, PARTY_PROVIDER_PRE, PARTY_TENANT,
    PolicyAttach, PolicyOptions, PolicyPush, PolicySelection, PolicyUpgrade, RequestBody,
    ResponseBody, SIDE_CLIENT, SIDE_SERVER, SettingChange, SettingsChange, TenantAdd,
};

use crate::hostile::Wire;
use crate::testbed::Daemon;

/// The size limit of a report in bytes.
const REPORT_BYTES: usize = 64 << 20;

/// A connection for one request after the other.
#[derive(Debug)]
pub struct Admin {
    wire: Wire,
}

/// A policy's owner, and the calls that it is attached to.
#[derive(Debug, Clone)]
pub struct Place {
    /// The tenant of the calls; `*` for every tenant, for the provider's policies only.
    pub tenant: String,
    /// The service.
    pub service: String,
    /// [`SIDE_CLIENT`] or [`SIDE_SERVER`].
    pub side: i32,
    /// [`PARTY_TENANT`], [`PARTY_PROVIDER_PRE`] or [`PARTY_PROVIDER_POST`].
    pub party: i32,
    /// The options that differ from the defaults.
    pub options: PolicyOptions,
}

impl Place {
    /// A tenant's own policy, for the calls that its applications make to a service.
    pub fn client(tenant: &str, service: &str) -> Place {
        Place {
            tenant: tenant.to_owned(),
            service: service.to_owned(),
            side: SIDE_CLIENT,
            party: PARTY_TENANT,
            options: PolicyOptions::default(),
        }
    }

    /// The same place on the server's side.
    pub fn at_server(self) -> Place {
        Place {
            side: SIDE_SERVER,
            ..self
        }
    }

    /// The same place, for the provider's policies before the tenant's.
    pub fn pre(self) -> Place {
        Place {
            party: PARTY_PROVIDER_PRE,
            ..self
        }
    }

    /// The same place, for the provider's policies after the tenant's.
    pub fn post(self) -> Place {
        Place {
            party: PARTY_PROVIDER_POST,
            ..self
        }
    }

    /// The same place with other conditions.
    pub fn with(self, options: PolicyOptions) -> Place {
        Place { options, ..self }
    }

    /// The same place with these capabilities granted.
    pub fn granting(mut self, capabilities: &[&str]) -> Place {
        let names = capabilities.iter().map(|name| (*name).to_owned());
        self.options.capabilities = Some(Names {
            names: names.collect(),
        });
        self
    }

    fn is_providers(&self) -> bool {
        self.party != PARTY_TENANT
    }
}

impl Admin {
    /// Connects.
    ///
    /// # Panics
    /// If no daemon listens.
    pub fn connect(daemon: &Daemon) -> Admin {
        Admin {
            wire: Wire::connect(daemon.socket()),
        }
    }

    /// Sends a request; a refusal is the error.
    ///
    /// # Errors
    /// The daemon's refusal.
    ///
    /// # Panics
    /// If no answer comes.
    pub fn ask(
        &mut self,
        body: RequestBody,
        blobs: &[&[u8]],
    ) -> Result<(ResponseBody, Vec<OwnedFd>), Failure> {
        let made = blobs
            .iter()
            .map(|bytes| blob_create(bytes).expect("there is memory for a blob"));
        let made: Vec<OwnedFd> = made.collect();
        let fds: Vec<_> = made.iter().map(AsFd::as_fd).collect();
        match self.wire.ask(body, &fds).expect("the daemon answers") {
            (ResponseBody::Failure(failure), _) => Err(failure),
            answer => Ok(answer),
        }
    }

    /// Creates a tenant; returns its token.
    ///
    /// # Panics
    /// If it is refused.
    pub fn tenant(&mut self, name: &str) -> String {
        let name = name.to_owned();
        match self.ask(RequestBody::TenantAdd(TenantAdd { name }), &[]) {
            Ok((ResponseBody::TenantAdded(added), _)) => added.token,
            other => panic!("no tenant: {other:?}"),
        }
    }

    /// Pushes a module as the owner of `place`; returns its version.
    ///
    /// # Errors
    /// The daemon's refusal.
    pub fn push(
        &mut self,
        place: &Place,
        name: &str,
        module: &[u8],
        config: Option<&[u8]>,
    ) -> Result<u32, Failure> {
        let provider = place.is_providers();
        let push = PolicyPush {
            tenant: if provider {
                String::new()
            } else {
                place.tenant.clone()
            },
            name: name.to_owned(),
            has_config: config.is_some(),
            provider,
            ..PolicyPush::default()
        };
        let blobs: Vec<&[u8]> = std::iter::once(module).chain(config).collect();
        match self.ask(RequestBody::PolicyPush(push), &blobs)? {
            (ResponseBody::PolicyPushed(pushed), _) => Ok(pushed.version),
            other => panic!("a push was answered with {other:?}"),
        }
    }

    /// Puts a version in force.
    ///
    /// # Errors
    /// The daemon's refusal.
    pub fn attach(&mut self, place: &Place, name: &str, version: u32) -> Result<(), Failure> {
        let attach = PolicyAttach {
            policy: format!("{name}@{version}"),
            tenant: place.tenant.clone(),
            service: place.service.clone(),
            side: place.side,
            party: place.party,
            options: Some(place.options.clone()),
            ..PolicyAttach::default()
        };
        self.ask(RequestBody::PolicyAttach(attach), &[]).map(drop)
    }

    /// Pushes a module, and puts it in force.
    ///
    /// # Panics
    /// If either is refused.
    #[track_caller]
    pub fn install(&mut self, place: &Place, name: &str, module: &[u8], config: &[u8]) {
        let config = (!config.is_empty()).then_some(config);
        let version = self.push(place, name, module, config);
        let version = version.unwrap_or_else(|failure| panic!("push {name}: {failure:?}"));
        self.attach(place, name, version)
            .unwrap_or_else(|failure| panic!("attach {name}@{version}: {failure:?}"));
    }

    /// Ends an attachment.
    ///
    /// # Errors
    /// The daemon's refusal.
    pub fn detach(&mut self, place: &Place, name: &str) -> Result<(), Failure> {
        let detach = RequestBody::PolicyDetach(selection(place, name));
        self.ask(detach, &[]).map(drop)
    }

    /// Puts another version in force, with the state of the one that is.
    ///
    /// # Errors
    /// The daemon's refusal.
    pub fn swap(&mut self, place: &Place, name: &str, version: u32) -> Result<(), Failure> {
        let upgrade = PolicyUpgrade {
            version,
            at: Some(selection(place, name)),
            mode: MODE_ENFORCE,
            ..PolicyUpgrade::default()
        };
        self.ask(RequestBody::PolicyUpgrade(upgrade), &[]).map(drop)
    }

    /// Changes a setting of the daemon; without a value it is reset. Returns the setting's entry in
    /// `tollgate daemon settings --json`.
    ///
    /// # Panics
    /// If it is refused.
    pub fn set(&mut self, key: &str, value: Option<&str>) -> Value {
        let change = SettingChange {
            key: key.to_owned(),
            value: value.map(str::to_owned),
        };
        let changes = vec![change];
        let report = self.report(RequestBody::SettingsChange(SettingsChange { changes }));
        report["settings"][0].clone()
    }

    /// The output of `tollgate status --json`.
    ///
    /// # Panics
    /// If the daemon returns no status.
    pub fn status(&mut self) -> Value {
        self.report(RequestBody::Status(Empty {}))
    }

    /// Requests a report.
    ///
    /// # Panics
    /// If it is refused.
    pub fn report(&mut self, body: RequestBody) -> Value {
        let (_, fds) = self
            .ask(body, &[])
            .expect("an administrator's request is granted");
        let blob = fds.first().expect("a report comes as a memory file");
        let json = blob_read(blob, REPORT_BYTES).expect("the report can be read");
        serde_json::from_slice(&json).expect("the report is JSON")
    }
}

fn selection(place: &Place, name: &str) -> PolicySelection {
    PolicySelection {
        policy: name.to_owned(),
        tenant: place.tenant.clone(),
        service: place.service.clone(),
        side: place.side,
        party: place.party,
        ..PolicySelection::default()
    }
}
