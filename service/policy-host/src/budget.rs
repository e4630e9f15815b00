//! Fuel: the budget of one evaluation, its use, and the meaning of how a guest ended.

use wasmtime::{Caller, Engine, Store, StoreLimits, Trap};

use crate::text::cut;
use crate::{Fault, LoadError};

/// The fuel of one evaluation, which may take several calls into the guest.
#[derive(Debug, Default)]
pub(crate) struct Budget {
    /// Used by earlier calls into the guest.
    earlier: u64,
    /// Fuel granted to the last call.
    granted: u64,
    /// Fuel left after it.
    left: u64,
}

impl Budget {
    #[inline]
    pub(crate) fn used(&self) -> u64 {
        self.earlier + (self.granted - self.left)
    }

    #[inline]
    pub(crate) fn grant(&mut self, fuel: u64) {
        *self = Budget {
            earlier: self.used(),
            granted: fuel,
            left: fuel,
        };
    }

    /// The guest's remaining fuel.
    #[inline]
    pub(crate) fn left(&self) -> u64 {
        self.left
    }

    /// Reads the guest's remaining fuel after a call into it; none remains after a failure.
    #[inline]
    pub(crate) fn settle<T, R>(
        &mut self,
        store: &Store<T>,
        returned: wasmtime::Result<R>,
    ) -> Result<R, Fault> {
        match returned {
            Ok(returned) => {
                self.left = store.get_fuel().expect("the engine counts fuel");
                Ok(returned)
            }
            Err(error) => {
                self.left = 0;
                Err(fault(&error, self.granted))
            }
        }
    }

    /// Pays for the host's work on the guest's behalf after the guest has stopped.
    #[inline]
    pub(crate) fn charge(&mut self, units: u64) -> Result<(), Fault> {
        match self.left.checked_sub(units) {
            Some(left) => {
                self.left = left;
                Ok(())
            }
            None => {
                self.left = 0;
                Err(Fault::OutOfFuel { fuel: self.granted })
            }
        }
    }
}

/// Takes fuel for the work that follows.
pub(crate) fn charge<T>(guest: &mut Caller<'_, T>, units: u64) -> wasmtime::Result<()> {
    let left = guest.get_fuel()?;
    match left.checked_sub(units) {
        Some(rest) => guest.set_fuel(rest),
        None => Err(wasmtime::Trap::OutOfFuel.into()),
    }
}

/// A store for one instance, and the fuel for its set-up.
pub(crate) fn store<T: 'static>(
    engine: &Engine,
    state: T,
    limiter: fn(&mut T) -> &mut StoreLimits,
    fuel: u64,
) -> (Store<T>, Budget) {
    let mut store = Store::new(engine, state);
    store.limiter(move |state| limiter(state));
    store.set_fuel(fuel).expect("the engine counts fuel");
    let mut budget = Budget::default();
    budget.grant(fuel);
    (store, budget)
}

/// The fault for a failed call into the guest.
fn fault(error: &wasmtime::Error, fuel: u64) -> Fault {
    match error.downcast_ref::<Trap>() {
        Some(Trap::OutOfFuel) => Fault::OutOfFuel { fuel },
        Some(trap) => Fault::Trap(
            trap.to_string()
                .trim_start_matches("wasm trap: ")
                .to_owned(),
        ),
        None => Fault::Trap(cut(&error.root_cause().to_string())),
    }
}

/// The error for a failed instantiation.
pub(crate) fn start_error(error: &wasmtime::Error, fuel: u64) -> LoadError {
    if error.is::<wasmtime::PoolConcurrencyLimitError>() {
        return LoadError::PoolFull(cut(&error.to_string()));
    }
    LoadError::Setup {
        step: "start",
        fault: fault(error, fuel),
    }
}
