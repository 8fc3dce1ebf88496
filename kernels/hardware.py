"""Properties of devices: the only module that queries them."""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from kernels.core.generations import generation


@dataclass(frozen=True)
class Hardware:
    """Facts about one device that do not change while the process runs.

    On the CPU ``name`` is "CPU", ``sm_count`` is the number of cores, ``capability`` is (0, 0), and
    properties that only a GPU has are 0.
    """

    device: str
    name: str
    capability: tuple[int, int]
    sm_count: int
    threads_per_block: int
    shared_bytes: int  # shared memory that one block can have, opt-in included
    l2_bytes: int
    total_bytes: int
    fp16: bool  # these four: in the matrix units, not merely emulated
    bf16: bool
    tf32: bool
    fp8: bool

    @property
    def is_gpu(self) -> bool:
        """True for a CUDA device."""
        return self.device != "cpu"

    @property
    def workspace_bytes(self) -> int:
        """Bytes that PyTorch allocates for cuBLAS per handle and stream; each thread has a handle.

        ``CUBLAS_WORKSPACE_CONFIG`` sets it; see "cuBLAS workspaces" in PyTorch's notes on CUDA.
        """
        if not self.is_gpu:
            return 0
        default = ":4096:8" if self.capability >= (9, 0) else ":4096:2:16:8"
        config = os.environ.get("CUBLAS_WORKSPACE_CONFIG", default)
        kib = [int(number) for number in re.findall(r":(\d+)", config)]
        return 1024 * sum(size * count for size, count in zip(kib[::2], kib[1::2], strict=False))

    @property
    def precision(self) -> torch.dtype:
        """Fastest dtype that is safe to train in: the generation's, FP32 on the CPU."""
        return generation(self.capability).precision


def of(device: torch.device | str | int) -> Hardware:
    """Return the facts about a device; queried once per device."""
    device = torch.device(device)
    if device.type == "cuda":
        if _imagined:
            return _imagined[-1]
        index = device.index if device.index is not None else torch.cuda.current_device()
        return _gpu(index)
    return _cpu()


def of_gpu(index: int) -> Hardware:
    """Return the facts about the GPU of that index, cheaply enough for every launch."""
    return _imagined[-1] if _imagined else _gpu(index)


# Index of the current GPU without checking whether CUDA is initialized, as it is where tensors are
# on a GPU: a third of the time.
current_gpu: Callable[[], int] = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)


def has_gpu() -> bool:
    """Return True if there is a CUDA GPU."""
    return bool(_imagined) or any_cuda()


@functools.cache
def any_cuda() -> bool:
    """Return True if torch finds a CUDA GPU; cached, because torch queries the driver each time."""
    return torch.cuda.is_available()


_imagined: list[Hardware] = []


@contextlib.contextmanager
def imagined(capability: tuple[int, int], total_bytes: int = 16 << 30) -> Iterator[Hardware]:
    """Pretend to have a GPU of that compute capability; nothing may be launched meanwhile.

    The innermost block counts, for the whole process: for tables and tests, not for runs.
    """
    known = generation(capability)
    _imagined.append(
        Hardware(
            device="cuda:0",
            name=known.name,
            capability=capability,
            sm_count=1,
            threads_per_block=known.threads_per_block,
            shared_bytes=known.shared_bytes,
            l2_bytes=0,
            total_bytes=total_bytes,
            fp16=known.fp16,
            bf16=known.bf16,
            tf32=known.tf32,
            fp8=known.fp8,
        )
    )
    try:
        yield _imagined[-1]
    finally:
        _imagined.pop()


def product_precision() -> str:
    """Return how torch multiplies FP32 on a GPU, in its words: "highest", or "high" in TF32.

    Uses the newer of torch's two interfaces, which knows what either has set: the older one raises
    where TF32 was set by ``torch.backends``.
    """
    return "high" if torch._C._get_fp32_precision_getter("cuda", "matmul") == "tf32" else "highest"


def needs(title: str, capability: tuple[int, int]) -> Callable[[str], str | None]:
    """Make an ``Implementation.missing`` that requires a GPU of that compute capability."""

    def missing(device_type: str) -> str | None:
        if device_type != "cuda":
            return f"{title} needs a CUDA GPU, not {device_type}"
        if not has_gpu():
            return f"{title} needs a CUDA GPU, and torch finds none"
        has = of("cuda").capability
        if has < capability:
            needed = ".".join(map(str, capability))
            return f"{title} needs compute capability {needed}, not {'.'.join(map(str, has))}"
        return None

    return missing


def budget_bytes(device: torch.device | str | int, fraction: float = 0.9) -> int:
    """Return that fraction of the bytes that are free or held unused by the allocator.

    What the pools of captured graphs hold is not free. Unlike ``of`` this queries the device each
    time, which takes milliseconds.
    """
    device = torch.device(device)
    if device.type != "cuda":
        return int(fraction * _available_ram())
    index = torch.cuda.current_device() if device.index is None else device.index
    unused = sum(
        segment["total_size"] - segment["active_size"]
        for segment in torch.cuda.memory_snapshot()
        if segment["device"] == index and tuple(segment["segment_pool_id"]) == (0, 0)
    )
    return int(fraction * (torch.cuda.mem_get_info(device)[0] + unused))


@functools.cache
def _gpu(index: int) -> Hardware:
    props = torch.cuda.get_device_properties(index)
    capability = (props.major, props.minor)
    known = generation(capability)
    return Hardware(
        device=f"cuda:{index}",
        name=props.name,
        capability=capability,
        sm_count=props.multi_processor_count,
        threads_per_block=getattr(props, "max_threads_per_block", known.threads_per_block),
        shared_bytes=getattr(props, "shared_memory_per_block_optin", known.shared_bytes),
        l2_bytes=getattr(props, "L2_cache_size", 0),
        total_bytes=props.total_memory,
        fp16=known.fp16,
        bf16=known.bf16,
        tf32=known.tf32,
        fp8=known.fp8,
    )


@functools.cache
def _cpu() -> Hardware:
    return Hardware(
        device="cpu",
        name="CPU",
        capability=(0, 0),
        sm_count=os.cpu_count() or 1,
        threads_per_block=0,
        shared_bytes=0,
        l2_bytes=0,
        total_bytes=_total_ram(),
        fp16=False,
        bf16=False,
        tf32=False,
        fp8=False,
    )


def _total_ram() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _available_ram() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
