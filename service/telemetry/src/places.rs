//! A bounded number of places for incoming connections. Silent connections lock nobody out.
//!
//! If all places are taken and one more connection comes, the oldest unproven connection gives way.
//! A proven connection keeps its place for as long as the listener says; if all are proven, the
//! next connection waits.
//!
//! Single-threaded.

use std::cell::RefCell;
use std::future::Future;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::sync::Notify;

/// Time for which a new connection keeps its place, so that bytes sent before the accept can be
/// read: 20 ms.
const FIRST_WORD: Duration = Duration::from_millis(20);

/// The places of one listener.
#[derive(Clone, Debug)]
pub struct Places(Rc<Inner>);

#[derive(Debug)]
struct Inner {
    most: usize,
    /// Time for which a proven connection keeps its place.
    kept: Duration,
    /// The oldest connections first.
    taken: RefCell<Vec<Taken>>,
    freed: Notify,
}

#[derive(Debug)]
struct Taken {
    id: Rc<Notify>,
    since: Instant,
    /// The time at which the connection proved itself.
    deserved: Option<Instant>,
}

/// A connection's place, until it is dropped or has to give way.
#[derive(Debug)]
pub struct Place {
    places: Places,
    gives_way: Rc<Notify>,
}

impl Places {
    /// Makes `most` places. A proven connection only gives way after `kept`.
    pub fn new(most: usize, kept: Duration) -> Places {
        Places(Rc::new(Inner {
            most,
            kept,
            taken: RefCell::default(),
            freed: Notify::new(),
        }))
    }

    /// Waits for a place for one more connection.
    pub async fn take(&self) -> Place {
        loop {
            let wait = match self.make_room(Instant::now()) {
                Ok(()) => break,
                Err(wait) => wait,
            };
            let freed = self.0.freed.notified();
            let _freed_or_old = tokio::time::timeout(wait, freed).await;
        }
        let gives_way = Rc::new(Notify::new());
        self.0.taken.borrow_mut().push(Taken {
            id: Rc::clone(&gives_way),
            since: Instant::now(),
            deserved: None,
        });
        let places = self.clone();
        Place { places, gives_way }
    }

    /// Makes room; if no connection has to give way now, returns the time until the next one may
    /// have to.
    fn make_room(&self, now: Instant) -> Result<(), Duration> {
        let mut taken = self.0.taken.borrow_mut();
        if taken.len() < self.0.most {
            return Ok(());
        }
        let left = |its: &Taken| {
            let (since, most) = match its.deserved {
                None => (its.since, FIRST_WORD),
                Some(since) => (since, self.0.kept),
            };
            most.saturating_sub(now.saturating_duration_since(since))
        };
        let silent = taken.iter().position(|its| its.deserved.is_none());
        let next = silent.map(|at| (left(&taken[at]), at)).or_else(|| {
            let all = taken.iter().enumerate();
            all.map(|(at, its)| (left(its), at)).min()
        });
        match next {
            Some((Duration::ZERO, at)) => {
                taken.remove(at).id.notify_one();
                Ok(())
            }
            Some((wait, _)) => Err(wait),
            None => Err(self.0.kept),
        }
    }
}

impl Place {
    /// Marks the connection as proven.
    pub fn deserve(&self) {
        let mut taken = self.places.0.taken.borrow_mut();
        let its = taken
            .iter_mut()
            .find(|its| Rc::ptr_eq(&its.id, &self.gives_way));
        if let Some(its) = its {
            its.deserved.get_or_insert_with(Instant::now);
        }
    }

    /// Serves the connection until it ends, the time is up or it has to give way.
    pub async fn serve(&self, connection: impl Future, most: Duration) {
        tokio::select! {
            _gone_or_too_slow = tokio::time::timeout(most, connection) => {}
            () = self.gives_way.notified() => {}
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.0.taken.borrow_mut();
        taken.retain(|its| !Rc::ptr_eq(&its.id, &self.gives_way));
        self.places.0.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_oldest_that_does_not_deserve_its_place_gives_way_and_then_the_one_that_had_it_long()
     {
        let kept = Duration::from_millis(200);
        let places = Places::new(2, kept);
        let (first, second) = (places.take().await, places.take().await);
        first.deserve();
        let began = Instant::now();
        let third = places.take().await;
        assert!(
            began.elapsed() >= FIRST_WORD / 2,
            "it may be about to be heard"
        );
        let over = |place: &Place| {
            let gives_way = Rc::clone(&place.gives_way);
            async move {
                let soon = Duration::from_millis(5);
                tokio::time::timeout(soon, gives_way.notified())
                    .await
                    .is_ok()
            }
        };
        assert!(over(&second).await);
        assert!(!over(&first).await && !over(&third).await);
        // Dropping a place that gave way doesn't free another's place.
        drop(second);
        assert_eq!(places.0.taken.borrow().len(), 2);
        third.deserve();
        let began = Instant::now();
        let fourth = places.take().await;
        assert!(began.elapsed() >= kept / 2, "all deserve theirs");
        assert!(over(&first).await && !over(&third).await);
        fourth.deserve();
        let began = Instant::now();
        drop(third);
        let _fifth = places.take().await;
        assert!(began.elapsed() < kept / 2, "there was one");
    }
}
