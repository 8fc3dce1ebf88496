"""The table of a session of timed kernels, and the commands that time them again."""

from __future__ import annotations

import numpy as np
import pytest

from sessions.columns import Columns
from sessions.model import KERNELS, STEP_COLUMNS, Configuration, Phase, Segment, Session
from sessions.numbers import text
from sessions.reproduction import command_lines
from sessions.studies.kernels import kernels_table, rated, roofs, speedup, speedups
from sessions.tables import segments_table

LEDGER = {"floor_us": 8.0, "bytes": 40_000, "flops": 2_000_000, "error": 0.25, "first_s": 1.5}


def segment(implementation, us, direction="forward", case="3x5", **ledger):
    configuration = Configuration(
        family=KERNELS,
        preset="swiglu",
        workload=direction,
        settings={"case": case, "dtype": "bfloat16"},
        toggles={"implementation": implementation},
    )
    steps = Columns(STEP_COLUMNS)
    if us is not None:
        columns = {name: np.full(30, np.nan) for name in STEP_COLUMNS}
        columns |= {
            "t_s": np.arange(30.0),
            "gpu_ms": np.full(30, us / 1e3),
            "phase": np.full(30, int(Phase.STEADY)),
            "block": np.zeros(30),
        }
        steps.append(columns)
    made = Segment(0, configuration, f"swiglu {case} {direction}: {implementation}", steps=steps)
    made.ledger = {**LEDGER, **ledger}
    return made


@pytest.fixture
def session():
    return Session(
        segments=[
            segment("triton", 10.0, kernel_us=9.0, host_us=14.0, host_outside_us=11.0),
            segment("torch", 25.0),
            segment("torch.compile", 12.5),
            segment("triton", 20.0, "backward"),
            segment("torch", 30.0, "backward"),
            segment("flash9", None, failure="Traceback\n  much\nwrong: output 0 is 3 too large"),
            segment("other", 5.0, case="9x9"),
        ]
    )


def rows(session):
    table = kernels_table(session)
    names = [column.name for column in table.columns]
    return [dict(zip(names, row, strict=True)) for row in table.rows]


def test_rates_and_shares_follow_from_time_and_work(session):
    first = rows(session)[0]
    assert first["median"].value == pytest.approx(10.0, rel=1e-5)
    assert first["in kernels"] == 9.0
    assert (first["host"], first["outside launches"]) == (14.0, 11.0)
    assert first["of the limit"] == pytest.approx(80.0, rel=1e-5)
    assert first["memory"] == pytest.approx(4.0, rel=1e-5)  # 40 kB in 10 us
    assert first["arithmetic"] == pytest.approx(0.2, rel=1e-5)
    assert first["error of allowed"] == 25.0


def test_speed_ups_are_over_the_same_case_and_direction(session):
    forward, _, _, backward, _, _, other = rows(session)
    assert forward["against PyTorch"] == pytest.approx(2.5, rel=1e-5)
    assert forward["against torch.compile"] == pytest.approx(1.25, rel=1e-5)
    assert backward["against PyTorch"] == pytest.approx(1.5, rel=1e-5)
    assert backward["against torch.compile"] is None
    assert other["against PyTorch"] is None


def test_what_could_not_be_timed_says_why_in_its_last_line(session):
    refused = rows(session)[5]
    assert refused["median"] is None and refused["note"] == "wrong: output 0 is 3 too large"


def test_what_takes_clearly_less_than_the_least_says_why_it_may(session):
    first, second, *_ = session.segments
    first.ledger["floor_us"], second.ledger["floor_us"] = 18.6, 26.0  # of 10 and 25 us
    beyond, *remaining = rows(session)
    assert beyond["of the limit"] == pytest.approx(186)
    assert beyond["note"].startswith("faster than the limit: its data are in a cache, or the")
    shares = [(row["of the limit"] or 0, "limit" in row["note"]) for row in remaining]
    assert all(has_note == (share > 110) for share, has_note in shares)
    assert (pytest.approx(104), False) in shares


def test_segments_of_models_are_no_rows_of_the_table(session):
    session.segments.append(Segment(9, Configuration(family="hydra", preset="tiny"), "hydra"))
    assert len(rows(session)) == 7


def test_no_ratio_is_told_of_another_operator_case_or_direction(session):
    table = segments_table(session)
    ratio, verdict = table.column("ratio"), table.column("verdict")
    cells = [(text(row[ratio]), text(row[verdict])) for row in table.rows]
    same = ["1", "2.50", "1.25"]  # of the same case and direction
    assert [ratio for ratio, _ in cells] == [*same, "–", "–", "–", "–"]
    different = ("other work", "different models")
    assert all(verdict in different for _, verdict in cells[3:5])
    assert not any(verdict in different for _, verdict in cells[:3])


def test_one_command_times_an_operator_again_with_all_its_contenders(session):
    script = command_lines.session_commands(session)
    calls = [line for line in script.splitlines() if line.startswith("workbench ")]
    assert calls == ["workbench bench swiglu --every-case --dtype bfloat16 -o again-0000.h5"]


def test_kernels_are_rated_against_what_their_work_could_reach(session):
    kernels = {
        (kernel.implementation, kernel.direction, kernel.case): kernel for kernel in rated(session)
    }
    assert len(kernels) == 6  # what was not timed is left out
    quick = kernels["triton", "forward", "3x5"]
    assert quick.intensity == pytest.approx(50)
    assert quick.achieved == pytest.approx(2e6 / 10e-6)
    assert quick.achieved / quick.attainable == pytest.approx(8 / 10)


def test_the_roof_is_the_lower_of_memory_and_arithmetic(session):
    assert roofs(session) == []  # of a session from before ceilings were kept
    for kernel in session.segments:
        kernel.ledger |= {"bytes_per_s": 4e12, "flops_per_s": 8e14}
    (roof,) = roofs(session)
    assert roof.dtype == "bfloat16"
    assert roof.at([50, 200, 1000]).tolist() == [2e14, 8e14, 8e14]


def test_8_bit_matrix_units_have_a_roof_of_their_own_beside_that_of_their_tensors(session):
    for kernel in session.segments:
        kernel.ledger |= {"bytes_per_s": 4e12, "flops_per_s": 8e14, "matrix_dtype": "bfloat16"}
    session.segments[-1].ledger |= {"flops_per_s": 1.6e15, "matrix_dtype": "float8"}
    assert {roof.dtype: roof.flops_per_s for roof in roofs(session)} == {
        "bfloat16": 8e14,
        "float8": 1.6e15,
    }


def in_rounds(implementation, us, rounds=16):
    """Return a kernel timed so often in each round, a little slower or faster each time."""
    made = segment(implementation, us)
    numbers = np.arange(30) % rounds + 1
    made.steps["block"][:] = numbers
    made.steps["gpu_ms"][:] *= 1 + 0.01 * np.sin(numbers * (1 + us))
    return made


def test_a_speed_up_of_shared_rounds_has_an_interval_and_one_without_rounds_none(session):
    first = rows(session)[0]
    assert first["PyTorch, from"] is None and first["PyTorch, to"] is None
    together = Session(segments=[in_rounds("triton", 10.0), in_rounds("torch", 25.0)])
    triton, torch = rows(together)
    ends = [triton[name].value for name in ("PyTorch, from", "against PyTorch", "PyTorch, to")]
    assert ends[0] < 2.5 < ends[2] and ends == sorted(ends) and ends[2] - ends[0] < 0.1
    assert (torch["against PyTorch"], torch["PyTorch, from"]) == (1.0, None), "against itself"
    assert triton["against torch.compile"] is None
    (ratio,) = speedups(together.segments[0], together).values()
    assert [ratio["low"], ratio["ratio"], ratio["high"]] == pytest.approx(ends)
    assert ratio["rounds"] == 16


def test_only_rounds_that_both_were_timed_in_make_a_pair():
    few, many = in_rounds("torch", 25.0, 5), in_rounds("triton", 10.0, 16)
    assert speedup(few, many).n == speedup(many, few).n == 5
    assert speedup(few, many).mean == pytest.approx(-speedup(many, few).mean)
    many.steps["phase"][:] = int(Phase.WARM_UP)
    ratio = speedup(few, many)
    assert ratio.n == 0 and np.isnan(ratio.mean), "there are no steady calls"


def test_a_kernel_that_failed_in_a_later_round_says_so_beside_its_times(session):
    session.segments[1].ledger["failure"] = "Traceback\n  much\nno more memory"
    row = rows(session)[1]
    assert row["median"].value == pytest.approx(25.0, rel=1e-5)
    assert row["note"] == "no more memory"
