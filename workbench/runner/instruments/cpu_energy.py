"""Energy counter of the CPU's packages (RAPL), where the system lets a user read it."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path("/sys/class/powercap")
UNREADABLE = "the CPU's counter of energy (RAPL) cannot be read by this user"
MISSING = "this system has no counter of the CPU's energy (RAPL)"


class CpuEnergy:
    """Sum of the packages' counters since the first reading; each counter may wrap around."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._packages = sorted(folder.glob("intel-rapl:[0-9]"))
        self._before: dict[Path, int] = {}
        self._joules = 0.0
        self.why_not = "" if self._packages else MISSING

    def read(self) -> float | None:
        """Return joules since the first reading; None if a counter cannot be read."""
        if not self._packages:
            return None
        for package in self._packages:
            try:
                reading_uj = int((package / "energy_uj").read_text())
                range_uj = int((package / "max_energy_range_uj").read_text())
            except (OSError, ValueError):
                self.why_not = UNREADABLE
                return None
            spent_uj = reading_uj - self._before.get(package, reading_uj)
            self._joules += 1e-6 * (spent_uj if spent_uj >= 0 else spent_uj + range_uj)
            self._before[package] = reading_uj
        self.why_not = ""
        return self._joules
