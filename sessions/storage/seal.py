"""The seal: a SHA-256 of the complete session file, in the 512 bytes that HDF5 leaves to its users.

HDF5 files may begin with a *user block* that HDF5 programs skip. Ours has a few lines of text with
the file's size and checksum. They reveal a truncated or damaged file when it is read once as plain
bytes (about 10 MB for a million steps), before the HDF5 library opens it, which a corrupt file can
hang or crash. A reader without this program can check it too: ``tail -c +513 FILE | sha256sum``.
The last line is made with a key of the user account. It shows that this program wrote the file
here, so that the file opens without the check of files of unknown origin.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import re
from typing import BinaryIO

from sessions.errors import SessionError

SIZE = 512
VERSION = 1  # version of the session format
HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_TITLE = b"GPU optimization workbench session, format version "
_BEGINNING = re.compile(re.escape(_TITLE) + rb"(\d{1,9})\nbytes (\d{1,18})\n")
_ACCOUNT_LABEL = b"unchanged since this program wrote it, by the account's key: "
_ACCOUNT = re.compile(re.escape(_ACCOUNT_LABEL) + rb"[0-9a-f]{64}\n")
_PIECE = 1 << 20


class Seal(enum.Enum):
    """The kinds of checksum that the first bytes of a file show."""

    NONE = "none"  # another program wrote it
    INTACT = "intact"  # unchanged since some program wrote it
    OWN = "own"  # unchanged since this program wrote it under this user account


def stamp(image: memoryview, key: bytes | None = None) -> None:
    """Write the seal of a complete file, ``image``, into its first ``SIZE`` bytes.

    With the account's ``key`` it says that this program wrote the file under this account.
    """
    text = _text(len(image), hashlib.sha256(image[SIZE:]).hexdigest())
    image[:SIZE] = _padded(text + (b"" if key is None else _account_line(text, key)))


def verify(stream: BinaryIO, size: int, key: bytes | None = None) -> Seal:
    """Return the state of the seal.

    A checksum finds damage; anybody can compute it, so only a seal with the account's ``key`` says
    who wrote the file. Raises ``SessionError`` (a sentence about "it") for a seal that does not fit
    the file, and for one of a newer version, whose file this program must not try to read.
    """
    stream.seek(0)
    head = stream.read(SIZE)
    beginning = _BEGINNING.match(head)
    if beginning is None:
        return Seal.NONE
    version, sealed_size = int(beginning[1]), int(beginning[2])
    if version > VERSION:
        raise newer(version)
    if size < sealed_size:
        raise SessionError(
            f"it is truncated: it has only {size:,} of its {sealed_size:,} bytes; "
            "copy it again from its source"
        )
    hasher = hashlib.sha256()
    while piece := stream.read(_PIECE):
        hasher.update(piece)
    text = _text(size, hasher.hexdigest())
    line = _ACCOUNT.search(head)
    if head != _padded(text + (line[0] if line else b"")):
        raise SessionError(
            "its checksum does not match: it was damaged, or another program changed it after it "
            "was saved; if the change was intended, accept it with "
            "`python -m sessions.accept FILE`"
        )
    if line and key is not None and hmac.compare_digest(line[0], _account_line(text, key)):
        return Seal.OWN
    return Seal.INTACT


def newer(version: int) -> SessionError:
    """Return the refusal of a file of a later format version."""
    return SessionError(
        f"it has format version {version}, but this program reads up to version {VERSION}; "
        "update the workbench"
    )


def has_hdf5_signature(stream: BinaryIO, size: int) -> bool:
    """Return True if HDF5 would find its signature: at 0, 512, 1024, 2048 and so on."""
    offset = 0
    while offset + len(HDF5_SIGNATURE) <= size:
        stream.seek(offset)
        if stream.read(len(HDF5_SIGNATURE)) == HDF5_SIGNATURE:
            return True
        offset = 2 * offset or SIZE
    return False


def _text(size: int, digest: str) -> bytes:
    return (
        f"{_TITLE.decode()}{VERSION}\nbytes {size}\n"
        f"sha256 of byte {SIZE} on: {digest}\n"
        f"HDF5 begins at byte {SIZE}; any HDF5 program opens this file as it is.\n"
    ).encode()


def _account_line(text: bytes, key: bytes) -> bytes:
    return _ACCOUNT_LABEL + hmac.digest(key, text, "sha256").hex().encode() + b"\n"


def _padded(text: bytes) -> bytes:
    return text.ljust(SIZE - 1) + b"\n"
