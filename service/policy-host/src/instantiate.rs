//! From a policy to an instance of it, with the native or a compat interface.

use crate::compat::CompatInstance;
use crate::opa::Rego;
use crate::policy::{Code, check_config_length, check_memory};
use crate::proxy_wasm::Filter;
use crate::{Capabilities, Instance, LoadError, Policy, Setup, TenantLimits};

impl Policy {
    /// Starts and configures an instance of the policy as [`Policy::configured`] returns it.
    ///
    /// Runs guest code, up to `setup.limits.fuel_for_setup`.
    ///
    /// # Errors
    /// A declared capability isn't granted, the configuration is too large or refused, the module
    /// fails during its start, or the pool is full; or it is a compat module.
    pub fn instantiate(&self, setup: &Setup<'_>) -> Result<Instance, LoadError> {
        let limits = self.limits(setup)?;
        let setup = Setup {
            limits: &limits,
            ..*setup
        };
        match &self.0.code {
            Code::Own(pre) => {
                check_config_length(setup.config.unwrap_or_default())?;
                Instance::new(&self.configured(setup.config)?, pre, &setup)
            }
            Code::ProxyWasm(_) | Code::Opa(..) => Err(self.wrong_interface()),
        }
    }

    /// Starts and configures an instance of a compat module.
    ///
    /// Runs guest code, up to `setup.limits.fuel_for_setup`.
    ///
    /// # Errors
    /// Like [`Policy::instantiate`]; or it isn't a compat module.
    pub fn instantiate_compat(&self, setup: &Setup<'_>) -> Result<CompatInstance, LoadError> {
        let limits = self.limits(setup)?;
        let setup = Setup {
            limits: &limits,
            ..*setup
        };
        match &self.0.code {
            Code::Own(_) => Err(self.wrong_interface()),
            Code::ProxyWasm(pre) => Filter::new(self, pre, &setup).map(CompatInstance::filter),
            Code::Opa(linkers, module) => {
                Rego::new(self, &linkers.opa, module, &setup).map(CompatInstance::rego)
            }
        }
    }

    fn wrong_interface(&self) -> LoadError {
        let compat = self.0.manifest.compat();
        let abi = compat.map_or("tollgate's own", |compat| compat.abi().name());
        LoadError::WrongInterface { abi }
    }

    /// An instance's limits, if it may exist.
    fn limits(&self, setup: &Setup<'_>) -> Result<TenantLimits, LoadError> {
        let missing = self.0.manifest.capabilities().without(setup.granted);
        if !missing.without(Capabilities::ALWAYS).is_empty() {
            return Err(LoadError::NotGranted(missing));
        }
        let limits = self.cut(setup.limits);
        check_memory(self.0.code.module(), limits.memory_bytes)?;
        Ok(limits)
    }
}
