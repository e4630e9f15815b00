//! Who may make reservations. Only digests of passwords are kept.

use std::collections::HashMap;
use std::path::Path;

use crate::dataset;
use crate::failure::Failure;
use crate::store::Store;

/// The digests of the users' passwords, by their names.
#[derive(Debug)]
pub struct Users {
    digests: HashMap<String, String>,
}

impl Users {
    /// With the users of the store in this directory.
    ///
    /// # Errors
    /// INTERNAL if that can't be used.
    pub fn open(directory: &Path) -> Result<Users, Failure> {
        let store = Store::open(directory, "user", dataset::users())?;
        let digests = store.all()?.into_iter().collect();
        Ok(Users { digests })
    }

    /// Whether there is such a user, with this password.
    pub fn is_user(&self, username: &str, password: &str) -> bool {
        let digest = dataset::digest(password);
        self.digests.get(username) == Some(&digest)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_user_has_one_password() {
        let place = tempfile::tempdir().unwrap();
        let users = Users::open(place.path()).unwrap();
        let [name, password] = [dataset::username(7), dataset::password(7)];
        assert!(users.is_user(&name, &password));
        assert!(!users.is_user(&name, "7"));
        assert!(!users.is_user(&dataset::username(501), &dataset::password(501)));
    }
}
