"""Studies with numbers that no measurement gives: each plot is drawn, or omitted with a reason.

Files of unknown origin with such numbers are refused when they are opened. Sessions of older
versions, of other programs' Python code, and numbers within the limits of a file come further.
"""

from __future__ import annotations

import copy
import math
import warnings

import attribution_samples
import complete_session
import numpy as np
import optimization_samples
import profile_samples
import pytest
import scaling_samples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from synthetic import sweep_study

from sessions.exports import exportable
from sessions.model import Session, Study
from workbench import plot_export
from workbench.plots import PLOTS, Run
from workbench.report import _page

NUMBERS = (math.inf, -math.inf, math.nan, 0.0, -1.0, 1e30, -1e30, 1e308, 1e-300, 2.0**63, 0.5)
STUDIES = (
    scaling_samples.study(),
    scaling_samples.study("weak", wrong=True),
    attribution_samples.study(),
    optimization_samples.study(),
    sweep_study(),
    sweep_study(two=True),
    profile_samples.study(),
    profile_samples.rich_study(blocks=1),
    complete_session.checked(),
)


def columns(study: Study) -> list[tuple[str, str]]:
    """Return table and name of each column of numbers."""
    return [
        (table, name)
        for table, values_by_name in study.tables.items()
        for name, values in values_by_name.items()
        if np.asarray(values).dtype.kind in "fiu"
    ]


def changed(study: Study, table: str, name: str, number: float, rows: slice) -> Study:
    """Return a copy in which rows of a column hold the number."""
    study = copy.deepcopy(study)
    values_by_name = {key: np.array(values) for key, values in study.tables[table].items()}
    values_by_name[name] = values_by_name[name].astype(np.float64)
    values_by_name[name][rows] = number
    study.tables[table] = values_by_name
    return study


def without_rows(study: Study, table: str) -> Study:
    """Return a copy in which a table has no rows."""
    study = copy.deepcopy(study)
    study.tables[table] = {
        name: np.asarray(values)[:0] for name, values in study.tables[table].items()
    }
    return study


def use(study: Study) -> dict[str, str]:
    """Draw and write all that can be made of a study; return the reasons of omitted plots."""
    session = Session(title="hostile", studies=[study])
    runs = [Run(session)]
    reasons = {}
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # numpy's: of overflows, which a user would see
        for plot in PLOTS.values():
            if (reason := plot.can_show(runs)) is not None:
                reasons[plot.name] = reason
                continue
            plot.choices(runs)
            plot_export.csv_bytes(plot.table(runs))
            plot_export.plot_svg(plot, runs)
        for tables in exportable(session).values():
            for table in tables:
                table.to_csv()
                table.to_markdown()
        _page.page(runs)
    assert all(reason.endswith(".") for reason in reasons.values()), reasons
    return reasons


@pytest.fixture(autouse=True, scope="module")
def application():
    plot_export.ensure_application()


@st.composite
def hostile(draw):
    study = draw(st.sampled_from([study for study in STUDIES if columns(study)]))
    for _ in range(draw(st.integers(1, 3))):
        table, name = draw(st.sampled_from(columns(study)))
        rows = draw(st.sampled_from([slice(None), slice(0, 1), slice(-1, None)]))
        study = changed(study, table, name, draw(st.sampled_from(NUMBERS)), rows)
    return study


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(hostile())
def test_a_study_with_hostile_numbers_is_drawn_or_omitted_with_a_reason(study):
    use(study)


@pytest.mark.sample(4)
@pytest.mark.parametrize("index", range(len(STUDIES)))
def test_a_study_with_a_table_without_rows_is_drawn_or_omitted_with_a_reason(index):
    for table in STUDIES[index].tables:
        use(without_rows(STUDIES[index], table))


# Numbers that once ended a plot, a table or a report.
ENDED = [
    (scaling_samples.study, "efficiencies", "count", math.inf, "scaling"),
    (scaling_samples.study, "efficiencies", "count", math.nan, "scaling"),
    (scaling_samples.study, "efficiencies", "count", 0.0, "scaling"),
    (scaling_samples.study, "efficiencies", "efficiency", 1e308, "scaling"),
    (scaling_samples.study, "ranks", "rank", math.inf, "rank_lanes"),
    (scaling_samples.study, "ranks", "rank", math.nan, "rank_lanes"),
    (scaling_samples.study, "ranks", "waiting_ms", math.inf, "rank_lanes"),
    (scaling_samples.study, "ranks", "computing_ms", 1e308, "rank_lanes"),
    (profile_samples.rich_study, "memory", "t_ms", 1e308, "memory_course"),
    (profile_samples.rich_study, "memory", "gradients", math.inf, "memory_course"),
    (profile_samples.rich_study, "kernels", "us", math.inf, "breakdown"),
    (profile_samples.rich_study, "timeline", "track", math.inf, "kernel_timeline"),
]


@pytest.mark.sample(5)
@pytest.mark.parametrize(("make", "table", "name", "number", "plot"), ENDED)
def test_a_plot_of_impossible_numbers_is_omitted_with_a_reason(make, table, name, number, plot):
    assert plot not in use(make())
    assert plot in use(changed(make(), table, name, number, slice(None)))


def test_rows_without_a_possible_number_of_ranks_are_left_out_and_counted():
    study = changed(scaling_samples.study(), "efficiencies", "count", math.inf, slice(1, 2))
    session = Session(studies=[study])
    (table,) = exportable(session)["scaling"]
    assert len(table.rows) == len(study.tables["efficiencies"]["count"]) - 1
    assert "Left out: 1 row without a possible number of ranks." in table.notes
    assert math.isfinite(max(plot_export.PLOTS["scaling"].table([Run(session)])["ranks"]))


def test_numbers_without_memory_rows_leave_the_rest_of_a_profile():
    reasons = use(without_rows(profile_samples.rich_study(blocks=1), "memory"))
    assert reasons["memory_course"] == "The profile of this session has no memory data."
    assert "breakdown" not in reasons
