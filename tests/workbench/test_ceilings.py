"""A device's ceilings, kept by device, driver and torch; a damaged file is passed over aloud."""

from __future__ import annotations

import json

import msgspec
import pytest

from sessions.ceilings import age, describe, lacking
from sessions.model import Ceilings
from workbench import ceilings, protocol
from workbench.client.recorder import Recorder

FOUND = Ceilings(
    device="H200", driver="570.1", torch="2.11.0", created=1_763_680_000.0,
    bytes_per_s=4.242e12, flops_per_s={"bfloat16": 6.9e14, "float32": 5e13},
)  # fmt: skip


def test_what_was_measured_is_known_again_for_the_same_device_driver_and_torch():
    ceilings.store(FOUND)
    assert ceilings.load("H200", "570.1", "2.11.0") == (FOUND, "")


@pytest.mark.parametrize("other", [("H100", "570.1", "2.11.0"), ("H200", "580", "2.11.0"),
                                   ("H200", "570.1", "2.12.0")])  # fmt: skip
def test_another_device_driver_or_torch_has_to_be_measured(other):
    ceilings.store(FOUND)
    assert ceilings.load(*other) == (None, "")


def test_a_later_measurement_replaces_the_earlier_and_leaves_other_devices_alone():
    other = msgspec.structs.replace(FOUND, device="H100")
    for measured in (FOUND, other, msgspec.structs.replace(FOUND, bytes_per_s=5e12)):
        ceilings.store(measured)
    assert ceilings.load("H200", "570.1", "2.11.0")[0].bytes_per_s == 5e12
    assert ceilings.load("H100", "570.1", "2.11.0")[0] == other


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff\xfe", b"[]", b'{"H200 | 570.1 | 2.11.0": 1}']
)
def test_a_damaged_file_is_passed_over_with_a_reason(content):
    ceilings.store(FOUND)
    ceilings.path().write_bytes(content)
    stored, why = ceilings.load("H200", "570.1", "2.11.0")
    assert stored is None and "is damaged" in why and str(ceilings.path()) in why


@pytest.mark.parametrize("rate", [0.0, -1.0])
def test_rates_that_cannot_be_are_passed_over_with_a_reason(rate):
    ceilings.store(msgspec.structs.replace(FOUND, flops_per_s={"bfloat16": rate}))
    stored, why = ceilings.load("H200", "570.1", "2.11.0")
    assert stored is None and "not positive" in why


def test_the_description_names_rates_device_and_date_and_the_age_how_old_they_are():
    assert "4240 GB/s" in describe(FOUND) and "bfloat16 690 TFLOP/s" in describe(FOUND)
    assert "H200 (torch 2.11.0, driver 570.1)" in describe(FOUND)
    assert age(FOUND, FOUND.created + 7200) == "2 h ago"
    assert age(FOUND, FOUND.created + 10 * 86400) == "10 days ago"
    assert "clock" in age(FOUND, FOUND.created - 5)


def test_what_was_kept_before_8_bit_rates_were_measured_is_still_known():
    ceilings.store(FOUND)
    rows = json.loads(ceilings.path().read_bytes())
    for row in rows.values():
        del row["lacking"]
    ceilings.path().write_text(json.dumps(rows))
    assert ceilings.load("H200", "570.1", "2.11.0") == (FOUND, "")
    assert lacking(FOUND) == []


def test_8_bit_rates_have_their_units_and_those_that_are_not_there_a_reason():
    why = {"float8": "torch's FP8 product needs compute capability 8.9, not 8.0"}
    rates = {"bfloat16": 3e14, "int8": 6e14}
    measured = msgspec.structs.replace(FOUND, flops_per_s=rates, lacking=why)
    ceilings.store(measured)
    assert ceilings.load("H200", "570.1", "2.11.0") == (measured, "")
    assert "bfloat16 300 TFLOP/s, int8 600 TOP/s" in describe(measured)
    assert lacking(measured) == [f"No float8 rate: {why['float8']}."]


@pytest.mark.parametrize("source, expected", [("kept", "stored by an earlier run"),
                                          ("measured", "measured in this run")])  # fmt: skip
def test_a_session_keeps_the_ceilings_that_it_used_and_where_they_came_from(source, expected):
    recorder = Recorder()
    recorder.record(protocol.CeilingsFound(ceilings=FOUND, source=source))
    assert recorder.session.environment["ceilings"] == f"{describe(FOUND)} ({expected})"
