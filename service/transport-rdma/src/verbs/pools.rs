//! The [pools](super::pool) of one poller.

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::device::Device;
use super::pool::Pool;
use super::pool_share::PoolShare;
use crate::counts::Counts;
use crate::error::RdmaError;
use crate::link_id::LinkId;
use crate::named::Named;

/// The pools that a poller polls: its own, and others' that hold some of its links.
pub(crate) struct Pools {
    /// Links per pool, and pools per device.
    size: [u16; 2],
    named: Arc<Named>,
    used: Mutex<All>,
}

#[derive(Default)]
struct All {
    pools: Vec<Used>,
    /// Costs of its own former pools.
    counted: Counts,
}

/// A pool's use by one poller.
struct Used {
    pool: Arc<Pool>,
    /// Whether this poller has made it and puts its links there.
    own: bool,
    /// Number of this poller's links.
    links: usize,
}

impl Used {
    fn is(&self, pool: &Arc<Pool>) -> bool {
        Arc::ptr_eq(&self.pool, pool)
    }
}

impl Pools {
    /// Starts without pools; `size` limits the links of a pool and the pools of a device. Ready
    /// links are named in `named`.
    pub(crate) fn new(size: [u16; 2], named: &Arc<Named>) -> Pools {
        Pools {
            size,
            named: Arc::clone(named),
            used: Mutex::default(),
        }
    }

    fn used(&self) -> MutexGuard<'_, All> {
        // A panic left the pool either added or not.
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place for a link in a pool of its device.
    pub(super) fn share(&self, device: &Arc<Device>, link: LinkId) -> Result<PoolShare, RdmaError> {
        let mut used = self.used();
        let own = used.pools.iter().filter(|used| used.own);
        let own = own.filter(|used| Arc::ptr_eq(&used.pool.device, device));
        let share = |pool| PoolShare::take(pool, link, &self.named);
        if let Some(share) = own.clone().find_map(|used| share(&used.pool)) {
            return Ok(share);
        }
        let [links, most] = self.size;
        if own.count() == usize::from(most) {
            return Err(RdmaError::PollerFull {
                device: device.info().name,
                links: u32::from(links) * u32::from(most),
            });
        }
        let pool = Arc::new(Pool::new(device, links)?);
        let share = share(&pool).expect("it is new");
        used.pools.push(Used {
            pool,
            own: true,
            links: 0,
        });
        Ok(share)
    }

    /// Adds a link of this pool to this poller. If it is the only one, calls `watch` with the
    /// pool's descriptor; other calls to join or leave wait meanwhile.
    ///
    /// # Errors
    /// If `watch` fails; then the link isn't added.
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

    /// Removes a link. After the last one, the pool isn't polled any more, and `unwatch` gets its
    /// descriptor. A poller keeps its own pool if it has no other on that device.
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

    /// Takes pending completions of all pools that hold links of this poller.
    ///
    /// # Errors
    /// If a device failed; the other pools were polled nevertheless.
    pub(crate) fn poll(&self) -> Result<(), RdmaError> {
        let used = self.used();
        let mut outcome = Ok(());
        for used in used.pools.iter().filter(|used| used.links > 0) {
            outcome = outcome.and(used.pool.poll().map(drop));
        }
        outcome
    }

    /// Makes their descriptors report the next completion. `false` if one has come already.
    ///
    /// # Errors
    /// Like [`Pools::poll`].
    pub(crate) fn arm(&self) -> Result<bool, RdmaError> {
        let mut nothing = true;
        let used = self.used();
        for used in used.pools.iter().filter(|used| used.links > 0) {
            nothing &= used.pool.arm()?;
        }
        Ok(nothing)
    }

    /// Costs of no single link, over its own pools; and the number of these pools.
    pub(crate) fn counts(&self) -> (Counts, usize) {
        let used = self.used();
        let own = used.pools.iter().filter(|used| used.own);
        let sum = |(counts, pools), used: &Used| (counts + used.pool.counts(), pools + 1);
        own.fold((used.counted, 0), sum)
    }
}
