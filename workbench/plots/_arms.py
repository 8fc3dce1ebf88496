"""Labels of the two arms of a comparison by their differences."""

from __future__ import annotations

WITHOUT = "without"


def apart(a: str, b: str) -> tuple[str, str]:
    """Return the labels of two arms without the choices that both have."""
    choices_a, choices_b = _choices(a), _choices(b)
    if choices_a == choices_b:
        return a, b
    pairs = ((choices_a, choices_b), (choices_b, choices_a))
    left, right = (
        ", ".join(choice for choice in choices if choice not in other) for choices, other in pairs
    )
    return left or WITHOUT, right or WITHOUT


def _choices(label: str) -> list[str]:
    """Split a label into its ``Title: option`` parts; a title may hold a comma."""
    choices: list[str] = []
    for piece in label.split(", "):
        if choices and ":" not in choices[-1]:
            choices[-1] += f", {piece}"
        else:
            choices.append(piece)
    return choices
