"""Energy is read off the counter over long steady stretches, and nothing is guessed."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessions.columns import Columns
from sessions.energy import CO2_VARIABLE, PRICE_VARIABLE, energy_of, energy_table
from sessions.exports import EXPORTS
from sessions.model import (
    ABSENT,
    SAMPLING,
    STEP_COLUMNS,
    TELEMETRY_COLUMNS,
    Configuration,
    Phase,
    Segment,
    Session,
)


def session_of(seconds, step_s=0.1, watts=300.0, break_at=None, every_s=1.0):
    count = round(seconds / step_s)
    phases = [Phase.STEADY] * count
    if break_at is not None:
        phases[round(break_at / step_s)] = Phase.COMPILE
    steps, telemetry = Columns(STEP_COLUMNS), Columns(TELEMETRY_COLUMNS)
    steps.append({"t_s": 5 + step_s * np.arange(count), "wall_ms": [1000 * step_s] * count,
                  "phase": phases})  # fmt: skip
    times = np.arange(0.0, seconds + 10, every_s / 2)
    energy = np.where(np.arange(len(times)) % 2, math.nan, 1e6 + watts * times)
    telemetry.append({"t_s": times, "energy_j": energy})
    configuration = Configuration(family="hydra", preset="tiny")
    ledger = {"tokens_per_step": 600}
    segment = Segment(0, configuration, "", ledger=ledger, steps=steps)
    return Session(segments=[segment], telemetry={"gpu0": telemetry})


@given(st.floats(10, 60), st.floats(0.01, 0.5), st.floats(1, 1000))
def test_a_step_takes_the_power_times_its_time(seconds, step_s, watts):
    session = session_of(seconds, step_s, watts)
    energy = energy_of(session, session.segments[0])
    assert energy.joules_per_step == pytest.approx(watts * step_s, rel=1e-6)
    assert energy.tokens_per_joule == pytest.approx(600 / (watts * step_s), rel=1e-6)


def test_a_step_that_devices_share_takes_the_energy_of_all_of_them():
    session, further = session_of(20, watts=300.0), session_of(20, watts=100.0)
    session.telemetry["gpu1"] = further.telemetry["gpu0"]
    session.telemetry["gpu2"] = further.telemetry["gpu0"]  # of ranks that wait for another arm
    (segment,) = session.segments
    assert energy_of(session, segment).joules_per_step == pytest.approx(30.0)
    segment.ledger["devices"] = 2
    energy = energy_of(session, segment)
    assert energy.joules_per_step == pytest.approx(40.0)
    assert energy.tokens_per_joule == pytest.approx(600 / 40)
    segment.ledger["devices"] = 4
    energy = energy_of(session, segment)
    assert math.isnan(energy.joules_per_step) and "only 3 of 4" in energy.why_not


@pytest.mark.parametrize("session", [session_of(4), session_of(9, break_at=4.5)])
def test_short_stretches_do_not_count(session):
    energy = energy_of(session, session.segments[0])
    assert (
        math.isnan(energy.joules_per_step) and "5 s of uninterrupted steady steps" in energy.why_not
    )


def test_without_a_counter_the_reason_is_the_samplers():
    session = session_of(10)
    session.telemetry = {}
    assert "no energy counter" in energy_of(session, session.segments[0]).why_not
    session.environment[f"{SAMPLING}energy_j"] = f"{ABSENT}not readable"
    assert energy_of(session, session.segments[0]).why_not == "not readable"


def test_cost_and_emissions_follow_the_settings():
    session = session_of(20, step_s=0.1, watts=360.0)  # 36 J a step, 10 kWh for a million
    settings = {PRICE_VARIABLE: "0.3", CO2_VARIABLE: "400"}
    (row,) = energy_table(session, settings).rows
    assert row[4] == pytest.approx(3.0) and row[5] == pytest.approx(4.0)
    for wrong in ({}, {PRICE_VARIABLE: "much"}, {PRICE_VARIABLE: "-1", CO2_VARIABLE: "1"}):
        (row,) = energy_table(session, wrong).rows
        assert row[4] is None
    assert EXPORTS["energy"].tables(session)[0].title == "Energy"
