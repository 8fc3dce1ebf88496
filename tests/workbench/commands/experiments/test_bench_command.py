"""``workbench bench``: what it asks of the runner, and the table that it makes of the answer."""

from __future__ import annotations

import json

import msgspec
import wire_samples

from sessions.model import KERNELS, Configuration, Phase
from sessions.storage import hdf5
from workbench import protocol
from workbench.cli import main

OPERATORS = {"swiglu": "swiglu: torch", "rope": "rope: torch"}


def answers(reason="done"):
    catalogue = wire_samples.catalogue()
    catalogue.operators = OPERATORS
    configuration = Configuration(
        family=KERNELS,
        preset="swiglu",
        settings={"case": "3x5", "dtype": "float32"},
        toggles={"implementation": "torch"},
    )
    times = {
        "t_s": [0.5 + number / 100 for number in range(30)],
        "wall_ms": [0.02] * 30,
        "phase": [int(Phase.STEADY)] * 30,
    }
    ledger = {"floor_us": 10.0, "bytes": 100, "flops": 100, "error": 0.5, "first_s": 0.1}
    return [
        catalogue,
        protocol.Progress(t_s=0.1, task="timing kernels", fraction=0.0, text="swiglu"),
        protocol.SegmentStarted(t_s=0.2, index=0, configuration=configuration, label="swiglu"),
        protocol.Facts(t_s=0.3, segment=0, ledger=ledger),
        protocol.Steps(t_s=0.9, segment=0, columns=times),
        protocol.Finished(t_s=1.0, reason=reason, steps=30),
    ]


def test_the_runner_is_asked_for_what_was_named(sent, capsys):
    commands = sent(*answers())
    assert main(["bench", "swiglu", "--dtype", "float32", "--every-case"]) == 0
    assert commands[0] == protocol.Bench(operators=["swiglu"], dtype="float32", every_case=True)
    table = capsys.readouterr().out
    assert "| swiglu | 3x5 | float32 | forward | torch | 20.0 |" in table


def test_the_session_is_saved_and_the_rows_are_json(sent, tmp_path, capsys):
    sent(*answers())
    path = tmp_path / "kernels.h5"
    assert main(["bench", "--json", "-o", str(path)]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["reason"], printed["file"]) == ("done", str(path))
    (row,) = printed["rows"]
    assert row["configuration"]["toggles"] == {"implementation": "torch"}
    assert row["ledger"]["error"] == 0.5
    session = hdf5.load(path)
    assert session.title == "kernels"
    assert session.segments[0].configuration.family == KERNELS


def test_what_was_tuned_is_told_once_with_its_times(sent, capsys):
    messages = answers()
    tiles = "gated.forward [bfloat16]: (1024, 4) (tuned), 40.0 us, heuristic 50.0 us"
    messages[3].ledger |= {"tiles": tiles, "autotune_s": 2.5}
    both = [msgspec.structs.replace(m, index=1) if isinstance(m, protocol.SegmentStarted)
            else msgspec.structs.replace(m, segment=1) for m in messages[2:5]]  # fmt: skip
    commands = sent(*messages[:5], *both, messages[5])
    assert main(["bench", "swiglu", "--tune"]) == 0
    assert commands[0].tune
    printed = capsys.readouterr().out
    assert printed.count(tiles) == 1 and printed.rstrip().endswith("tuning took 2.5 s")


def test_shapes_of_models_are_asked_for_and_our_best_stands_beside_the_best_public_one(
    sent, capsys
):
    messages = answers()
    for index, (impl, factor) in enumerate((("triton", 2.0), ("liger", 1.0)), 1):
        configuration = msgspec.structs.replace(
            messages[2].configuration, toggles={"implementation": impl}
        )
        columns = messages[4].columns | {"wall_ms": [0.01 * factor] * 30}
        more = [
            msgspec.structs.replace(messages[2], index=index, configuration=configuration),
            msgspec.structs.replace(messages[3], segment=index),
            msgspec.structs.replace(messages[4], segment=index, columns=columns),
        ]
        messages[-1:-1] = more
    sent_commands = sent(*messages)
    assert main(["bench", "swiglu", "--model-shapes", "Phi-4", "Llama 3.1 8B"]) == 0
    assert sent_commands[0].model_shapes == ["Phi-4", "Llama 3.1 8B"]
    table = capsys.readouterr().out
    assert "| swiglu | 3x5 | float32 | forward | triton | 20.0 | liger | 10.0 | 2.00 |" in table
    sent(*messages)
    assert main(["bench", "--model-shapes", "--json"]) == 0
    (leader,) = json.loads(capsys.readouterr().out)["leaders"]
    assert (leader["bundled"], leader["public"]) == ("triton", "liger")
    assert leader["ratio"] == 2.0


def test_an_unknown_operator_is_a_mistake_that_names_what_there_is(sent, capsys):
    commands = sent(*answers())
    assert main(["bench", "softmin"]) == 2
    messages = capsys.readouterr().err
    assert "unknown operator 'softmin'; expected one of swiglu, rope" in messages
    assert not any(isinstance(command, protocol.Bench) for command in commands)


def test_a_run_that_failed_exits_with_1(sent, capsys):
    sent(*answers(reason="failed"))
    assert main(["bench"]) == 1
