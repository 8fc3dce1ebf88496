"""The codec of the wire: one JSON line a command or message."""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

from workbench.protocol.commands import AnyCommand, Command
from workbench.protocol.messages import AnyMessage, Message, _Introduction

_Line = TypeVar("_Line")


class WireError(Exception):
    """A line on the wire is not a message; the text quotes it and gives the reason."""


def encodable(value: Any) -> Any:
    """Return the value with U+FFFD for characters that UTF-8 cannot encode."""
    match value:
        case str():
            return re.sub("[\ud800-\udfff]", "\N{REPLACEMENT CHARACTER}", value)
        case list():
            return [encodable(member) for member in value]
        case dict():
            return {encodable(key): encodable(member) for key, member in value.items()}
    return value


def decoded(decoder: msgspec.json.Decoder[_Line], line: bytes) -> _Line:
    """Return the content of the line; raises ``WireError``."""
    try:
        return decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        shown = line[:80].decode("utf-8", "replace").strip()
        raise WireError(f"not a message: {shown!r} ({error})") from None


_encoder = msgspec.json.Encoder()  # writes NaN as null
_commands: msgspec.json.Decoder[AnyCommand] = msgspec.json.Decoder(AnyCommand)
_messages: msgspec.json.Decoder[AnyMessage] = msgspec.json.Decoder(AnyMessage)
_introductions = msgspec.json.Decoder(_Introduction)


def encode(item: Command | Message) -> bytes:
    """Return the line of an item; what UTF-8 cannot encode (a byte of a file name) is U+FFFD."""
    try:
        return _encoder.encode(item) + b"\n"
    except UnicodeEncodeError:
        return _encoder.encode(encodable(msgspec.to_builtins(item))) + b"\n"


def round_trip(item: _Line) -> _Line:
    """Return a struct as the other side receives it; raises an error if it cannot be sent."""
    return msgspec.json.decode(_encoder.encode(item), type=type(item))


def decode_command(line: bytes) -> AnyCommand:
    """Return the command on one line; raises ``WireError``."""
    return decoded(_commands, line)


def version_of(line: bytes) -> int | None:
    """Return the version of a catalogue; None if the line is no catalogue."""
    try:
        return _introductions.decode(line).version
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def decode_message(line: bytes) -> AnyMessage:
    """Return the message on one line; raises ``WireError``."""
    return decoded(_messages, line)
