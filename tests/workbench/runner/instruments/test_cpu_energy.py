"""The CPU's energy counter is summed over packages, and may wrap around."""

import pytest

from workbench.runner.instruments.cpu_energy import MISSING, UNREADABLE, CpuEnergy


def write(folder, package, energy_uj, range_uj=1_000_000_000):
    path = folder / f"intel-rapl:{package}"
    path.mkdir(exist_ok=True)
    (path / "energy_uj").write_text(f"{energy_uj}\n")
    (path / "max_energy_range_uj").write_text(f"{range_uj}\n")


def test_packages_are_summed_and_a_counter_may_wrap(tmp_path):
    write(tmp_path, 0, 999_000_000)
    write(tmp_path, 1, 5_000_000)
    counter = CpuEnergy(tmp_path)
    assert counter.read() == 0
    write(tmp_path, 0, 2_000_000)
    write(tmp_path, 1, 9_000_000)
    assert counter.read() == pytest.approx(3 + 4)


def test_without_a_counter_the_reason_is_given(tmp_path):
    counter = CpuEnergy(tmp_path)
    assert counter.read() is None and counter.why_not == MISSING
    write(tmp_path, 0, 1)
    counter = CpuEnergy(tmp_path)
    (tmp_path / "intel-rapl:0" / "energy_uj").unlink()
    assert counter.read() is None and counter.why_not == UNREADABLE
