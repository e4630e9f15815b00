//! Look-ups of peers' names.
//!
//! ```text
//!   bind, redial ── cached? ── no: a place of the tenant's and one of all ── a thread ── getaddrinfo
//!                      │           │                                  cached, answered ◀──┘
//!                      │           └─ LOOKUP_TIMEOUT: an error; the thread continues, for the cache
//!                      └─ yes: answered at once
//! ```
//!
//! The system's resolver can't be interrupted, and a dead name server holds a thread for half a
//! minute. So each look-up has its own thread, which nothing else waits for, and a tenant has at
//! most [`LOOKUPS_PER_TENANT`]. When all places are taken, a tenant without a look-up gets one of
//! [`LOOKUPS_KEPT`] more: tenants with dead names don't block others. Results are cached per
//! tenant: the speed of an answer doesn't tell a tenant which names others have asked for.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, timeout_at};
use tollgate_engine::Status;
use tollgate_shm_abi::status::Code;

use crate::limits::{
    LOOKUP_TIMEOUT, LOOKUPS, LOOKUPS_KEPT, LOOKUPS_PER_TENANT, NAMES_PER_TENANT, REMEMBERED_FOR,
};
use tollgate_datapath::target::{Found, Target, in_turns};

/// The result of a look-up: addresses, or why there are none. The reason is a sentence: it becomes
/// the status of calls.
type Answer = Result<Vec<SocketAddr>, String>;

/// The resolver: [`system`], or a test's.
type LookUp = Arc<dyn Fn(&str) -> Answer + Send + Sync>;

/// The cache, and the limits of look-ups.
pub(crate) struct Names {
    look_up: LookUp,
    patience: Duration,
    /// Places for look-ups of all tenants.
    places: Arc<Semaphore>,
    /// Places for tenants without a look-up.
    kept: Arc<Semaphore>,
    tenants: RefCell<HashMap<String, Tenant>>,
}

/// One tenant's names and places.
struct Tenant {
    places: Arc<Semaphore>,
    known: HashMap<String, Known>,
}

impl Default for Tenant {
    fn default() -> Self {
        Tenant {
            places: Arc::new(Semaphore::new(LOOKUPS_PER_TENANT)),
            known: HashMap::new(),
        }
    }
}

/// A name that was asked for.
struct Known {
    asked: Instant,
    /// `None`: not answered yet.
    answer: watch::Receiver<Option<Answered>>,
}

#[derive(Clone)]
struct Answered {
    answer: Answer,
    until: Instant,
}

impl Known {
    /// Whether the answer is still valid, or pending.
    fn is_fresh(&self, now: Instant) -> bool {
        match &*self.answer.borrow() {
            Some(answered) => now < answered.until,
            // The look-up may have been dropped.
            None => self.answer.has_changed().is_ok(),
        }
    }
}

impl Default for Names {
    fn default() -> Self {
        Names::by(Arc::new(system), LOOKUP_TIMEOUT)
    }
}

impl Names {
    fn by(look_up: LookUp, patience: Duration) -> Names {
        Names {
            look_up,
            patience,
            places: Arc::new(Semaphore::new(LOOKUPS)),
            kept: Arc::new(Semaphore::new(LOOKUPS_KEPT)),
            tenants: RefCell::default(),
        }
    }

    /// The address of a peer by its [canonical](crate::targets::canonical) target; "" is this host.
    pub(crate) async fn find(&self, tenant: &str, target: &str) -> Result<Option<Found>, Status> {
        if target.is_empty() {
            return Ok(None);
        }
        if let Ok(address) = target.parse::<SocketAddr>() {
            return Ok(Some(address.into()));
        }
        let found = self.addresses(tenant, target, None).await;
        let addresses = found.map_err(|why| {
            let text = format!("target {target:?} can't be reached: {why}");
            Status::new(Code::UNAVAILABLE, text)
        })?;
        let peer = Target::new(target, addresses[0]);
        Ok(Some(Found { peer, addresses }))
    }

    /// The current address of a peer that was lost or couldn't be reached. Answers from before this
    /// call don't count.
    pub(crate) async fn find_again(&self, tenant: &str, peer: &Target) -> Answer {
        let now = Instant::now();
        self.addresses(tenant, peer.name(), Some(now)).await
    }

    /// The addresses of a name, at least one, not older than `since`.
    async fn addresses(&self, tenant: &str, name: &str, since: Option<Instant>) -> Answer {
        let until = Instant::now() + self.patience;
        let mut told = self.ask(tenant, name, since);
        let answered = timeout_at(until, told.wait_for(Option::is_some)).await;
        match answered {
            Ok(Ok(answered)) => match &*answered {
                Some(answered) => answered.answer.clone(),
                None => Err("its name wasn't looked up".to_owned()),
            },
            Ok(Err(_dropped)) => Err("its name couldn't be looked up".to_owned()),
            Err(_elapsed) => {
                let seconds = self.patience.as_secs();
                Err(format!("its name wasn't found within {seconds} s"))
            }
        }
    }

    /// The channel of the answer.
    fn ask(
        &self,
        tenant: &str,
        name: &str,
        since: Option<Instant>,
    ) -> watch::Receiver<Option<Answered>> {
        let now = Instant::now();
        let mut tenants = self.tenants.borrow_mut();
        // Tenants without cached names and look-ups are dropped.
        tenants.retain(|_, tenant| {
            tenant.known.retain(|_, known| known.is_fresh(now));
            !tenant.known.is_empty() || tenant.places.available_permits() < LOOKUPS_PER_TENANT
        });
        let its = tenants.entry(tenant.to_owned()).or_default();
        let known = its.known.get(name);
        let known = known.filter(|known| {
            let is_unanswered = known.answer.borrow().is_none();
            since.is_none_or(|since| known.asked >= since || is_unanswered)
        });
        if let Some(known) = known {
            return known.answer.clone();
        }
        let (tell, answer) = watch::channel(None);
        let places = [&its.places, &self.places, &self.kept].map(Arc::clone);
        let look_up = Arc::clone(&self.look_up);
        let until = now + self.patience;
        let turn = look_up_in_turn(places, until, look_up, name.to_owned(), tell);
        tokio::task::spawn_local(turn);
        its.remember(name, now, answer.clone());
        answer
    }
}

impl Tenant {
    /// Beyond [`NAMES_PER_TENANT`], the oldest name is dropped.
    fn remember(&mut self, name: &str, asked: Instant, answer: watch::Receiver<Option<Answered>>) {
        if self.known.len() >= NAMES_PER_TENANT && !self.known.contains_key(name) {
            let oldest = self.known.iter().min_by_key(|(_, known)| known.asked);
            if let Some(oldest) = oldest.map(|(name, _)| name.clone()) {
                self.known.remove(&oldest);
            }
        }
        self.known.insert(name.to_owned(), Known { asked, answer });
    }
}

/// A place of the tenant's, and one of all tenants', or a reserved one if the tenant has no other
/// look-up.
async fn take(
    [own, all, kept]: [Arc<Semaphore>; 3],
) -> Result<[OwnedSemaphorePermit; 2], AcquireError> {
    let own_place = Arc::clone(&own).acquire_owned().await?;
    let has_others = own.available_permits() + 1 < LOOKUPS_PER_TENANT;
    if let Ok(place) = Arc::clone(&all).try_acquire_owned() {
        return Ok([own_place, place]);
    }
    let place = tokio::select! {
        biased;
        place = all.acquire_owned() => place?,
        place = kept.acquire_owned(), if !has_others => place?,
    };
    Ok([own_place, place])
}

/// Looks a name up once there is a place, which is held until the look-up ends. Gives up if there
/// is no place before the request times out.
async fn look_up_in_turn(
    places: [Arc<Semaphore>; 3],
    until: Instant,
    look_up: LookUp,
    name: String,
    tell: watch::Sender<Option<Answered>>,
) {
    let Ok(Ok(held)) = timeout_at(until, take(places)).await else {
        return;
    };
    let thread = std::thread::Builder::new().name("names".to_owned());
    // Without a thread, the sender is dropped, and the request fails.
    let _no_thread = thread.spawn(move || {
        let answer = look_up(&name);
        let (known, unknown) = REMEMBERED_FOR;
        let remembered: Duration = answer.as_ref().map_or(unknown, |_| known);
        let until = Instant::now() + remembered;
        let _nobody_asks = tell.send_replace(Some(Answered { answer, until }));
        drop(held);
    });
}

/// Asks the system's resolver, as the host is configured.
fn system(name: &str) -> Answer {
    let found = name.to_socket_addrs();
    let found = found.map_err(|error| format!("its name can't be looked up: {error}"))?;
    let addresses = in_turns(found);
    if addresses.is_empty() {
        return Err("its name has no address".to_owned());
    }
    Ok(addresses)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::rc::Rc;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    use super::*;

    const DEAD: &str = "dead.test:7471";

    fn address(last: u8) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, last], 7471))
    }

    /// Runs with a name server that doesn't answer for names with this prefix until it is told to;
    /// others are found at once.
    fn with_names(
        dead: &str,
        test: impl AsyncFnOnce(Rc<Names>, Arc<AtomicUsize>, mpsc::Sender<()>),
    ) {
        let (answer, answers) = mpsc::channel::<()>();
        let answers = Mutex::new(answers);
        let (asked, dead) = (Arc::new(AtomicUsize::new(0)), dead.to_owned());
        let count = Arc::clone(&asked);
        let look_up = move |name: &str| {
            let times = count.fetch_add(1, Ordering::SeqCst);
            if name.starts_with(&dead) {
                // Until the server answers, or the test has ended.
                let _one_by_one = answers.lock().unwrap().recv();
            }
            match name.starts_with("none") {
                true => Err("its name has no address".to_owned()),
                false => Ok(vec![address(times as u8 + 1)]),
            }
        };
        let reactor = tokio::runtime::Builder::new_current_thread();
        let reactor = { reactor }.enable_time().build().unwrap();
        let names = Rc::new(Names::by(Arc::new(look_up), Duration::from_secs(1)));
        let tasks = tokio::task::LocalSet::new();
        tasks.block_on(&reactor, test(names, asked, answer));
    }

    #[test]
    fn a_tenant_whose_names_nobody_answers_for_holds_up_nobody_else() {
        with_names("dead", async |names, asked, _answer| {
            let mut waiting = Vec::new();
            for k in 0..3 * LOOKUPS_PER_TENANT {
                let names = Rc::clone(&names);
                let bind = async move { names.find("mallory", &format!("dead{k}.test:1")).await };
                waiting.push(tokio::task::spawn_local(bind));
            }
            while asked.load(Ordering::SeqCst) < LOOKUPS_PER_TENANT {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            let found = names.find("acme", "b.test:7471").await.unwrap().unwrap();
            assert_eq!(found.addresses.len(), 1);
            let begun = asked.load(Ordering::SeqCst);
            assert_eq!(begun, LOOKUPS_PER_TENANT + 1, "its share, and acme's");
            for bind in waiting {
                let status = bind.await.unwrap().unwrap_err();
                assert_eq!(status.code, Code::UNAVAILABLE);
            }
        });
    }

    #[test]
    fn tenants_that_have_all_places_keep_none_from_another() {
        with_names("dead", async |names, asked, _answer| {
            let tenants = LOOKUPS / LOOKUPS_PER_TENANT;
            let mut waiting = Vec::new();
            for k in 0..LOOKUPS {
                let names = Rc::clone(&names);
                let (tenant, name) = (format!("t{}", k % tenants), format!("dead{k}.test:1"));
                let bind = async move { names.find(&tenant, &name).await };
                waiting.push(tokio::task::spawn_local(bind));
            }
            while asked.load(Ordering::SeqCst) < LOOKUPS {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            let soon = Duration::from_millis(500);
            let found = tokio::time::timeout(soon, names.find("acme", "b.test:1")).await;
            assert_eq!(found.unwrap().unwrap().unwrap().addresses.len(), 1);
            // A tenant with a look-up waits for another place, even if reserved ones are free.
            let own = Rc::clone(&names);
            let bind = async move { own.find("globex", "dead.test:1").await };
            waiting.push(tokio::task::spawn_local(bind));
            while asked.load(Ordering::SeqCst) < LOOKUPS + 2 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            let more = names.find("globex", "b.test:1");
            assert!(tokio::time::timeout(soon, more).await.is_err());
            names.find("acme", "c.test:1").await.unwrap();
            waiting.iter().for_each(|bind| bind.abort());
        });
    }

    #[test]
    fn who_waits_is_told_in_time_and_a_late_answer_is_remembered() {
        with_names("dead", async |names, asked, answer| {
            let status = names.find("acme", DEAD).await.unwrap_err();
            assert!(
                status.message.contains("wasn't found within 1 s"),
                "{}",
                status.message
            );
            answer.send(()).unwrap();
            names.find("acme", DEAD).await.unwrap();
            names.find("acme", DEAD).await.unwrap();
            assert_eq!(asked.load(Ordering::SeqCst), 1);
        });
    }

    #[test]
    fn answers_are_remembered_for_a_while_but_not_for_who_has_lost_the_peer() {
        with_names("dead", async |names, asked, _answer| {
            let times = || asked.load(Ordering::SeqCst);
            let first = names.find("acme", "b.test:1").await.unwrap().unwrap();
            names.find("acme", "b.test:1").await.unwrap();
            assert_eq!(times(), 1);
            names.find("other", "b.test:1").await.unwrap();
            assert_eq!(times(), 2, "each tenant asks for itself");
            let again = names.find_again("acme", &first.peer).await.unwrap();
            assert_eq!((times(), again), (3, vec![address(3)]), "it may have moved");
            let known = names.find("acme", "b.test:1").await.unwrap().unwrap();
            assert_eq!(known.addresses, [address(3)]);
            assert!(names.find("acme", "none.test:1").await.is_err());
            assert!(names.find("acme", "none.test:1").await.is_err());
            assert_eq!(times(), 4);
            tokio::time::sleep(REMEMBERED_FOR.1).await;
            assert!(names.find("acme", "none.test:1").await.is_err());
            assert_eq!(times(), 5, "not for long");
        });
    }

    #[test]
    fn a_tenants_names_are_limited_and_the_oldest_goes_first() {
        with_names("dead", async |names, asked, _answer| {
            for k in 0..=NAMES_PER_TENANT {
                let name = format!("b{k}.test:1");
                names.find("acme", &name).await.unwrap();
            }
            let known = names.tenants.borrow()["acme"].known.len();
            assert_eq!(known, NAMES_PER_TENANT);
            let before = asked.load(Ordering::SeqCst);
            names.find("acme", "b1.test:1").await.unwrap();
            assert_eq!(asked.load(Ordering::SeqCst), before);
            names.find("acme", "b0.test:1").await.unwrap();
            assert_eq!(asked.load(Ordering::SeqCst), before + 1);
        });
    }
}
