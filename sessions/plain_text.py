"""Text of unknown origin as text that people can read without harm: no control characters.

A terminal obeys escape sequences. Bidirectional controls change the order of words on a screen, but
not for a shell (CVE-2021-42574). A lone surrogate stands for a byte of a file name that is not
UTF-8, and cannot be written as UTF-8. All of them become U+FFFD.
"""

from __future__ import annotations

import functools
import re
import textwrap

LONGEST_SHOWN = 2000  # characters of a text in a label, a cell or a banner
REPLACEMENT = "\ufffd"
NO_BREAK = "\u00a0"  # a space at which no line ends
_KEPT = "\n\t"
_FORMULAS = ("=", "+", "-", "@")
_NUMBER = re.compile(r"[+-]?[\d.,]+(e[+-]?\d+)?%?", re.IGNORECASE)
_UNIT = re.compile(
    r"(?<=\d) (?=(?:%|°C|[x×BWJVs]|[mµun]s|min|h|[kKMGT]i?B|[kMGT]?W?h|[kMG]?Hz|m[JW]|kg|g|pt|px"
    r"|[GT]?FLOPS?)(?:/\w+)?(?!\w))"
)
_CONTROLS = [*range(0x20), *range(0x7F, 0xA0)]
_BIDIRECTIONAL = [0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)]
_SEPARATORS = [0x2028, 0x2029]  # line ends to some programs and not to others
_SURROGATES = range(0xD800, 0xE000)
_NO_CHARACTERS = [0xFFFE, 0xFFFF]  # XML, and so SVG, may not contain them
_REPLACED = dict.fromkeys(
    (
        code
        for code in (*_CONTROLS, *_BIDIRECTIONAL, *_SEPARATORS, *_SURROGATES, *_NO_CHARACTERS)
        if chr(code) not in _KEPT
    ),
    REPLACEMENT,
)

_fill = functools.lru_cache(2048)(textwrap.fill)  # labels set their tooltip at each resize


def plain(text: str) -> str:
    """Return the text with U+FFFD for characters that do harm; lines stay lines."""
    return "\r\n".join(part.translate(_REPLACED) for part in text.split("\r\n"))


def unbroken(text: str) -> str:
    """Return the text with spaces at which no line ends between a number and its unit."""
    return _UNIT.sub(NO_BREAK, text)


def wrapped(text: str, columns: int = 90, most: int = LONGEST_SHOWN) -> str:
    """Return the text in lines of at most ``columns`` characters, as tooltips show it."""
    lines = unbroken(plain(text[:most])).splitlines()
    shown = "\n".join(_fill(line, columns) for line in lines).replace(NO_BREAK, " ")
    return f"{shown} …" if len(text) > most else shown


def for_spreadsheet(text: str) -> str:
    """Return a cell of plain text that no spreadsheet takes for a formula (CWE-1236)."""
    text = plain(text)
    if not text.lstrip().startswith(_FORMULAS) or _NUMBER.fullmatch(text):
        return text
    return f"'{text}"


def for_menu(text: str) -> str:
    """Return a text for a menu or a button, where Qt underlines what follows one ampersand."""
    return text.replace("&", "&&")


def json_escaped(written: str) -> str:
    """Return JSON with escapes for the characters that ``plain`` replaces."""
    return "".join(
        f"\\u{ord(letter):04x}" if ord(letter) in _REPLACED else letter for letter in written
    )


def is_plain(text: str) -> bool:
    """Return True if the text is one line without control or bidirectional characters."""
    return not any(ord(letter) in _REPLACED or letter in _KEPT for letter in text)


def clip(text: str, most: int = LONGEST_SHOWN) -> str:
    """Return plain text of at most ``most`` characters; laying out more would block the window."""
    return plain(text if len(text) <= most else f"{text[: most - 1]}…")


def one_line(text: str, most: int) -> str:
    """Return the text on one line, cut to ``most`` characters with an ellipsis."""
    line = " ".join(plain(text[: 4 * most]).split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def capitalized(text: str) -> str:
    """Return the text with a capital first letter."""
    return text[:1].upper() + text[1:]


def sentence(text: str) -> str:
    """Return a clause as a sentence; a sentence is returned unchanged."""
    return capitalized(text) if text.endswith((".", "!", "?")) else f"{capitalized(text)}."


def first_clause(text: str) -> str:
    """Return the text up to its first semicolon."""
    return text.partition("; ")[0]
