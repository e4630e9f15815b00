//! Symbols: the kind and the index of the declaration that a full name stands for.

/// Index into [`super::Model::messages`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct MessageIndex(pub(crate) u32);

/// Index into [`super::Model::enums`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct EnumIndex(pub(crate) u32);

/// The kind of declaration that a full name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Symbol {
    Package,
    Message(MessageIndex),
    Enum(EnumIndex),
    Service(u32),
    /// An extension or an enum value: nothing refers to it.
    Other,
}
