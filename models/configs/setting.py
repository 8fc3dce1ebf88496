"""Fields of a configuration: how they are declared, read from text, and checked.

A configuration is a frozen dataclass whose fields are made by ``setting``.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from models.errors import ConfigurationError


@dataclass(frozen=True)
class ConfigField:
    """One field of a family's configuration, with its allowed values."""

    name: str
    title: str
    help: str
    kind: type  # bool, int, float or str
    default: Any
    choices: tuple[Any, ...]
    minimum: float | None
    maximum: float | None
    weights: bool  # True if a model's weights depend on it


def setting(
    default: Any,
    title: str,
    help: str,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    choices: tuple[Any, ...] = (),
    weights: bool = True,
) -> Any:
    """Make a dataclass field with its title, help and allowed values.

    ``weights`` False: models that differ only in it have the same weights, and can share them.
    """
    metadata = {
        "title": title,
        "help": help,
        "minimum": minimum,
        "maximum": maximum,
        "choices": choices,
        "weights": weights,
    }
    return dataclasses.field(default=default, metadata=metadata)


def fields_of(config_class: Any) -> Mapping[str, ConfigField]:
    """Return the fields of a configuration's class by name."""
    return _fields_of(config_class)


@functools.cache
def _fields_of(config_class: Any) -> Mapping[str, ConfigField]:
    kinds = typing.get_type_hints(config_class)  # takes 2 ms: it compiles each annotation
    return {
        field.name: ConfigField(
            name=field.name, kind=kinds[field.name], default=field.default, **field.metadata
        )
        for field in dataclasses.fields(config_class)
    }


def read_value(family: str, field: ConfigField, value: Any) -> Any:
    """Return ``value`` as the field's kind; raises ``ConfigurationError``."""
    try:
        return _READERS[field.kind](value)
    except (ValueError, TypeError, OverflowError):
        raise _not_of_kind(family, field, value) from None


def check_choice(family: str, field: ConfigField, value: Any) -> None:
    """Raise ``ConfigurationError`` for a value that is none of the field's choices."""
    if field.choices and value not in field.choices:
        raise ConfigurationError(
            f"{family}: {field.name} = {_shown(value)} is not one of {field.choices}"
        )


def check_fields(family: str, config_class: type[Any], config: Any) -> None:
    """Raise ``ConfigurationError`` for the first field with a value that is not allowed."""
    if not isinstance(config, config_class):
        raise ConfigurationError(
            f"{family}: expected a {config_class.__name__}, got {type(config).__name__}"
        )
    for field in fields_of(config_class).values():
        value = getattr(config, field.name)
        if isinstance(value, str) and field.kind is not str:
            raise _not_of_kind(family, field, value)
        if isinstance(value, float) and field.kind is int:  # not even 2.0: it is a size
            raise _not_of_kind(family, field, value)
        read_value(family, field, value)
        check_choice(family, field, value)
        low, high = field.minimum, field.maximum
        if (low is not None and value < low) or (high is not None and value > high):
            raise ConfigurationError(
                f"{family}: {field.name} = {_shown(value)} is outside of {low} to {high}"
            )


def _not_of_kind(family: str, field: ConfigField, value: Any) -> ConfigurationError:
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
    return ConfigurationError(
        f"{family}: {field.name} = {_shown(value)} is not {names[field.kind]}"
    )


def _read_bool(value: Any) -> bool:
    words = {"true": True, "1": True, "on": True, "yes": True} | dict.fromkeys(
        ("false", "0", "off", "no"), False
    )
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in words:
        return words[value.strip().lower()]
    raise ValueError


def _read_int(value: Any) -> int:
    if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
        raise ValueError
    return int(value)


def _read_float(value: Any) -> float:
    if isinstance(value, bool) or not math.isfinite(float(value)):
        raise ValueError
    return float(value)


def _read_str(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError
    return value


_READERS: dict[type, Callable[[Any], Any]] = {
    bool: _read_bool,
    int: _read_int,
    float: _read_float,
    str: _read_str,
}


def _shown(value: Any) -> str:
    """Format the value for a sentence, shortened; Python refuses to print huge integers."""
    try:
        text = repr(value)
    except ValueError:
        return "a number of thousands of digits"
    return text if len(text) <= 60 else f"{text[:40]}... ({len(text)} characters)"
