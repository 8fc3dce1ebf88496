"""Claims of a session: what is kept of them, which row counts, and what a reader sees."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from sessions.model import Session, Study
from sessions.storage import hdf5
from sessions.studies import claims
from sessions.studies.claims import FAILS, HOLDS, MEASURING, NOT_MEASURED, WAITING, Row


def row(claim="fast", result=HOLDS, **fields) -> Row:
    named = {
        "document": "moe",
        "experiment": "ladder",
        "row": "E11",
        "says": "1.5x",
        "unit": "x as fast as eager",
    }
    return Row(claim=claim, result=result, **named | fields)


def study(*rows: Row, **facts) -> Study:
    columns = {
        name: np.array(values, object if isinstance(values[0], str) else np.float64)
        for name, values in claims.columns(rows).items()
    }
    return Study(claims.KIND, "claims", 0.0, {}, facts, {claims.TABLE: columns})


def test_rows_come_back_from_a_file_as_they_were(tmp_path):
    written = [
        row(measured=1.43, low=1.41, high=1.45, least=1.45, result=FAILS, reason="| of\n2"),
        row("small", NOT_MEASURED, most=0.5, reason="compiling took 90 s"),
        row("infinite", WAITING, least=-math.inf),
    ]
    hdf5.save(Session(studies=[study(*written)]), tmp_path / "a.h5")
    (loaded,) = claims.studies(hdf5.load(tmp_path / "a.h5"))
    for read, other in zip(claims.rows(loaded), written, strict=True):
        for name, value in dataclasses.asdict(other).items():
            now = getattr(read, name)
            lost = isinstance(value, float) and not math.isfinite(value)
            assert math.isnan(now) if lost else now == value, name


def test_the_newest_result_counts_and_one_that_was_cut_short_takes_nothing_away():
    early = study(row(measured=1.6), row("other"), final=True)
    late = study(row(result=FAILS, measured=1.2), row("other", MEASURING), row("third", WAITING))
    session = Session(studies=[early, late])
    now = {claim.claim: claim.result for claim in claims.newest(session).values()}
    assert now == {"fast": FAILS, "other": HOLDS, "third": NOT_MEASURED}
    live = {claim.claim: claim.result for claim in claims.newest(session, running=True).values()}
    assert live == {"fast": FAILS, "other": MEASURING, "third": WAITING}


def test_a_number_of_a_run_that_was_killed_is_no_result():
    session = Session(studies=[study(row(result=MEASURING, measured=1.6, low=1.5, high=1.7))])
    (claim,) = claims.newest(session).values()
    assert claim.result == NOT_MEASURED and claims.measured_text(claim) == ""
    assert "the run ended" in claim.reason


def test_a_measured_number_is_told_with_its_interval_and_unit():
    assert claims.measured_text(row(measured=1.2312, low=1.187, high=1.301)) == (
        "1.23x (1.19 to 1.30) as fast as eager"
    )
    exact = row(measured=0.599, unit="memory of the baseline")
    assert claims.measured_text(exact) == "0.599 memory of the baseline"
    assert claims.measured_text(row()) == ""


def test_the_tables_tell_all_and_the_short_one_what_a_page_needs():
    rows = [
        row(measured=1.43, low=1.41, high=1.45, result=FAILS),
        row("b", NOT_MEASURED, reason="r"),
    ]
    short = claims.summary_table(rows, "T").to_markdown().splitlines()
    assert short[2] == "| claim | document | measured (interval) | verdict |"
    assert (
        short[4] == "| moe: fast | 1.5x | 1.43x (1.41 to 1.45) as fast as eager | does not hold |"
    )
    assert short[5] == "| moe: b | 1.5x | – | not measured: r |"
    lines = claims.claims_table(rows, "T").to_csv().splitlines()
    assert lines[1] == "moe,E11 fast,1.5x,1.43,1.41,1.45,x as fast as eager,does not hold,ladder,"
    assert claims.count(rows) == "2 claims: 1 does not hold, 1 not measured"


def test_a_count_is_shown_to_its_last_digit():
    assert claims.measured_text(row(measured=8192.0, unit="tokens")) == "8,192 tokens"
    assert claims.measured_text(row(measured=24.0, unit="x fewer")) == "24.0x fewer"


def test_a_factor_below_1_is_never_called_faster_not_even_in_an_older_file():
    written = study(row(measured=0.412, low=0.4, high=0.42, unit="x faster than eager"))
    (read,) = claims.rows(written)
    assert claims.measured_text(read) == "0.412x (0.400 to 0.420) as fast as eager"
    assert read.key == row().key, "the same claim in a newer file"
