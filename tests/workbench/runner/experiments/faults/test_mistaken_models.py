"""A user's model that cannot be measured anywhere is a mistake, whatever measures it."""

from __future__ import annotations

import msgspec
import pytest

from sessions.model import OWN, Configuration
from workbench import protocol


def commands(base: Configuration) -> dict[str, protocol.Command]:
    toggles = {"adamw": "fused"}
    other = msgspec.structs.replace(base, toggles=toggles)
    return {
        "run": protocol.Start(configuration=base, steps=2),
        "compare": protocol.Compare(base=base, other=other, budget_s=0.3),
        "attribute": protocol.Attribute(base=base, toggles=toggles, budget_s=0.3),
        "sweep": protocol.Sweep(base=base, axes={"settings.batch": [2, 4]}, seconds=0.1),
        "scale": protocol.Scale(base=base, kinds=["data"], ranks=[2], budget_s=0.3),
        "optimize": protocol.Optimize(base=base, budget_s=0.3),
        "validate": protocol.Validate(configuration=base, budget_s=0.3),
        "profile": protocol.Profile(configurations=[base], steps=2),
    }


@pytest.mark.parametrize("name", commands(Configuration(family=OWN, preset="file")))
def test_a_mistake_in_every_build_is_the_failure_of_the_command(runner, tmp_path, name):
    path = tmp_path / "mine.py"
    path.write_text("def build():\n    return 5\n")
    base = Configuration(
        family=OWN, preset="file", model={"source": str(path)}, workload="train",
        settings={"batch": 4},
    )  # fmt: skip
    since = len(runner.messages)
    runner.send(commands(base)[name])
    assert runner.finish().reason == "failed"
    (failure,) = [m for m in runner.messages[since:] if isinstance(m, protocol.Failure)]
    assert failure.kind == "mistake"
    assert f"build() of {path} returned int; expected (module, " in failure.sentence
