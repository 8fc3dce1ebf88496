"""Presets of toggles on the command line: ``@NAME`` wherever toggles are named."""

from __future__ import annotations

import json

import pytest
import wire_samples

from workbench import presets, protocol
from workbench.cli import main


def start_or_compare(commands) -> protocol.Command:
    return next(
        command for command in commands if isinstance(command, protocol.Start | protocol.Compare)
    )


def test_the_last_word_on_a_toggle_counts(ran, sent):
    commands = sent(ran.catalogue, protocol.Finished(reason="done", steps=0))
    words = [f"--toggle={text}" for text in ("rope_cache=shared", "@throughput", "adamw=loop")]
    main(["run", "hydra", *words])
    toggles = start_or_compare(commands).configuration.toggles
    assert toggles["compile"] == "default|off"
    assert toggles["precision"] == "amp_bf16|amp_fp16|fp32"
    assert (toggles["rope_cache"], toggles["adamw"]) == ("per_layer", "loop")
    assert "ccgqa" not in toggles  # the model's structure is no preset's business


def test_each_arm_of_a_verdict_may_be_a_preset(ran, sent, tmp_path):
    presets.write(tmp_path / "mine.json", {"mine": {"adamw": "foreach"}})
    commands = sent(ran.catalogue, protocol.Finished(reason="failed", steps=0))
    main(["ab", "hydra", "--toggle", "adamw=fused", "--a", "@eager",
          "--b", f"@{tmp_path}/mine.json,precision=bf16"])  # fmt: skip
    command = start_or_compare(commands)
    assert command.base.toggles["adamw"] == "loop"
    assert command.other.toggles == {"adamw": "foreach|loop", "precision": "bf16"}


@pytest.mark.parametrize("text", ["@slow", "@none.json"])
def test_a_preset_that_is_not_there_is_a_mistake(text, ran, sent, capsys):
    commands = sent(ran.catalogue)
    assert main(["run", "hydra", "--toggle", text]) == 2
    assert capsys.readouterr().err.startswith(f"workbench run: --toggle {text}: ")
    assert not [command for command in commands if isinstance(command, protocol.Start)]


def test_what_is_left_out_is_said_and_answered(ran, sent, tmp_path, capsys):
    file = tmp_path / "mine.json"
    presets.write(file, {"mine": {"cuda_graphs": "on", "warp": "9"}})
    note = protocol.Note(t_s=0.1, kind="warning", text="CUDA graphs: Off in place of On")
    commands = [ran.catalogue, note, *wire_samples.begin(0.2, 0)]
    commands = sent(*commands, protocol.Finished(t_s=9.0, reason="done", steps=1))
    assert main(["run", "hydra", "--toggle", f"@{file}", "--json"]) == 0
    assert start_or_compare(commands).configuration.toggles == {"cuda_graphs": "on|off"}
    out, err = capsys.readouterr()
    assert err == (
        f"@{file}: there is no toggle 'warp' here, so warp=9 is left out\n"
        "CUDA graphs: Off in place of On.\n"
    )
    assert json.loads(out)["warnings"] == [note.text]
