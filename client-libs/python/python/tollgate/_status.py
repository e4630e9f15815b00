"""How calls end: codes, and the exception of those that don't end well."""

from __future__ import annotations

import enum
from typing import Iterable, NamedTuple, Optional, Sequence, Tuple, Union

# Text of ordinary keys, bytes of those that end in `-bin`.
MetadataValue = Union[str, bytes]
# What is received; iterable as often as one likes.
Metadata = Tuple[Tuple[str, MetadataValue], ...]
# What may be given.
MetadataLike = Iterable[Tuple[str, MetadataValue]]

# The trailer that carries a serialized google.rpc.Status.
STATUS_DETAILS = "grpc-status-details-bin"


class StatusCode(enum.IntEnum):
    """The codes of gRPC. Others are members without a constant, named after their number: equal to it, but not the same object each time."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16

    @classmethod
    def _missing_(cls, value: object) -> Optional[StatusCode]:
        if not isinstance(value, int) or not 0 <= value < 1 << 32:
            return None
        code = int.__new__(cls, value)
        code._name_, code._value_ = f"CODE_{value}", value
        return code

    # As of gRPC's in all versions of Python.
    def __str__(self) -> str:
        return f"StatusCode.{self.name}"


class Status(NamedTuple):
    """How a handler ends a call: the argument of `ServicerContext.abort_with_status`."""

    code: StatusCode
    # One sentence.
    details: str = ""
    trailing_metadata: Sequence[Tuple[str, MetadataValue]] = ()
    # A serialized google.rpc.Status.
    status_details: bytes = b""


class RpcError(Exception):
    """A call that didn't end well."""

    def __init__(
        self,
        code: StatusCode,
        details: str = "",
        trailing_metadata: Metadata = (),
        status_details: bytes = b"",
        retry_after: Optional[float] = None,
    ) -> None:
        super().__init__(code, details)
        self._code = code
        self._details = details
        self._trailing_metadata = trailing_metadata
        self._status_details = status_details
        self._retry_after = retry_after

    def code(self) -> StatusCode:
        """The status' code, never OK."""
        return self._code

    def details(self) -> str:
        """One sentence; may be empty."""
        return self._details

    def trailing_metadata(self) -> Metadata:
        """What the server said beside the status."""
        return self._trailing_metadata

    def retry_after(self) -> Optional[float]:
        """After how many seconds it makes sense to try again, if the server said so."""
        return self._retry_after

    def __str__(self) -> str:
        return f"{self._code.name}: {self._details}"


def status_details(error: RpcError) -> bytes:
    """The serialized google.rpc.Status that came with an error; empty if none did."""
    return error._status_details


def make_error(
    code: int, details: str, status_details: bytes, trailing_metadata: Metadata, retry_after: Optional[float]
) -> RpcError:
    """What the compiled code raises."""
    return RpcError(StatusCode(code), details, trailing_metadata, status_details, retry_after)
