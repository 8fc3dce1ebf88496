"""Least work of an optimizer's update, however its operators are arranged.

A fused update reads weights, gradients and moments once, and writes weights and moments once. A
loop of small operators moves the same numbers several times, and temporaries besides. Both have
the same least work: to read each byte that the update needs and has not written itself, to write
each byte that it changes in tensors that existed before, and its matrix products (as of Muon).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor

from workbench.runner.roofline.moved_bytes import touched_bytes

_Region = tuple[int, int, int]  # storage, first and last byte


class OptimizerUpdate:
    """The memory that one update has read and written so far, without its temporaries."""

    def __init__(self) -> None:
        self._temporaries: dict[int, Any] = {}  # storages; referenced, so that no id is reused
        self._read: dict[_Region, int] = {}
        self._written: dict[_Region, int] = {}
        self._flops: dict[str, int] = defaultdict(int)

    def add(
        self,
        read: Iterable[Tensor],
        written: Iterable[Tensor],
        inputs: Iterable[Tensor],
        flops: int,
        dtype: str,
    ) -> None:
        """Add an operator; ``dtype`` selects the matrix rate for its FLOPs."""
        for tensor in read:
            region = _region(tensor)
            if region[0] not in self._temporaries and region not in self._written:
                self._read[region] = touched_bytes(tensor)
        written = [*written]
        self.add_temporaries(written, inputs)
        for tensor in written:
            region = _region(tensor)
            if region[0] not in self._temporaries:
                self._written[region] = touched_bytes(tensor)
        if flops:
            self._flops[dtype] += flops

    def add_temporaries(self, outputs: Iterable[Tensor], inputs: Iterable[Tensor]) -> None:
        """Add the outputs of an operator that are in memory of none of its inputs."""
        known = {_region(tensor)[0] for tensor in inputs}
        for tensor in outputs:
            storage = _region(tensor)[0]
            if storage not in known:
                self._temporaries[storage] = tensor.untyped_storage()

    def least_work(self) -> Iterator[tuple[int, int, str]]:
        """Yield bytes and FLOPs by dtype; the bytes are with the dtype of most FLOPs."""
        moved = _union_bytes(self._read) + _union_bytes(self._written)
        by_dtype = sorted(self._flops.items(), key=lambda item: -item[1])
        if moved and not by_dtype:
            by_dtype = [("float32", 0)]
        for dtype, flops in by_dtype:
            yield moved, flops, dtype
            moved = 0


def _region(tensor: Tensor) -> _Region:
    """Return the storage of a tensor, and the bytes from its first to its last element."""
    strided = zip(tensor.shape, tensor.stride(), strict=True)
    last = sum((size - 1) * stride for size, stride in strided) if tensor.numel() else -1
    width, first = tensor.element_size(), tensor.storage_offset()
    return tensor.untyped_storage()._cdata, first * width, (first + last + 1) * width


def _union_bytes(regions: dict[_Region, int]) -> int:
    """Return the bytes of all regions; overlapping regions (views of a parameter) count once."""
    by_storage: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for (storage, first, end), touched in regions.items():
        by_storage[storage].append((first, end, touched))
    total = 0
    for spans in by_storage.values():
        covered, reached = 0, 0
        for first, end, _ in sorted(spans):
            covered += max(0, end - max(first, reached))
            reached = max(reached, end)
        total += min(covered, sum(touched for *_, touched in spans))
    return total
