"""What every run of several configurations does with each: build and enter it, heed commands."""

from __future__ import annotations

import time

from sessions.model import Phase
from workbench import protocol
from workbench.runner.arm import Arm
from workbench.runner.blocks import Contender
from workbench.runner.failures import Cancelled, Mistake, explain
from workbench.runner.rig import Rig
from workbench.runner.run import RunEnded


def enter(rig: Rig, contender: Contender) -> Arm:
    """The contender's arm after its first step, in its segment; raises ``Cancelled``."""
    reused = rig.arms.has(contender.situation, contender.copy)
    rig.segment = contender.segment
    rig.watchdog.active = True
    with rig.phases.during(Phase.BUILD):
        arm = rig.arms.get(contender.situation, rig.phases, contender.copy)
    rig.phases.restart()
    with arm.entered():
        if not reused:
            rig.clock.begin()
            with arm.watched():
                arm.step()
                rig.synchronize()
            rig.clock.lap(rig.phases.step_phase(time.perf_counter_ns()))
            rig.send_steps(rig.clock.drain(wait=True))
    if rig.wire.cancelled.is_set():
        raise Cancelled
    contender.arm = arm
    rig.wire.send(protocol.Facts(segment=contender.segment, ledger=arm.ledger))
    return arm


def take_commands(rig: Rig, refusal: str) -> None:
    """Do what came in between: pause, or end the run; Apply is refused with a sentence.

    Raises ``Cancelled`` or ``RunEnded``.
    """
    if rig.wire.cancelled.is_set():
        raise Cancelled
    while (command := rig.wire.pending()) is not None:
        if isinstance(command, protocol.Pause):
            rig.watchdog.active = False
            rig.state("paused")
            while isinstance(command := rig.wire.next(), protocol.Pause):
                pass
            rig.watchdog.active = True
            rig.watchdog.begin(rig.phases.phase)
            rig.state("running")
        match command:
            case protocol.Resume():
                pass
            case protocol.Apply():
                rig.wire.send(explain(Mistake(refusal)))
            case protocol.Cancel():
                raise Cancelled
            case protocol.Stop():
                raise RunEnded("stopped")
            case _:
                raise RunEnded("stopped", command)
