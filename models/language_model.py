"""Base of every causal language model here: embedding, blocks, norm, head, loss, decode state.

A family supplies the blocks; everything the runner calls is defined once, in ``LanguageModel``.

Shapes: B batch, S sequence, N = B S tokens, E model width, V vocabulary (rows of the embedding).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

import kernels
from kernels.linear import is_for_few_rows
from models.decode_state import Cache, State, check_tokens
from models.errors import ConfigurationError
from models.layers.basic import Embedding, Linear, RMSNorm, computed_dtype, project
from models.model import Model
from models.parallel.context_parallel import FULL, Context
from models.parallel.pipeline_stages import Stage, StageOutput
from models.parallel.tensor_parallel_plan import WHOLE, Region


class BlockOutput(NamedTuple):
    """Output of a block that returns more than the residual stream.

    ``loss`` ([], FP32, or None) is added to the training loss; ``measured`` are rows of metrics.
    They are returned, not written by the block, so that a block stays a pure function: only then
    may it be compiled inside a checkpoint.
    """

    x: Tensor  # (B, S, E)
    loss: Tensor | None
    measured: dict[str, Tensor]


def _run_fused(block: Any, x_BSE: Tensor, *inputs: Any) -> BlockOutput:
    """Run a block whose inner additions are fused with the norms after them."""
    x_BSE, output = block.branches(block.first_norm(x_BSE), x_BSE, *inputs)
    if not isinstance(output, BlockOutput):
        return BlockOutput(x_BSE + output, None, {})
    return BlockOutput(x_BSE + output.x, output.loss, output.measured)


DECODING = ("decode", "generate")  # workloads whose steps add a token to a cache


def step_operators(
    workload: str, *, fuses_steps: bool = False, fuses_gates: bool = False,
    fuses_heads: bool = False,
) -> frozenset[str]:  # fmt: skip
    """Return the operators that a step calls besides those of its blocks.

    ``fuses_steps``: a block has a ``fused_step``. ``fuses_gates``: it has a ``SwiGLUMLP``.
    ``fuses_heads``: it has rotary positions, and may read all tokens.
    """
    if workload == "train":
        return frozenset({"linear_cross_entropy"})
    operators = set() if workload == "forward" else {"linear"}  # for the logits of the last token
    if fuses_heads:
        operators.add("rope_to_cache" if workload in DECODING else "qkv_rope")
    if fuses_gates or (fuses_steps and workload in DECODING):
        operators.add("fused_linear")
    return frozenset(operators)


ENTRIES = ("forward", "branches", "fused_step")  # methods of a block that a model may call


class LanguageModel(Model):
    """Causal language model over the blocks that a family supplies.

    A block is a module with ``forward(x_BSE, state, position) -> x_BSE | BlockOutput`` and
    ``new_state(batch, length, device, dtype) -> State``. A block with metrics has ``measures``, the
    number of columns by metric; each such block is one row of the metric. A block that needs random
    numbers has ``draw(x_BSE)``, which makes the tensors that ``forward`` takes after ``position``.
    It runs outside of the checkpoint, so that a recomputation uses the same numbers. A block with
    ``by_token`` computes each token separately, except in layers that ranks may shard.

    A block of branches after norms may also have ``first_norm``, the ``RMSNorm`` of its input, and
    ``branches(u_BSE, x_BSE, state, position) -> (x_BSE, y_BSE | BlockOutput)``. It takes the stream
    and its norm, and returns the stream before the last addition and the summand. Then one kernel
    can add and normalise: see ``set_fused_add_norm``. ``inner_additions``: how many
    additions ``branches`` itself fuses with a norm. A block with ``can_fuse_step`` has
    ``fused_step(x_BSE, state, position) -> x_BSE``: see ``set_fused_linear``.
    """

    def __init__(
        self,
        *,
        rows: int,
        dim: int,
        blocks: Sequence[nn.Module],
        max_sequence: int,
        norm_eps: float,
        tie_embeddings: bool,
    ) -> None:
        super().__init__()
        self.dim, self.max_sequence = dim, max_sequence
        self.stage = Stage(range(len(blocks)))
        self.passage = self.stage.passage(None)  # blocks of the stage that a call computes
        self.applied_blocks = self.applied_tokens = 0  # in the last call, per sequence
        self.fused_add_norm = False
        self.fused_additions = 0
        self.fused_linear: frozenset[int] = frozenset()  # blocks whose decoding steps are fused
        self.fused_loss = False
        self.stream: Region = WHOLE  # outside of the sharded layers of its blocks
        self.context: Context = FULL  # the part of every sequence that it computes
        self.embedding = Embedding(rows, dim)
        self.blocks = nn.ModuleList(blocks)
        self.norm = RMSNorm(dim, norm_eps)
        self.head = None if tie_embeddings else Linear(dim, rows)
        columns: dict[str, int] = {}
        self._rows: list[dict[str, int]] = []  # for each block: its row in each metric
        counts: dict[str, int] = {}
        for block in blocks:
            measures: dict[str, int] = getattr(block, "measures", {})
            columns |= measures
            self._rows.append({name: counts.get(name, 0) for name in measures})
            counts |= {name: row + 1 for name, row in self._rows[-1].items()}
        self.declare_metrics({name: (counts[name], columns[name]) for name in columns})

    @property
    def compiled_beside_blocks(self) -> dict[str, tuple[str, ...]]:
        """Methods to compile where each block is compiled, and the modules that they call."""
        return {"_loss": ("norm", "head")} if self.stage.last else {}

    def forward(
        self,
        tokens_BS: Tensor,
        cache: Cache | None = None,
        position: Tensor | None = None,
        last_only: bool = False,
    ) -> Tensor:
        """Return logits of the next token after each one: (B, S) int64 -> (B, S, V).

        With ``cache``, the tokens are also stored. ``position`` (int64, [], on the device) is that
        of the first token, and the tokens see the cache before it. None means that the
        cache is empty (a prefill from the start, which needs no masking). A position beyond the end
        of the cache is the caller's error and cannot be detected here without a host
        synchronization. ``last_only`` returns the last logits, (B, 1, V), for a prefill.
        """
        x_BSE, _ = self._run_blocks(self._stream_in(tokens_BS, cache, position), cache, position)
        x_BSE = self.stream.join(x_BSE)
        if last_only:
            x_BSE = x_BSE[:, -1:]
        return self.context.join(self._logits(x_BSE)) if self.passage.last else x_BSE

    def loss(self, tokens_BS: Tensor, targets_BS: Tensor) -> Tensor:
        """Return the mean cross-entropy of ``targets_BS`` in nats, [], in FP32 (FP64 for FP64).

        The blocks' own losses are added. If ranks split the sequence, the mean is over this rank's.
        """
        x_BSE, auxiliary = self._run_blocks(self._stream_in(tokens_BS, None, None), None, None)
        return self._loss(x_BSE, auxiliary, targets_BS)

    def stage_loss(self, x: Tensor, targets_BS: Tensor) -> StageOutput:
        """Run a stage on tokens (B, S), or on the previous stage's output (B, S, E)."""
        x_BSE, auxiliary = self._run_blocks(self._stream_in(x, None, None), None, None)
        if self.passage.last:
            return StageOutput(None, self._loss(x_BSE, auxiliary, targets_BS))
        return StageOutput(self.stream.join(x_BSE), auxiliary)

    def narrow(self, stage: Stage) -> None:
        """Reduce the model to one stage of a pipeline, to be called by ``stage_loss``.

        Its blocks are renumbered; its metrics keep a row for every block of the full model. A stage
        that is not the first, called with tokens, uses ones as the residual stream. Then its
        operators are real, but its numbers are not.
        """
        self.blocks = nn.ModuleList(self.blocks[index] for index in stage.blocks)
        self._rows = [self._rows[index] for index in stage.blocks]
        self.stage, self.passage = stage, stage.passage(None)
        if not (stage.first or (stage.last and self.head is None)):
            del self.embedding
        if not stage.last:
            del self.norm
            self.head = None

    def measured_rows(self, blocks: range) -> dict[str, list[int]]:
        """Return, for each metric, the rows that these blocks of the stage measure."""
        block_rows = [self._rows[index] for index in blocks]
        return {
            name: [rows[name] for rows in block_rows if name in rows] for name in self.metrics()
        }

    def new_cache(self, batch: int, length: int, dtype: torch.dtype | None = None) -> Cache:
        """Return an empty decode state on the model's device for ``length`` positions.

        ``dtype`` None is the dtype that the layers compute: autocast's if it is on, otherwise the
        weights'. Raises ``ConfigurationError`` for no batch, or a length above ``max_sequence``.
        """
        if batch < 1:
            raise ConfigurationError(f"new_cache: batch {batch} must be at least 1")
        if not 1 <= length <= self.max_sequence:
            raise ConfigurationError(
                f"new_cache: length {length} is not within 1 to max_sequence = {self.max_sequence}"
            )
        weight = self.embedding.weight
        if dtype is None:
            dtype = computed_dtype(weight)
        states: list[Any] = [
            block.new_state(batch, length, weight.device, dtype) for block in self.blocks
        ]
        return Cache(batch, length, states, self.common_state())

    def common_state(self) -> State | None:
        """Return the model's own decode state besides those of its blocks; None if it has none."""
        return None

    def set_fused_add_norm(self, fused: bool) -> None:
        """Choose whether an addition to the residual stream and the norm after it are one kernel.

        The results differ only by rounding: under autocast the norm then has the branch's dtype
        and not that of the residual stream. ``fused_additions`` counts how many the last call
        fused; the last addition, and those before or after a checkpointed block, stay separate.
        Raises ``ConfigurationError`` if no block supports it.
        """
        if fused and not any(hasattr(block, "branches") for block in self.blocks):
            kinds = sorted({type(block).__name__ for block in self.blocks})
            raise ConfigurationError(
                f"set_fused_add_norm: no addition can be fused in blocks of {', '.join(kinds)}"
            )
        self.fused_add_norm = fused

    def set_fused_linear(self, fused: bool) -> None:
        """Choose whether linear layers without gradients include neighbouring operators.

        In a decoding step of few rows with BF16 weights, that is the norm before them, and the gate
        or addition after them. ``fused_linear`` has the indices of the blocks that can do so: those
        without quantized layers. In other passes it is the gate alone. The results differ only by
        rounding. Raises ``ConfigurationError`` if no block supports it.
        """
        gated = [layer for layer in self.blocks.modules() if hasattr(layer, "fuses_gate")]
        for layer in gated:
            layer.fuses_gate = fused  # type: ignore[assignment]
        able = {
            index: [layer for layer in block.modules() if isinstance(layer, nn.Linear)]
            for index, block in enumerate(self.blocks)
            if fused and getattr(block, "can_fuse_step", False)
        }
        if fused and not able and not gated:
            raise ConfigurationError("set_fused_linear: no block can fuse its linear layers")
        self.fused_linear = frozenset(
            index
            for index, layers in able.items()
            if all(isinstance(layer, Linear) for layer in layers)
        )

    def set_fused_cache(self, fused: bool) -> None:
        """Choose whether one operator prepares a decoded token's heads and writes them to a cache.

        The results differ only by rounding. Layers without rotary positions, or that read only some
        tokens, stay as they are. Raises ``ConfigurationError`` if no layer supports it.
        """
        layers = [layer for layer in self.blocks.modules() if hasattr(layer, "fuses_cache")]
        if fused and not layers:
            raise ConfigurationError("set_fused_cache: no layer can write to a cache directly")
        for layer in layers:
            layer.fuses_cache = fused  # type: ignore[assignment]

    def set_fused_heads(self, fused: bool) -> None:
        """Choose whether one operator projects tokens to heads, and normalises and rotates them.

        The results differ only by rounding. The operator needs rotary positions. It is not used in
        a call with gradients, after other tokens in a cache, or for chosen tokens only. Raises
        ``ConfigurationError`` if no layer supports it.
        """
        layers = [layer for layer in self.blocks.modules() if hasattr(layer, "fuses_heads")]
        if fused and not layers:
            raise ConfigurationError("set_fused_heads: no layer can rotate the heads it projects")
        for layer in layers:
            layer.fuses_heads = fused  # type: ignore[assignment]

    def set_fused_loss(self, fused: bool) -> None:
        """Choose whether ``loss`` is computed from the residual stream without storing all logits.

        The results differ only by rounding. It is one call of ``kernels.linear_cross_entropy``,
        whose choice of implementation decides what is fused.
        """
        self.fused_loss = fused

    def given(
        self, x_BSE: Tensor, cache: Cache | None, position: Tensor | None
    ) -> Sequence[tuple[Any, ...]]:
        """Return each block's additional arguments, after input, state and position: none here.

        A family whose blocks depend on something that changes from call to call overrides it. The
        returned values must not change in place before the backward pass, which may run blocks
        again.
        """
        return [()] * len(self.blocks)

    def observe(self, measured: Mapping[int, Mapping[str, Tensor]]) -> None:
        """Record the measurements of blocks in this call, by the block's index."""
        for index, values in measured.items():
            for name, row in self._rows[index].items():
                self.record(name, row, values[name])

    def _stream_in(self, x: Tensor, cache: Cache | None, position: Tensor | None) -> Tensor:
        """Return the blocks' input: embedded tokens, or a later stage's unchanged input.

        Where ranks split the residual stream, it has only this rank's tokens.
        """
        if x.is_floating_point() and not self.passage.first:
            return self.stream.split(x)
        check_tokens(x, self.max_sequence, cache, position)
        x = self.stream.split(self.context.split(x))
        if self.passage.first:
            return self.embedding(x)  # type: ignore[no-any-return]
        weight = next(self.blocks.parameters())
        return torch.ones(*x.shape, self.dim, dtype=weight.dtype, device=weight.device)

    def _loss(self, x_BSE: Tensor, auxiliary: Tensor | None, targets_BS: Tensor) -> Tensor:
        """Return the mean cross-entropy after all blocks, plus the blocks' own losses."""
        targets_BS = self.stream.split(self.context.split(targets_BS))
        if targets_BS.shape != x_BSE.shape[:2]:
            raise ConfigurationError(
                f"targets must be {tuple(x_BSE.shape[:2])}, one for each token, but are "
                f"{tuple(targets_BS.shape)}"
            )
        if self.fused_loss:
            loss = kernels.linear_cross_entropy(self.norm(x_BSE), self._table(), targets_BS)
        else:
            logits_NV = self._logits(x_BSE).flatten(0, 1)
            wide = torch.promote_types(logits_NV.dtype, torch.float32)
            loss = functional.cross_entropy(logits_NV.to(wide), targets_BS.flatten())
        loss = self.stream.mean(loss)
        return loss if auxiliary is None else loss + auxiliary

    def _logits(self, x_BSE: Tensor) -> Tensor:
        return project(self.norm(x_BSE), self._table())

    def _table(self) -> Tensor:
        """Return the head's weights (V, E)."""
        return self.embedding.weight if self.head is None else self.head.weight

    def _fused_steps(self, x_BSE: Tensor, position: Tensor | None) -> frozenset[int]:
        """Return the indices of blocks that run by ``fused_step`` in this call."""
        is_step = position is not None and x_BSE.shape[1] == 1 and not torch.is_grad_enabled()
        fits = is_step and is_for_few_rows(x_BSE) and computed_dtype(x_BSE) == x_BSE.dtype
        fits = fits and x_BSE.dtype != torch.float16  # fused norms may overflow it
        return self.fused_linear if fits else frozenset()

    def _run_blocks(
        self, x_BSE: Tensor, cache: Cache | None, position: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Return the residual stream after all blocks, and the sum of their losses or None."""
        n_blocks = len(self.blocks)
        recompute_flags = (
            self.choose_checkpointed(0 if cache is not None else n_blocks) or [False] * n_blocks
        )
        steps = self._fused_steps(x_BSE, position)
        is_fused = [
            self.fused_add_norm
            and not checkpointed
            and index not in steps
            and hasattr(block, "branches")
            for index, (checkpointed, block) in enumerate(
                zip(recompute_flags, self.blocks, strict=True)
            )
        ]
        self.fused_additions = self.applied_blocks = 0
        self.applied_tokens = x_BSE.shape[1]
        total: Tensor | None = None
        normed_BSE: Tensor | None = None  # the next block's norm, if the addition computed it
        measured: dict[int, Mapping[str, Tensor]] = {}
        block_inputs = self.given(x_BSE, cache, position)
        indices = self.passage.blocks
        for index in indices:
            block = self.blocks[index]
            state = None if cache is None else cache.layers[index]
            drawn = block.draw(x_BSE) if hasattr(block, "draw") else ()
            inputs = (*block_inputs[index], *drawn)
            if recompute_flags[index]:
                inner = getattr(block, "inner_additions", 0) if self.fused_add_norm else 0
                call = functools.partial(_run_fused, block) if inner else block
                output = self.recomputed(call, x_BSE, None, None, *inputs)
                self.fused_additions += inner
            elif is_fused[index]:
                u_BSE = block.first_norm(x_BSE) if normed_BSE is None else normed_BSE
                x_BSE, output = block.branches(u_BSE, x_BSE, state, position, *inputs)
                self.fused_additions += getattr(block, "inner_additions", 0)
            else:
                step = block.fused_step if index in steps else block
                output = step(x_BSE, state, position, *inputs)
            if not isinstance(output, BlockOutput):
                output = BlockOutput(output, None, {})
            normed_BSE = None
            self.applied_blocks += 1
            if not is_fused[index]:
                x_BSE = output.x
            elif index + 1 < indices.stop and is_fused[index + 1]:
                norm = self.blocks[index + 1].first_norm
                normed_BSE, x_BSE = norm.after_addition(output.x, x_BSE)
                self.fused_additions += 1
            else:
                x_BSE = x_BSE + output.x
            if output.loss is not None:
                total = output.loss if total is None else total + output.loss
            if output.measured:
                measured[index] = output.measured
        self.observe(measured)
        return x_BSE, total
