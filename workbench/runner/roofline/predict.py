"""The roofline's estimates of configurations before they are measured, and of their operators."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from sessions.model import Ceilings, Configuration, Prediction
from sessions.studies import prediction
from sessions.studies.prediction import Least
from workbench.runner.config import user_model
from workbench.runner.config.resolve import require_unblocked, resolve
from workbench.runner.roofline.ceilings import Roof
from workbench.runner.roofline.counter import Call, NotCounted, Tally
from workbench.runner.toggles import Situation

# Options, other than the first, whose least time of a step is unknown, and why.
_UNKNOWN = {
    "compile": "what torch.compile fuses is known once it has compiled",
    **dict.fromkeys(
        ("tensor_parallel", "pipeline_parallel", "context_parallel", "expert_parallel"),
        "how long ranks wait for one another is known once they have run",
    ),
    "activation_offload": "it moves activations to the host, and the rate of that is not measured",
}
# Toggles whose effect the roofline cannot see: no prediction where the two differ in one.
_UNSEEN = {
    "data_parallel": "how long ranks wait for one another is known once they have run",
    "micro_batches": "how long stages wait for one another is known once they have run",
    "schedule": "how long stages wait for one another is known once they have run",
    "gradient_compression": "how long ranks wait for gradients is known once they have run",
    "sharding": "how long ranks wait for one another's shares is known once they have run",
    "cudnn_benchmark": "which algorithms cuDNN finds is known once it has searched",
    **dict.fromkeys(
        ("sdp_flash", "sdp_mem_efficient", "sdp_cudnn", "sdp_math"),
        "which kernel torch would choose instead is not known beforehand",
    ),
}


@dataclass(frozen=True)
class Row:
    """One operator of the library, or class of operators: a step's calls, work and least time."""

    name: str
    calls: int
    bytes: int
    flops: int
    us: float


class Predictor:
    """Counts each configuration once; one runner asks about few."""

    def __init__(self, roof: Roof) -> None:
        self._roof = roof
        self._known: dict[bytes, Tally | str] = {}
        self._idle: dict[bytes, float] = {}  # by ``profiled``

    def of(self, base: Configuration, other: Configuration) -> Prediction:
        """Return the prediction for two configurations; one that cannot run has none."""
        device = self._roof.device
        try:
            situations = [resolve(configuration, device) for configuration in (base, other)]
            for situation in situations:
                require_unblocked(situation)
        except ValueError as error:
            return prediction.none(str(error))
        a, b = situations
        if a.configuration == b.configuration:
            return Prediction(ratio=1.0, text="A and B are the same configuration")
        for name, why in _UNSEEN.items():
            if a.option(name) != b.option(name):
                return prediction.none(why)
        return prediction.predict(
            self.least(a), self.least(b), self._idle.get(_key(a.configuration), math.nan)
        )

    def profiled(self, situation: Situation, idle: float) -> None:
        """Remember in what share of a configuration's steps the GPU had nothing to do."""
        if situation.option("cuda_graphs") == "off":
            self._idle[_key(situation.configuration)] = idle

    def least(self, situation: Situation) -> Least:
        """Return the least time of a step."""
        tally = self._tally(situation)
        captured = situation.option("cuda_graphs") != "off"
        if isinstance(tally, str):
            return Least(None, tally, captured)
        if tally.unknown:
            return Least(None, tally.unknown, captured)
        try:
            us = sum(least_us(call, self._roof.ceilings) for call in tally.calls)
        except NotCounted as why:
            return Least(None, str(why), captured)
        return Least(us, captured=captured)

    def rows(self, situation: Situation) -> list[Row] | str:
        """Return what each operator of a step needs at least, or why that is unknown."""
        tally = self._tally(situation)
        if isinstance(tally, str):
            return tally
        try:
            return _rows(tally.least, self._roof.ceilings)
        except NotCounted as why:
            return str(why)

    @property
    def ceilings(self) -> Ceilings:
        """The measured ceilings of the device."""
        return self._roof.ceilings

    def _tally(self, situation: Situation) -> Tally | str:
        for name, why in _UNKNOWN.items():
            if situation.option(name) != "off":
                return why
        if situation.family is user_model.FAMILY:
            return "which operators a model of your own calls is not known before it runs"
        key = _key(situation.configuration)
        if key not in self._known:
            self._known[key] = _counted(situation)
        return self._known[key]


def least_us(call: Call, ceilings: Ceilings) -> float:
    """Return the least microseconds of one call; raises ``NotCounted``."""
    memory_us = 1e6 * call.bytes / ceilings.bytes_per_s
    if not call.flops:
        return memory_us
    rate = ceilings.flops_per_s.get(call.dtype)
    if rate is None:
        lacks = ceilings.lacking.get(call.dtype, "workbench ceilings --measure measures it")
        raise NotCounted(
            f"the matrix rate of {call.dtype} is not among the measured ceilings: {lacks}"
        )
    return max(memory_us, 1e6 * call.flops / rate)


def _counted(situation: Situation) -> Tally | str:
    from workbench.runner.roofline.fake_step import count

    try:
        return count(situation)
    except NotCounted as why:
        return str(why)
    except Exception as error:  # noqa: BLE001 - a prediction may fail in any way, and a run must not
        first = (str(error).strip().splitlines() or ["no message"])[0]
        return f"its step cannot be followed without running it ({type(error).__name__}: {first})"


def _rows(calls: Sequence[Call], ceilings: Ceilings) -> list[Row]:
    rows_by_name: dict[str, Row] = {}
    for call in calls:
        row = rows_by_name.get(call.name, Row(call.name, 0, 0, 0, 0.0))
        rows_by_name[call.name] = Row(
            call.name,
            row.calls + 1,
            row.bytes + call.bytes,
            row.flops + call.flops,
            row.us + least_us(call, ceilings),
        )
    return sorted(rows_by_name.values(), key=lambda row: -row.us)


def _key(configuration: Configuration) -> bytes:
    # What acts on the built step alone changes nothing of what was counted.
    toggles = {name: o for name, o in configuration.toggles.items() if name != "cuda_graphs"}
    return msgspec.json.encode(msgspec.structs.replace(configuration, toggles=toggles))
