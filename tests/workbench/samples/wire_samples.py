"""Messages of a well-behaved runner, made from a seed, and a comparison of sessions.

Run as a program it is such a runner, without torch: ``python wire_samples.py PERIOD_S [LOG]`` takes
Start, streams until it is killed or its reader is gone, and after every batch appends the time and
the number of steps sent so far to LOG.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from sessions.model import Configuration, Evidence, Judgement, Numerics, Phase, Session
from workbench import protocol

BATCH = 5
GIB = 2.0**30
LOAD = protocol.MetricInfo(
    name="load",
    title="Expert load",
    unit="tokens",
    help="Tokens of each expert.",
    row="block",
    column="expert",
)


def catalogue(created: float = 1.7e9) -> protocol.Catalogue:
    """Return a catalogue with one family that measures itself, and nothing to choose from."""
    return protocol.Catalogue(
        version=protocol.VERSION,
        created=created,
        device="cpu",
        device_title="none",
        environment={"torch": "0"},
        families=[
            protocol.FamilyInfo(
                name="hydra",
                title="HYDRA",
                help="",
                fields=[],
                presets={},
                parameters={},
                suggested={},
                workloads=[],
                default_preset="tiny",
                metrics=[LOAD],
            )
        ],
        workloads=[],
        toggles=[],
        operators={},
    )


def configuration(option: str = "off") -> Configuration:
    """Return a configuration with one toggle."""
    return Configuration(
        family="hydra", preset="tiny", settings={"batch": 2}, toggles={"compile": option}
    )


def stream(
    seed: int = 0, segments: int = 3, batches: int = 4, created: float = 1.7e9
) -> list[protocol.AnyMessage]:
    """All messages of one runner's life."""
    rng = np.random.default_rng(seed)
    sent: list[protocol.AnyMessage] = [
        catalogue(created),
        protocol.State(t_s=0.01, state="idle"),
        protocol.Described(t_s=0.02, title=f"Run {seed}", notes="a note"),
    ]
    now = 0.1
    for index in range(segments):
        sent += begin(now, index, f"option {index}")
        for batch in range(batches):
            sent.append(steps(rng, now, index, Phase.STEADY if batch else Phase.WARM_UP))
            now += BATCH * 0.01
            sent += [sampling(now), telemetry(rng, now), metrics(rng, now, index)]
        sent.append(protocol.Facts(t_s=now, segment=index, ledger={"loss": float(rng.random())}))
        evidence = [Evidence("compile", "default", "effective", "1 graph")]
        sent.append(protocol.EvidenceFound(t_s=now, segment=index, evidence=evidence))
        sent.append(protocol.Note(t_s=now, kind="note", text=f"after {index}"))
    sent += comparison(rng, now)
    sent += study(rng, now)
    sent.append(protocol.Failure(t_s=now, kind="model", sentence="It failed."))
    sent.append(protocol.Finished(t_s=now, reason="failed", steps=segments * batches * BATCH))
    return sent


def begin(now: float, index: int, option: str = "off") -> list[protocol.AnyMessage]:
    """Return the messages of a segment that begins and warms up."""
    return [
        protocol.SegmentStarted(
            t_s=now, index=index, configuration=configuration(option), label=option
        ),
        protocol.PhaseChanged(t_s=now, segment=index, phase=int(Phase.BUILD)),
        protocol.PhaseChanged(t_s=now + 0.001, segment=index, phase=int(Phase.WARM_UP)),
    ]


def steps(
    rng: np.random.Generator, now: float, segment: int, phase: Phase, step_s: float = 0.01
) -> protocol.Steps:
    """Return a batch of steps."""
    return protocol.Steps(
        t_s=now + BATCH * step_s,
        segment=segment,
        columns={
            "t_s": [now + step_s * index for index in range(BATCH)],
            "gpu_ms": [None] * BATCH,
            "wall_ms": (step_s * 1e3 * rng.normal(1, 0.01, BATCH)).tolist(),
            "allocated": [GIB] * BATCH,
            "phase": [int(phase)] * BATCH,
        },
    )


def comparison(
    rng: np.random.Generator, now: float, pairs: int = 9, segments: tuple[int, int] = (0, 1)
) -> list[protocol.AnyMessage]:
    """Return a comparison of the last two arms, to the verdict; the second block is void."""
    sent: list[protocol.AnyMessage] = [
        protocol.ComparisonStarted(
            t_s=now, index=0, arms=["off", "on"], segments=[*segments], request={"budget_s": 2.0}
        )
    ]
    for arm in (0, 1):
        numerics = Numerics(reference="float64", ok=arm == 0, text="as expected", mse=1e-9)
        sent.append(protocol.NumericsChecked(t_s=now, comparison=0, arm=arm, numerics=numerics))
    late = {"rebuilt_each_block": True, "rebuilt_because": "they do not fit"}
    sent.append(protocol.ComparisonFacts(t_s=now, comparison=0, facts={**late}))
    for pair in range(pairs):
        for arm, void in (
            (0, ""),
            *([(1, "a compile happened during the block")] if not pair else []),
            (1, ""),
        ):
            median = float(10 * rng.normal(1, 0.001) * (1, 0.9)[arm])
            block = protocol.Block(
                arm=arm, pair=pair, median_ms=median, clock_mhz=1980.0 if pair else None, void=void
            )
            sent.append(protocol.BlockDone(t_s=now, comparison=0, block=block))
        judgement = Judgement(
            verdict="FASTER" if pair == pairs - 1 else "UNDECIDED",
            pairs=pair + 1,
            ratio=0.9,
            low=0.9 - 0.1 / (pair + 1) if pair else None,
            high=0.9 + 0.1 / (pair + 1) if pair else None,
            reasons=["1 of 19 blocks was void"],
        )
        sent.append(
            protocol.Judged(
                t_s=now,
                comparison=0,
                judgement=judgement,
                seconds=0.1 * (pair + 1),
                final=pair == pairs - 1,
            )
        )
    return sent


def study(rng: np.random.Generator, now: float) -> list[protocol.AnyMessage]:
    """Return a study of three points that come one by one, the last of them without a number."""
    sent: list[protocol.AnyMessage] = [
        protocol.StudyStarted(
            t_s=now,
            index=0,
            kind="sweep",
            title="batch",
            request={"fields": ["settings.batch"], "arms": [""], "values_0": [1, 2, 4]},
        )
    ]
    for value in (1, 2, 4):
        columns = {
            "arm": [0.0],
            "x": [float(value)],
            "median_ms": [float(rng.random()) if value < 4 else None],
            "outcome": ["measured" if value < 4 else "out of memory"],
        }
        sent.append(protocol.StudyRows(t_s=now, study=0, table="points", columns=columns))
    sent.append(protocol.StudyFacts(t_s=now, study=0, facts={"exponent": 0.9}))
    return sent


def sampling(now: float) -> protocol.Sampling:
    """Return the sampling of the host."""
    how = {"busy": "every 0.05 s", "sm_active": "absent: a CPU has no such counter"}
    return protocol.Sampling(t_s=now, device="cpu", how=how)


def telemetry(rng: np.random.Generator, now: float) -> protocol.TelemetrySamples:
    """One sample of the host."""
    return protocol.TelemetrySamples(
        t_s=now, device="cpu", columns={"t_s": [now], "busy": [float(rng.random())]}
    )


def metrics(rng: np.random.Generator, now: float, segment: int) -> protocol.Metrics:
    """One reading of two metrics: one that the catalogue describes, one that it does not."""
    load: list[list[float | None]] = rng.random((2, 3)).tolist()
    load[1][2] = None
    return protocol.Metrics(
        t_s=now, segment=segment, values={"load": load, "rank": [[float(segment)]]}
    )


def assert_same(actual: Session, wanted: Session) -> None:
    """Compare everything but id and, for a recovery, the given title."""
    assert actual.created == wanted.created
    assert actual.notes == wanted.notes
    assert actual.environment == wanted.environment
    assert actual.events == wanted.events
    assert repr(actual.comparisons) == repr(wanted.comparisons)  # in which NaN equals NaN
    assert len(actual.studies) == len(wanted.studies)
    for own, other in zip(actual.studies, wanted.studies, strict=True):
        assert dataclasses.replace(own, tables={}) == dataclasses.replace(other, tables={})
        assert own.tables.keys() == other.tables.keys()
        for name, columns in own.tables.items():
            _assert_same_columns(columns, other.tables[name])
    assert len(actual.segments) == len(wanted.segments)
    for own, other in zip(actual.segments, wanted.segments, strict=True):
        for name in ("index", "configuration", "label", "start_s", "phases", "evidence", "ledger"):
            assert getattr(own, name) == getattr(other, name), name
        _assert_same_columns(own.steps, other.steps)
        assert own.metrics.keys() == other.metrics.keys()
        for name, series in own.metrics.items():
            wanted_series = other.metrics[name]
            assert dataclasses.replace(series, table={}) == dataclasses.replace(
                wanted_series, table={}
            )
            _assert_same_columns(series.table, wanted_series.table)
    assert actual.telemetry.keys() == wanted.telemetry.keys()
    for device, columns in actual.telemetry.items():
        _assert_same_columns(columns, wanted.telemetry[device])


def _assert_same_columns(actual, wanted) -> None:
    assert set(actual) == set(wanted)
    for name, values in actual.items():
        np.testing.assert_array_equal(values, wanted[name], err_msg=name)


def _commands() -> Iterator[protocol.AnyCommand]:
    for line in sys.stdin.buffer:
        yield protocol.decode_command(line)


def _main(period_s: float, log: Path | None) -> None:
    def send(*messages: protocol.AnyMessage) -> None:
        sys.stdout.buffer.write(b"".join(map(protocol.encode, messages)))
        sys.stdout.buffer.flush()

    began = time.time()
    send(catalogue(began), protocol.State(state="idle"))
    next(command for command in _commands() if isinstance(command, protocol.Start))
    rng = np.random.default_rng()
    send(*begin(time.time() - began, 0))
    count = 0
    while True:
        now = time.time() - began
        send(steps(rng, now, 0, Phase.STEADY, period_s / BATCH), telemetry(rng, now))
        count += BATCH
        if log is not None:
            with log.open("a") as file:
                file.write(f"{time.time()} {count}\n")
        time.sleep(period_s)


if __name__ == "__main__":
    _main(float(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None)
