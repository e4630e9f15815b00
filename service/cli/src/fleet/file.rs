//! The fleet file: the hosts, and how to reach their daemons.
//!
//! ```toml
//! binary = "/usr/local/bin/tollgated-0.2.0"   # on each host; what it was started from, if left out
//!
//! [[host]]
//! name = "a"                                  # what its daemon calls itself
//! socket = "/run/tollgate/a.sock"             # a daemon of this machine
//!
//! [[host]]
//! name = "b"
//! ssh = "admin@b.example"                     # a daemon of another: `tollgate` is run there
//! socket = "/run/tollgate/b.sock"             # there; its default, if left out
//! tollgate = "/opt/tollgate/bin/tollgate"     # there; found in PATH, if left out
//! binary = "/opt/tollgate/bin/tollgated"
//! ```
//!
//! This module checks the file completely, so that no error appears after half of the hosts are
//! upgraded.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use tollgate_schema::spelling::did_serde_mean;
use tollgate_shm_abi::text::point_at;

use crate::failure::Failure;
use crate::fleet::reach::{Reach, Remote};
use crate::input::read_at_most;
use crate::limits::{MAX_FLEET_BYTES, MAX_HOSTS};

/// The longest name of a daemon, in bytes.
const MAX_NAME: usize = 64;

/// The hosts, in the file's order.
#[derive(Debug)]
pub(crate) struct Fleet {
    pub(crate) path: PathBuf,
    pub(crate) hosts: Vec<Host>,
}

/// One host of a fleet.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Host {
    /// The daemon's own name.
    pub(crate) name: String,
    pub(crate) reach: Reach,
    /// The path on the host of the program that it is upgraded to. By default, the program that it
    /// was started from.
    pub(crate) binary: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    binary: Option<String>,
    #[serde(default)]
    host: Vec<WrittenHost>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenHost {
    name: String,
    socket: Option<String>,
    ssh: Option<String>,
    tollgate: Option<String>,
    binary: Option<String>,
}

impl Fleet {
    /// Reads the file. A program from the command line overrides that of every host in the file.
    pub(crate) fn load(path: &Path, binary: Option<&str>) -> Result<Fleet, Failure> {
        let text = read_at_most(path, MAX_FLEET_BYTES)?;
        let text = String::from_utf8(text)
            .map_err(|_| Failure::input(format_args!("{} isn't UTF-8", path.display())))?;
        let hosts = hosts(&text, binary).map_err(|wrong| wrong.of(path, &text))?;
        Ok(Fleet {
            path: path.to_owned(),
            hosts,
        })
    }

    /// The host with this name.
    pub(crate) fn find(&self, name: &str) -> Option<usize> {
        self.hosts.iter().position(|host| host.name == name)
    }

    /// Names of hosts, for a sentence.
    pub(crate) fn names(&self, hosts: impl IntoIterator<Item = usize>) -> String {
        let names: Vec<_> = hosts.into_iter().map(|k| &*self.hosts[k].name).collect();
        names.join(", ")
    }
}

/// An error in a file, possibly with its place.
enum Wrong {
    Toml(toml::de::Error),
    Meaning(String),
}

impl Wrong {
    fn of(self, path: &Path, text: &str) -> Failure {
        let path = path.display();
        match self {
            Wrong::Meaning(sentence) => Failure::input(format_args!("{path}: {sentence}")),
            Wrong::Toml(error) => {
                let (line, _, shown) = point_at(text, error.span().unwrap_or_default());
                let message = error.message().trim_end().replace('\n', ", ");
                let meant = did_serde_mean(&message);
                let sentence = format!("{path}, line {line}: {message}{meant}");
                Failure::excerpt(sentence, &shown)
            }
        }
    }
}

impl From<String> for Wrong {
    fn from(sentence: String) -> Wrong {
        Wrong::Meaning(sentence)
    }
}

fn hosts(text: &str, binary: Option<&str>) -> Result<Vec<Host>, Wrong> {
    let written: Written = toml::from_str(text).map_err(Wrong::Toml)?;
    let of_all = written.binary;
    check_binary("", of_all.as_deref())?;
    check_binary("", binary)?;
    if written.host.is_empty() {
        return Err("it names no host: add a section [[host]] for each"
            .to_owned()
            .into());
    }
    if written.host.len() > MAX_HOSTS {
        let count = written.host.len();
        return Err(format!("it names {count} hosts; at most {MAX_HOSTS} are allowed").into());
    }
    let mut hosts: Vec<Host> = Vec::new();
    for one in written.host {
        let host = host(one, of_all.as_deref(), binary)?;
        if hosts.iter().any(|other| other.name == host.name) {
            return Err(format!("it names host {} twice", host.name).into());
        }
        hosts.push(host);
    }
    Ok(hosts)
}

fn host(one: WrittenHost, of_all: Option<&str>, binary: Option<&str>) -> Result<Host, String> {
    let name = one.name;
    let legal = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    if name.is_empty() || name.len() > MAX_NAME || !name.bytes().all(legal) {
        return Err(format!(
            "a host's name is its daemon's name, 1 to {MAX_NAME} characters of a-z A-Z 0-9 . _ -, not {name:?}"
        ));
    }
    check_binary(&format!("host {name}: "), one.binary.as_deref())?;
    for (key, value) in [
        ("socket", &one.socket),
        ("ssh", &one.ssh),
        ("tollgate", &one.tollgate),
    ] {
        let is_word = |value: &str| !value.is_empty() && !value.contains(char::is_control);
        if let Some(value) = value.as_deref().filter(|value| !is_word(value)) {
            return Err(format!("host {name}: {key} can't be {value:?}"));
        }
    }
    let reach = match (one.ssh, one.socket) {
        // `ssh` would take it for an option, or for two arguments.
        (Some(ssh), _) if ssh.starts_with('-') || ssh.contains(char::is_whitespace) => {
            return Err(format!(
                "host {name}: ssh can't be {ssh:?}: it is written user@host"
            ));
        }
        (Some(destination), socket) => Reach::Ssh(Remote {
            destination,
            socket,
            tollgate: one.tollgate.unwrap_or_else(|| "tollgate".to_owned()),
        }),
        (None, _) if one.tollgate.is_some() => {
            return Err(format!(
                "host {name}: tollgate needs ssh: it names the program on another machine"
            ));
        }
        (None, Some(socket)) => Reach::Socket(socket.into()),
        (None, None) => {
            return Err(format!(
                "host {name} needs socket, for a daemon on this machine, or ssh, for one on another"
            ));
        }
    };
    let binary = binary.or(one.binary.as_deref()).or(of_all);
    Ok(Host {
        name,
        reach,
        binary: binary.map(str::to_owned),
    })
}

fn check_binary(whose: &str, binary: Option<&str>) -> Result<(), String> {
    match binary {
        Some(path) if !Path::new(path).is_absolute() || path.contains(char::is_control) => Err(
            format!("{whose}binary is an absolute path on the host, not {path:?}"),
        ),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn refused(text: &str) -> String {
        let wrong = hosts(text, None).unwrap_err();
        wrong.of(Path::new("f.toml"), text).sentence()
    }

    #[test]
    fn a_host_is_reached_by_its_socket_or_by_ssh_and_has_a_program() {
        let text = r#"
            binary = "/new"
            [[host]]
            name = "a"
            socket = "a.sock"
            [[host]]
            name = "b"
            ssh = "admin@b"
            binary = "/its/own"
            [[host]]
            name = "c"
            ssh = "c"
            socket = "/c.sock"
            tollgate = "/opt/tollgate"
        "#;
        let remote = |destination: &str, socket: Option<&str>, tollgate: &str| {
            Reach::Ssh(Remote {
                destination: destination.to_owned(),
                socket: socket.map(str::to_owned),
                tollgate: tollgate.to_owned(),
            })
        };
        let host = |name: &str, reach, binary: &str| Host {
            name: name.to_owned(),
            reach,
            binary: Some(binary.to_owned()),
        };
        let found = hosts(text, None).ok().unwrap();
        assert_eq!(
            found,
            [
                host("a", Reach::Socket("a.sock".into()), "/new"),
                host("b", remote("admin@b", None, "tollgate"), "/its/own"),
                host("c", remote("c", Some("/c.sock"), "/opt/tollgate"), "/new"),
            ]
        );
        let said = hosts(text, Some("/said")).ok().unwrap();
        assert!(
            said.iter()
                .all(|host| host.binary.as_deref() == Some("/said"))
        );
        let none = hosts("[[host]]\nname='a'\nsocket='s'", None).ok().unwrap();
        assert_eq!(none[0].binary, None);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_value() {
        let check = |text: &str, sentence: &str| assert_eq!(refused(text), sentence, "{text}");
        check(
            "",
            "f.toml: it names no host: add a section [[host]] for each",
        );
        check(
            "[[host]]\nname = 'a'\nsokcet = 's'",
            "f.toml, line 3: unknown field `sokcet`, expected one of `name`, `socket`, `ssh`, `tollgate`, `binary`; did you mean \"socket\"?",
        );
        check(
            "hosts = 1",
            "f.toml, line 1: unknown field `hosts`, expected `binary` or `host`; did you mean \"host\"?",
        );
        check(
            "[[host]]\nsocket = 's'",
            "f.toml, line 1: missing field `name`",
        );
        check(
            "[[host]]\nname = 7\nsocket = 's'",
            "f.toml, line 2: invalid type: integer `7`, expected a string",
        );
        check(
            "[[host]]\nname = 'a b'\nsocket = 's'",
            "f.toml: a host's name is its daemon's name, 1 to 64 characters of a-z A-Z 0-9 . _ -, not \"a b\"",
        );
        check(
            "[[host]]\nname = 'a'",
            "f.toml: host a needs socket, for a daemon on this machine, or ssh, for one on another",
        );
        check(
            "[[host]]\nname = 'a'\nsocket = ''",
            "f.toml: host a: socket can't be \"\"",
        );
        for ssh in ["-oProxyCommand=x", "b c"] {
            check(
                &format!("[[host]]\nname = 'a'\nssh = '{ssh}'"),
                &format!("f.toml: host a: ssh can't be {ssh:?}: it is written user@host"),
            );
        }
        check(
            "[[host]]\nname = 'a'\nsocket = 's'\ntollgate = '/t'",
            "f.toml: host a: tollgate needs ssh: it names the program on another machine",
        );
        check(
            "[[host]]\nname = 'a'\nsocket = 's'\nbinary = 'new'",
            "f.toml: host a: binary is an absolute path on the host, not \"new\"",
        );
        check(
            "binary = 'new'",
            "f.toml: binary is an absolute path on the host, not \"new\"",
        );
        let twice = "[[host]]\nname = 'a'\nsocket = 's'\n".repeat(2);
        check(&twice, "f.toml: it names host a twice");
    }

    #[test]
    fn a_fleet_has_so_many_hosts_and_its_file_so_many_bytes() {
        let of = |count: usize| -> String {
            let one = |k| format!("[[host]]\nname = 'h{k}'\nsocket = 's'\n");
            (0..count).map(one).collect()
        };
        assert_eq!(hosts(&of(MAX_HOSTS), None).ok().unwrap().len(), MAX_HOSTS);
        let sentence = refused(&of(MAX_HOSTS + 1));
        assert_eq!(
            sentence,
            "f.toml: it names 257 hosts; at most 256 are allowed"
        );
        let long = refused(&of(1).replace("h0", &"n".repeat(MAX_NAME + 1)));
        assert!(long.contains("1 to 64"), "{long}");

        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("f.toml");
        let mut padded = of(1);
        padded += &" ".repeat(MAX_FLEET_BYTES as usize - padded.len());
        std::fs::write(&path, &padded).unwrap();
        assert_eq!(Fleet::load(&path, None).unwrap().hosts.len(), 1);
        std::fs::write(&path, format!("{padded} ")).unwrap();
        let refused = Fleet::load(&path, None).unwrap_err().to_string();
        assert!(
            refused.ends_with("f.toml is longer than 1048576 bytes"),
            "{refused}"
        );
    }
}
