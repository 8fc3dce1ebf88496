"""Names of two configurations in a comparison."""

import torch

from sessions.model import OWN, Configuration
from workbench.runner.building.labels import title
from workbench.runner.toggles import all_toggles


def test_two_files_of_one_folder_have_two_names():
    """Only the beginnings of the paths were shown, which are equal."""
    cpu = torch.device("cpu")
    toggles = {name: toggle.default_option(cpu) for name, toggle in all_toggles().items()}
    first, second = (
        Configuration(
            family=OWN,
            preset="file",
            model={"source": f"/home/somebody/my/models/{name}.py:build"},
            toggles=toggles,
        )
        for name in ("first", "second")
    )
    assert title(first, second, cpu) == "source my/models/first.py:build: defaults"
    assert title(second, first, cpu) == "source y/models/second.py:build: defaults"
