"""Another HDF5 program finds of every column of a study what it means, and in which unit."""

from __future__ import annotations

import dataclasses

import h5py
import numpy as np
import optimization_samples
import pytest
from complete_session import everything

from sessions.model import Session, Study
from sessions.storage import hdf5
from sessions.storage.study_schema import STUDIES, columns_of
from sessions.studies import claims, sweep
from sessions.studies.attribution import rows as attribution_rows
from sessions.studies.breakdown import ROLES

UNITS = {"_ms": "ms", "_us": "us", "_bytes": "bytes", "_mhz": "MHz"}


def test_every_column_of_a_saved_study_says_what_it_is(tmp_path):
    hdf5.save(everything(), tmp_path / "s.h5")
    seen: dict[str, str] = {}

    def visit(name, item):
        if "/tables/" in name and isinstance(item, h5py.Dataset):
            seen[name] = item.attrs["description"]

    with h5py.File(tmp_path / "s.h5") as file:
        file["studies"].visititems(visit)
        kinds = {study.attrs["kind"] for study in file["studies"].values()}
        (points,) = (
            study["tables/points"]
            for study in file["studies"].values()
            if "points" in study["tables"]
        )
        assert (points["median_ms"].attrs["units"], points["x"].attrs["units"]) == ("ms", "")
    assert kinds == set(STUDIES) and len(seen) > 60
    assert [name for name, text in seen.items() if "not one of" in text] == []


def test_what_is_described_is_what_studies_are_made_of():
    rows = {field.name for field in dataclasses.fields(claims.Row)}
    assert set(columns_of("claims", claims.TABLE)) == rows
    fits = sweep.fits({
        "x": [1.0, 2.0], "y": [1.0, 1.0], "arm": [0, 0], "outcome": ["measured"] * 2,
        "median_ms": [1.0, 2.0], "error": [0.1, 0.1],
    })  # fmt: skip
    assert set(columns_of("sweep", sweep.FITS)) == set(fits)
    assert set(columns_of("attribution", "arms")) == set(
        attribution_rows.arm_rows([], np.empty((0, 0)))
    )
    assert set(columns_of("attribution", "effects")) == set(attribution_rows.effect_rows([], []))
    for table, columns in optimization_samples.study().tables.items():
        assert set(columns_of("optimization", table)) == set(columns), table
    assert set(columns_of("profile", "memory")) == {"t_ms", "reserved", *ROLES}


@pytest.mark.parametrize("kind", STUDIES)
def test_a_unit_in_a_name_is_the_unit_of_the_column(kind):
    for table, columns in STUDIES[kind].items():
        for name, info in columns.items():
            assert info.text, (table, name)
            for suffix, unit in UNITS.items():
                if f"_{name}".endswith(suffix):
                    assert info.unit == unit, (table, name)


def test_a_column_of_another_version_is_kept_and_says_that_it_is_not_known(tmp_path):
    study = Study("sweep", "s", 0.0, tables={"points": {"x": [1.0], "later": [2.0]}})
    hdf5.save(Session(studies=[study]), tmp_path / "s.h5")
    with h5py.File(tmp_path / "s.h5") as file:
        points = file["studies/0000/tables/points"]
        assert (
            points["later"]
            .attrs["description"]
            .startswith("a column that this program does not know")
        )
        assert points["x"].attrs["description"] == "value of the first field that varied"
