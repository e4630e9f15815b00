//! Changes of a state in JSON, for targets to which arbitrary bytes would say more about JSON than
//! about us: `[place u16][other u16][how][number]` each.

use serde_json::{Number, Value};

/// One change, as an input has it.
pub(crate) type Change = [u8; 6];

/// Changes one value: to a copy of another one, by a number, or by an item more or less.
pub(crate) fn change(state: &mut Value, [place, above, other, above_other, how, number]: Change) {
    let places = count(state);
    let place = usize::from(u16::from_le_bytes([place, above]));
    let other = usize::from(u16::from_le_bytes([other, above_other]));
    let copied = nth(state, &mut (other % places)).cloned();
    let Some(changed) = nth(state, &mut (place % places)) else {
        return;
    };
    match (how % 5, &mut *changed) {
        (0, _) => *changed = copied.unwrap_or_default(),
        (1, _) => *changed = number.into(),
        (2, Value::Array(items)) if !items.is_empty() => drop(items.remove(other % items.len())),
        (3, Value::Array(items)) => items.extend(copied),
        (4, Value::Bool(flag)) => *flag = !*flag,
        (2, Value::Number(old)) => *changed = add(old, i64::from(number) - 128),
        (3, Value::Number(old)) => *changed = add(old, 1 << (number % 63)),
        (4, Value::Number(old)) => *changed = add(old, -(1 << (number % 63))),
        _ => *changed = Value::Null,
    }
}

fn add(number: &Number, more: i64) -> Value {
    let number = number.as_u64().unwrap_or_default();
    number.wrapping_add_signed(more).into()
}

/// How many values there are in one, itself included.
pub(crate) fn count(value: &Value) -> usize {
    1 + match value {
        Value::Array(items) => items.iter().map(count).sum(),
        Value::Object(fields) => fields.values().map(count).sum(),
        _ => 0,
    }
}

/// One of them. `left` is how many come before it.
fn nth<'v>(value: &'v mut Value, left: &mut usize) -> Option<&'v mut Value> {
    if *left == 0 {
        return Some(value);
    }
    *left -= 1;
    match value {
        Value::Array(items) => items.iter_mut().find_map(|item| nth(item, left)),
        Value::Object(fields) => fields.values_mut().find_map(|field| nth(field, left)),
        _ => None,
    }
}
