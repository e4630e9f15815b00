"""The compiled encoder and decoder agree with the reference, the Python code next to the stubs."""

from __future__ import annotations

import dataclasses
import math
import random
from typing import Any, Dict, List

import pytest
from stubs import everything_tollgate as everything
from stubs import tollgate_block as reference
from tollgate import _core

CASES = 300


def value_of(field: reference.Field, kind: reference.Kind, chance: random.Random, depth: int) -> Any:
    """A value of a kind, often an extreme one."""
    if kind is reference.MESSAGE:
        assert field.type is not None
        return message_of(field.type(), chance, depth + 1)
    if kind is reference.ENUM:
        assert field.type is not None
        return field.type()(chance.choice([0, 1, 2, 77, -5, 2**31 - 1]))
    if kind is reference.BOOL:
        return chance.random() < 0.5
    if kind is reference.STRING:
        return chance.choice(["", "a", "grün", "\0", "x" * chance.randrange(60), "y" * 5000, "\U0001f600"])
    if kind is reference.BYTES:
        return chance.choice([b"", b"\0", chance.randbytes(chance.randrange(60)), bytes(4096)])
    if kind in (reference.FLOAT, reference.DOUBLE):
        return chance.choice([0.0, -0.0, 1.5, math.inf, -math.inf, 2.0**-149, 1])
    assert kind.number is not None
    bits, signed = 8 * kind.number.size, kind.code.islower()
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    return chance.choice([low, high, 0, 1, chance.randint(low, high)])


def message_of(of: Any, chance: random.Random, depth: int = 0) -> Any:
    """A message with some fields set."""
    layout = of._LAYOUT
    values: Dict[str, Any] = {}
    oneofs = set()
    for field in layout.fields:
        if chance.random() < (0.5 if depth == 0 else 0.8) or (field.kind is reference.MESSAGE and depth > 3):
            continue
        if field.entry is not None:
            keys = [value_of(field, field.entry.key, chance, depth) for _ in range(chance.randrange(4))]
            values[field.name] = {key: value_of(field, field.kind, chance, depth) for key in keys}
        elif field.many:
            values[field.name] = [value_of(field, field.kind, chance, depth) for _ in range(chance.randrange(4))]
        elif field.oneof is None or field.oneof not in oneofs:
            oneofs.add(field.oneof)
            values[field.name] = value_of(field, field.kind, chance, depth)
    if chance.random() < 0.3:
        values["unknown_fields"] = b"\xf8\x7f\x01"
    return of(**values)


def messages() -> List[Any]:
    """Classes of the file with every feature."""
    classes = [getattr(everything, name) for name in dir(everything)]
    return [of for of in classes if isinstance(of, type) and issubclass(of, reference.Message)]


def same(one: Any, other: Any) -> bool:
    """Equality, bitwise for floats."""
    return repr(plain(one)) == repr(plain(other))


def plain(value: Any) -> Any:
    """A text for comparison."""
    if isinstance(value, memoryview):
        return bytes(value)
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return value._to_owned() if isinstance(value, reference.View) else value


def test_messages_are_written_alike() -> None:
    assert len(messages()) > 3
    for of in messages():
        chance = random.Random(of.__name__)
        for _ in range(CASES):
            message = message_of(of, chance)
            for extent_min in (1, 50, reference.EXTENT_MIN, reference.MAX_MESSAGE + 1):
                block, extents = message.to_parts(extent_min)
                assert _core.encode(message, extent_min) == (block, [bytes(extent) for extent in extents])


def test_messages_are_read_alike() -> None:
    for of in messages():
        chance = random.Random(of.__name__)
        for _ in range(CASES):
            message = message_of(of, chance)
            check_reading(of, message.to_block())


def check_reading(of: Any, block: bytes) -> None:
    view = of.view(block)
    for index, field in enumerate(of._LAYOUT.fields):
        compiled, read = getattr(view, field.name), view._get(index)
        assert type(compiled) is type(read), field.name
        assert same(compiled, read), field.name
        if isinstance(read, memoryview):
            assert compiled.obj is block, "nothing was copied"
    owned = _core.to_owned(view)
    assert same(owned, view._to_owned())
    assert same(owned, of.from_block(block))
    # The Python code reads anything that isn't bytes.
    other = of.view(bytearray(block))
    assert _core.to_owned(other) is None
    for field in of._LAYOUT.fields:
        assert same(getattr(other, field.name), getattr(view, field.name))


def test_nonsense_is_read_alike() -> None:
    chance = random.Random(7)
    for of in messages():
        for _ in range(CASES):
            block = bytearray(message_of(of, chance).to_block())
            for _ in range(chance.randrange(1, 8)):
                at = chance.randrange(len(block))
                block[at : at + 4] = chance.choice([b"\xff\xff\xff\xff", chance.randbytes(4), b"\0\0\0\x08"])
            if chance.random() < 0.3:
                # Truncated.
                del block[chance.randrange(len(block)) :]
            view = of.view(bytes(block))
            for index, field in enumerate(of._LAYOUT.fields):
                assert same(getattr(view, field.name), view._get(index)), field.name


def test_what_does_not_fit_is_refused_alike() -> None:
    wrong = [None, -1, 2**70, "x", b"x", 1.5, 1e300, True, [1], ["x", None], {"a": 1}, object(), "\ud800", everything.Leaf()]
    refused = 0
    for of in messages():
        for field in of._LAYOUT.fields:
            for value in wrong:
                message = of()
                setattr(message, field.name, value)
                outcomes: List[Any] = []
                for write in (lambda: _core.encode(message, 4096), lambda: message.to_parts(4096)):
                    try:
                        outcomes.append(write())
                    except reference.BlockError as error:
                        # The rest of the text is Python's own, or Rust's.
                        outcomes.append(str(error).split(": ")[0])
                        refused += 1
                assert outcomes[0] == outcomes[1], (of, field.name, value)
    assert refused > 100


def test_limits_are_met_alike() -> None:
    def check(message: Any, why: str) -> None:
        for write in (lambda: _core.encode(message, 4096), lambda: message.to_parts(4096)):
            with pytest.raises(reference.BlockError, match=why):
                write()

    deep = everything.Node()
    for _ in range(reference.MAX_DEPTH - 1):
        deep = everything.Node(next=deep)
    assert _core.encode(deep, 4096) == deep.to_parts()
    check(everything.Node(next=deep), "everything.Node is nested deeper than 64")
    check(everything.Node(children=[deep]), "everything.Node is nested deeper than 64")
    check(everything.Node(by_name={"": deep}), "nested deeper than 64")
    check(everything.Leaf(blob=bytes(reference.MAX_MESSAGE)), "more than 16777216 bytes, extents included")
    check(everything.Repeateds(f_bytes=[bytes(4000)] * 4200), "more than 16777216 bytes")
    lots = everything.Repeateds(f_bytes=[bytes(10)] * (reference.MAX_EXTENTS + 10))
    block, extents = lots.to_parts(10)
    assert len(extents) == reference.MAX_EXTENTS
    assert _core.encode(lots, 10) == (block, extents)


def test_oneofs_have_one_member() -> None:
    of = next(of for of in messages() if of._LAYOUT.oneofs)
    members = [f for f in of._LAYOUT.fields if f.oneof == 0][:2]
    chance = random.Random(1)
    message = of(**{f.name: value_of(f, f.kind, chance, 9) for f in members})
    with pytest.raises(reference.BlockError) as pure:
        message.to_parts()
    with pytest.raises(reference.BlockError) as compiled:
        _core.encode(message, 4096)
    assert str(pure.value) == str(compiled.value)
    assert dataclasses.is_dataclass(message)
