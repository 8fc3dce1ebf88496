"""The kernel library: one operator per file, each ending in one descriptor ``OP``.

Every operator is a function here (``kernels.rms_norm``) that chooses among its implementations;
``kernels.OPS`` maps each name to its descriptor. A file whose name begins with an underscore is
shared machinery. To add an operator, add its file; nothing else needs a change. ``register`` adds
an operator of another package.
"""

import importlib
import pkgutil
import types
from typing import TYPE_CHECKING, Any

from kernels import hardware
from kernels._hydra_names import (
    flexible_attention,
    get_kernel_status,
    set_attention_backend,
    set_use_triton_kernels,
)
from kernels.core.autograd import as_operators
from kernels.core.dispatch import (
    PREFERRED,
    REQUESTED,
    STANDARD,
    choose,
    chosen,
    reasons,
    reset_usage,
    resolve_choice,
    usage,
    using,
    watched,
)
from kernels.core.generations import GENERATIONS, generation
from kernels.core.implementation_timing import MEASURED, NOT_TIMED, Measurement
from kernels.core.measured import captured_choices, measurements, measuring
from kernels.core.operator import (
    OPS,
    Case,
    Cost,
    Implementation,
    Mistake,
    Operator,
    Unavailable,
    Work,
    autocast_dtype,
    own_code,
    running_sum,
    without_autocast,
)
from kernels.core.policy import Policy, attention_usage, policies, policy
from kernels.core.status import Status, status
from kernels.core.tuning import Choice, are_stored, reset_tiles, tiles, tuning
from kernels.core.workspace import Workspace

_SUPPORT = ("core", "hardware", "measure")  # modules for other packages that are not operators


def register(op: Operator) -> None:
    """Add an operator under its name, here and in ``OPS``.

    Raises ``Mistake`` if the name is taken. Call it before the first choice or computation.
    """
    if op.name in OPS or op.name in globals():
        raise Mistake(f"{op.name!r} exists already")
    OPS[op.name] = op
    globals()[op.name] = op.function


for _module in pkgutil.iter_modules(__path__):
    if not _module.name.startswith("_") and _module.name not in _SUPPORT:
        _op = importlib.import_module(f"{__name__}.{_module.name}").OP
        if isinstance(globals().get(_op.name), types.ModuleType):
            del globals()[_op.name]  # importing the module bound its name
        register(_op)

from kernels.quantized_matmul import quantize_weight  # noqa: E402

if TYPE_CHECKING:  # signatures for type checkers; an operator without an import here is Any
    from kernels.adaptive_attention import adaptive_attention
    from kernels.add_rms_norm import add_rms_norm
    from kernels.attention import attention
    from kernels.causal_conv1d import causal_conv1d
    from kernels.fourier_mix import fourier_mix
    from kernels.gated_rms_norm import gated_rms_norm
    from kernels.geglu import geglu
    from kernels.graph_diffusion import graph_diffusion
    from kernels.linear import linear
    from kernels.linear_cross_entropy import linear_cross_entropy
    from kernels.low_rank import low_rank
    from kernels.moe_experts import moe_experts
    from kernels.moe_gating import moe_gating
    from kernels.qk_norm import qk_norm
    from kernels.qk_norm_rope import qk_norm_rope
    from kernels.quantized_matmul import quantized_matmul
    from kernels.rms_norm import rms_norm
    from kernels.rope import rope
    from kernels.ssd_scan import ssd_scan
    from kernels.ssd_step import ssd_step
    from kernels.swiglu import swiglu
    from kernels.token_router import token_router
    from kernels.token_scatter import token_scatter

    def __getattr__(name: str) -> Any: ...


__all__ = [
    "GENERATIONS",
    "MEASURED",
    "NOT_TIMED",
    "OPS",
    "PREFERRED",
    "REQUESTED",
    "STANDARD",
    "Case",
    "Choice",
    "Cost",
    "Implementation",
    "Measurement",
    "Mistake",
    "Operator",
    "Policy",
    "Status",
    "Unavailable",
    "Work",
    "Workspace",
    "adaptive_attention",
    "add_rms_norm",
    "are_stored",
    "as_operators",
    "attention",
    "attention_usage",
    "autocast_dtype",
    "captured_choices",
    "causal_conv1d",
    "choose",
    "chosen",
    "flexible_attention",
    "fourier_mix",
    "gated_rms_norm",
    "geglu",
    "generation",
    "get_kernel_status",
    "graph_diffusion",
    "hardware",
    "linear",
    "linear_cross_entropy",
    "low_rank",
    "measurements",
    "measuring",
    "moe_experts",
    "moe_gating",
    "own_code",
    "policies",
    "policy",
    "qk_norm",
    "qk_norm_rope",
    "quantize_weight",
    "quantized_matmul",
    "reasons",
    "register",
    "reset_tiles",
    "reset_usage",
    "resolve_choice",
    "rms_norm",
    "rope",
    "running_sum",
    "set_attention_backend",
    "set_use_triton_kernels",
    "ssd_scan",
    "ssd_step",
    "status",
    "swiglu",
    "tiles",
    "token_router",
    "token_scatter",
    "tuning",
    "usage",
    "using",
    "watched",
    "without_autocast",
]
