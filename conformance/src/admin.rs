//! An administrator with one connection to a daemon: it sends the command line's requests without a
//! process per request, as fast as the daemon answers.
//!
//! For tests that need thousands of changes. Users have the command line, so other tests use
//! [`crate::testbed::Daemon::tollgate`].

use std::time::Duration;

use serde_json::Value;
use tollgate_admin::client::{Client, Unary};
use tollgate_admin::proto::{
    AddTenantRequest, AttachPolicyRequest, AttachmentOptions, ChangeSettingsRequest,
    DetachPolicyRequest, GetStatusRequest, Mode, Names, Owner, Party, PolicyPart, PolicySelection,
    PushPolicyHeader, SettingChange, Side, UpgradePolicyRequest,
};
use tollgate_admin::{PushOrder, Status, socket_beside, to_json};

use crate::testbed::Daemon;

/// The command line's patience: a push may be compiling on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A connection for one request after the other.
#[derive(Debug)]
pub struct Admin {
    client: Client,
}

/// A policy's owner, and the calls that it is attached to.
#[derive(Debug, Clone)]
pub struct Place {
    /// The tenant of the calls; `*` for every tenant, for the provider's policies only.
    pub tenant: String,
    /// The service.
    pub service: String,
    /// The daemon that evaluates them.
    pub side: Side,
    /// The part of the chain.
    pub party: Party,
    /// The options that differ from the defaults.
    pub options: AttachmentOptions,
}

impl Place {
    /// A tenant's own policy, for the calls that its applications make to a service.
    pub fn client(tenant: &str, service: &str) -> Place {
        Place {
            tenant: tenant.to_owned(),
            service: service.to_owned(),
            side: Side::Client,
            party: Party::Tenant,
            options: AttachmentOptions::default(),
        }
    }

    /// The same place on the server's side.
    pub fn at_server(self) -> Place {
        Place {
            side: Side::Server,
            ..self
        }
    }

    /// The same place, for the provider's policies before the tenant's.
    pub fn pre(self) -> Place {
        Place {
            party: Party::ProviderPre,
            ..self
        }
    }

    /// The same place, for the provider's policies after the tenant's.
    pub fn post(self) -> Place {
        Place {
            party: Party::ProviderPost,
            ..self
        }
    }

    /// The same place with other conditions.
    pub fn with(self, options: AttachmentOptions) -> Place {
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

    fn owner(&self) -> Owner {
        let provider = self.party != Party::Tenant;
        let is_all = provider && self.tenant == "*";
        Owner {
            tenant: if is_all {
                String::new()
            } else {
                self.tenant.clone()
            },
            provider,
        }
    }

    fn selection(&self, name: &str) -> PolicySelection {
        PolicySelection {
            owner: Some(self.owner()),
            name: name.to_owned(),
            service: self.service.clone(),
            side: self.side.into(),
            party: self.party.into(),
            ..PolicySelection::default()
        }
    }
}

impl Admin {
    /// Connects.
    ///
    /// # Panics
    /// If no daemon listens.
    pub fn connect(daemon: &Daemon) -> Admin {
        let client = Client::connect(&socket_beside(daemon.socket()), None, PATIENCE);
        Admin {
            client: client.expect("the daemon listens"),
        }
    }

    /// Sends a request; a refusal is the error.
    ///
    /// # Errors
    /// The daemon's refusal.
    pub fn ask<R: Unary>(&mut self, request: R) -> Result<R::Response, Status> {
        self.client.ask(request)
    }

    /// Creates a tenant; returns its token.
    ///
    /// # Panics
    /// If it is refused.
    pub fn tenant(&mut self, name: &str) -> String {
        let tenant = name.to_owned();
        let added = self.ask(AddTenantRequest { tenant });
        added.expect("a tenant is added").token
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
    ) -> Result<u32, Status> {
        let module = Some((PolicyPart::Module, module));
        let config = config.map(|config| (PolicyPart::Configuration, config));
        let parts = module.into_iter().chain(config);
        let order = PushOrder {
            header: PushPolicyHeader {
                owner: Some(place.owner()),
                name: name.to_owned(),
            },
            parts: parts
                .map(|(part, bytes)| (part.into(), bytes.to_vec()))
                .collect(),
            ..PushOrder::default()
        };
        let pushed = self.client.push(order, |_step| {})?;
        Ok(pushed.version)
    }

    /// Puts a version in force.
    ///
    /// # Errors
    /// The daemon's refusal.
    pub fn attach(&mut self, place: &Place, name: &str, version: u32) -> Result<(), Status> {
        let attach = AttachPolicyRequest {
            owner: Some(place.owner()),
            name: name.to_owned(),
            version,
            service: place.service.clone(),
            side: place.side.into(),
            party: place.party.into(),
            mode: Mode::Enforce.into(),
            options: Some(place.options.clone()),
            ..AttachPolicyRequest::default()
        };
        self.ask(attach).map(drop)
    }

    /// Pushes a module, and puts it in force.
    ///
    /// # Panics
    /// If either is refused.
    #[track_caller]
    pub fn install(&mut self, place: &Place, name: &str, module: &[u8], config: &[u8]) {
        let config = (!config.is_empty()).then_some(config);
        let version = self.push(place, name, module, config);
        let version = version.unwrap_or_else(|status| panic!("push {name}: {status:?}"));
        self.attach(place, name, version)
            .unwrap_or_else(|status| panic!("attach {name}@{version}: {status:?}"));
    }

    /// Ends an attachment.
    ///
    /// # Errors
    /// The daemon's refusal.
    pub fn detach(&mut self, place: &Place, name: &str) -> Result<(), Status> {
        let at = Some(place.selection(name));
        self.ask(DetachPolicyRequest { at }).map(drop)
    }

    /// Puts another version in force, with the state of the one that is.
    ///
    /// # Errors
    /// The daemon's refusal.
    pub fn swap(&mut self, place: &Place, name: &str, version: u32) -> Result<(), Status> {
        let upgrade = UpgradePolicyRequest {
            version,
            at: Some(place.selection(name)),
            mode: Mode::Enforce.into(),
            ..UpgradePolicyRequest::default()
        };
        self.ask(upgrade).map(drop)
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
        let changed = self.ask(ChangeSettingsRequest { changes });
        let report = changed.expect("a setting is changed").report;
        to_json(report.unwrap_or_default())["settings"][0].clone()
    }

    /// The output of `tollgate status --json`.
    ///
    /// # Panics
    /// If the daemon returns no status.
    pub fn status(&mut self) -> Value {
        let status = self.ask(GetStatusRequest::default());
        to_json(
            status
                .expect("there is a status")
                .report
                .unwrap_or_default(),
        )
    }
}
