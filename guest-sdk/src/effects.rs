//! The effects of a policy on a call that it allows.

use std::time::Duration;

/// One effect on a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// A message field gets a new value. The index is its position in the manifest's `changes` (or
    /// `reply_changes`).
    Field(u32, NewValue),
    /// A metadata key gets this one value instead of its values, or is removed. The index is its
    /// position in the manifest's `metadata_changes` (or `reply_metadata_changes`).
    Metadata(u32, Option<Vec<u8>>),
    /// The call is delayed by this many microseconds.
    Delay(u32),
    /// The call's priority.
    Priority(u8),
    /// The request's route.
    Route(Route),
}

/// A field's new value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NewValue {
    /// The field becomes absent, or zero or empty if it can't be absent.
    Clear,
    /// A number, bool or enum, encoded as in a view.
    Bits(u64),
    /// A string or bytes.
    Bytes(Vec<u8>),
}

/// The effects on a call: at most one per field, per metadata key and per other kind.
///
/// A repeated effect replaces the earlier one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Effects(Vec<Effect>);

impl Effects {
    /// The longest delay; longer ones are reduced to it.
    pub const DELAY_MAX: Duration = Duration::from_secs(1);
    /// The highest priority; higher ones are reduced to it.
    pub const PRIORITY_MAX: u8 = 7;

    /// No effects. Allocates nothing.
    pub const fn new() -> Effects {
        Effects(Vec::new())
    }

    /// Clears a field.
    pub fn clear(&mut self, field: u32) {
        self.put(Effect::Field(field, NewValue::Clear));
    }

    /// Sets a number (sign-extended if it is signed), a bool, an enum, or the bits of a float.
    pub fn bits(&mut self, field: u32, value: u64) {
        self.put(Effect::Field(field, NewValue::Bits(value)));
    }

    /// Sets a string or bytes field.
    pub fn bytes(&mut self, field: u32, value: &[u8]) {
        self.put(Effect::Field(field, NewValue::Bytes(value.to_owned())));
    }

    /// Sets a metadata key to this one value: printable ASCII, or any bytes if the key ends in
    /// `-bin`. Any other value ends the instance.
    pub fn set_metadata(&mut self, key: u32, value: &[u8]) {
        self.put(Effect::Metadata(key, Some(value.to_owned())));
    }

    /// Removes a metadata key with all its values.
    pub fn remove_metadata(&mut self, key: u32) {
        self.put(Effect::Metadata(key, None));
    }

    /// Delays the call by at most [`Effects::DELAY_MAX`]. Needs the capability `delay`.
    pub fn delay(&mut self, delay: Duration) {
        let us = delay.min(Effects::DELAY_MAX).as_micros();
        self.put(Effect::Delay(us as u32));
    }

    /// Sets the call's priority: 0 is the default, [`Effects::PRIORITY_MAX`] goes first. Needs the
    /// capability `priority`.
    pub fn priority(&mut self, priority: u8) {
        self.put(Effect::Priority(priority.min(Effects::PRIORITY_MAX)));
    }

    /// Sends the request along this route. Needs the capability `route`.
    pub fn route(&mut self, route: &Route) {
        self.put(Effect::Route(route.clone()));
    }

    /// True if there are no effects.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All effects.
    pub fn iter(&self) -> std::slice::Iter<'_, Effect> {
        self.0.iter()
    }

    /// Adds further effects.
    pub(crate) fn extend(&mut self, others: Effects) {
        others.0.into_iter().for_each(|effect| self.put(effect));
    }

    fn put(&mut self, effect: Effect) {
        match self.0.iter_mut().find(|known| known.is_about(&effect)) {
            Some(old) => *old = effect,
            None => self.0.push(effect),
        }
    }
}

impl Effect {
    /// True if both have the same target; the values may differ.
    fn is_about(&self, other: &Effect) -> bool {
        match (self, other) {
            (Effect::Field(one, _), Effect::Field(other, _)) => one == other,
            (Effect::Metadata(one, _), Effect::Metadata(other, _)) => one == other,
            (Effect::Delay(_), Effect::Delay(_))
            | (Effect::Priority(_), Effect::Priority(_))
            | (Effect::Route(_), Effect::Route(_)) => true,
            _ => false,
        }
    }
}

/// The label of a route: 1 to 64 of `a-z 0-9 - _ .`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route(String);

impl Route {
    /// A route with this label.
    ///
    /// # Errors
    /// A message for the user that configured the policy: the label is invalid.
    pub fn new(label: &str) -> Result<Route, String> {
        let allowed = |b: u8| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.');
        match (1..=64).contains(&label.len()) && label.bytes().all(allowed) {
            true => Ok(Route(label.to_owned())),
            false => Err(format!(
                "{label:?} is not a valid route; a label is 1 to 64 of a-z 0-9 - _ ."
            )),
        }
    }

    /// The label.
    pub fn label(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_is_said_twice_is_as_it_was_said_last() {
        let mut effects = Effects::new();
        effects.bits(1, 5);
        effects.remove_metadata(1);
        effects.delay(Duration::from_millis(1));
        effects.priority(200);
        effects.route(&Route::new("a").unwrap());
        effects.clear(1);
        effects.set_metadata(1, b"x");
        effects.delay(Duration::from_secs(9));
        effects.priority(2);
        effects.route(&Route::new("b").unwrap());
        effects.priority(9);
        let all: Vec<Effect> = effects.iter().cloned().collect();
        let expected = [
            Effect::Field(1, NewValue::Clear),
            Effect::Metadata(1, Some(b"x".to_vec())),
            Effect::Delay(1_000_000),
            Effect::Priority(7),
            Effect::Route(Route::new("b").unwrap()),
        ];
        assert_eq!(all, expected);
    }

    #[test]
    fn a_label_is_checked_where_it_is_made() {
        for label in ["a", "canary-2.eu_west", &"r".repeat(64)] {
            assert_eq!(Route::new(label).unwrap().label(), label);
        }
        for label in ["", "A", "a b", "é", &"r".repeat(65)] {
            assert!(
                Route::new(label)
                    .unwrap_err()
                    .contains("is not a valid route")
            );
        }
    }
}
