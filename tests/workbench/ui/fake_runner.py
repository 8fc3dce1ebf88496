"""A runner without torch that speaks the real protocol on its standard input and output.

The configuration's ``data`` asks it to misbehave: ``malformed`` sends a line that is no message,
``hang`` stops answering, ``oom`` fails the run, ``fails`` a comparison, ``deaf`` does not hear
Cancel, ``compiles`` never ends a build with ``compile=max-autotune``. While the file that
``FAKE_RUNNER_HOLD`` names is there, what is measured stays half done.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "samples"), str(HERE.parents[2])]

import msgspec  # noqa: E402
from fake_catalogue import availability, catalogue  # noqa: E402
from fake_steps import FakeRun  # noqa: E402

from sessions.model import Phase, Prediction  # noqa: E402
from workbench import protocol  # noqa: E402

BATCH = 3
HALF = 8  # paced messages
MADE = Prediction(
    ratio=0.9, text="at the measured ceilings, A needs at least 10 ms and B 9 ms",
    base_us=1e4, other_us=9e3,
)  # fmt: skip


def main() -> None:
    commands: queue.Queue[protocol.AnyCommand] = queue.Queue()
    threading.Thread(target=read, args=(commands,), daemon=True).start()
    created = time.time()
    send(catalogue(created))
    send(protocol.State(state="idle"))
    run = FakeRun()
    active = paused = False
    comparisons = studies = 0
    while True:
        try:
            command = commands.get(timeout=0.02 if active and not paused else None)
        except queue.Empty:
            command = None
        run.now = time.time() - created
        match command:
            case protocol.Quit():
                return
            case protocol.Check():
                send(availability(command.configuration))
            case protocol.Start():
                misbehave(command.configuration.data)
                active = command.configuration.data != "oom"
                if active:
                    begin(run, command.configuration, "")
            case protocol.Compare():
                if active:
                    end(run, "stopped")
                active = paused = False
                end(run, compare(run, command, comparisons, commands))
                comparisons += 1
            case protocol.Attribute():
                if active:
                    end(run, "stopped")
                active = paused = False
                end(run, attribute(run, command, comparisons, commands))
                comparisons += 1
            case protocol.Optimize():
                if active:
                    end(run, "stopped")
                active = paused = False
                begin(run, command.base, "configuration 0: start")
                from fake_studies import optimization_samples

                story = optimization_samples.messages(run.now, index=studies)
                end(run, send_paced(story, protocol.Progress, commands))
                studies += 1
            case protocol.Validate():
                if active:
                    end(run, "stopped")
                active = paused = False
                from fake_studies import checked

                send(run.begin(command.configuration, "checked"))
                send(protocol.State(state="running", text="Checking: Memory"))
                end(run, send_paced(checked(run, index=studies), protocol.StudyRows, commands))
                studies += 1
            case protocol.Sweep():
                if active:
                    end(run, "stopped")
                active = paused = False
                from fake_studies import swept

                send(protocol.State(state="building", text="Building"))
                end(run, send_paced(swept(run, command, studies), protocol.StudyRows, commands))
                studies += 1
            case protocol.Predict():
                send(protocol.Predicted(base=command.base, other=command.other, prediction=MADE))
            case protocol.Apply() if active:
                configuration = run.configuration
                toggles = {**configuration.toggles, **command.toggles}
                configuration = msgspec.structs.replace(configuration, toggles=toggles)
                if availability(configuration).problems:
                    sentence = availability(configuration).problems[0]
                    send(protocol.Failure(kind="mistake", sentence=sentence))
                    continue
                label = ", ".join(f"{name}={option}" for name, option in command.toggles.items())
                send(protocol.Note(t_s=run.now, kind="toggle", text=label))
                begin(run, configuration, label)
            case protocol.Pause():
                paused = True
                send(protocol.State(state="paused"))
            case protocol.Resume():
                paused = False
                send(protocol.State(state="running"))
            case protocol.Stop() | protocol.Cancel():
                if command.__class__ is protocol.Cancel and run.configuration.data == "deaf":
                    continue
                active = paused = False
                end(run, "stopped" if isinstance(command, protocol.Stop) else "cancelled")
        if active and not paused:
            for message in run.steps(BATCH):
                send(message)
            send(run.telemetry())


def begin(run: FakeRun, configuration, label: str) -> None:
    send(protocol.State(state="building", text="Building hydra small"))
    send(protocol.Progress(task="Building", fraction=0.5, text="12 of 24 blocks"))
    send(run.begin(configuration, label))
    send(run.phase(Phase.BUILD))
    send(run.phase(Phase.WARM_UP))
    send(run.evidence())
    if (configuration.data, configuration.toggles["compile"]) == ("compiles", "max-autotune"):
        time.sleep(3600)
    send(protocol.State(state="running"))


def end(run: FakeRun, reason: str) -> None:
    send(protocol.Finished(t_s=run.now, reason=reason, steps=1))
    send(protocol.State(state="idle"))


def compare(run: FakeRun, command: protocol.Compare, index: int, commands: queue.Queue) -> str:
    """Alternate until the pairs are done, or a command comes; return how it ended."""
    send(protocol.State(state="building", text="Building A"))
    if "fails" in (command.base.data, command.other.data):
        misbehave("oom")
        return "failed"
    from fake_studies import comparison

    messages = comparison(
        run, command.base, command.other, command.before, pairs=12, index=index, ratio=0.8
    )
    return send_paced(
        (predicted(message, command) for message in messages), protocol.BlockDone, commands
    )


def predicted(message, command: protocol.Compare):
    """Return the message, with the prediction that was requested."""
    if isinstance(message, protocol.ComparisonStarted) and command.predict:
        message.prediction = MADE
    return message


def attribute(run: FakeRun, command: protocol.Attribute, index: int, commands: queue.Queue) -> str:
    """Alternate until the rounds are done, or a command comes; return how it ended."""
    from fake_studies import attribution_samples

    begin(run, command.base, "arm 0: base")
    messages = attribution_samples.messages(
        run.now, command.toggles, command.mode, index=index, looks=16
    )
    return send_paced(messages, protocol.Progress, commands)


def send_paced(messages, paced: type[protocol.Message], commands: queue.Queue) -> str:
    """Send the messages at a pace until a command comes; return how it ended."""
    count, hold = 0, Path(os.environ["FAKE_RUNNER_HOLD"])
    for message in messages:
        send(message)
        if isinstance(message, paced):
            count += 1
            time.sleep(0.02)
            while not commands.empty() or (count == HALF and hold.exists()):
                try:
                    command = commands.get(timeout=0.02)
                except queue.Empty:
                    continue
                match command:
                    case protocol.Check() as check:
                        send(availability(check.configuration))
                    case protocol.Apply():
                        sentence = "Configurations are being compared."
                        send(protocol.Failure(kind="mistake", sentence=sentence))
                    case protocol.Cancel():
                        return "cancelled"
                    case _:
                        return "stopped"
    return "done"


def misbehave(how: str) -> None:
    if how == "malformed":
        os.write(1, b"this is not JSON\n")
    elif how == "hang":
        time.sleep(3600)
    elif how == "oom":
        send(
            protocol.Failure(
                kind="out-of-memory",
                sentence="The GPU ran out of memory: 150 GiB were wanted, 139 GiB are there.",
                fix="Choose a smaller batch, or gradient checkpointing.",
                detail="Traceback: torch.OutOfMemoryError",
            )
        )


def read(commands: queue.Queue) -> None:
    for line in sys.stdin.buffer:
        commands.put(protocol.decode_command(line))
    commands.put(protocol.Quit())


def send(message: protocol.Message) -> None:
    os.write(1, protocol.encode(message))


if __name__ == "__main__":
    main()
    os._exit(0)  # all is written; to take libraries down would take a third of a second
