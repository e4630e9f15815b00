//! The suite's mixed workload: of a thousand requests 600 are searches, 390 recommendations, 5
//! log-ins and 5 reservations.
//!
//! A closed loop: each connection has one request under way. The mix and the ranges are those of
//! the original's script for wrk2 (`mixed-workload_type_1.lua`), but for its users' names, which
//! its own data set doesn't have. The same seed gives the same requests.

use std::time::{Duration, Instant};

use fastrand::Rng;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::dataset::{self, HOTELS, USERS};
use crate::http::Connection;

/// How often a long run says how far it is.
const PROGRESS: Duration = Duration::from_secs(5);

/// The longest latency with a bucket of its own, in microseconds.
const LONGEST_US: u64 = 60_000_000;

/// Digits of a latency that are kept.
const DIGITS: u8 = 3;

/// How it is put on a frontend.
#[derive(Clone, Debug)]
pub struct Load {
    /// `host:port` of the frontend.
    pub frontend: String,
    /// How many requests are under way.
    pub connections: usize,
    /// How long.
    pub time: Duration,
    /// Which requests.
    pub seed: u64,
}

/// What came of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Outcome {
    /// Requests that were answered.
    pub answered: u64,
    /// Per second.
    pub rate: f64,
    /// Median latency.
    pub p50_us: u64,
    /// What 99 of 100 are within.
    pub p99_us: u64,
    /// Requests that failed, or were answered with another status than 200; not among the answered.
    pub errors: u64,
    /// One of those, in a sentence.
    pub error: Option<String>,
}

/// What one connection saw.
struct Seen {
    latencies_us: Histogram<u64>,
    errors: u64,
    error: Option<String>,
}

impl Load {
    /// Loads the frontend, within a runtime of tokio, and tells standard error of progress.
    ///
    /// # Errors
    /// If a connection can't be opened at the beginning, or the histogram can't be made.
    pub async fn run(&self) -> Result<Outcome, String> {
        let mut connections = Vec::new();
        for _ in 0..self.connections {
            connections.push(Connection::open(&self.frontend).await?);
        }
        let (begin, end) = (Instant::now(), Instant::now() + self.time);
        let connections = connections.into_iter().zip(1..);
        let workers = connections.map(|(connection, number)| {
            let requests = Requests::new(self.seed.wrapping_add(number << 32));
            tokio::spawn(drive(self.frontend.clone(), connection, requests, end))
        });
        let workers: Vec<_> = workers.collect();
        while Instant::now() + PROGRESS < end {
            tokio::time::sleep(PROGRESS).await;
            let (passed, all) = (begin.elapsed().as_secs(), self.time.as_secs());
            eprintln!("{passed} of {all} s");
        }
        let mut all = Seen::new()?;
        for worker in workers {
            let seen = worker.await.map_err(|error| error.to_string())??;
            let added = all.latencies_us.add(&seen.latencies_us);
            added.map_err(|error| error.to_string())?;
            all.errors += seen.errors;
            all.error = all.error.or(seen.error);
        }
        let latencies = &all.latencies_us;
        Ok(Outcome {
            answered: latencies.len(),
            rate: latencies.len() as f64 / begin.elapsed().as_secs_f64(),
            p50_us: latencies.value_at_quantile(0.5),
            p99_us: latencies.value_at_quantile(0.99),
            errors: all.errors,
            error: all.error,
        })
    }
}

impl Seen {
    fn new() -> Result<Seen, String> {
        let latencies_us = Histogram::new_with_max(LONGEST_US, DIGITS);
        Ok(Seen {
            latencies_us: latencies_us.map_err(|error| error.to_string())?,
            errors: 0,
            error: None,
        })
    }
}

async fn drive(
    frontend: String,
    mut connection: Connection,
    mut requests: Requests,
    end: Instant,
) -> Result<Seen, String> {
    let mut seen = Seen::new()?;
    while Instant::now() < end {
        let path = requests.next_path();
        let begin = Instant::now();
        let error = match connection.get(&path).await {
            Ok((200, _)) => {
                let latency_us = begin.elapsed().as_micros() as u64;
                seen.latencies_us.saturating_record(latency_us);
                continue;
            }
            Ok((status, content)) => {
                format!("{path}: {status}: {}", String::from_utf8_lossy(&content))
            }
            Err(error) => {
                // One that can't be opened any more ends the run.
                connection = Connection::open(&frontend).await?;
                error
            }
        };
        seen.errors += 1;
        seen.error.get_or_insert(error);
    }
    Ok(seen)
}

/// The endless sequence of requests for one seed.
#[derive(Debug)]
pub struct Requests(Rng);

impl Requests {
    /// Its beginning.
    pub fn new(seed: u64) -> Requests {
        Requests(Rng::with_seed(seed))
    }

    /// What is asked for next.
    pub fn next_path(&mut self) -> String {
        match self.0.u64(..1000) {
            ..600 => self.search(),
            600..990 => self.recommendation(),
            990..995 => format!("/user?{}", self.user()),
            _ => self.reservation(),
        }
    }

    fn search(&mut self) -> String {
        let first = 9 + self.0.u64(..15);
        let last = first + 1 + self.0.u64(..24 - first);
        let position = self.position();
        format!("/hotels?inDate=2015-04-{first:02}&outDate=2015-04-{last:02}&{position}")
    }

    fn recommendation(&mut self) -> String {
        let require = ["dis", "rate", "price"][self.0.u64(..3) as usize];
        format!("/recommendations?require={require}&{}", self.position())
    }

    fn reservation(&mut self) -> String {
        let first = 9 + self.0.u64(..15);
        // The original's stays end on the 28th at the latest, too.
        let last = first + 1 + self.0.u64(..5);
        let (hotel, user) = (1 + self.0.u64(..u64::from(HOTELS)), self.user());
        format!(
            "/reservation?inDate=2015-04-{first:02}&outDate=2015-04-{last:02}&hotelId={hotel}&customerName=Ada&{user}&number=1"
        )
    }

    fn user(&mut self) -> String {
        let number = self.0.u32(..USERS);
        let [username, password] = [dataset::username(number), dataset::password(number)];
        format!("username={username}&password={password}")
    }

    fn position(&mut self) -> String {
        let lat = 38.0235 + (self.0.u64(..482) as f64 - 240.5) / 1000.0;
        let lon = -122.095 + (self.0.u64(..326) as f64 - 157.0) / 1000.0;
        format!("lat={lat:.4}&lon={lon:.4}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_mixed_as_the_suite_has_it() {
        let mut requests = Requests::new(1);
        let paths: Vec<_> = (0..100_000).map(|_| requests.next_path()).collect();
        let share = |path: &str| {
            let count = paths.iter().filter(|of| of.starts_with(path)).count();
            count as f64 / paths.len() as f64
        };
        let check = |path, expected: f64, slack| {
            let share = share(path);
            assert!((share - expected).abs() < slack, "{path}: {share}");
        };
        check("/hotels?", 0.6, 0.01);
        check("/recommendations?", 0.39, 0.01);
        check("/user?", 0.005, 0.001);
        check("/reservation?", 0.005, 0.001);
        assert!(Requests::new(1).next_path() == paths[0]);
    }

    #[test]
    fn every_stay_is_one() {
        let mut requests = Requests::new(2);
        for _ in 0..10_000 {
            let path = requests.reservation() + &requests.search();
            assert!(!path.contains("2015-04-3"), "{path}");
        }
    }
}
