//! Reads a policy's effects on a call that it allows.
//!
//! ```text
//!   list: | record 0 | record 1 | ..       record, 16 bytes:  kind u32 | field u32 | value u64
//!           kind 1: clear the field          value is ignored
//!           kind 2: set it to scalar bits    value = the bits, as in a view
//!           kind 3: set it to bytes          value = address | length << 32
//!           kind 4: set the metadata key     value = address | length << 32
//!           kind 5: remove the metadata key  value is ignored
//!           kind 6: delay                    value = microseconds       field = 0
//!           kind 7: priority                 value = 0 to 7             field = 0
//!           kind 8: route                    value = address | length << 32 of its label, field = 0
//! ```
//!
//! The guest has stopped; everything here is its own claim. All values that are read are copied
//! out, so ranges may overlap. Each copy is paid for before it is made. The checks here cover what
//! the manifest determines. The caller that carries out an effect checks it against the message's
//! schema and the call's other metadata.

use tollgate_shm_abi::metadata::check_value;

use crate::span::Span;
use crate::{
    Capabilities, Effects, Fault, FieldChange, Hook, MetadataChange, Method, Value, cost, limits,
};

/// Bytes of one record.
pub(crate) const RECORD_BYTES: usize = 16;

const CLEAR: u32 = 1;
const BITS: u32 = 2;
const BYTES: u32 = 3;
const SET_METADATA: u32 = 4;
const REMOVE_METADATA: u32 = 5;
const DELAY: u32 = 6;
const PRIORITY: u32 = 7;
const ROUTE: u32 = 8;

/// The call of a list, and the manifest's permissions for it.
#[derive(Clone, Copy)]
pub(crate) struct Subject<'a> {
    /// Its index in the batch.
    pub(crate) index: usize,
    pub(crate) hook: Hook,
    pub(crate) method: &'a Method,
    pub(crate) capabilities: Capabilities,
}

/// Reads the list in `span`; `charge` takes fuel.
pub(crate) fn read(
    memory: &[u8],
    span: Span,
    subject: Subject<'_>,
    mut charge: impl FnMut(u64) -> Result<(), Fault>,
) -> Result<Effects, Fault> {
    if !subject.capabilities.intersects(Capabilities::EFFECTS) {
        return Err(subject.may_not(Capabilities::CHANGE));
    }
    if !(span.len as usize).is_multiple_of(RECORD_BYTES) {
        return Err(subject.bad("list's length", span.len.into()));
    }
    let count = span.len as usize / RECORD_BYTES;
    if count > limits::EFFECTS {
        return Err(subject.bad("number of records", count as u64));
    }
    let list = span.of(memory).ok_or(Fault::EffectOutside {
        index: subject.index,
        address: span.address,
        len: span.len,
        memory: memory.len(),
    })?;
    charge(cost::EFFECT * count as u64)?;
    let mut reader = Reader {
        memory,
        subject,
        bytes_left: limits::CHANGED_BYTES,
        fields: 0,
        keys: 0,
        kinds: 0,
        effects: Effects::default(),
    };
    for record in list.as_chunks::<RECORD_BYTES>().0 {
        reader.record(record, &mut charge)?;
    }
    Ok(reader.effects)
}

/// Reads a list into [`Effects`].
struct Reader<'a> {
    memory: &'a [u8],
    subject: Subject<'a>,
    bytes_left: usize,
    /// A bit for each field and each metadata key seen so far.
    fields: u32,
    keys: u32,
    /// A bit for each kind that may occur once.
    kinds: u32,
    effects: Effects,
}

impl<'a> Reader<'a> {
    fn record(
        &mut self,
        record: &[u8; RECORD_BYTES],
        charge: &mut impl FnMut(u64) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let [kind, field, low, high] = words(record);
        let value = u64::from(low) | u64::from(high) << 32;
        let span = Span {
            address: low,
            len: high,
        };
        match kind {
            CLEAR => self.field(field, Value::Clear),
            BITS => self.field(field, Value::Bits(value)),
            BYTES => {
                self.check_field(field)?;
                let bytes = self.bytes(span, charge)?.to_vec();
                self.field(field, Value::Bytes(bytes))
            }
            SET_METADATA => {
                let key = self.key(field)?;
                let bytes = self.bytes(span, charge)?;
                let index = self.subject.index;
                check_value(key, bytes).map_err(|why| Fault::BadMetadata { index, why })?;
                self.metadata(field, Some(bytes.to_vec()))
            }
            REMOVE_METADATA => {
                self.key(field)?;
                self.metadata(field, None)
            }
            DELAY => {
                self.once(kind, Capabilities::DELAY, field)?;
                let fits = u32::try_from(value)
                    .ok()
                    .filter(|us| *us <= limits::DELAY_US);
                self.effects.delay_us = fits.ok_or(self.subject.bad("delay", value))?;
                Ok(())
            }
            PRIORITY => {
                self.once(kind, Capabilities::PRIORITY, field)?;
                let fits = u8::try_from(value).ok().filter(|p| *p <= limits::PRIORITY);
                self.effects.priority = Some(fits.ok_or(self.subject.bad("priority", value))?);
                Ok(())
            }
            ROUTE => {
                self.once(kind, Capabilities::ROUTE, field)?;
                let label = self.label(span, charge)?;
                self.effects.route = Some(label);
                Ok(())
            }
            _ => Err(self.subject.bad("kind", kind.into())),
        }
    }

    /// Refuses a field that isn't listed, is repeated, or that the policy may not change.
    fn check_field(&self, field: u32) -> Result<(), Fault> {
        self.subject.require(Capabilities::CHANGE)?;
        if field as usize >= self.subject.method.changes(self.subject.hook).len() {
            return Err(self.subject.bad("field", field.into()));
        }
        // A method has at most 32 changeable fields.
        if self.fields & 1 << field != 0 {
            return Err(self
                .subject
                .bad("field (for the second time)", field.into()));
        }
        Ok(())
    }

    fn field(&mut self, field: u32, value: Value) -> Result<(), Fault> {
        self.check_field(field)?;
        self.fields |= 1 << field;
        self.effects.fields.push(FieldChange { field, value });
        Ok(())
    }

    /// A key, by its number in a record; refused like fields.
    fn key(&self, at: u32) -> Result<&'a str, Fault> {
        self.subject.require(Capabilities::CHANGE)?;
        let keys = self.subject.method.metadata_changes(self.subject.hook);
        let key = keys.get(at as usize);
        let key = key.ok_or(self.subject.bad("metadata key", at.into()))?;
        if self.keys & 1 << at != 0 {
            let what = "metadata key (for the second time)";
            return Err(self.subject.bad(what, at.into()));
        }
        Ok(key)
    }

    fn metadata(&mut self, key: u32, value: Option<Vec<u8>>) -> Result<(), Fault> {
        self.keys |= 1 << key;
        self.effects.metadata.push(MetadataChange { key, value });
        Ok(())
    }

    /// A kind that a list may have once, with a reserved `field`.
    fn once(&mut self, kind: u32, capability: Capabilities, field: u32) -> Result<(), Fault> {
        self.subject.require(capability)?;
        if field != 0 {
            return Err(self.subject.bad("field", field.into()));
        }
        if self.kinds & 1 << kind != 0 {
            return Err(self.subject.bad("kind (for the second time)", kind.into()));
        }
        self.kinds |= 1 << kind;
        Ok(())
    }

    /// A route's label.
    fn label(
        &mut self,
        span: Span,
        charge: &mut impl FnMut(u64) -> Result<(), Fault>,
    ) -> Result<String, Fault> {
        if self.subject.hook != Hook::Request {
            return Err(self
                .subject
                .bad("kind (replies have no route)", ROUTE.into()));
        }
        if !(1..=limits::ROUTE_BYTES).contains(&(span.len as usize)) {
            return Err(self.subject.bad("length of a route", span.len.into()));
        }
        let bytes = self.bytes(span, charge)?;
        let allowed = |b: &&u8| !matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.');
        match bytes.iter().find(allowed) {
            Some(byte) => Err(self.subject.bad("byte of a route", (*byte).into())),
            None => Ok(bytes.iter().map(|byte| char::from(*byte)).collect()),
        }
    }

    /// Bytes that a record names, within the limit for one list.
    fn bytes(
        &mut self,
        span: Span,
        charge: &mut impl FnMut(u64) -> Result<(), Fault>,
    ) -> Result<&'a [u8], Fault> {
        let bytes = span.of(self.memory).ok_or(Fault::EffectOutside {
            index: self.subject.index,
            address: span.address,
            len: span.len,
            memory: self.memory.len(),
        })?;
        let left = self.bytes_left.checked_sub(bytes.len());
        self.bytes_left = left.ok_or(self.subject.bad("length of a value", span.len.into()))?;
        charge(span.len.into())?;
        Ok(bytes)
    }
}

impl Subject<'_> {
    fn bad(&self, what: &'static str, value: u64) -> Fault {
        let index = self.index;
        Fault::BadEffect { index, what, value }
    }

    fn may_not(&self, capability: Capabilities) -> Fault {
        let index = self.index;
        Fault::MayNot { index, capability }
    }

    fn require(&self, capability: Capabilities) -> Result<(), Fault> {
        match self.capabilities.contains(capability) {
            true => Ok(()),
            false => Err(self.may_not(capability)),
        }
    }
}

fn words(record: &[u8; RECORD_BYTES]) -> [u32; 4] {
    let mut words = [0; 4];
    for (word, bytes) in words.iter_mut().zip(record.as_chunks::<4>().0) {
        *word = u32::from_le_bytes(*bytes);
    }
    words
}

const _: () = assert!(limits::CHANGES <= 32, "one bit per field");
const _: () = assert!(limits::METADATA_KEYS <= 32, "one bit per key");
