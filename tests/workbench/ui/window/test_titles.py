"""Titles replace the names in a session; unknown names stay as they are."""

import msgspec
import pytest
from fake_catalogue import catalogue

from sessions.storage import hdf5
from workbench.client.recorder import Recorder
from workbench.titles import Titles, offered

KNOWN = Titles(offered(catalogue()))


@pytest.mark.parametrize(
    ("stored", "read"),
    [
        ("+ precision=amp_bf16", "+ Precision: AMP BF16"),
        ("precision = amp_bf16, adamw=fused", "Precision: AMP BF16, AdamW: Fused"),
        ("triton=on: no effect: eager", "Triton kernels, all: On, no effect: eager"),
        ("hydra over settings.sequence and settings.batch", "hydra over sequence and batch"),
        ("adamw=unheard-of, x=1, dim=64.", "adamw=unheard-of, x=1, dim=64."),
        ("--toggle=precision=amp_bf16x", "--toggle=precision=amp_bf16x"),
        ("at step=3 the loss was 2.5", "at step=3 the loss was 2.5"),
    ],
)
def test_choices_and_fields_within_a_text_are_read_by_title(stored, read):
    assert KNOWN.of(stored) == read
    assert Titles().of(stored) == stored


def test_every_option_of_every_toggle_is_read_by_title():
    for toggle in catalogue().toggles:
        for option in toggle.options:
            assert KNOWN.of(f"{toggle.name}={option.name}") == f"{toggle.title}: {option.title}"


def test_a_setting_without_a_title_has_its_last_part():
    assert KNOWN.setting("settings.batch", "16") == "Batch: 16"
    assert KNOWN.setting("model.heard_of_by_nobody", "2") == "Heard of by nobody: 2"


def test_a_field_that_workloads_call_differently_keeps_its_name():
    made = catalogue()
    first, *rest = made.workloads
    prompt = [msgspec.structs.replace(field, title="Prompt") if field.name == "sequence" else field
              for field in first.fields]  # fmt: skip
    made.workloads = [msgspec.structs.replace(first, fields=prompt), *rest]
    assert any(field.title == "Prompt" for field in prompt)
    assert any(field.name == "sequence" for workload in rest for field in workload.fields)
    titles = Titles(offered(made))
    assert titles.of("over settings.sequence and settings.batch") == "over sequence and batch"
    assert titles.setting("settings.sequence", "64") == "Sequence: 64"


def test_what_a_session_keeps_of_a_runner_reads_it_where_there_is_none(tmp_path):
    recorder = Recorder()
    recorder.record(catalogue())
    hdf5.save(recorder.session, tmp_path / "a.h5")
    titles = Titles(hdf5.load(tmp_path / "a.h5").titles)
    for text in ("adamw=fused", "hydra over settings.sequence", "triton=on: no effect: eager"):
        assert titles.of(text) == KNOWN.of(text) != text
    assert titles.setting("workload", "train") == KNOWN.setting("workload", "train")


def test_the_last_to_give_a_title_has_the_say_and_what_it_lacks_is_asked_of_the_others():
    old = {"toggles.adamw": "Optimizer", "toggles.adamw=fused": "Fused", "settings.x": "Ex"}
    both = Titles(old, {"toggles.adamw": "AdamW"})
    assert both.choice("adamw", "fused") == "AdamW: Fused"
    assert both.name("settings.x") == "Ex"


def test_a_window_whose_runner_is_not_there_reads_by_the_titles_of_what_it_shows(workspace):
    recorder = Recorder()
    recorder.record(catalogue())
    assert workspace.session.titled("adamw=fused") == "adamw=fused"
    workspace.session.show(recorder.session)
    assert workspace.session.titled("adamw=fused") == "AdamW: Fused"
    workspace.session.show(workspace.session.recorder.session)
    assert workspace.session.titled("adamw=fused") == "adamw=fused"
    workspace.compared.add(recorder.session)
    assert workspace.session.titled("adamw=fused") == "AdamW: Fused"
