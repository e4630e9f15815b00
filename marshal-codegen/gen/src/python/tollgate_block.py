"""What the Python stubs of all packages share: messages as blocks, and views that read blocks in place.

Written by tollgate-gen beside the stubs. Do not edit.

Python 3.9 or newer, standard library only; where the package tollgate is installed, its compiled code reads views, in agreement with
what is here. A block's format is told in Tollgate's schema crate (layout.rs). Writing is
canonical: equal messages have equal blocks. Reading never leaves the block, whatever its slots claim: what can't be read
is zero, empty, absent; the daemon has checked every block that it delivers.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import struct
from typing import Any, Callable, ClassVar, List, NamedTuple, Optional, Tuple, Type, TypeVar, Union
from typing import get_type_hints as _hints

# Most structs on the path from the root to any struct, both included.
MAX_DEPTH = 64
# Longest image of a message in bytes, extents included.
MAX_MESSAGE = 16 << 20
# Most extents of one message.
MAX_EXTENTS = 64
# Values of at least this many bytes are better extents than copied.
EXTENT_MIN = 4096
# The bit of a slot's offset that makes it name an extent.
EXTENT_FLAG = 0x8000_0000



def _compiled() -> Any:
    """The package's compiled code, if it is installed and knows tables as they are here."""
    try:
        core = importlib.import_module("tollgate._core")
    except ImportError:
        return None
    return core if core.TABLES_VERSION == 1 else None


_core = _compiled()


class Absent:
    """Any type of the package tollgate where that isn't installed."""

    def __class_getitem__(cls, of: object) -> type:
        return cls


class Library:
    """A module of the package tollgate as annotations name it. It is imported when one of them is evaluated."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        try:
            return getattr(importlib.import_module(self._module), name)
        except ImportError:
            return Absent


Buffer = Union[bytes, bytearray, memoryview]
M = TypeVar("M", bound="Message")


class BlockError(ValueError):
    """A message can't be written: a value doesn't fit its field, or the message is too deep or too large."""


class OpenEnum(enum.IntEnum):
    """A protobuf enum; any 32-bit number is a value of it, also one that the schema doesn't name."""

    @classmethod
    def _missing_(cls, value: object) -> Any:
        if not isinstance(value, int) or not -(2**31) <= value < 2**31:
            return None
        member = int.__new__(cls, value)
        member._name_ = str(value)
        member._value_ = value
        return member


class Kind(NamedTuple):
    """The representation of one value."""

    name: str
    # What the fixed part holds, in the struct module's letters, natively aligned.
    code: str
    # The same number in a block's byte order; None for text, bytes and messages.
    number: Optional[struct.Struct]
    # Bytes and alignment of an array's element; 0 for messages, whose type tells.
    stride: int
    align: int


def _number(name: str, code: str) -> Kind:
    number = struct.Struct("<" + code)
    return Kind(name, code, number, number.size, number.size)


INT32 = _number("a signed 32-bit number", "i")
UINT32 = _number("an unsigned 32-bit number", "I")
INT64 = _number("a signed 64-bit number", "q")
UINT64 = _number("an unsigned 64-bit number", "Q")
FLOAT = _number("a 32-bit float", "f")
DOUBLE = _number("a float", "d")
ENUM = _number("a number of an enum", "i")
BOOL = _number("a bool", "?")
STRING = Kind("text", "II", None, 8, 4)
BYTES = Kind("bytes", "II", None, 8, 4)
MESSAGE = Kind("a message", "I", None, 0, 8)
_SLOT = struct.Struct("<II")
_U32 = struct.Struct("<I")


class Entry(NamedTuple):
    """The struct of a map's entries; the field's kind is that of the value."""

    size: int
    key: Kind
    key_offset: int
    value_offset: int


class Field(NamedTuple):
    """One field of a message."""

    name: str
    number: int
    offset: int
    kind: Kind
    # The class of an enum or message, resolved late because types may be recursive.
    type: Optional[Callable[[], Any]] = None
    # Its bit in the presence bitmap.
    bit: Optional[int] = None
    # Index of the oneof that it is a member of.
    oneof: Optional[int] = None
    many: bool = False
    entry: Optional[Entry] = None

    def code(self) -> str:
        return "II" if self.many or self.entry is not None else self.kind.code


@dataclasses.dataclass(frozen=True)
class Layout:
    """The fixed part of a message."""

    name: str
    size: int
    presence_words: int
    # Names of the oneofs and offsets of their cases.
    oneofs: Tuple[Tuple[str, int], ...]
    fields: Tuple[Field, ...]
    unknown: int


def layout(owned: Type[Message], view: Type[View], numbers: Layout) -> None:
    """Ties a message to its view and its layout, whose numbers must be those of the struct module."""
    items = [(4 * word, "I") for word in range(numbers.presence_words)]
    items += [(at, "I") for _, at in numbers.oneofs]
    items += [(field.offset, field.code()) for field in numbers.fields]
    items.append((numbers.unknown, "II"))
    _check(numbers.name, numbers.size, items)
    for field in numbers.fields:
        if field.entry is not None:
            entry = field.entry
            items = [(entry.key_offset, entry.key.code), (entry.value_offset, field.kind.code)]
            _check(f"{numbers.name}.{field.name}", entry.size, items)
    owned._LAYOUT = view._LAYOUT = numbers
    owned._VIEW, view._OWNED = view, owned
    if _core is not None:
        # From here on the view's properties are compiled ones.
        _core.tables(owned, view, numbers, BlockError)


def _check(name: str, size: int, items: List[Tuple[int, str]]) -> None:
    before = "@"
    for offset, code in sorted(items):
        # A letter with count 0 aligns, and takes no room.
        if struct.calcsize(f"{before}0{code[0]}") != offset:
            raise ImportError(f"{name}: something is expected at {offset}, and isn't there in this layout")
        before += code
    if max(struct.calcsize(before + "0q"), 8) != size:
        raise ImportError(f"{name}: {size} bytes are expected, and aren't the size of this layout")


def zero(of: Callable[[], Any]) -> Any:
    """The default of a field of an enum."""
    return dataclasses.field(default_factory=lambda: of()(0))


def empty_list() -> Any:
    """The default of a repeated field."""
    return dataclasses.field(default_factory=list)


def empty_dict() -> Any:
    """The default of a map."""
    return dataclasses.field(default_factory=dict)


class Message:
    """A message with ordinary attributes. Those of a oneof's members are None but for the one that is set."""

    _LAYOUT: ClassVar[Layout]
    _VIEW: ClassVar[Type[View]]
    unknown_fields: bytes

    def to_block(self) -> bytes:
        """The canonical block, all values in it. BlockError if a value doesn't fit its field."""
        return self.to_parts(MAX_MESSAGE + 1)[0]

    def to_parts(self, extent_min: int = EXTENT_MIN) -> Tuple[bytes, List[Buffer]]:
        """The canonical block, and apart from it the first MAX_EXTENTS values of at least `extent_min` bytes."""
        writer = _Writer(extent_min)
        writer.struct(self, writer.claim(self._LAYOUT.size, 8), 1)
        return writer.finish()

    @classmethod
    def from_block(cls: Type[M], block: Buffer) -> M:
        """Reads a block (an image, if there are extents) as a message of its own."""
        return cls.view(block).to_owned()  # type: ignore[no-any-return]

    @classmethod
    def view(cls, block: Buffer) -> Any:
        """Reads a block in place."""
        view = memoryview(block).toreadonly()
        return cls._VIEW(view if view.format == "B" else view.cast("B"), 0, 0)

    def which(self, oneof: str) -> Optional[str]:
        """The name of the member of `oneof` that is set. BlockError if more than one is."""
        names = [name for name, _ in self._LAYOUT.oneofs]
        index = names.index(oneof)
        members = [f.name for f in self._LAYOUT.fields if f.oneof == index and getattr(self, f.name) is not None]
        if len(members) > 1:
            raise BlockError(f"{self._LAYOUT.name}.{oneof}: {members[0]} and {members[1]} are both set")
        return members[0] if members else None


class _Writer:
    """A block under construction. Parts are claimed in canonical order."""

    def __init__(self, extent_min: int) -> None:
        self.out = bytearray()
        self.extents: List[Buffer] = []
        self.extent_min = extent_min
        self.extent_bytes = 0

    def claim(self, size: int, align: int) -> int:
        at = -(-len(self.out) // align) * align
        if at + size > MAX_MESSAGE:
            raise BlockError(f"a message has more than {MAX_MESSAGE} bytes")
        self.out.extend(bytes(at + size - len(self.out)))
        return at

    def finish(self) -> Tuple[bytes, List[Buffer]]:
        if -(-len(self.out) // 8) * 8 + self.extent_bytes > MAX_MESSAGE:
            raise BlockError(f"a message has more than {MAX_MESSAGE} bytes, extents included")
        return bytes(self.out), self.extents

    def struct(self, message: Message, at: int, depth: int) -> None:
        numbers = message._LAYOUT
        if depth > MAX_DEPTH:
            raise BlockError(f"{numbers.name} is nested deeper than {MAX_DEPTH}")
        for name, _ in numbers.oneofs:
            message.which(name)
        for field in numbers.fields:
            value = getattr(message, field.name)
            try:
                self.field(numbers, field, value, at, depth)
            except BlockError:
                raise
            except (struct.error, OverflowError, UnicodeError, TypeError, AttributeError, ValueError, LookupError) as error:
                place = f"{numbers.name}.{field.name}"
                raise BlockError(f"{place}: {value!r:.80} isn't {field.kind.name}: {error}") from error
        unknown = message.unknown_fields
        if unknown:
            part = self.claim(len(unknown), 1)
            self.out[part:] = unknown
            _SLOT.pack_into(self.out, at + numbers.unknown, part, len(unknown))

    def field(self, numbers: Layout, field: Field, value: Any, at: int, depth: int) -> None:
        place = at + field.offset
        if field.entry is not None:
            self.map(field, field.entry, value, place, depth)
        elif field.many:
            self.list(field.kind, field.type, value, place, depth)
        elif value is None:
            if field.bit is None and field.oneof is None and field.kind is not MESSAGE:
                raise TypeError("there is no default for it")
        else:
            if field.bit is not None:
                self.out[at + field.bit // 8] |= 1 << field.bit % 8
            if field.oneof is not None:
                _U32.pack_into(self.out, at + numbers.oneofs[field.oneof][1], field.number)
            self.one(field.kind, field.type, value, place, depth)

    def one(self, kind: Kind, of: Optional[Callable[[], Any]], value: Any, place: int, depth: int) -> None:
        """One value as a field."""
        if kind is MESSAGE and of is not None:
            _is_a(value, of())
            part = self.claim(value._LAYOUT.size, 8)
            _U32.pack_into(self.out, place, part)
            self.struct(value, part, depth + 1)
        elif kind is STRING:
            self.bytes(value.encode(), place)
        elif kind is BYTES:
            if not isinstance(value, (bytes, bytearray, memoryview)):
                raise TypeError("it must be bytes, a bytearray or a memoryview")
            self.bytes(value, place)
        elif kind is BOOL:
            kind.number.pack_into(self.out, place, _bool(value))  # type: ignore[union-attr]
        else:
            kind.number.pack_into(self.out, place, value)  # type: ignore[union-attr]

    def bytes(self, value: Buffer, place: int) -> None:
        if isinstance(value, memoryview) and (value.format != "B" or not value.c_contiguous or value.ndim != 1):
            value = value.tobytes()
        size = len(value)
        if size == 0:
            return
        if size >= self.extent_min and len(self.extents) < MAX_EXTENTS:
            _SLOT.pack_into(self.out, place, EXTENT_FLAG | len(self.extents), size)
            self.extents.append(value)
            self.extent_bytes = -(-self.extent_bytes // 8) * 8 + size
            return
        part = self.claim(size, 1)
        self.out[part:] = value
        _SLOT.pack_into(self.out, place, part, size)

    def list(self, kind: Kind, of: Optional[Callable[[], Any]], items: Any, place: int, depth: int) -> None:
        if not items:
            return
        if kind is MESSAGE and of is not None:
            stride = of()._LAYOUT.size
        else:
            stride = kind.stride
        start = self.claim(len(items) * stride, kind.align)
        _SLOT.pack_into(self.out, place, start, len(items))
        for index, item in enumerate(items):
            if kind is MESSAGE and of is not None:
                _is_a(item, of())
                self.struct(item, start + index * stride, depth + 1)
            else:
                self.one(kind, of, item, start + index * stride, depth)

    def map(self, field: Field, entry: Entry, items: Any, place: int, depth: int) -> None:
        """In the order of the keys."""
        if not items:
            return
        if depth >= MAX_DEPTH:
            raise BlockError(f"a map is nested deeper than {MAX_DEPTH}")
        start = self.claim(len(items) * entry.size, 8)
        _SLOT.pack_into(self.out, place, start, len(items))
        for index, key in enumerate(sorted(items)):
            at = start + index * entry.size
            self.one(entry.key, None, key, at + entry.key_offset, depth + 1)
            self.one(field.kind, field.type, items[key], at + entry.value_offset, depth + 1)


def _is_a(value: Any, of: Any) -> None:
    if not isinstance(value, of):
        raise TypeError(f"it must be a {of.__qualname__}")


def _bool(value: Any) -> bool:
    if value is True or value is False:
        return bool(value)
    raise TypeError("it must be True or False")


class View:
    """A struct of a block, read in place; valid as long as the block is."""

    __slots__ = ("_block", "_at", "_depth")
    _LAYOUT: ClassVar[Layout]
    _OWNED: ClassVar[Type[Message]]

    def __init__(self, block: memoryview, at: int, depth: int) -> None:
        self._block, self._at, self._depth = block, at, depth

    def to_owned(self) -> Any:
        """A message of its own; it keeps the unknown fields."""
        compiled = None if _core is None else _core.to_owned(self)
        return self._to_owned() if compiled is None else compiled

    def _to_owned(self) -> Any:
        values = {field.name: _owned(self._read(field)) for field in self._LAYOUT.fields}
        values["unknown_fields"] = bytes(self.unknown_fields)
        return self._OWNED(**values)

    @property
    def unknown_fields(self) -> memoryview:
        """Records of fields that the schema doesn't know, in protobuf's encoding."""
        return self._bytes(self._LAYOUT.unknown)

    def which(self, oneof: str) -> Optional[str]:
        """The name of the member of `oneof` that is set."""
        index = [name for name, _ in self._LAYOUT.oneofs].index(oneof)
        case = self._u32(self._LAYOUT.oneofs[index][1])
        for field in self._LAYOUT.fields:
            if field.oneof == index and field.number == case:
                return field.name
        return None

    def __repr__(self) -> str:
        return repr(self.to_owned())

    def _get(self, index: int) -> Any:
        return self._read(self._LAYOUT.fields[index])

    def _read(self, field: Field) -> Any:
        if field.entry is not None:
            return self._map(field, field.entry)
        if field.many:
            return self._list(field)
        if field.bit is not None and not self._byte(field.bit // 8) >> field.bit % 8 & 1:
            return None
        if field.oneof is not None and self._u32(self._LAYOUT.oneofs[field.oneof][1]) != field.number:
            return None
        if field.kind is MESSAGE and field.oneof is None and self._child(field.offset) is None:
            return None
        return self._one(field.kind, field.type, field.offset)

    def _one(self, kind: Kind, of: Optional[Callable[[], Any]], offset: int) -> Any:
        if kind is STRING:
            try:
                return str(self._bytes(offset), "utf-8")
            except UnicodeDecodeError:
                return ""
        if kind is BYTES:
            return self._bytes(offset)
        if kind is MESSAGE and of is not None:
            child = self._child(offset)
            return of()._VIEW(*(child or _NONE))
        number = self._number(kind, offset)
        return of()(number) if kind is ENUM and of is not None else number

    def _number(self, kind: Kind, offset: int) -> Any:
        number, at = kind.number, self._at + offset
        assert number is not None, "only numbers are read here"
        if at + number.size > len(self._block):
            return number.unpack(bytes(number.size))[0]
        return number.unpack_from(self._block, at)[0]

    def _byte(self, offset: int) -> int:
        at = self._at + offset
        return self._block[at] if at < len(self._block) else 0

    def _u32(self, offset: int) -> int:
        return int(self._number(UINT32, offset))

    def _bytes(self, offset: int) -> memoryview:
        off, size = self._u32(offset), self._u32(offset + 4)
        return self._block[off : off + size] if off + size <= len(self._block) else self._block[:0]

    def _child(self, offset: int) -> Optional[Tuple[memoryview, int, int]]:
        """The message that a reference names. It must lie behind this struct, so that walks end."""
        child = self._u32(offset)
        if self._at < child < len(self._block) and self._depth + 1 < MAX_DEPTH:
            return self._block, child, self._depth + 1
        return None

    def _array(self, offset: int, stride: int, of_structs: bool) -> List[View]:
        """The elements' places: all of them, or nothing."""
        off, count = self._u32(offset), self._u32(offset + 4)
        depth = self._depth + of_structs
        if off <= self._at or off + count * stride > len(self._block) or depth >= MAX_DEPTH:
            return []
        return [View(self._block, off + index * stride, depth) for index in range(count)]

    def _list(self, field: Field) -> List[Any]:
        if field.kind is MESSAGE and field.type is not None:
            of = field.type()
            places = self._array(field.offset, of._LAYOUT.size, True)
            return [of._VIEW(place._block, place._at, place._depth) for place in places]
        places = self._array(field.offset, field.kind.stride, False)
        return [place._one(field.kind, field.type, 0) for place in places]

    def _map(self, field: Field, entry: Entry) -> Any:
        """The last of equal keys counts."""
        places = self._array(field.offset, entry.size, True)
        return {
            place._one(entry.key, None, entry.key_offset): place._one(field.kind, field.type, entry.value_offset)
            for place in places
        }


_NONE = (memoryview(b""), 0, 0)


def _owned(value: Any) -> Any:
    if isinstance(value, View):
        return value.to_owned()
    if isinstance(value, memoryview):
        return bytes(value)
    if isinstance(value, list):
        return [_owned(item) for item in value]
    if isinstance(value, dict):
        return {key: _owned(item) for key, item in value.items()}
    return value


@dataclasses.dataclass(frozen=True)
class Method:
    """A method of a service; calls name it by its index."""

    index: int
    name: str
    # `package.Service/Method`
    full_name: str
    request: Callable[[], Type[Message]]
    reply: Callable[[], Type[Message]]
    client_streaming: bool
    server_streaming: bool


@dataclasses.dataclass(frozen=True)
class Service:
    """What an application hands to the daemon to call or to serve."""

    name: str
    methods: Tuple[Method, ...]
    # A serialized google.protobuf.FileDescriptorSet.
    descriptor_set: bytes
    # SHA-256 of what peers compare, in hex.
    schema_hash: str

    def method(self, name: str) -> Method:
        """The method with this name."""
        for method in self.methods:
            if method.name == name:
                return method
        raise KeyError(f"service {self.name} has no method {name!r}")


# A table is an instance, whose annotations are evaluated without this module's names: so they are evaluated here.
for _table in (Layout, Method, Service):
    _table.__annotations__ = _hints(_table)
