"""Sessions to test with: a fixed one, arbitrary ones, and what it means for two to be the same."""

from __future__ import annotations

import itertools
import math

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sessions import schema
from sessions.model import (
    Configuration,
    Event,
    Evidence,
    MetricSeries,
    Order,
    PairedComparison,
    Phase,
    PhaseSpan,
    Segment,
    Session,
    Study,
)


def steps(
    n: int, seed: int = 0, median_ms: float = 10.0, phi: float = 0.0
) -> dict[str, np.ndarray]:
    """``n`` steady steps of a GPU, their times first-order autoregressive with ``phi``."""
    wall_ms = series(n, seed, median_ms, phi).astype("f4")
    return {
        "t_s": np.cumsum(wall_ms.astype("f8")) / 1e3,
        "gpu_ms": wall_ms - np.float32(0.1 * median_ms),
        "wall_ms": wall_ms,
        "allocated": np.full(n, 1.5e9),
        "reserved": np.full(n, 2.0e9),
        "peak": np.full(n, 1.9e9),
        "phase": np.full(n, Phase.STEADY, "u1"),
        "block": np.zeros(n, "i4"),
    }


def series(n: int, seed: int = 0, median: float = 10.0, phi: float = 0.0) -> np.ndarray:
    """Return a first-order autoregressive series about ``median``, of standard deviation 2 %."""
    noise = np.random.default_rng(seed).standard_normal(n + 200) * math.sqrt(1 - phi**2)
    correlated = list(itertools.accumulate(noise, lambda last, new: phi * last + new))
    return median * (1 + 0.02 * np.array(correlated[200:]))


def step_noise(rng: np.random.Generator, shape: int | tuple[int, ...]) -> np.ndarray:
    """Return noise of consecutive steps in the last dimension, of standard deviation 2 %.

    First-order autoregressive, with a coefficient of 0.8.
    """
    from scipy import signal  # slow to load, in every process that collects the tests

    innovations = rng.normal(size=shape)
    innovations[..., 0] /= 0.6
    return 0.02 * 0.6 * signal.lfilter([1.0], [1.0, -0.8], innovations, axis=-1)


def metric(samples: int, rows: int = 2, columns: int = 3) -> MetricSeries:
    """Return a metric of which one number was not measured."""
    values = np.random.default_rng(samples).random((samples, rows, columns)).astype("f4")
    values[:1, 0, 0] = math.nan
    return MetricSeries(
        title="Expert load",
        unit="tokens",
        help="Tokens of each expert.",
        row="block",
        column="expert",
        shape=(rows, columns),
        table={"t_s": np.arange(samples) / 4, "values": values},
    )


def session(n: int = 300, segments: int = 2, title: str = "sample") -> Session:
    """Return a session with something in each of its parts."""
    telemetry = {name: np.arange(5, dtype=info.dtype) for name, info in schema.TELEMETRY.items()}
    return Session(
        title=title,
        id="0123456789abcdef",
        created=1.75e9,
        notes="first line\nsecond line, µs and 中",
        environment={"gpu": "H200", "driver": "580.1", "torch": "2.11.0", "a/b": "."},
        segments=[
            Segment(
                index=index,
                configuration=Configuration(
                    family="hydra",
                    preset="tiny",
                    workload="train",
                    settings={"batch": 4 + index},
                    toggles={"compile": "max-autotune"},
                ),
                label=f"segment {index}",
                start_s=float(index),
                phases=[PhaseSpan(0, 0.0, 0.5), PhaseSpan(5, 0.5, 9.0)],
                evidence=[Evidence("compile", "max-autotune", "effective", "3 graphs")],
                ledger={"parameters": 10**6, "flops": math.nan, "list": [1, None, {"a": "b"}]},
                steps=steps(n, seed=index),
                breakdown={
                    "name": np.array(["gemm", "norm"], object),
                    "module": np.array(["mlp", ""], object),
                    "calls": np.array([3, 1]),
                    "gpu_us": np.array([100.0, 5.0]),
                    "share": np.array([0.95, 0.05]),
                },
                memory={name: np.ones(2) for name in schema.MEMORY},
                metrics={"load": metric(n // 10), "gate/µ": metric(2, rows=1, columns=1)},
            )
            for index in range(segments)
        ],
        telemetry={"gpu0": telemetry},
        events=[Event(0.5, "toggle", "compile: off to max-autotune"), Event(math.nan, "note", "")],
        comparisons=[
            PairedComparison(
                arms=["base", "compiled"],
                order=[0, 1, 1, 0],
                medians_ms=[10.0, 9.0, 9.1, 10.1],
                ratio=0.9,
                low=math.nan,
                high=math.nan,
                verdict="UNDECIDED",
                facts={"budget_s": 3.0},
                pairs=[0, 0, 1, 1],
                clocks_mhz=[1980.0, 1965.0, math.nan, 1980.0],
                voids=["", "", "recompiled", ""],
                means_ms=[2.5, 1.25, float("nan"), 1.5],
            )
        ],
        studies=[
            Study(
                kind="survey",
                title="batch 1 to 4",
                start_s=2.5,
                request={"values": [1, 4]},
                facts={"exponent": 0.9},
                tables={
                    "points": {
                        "value": np.array([1.0, 4.0]),
                        "outcome": np.array(["ran", "out of memory"], object),
                    }
                },
            )
        ],
    )


# What HDF5 can hold: any text but NUL and lone surrogates.
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
floats = st.floats(allow_nan=True, allow_infinity=True)
scalars = st.one_of(st.booleans(), st.integers(), floats, texts)
json_values = st.recursive(
    st.one_of(st.none(), scalars),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
configurations = st.builds(
    Configuration,
    family=texts,
    preset=texts,
    model=st.dictionaries(texts, scalars, max_size=3),
    workload=texts,
    settings=st.dictionaries(texts, scalars, max_size=3),
    toggles=st.dictionaries(texts, texts, max_size=3),
    seed=st.integers(),
    data=texts,
)


@st.composite
def tables(draw: st.DrawFn, columns: dict[str, schema.ColumnInfo]) -> dict[str, np.ndarray]:
    """Any values, NaN and infinity among them, in every column; at times none."""
    rows = draw(st.integers(0, 6))
    return {
        name: np.array(draw(st.lists(texts, min_size=rows, max_size=rows)), object)
        if info.dtype == "str"
        else draw(hnp.arrays(info.dtype, rows))
        for name, info in columns.items()
    }


@st.composite
def metrics(draw: st.DrawFn) -> MetricSeries:
    """Any matrices at any times; at times none."""
    count, *shape = draw(st.tuples(st.integers(0, 4), st.integers(1, 3), st.integers(1, 3)))
    return MetricSeries(
        *(draw(texts) for _ in range(5)),
        shape=tuple(shape),
        table={
            "t_s": draw(hnp.arrays("f8", count)),
            "values": draw(hnp.arrays("f4", (count, *shape))),
        },
    )


segments = st.builds(
    Segment,
    index=st.integers(0, 2**31),
    configuration=configurations,
    label=texts,
    start_s=floats,
    phases=st.lists(st.builds(PhaseSpan, st.integers(0, 255), floats, floats), max_size=3),
    evidence=st.lists(st.builds(Evidence, texts, texts, texts, texts), max_size=2),
    ledger=st.dictionaries(texts, json_values, max_size=3),
    steps=tables(schema.STEPS),
    breakdown=st.just({}) | tables(schema.BREAKDOWN),
    memory=st.just({}) | tables(schema.MEMORY),
    metrics=st.dictionaries(texts, metrics(), max_size=2),
)


@st.composite
def comparisons(draw: st.DrawFn) -> PairedComparison:
    """Return a paired comparison of any outcome."""
    order = draw(st.lists(st.integers(0, 3), max_size=4))
    medians = draw(st.lists(floats, min_size=len(order), max_size=len(order)))
    ratio, low, high = draw(floats), draw(floats), draw(floats)
    detailed = draw(st.booleans())
    size = len(order) if detailed else 0
    return PairedComparison(
        arms=draw(st.lists(texts, max_size=3)),
        order=order,
        medians_ms=medians,
        ratio=ratio,
        low=low,
        high=high,
        verdict=draw(texts),
        facts=draw(st.dictionaries(texts, json_values, max_size=2)),
        pairs=draw(st.lists(st.integers(0, 99), min_size=size, max_size=size)),
        clocks_mhz=draw(st.lists(floats, min_size=size, max_size=size)),
        voids=draw(st.lists(texts, min_size=size, max_size=size)),
        means_ms=draw(st.lists(floats, min_size=size, max_size=size)),
    )


@st.composite
def studies(draw: st.DrawFn) -> Study:
    """Return a study with any numbers and texts in its tables; at times none."""
    columns = {"value": schema.ColumnInfo("f8", "", ""), "text": schema.ColumnInfo("str", "", "")}
    return Study(
        kind=draw(texts),
        title=draw(texts),
        start_s=draw(floats),
        request=draw(st.dictionaries(texts, json_values, max_size=2)),
        facts=draw(st.dictionaries(texts, json_values, max_size=2)),
        tables=draw(st.dictionaries(st.sampled_from("abc"), tables(columns), max_size=2)),
    )


places = st.integers(0, 9)
orders = st.builds(
    Order,
    start_s=floats,
    command=st.dictionaries(texts, json_values, max_size=2),
    segments=places,
    comparisons=places,
    studies=places,
    claims=st.none() | places,
)
sessions = st.builds(
    Session,
    title=texts,
    id=texts,
    created=floats,
    notes=texts,
    environment=st.dictionaries(texts, texts, max_size=4),
    titles=st.dictionaries(texts, texts, max_size=2),
    segments=st.lists(segments, max_size=3),
    telemetry=st.dictionaries(texts, tables(schema.TELEMETRY), max_size=2),
    events=st.lists(st.builds(Event, floats, texts, texts), max_size=3),
    comparisons=st.lists(comparisons(), max_size=2),
    studies=st.lists(studies(), max_size=2),
    orders=st.lists(orders, max_size=2),
)


def content(saved: Session) -> object:
    """All of a session as plain values in which NaN equals NaN and -0.0 does not equal 0.0."""
    return _plain(vars(saved))


def _plain(value: object) -> object:
    match value:
        case np.ndarray():
            exact = value.tolist() if value.dtype == object else value.tobytes()
            return (str(value.dtype), exact)
        case Session() | Segment() | Event() | MetricSeries() | Study():
            return _plain(vars(value))
        case list() | tuple():
            return [_plain(item) for item in value]
        case float() | int() | str() | None:
            return f"{type(value).__name__} {value!r}"
        case _ if hasattr(value, "keys"):
            return {key: _plain(value[key]) for key in sorted(value)}
        case _:
            return {name: _plain(getattr(value, name)) for name in value.__struct_fields__}
