"""Titles of configurations."""

from sessions.model import OWN, Configuration, split_source


def test_a_configuration_is_called_by_family_preset_and_workload():
    assert Configuration(family="hydra", preset="base", workload="train").title == (
        "hydra base train"
    )


def test_a_model_from_a_file_is_called_by_the_file():
    source = {"source": "/models/of mine/tiny.v2.py:build"}
    mine = Configuration(family=OWN, preset="file", model=source, workload="forward")
    assert mine.title == "tiny.v2 forward"
    without_function = Configuration(family=OWN, preset="file", model={"source": "nets/tiny.py"})
    assert without_function.title == "tiny forward"
    assert Configuration(family=OWN, preset="file").title == "own file forward", "no file yet"


def test_a_colon_in_the_path_of_a_model_begins_no_function():
    path = "/of mine/10:30/tiny.py"
    for source in (path, f"{path}:build"):
        assert split_source(source) == (path, "build")
        mine = Configuration(family=OWN, preset="file", model={"source": source})
        assert mine.title == "tiny forward"
    assert split_source(f"{path}:larger") == (path, "larger")
