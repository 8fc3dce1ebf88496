"""One line of the wire: what UTF-8 cannot hold, and what is no message."""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

_Line = TypeVar("_Line")


class WireError(Exception):
    """A line on the wire is not a message: says what it was and why."""


def encodable(value: Any) -> Any:
    """The value with U+FFFD for what UTF-8 cannot hold."""
    match value:
        case str():
            return re.sub("[\ud800-\udfff]", "\N{REPLACEMENT CHARACTER}", value)
        case list():
            return [encodable(each) for each in value]
        case dict():
            return {encodable(key): encodable(each) for key, each in value.items()}
    return value


def decoded(decoder: msgspec.json.Decoder[_Line], line: bytes) -> _Line:
    """What the line holds; raises ``WireError``."""
    try:
        return decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        shown = line[:80].decode("utf-8", "replace").strip()
        raise WireError(f"not a message: {shown!r} ({error})") from None
