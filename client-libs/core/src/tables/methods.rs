//! Handles of methods: maps the program's handles to those of the current connection. Pure.

use std::collections::{HashMap, HashSet};

use tollgate_shm_abi::Code;

use crate::Status;

/// The methods that a program has handles for.
#[derive(Debug, Default)]
pub(crate) struct Methods {
    /// The handles on this connection. `None` on a session's first connection, which uses the
    /// daemon's own handles.
    pub(crate) known: Option<HashMap<u32, Result<u32, Status>>>,
    /// The handles of idempotent methods.
    pub(crate) idempotent: HashSet<u32>,
}

impl Methods {
    /// The daemon's handle.
    #[inline]
    pub(crate) fn resolve(&self, handle: u32) -> Result<u32, Status> {
        match &self.known {
            None => Ok(handle),
            Some(known) => known.get(&handle).cloned().unwrap_or_else(|| {
                let text = format!("the program has no method handle {handle}");
                Err(Status::new(Code::UNIMPLEMENTED, text))
            }),
        }
    }

    /// Whether calls by this handle may be made again.
    pub(crate) fn is_idempotent(&self, handle: u32) -> bool {
        self.idempotent.contains(&handle)
    }

    /// A handle for the program: the daemon's handle, unless that already stands for another
    /// method.
    pub(crate) fn name(&mut self, handle: u32) -> u32 {
        let Some(known) = &mut self.known else {
            return handle;
        };
        let mut name = handle;
        while known.contains_key(&name) {
            name = name.wrapping_sub(1);
        }
        known.insert(name, Ok(handle));
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_stands_for_one_method_whatever_the_daemon_says() {
        let mut methods = Methods::default();
        assert_eq!((methods.name(7), methods.resolve(7)), (7, Ok(7)));
        let again = [(7, Ok(3)), (8, Err(Status::unavailable("not yet")))];
        let mut methods = Methods {
            known: Some(again.into()),
            ..Methods::default()
        };
        assert_eq!(methods.resolve(7), Ok(3));
        assert_eq!(
            methods.resolve(8).map_err(|s| s.code),
            Err(Code::UNAVAILABLE)
        );
        assert_eq!(
            methods.resolve(3).map_err(|s| s.code),
            Err(Code::UNIMPLEMENTED)
        );
        // On this connection the daemon's handles 7 and 8 stand for other methods.
        assert_eq!(
            [methods.name(8), methods.name(7), methods.name(9)],
            [6, 5, 9]
        );
        assert_eq!((methods.resolve(6), methods.resolve(5)), (Ok(8), Ok(7)));
    }
}
