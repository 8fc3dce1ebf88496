"""CUDA graphs: a capture that may fail, and inference by replaying one for inputs of one shape."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import kernels
from models.errors import ConfigurationError

WARM_UP = 3  # calls before the capture, in which libraries tune, allocate and compile


class CaptureError(RuntimeError):
    """A capture failed; the sentence is the first error in it."""


@functools.cache
def _stream(device: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


@contextlib.contextmanager
def on_capture_stream() -> Iterator[None]:
    """Run the block on the stream that captures all graphs of the current GPU.

    A step also warms up on this stream, because autograd accumulates gradients on the stream where
    it first saw their parameters.
    """
    stream = _stream(torch.cuda.current_device())
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream().wait_stream(stream)


@contextlib.contextmanager
def _own_workspaces() -> Iterator[None]:
    """Let cuBLAS allocate new workspaces inside, and forget them at the end.

    Torch keeps a workspace for each handle and stream and frees all of them when Inductor captures,
    or when another graph of the stream is freed. Replays of a graph that had captured one of them
    would then overwrite other tensors (pytorch/pytorch#193402). Inside a capture they are
    allocated in the pool of the graph, which lives as long as the graph.
    """
    torch._C._cuda_clearCublasWorkspaces()
    try:
        yield
    finally:
        torch._C._cuda_clearCublasWorkspaces()


@contextlib.contextmanager
def capturing(graph: torch.cuda.CUDAGraph) -> Iterator[None]:
    """Capture what runs inside into ``graph``; raises ``CaptureError``.

    Other threads may allocate meanwhile. The graph has its own cuBLAS workspaces (32 MiB on Hopper
    for each thread that multiplies), in its memory pool. After a failure the process can continue:
    torch leaves the stream of the capture current, its memory pool in use, and the random generator
    in capture mode, in which every later random number is an error. This resets all of them.
    """
    device, stream = torch.cuda.current_device(), torch.cuda.current_stream()
    pool = torch.cuda.graph_pool_handle()
    captures = torch.cuda.graph(
        graph, pool=pool, stream=_stream(device), capture_error_mode="thread_local"
    )
    try:
        with _own_workspaces(), captures:
            yield
    except RuntimeError as error:
        torch.cuda.set_stream(stream)
        _release(pool, graph, device)
        generator = torch.cuda.default_generators[device]
        generator.graphsafe_set_state(generator.clone_state())
        first: BaseException = error
        while first.__context__ is not None:  # ending the capture fails once more
            first = first.__context__
        raise CaptureError(str(first).strip()) from error


def _release(pool: tuple[int, int], graph: torch.cuda.CUDAGraph, device: int) -> None:
    """Release the pool of a capture that failed.

    While the allocator believes that a capture is underway, it does not return cached memory to the
    device, so that the process runs out of memory with little of it in use. A graph that was not
    completed does not release its pool (torch 2.11, ``CUDAGraph::capture_end`` and ``reset``).
    """
    with contextlib.suppress(RuntimeError):  # the capture has ended and failed later
        torch._C._cuda_endAllocateToPool(device, pool)
    try:
        graph.pool()
    except RuntimeError:
        with contextlib.suppress(RuntimeError):  # the capture failed before it had a pool
            torch._C._cuda_releasePool(device, pool)


class CUDAGraphInference:
    """Inference of ``model`` without gradients by replaying a graph of it.

    ``example_inputs`` are tensors on a GPU; every call's inputs must have their shapes, dtypes and
    device. Puts the model into evaluation mode. The result is a copy and stays. Raises
    ``ConfigurationError`` where there is no GPU, and with the reason where the model cannot be
    captured.
    """

    def __init__(self, model: nn.Module, example_inputs: Sequence[Tensor]) -> None:
        devices = sorted({str(x.device) for x in example_inputs})
        if not example_inputs or any(not x.is_cuda for x in example_inputs):
            raise ConfigurationError(
                "CUDAGraphInference: needs inputs on a CUDA GPU, but "
                + (f"they are on {', '.join(devices)}" if devices else "there are none")
            )
        self.model = model.eval()
        self._inputs = [x.detach().clone() for x in example_inputs]
        device = self._inputs[0].device
        with torch.cuda.device(device), torch.no_grad():
            with on_capture_stream(), kernels.captured_choices():
                for _ in range(WARM_UP):
                    model(*self._inputs)
            torch.cuda.synchronize()
            self._graph = torch.cuda.CUDAGraph()
            try:
                with capturing(self._graph):
                    self._outputs = model(*self._inputs)
            except CaptureError as error:
                reason = str(error).split("\n")[0]
                raise ConfigurationError(
                    f"CUDAGraphInference: {type(model).__name__} cannot be captured: {reason}"
                ) from error

    @torch.no_grad()  # its own buffers would join the graph of every call's inputs
    def __call__(self, *inputs: Tensor) -> Any:
        """Return ``model(*inputs)``; raises ``ConfigurationError`` for another shape."""
        actual = [_described(x) for x in inputs]
        expected = [_described(x) for x in self._inputs]
        if actual != expected:
            raise ConfigurationError(
                f"CUDAGraphInference: captured for {', '.join(expected)}, but called with "
                f"{', '.join(actual) or 'nothing'}; create another one for these inputs"
            )
        for static, x in zip(self._inputs, inputs, strict=True):
            static.copy_(x)
        self._graph.replay()
        return pytree.tree_map_only(Tensor, torch.clone, self._outputs)


def _described(x: Tensor) -> str:
    return f"{str(x.dtype).removeprefix('torch.')} {tuple(x.shape)} on {x.device}"
