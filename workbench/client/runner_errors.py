"""Failures of a runner that did not start, used another protocol, or ended unexpectedly."""

from __future__ import annotations

from collections.abc import Sequence

from workbench.client.runner_command import HERE, OPTION, VARIABLE, shown
from workbench.exit_reasons import abort_cause, how_ended
from workbench.protocol import VERSION, Failure

AGAIN = "Start a new runner; everything measured so far is kept."
TRY = (
    "Try the command in a terminal. Here, ssh must work without a terminal and without a password "
    "(`ssh -T`, a key), nothing may print before the runner does, and both sides need the same "
    "version of the workbench."
)
KILLED = -9  # exit code of a process that SIGKILL ended
SHOWN = 200  # characters of a line


def not_started(command: tuple[str, ...], error: OSError) -> Failure:
    """Return the failure of a command that the system could not start."""
    reason = error.strerror or str(error)
    if command == HERE:
        sentence = f"The runner could not be started: {reason}."
        return _fatal(sentence, "Free some space or repair the installation, then try again.")
    sentence = f"The command `{shown(command)}` could not be started: {reason}."
    return _fatal(sentence, f"It comes from {OPTION} or {VARIABLE}. {TRY}")


def never_spoke(
    command: tuple[str, ...], code: int, printed: Sequence[str], log: Sequence[str]
) -> Failure:
    """Return the failure of a user's command that ended before the first message."""
    last = next((line for line in reversed(log) if line.strip()), "")
    last_output = f"the last line on its standard error was {_brief(last)!r}" if last else (
        "it wrote nothing to its standard error")  # fmt: skip
    if printed:
        last_output += (
            f", and it printed {_brief(printed[0])!r}, which is not a message of the runner"
        )
    sentence = (
        f"The command `{shown(command)}` {how_ended(code)} before a runner answered; {last_output}."
    )
    return _fatal(sentence, TRY, [*printed, *log])


def no_runner(command: tuple[str, ...], printed: Sequence[str], log: Sequence[str]) -> Failure:
    """Return the failure of a command that runs but sends no message."""
    last = f"; the last line on its standard error was {_brief(log[-1])!r}" if log else ""
    sentence = (
        f"The command `{shown(command)}` does not use the runner's protocol: its standard "
        f"output begins with {_brief(printed[0])!r}{last}."
    )
    return _fatal(sentence, TRY, [*printed[:20], *log])


def banner(command: tuple[str, ...], printed: Sequence[str]) -> Failure:
    """Return the failure for text before the first message; the runner itself works."""
    return Failure(
        kind="wire",
        sentence=f"The command `{shown(command)}` printed {_brief(printed[0])!r} before the "
        "runner's first message; it was left out.",
        fix="Make the host's login files print nothing if there is no terminal, or try `ssh -T`.",
        detail="\n".join(printed),
    )


def other_version(command: tuple[str, ...], version: int) -> Failure:
    """Return the failure of a runner that uses another version of the protocol."""
    which = "" if command == HERE else f", started by `{shown(command)}`,"
    sentence = (
        f"The runner{which} uses version {version} of the protocol, but this side uses {VERSION}."
    )
    return _fatal(sentence, "Install the same version of the workbench on both sides.")


def ended(code: int, cancelled_by: str | None, log: Sequence[str]) -> Failure:
    """Return the failure of a runner that ended unexpectedly, or by force after Cancel."""
    if cancelled_by:
        sentence = f"The run did not stop when cancelled, so its runner was {cancelled_by}."
    else:
        sentence = f"The runner {how_ended(code)}."
        if code == KILLED:
            sentence += " The system does this when memory runs out."
        if cause := abort_cause(code, "\n".join(log)):
            sentence += f" {cause}"
    return _fatal(sentence, AGAIN, log)


def _brief(text: str) -> str:
    text = text.strip()
    return text if len(text) <= SHOWN else f"{text[:SHOWN]} ..."


def _fatal(sentence: str, fix: str, last_output: Sequence[str] = ()) -> Failure:
    return Failure(
        kind="died", sentence=sentence, fix=fix, detail="\n".join(last_output), fatal=True
    )
