"""Failures while building or running: a sentence for the user and a fix."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from pathlib import Path

import msgspec
import torch

import kernels
import models
from models.execution.cuda_graph import CaptureError
from sessions.plain_text import capitalized
from sessions.sizes import size_text
from sessions.studies.sweep import FAILED, OUT_OF_MEMORY, REFUSED
from workbench.protocol import RANKS, Failure
from workbench.runner import source_lines, triton_cache
from workbench.runner.environment import host

# Names, because importing the compilers would cost seconds at every start.
_COMPILERS = ("torch._dynamo", "torch._inductor", "torch._functorch")
# Kinds of failure that free memory may prevent: a failed capture hides its cause, which may have
# been a lack of memory.
MEMORY_MAY_HELP = ("out-of-memory", "capture")
_LET_IT_BREAK = "Choose the whole model as compile scope: then this part runs in eager mode."
_DO_NOT_COMPILE = "Switch torch.compile off or use another mode; the log has the compiler's output."
_TRITON = "triton."
# Messages about a lack of memory for which torch does not raise its own exception.
_NO_MEMORY = (
    "can't allocate memory",
    "CUDA out of memory",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)
_OUTCOMES = {"out-of-memory": OUT_OF_MEMORY, "mistake": REFUSED}
# The lines that compilers print before the one that says what was wrong.
_PREAMBLE = re.compile(r"backend='\w+' raised:|CppCompileError: .*|Command:|[\w.]+:")
# Inductor's reason, and the operator of its graph that it could not compile.
_LOWERING = re.compile(r"LoweringException: (.+)\n\s*target: (\S+)")


class Mistake(ValueError):  # noqa: N818 - it is the person's, not the program's
    """A request that cannot be fulfilled: one sentence with values, what is allowed, what to do."""


_CORRECT = "The log has the traceback; correct the model or change the configuration."
_TWO_GRADIENTS = "Expected to mark a variable ready only once"  # DistributedDataParallel's error
OWN_MODULE = "own_model_"  # prefix of the names of modules from the user's file


class OwnModelError(RuntimeError):
    """The user's own file failed: a sentence with its line, and its traceback for the log."""

    def __init__(self, sentence: str, detail: str) -> None:
        super().__init__(sentence)
        self.detail = detail


class Explained(RuntimeError):  # noqa: N818 - named by what it carries
    """An error that was explained when it was raised: its traceback would keep tensors."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.sentence)
        self.failure = failure


class RankError(RuntimeError):
    """A worker failed, in one sentence; ``failure`` is the worker's own report, if it sent one."""

    def __init__(self, sentence: str, rank: int = 0, failure: Failure | None = None) -> None:
        super().__init__(sentence)
        self.rank, self.failure = rank, failure

    @property
    def lacks_memory(self) -> bool:
        """True if the worker had too little memory."""
        return self.failure is not None and self.failure.kind == "out-of-memory"

    def copy(self) -> RankError:
        """Return an equal error without a traceback."""
        return RankError(str(self), self.rank, self.failure)


class Cancelled(Exception):  # noqa: N818 - a request, not an error
    """The run was cancelled while something was being built."""


def explain(error: BaseException) -> Failure:
    """Return the failure that explains ``error`` to the user; the traceback goes to the log."""
    detail = _own_frames(error) + "".join(traceback.format_exception(error))
    first = str(error).strip().split("\n")[0]
    if isinstance(error, kernels.Unavailable):
        fix = "Choose PyTorch for this operator, or leave the choice to a measurement."
        return Failure(kind="mistake", sentence=first, fix=fix, detail="")
    if isinstance(error, (Mistake, kernels.Mistake, models.ConfigurationError)):
        return Failure(kind="mistake", sentence=first, detail="")
    if isinstance(error, OwnModelError):
        return Failure(
            kind="model",
            sentence=first,
            fix="Correct the file and run again. The log has the traceback.",
            detail=error.detail,
        )
    if isinstance(error, Explained):
        return error.failure
    if isinstance(error, RankError):
        return _failure_of_rank(error, first, detail)
    if lacks_memory(error):
        return Failure(
            kind="out-of-memory",
            sentence=f"Out of memory: {_allocation_text(str(error))}",
            fix="Use a smaller batch or sequence, checkpointing, or BF16. Built models are freed.",
            detail=detail,
        )
    if triton_cache.is_stale(_chain(error)):
        return Failure(
            kind="compile",
            sentence=f"A compiled Triton kernel on disk cannot be used: {first}",
            fix="Clear Triton's cache. Each kernel is then compiled again when it is next used. "
            f"The cache is {' and '.join(map(str, triton_cache.folders()))} on {host()}.",
            clears="triton",
            detail=detail,
        )
    if isinstance(error, CaptureError):
        return Failure(
            kind="capture",
            sentence="The step could not be captured as a CUDA graph"
            f"{_source_location(error)}: {first}",
            fix="Switch CUDA graphs off, or change that line: a CUDA graph needs fixed shapes and "
            "addresses, and operations that do not make the host wait.",
            detail=detail,
        )
    if is_of_compiler(error):
        return Failure(
            kind="compile",
            sentence=f"torch.compile failed: {_why_not_compiled(str(error)) or _first_line(error)}",
            fix=_LET_IT_BREAK if type(error).__name__ == "Unsupported" else _DO_NOT_COMPILE,
            detail=detail,
        )
    if is_of_triton(error):
        return Failure(
            kind="compile",
            sentence=f"A Triton kernel failed to compile or to start: {first}",
            fix="Switch the Triton kernels off; the log has the compiler's output.",
            detail=detail,
        )
    if _TWO_GRADIENTS in str(error):
        return Failure(
            kind="model",
            sentence="Data parallelism cannot train this model, because a weight has several "
            "gradients in one backward pass, as torch.utils.checkpoint causes with "
            "use_reentrant=True; pass use_reentrant=False to it, or choose a sharding.",
            fix="Pass use_reentrant=False, choose a sharding, or switch data parallelism off.",
            detail=detail,
        )
    if is_fatal(error):
        return Failure(
            kind="cuda",
            sentence=f"The GPU reported an error that its process cannot recover from: {first}",
            fix="Start a new runner; everything measured so far is kept.",
            detail=detail,
            fatal=True,
        )
    return Failure(
        kind="model",
        sentence=f"{type(error).__name__} in the model: {first or 'no message'}",
        fix=_CORRECT,
        detail=detail,
    )


def _failure_of_rank(error: RankError, first_line: str, detail: str) -> Failure:
    """Return the failure of another rank; ``first_line`` names the rank, its host and its step."""
    sentence = capitalized(first_line)
    report = ""  # this rank's own traceback shows only that it waited
    if (failure := error.failure) is not None:
        report = f"On rank {error.rank}:\n{failure.detail}" if failure.detail else ""
        if error.lacks_memory:
            detail += f"\n{report}"
            sentence += "" if failure.sentence in first_line else f": {failure.sentence}"
            return msgspec.structs.replace(failure, sentence=sentence, detail=detail)
    advice = "" if failure is None or failure.fix in ("", _CORRECT) else f"{failure.fix} "
    return Failure(
        kind=RANKS,
        sentence=sentence,
        fix=f"{advice}Run again to restart the other ranks. The log has their output.",
        detail=report,
    )


def _own_frames(error: BaseException) -> str:
    """Return the lines of the user's own file that led to an error; empty if there are none."""
    frames = [
        traceback.FrameSummary(frame.f_code.co_filename, line, frame.f_code.co_name)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if str(frame.f_globals.get("__name__", "")).startswith(OWN_MODULE)
    ]
    if not frames:
        return ""
    lines = "".join(traceback.format_list(frames[::-1]))
    return f"Your file, the last call first:\n{lines}\nAll calls:\n"


def name_outcome(failure: Failure) -> str:
    """Return the word that every experiment reports for an arm or point with this failure."""
    return _OUTCOMES.get(failure.kind, FAILED)


def trying_again(failure: Failure) -> str:
    """Return a sentence that the attempt is repeated, because memory may be the cause."""
    return f"trying again after freeing memory: {failure.sentence}"


def is_of_compiler(error: BaseException) -> bool:
    """Return True if ``torch.compile`` failed, or the code that it made refuses a call."""
    is_refused = str(error).startswith("torch.compile with aot_autograd does not")
    return is_refused or type(error).__module__.startswith(_COMPILERS)


def is_of_triton(error: BaseException) -> bool:
    """Return True if Triton failed, with a kernel written in it."""
    return type(error).__module__.startswith(_TRITON)


def is_fatal(error: BaseException) -> bool:
    """Return True if the CUDA context is lost, so that only a new process helps."""
    if isinstance(error, (CaptureError, RankError)) or lacks_memory(error):
        # The context stays usable after a failed capture, after a lack of memory, and if another
        # rank has lost its own.
        return False
    return isinstance(error, torch.AcceleratorError) or "CUDA error:" in str(error)


def _why_not_compiled(text: str) -> str:
    """Return the reason and the line of the model's source, if Dynamo reports both."""
    reason, separator, source = text.strip().partition("from user code:")
    frames = re.findall(r'File "(.+)", line (\d+), in .+\n\s*(.+)', source)
    if not separator or not frames:
        return ""
    summary = reason.split("\n")[0].rstrip(". ")
    if explained := re.search(r"Explanation: (.+)", reason):
        summary += f": {explained[1].rstrip('. ')}"
    file, line, code = frames[-1]
    return f"{summary} ({Path(file).name}, line {line}: {code.strip()})"


def unwritten(title: str, path: Path | str, error: OSError) -> Failure:
    """Return the failure to write a file beside a run's measurements."""
    return Failure(
        kind="unwritten",
        sentence=f"{title} could not be written to {path} on {host()}: {error.strerror}.",
        fix="Free disk space there, or choose another path.",
    )


def lacks_memory(error: BaseException) -> bool:
    """Return True if the error, or its cause, is a lack of memory, here or on another rank.

    The cause is what a compiler or a capture wrapped.
    """
    return any(
        isinstance(cause, (torch.OutOfMemoryError, MemoryError))
        or (isinstance(cause, RankError) and cause.lacks_memory)
        or any(words in str(cause) for words in _NO_MEMORY)
        for cause in _chain(error)
    )


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and the errors that caused it."""
    current: BaseException | None = error
    while current is not None:
        yield current
        current = current.__cause__


def _source_location(error: BaseException) -> str:
    """Return the innermost line of source in which the error was raised."""
    stacks = [traceback.extract_tb(cause.__traceback__) for cause in _chain(error)]
    line = source_lines.innermost(stacks[-1])
    return f" at {line}" if line is not None else ""


def _first_line(error: BaseException) -> str:
    """Return the first line of a compiler's error that says what was wrong, and its operator."""
    if lowering := _LOWERING.match(str(error)):
        return f"Inductor cannot compile {lowering[2]}: {lowering[1].rstrip('. ')}"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    informative = [line for line in lines if not _PREAMBLE.fullmatch(line)]
    return (informative or lines or [type(error).__name__])[0]


def _allocation_text(text: str) -> str:
    requested = re.search(r"[Tt]ried to allocate ([\d.]+ \w+)", text)
    free = re.search(r"of which ([\d.]+ \w+) is free", text)
    on_cpu = re.search(r"you tried to allocate (\d+) bytes", text)
    if on_cpu:
        return f"{size_text(int(on_cpu[1]))} more was needed."
    if requested and free:
        return f"{requested[1]} more was needed and {free[1]} was free."
    if requested:
        return f"{requested[1]} more was needed."
    return "the allocation failed."
