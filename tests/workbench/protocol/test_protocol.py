"""Every message and command survives the wire; whatever else comes is refused by one sentence."""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing

import msgspec
import msgspec.inspect
import pytest
import wire_samples
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench import protocol
from workbench.protocol import AnyCommand, AnyMessage, Command, Message, WireError

COMMANDS = typing.get_args(AnyCommand)
MESSAGES = typing.get_args(AnyMessage)

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
PLAIN = {
    str: texts,
    int: st.integers(-(2**53), 2**53),
    float: st.floats(allow_nan=False, allow_infinity=False),
    bool: st.booleans(),
    type(None): st.none(),
}


@functools.cache
def strategy(kind) -> st.SearchStrategy:
    """Values of a type that the protocol uses; a kind of type that is new here fails."""
    if kind in PLAIN:
        return PLAIN[kind]
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is list:
        return st.lists(strategy(arguments[0]), max_size=3)
    if origin is dict:
        return st.dictionaries(*map(strategy, arguments), max_size=3)
    if origin is typing.Literal:
        return st.sampled_from(arguments)
    if origin in (types.UnionType, typing.Union):
        return st.one_of(*map(strategy, arguments))
    if dataclasses.is_dataclass(kind) or issubclass(kind, msgspec.Struct):
        hints = typing.get_type_hints(kind)
        names = [field.name for field in msgspec.inspect.type_info(kind).fields]
        return st.builds(kind, **{name: strategy(hints[name]) for name in names})
    raise TypeError(f"no strategy for {kind}")


def assert_refused(decode, line: bytes) -> None:
    with pytest.raises(WireError) as refusal:
        decode(line)
    sentence = str(refusal.value)
    assert sentence.startswith("not a message: ")
    assert "\n" not in sentence and len(sentence) < 600


@pytest.mark.parametrize(("base", "known"), [(Command, COMMANDS), (Message, MESSAGES)])
def test_every_subclass_is_on_the_wire_under_a_tag_of_its_own(base, known):
    assert set(base.__subclasses__()) == set(known)
    assert len({kind.__struct_config__.tag for kind in known}) == len(known)


@pytest.mark.parametrize("kind", COMMANDS, ids=lambda kind: kind.__name__)
@settings(max_examples=40)
@given(data=st.data())
def test_every_command_survives_the_wire(kind, data):
    command = data.draw(strategy(kind))
    line = protocol.encode(command)
    assert line.endswith(b"\n") and line.count(b"\n") == 1
    assert protocol.decode_command(line) == command
    assert type(protocol.decode_command(line)) is kind


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
@settings(max_examples=40)
@given(data=st.data())
def test_every_message_survives_the_wire(kind, data):
    message = data.draw(strategy(kind))
    line = protocol.encode(message)
    assert line.endswith(b"\n") and line.count(b"\n") == 1
    assert protocol.decode_message(line) == message
    assert type(protocol.decode_message(line)) is kind


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_metric_that_is_no_number_is_none_after_the_wire(value):
    line = protocol.encode(protocol.Metrics(segment=0, values={"load": [[0.5, value]]}))
    assert protocol.decode_message(line).values == {"load": [[0.5, None]]}


@pytest.mark.parametrize("kind", [protocol.Steps, protocol.TelemetrySamples])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_was_not_measured_is_null_on_the_wire_and_none_after_it(kind, value):
    about = {"segment": 0} if kind is protocol.Steps else {"device": "cpu"}
    line = protocol.encode(kind(columns={"t_s": [0.5, value]}, **about))
    assert b"[0.5,null]" in line
    assert protocol.decode_message(line).columns == {"t_s": [0.5, None]}


def test_text_that_utf_8_cannot_hold_is_sent_with_replacement_characters():
    odd = protocol.Note(kind="note", text="/data/\udcff.txt")
    assert protocol.decode_message(protocol.encode(odd)).text == "/data/\ufffd.txt"
    start = protocol.Start(configuration=wire_samples.configuration("\udcff"))
    assert protocol.decode_command(protocol.encode(start)).configuration.toggles == {
        "compile": "\ufffd"
    }


LINES = [protocol.encode(message) for message in wire_samples.stream(segments=1, batches=1)]


@given(st.sampled_from(LINES), st.data())
def test_a_truncated_line_is_refused(line, data):
    assert_refused(protocol.decode_message, line[: data.draw(st.integers(0, len(line) - 2))])


@given(st.sampled_from(LINES), st.data())
def test_a_line_with_changed_bytes_is_a_message_or_refused(line, data):
    damaged = bytearray(line)
    for index in data.draw(st.lists(st.integers(0, len(line) - 1), min_size=1, max_size=4)):
        damaged[index] = data.draw(st.integers(0, 255))
    try:
        message = protocol.decode_message(bytes(damaged))
    except WireError:
        assert_refused(protocol.decode_message, bytes(damaged))
    else:
        assert isinstance(message, Message)


@given(st.binary(max_size=200))
def test_foreign_bytes_are_refused(line):
    assert_refused(protocol.decode_message, line)
    assert_refused(protocol.decode_command, line)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"null\n",
        b"[]\n",
        b"{}\n",
        b"loading weights ... done\n",
        b'{"type":"no such message"}\n',
        b'{"type":7}\n',
        b'{"type":"state"}\n',
        b'{"type":"state","state":7}\n',
        b'{"type":"state","state":"idle","t_s":1e999}\n',
        b'{"type":"finished","reason":"done","steps":' + b"9" * 10_000 + b"}\n",
        b'{"type":"facts","segment":0,"ledger":{"loss":null}}\n',
        b'{"type":"steps","segment":0,"columns":{"t_s":["soon"]}}\n',
        b'{"type":"note","kind":"a","text":"b"}{"type":"note","kind":"a","text":"b"}\n',
        b'{"type":"note","kind":"a","text":"\\ud800"}\n',
        b"[" * 1_000_000,
        b'{"type":' * 200_000,
        b'{"type":"state","state":"a","unknown":' + b"[" * 200_000 + b"]" * 200_000 + b"}\n",
        b"x" * 50_000_000,
    ],
    ids=lambda line: line[:30].decode().strip() or "empty",
)
def test_what_is_no_message_is_refused_by_one_sentence(line):
    assert_refused(protocol.decode_message, line)
    assert_refused(protocol.decode_command, line)


def test_a_message_is_no_command_and_a_command_no_message():
    assert_refused(protocol.decode_command, LINES[0])
    assert_refused(protocol.decode_message, protocol.encode(protocol.Pause()))


def test_a_huge_batch_survives_the_wire():
    values = [float(index) for index in range(1_000_000)]
    line = protocol.encode(protocol.Steps(segment=0, columns={"t_s": values}))
    assert protocol.decode_message(line).columns["t_s"] == values
