"""Sentences and tables of a profile: times add up by module, two arms are aligned."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sessions.model import Session, Study
from sessions.studies import breakdown, breakdown_tables


def study(rows, facts=None, title="one", **tables) -> Study:
    """``rows``: name, module, phase, kind, calls, us."""
    names = ("name", "module", "phase", "kind", "calls", "us")
    kernels = {
        name: np.array([row[column] for row in rows], object if column < 4 else float)
        for column, name in enumerate(names)
    }
    return Study(
        "profile", title, 0.0, {"device": "cuda"}, facts or {}, {"kernels": kernels} | tables
    )


TRAINED = [
    ("gemm", "blocks.0.mlp", "forward", "matrix product", 2.0, 30.0),
    ("gemm", "blocks.0.mlp", "backward", "matrix product", 4.0, 60.0),
    ("norm", "blocks.0", "forward", "normalisation", 1.0, 5.0),
    ("gemm", "blocks.10.mlp", "forward", "matrix product", 2.0, 25.0),
    ("add", "(model)", "forward", "elementwise", 1.0, 3.0),
    ("adam", "(optimizer)", "optimizer", "optimizer", 1.0, 7.0),
]


def test_what_operators_achieved_is_set_against_the_least_that_they_need():
    profile = study(TRAINED)
    profile.tables["kernels"]["operator"] = np.array(["", "", "rms_norm", "", "", ""], object)
    names = np.array(["matrix product", "rms_norm", "optimizer"], object)
    profile.tables["least"] = {
        "name": names, "calls": np.array([3.0, 1.0, 1.0]), "us": np.array([92.0, 4.0, 3.5])
    }  # fmt: skip
    rows = {operator.name: operator for operator in breakdown.achieved(profile)}
    assert math.fsum(operator.us for operator in rows.values()) == breakdown.total_us(profile)
    assert rows["matrix product"].share == 92 / 115 and rows["matrix product"].calls == 3
    assert rows["rms_norm"].share == 0.8 and "normalisation" not in rows
    assert math.isnan(rows["elementwise"].share)  # nothing is known of it, and nothing claimed
    table = breakdown_tables.achieved_table(profile)
    assert [row[0] for row in table.rows][:2] == ["matrix product", "optimizer"]
    assert table.rows[0][4] == 80.0
    profile.tables["least"]["us"][1] = 6.0
    (over,) = (line for line in breakdown.words(profile) if "roof" in line)
    assert over.startswith("Faster than the measured roof: rms_norm.")


def test_a_profile_from_before_operators_were_marked_has_no_such_table():
    assert breakdown.achieved(study(TRAINED)) == []


def test_the_tree_holds_all_time_once_and_a_module_what_is_in_it():
    profile = study(TRAINED)
    root = breakdown.tree(profile)
    assert root.total_us == breakdown.total_us(profile) == 130.0
    assert set(root.children) == {"(model)", "(optimizer)"}
    totals = breakdown.totals(profile)
    assert totals["(model)"] == 123.0 and root.children["(model)"].own_us == 3.0
    assert totals["blocks"] == 120.0
    assert totals["blocks.0"] == 95.0 and totals["blocks.0.mlp"] == 90.0
    assert totals["blocks.10.mlp"] == 25.0
    assert totals["(optimizer)"] == 7.0


def test_a_column_is_summed_over_the_others_longest_first():
    kinds = breakdown.by(study(TRAINED), "kind")
    assert next(iter(kinds)) == "matrix product" and kinds["matrix product"] == (8.0, 115.0)
    assert breakdown.by(study(TRAINED), "phase")["backward"] == (4.0, 60.0)


def test_two_profiles_are_aligned_by_module_and_what_one_lacks_is_not_zero():
    after = [row for row in TRAINED if row[1] != "blocks.10.mlp"]
    after = [(*row[:5], row[5] / 2 if row[1] == "blocks.0.mlp" else row[5]) for row in after]
    after.append(("new", "blocks.2", "forward", "scan", 1.0, 1.0))
    changes = {
        change.module: change for change in breakdown.difference(study(TRAINED), study(after))
    }
    assert changes["blocks.0.mlp"].difference_us == -45.0
    assert math.isnan(changes["blocks.10.mlp"].after_us)
    assert changes["blocks.10.mlp"].difference_us == -25.0
    assert math.isnan(changes["blocks.2"].before_us) and changes["blocks.2"].difference_us == 1.0
    assert changes["blocks"].difference_us == -69.0
    sizes = [
        abs(change.difference_us) for change in breakdown.difference(study(TRAINED), study(after))
    ]
    assert sizes == sorted(sizes, reverse=True)


def test_a_profile_of_compiled_code_is_aligned_by_class_and_says_why():
    fused = [
        ("gemm", breakdown.COMPILED, "forward", "matrix product", 8.0, 100.0),
        ("triton_red_fused_0", breakdown.COMPILED, "forward", "fused by Inductor", 9.0, 5.0),
        ("adam", "(optimizer)", "optimizer", "optimizer", 1.0, 7.0),
    ]
    eager, compiled = study(TRAINED), study(fused)
    why = breakdown.not_by_module(eager, compiled)
    assert why.startswith("Aligned by class: 94 % of B is compiled code")
    assert "A and B" in breakdown.not_by_module(compiled, compiled)
    table = breakdown_tables.difference_table(eager, compiled)
    changes = {str(row[0]): row[3] for row in table.rows}
    assert table.columns[0].name == "Class" and table.title.startswith("By class")
    assert changes["matrix product"] == -15.0 and changes["optimizer"] == 0.0
    assert changes["fused by Inductor"] == 5.0 and changes["normalisation"] == -5.0
    assert math.fsum(changes.values()) == breakdown.total_us(compiled) - breakdown.total_us(eager)
    assert breakdown.not_by_module(eager, eager) == ""
    assert breakdown_tables.difference_table(eager, eager).columns[0].name == "Module"


def test_compiled_code_whose_modules_are_told_is_aligned_by_module():
    attributed = [
        ("gemm", "blocks.0.mlp", "forward", "matrix product", 8.0, 100.0),
        ("triton_red_fused_0", breakdown.COMPILED, "forward", "fused by Inductor", 1.0, 4.0),
        ("Python", breakdown.COMPILED, "forward", "host", 1.0, 50.0),  # only calls the kernels
    ]
    assert breakdown.not_by_module(study(TRAINED), study(attributed)) == ""


@pytest.mark.parametrize(
    ("busy", "expected"),
    [
        (20.0, "Launch-bound: in 80 % of the step (0.08 ms of 0.10 ms) the GPU waits"),
        (97.0, "The GPU works 97 % of the step: it is not launch-bound."),
        (103.0, "The GPU works 100 % of the step: it is not launch-bound."),
    ],
)
def test_words_say_whether_the_gpu_waits(busy, expected):
    profile = study(TRAINED, {"step_us": 100.0, "busy_us": busy, "notes": []})
    assert breakdown.words(profile)[0].startswith(expected)


def test_on_the_cpu_nothing_is_said_of_waiting():
    profile = study(TRAINED, {"step_us": 100.0})
    assert math.isnan(breakdown.idle_share(profile))
    assert breakdown.words(profile) == [
        "Most time: matrix product 88 %, optimizer 5 %, normalisation 4 %, elementwise 2 %."
    ]


def test_time_of_no_module_is_told_and_notes_follow():
    rows = [*TRAINED, ("k", breakdown.REPLAYED, "replay", "other", 1.0, 130.0)]
    profile = study(rows, {"notes": ["A CUDA graph is replayed as a whole."]})
    assert breakdown.unattributed(profile) == 0.5
    assert breakdown.words(profile)[1:] == [
        "50 % of the time cannot be assigned to a module.",
        "A CUDA graph is replayed as a whole.",
    ]


def test_only_profiles_with_kernels_are_profiles():
    empty = Study("profile", "begun", 0.0)
    other = Study("sweep", "other", 0.0, tables={"kernels": {}})
    session = Session(studies=[empty, other, study(TRAINED)])
    assert [profile.title for profile in breakdown.profiles(session)] == ["one"]


def test_the_memory_table_adds_up_and_leaves_out_what_is_not_there():
    mib = 2.0**20
    peak = {
        "role": np.array(breakdown.ROLES, object),
        "bytes": np.array([4, 2, 8, 16, 1, 0, 0]) * mib,
        "estimate": np.array([4, 2, 8, 20, np.nan, 0, np.nan]) * mib,
    }
    memory = {role: np.array([1.0, 3.0, 2.0]) * mib for role in breakdown.ROLES[:5]}
    table = breakdown_tables.memory_table(study(TRAINED, peak=peak, memory=memory))
    rows = {row[0]: row[1:] for row in table.rows}
    assert rows["total"] == [31.0, None, 34.0]
    assert rows["gradients"] == [2.0, 3.0, 2.0]
    assert "private pools of CUDA graphs" not in rows and len(rows) == 6
    assert "– |" in table.to_markdown()


def test_fragmentation_is_what_is_reserved_and_empty_at_the_peak():
    memory = {role: np.array([1.0, 2.0, 1.0]) for role in breakdown.ROLES}
    memory |= {"t_ms": np.arange(3.0), "reserved": np.array([90.0, 20.0, 90.0])}
    assert breakdown.fragmentation(study(TRAINED, memory=memory)) == 6.0
    memory["reserved"] = np.zeros(3)
    assert math.isnan(breakdown.fragmentation(study(TRAINED, memory=memory)))
