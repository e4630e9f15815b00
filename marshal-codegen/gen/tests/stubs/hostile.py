"""Imports stubs, evaluates every annotation in them, and writes and reads an empty message of each type.

Arguments: a directory with a package of stubs, and the package's name.
"""

import dataclasses
import importlib
import pathlib
import sys
import types
import typing

directory, package = sys.argv[1:]
sys.path.insert(0, directory)
SCALARS = {"int": int, "str": str, "bool": bool, "bytes": bytes, "float": float}


def visit(cls: type, met: set) -> None:
    if cls in met:
        return
    met.add(cls)
    hints = typing.get_type_hints(cls)
    for value in list(vars(cls).values()):
        if isinstance(value, type) and value.__module__.startswith(package):
            visit(value, met)
        elif isinstance(value, property):
            typing.get_type_hints(value.fget)
        elif isinstance(value, types.FunctionType):
            typing.get_type_hints(value)
    if dataclasses.is_dataclass(cls):
        message = cls()
        assert cls.from_block(message.to_block()) == message, cls
        assert cls.view(b"").to_owned() == message, cls
        for field in cls._LAYOUT.fields:
            name = type(getattr(message, field.name)).__name__
            if name in SCALARS:
                assert hints[field.name] is SCALARS[name], (cls, field.name, hints[field.name])


for path in sorted(pathlib.Path(directory, package).glob("*_tollgate.py")):
    module = importlib.import_module(f"{package}.{path.stem}")
    tb = importlib.import_module(f"{package}.tollgate_block")
    met: set = set()
    for value in list(vars(module).values()):
        if isinstance(value, type):
            visit(value, met)
        elif isinstance(value, types.FunctionType):
            typing.get_type_hints(value)
        elif isinstance(value, tb.Service):
            typing.get_type_hints(type(value))
            for method in value.methods:
                typing.get_type_hints(type(method))
                assert issubclass(method.request(), tb.Message) and issubclass(method.reply(), tb.Message)
