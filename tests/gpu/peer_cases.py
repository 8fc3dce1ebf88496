"""The cases of ``run_peers.py``: our blocks, and those of other libraries with the same weights.

A case makes both sides in any precision. Shapes: B batch, S sequence, E width of the stream.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from models import FAMILIES, BlockOutput

FP32 = 1e-4  # of the norm, where both multiply in FP32
TF32 = 5e-3  # the same where the peer's own kernels multiply in TF32
BF16 = 0.05  # of the norm: how far the peer's own BF16 may be from its FP32
ROUTED = 0.25  # the same where a router that rounds to BF16 sends some tokens elsewhere
SCAN = "selective_scan_cuda"  # Mamba-1's; mamba_ssm asks for it, Mamba-2 does not use it
DECODER, MAMBA, SMALL = (4, 2048, 2048), (4, 4096, 2560), (2, 64, 128)  # B, S, E


@dataclass(frozen=True)
class Side:
    """A block as a function of the stream, (B, S, E) -> (B, S, E), and the module that it is."""

    call: Callable[[Tensor], Tensor]
    module: nn.Module
    trains: bool = True  # whether it runs in training mode in the pass that does


@dataclass(frozen=True)
class Case:
    """One peer's block; ``make`` gives our side and the peer's, for (small, device, dtype)."""

    name: str
    peer: str
    package: str
    shape: tuple[int, int, int]
    make: Callable[[bool, torch.device, torch.dtype], tuple[Side, Side]]
    note: str = ""
    fp32: float = FP32
    bf16: float = BF16

    def size(self, small: bool) -> tuple[int, int, int]:
        """Return the stream's size: B, S, E."""
        return SMALL if small else self.shape


def absent(name: str) -> str:
    """Return why a package cannot be imported, or nothing."""
    if name == "mamba_ssm" and SCAN not in sys.modules and importlib.util.find_spec(SCAN) is None:
        sys.modules[SCAN] = types.ModuleType(SCAN)
    try:
        importlib.import_module(name)
    except Exception as error:  # noqa: BLE001  whatever a package does as it comes
        return f"{type(error).__name__}: {error}"
    return ""


def cases() -> list[Case]:
    """Return what is compared, in the order of interest."""
    fast = not absent("mamba_ssm")
    convolved = not absent("causal_conv1d")
    kind = "causal_conv1d's convolution" if convolved else "torch's convolution (no causal_conv1d)"
    listed = [
        Case("llama", "LlamaDecoderLayer", "transformers", DECODER, llama, "SDPA"),
        Case(
            "mamba2 mixer",
            "Mamba2",
            "mamba_ssm",
            MAMBA,
            lambda *a: mamba_mixer(*a, convolved=convolved),
            kind,
            fp32=TF32,
        ),
        Case(
            "mamba2 block",
            "Mamba2Block",
            "transformers",
            MAMBA,
            # Its fused path in training needs both packages, and takes it if there is one.
            lambda *a: mamba_block(*a, trains=convolved or not fast),
            f"mamba_ssm's scan, {kind}" if fast else "its PyTorch scan (no mamba_ssm)",
            fp32=TF32 if fast else FP32,
        ),
    ]
    for experts, k in ((64, 8), (8, 2)):
        listed.append(
            Case(
                f"mixtral E{experts} k{k}",
                "MixtralDecoderLayer",
                "transformers",
                DECODER,
                lambda *a, e=experts, k=k: mixtral(*a, experts=e, top_k=k),
                "SDPA, grouped_mm",
                bf16=ROUTED,
            )
        )
    return listed


def llama(small: bool, device: torch.device, dtype: torch.dtype) -> tuple[Side, Side]:
    """Return a dense block of HYDRA beside Llama's."""
    sizes = {"dim": 128, "n_heads": 4, "n_kv_heads": 2} if small else {}
    more = {"dim": 2048, "n_heads": 32, "n_kv_heads": 8, "mlp_ratio": 2.75} | sizes
    return decoders("hydra", more, small, device, dtype)


def mixtral(
    small: bool, device: torch.device, dtype: torch.dtype, *, experts: int, top_k: int
) -> tuple[Side, Side]:
    """Return a block of experts beside Mixtral's."""
    sizes = {"input_dim": 128, "hidden_dim": 64, "n_heads": 4, "n_kv_heads": 2} if small else {}
    more = {"input_dim": 2048, "hidden_dim": 1024, "n_heads": 32, "n_kv_heads": 8} | sizes
    more |= {"num_experts": experts, "top_k": top_k, "load_balance_weight": 0.0}
    return decoders("moe", more, small, device, dtype)


def decoders(
    family: str, more: dict[str, Any], small: bool, device: torch.device, dtype: torch.dtype
) -> tuple[Side, Side]:
    """Our block beside the decoder layer of ``transformers``."""
    model, config = built(family, more, device, dtype)
    other = made_peer(model, config)
    layer, length = other.model.layers[0], SMALL[1] if small else DECODER[1]
    positions = torch.arange(length, device=device)[None]
    like = torch.empty(1, length, 1, device=device, dtype=dtype)
    rotary = other.model.rotary_emb(like, position_ids=positions)  # as ours: made beforehand

    def call(x: Tensor) -> Tensor:
        return layer(x, position_embeddings=rotary)

    return ours(model.blocks[0]), Side(call, layer)


def mamba_block(
    small: bool, device: torch.device, dtype: torch.dtype, *, trains: bool
) -> tuple[Side, Side]:
    """Return a block of the Mamba-2 family beside that of ``transformers``."""
    model, config = built("mamba2", mamba_sizes(small), device, dtype)
    layer = made_peer(model, config, chunk_size=256).backbone.layers[0]
    return ours(model.blocks[0]), Side(layer, layer, trains)


def mamba_mixer(
    small: bool, device: torch.device, dtype: torch.dtype, *, convolved: bool
) -> tuple[Side, Side]:
    """Return the mixer alone, without norm and addition, beside that of ``mamba_ssm``."""
    from mamba_ssm.modules.mamba2 import Mamba2
    from transformers_peers import theirs

    model, config = built("mamba2", mamba_sizes(small), device, dtype)
    size = config.mixer
    mixer = Mamba2(
        config.dim,
        d_state=size.d_state,
        headdim=size.head_dim,
        use_mem_eff_path=convolved,  # one autograd function for all, with that convolution
        device=device,
        dtype=dtype,
    )
    start = "backbone.layers.0.mixer."
    weights = theirs(config, dict(model.named_parameters())).items()
    mixer.load_state_dict(
        {n.removeprefix(start): w.detach() for n, w in weights if n.startswith(start)}
    )
    return ours(model.blocks[0].mixer), Side(mixer, mixer)


def mamba_sizes(small: bool) -> dict[str, Any]:
    """Return the sizes of the mixer of the 2.8B preset."""
    sizes = (128, 32, 32) if small else (2560, 64, 128)
    named = dict(zip(("dim", "head_dim", "d_state"), sizes, strict=True))
    return named | {"attention_every": 0}


def built(
    family: str, more: dict[str, Any], device: torch.device, dtype: torch.dtype
) -> tuple[nn.Module, Any]:
    """Our model of one block, its weights rounded to BF16 in every precision."""
    sizes = {"vocabulary": 256, "n_layers": 1, "max_sequence": 8192, "tie_embeddings": False}
    known = FAMILIES[family]
    config = dataclasses.replace(next(iter(known.presets.values())), **sizes | more)
    return known.materialise(config, device, torch.bfloat16, seed=1).to(dtype), config


def made_peer(model: nn.Module, config: Any, **more: Any) -> nn.Module:
    """Return the model of ``transformers`` with the same weights."""
    from transformers_peers import peer  # here: the package may be missing

    return peer(model, config, **more)


def ours(block: nn.Module) -> Side:
    """Our block, without what it measures of itself."""

    def call(x: Tensor) -> Tensor:
        output = block(x)
        return output.x if isinstance(output, BlockOutput) else output

    return Side(call, block)
