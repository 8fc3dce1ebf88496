"""The wire of a whole plausible sitting, made at once: for screenshots, replay and panels."""

from __future__ import annotations

import time
from collections.abc import Iterator

import msgspec
from fake_catalogue import availability, catalogue
from fake_steps import FakeRun

from sessions.model import Configuration, Phase, Session
from workbench import protocol
from workbench.recorder import Recorder
from workbench.ui import draft

STORY: tuple[tuple[str, dict[str, str], float], ...] = (  # label, toggles, seconds of compiling
    ("baseline", {}, 0.0),
    ("precision=amp_bf16", {"precision": "amp_bf16"}, 0.0),
    ("triton=on", {"triton": "on"}, 1.2),
    ("adamw=fused", {"adamw": "fused"}, 0.0),
    ("compile=reduce-overhead", {"compile": "reduce-overhead"}, 7.5),
    ("checkpointing=selective", {"checkpointing": "selective"}, 4.0),
)
BATCH = 12
TELEMETRY_S = 0.25


def messages(
    situation: str = "running", steps: int = 160, seed: int = 7
) -> Iterator[protocol.AnyMessage]:
    """What a runner would have sent until now."""
    offered = catalogue(created=time.time() - 90)
    yield offered
    first = draft.first(offered)
    assert first is not None
    if situation in ("first", "blocked"):
        yield availability(first)
        yield protocol.State(state="idle")
        return
    configuration = first
    run = FakeRun(seed, now=0.8)
    for label, toggles, compile_s in STORY:
        configuration = msgspec.structs.replace(
            configuration, toggles={**configuration.toggles, **toggles}
        )
        yield from segment(run, configuration, label, compile_s, steps)
    yield availability(configuration)
    yield protocol.State(t_s=run.now, state="running")
    if situation == "failed":
        yield protocol.Failure(
            t_s=run.now,
            kind="died",
            sentence="The runner was ended by SIGKILL. The system does this when memory runs out.",
            fix="Start a new runner; everything measured so far is kept.",
            detail="torch.OutOfMemoryError: CUDA out of memory.\nTried to allocate 2.00 GiB.",
            fatal=True,
        )


def segment(
    run: FakeRun, configuration: Configuration, label: str, compile_s: float, steps: int
) -> Iterator[protocol.AnyMessage]:
    """One configuration, from its build to its steps."""
    if run.segment >= 0:
        yield protocol.Note(t_s=run.now, kind="toggle", text=label)
    yield protocol.State(t_s=run.now, state="building", text="Building")
    yield run.begin(configuration, label)
    yield run.phase(Phase.BUILD, 0.4)
    if compile_s:
        yield run.phase(Phase.COMPILE)
        for _ in range(round(compile_s / TELEMETRY_S)):
            run.now += TELEMETRY_S
            yield run.telemetry(busy=False)
    yield run.phase(Phase.WARM_UP)
    yield protocol.State(t_s=run.now, state="running")
    yield run.evidence()
    for _ in range(0, steps, BATCH):
        yield from run.steps(BATCH)
        yield run.telemetry()


def session(title: str = "hydra small train", seed: int = 7) -> Session:
    """The same sitting as a finished session."""
    recorder = Recorder(Session(title=title))
    for message in messages(seed=seed):
        recorder.record(message)
    return recorder.session


def compared() -> list[Session]:
    """Two more sessions to compare with."""
    yesterday = session("hydra small, yesterday", seed=8)
    other = session("hydra small, other driver", seed=9)
    other.environment["driver"] = "570.86.15"
    for segment in other.segments:
        segment.steps["gpu_ms"][:] *= 1.06
    return [yesterday, other]
