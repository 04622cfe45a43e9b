"""Exceptions: one class for what callers tell apart, with the library's message."""

import re
from typing import Dict, Type


class Error(Exception):
    """What the library refuses or fails at; the base of all below.

    ``str(error)`` says what was wrong, where, and what would be right.
    """

    status: str
    """Name of the C status, such as ``"DH_EINVAL"``."""
    message: str

    def __init__(self, status: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message

    def __reduce__(self):  # exceptions are copied and pickled by their arguments
        return type(self), (self.status, self.message)


class InvalidInput(Error, ValueError):
    """A setting or argument that cannot be had; the message names it and values that would be right."""


class MalformedFile(Error, ValueError):
    """A file that does not say what it should, with line and column where there are any."""


class FileError(Error, OSError):
    """Reading or writing failed, or is not permitted."""

    # OSError makes its instances in __new__, and would take two arguments for errno and text.
    def __new__(cls, status: str, message: str) -> "FileError":
        return super().__new__(cls, message)

    def __str__(self) -> str:
        return self.message


class NotFound(Error, LookupError):
    """A name that there is none of; the message has the nearest one."""


class OutOfMemory(Error, MemoryError):
    """Memory was short."""


class Unsupported(Error, NotImplementedError):
    """Something that is right, but not there."""


class Diverged(Error, ArithmeticError):
    """Training diverged; the message names step and operator. The last checkpoint is intact."""


class VerificationFailed(Error):
    """A program that would wait for ever or race: an error of the library, or of a schedule read from a file."""


class CommunicationFailed(Error):
    """A rank failed, or did not come in time; the message names those that waited for it."""


class Interrupted(Error):
    """The work was asked to stop: the context of ``KeyboardInterrupt``, or another rank's process was asked."""


class InternalError(Error):
    """An error of the library."""


_CLASSES: Dict[str, Type[Error]] = {
    "DH_EINVAL": InvalidInput,
    "DH_EFORMAT": MalformedFile,
    "DH_EIO": FileError,
    "DH_EPERM": FileError,
    "DH_ENOMEM": OutOfMemory,
    "DH_EMISSING": NotFound,
    "DH_EUNSUPPORTED": Unsupported,
    "DH_EDIVERGED": Diverged,
    "DH_EVERIFY": VerificationFailed,
    "DH_ECOMM": CommunicationFailed,
    "DH_EINTERRUPTED": Interrupted,
    "DH_EINTERNAL": InternalError,
}


def error_of(status: str, message: str) -> Error:
    """The exception for a status of the C library. ``--set`` is the command line's word."""
    return _CLASSES[status](status, re.sub(r"--set (?=[a-z])", "", message))
