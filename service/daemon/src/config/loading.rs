//! Reads a configuration from its file and checks it.

use std::path::Path;

use tollgate_schema::spelling::did_serde_mean;
use tollgate_shm_abi::text::point_at;

use super::Config;
use super::definitions::{DEFINITIONS, refuse};
use super::error::{ConfigError, is_no_path, without_secrets};
use super::source::Source;
use crate::targets;

impl Config {
    /// Reads and checks a TOML file.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|error| ConfigError::Unreadable {
            path: path.to_owned(),
            error,
        })?;
        let malformed = |error: toml::de::Error| {
            let (line, column, shown) = point_at(&text, error.span().unwrap_or_default());
            let message = error.message().trim_end().replace('\n', ", ");
            let meant = did_serde_mean(&message);
            ConfigError::Malformed {
                path: path.to_owned(),
                line,
                column,
                message: message + &meant,
                shown: without_secrets(&shown),
            }
        };
        let mut config: Self = toml::from_str(&text).map_err(malformed)?;
        let table: toml::Table = toml::from_str(&text).map_err(malformed)?;
        let says = |key: &str| match key.split_once('.') {
            Some((section, key)) => table.get(section).is_some_and(|its| its.get(key).is_some()),
            None => table.contains_key(key),
        };
        let said = DEFINITIONS.iter().filter(|setting| says(setting.key));
        config.sources = said.map(|setting| (setting.key, Source::File)).collect();
        config.check()?;
        Ok(config)
    }

    /// Checks ranges.
    pub fn check(&self) -> Result<(), ConfigError> {
        let named = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || b"-_.".contains(&c);
        if self.name.is_empty() || self.name.len() > 64 || !self.name.bytes().all(named) {
            return Err(refuse("name", &self.name));
        }
        for setting in DEFINITIONS {
            setting.check(self)?;
        }
        self.check_peers()?;
        self.admin.check()?;
        self.telemetry.check()
    }

    /// Checks that the key file is there.
    ///
    /// # Errors
    /// It isn't, or it can't be reached.
    pub fn check_files(&self) -> Result<(), ConfigError> {
        let Some(path) = &self.psk_file else {
            return Ok(());
        };
        let there = std::fs::metadata(path).map(drop);
        there.map_err(|error| match is_no_path(&error) {
            true => ConfigError::SecretUnreadable {
                setting: "psk_file",
                error,
            },
            false => ConfigError::Unreadable {
                path: path.clone(),
                error,
            },
        })
    }

    fn check_peers(&self) -> Result<(), ConfigError> {
        let mut peers = self.peers.iter().map(|peer| &peer.address);
        if let Some(wrong) = peers.find(|address| !targets::is_pattern(address)) {
            return Err(refuse("peers.address", wrong));
        }
        let mut names = self.link.advertise.iter();
        match names.find(|name| !targets::is_name(name)) {
            Some(wrong) => Err(refuse("link.advertise", wrong)),
            None => Ok(()),
        }
    }
}
