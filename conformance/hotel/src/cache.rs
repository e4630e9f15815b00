//! What is looked up often, in memcached: its text protocol over blocking connections, each used by
//! one caller at a time.
//!
//! A cache is a convenience: whoever asks it gets nothing if memcached is gone, looks in the store,
//! and never waits longer than [`TIMEOUT`]. That it is gone is said once, and that it is back.
//!
//! Nothing old is ever read. Keys begin with a generation, which is new when a service starts and
//! whenever memcached failed: what a service wasn't able to change in a memcached that it didn't
//! reach, it will not find there later.
//!
//! The crates for this bring a pool of threads, or belong on tokio, of which the services over
//! Tollgate have nothing.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::failure::Failure;
use crate::store;

/// How long memcached may take for anything.
pub const TIMEOUT: Duration = Duration::from_millis(500);

/// How long one that failed is left alone.
pub const PAUSE: Duration = Duration::from_secs(1);

/// The longest key, which is memcached's own limit less what is put in front of it.
pub const MAX_KEY_BYTES: usize = 200;

/// The largest value that is believed.
const MAX_VALUE_BYTES: usize = 1 << 20;

/// One service's part of a memcached; or nothing, without an address.
#[derive(Debug)]
pub struct Cache {
    service: &'static str,
    address: Option<SocketAddr>,
    generation: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Connections that nobody uses.
    idle: Vec<BufReader<TcpStream>>,
    /// Since when memcached is gone.
    gone: Option<Instant>,
}

impl Cache {
    /// The part of this service.
    pub fn new(service: &'static str, address: Option<SocketAddr>) -> Cache {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let generation = since.map_or(0, |since| since.as_nanos() as u64);
        Cache {
            service,
            address,
            generation: generation.into(),
            state: Mutex::default(),
        }
    }

    /// The records of these ids, or `None` where there is none: from the cache, and from `look_up`
    /// what it hasn't, which it has from then on.
    ///
    /// # Errors
    /// Those of `look_up`, and INTERNAL for what can't be parsed.
    pub fn through<T: Serialize + DeserializeOwned>(
        &self,
        ids: &[String],
        mut look_up: impl FnMut(&str) -> Result<Option<T>, Failure>,
    ) -> Result<Vec<Option<T>>, Failure> {
        let cached = self.get(ids);
        let mut news = Vec::new();
        let records = ids.iter().map(|id| match cached.get(id) {
            Some(record) => store::parsed(record),
            None => {
                let record = look_up(id)?;
                news.push((id.clone(), store::json(&record)));
                Ok(record)
            }
        });
        let records = records.collect();
        self.set(&news);
        records
    }

    /// The values of those keys that it has.
    pub fn get(&self, keys: &[String]) -> HashMap<String, Vec<u8>> {
        let keys = keys.iter().filter(|key| is_key(key));
        let names: HashMap<String, &String> = keys.map(|key| (self.name(key), key)).collect();
        if names.is_empty() {
            return HashMap::new();
        }
        let values = self.ask(|memcached| get(memcached, names.keys()));
        let values = values.unwrap_or_default().into_iter();
        let known = values.filter_map(|(name, value)| Some(((*names.get(&name)?).clone(), value)));
        known.collect()
    }

    /// Sets values, all of them or none that will ever be read.
    pub fn set(&self, values: &[(String, Vec<u8>)]) {
        let values = values.iter().filter(|(key, _)| is_key(key));
        let named: Vec<_> = values.map(|(key, value)| (self.name(key), value)).collect();
        if !named.is_empty() {
            self.ask(|memcached| set(memcached, &named));
        }
    }

    /// Does something with a connection, unless memcached is gone.
    fn ask<R>(&self, work: impl FnOnce(&mut BufReader<TcpStream>) -> io::Result<R>) -> Option<R> {
        let address = self.address?;
        let idle = {
            let mut state = self.lock();
            if state.gone.is_some_and(|since| since.elapsed() < PAUSE) {
                // Whatever this was to change, memcached may have it still.
                self.generation.fetch_add(1, Ordering::Relaxed);
                return None;
            }
            state.idle.pop()
        };
        let connection = idle.map_or_else(|| connect(address), Ok);
        let done = connection.and_then(|mut connection| {
            let result = work(&mut connection)?;
            Ok((connection, result))
        });
        let mut state = self.lock();
        match done {
            Ok((connection, result)) => {
                state.idle.push(connection);
                if state.gone.take().is_some() {
                    eprintln!("{}: memcached at {address} is back", self.service);
                }
                Some(result)
            }
            Err(error) => {
                self.generation.fetch_add(1, Ordering::Relaxed);
                state.idle.clear();
                if state.gone.replace(Instant::now()).is_none() {
                    let (service, why) = (self.service, why(&error));
                    eprintln!(
                        "{service}: memcached at {address} is gone ({why}): answering from the store"
                    );
                }
                None
            }
        }
    }

    fn name(&self, key: &str) -> String {
        let generation = self.generation.load(Ordering::Relaxed);
        format!("{}:{generation:x}:{key}", self.service)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ids come from strangers: one that memcached would take for a command's end isn't cached.
fn is_key(key: &str) -> bool {
    key.len() <= MAX_KEY_BYTES && key.bytes().all(|byte| byte.is_ascii_graphic())
}

fn connect(address: SocketAddr) -> io::Result<BufReader<TcpStream>> {
    let stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    Ok(BufReader::new(stream))
}

/// `get NAME..`, answered by `VALUE NAME FLAGS LEN`, the bytes, and `END`.
fn get<'k>(
    memcached: &mut BufReader<TcpStream>,
    names: impl Iterator<Item = &'k String>,
) -> io::Result<Vec<(String, Vec<u8>)>> {
    let names: Vec<_> = names.map(String::as_str).collect();
    let request = format!("get {}\r\n", names.join(" "));
    memcached.get_ref().write_all(request.as_bytes())?;
    let mut values = Vec::with_capacity(names.len());
    loop {
        let line = line(memcached)?;
        if line == "END" {
            return Ok(values);
        }
        let mut words = line.split(' ');
        let (head, name) = (words.next(), words.next());
        let len = words.nth(1).and_then(|len| len.parse::<usize>().ok());
        let (Some("VALUE"), Some(name), Some(len @ ..=MAX_VALUE_BYTES)) = (head, name, len) else {
            return Err(unexpected(&line));
        };
        let mut value = vec![0; len + 2];
        memcached.read_exact(&mut value)?;
        value.truncate(len);
        values.push((name.to_owned(), value));
    }
}

/// `set NAME FLAGS EXPIRY LEN`, and the bytes: all at once, each of them answered by `STORED`.
fn set(memcached: &mut BufReader<TcpStream>, values: &[(String, &Vec<u8>)]) -> io::Result<()> {
    let mut request = Vec::new();
    for (name, value) in values {
        write!(request, "set {name} 0 0 {}\r\n", value.len())?;
        request.extend_from_slice(value);
        request.extend_from_slice(b"\r\n");
    }
    memcached.get_ref().write_all(&request)?;
    for _ in values {
        let line = line(memcached)?;
        if line != "STORED" {
            return Err(unexpected(&line));
        }
    }
    Ok(())
}

fn line(memcached: &mut BufReader<TcpStream>) -> io::Result<String> {
    let mut line = String::new();
    memcached.read_line(&mut line)?;
    match line.strip_suffix("\r\n") {
        Some(line) => Ok(line.to_owned()),
        None => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

fn why(error: &io::Error) -> String {
    match error.kind() {
        // What a socket says whose time is over.
        io::ErrorKind::WouldBlock => format!("no answer within {TIMEOUT:?}"),
        _ => error.to_string(),
    }
}

fn unexpected(line: &str) -> io::Error {
    io::Error::other(format!("it said {line:?}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    /// A memcached that has read a request when it answers with the next of these, whatever it was
    /// asked.
    fn memcached(
        answers: &'static [&'static str],
    ) -> (SocketAddr, thread::JoinHandle<Vec<String>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let answering = move || {
            let (mut stream, _) = listener.accept().unwrap();
            let answer = |answer: &&str| {
                let mut request = vec![0; 4096];
                let len = stream.read(&mut request).unwrap();
                stream.write_all(answer.as_bytes()).unwrap();
                String::from_utf8(request[..len].to_vec()).unwrap()
            };
            answers.iter().map(answer).collect()
        };
        (address, thread::spawn(answering))
    }

    fn keys(keys: &[&str]) -> Vec<String> {
        keys.iter().map(|&key| key.to_owned()).collect()
    }

    #[test]
    fn values_are_asked_for_at_once_and_set_at_once() {
        let (address, asked) = memcached(&["END\r\n", "STORED\r\nSTORED\r\n"]);
        let cache = Cache::new("x", Some(address));
        let look_up = |id: &str| Ok((id != "b").then_some(id.len()));
        let found = cache.through(&keys(&["a", "b"]), look_up).unwrap();
        assert_eq!(found, [Some(1), None]);
        let asked = asked.join().unwrap();
        let generation = cache.name("");
        assert!(asked[0].starts_with("get x:"), "{asked:?}");
        let set = format!("set {generation}a 0 0 1\r\n1\r\nset {generation}b 0 0 4\r\nnull\r\n");
        assert_eq!(asked[1], set);
    }

    #[test]
    fn what_is_cached_is_not_looked_up() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let cache = Cache::new("x", Some(listener.local_addr().unwrap()));
        let name = cache.name("a");
        let answering = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let asked = stream.read(&mut [0; 4096]).unwrap();
            write!(stream, "VALUE {name} 0 2\r\n17\r\nEND\r\n").unwrap();
            asked
        });
        let none = |_: &str| -> Result<Option<u32>, Failure> { unreachable!("it is cached") };
        assert_eq!(cache.through(&keys(&["a"]), none).unwrap(), [Some(17)]);
        answering.join().unwrap();
    }

    #[test]
    fn one_that_fails_is_left_alone_and_its_values_are_never_read() {
        for answer in [
            "SERVER_ERROR out of memory\r\n",
            "VALUE y 0 9999999\r\n",
            "",
        ] {
            let (address, asked) = memcached(Box::leak(Box::new([answer])));
            let cache = Cache::new("x", Some(address));
            let before = cache.name("a");
            assert!(cache.get(&keys(&["a"])).is_empty());
            asked.join().unwrap();
            assert_ne!(cache.name("a"), before, "{answer}");
            let before = cache.name("a");
            cache.set(&[("a".to_owned(), b"1".to_vec())]);
            assert_ne!(cache.name("a"), before, "{answer}");
        }
    }

    #[test]
    fn ids_that_end_a_command_are_not_cached() {
        let cache = Cache::new("x", Some("127.0.0.1:1".parse().unwrap()));
        let hostile = keys(&["a\r\nflush_all", "a b", "", &"a".repeat(MAX_KEY_BYTES + 1)]);
        assert!(cache.get(&hostile[..2]).is_empty());
        assert!(cache.lock().gone.is_none(), "nothing was asked");
        assert!(!is_key(&hostile[3]));
    }
}
