"""The energy of a step in a paired comparison: ratio, interval, sentence, column, file."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_side_by_side import CLEAR

from sessions.model import EnergyPairs, Session
from sessions.storage import hdf5
from sessions.verdicts.energy import FACT, energy_line, energy_of_pairs, judge_energy
from sessions.verdicts.verdict_tables import verdicts_table

JOULES = st.floats(1e-6, 1e6)


def with_energy(energy: EnergyPairs):
    return msgspec.structs.replace(CLEAR, facts={**CLEAR.facts, FACT: msgspec.to_builtins(energy)})


MEASURED = judge_energy([[2.0, 1.5], [2.02, 1.52], [1.98, 1.5], [2.0, 1.49], [2.01, 1.5]] * 2)


@given(st.lists(st.tuples(JOULES, JOULES), min_size=1, max_size=20))
def test_the_ratio_is_the_geometric_mean_and_lies_in_its_interval(pairs):
    energy = judge_energy(pairs)
    logs = [math.log(b / a) for a, b in pairs]
    assert math.isclose(math.log(energy.ratio), sum(logs) / len(logs), abs_tol=1e-9)
    assert (energy.low is None) == (energy.high is None)
    if energy.low is not None:
        assert energy.low <= energy.ratio * (1 + 1e-12) and energy.ratio <= energy.high * (
            1 + 1e-12
        )


def test_the_sentence_says_ratio_interval_and_joules():
    assert energy_line(with_energy(MEASURED)) == (
        "Energy of a step: B needs 0.750 of A's (95 % interval 0.747 to 0.754, "
        "10 pairs of one build): 1.50 J and 2.00 J."
    )
    none = with_energy(EnergyPairs(why_not="the CPU has no counter"))
    assert energy_line(none) == "Energy was not measured: the CPU has no counter."
    assert energy_line(CLEAR) == ""


def test_the_sentence_has_the_digits_that_show_on_which_side_of_1_the_interval_lies():
    pairs = [[2.0, 2.0 * ratio] for ratio in (1.0021, 1.0025, 1.0023, 1.002, 1.0026)] * 2
    assert "B needs 1.00230 of A's (95 % interval 1.00213 to 1.00247" in energy_line(
        with_energy(judge_energy(pairs))
    )


def test_the_table_has_the_column_if_some_verdict_has_the_ratio():
    rows = verdicts_table([CLEAR, with_energy(MEASURED)])
    names = [column.name for column in rows.columns]
    assert names[-3:] == ["energy ratio", "energy from", "energy to"]
    assert rows.rows[0][-2:] == [None, None]
    assert rows.rows[1][-3].value == pytest.approx(MEASURED.ratio)
    unmeasured = with_energy(EnergyPairs(why_not="no counter"))
    assert "energy ratio" not in [column.name for column in verdicts_table([unmeasured]).columns]


def test_a_file_keeps_the_pairs(tmp_path):
    session = Session(title="energy", created=0.0)
    session.comparisons.append(with_energy(MEASURED))
    path = tmp_path / "energy.h5"
    hdf5.save(session, path)
    (loaded,) = hdf5.load(path).comparisons
    assert energy_of_pairs(loaded) == MEASURED
