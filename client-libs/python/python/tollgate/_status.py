"""Statuses: the codes, and the exception of failed calls."""

from __future__ import annotations

import enum
from typing import Iterable, NamedTuple, Optional, Sequence, Tuple, Union

# Text for ordinary keys, bytes for keys that end in `-bin`.
MetadataValue = Union[str, bytes]
# Received metadata; it can be iterated any number of times.
Metadata = Tuple[Tuple[str, MetadataValue], ...]
# Metadata that a program gives.
MetadataLike = Iterable[Tuple[str, MetadataValue]]

# The trailer that carries a serialized google.rpc.Status.
STATUS_DETAILS = "grpc-status-details-bin"


class StatusCode(enum.IntEnum):
    """The codes of gRPC. Other codes are members without a constant, named after their number. They
    are equal to the number, but not the same object each time."""

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

    # Like gRPC's, in all versions of Python.
    def __str__(self) -> str:
        return f"StatusCode.{self.name}"


class Status(NamedTuple):
    """How a handler ends a call: the argument of `ServicerContext.abort_with_status`."""

    code: StatusCode
    # The message.
    details: str = ""
    trailing_metadata: Sequence[Tuple[str, MetadataValue]] = ()
    # A serialized google.rpc.Status.
    status_details: bytes = b""


class RpcError(Exception):
    """The exception of a failed call."""

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
        """The status's code, never OK."""
        return self._code

    def details(self) -> str:
        """The message; may be empty."""
        return self._details

    def trailing_metadata(self) -> Metadata:
        """The trailers."""
        return self._trailing_metadata

    def retry_after(self) -> Optional[float]:
        """The recommended seconds until a retry, if the server gave any."""
        return self._retry_after

    def __str__(self) -> str:
        return f"{self._code.name}: {self._details}"


def status_details(error: RpcError) -> bytes:
    """The serialized google.rpc.Status that came with an error; empty if none did."""
    return error._status_details


def make_error(
    code: int, details: str, status_details: bytes, trailing_metadata: Metadata, retry_after: Optional[float]
) -> RpcError:
    """Makes the exception that the compiled code raises."""
    return RpcError(StatusCode(code), details, trailing_metadata, status_details, retry_after)
