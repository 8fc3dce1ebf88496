"""HYDRA model small enough for exact comparisons, and tokens for it."""

import dataclasses
import pathlib

import pytest
import torch
from hypothesis import settings

import kernels
from models import FAMILIES

settings.register_profile("models", deadline=None, max_examples=30)
settings.load_profile("models")

CONFIG = dataclasses.replace(
    FAMILIES["hydra"].presets["tiny"], dim=64, n_layers=3, n_heads=4, n_kv_heads=2, max_sequence=48
)


@pytest.fixture(autouse=True)
def implementations_by_rule():
    """Let ``auto`` follow the operators' rules: which one is the fastest depends on the machine."""
    with kernels.measuring(False):
        yield


@pytest.fixture
def family():
    return FAMILIES["hydra"]


@pytest.fixture
def config():
    return CONFIG


@pytest.fixture
def model(family, config):
    return family.materialise(config, seed=3)


@pytest.fixture
def tokens_BS():
    return torch.randint(0, 256, (2, 17), generator=torch.Generator().manual_seed(1))


@pytest.fixture
def targets_BS():
    return torch.randint(0, 256, (2, 17), generator=torch.Generator().manual_seed(2))


# Compiling, interpreting kernels and learning take most of the time of this folder. Every run still
# has the same checks for plain HYDRA (test_variants.py), and the kernels' own tests.
SLOW = ("interpret", "compile", "learns")
EVERY_RUN = ("test_checkpointing.py", "test_metrics.py", "test_variants.py")


def pytest_collection_modifyitems(items):
    for item in items:
        name = item.path.name
        if pathlib.Path(__file__).parent not in item.path.parents or name in EVERY_RUN:
            continue
        test_name = name + item.nodeid.partition("::")[2]
        if not name.endswith("_gpu.py") and any(word in test_name for word in SLOW):
            item.add_marker(pytest.mark.slow)
