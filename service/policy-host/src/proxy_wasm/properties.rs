//! Properties that a filter sets on its own call: they are kept with the call and end with it.

use std::collections::BTreeMap;

use crate::limits;

/// The properties that a filter has set on a call.
#[derive(Debug, Default)]
pub(super) struct Properties {
    set: BTreeMap<Vec<u8>, Vec<u8>>,
    bytes: usize,
}

impl Properties {
    pub(super) fn get(&self, path: &[u8]) -> Option<&[u8]> {
        self.set.get(path).map(Vec::as_slice)
    }

    /// False if there is no room.
    pub(super) fn set(&mut self, path: Vec<u8>, value: Vec<u8>) -> bool {
        let size = |value: usize| path.len() + value + limits::STATE_ENTRY_BYTES;
        let old = self.set.get(&path).map_or(0, |old| size(old.len()));
        let bytes = self.bytes - old + size(value.len());
        if bytes > limits::PROPERTY_BYTES {
            return false;
        }
        self.bytes = bytes;
        self.set.insert(path, value);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_has_a_limit() {
        let mut properties = Properties::default();
        assert!(properties.set(b"a".to_vec(), vec![0; 10]));
        assert!(properties.set(b"a".to_vec(), vec![0; 20]));
        assert_eq!(properties.bytes, 21 + limits::STATE_ENTRY_BYTES);
        assert!(!properties.set(b"b".to_vec(), vec![0; limits::PROPERTY_BYTES]));
        assert_eq!(properties.set.len(), 1);
    }
}
