"""Assignment of times to the two sides of a comparison with another library."""

import dataclasses
import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

SCRIPT = Path(__file__).parents[2] / "gpu" / "run_peers.py"
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def script():
    path = list(sys.path)
    sys.path.insert(0, str(SCRIPT.parent))
    spec = importlib.util.spec_from_file_location("run_peers", SCRIPT)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.path[:] = path
    return module


def sides(script, ours: int, peers: int, dtype):
    """Make the same linear map on either side, computed so many times."""
    layer = nn.Linear(128, 128, bias=False, dtype=dtype)
    nn.init.eye_(layer.weight)

    def side(times):
        def call(x):
            for _ in range(times - 1):
                layer(x)
            return layer(x)

        return script.Side(call, layer)

    return side(ours), side(peers)


@pytest.mark.parametrize(("ours", "peers"), [(1, 40), (40, 1)])
def test_the_side_that_computes_more_is_the_slower_one(script, ours, peers):
    case = dataclasses.replace(
        script.cases()[0], make=lambda *to: sides(script, ours, peers, to[2])
    )
    row = script.Row(case, "eager", script.PASSES[0], small=True)
    options = SimpleNamespace(small=True, budget=0.5)
    script.fill(row, script.prepared(case, options, CPU), options, CPU)
    assert row.failure == ""
    assert (row.ours_ms < row.peer_ms) == (ours < peers)
    assert (row.judgement.ratio < 1) == (ours < peers)
