"""Mamba-2's mixer: a selective state-space model between two linears, and its decode state.

Dao and Gu, "Transformers are SSMs", 2024 (arXiv 2405.21060), section 7.1 and figure 6:

    z, xBC, dt = split(in_proj u),    x, B, C = split(silu(conv(xBC))),    A = -exp(A_log),
    h_t = exp(dt_t A) h_(t-1) + dt_t x_t B_t^T,    y_t = h_t C_t + D x_t,    dt through softplus,
    out_proj(rms_norm(y * silu(z))).

Heads, A, D and dt are H; the heads of a group share B and C, and the norm's mean is over the
channels of a group (section 8.1). Initial values are those of the paper's published models:
softplus(dt_bias) log-uniform in 0.001 to 0.1, -A uniform in 1 to 16, D one, the convolution uniform
with the bound 1/sqrt(W). Linears have the published variance, 1 / (3 inputs), but are normal
instead of uniform.

Shapes: B batch, S sequence, E model width, I inner width, H heads, P head width, G groups, N states
of a head's row, C = I + 2 G N convolved channels, W width of the convolution.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

import kernels
from models.initialisation import Sparing
from models.layers.basic import Linear, RMSNorm
from models.parallel.context_parallel import FULL, Context, SavedBeside
from models.parallel.tensor_parallel_plan import WHOLE, Cut, Division, Region

STEP_MIN, STEP_MAX, STEP_FLOOR = 1e-3, 1e-1, 1e-4
DECAY_MIN, DECAY_MAX = 1.0, 16.0


@dataclass(frozen=True, kw_only=True)
class SSMSizes:
    """Widths of one mixer."""

    dim: int
    inner: int
    head_dim: int
    n_groups: int
    d_state: int
    d_conv: int

    @property
    def n_heads(self) -> int:
        """Heads of the scan."""
        return self.inner // self.head_dim

    @property
    def convolved(self) -> int:
        """Channels of x, B and C."""
        return self.inner + 2 * self.n_groups * self.d_state

    @property
    def projected(self) -> int:
        """Channels of z, x, B, C and dt."""
        return self.inner + self.convolved + self.n_heads


@dataclass
class SSMState:
    """The last W inputs of the convolution, (B, C, W), and the heads' states, (B, H, P, N) in FP32.

    They summarise all earlier tokens, in a size that does not depend on their number. So calls must
    process tokens in order: unlike keys and values, this state cannot go back to a position.
    """

    conv: Tensor
    ssm: Tensor

    def tensors(self) -> list[Tensor]:
        """Return all tensors, for counting bytes and resetting."""
        return [self.conv, self.ssm]

    def carried(self) -> list[Tensor]:
        """Return the tensors that cannot go back to a position."""
        return self.tensors()

    def check_dtype(self, dtype: torch.dtype) -> None:
        """Raise ``ValueError`` if the convolved channels have another dtype than the cache."""
        if dtype != self.conv.dtype:
            raise ValueError(
                f"the cache holds {self.conv.dtype}, but the layer computed {dtype}; "
                "create the cache under the same autocast as the calls that use it"
            )

    def write(self, conv_BCW: Tensor, ssm_BHPN: Tensor) -> None:
        """Replace both in place."""
        self.check_dtype(conv_BCW.dtype)
        self.conv.copy_(conv_BCW)
        self.ssm.copy_(ssm_BHPN)


def inverse_softplus(x: Tensor) -> Tensor:
    """Return the number whose softplus is ``x`` > 0."""
    return x + torch.log(-torch.expm1(-x))


class SSM(Sparing):
    """Mixer, (B, S, E) -> (B, S, E), causal.

    ``n_residuals`` is how many such branches are added to the residual stream in the full model:
    the output linear starts smaller by its root, so that the stream's variance does not grow.
    """

    spared = ("dt_bias", "A_log", "D")

    def __init__(self, sizes: SSMSizes, eps: float, n_residuals: int) -> None:
        super().__init__()
        self.sizes, self.eps = sizes, eps
        self.chunk: int | None = None  # chunk size of the scan; None: the operator chooses
        inner, heads, convolved = sizes.inner, sizes.n_heads, sizes.convolved
        self.in_proj = Linear(sizes.dim, sizes.projected, 1 / math.sqrt(3 * sizes.dim))
        self.conv_weight = nn.Parameter(torch.empty(convolved, sizes.d_conv))
        self.conv_bias = nn.Parameter(torch.empty(convolved))
        self.dt_bias = nn.Parameter(torch.empty(heads))
        self.A_log = nn.Parameter(torch.empty(heads))
        self.D = nn.Parameter(torch.empty(heads))
        self.norm_weight = nn.Parameter(torch.empty(inner))
        self.out_proj = Linear(inner, sizes.dim, 1 / math.sqrt(3 * inner * n_residuals))
        self.region: Region = WHOLE
        self.context: Context = FULL
        self.normed_over = 0  # channels of all ranks, if these share one group; 0: they do not

    @property
    def rows_before(self) -> int:
        """Number of tokens that the state of the convolution holds."""
        return self.sizes.d_conv

    @property
    def beside_split(self) -> SavedBeside:
        """Return the memory that splitting the sequence adds, to compute earlier ranks' state.

        For each token, its heads' weighted inputs, and in FP32 its steps and decays; the states of
        all ranks.
        """
        size = self.sizes
        state = size.inner * size.d_state
        return SavedBeside(own=size.inner, own_fp32=8 * size.n_heads, states_fp32=state)

    def division(self) -> Division:
        """Shard by groups of heads, each with its B and C and its own mean in the norm.

        The heads of a single group are sharded too: each rank computes B and C, and the mean is
        over all ranks.
        """
        size = self.sizes
        inner, heads, states = size.inner, size.n_heads, size.n_groups * size.d_state
        convolved, single_group = (inner, states, states), size.n_groups == 1
        cuts = {
            "in_proj.weight": Cut(0, (inner, *convolved, heads), (2, 3) if single_group else ()),
            "conv_weight": Cut(0, convolved, (1, 2) if single_group else ()),
            "conv_bias": Cut(0, convolved, (1, 2) if single_group else ()),
            "dt_bias": Cut(0, (heads,)),
            "A_log": Cut(0, (heads,)),
            "D": Cut(0, (heads,)),
            "norm_weight": Cut(0, (inner,)),
            "out_proj.weight": Cut(1, (inner,)),
        }
        saved = size.projected + size.convolved + 2 * inner
        if single_group:
            saved -= 2 * 2 * states  # B and C, as projected and as convolved
            # The gated norm's steps: y and z, silu(z), their product, and its norm.
            units, by_steps = "heads of a mixer", 5 * inner
            copies = 2 * inner  # copies of y and z
            return Division(units, heads, cuts, saved, self._narrow, fp32=by_steps, copies=copies)
        return Division("groups of a mixer's heads", size.n_groups, cuts, saved, self._narrow)

    def _narrow(self, ranks: int) -> None:
        size = self.sizes
        if size.n_groups == 1:
            self.normed_over = size.inner
        groups = max(1, size.n_groups // ranks)
        self.sizes = replace(size, inner=size.inner // ranks, n_groups=groups)

    def initial(self, name: str, shape: torch.Size, generator: Generator) -> Tensor:
        """Draw the initial value of parameter ``name``, in FP32 on the CPU."""
        if name in ("D", "norm_weight"):
            return torch.ones(shape)
        uniform = torch.rand(shape, dtype=torch.float32, generator=generator)
        if name == "A_log":
            return torch.log(DECAY_MIN + (DECAY_MAX - DECAY_MIN) * uniform)
        if name == "dt_bias":
            low, high = math.log(STEP_MIN), math.log(STEP_MAX)
            return inverse_softplus(torch.exp(low + (high - low) * uniform).clamp(min=STEP_FLOOR))
        return (2 * uniform - 1) / math.sqrt(self.sizes.d_conv)

    def new_state(self, batch: int, device: torch.device, dtype: torch.dtype) -> SSMState:
        """Return an empty state."""
        size = self.sizes
        return SSMState(
            torch.zeros(batch, size.convolved, size.d_conv, device=device, dtype=dtype),
            torch.zeros(
                (batch, size.n_heads, size.head_dim, size.d_state),
                device=device,
                dtype=torch.promote_types(dtype, torch.float32),
            ),
        )

    def forward(
        self,
        u_BSE: Tensor,
        state: SSMState | None = None,
        position: Tensor | None = None,
        norm: RMSNorm | None = None,
    ) -> Tensor:
        """Mix the sequence, continuing from ``state``, which is updated to the last token.

        ``position`` None means that the state counts as empty. With any other value,
        the state includes all previous tokens. With ``norm``, in a decoding step, it returns ``u +
        forward(norm(u))``, fused into the two linear layers.
        """
        size = self.sizes
        going_on = state is not None and position is not None
        z_BSI, xbc_BSC, dt_BSH = self._projected(u_BSE, norm)
        conv_BCW, ssm_BHPN = None, None
        if state is not None and going_on:
            conv_BCW, ssm_BHPN = state.conv, state.ssm
        elif self.context.ranks > 1:
            conv_BCW = self.context.before(xbc_BSC, self.rows_before).transpose(1, 2)
        is_step = going_on and u_BSE.shape[1] == 1
        updates = is_step and not torch.is_grad_enabled()  # in place
        if state is not None and updates:
            state.check_dtype(xbc_BSC.dtype)
        xbc_BSC, conv_BCW = kernels.causal_conv1d(
            xbc_BSC,
            self.conv_weight,
            self.conv_bias,
            conv_BCW,
            activation="silu",
            update_state=updates,
        )
        states = size.n_groups * size.d_state
        x_BSI, bc_BSK = xbc_BSC.split((size.inner, 2 * states), dim=-1)
        if self.normed_over:
            bc_BSK = self.region.common(bc_BSK)
        b_BSK, c_BSK = bc_BSK.split(states, dim=-1)
        x_BSHP = x_BSI.unflatten(-1, (size.n_heads, size.head_dim))
        b_BSGN, c_BSGN = (t.unflatten(-1, (size.n_groups, size.d_state)) for t in (b_BSK, c_BSK))
        if state is not None and is_step:
            y_BHP, ssm_BHPN = kernels.ssd_step(
                x_BSHP[:, 0],
                dt_BSH[:, 0],
                self.A_log,
                b_BSGN[:, 0],
                c_BSGN[:, 0],
                state.ssm,
                self.D,
                self.dt_bias,
                log_decay=True,
                update_state=updates,
            )
            y_BSI = y_BHP.flatten(1)[:, None]
        else:
            a_H = -torch.exp(self.A_log.to(torch.promote_types(self.A_log.dtype, torch.float32)))
            if self.context.ranks > 1:
                ssm_BHPN = self._state_before(x_BSHP, dt_BSH, a_H, b_BSGN)
            y_BSHP, ssm_BHPN = kernels.ssd_scan(
                x_BSHP,
                dt_BSH,
                a_H,
                b_BSGN,
                c_BSGN,
                self.D,
                self.dt_bias,
                ssm_BHPN,
                chunk=self.chunk,
            )
            y_BSI = y_BSHP.flatten(2)
        if state is not None and not updates:
            state.write(conv_BCW, ssm_BHPN)
        if self.normed_over:
            y_BSI = self._normed(y_BSI, z_BSI)
        else:
            y_BSI = kernels.gated_rms_norm(
                y_BSI, z_BSI, self.norm_weight, group_size=size.inner // size.n_groups, eps=self.eps
            )
        if norm is not None:
            return self.out_proj.fused(y_BSI, residual=u_BSE)
        return self.region.leave(self.out_proj(y_BSI))

    def _state_before(self, x_BSHP: Tensor, dt_BSH: Tensor, a_H: Tensor, b_BSGN: Tensor) -> Tensor:
        """Return the heads' states after the previous ranks' tokens, (B, H, P, N).

        They follow from the states that each rank's own tokens make of zeros. Steps and decays are
        those of ``kernels.ssd_scan``, whose products are rounded likewise.
        """
        size = self.sizes
        with kernels.without_autocast(x_BSHP):
            step_BSH = functional.softplus(dt_BSH.to(a_H.dtype) + self.dt_bias.to(a_H.dtype))
            fall_BSH = kernels.running_sum(step_BSH.double() * a_H.double())
            left_BSH = step_BSH * (fall_BSH[:, -1:] - fall_BSH).exp().to(a_H.dtype)
            x_BSHP = (x_BSHP * left_BSH[..., None]).to(b_BSGN.dtype)
            x_BSGRP = x_BSHP.unflatten(2, (size.n_groups, -1))
            own_BGRPN = torch.einsum("bsgrp,bsgn->bgrpn", x_BSGRP, b_BSGN)
            states_BHX = own_BGRPN.flatten(1, 2).flatten(2).to(a_H.dtype)
            before_BHX = self.context.state_before(states_BHX, fall_BSH[:, -1].to(a_H.dtype))
        return before_BHX.unflatten(2, (size.head_dim, size.d_state))

    def _projected(self, u_BSE: Tensor, norm: RMSNorm | None) -> tuple[Tensor, Tensor, Tensor]:
        """Return z, the channels to convolve, and dt."""
        size = self.sizes
        parts = (size.inner, size.convolved, size.n_heads)
        if norm is not None:
            z_BSI, xbc_BSC, dt_BSH = self.in_proj.fused(u_BSE, norm).split(parts, -1)
            return z_BSI, xbc_BSC, dt_BSH
        entered_BSE = self.region.enter(u_BSE, product=True)
        if not self.normed_over:
            z_BSI, xbc_BSC, dt_BSH = self.in_proj(entered_BSE).split(parts, -1)
            return z_BSI, xbc_BSC, dt_BSH
        # Every rank has the complete gradient of B and C, and a part of the others: two paths to u.
        begin, end = 2 * size.inner, size.inner + size.convolved
        z_BSI, x_BSI = self.in_proj.part(entered_BSE, 0, begin).split(size.inner, dim=-1)
        bc_BSK = self.in_proj.part(self.region.join(u_BSE), begin, end)
        dt_BSH = self.in_proj.part(entered_BSE, end, size.projected)
        return z_BSI, torch.cat((x_BSI, bc_BSK), -1), dt_BSH

    def _normed(self, y_BSI: Tensor, z_BSI: Tensor) -> Tensor:
        """Normalise like ``kernels.gated_rms_norm``, with the mean over all ranks' channels."""
        wide = torch.promote_types(y_BSI.dtype, torch.float32)
        h_BSI = y_BSI.to(wide) * functional.silu(z_BSI.to(wide))
        mean_BS1 = self.region.total(h_BSI.pow(2).sum(-1, keepdim=True)) / self.normed_over
        normed_BSI = h_BSI * torch.rsqrt(mean_BS1 + self.eps) * self.norm_weight.to(wide)
        return normed_BSI.to(y_BSI.dtype)
