"""What tells the two arms of a comparison apart, in words."""

from __future__ import annotations

WITHOUT = "without"


def apart(a: str, b: str) -> tuple[str, str]:
    """The labels of two arms without what both have: what tells them apart is seen at once."""
    of_a, of_b = _choices(a), _choices(b)
    if of_a == of_b:
        return a, b
    pairs = ((of_a, of_b), (of_b, of_a))
    left, right = (", ".join(one for one in own if one not in other) for own, other in pairs)
    return left or WITHOUT, right or WITHOUT


def _choices(label: str) -> list[str]:
    """``Title: option`` each; a comma within a title does not part it."""
    found: list[str] = []
    for piece in label.split(", "):
        if found and ":" not in found[-1]:
            found[-1] += f", {piece}"
        else:
            found.append(piece)
    return found
