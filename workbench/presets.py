"""Presets of toggles: by name from the catalogue, or from a file that people share.

A file is JSON: ``{"workbench_presets": 1, "presets": {NAME: {TOGGLE: OPTION}}}``. Toggles
and options that a runner lacks are left out, with a warning. An option that it has and cannot use
is switched off by the runner.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from sessions.storage import atomic_write
from workbench.protocol import OR, Catalogue

MARK = "@"  # before a preset where toggles are named
SUFFIX = ".json"
VERSION = 1


class _File(msgspec.Struct, forbid_unknown_fields=True):
    workbench_presets: int
    presets: dict[str, dict[str, str]]


def read(path: Path) -> dict[str, dict[str, str]]:
    """Return the presets of a file by name; raises ``ValueError`` with one sentence."""
    try:
        file = msgspec.json.decode(path.read_bytes(), type=_File)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is not a file of toggle sets: {error}") from None
    if file.workbench_presets != VERSION:
        raise ValueError(
            f"{path} has version {file.workbench_presets}, but this program reads version {VERSION}"
        )
    if not file.presets or not all(name.strip() for name in file.presets):
        raise ValueError(f"{path} has no named toggle set")
    return file.presets


def write(path: Path, presets: Mapping[str, Mapping[str, str]]) -> None:
    """Write presets to a file; raises ``ValueError`` with one sentence."""
    content = _File(VERSION, {name: dict(toggles) for name, toggles in presets.items()})
    try:
        atomic_write.write(
            path, msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n"
        )
    except (OSError, RuntimeError) as error:
        sentence = f"{path} cannot be written: {atomic_write.reason(error)}; choose another place"
        raise ValueError(sentence) from None


def find(text: str, catalogue: Catalogue) -> tuple[dict[str, str], list[str]]:
    """Return the toggles of ``@NAME``, ``@FILE.json`` or ``@FILE.json:NAME``, and what is unknown.

    Raises ``ValueError`` with one sentence.
    """
    source = text.removeprefix(MARK)
    file, separator, name = source.partition(f"{SUFFIX}:")
    if not separator and not source.endswith(SUFFIX):
        known = {preset.name: preset for preset in catalogue.presets}
        if source not in known:
            raise ValueError(
                f"unknown toggle set {source!r}; expected one of {', '.join(known)}, "
                f"or a {SUFFIX} file"
            )
        return dict(known[source].toggles), []
    presets_read = read(Path(f"{file}{SUFFIX}" if separator else source).expanduser())
    if not name and len(presets_read) == 1:
        name = next(iter(presets_read))
    if name not in presets_read:
        problem = f"no toggle set {name!r}" if name else f"{len(presets_read)} toggle sets"
        raise ValueError(
            f"the file has {problem}; choose a set with {text.partition(':')[0]}:NAME, where NAME "
            f"is one of {', '.join(presets_read)}"
        )
    return fit(presets_read[name], catalogue)


def fit(toggles: Mapping[str, str], catalogue: Catalogue) -> tuple[dict[str, str], list[str]]:
    """Return the options that this runner has, off if unusable, and sentences for others."""
    fitted: dict[str, str] = {}
    unknown: list[str] = []
    known = {toggle.name: toggle for toggle in catalogue.toggles}
    for name, option in toggles.items():
        if name not in known:
            unknown.append(f"there is no toggle {name!r} here, so {name}={option} is left out")
            continue
        options = [choice.name for choice in known[name].options]
        if option not in options:
            unknown.append(
                f"{known[name].title} has no option {option!r} here, so {name}={option} is left out"
            )
        else:
            fitted[name] = option if option == options[0] else f"{option}{OR}{options[0]}"
    return fitted, unknown
