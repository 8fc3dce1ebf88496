"""Sessions that look like real ones, made from a seed: for tests of plots, and to look at."""

from __future__ import annotations

import attribution_samples
import numpy as np
import optimization_samples
from numpy.typing import NDArray

from sessions.columns import Columns
from sessions.model import (
    KERNELS,
    STEP_COLUMNS,
    TELEMETRY_COLUMNS,
    Configuration,
    Event,
    MetricSeries,
    PairedComparison,
    Phase,
    PhaseSpan,
    Segment,
    Session,
    Study,
)
from sessions.studies import sweep
from sessions.verdicts import verdict

GIB = 2.0**30

# toggle, its text on the timeline, factor on the step time, factor on the memory, compile seconds
LADDER = (
    ("", "baseline", 1.0, 1.0, 0.0),
    ("precision", "precision: AMP BF16", 0.62, 0.71, 0.0),
    ("compile", "torch.compile: default", 0.45, 0.66, 9.0),
    ("kernels", "Triton RMSNorm, SwiGLU, RoPE", 0.43, 0.6, 3.0),
    ("checkpoint", "gradient checkpointing: on", 0.55, 0.32, 2.0),
    ("graphs", "CUDA graphs: on", 0.38, 0.62, 1.5),
    ("attention", "attention: flash", 0.35, 0.58, 0.6),
    ("compile", "torch.compile: max-autotune", 0.31, 0.6, 20.0),
)


def step_times(rng: np.random.Generator, count: int, typical_ms: float) -> NDArray:
    """Correlated noise, a slow drift, now and then a slow step."""
    noise = np.empty(count)
    value = 0.0
    for index, shock in enumerate(rng.normal(0, 0.008, min(count, 4096))):
        value = 0.8 * value + shock
        noise[index] = value
    if count > 4096:
        noise[4096:] = np.resize(noise[:4096], count - 4096)
    times = typical_ms * (1 + noise + 0.004 * np.sin(np.arange(count) / 300.0))
    slow = rng.random(count) < 0.004
    times[slow] *= 1 + rng.exponential(0.5, int(slow.sum()))
    return times


def gpu_session(
    segments: int = 4,
    steps: int = 400,
    seed: int = 0,
    title: str = "HYDRA 100M on an H200",
    typical_ms: float = 24.0,
    labels: tuple[str, ...] = (),
) -> Session:
    """Return a session of a GPU: phases, allocator's numbers, telemetry with GPM, markers."""
    rng = np.random.default_rng(seed)
    session = Session(title=title, created=1.7e9 + seed)
    session.environment = {"gpu": "NVIDIA H200", "driver": "580.95", "torch": "2.11.0+cu130"}
    now = 0.4
    for index in range(segments):
        _, text, speed, memory, compile_s = LADDER[index % len(LADDER)]
        label = labels[index] if index < len(labels) else text
        segment = _segment(index, label, now)
        if index:
            session.events.append(Event(now, "toggle", label))
        now = _phase(segment, Phase.BUILD if not index else Phase.COMPILE, now, 0.5 + compile_s)
        if compile_s > 10:
            now = _phase(segment, Phase.AUTOTUNE, now, compile_s / 2)
        count = max(1, steps)
        times = step_times(rng, count, typical_ms * speed)
        phase = np.full(count, Phase.STEADY, np.uint8)
        warm = min(8, count)
        phase[:warm] = Phase.WARM_UP
        times[:warm] *= np.linspace(6, 1.2, warm)
        base = (18 + 40 * memory) * GIB
        starts = now + np.concatenate([[0.0], np.cumsum(times[:-1])]) / 1e3
        segment.steps.append(  # type: ignore[attr-defined]
            {
                "t_s": starts,
                "gpu_ms": times,
                "wall_ms": times + 0.05,
                "allocated": base * (0.55 + 0.02 * rng.random(count)),
                "reserved": np.full(count, base * 1.15),
                "peak": np.full(count, base),
                "phase": phase,
            }
        )
        now = _phase(segment, Phase.WARM_UP, now, float(times[:warm].sum()) / 1e3)
        now = _phase(segment, Phase.STEADY, now, float(times[warm:].sum()) / 1e3)
        segment.ledger = {"tokens_per_step": 16384, "parameters": 100_000_000}
        session.segments.append(segment)
    session.telemetry["gpu0"] = gpu_telemetry(rng, now, session.segments)
    add_metrics(session, rng)
    if segments > 2:
        session.events.append(Event(now * 0.8, "note", "fan at 100 % from here on"))
        session.comparisons.append(comparison(seed))
        session.studies.append(attribution_samples.study())
        session.studies.append(optimization_samples.study())
    return session


def add_metrics(session: Session, rng: np.random.Generator) -> None:
    """Four readings a second of an expert's share of the tokens, and of one gate a block."""
    for segment in session.segments:
        t_s = segment.steps["t_s"]
        times = np.arange(t_s[0], t_s[-1] + 0.2, 0.25)
        drift = np.cumsum(rng.normal(0, 0.05, (len(times), 6, 8)), axis=0)
        load = np.exp(drift + rng.normal(0, 0.4, (6, 8)))
        load /= load.sum(2, keepdims=True)
        gate = 0.5 + 0.1 * np.cumsum(rng.normal(0, 0.1, (len(times), 3, 1)), axis=0)
        for name, title, column, values in (
            ("load", "Routing load", "expert", load),
            ("gate", "Gate to attention", "", gate),
        ):
            shape = values.shape[1:]
            table = Columns({"t_s": "f8", "values": f"{shape}f4"})
            table.append({"t_s": times, "values": values})
            segment.metrics[name] = MetricSeries(
                title, "", f"What {title} is.", "block", column, shape, table
            )


def comparison(seed: int, pairs: int = 20) -> PairedComparison:
    """Return the first two arms alternated, the second 3 % faster; one block of pair 4 is void."""
    rng = np.random.default_rng(seed)
    order = np.array([rng.permutation(2) for _ in range(pairs)]).ravel().tolist()
    numbers = [block // 2 for block in range(2 * pairs)]
    order.insert(8, order[8])
    numbers.insert(8, numbers[8])
    medians = [24.0 * 0.97**arm * float(rng.normal(1, 0.004)) for arm in order]
    voids = [""] * len(order)
    voids[8] = "the GPU's clock was throttled (heat)"
    made = PairedComparison(
        arms=["defaults", "BF16"],
        order=order,
        medians_ms=medians,
        ratio=0.97,
        low=0.96,
        high=0.98,
        verdict="FASTER",
        facts={"segments": [0, 1]},
        pairs=numbers,
        clocks_mhz=[1980.0] * len(order),
        voids=voids,
    )
    logs = verdict.pairs(made).logs
    for count in range(8, pairs + 1):
        part = verdict.interval(logs[:count])
        ends = np.exp([part.mean, part.low, part.high]).tolist()
        made.facts.setdefault("history", []).append([count, *ends])
    return made


def bench_session(seed: int = 0) -> Session:
    """Four operators, both directions, three implementations, below a roof of an H200's kind."""
    rng = np.random.default_rng(seed)
    session = Session(title="kernels on an H200")
    rates = {"bytes_per_s": 4.1e12, "flops_per_s": 7.9e14}
    operators = {"rms_norm": (2e8, 4e8), "swiglu": (6e8, 8e8), "attention": (3e8, 4e11),
                 "moe_experts": (9e8, 6e11)}  # bytes, FLOPs  # fmt: skip
    for operator, (moved, flops) in operators.items():
        for direction, more in (("forward", 1.0), ("backward", 2.2)):
            for implementation, share in (("torch", 0.3), ("torch.compile", 0.6), ("triton", 0.8)):
                work = {"bytes": moved * more, "flops": flops * more**1.1}
                floor_us = 1e6 * max(
                    work["bytes"] / rates["bytes_per_s"], work["flops"] / rates["flops_per_s"]
                )
                segment = _segment(len(session.segments), implementation, 0.0)
                segment.configuration = Configuration(
                    family=KERNELS,
                    preset=operator,
                    workload=direction,
                    settings={"case": "8x4096", "dtype": "bfloat16"},
                    toggles={"implementation": implementation},
                )
                segment.ledger = {**rates, **work, "floor_us": floor_us}
                times = floor_us / 1e3 / share * rng.normal(1.1, 0.02, 30)
                columns = {"t_s": np.arange(30.0), "gpu_ms": times, "wall_ms": times}
                segment.steps.append({**columns, "phase": np.full(30, Phase.STEADY)})
                session.segments.append(segment)
    return session


def sweep_study(two: bool = False, seed: int = 0, sizes: int = 7) -> Study:
    """Two arms over the sequence, the second out of memory at the end; ``two``: over layers too."""
    rng = np.random.default_rng(seed)
    lengths = [512 << number for number in range(sizes)]
    layers = [2, 8, 16] if two else [8]
    columns: dict[str, list] = {}
    for length in lengths:
        for depth in layers:
            for arm, power in ((0, 1.9), (1, 1.04)):
                ms = 0.01 * depth * (length / 512) ** power * float(rng.normal(1, 0.02)) + 0.4
                peak = GIB * depth * (length / 512) ** (2 - arm) / 40
                outcome = sweep.MEASURED if peak < 60 * GIB else sweep.OUT_OF_MEMORY
                if two and (length, depth, arm) == (512, 2, 1):
                    outcome = sweep.REFUSED
                good = outcome == sweep.MEASURED
                row = {"x": float(length), **({"y": float(depth)} if two else {})}
                row |= {"arm": float(arm), "outcome": outcome, "reason": "" if good else "why not"}
                row |= {
                    "median_ms": ms if good else np.nan,
                    "low_ms": 0.97 * ms if good else np.nan,
                    "high_ms": 1.03 * ms if good else np.nan,
                    "error": 0.015 if good else np.nan,
                    "tokens_per_s": 1e3 * length / ms if good else np.nan,
                    "peak_bytes": peak if good else np.nan,
                    "blocks": 10.0 if good else 0.0,
                }
                for name, cell in row.items():
                    columns.setdefault(name, []).append(cell)
    fields = ["settings.sequence", *(["model.n_layers"] if two else [])]
    request = {"fields": fields, "values_0": lengths, "values_1": layers, "seed": seed,
             "arms": ["defaults", "Attention backend: SDPA flash"], "toggles": ["{}", "{}"],
             "points": len(columns["x"]), "order": "sizes in random order"}  # fmt: skip
    tables = {
        name: {
            key: np.array(cells, object if isinstance(cells[0], str) else float)
            for key, cells in cells_by_name.items()
        }
        for name, cells_by_name in ((sweep.POINTS, columns), (sweep.FITS, sweep.fits(columns)))
    }
    return Study(sweep.KIND, "hydra forward over sequence", 1.0, request, {}, tables)


def cpu_session(steps: int = 120, seed: int = 1, title: str = "HYDRA tiny on two cores") -> Session:
    """Return a session of a machine without a GPU: wall time, resident set, CPU percent."""
    session = gpu_session(3, steps, seed, title, typical_ms=48.0)
    session.environment = {"cpu": "2 cores", "torch": "2.15.0"}
    for segment in session.segments:
        steps_read = segment.steps
        plain = Columns(STEP_COLUMNS)
        resident = 1.1 * GIB + 0.05 * GIB * segment.index
        rows = len(steps_read["t_s"])
        plain.append(
            {
                "t_s": steps_read["t_s"],
                "wall_ms": steps_read["wall_ms"],
                "allocated": resident * (1 + 0.01 * np.random.default_rng(seed).random(rows)),
                "peak": np.full(rows, resident * 1.02),
                "phase": steps_read["phase"],
            }
        )
        segment.steps = plain
        segment.metrics = {}
        segment.ledger = {}
    t_s = session.telemetry["gpu0"]["t_s"]
    table = Columns(TELEMETRY_COLUMNS)
    busy = np.clip(170 + 20 * np.random.default_rng(seed).normal(size=len(t_s)), 0, 200) / 2
    table.append({"t_s": t_s, "busy": busy, "memory_used": np.full(len(t_s), 5 * GIB)})
    session.telemetry = {"cpu": table}
    return session


def gpu_telemetry(rng: np.random.Generator, stop_s: float, segments: list[Segment]) -> Columns:
    """Ten samples a second; the GPU idles while something is compiled."""
    t_s = np.arange(0.0, max(stop_s, 0.2), 0.1)
    working = np.zeros(len(t_s))
    for segment in segments:
        for span in segment.phases:
            if span.phase in (Phase.STEADY, Phase.WARM_UP):
                working[(t_s >= span.start_s) & (t_s < span.stop_s)] = 0.7 + 0.05 * segment.index
    wobble = rng.normal(0, 1, len(t_s))
    table = Columns(TELEMETRY_COLUMNS)
    table.append(
        {
            "t_s": t_s,
            "busy": np.clip(98 * (working > 0) + wobble, 0, 100),
            "sm_active": np.clip(80 * working + 2 * wobble, 0, 100),
            "sm_occupancy": np.clip(45 * working + wobble, 0, 100),
            "tensor_active": np.clip(38 * working + 2 * wobble, 0, 100),
            "dram_active": np.clip(55 * working + 3 * wobble, 0, 100),
            "memory_used": 60 * GIB * np.ones(len(t_s)),
            "power_w": 120 + 540 * working + 8 * wobble,
            "sm_clock": 1980 - 180 * working + 5 * wobble,
            "temperature": 34 + 30 * (1 - np.exp(-t_s / 20)) + 0.3 * wobble,
            "throttle": np.zeros(len(t_s)),
        }
    )
    return table


def empty_session(title: str = "Nothing yet") -> Session:
    """Return a session that has not begun."""
    return Session(title=title)


def nan_session(steps: int = 50) -> Session:
    """Return steps of which nothing but the start was measured."""
    session = Session(title="Not measured")
    segment = _segment(0, "baseline", 0.0)
    segment.steps.append(  # type: ignore[attr-defined]
        {"t_s": np.arange(steps) * 0.1, "phase": np.full(steps, Phase.STEADY)}
    )
    session.segments.append(segment)
    table = Columns(TELEMETRY_COLUMNS)
    table.append({"t_s": np.arange(steps) * 0.1})
    session.telemetry["gpu0"] = table
    return session


def long_session(steps: int = 1_000_000, step_ms: float = 0.1) -> Session:
    """One segment of very many steps."""
    session = gpu_session(1, steps, 3, f"{steps} steps", typical_ms=step_ms)
    session.telemetry = {}
    return session


def _segment(index: int, label: str, start_s: float) -> Segment:
    configuration = Configuration(
        family="hydra",
        preset="100m",
        workload="train",
        settings={"batch": 8, "sequence": 2048},
        toggles={LADDER[i % len(LADDER)][0]: "on" for i in range(1, index + 1)},
    )
    return Segment(index, configuration, label, start_s, steps=Columns(STEP_COLUMNS))


def _phase(segment: Segment, phase: Phase, start_s: float, seconds: float) -> float:
    segment.phases.append(PhaseSpan(phase, start_s, start_s + seconds))
    return start_s + seconds
