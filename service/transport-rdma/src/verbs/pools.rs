//! The [pools](super::pool) of one poller.

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::device::Device;
use super::pool::Pool;
use super::seat::Seat;
use crate::counts::Counts;
use crate::error::RdmaError;
use crate::link_id::LinkId;
use crate::named::Named;

/// The pools that a poller polls: those that it has made, and others' that have links of its own.
pub(crate) struct Pools {
    /// Links of a pool, and pools of a device.
    size: [u16; 2],
    named: Arc<Named>,
    used: Mutex<All>,
}

#[derive(Default)]
struct All {
    pools: Vec<Used>,
    /// Of pools that it has made, and has no more.
    counted: Counts,
}

/// A pool, as one poller uses it.
struct Used {
    pool: Arc<Pool>,
    /// It has made it, and gives it to its links.
    own: bool,
    /// Links of this poller's.
    links: usize,
}

impl Used {
    fn is(&self, pool: &Arc<Pool>) -> bool {
        Arc::ptr_eq(&self.pool, pool)
    }
}

impl Pools {
    /// None, of at most so many for each device, of so many links each. Links to which something has come are named there.
    pub(crate) fn new(size: [u16; 2], named: &Arc<Named>) -> Pools {
        Pools {
            size,
            named: Arc::clone(named),
            used: Mutex::default(),
        }
    }

    fn used(&self) -> MutexGuard<'_, All> {
        // Whoever panicked has added a pool or none.
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A link's place in a pool of its device's.
    pub(super) fn seat(&self, device: &Arc<Device>, link: LinkId) -> Result<Seat, RdmaError> {
        let mut used = self.used();
        let own = used.pools.iter().filter(|used| used.own);
        let own = own.filter(|used| Arc::ptr_eq(&used.pool.device, device));
        let seat = |pool| Seat::take(pool, link, &self.named);
        if let Some(seat) = own.clone().find_map(|used| seat(&used.pool)) {
            return Ok(seat);
        }
        let [links, most] = self.size;
        if own.count() == usize::from(most) {
            return Err(RdmaError::PollerFull {
                device: device.info().name,
                links: u32::from(links) * u32::from(most),
            });
        }
        let pool = Arc::new(Pool::new(device, links)?);
        let seat = seat(&pool).expect("it is new");
        used.pools.push(Used {
            pool,
            own: true,
            links: 0,
        });
        Ok(seat)
    }

    /// A link of this pool's is this poller's from now on. If it is the only one, the pool's descriptor is to be watched: nobody else joins or leaves
    /// meanwhile.
    ///
    /// # Errors
    /// It can't be watched; the link isn't its.
    pub(crate) fn join(
        &self,
        pool: &Arc<Pool>,
        watch: impl FnOnce(BorrowedFd<'_>) -> Result<(), RdmaError>,
    ) -> Result<(), RdmaError> {
        let pools = &mut self.used().pools;
        let known = pools.iter_mut().find(|used| used.is(pool));
        if known.as_ref().is_none_or(|used| used.links == 0) {
            watch(pool.descriptor())?;
        }
        match known {
            Some(used) => used.links += 1,
            None => pools.push(Used {
                pool: Arc::clone(pool),
                own: false,
                links: 1,
            }),
        }
        Ok(())
    }

    /// And no more. If it was the last one, the pool isn't polled, and what its descriptor says isn't to be waited for. A pool is kept if it is its own,
    /// and there is no other of its device's.
    pub(crate) fn leave(&self, pool: &Arc<Pool>, unwatch: impl FnOnce(BorrowedFd<'_>)) {
        let all = &mut *self.used();
        let Some(at) = all.pools.iter().position(|used| used.is(pool)) else {
            return;
        };
        all.pools[at].links -= 1;
        if all.pools[at].links > 0 {
            return;
        }
        unwatch(pool.descriptor());
        let of_device = |used: &&Used| used.own && Arc::ptr_eq(&used.pool.device, &pool.device);
        let is_kept = all.pools[at].own && all.pools.iter().filter(of_device).count() == 1;
        if !is_kept && all.pools.swap_remove(at).own {
            all.counted = all.counted + pool.counts();
        }
    }

    /// Takes what is complete, of all links of pools that have links of this poller's.
    ///
    /// # Errors
    /// A device failed; the others were polled nevertheless.
    pub(crate) fn poll(&self) -> Result<(), RdmaError> {
        let used = self.used();
        let mut outcome = Ok(());
        for used in used.pools.iter().filter(|used| used.links > 0) {
            outcome = outcome.and(used.pool.poll().map(drop));
        }
        outcome
    }

    /// Makes their descriptors say what comes from now on. `false` if something has come already.
    ///
    /// # Errors
    /// As of [`Pools::poll`].
    pub(crate) fn arm(&self) -> Result<bool, RdmaError> {
        let mut nothing = true;
        let used = self.used();
        for used in used.pools.iter().filter(|used| used.links > 0) {
            nothing &= used.pool.arm()?;
        }
        Ok(nothing)
    }

    /// What is nobody's own, of those that it has made; and how many these are.
    pub(crate) fn counts(&self) -> (Counts, usize) {
        let used = self.used();
        let own = used.pools.iter().filter(|used| used.own);
        let sum = |(counts, pools), used: &Used| (counts + used.pool.counts(), pools + 1);
        own.fold((used.counted, 0), sum)
    }
}
