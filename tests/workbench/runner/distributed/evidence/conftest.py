"""A small model that several ranks can divide in each way."""

from __future__ import annotations

import msgspec
import pytest

from sessions.model import Configuration


@pytest.fixture
def configuration(small) -> Configuration:
    model = {**small.model, "n_layers": 3}
    return msgspec.structs.replace(small, model=model, settings={"batch": 4, "sequence": 16})
