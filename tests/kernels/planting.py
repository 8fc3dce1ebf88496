"""Bugs planted into the source of one of the library's modules for one test."""

import ast
import inspect
import linecache
import sys
import types
from collections import defaultdict
from collections.abc import Collection
from typing import Any

from kernels import OPS, Operator
from kernels.core import launch
from kernels.core.triton_helpers import INSTALLED, INTERPRETED

if INSTALLED:
    from triton.runtime.jit import JITFunction


def planted(module_name: str, old: str, new: str) -> types.ModuleType:
    """Return a fresh copy of the module with the bug in it; Triton reads the copy's source."""
    original = sys.modules[module_name]
    source = inspect.getsource(original)
    assert source.count(old) == 1, f"{module_name} has {source.count(old)} of {old!r}"
    source = source.replace(old, new)
    copy = types.ModuleType(f"{module_name}_planted")
    # Triton assembles it: the name must be one line
    copy.__file__ = f"<planted {module_name} {hash(new)}>"
    linecache.cache[copy.__file__] = (
        len(source), None, source.splitlines(keepends=True), copy.__file__,
    )  # fmt: skip
    sys.modules[copy.__name__] = copy
    exec(compile(source, copy.__file__, "exec"), copy.__dict__)
    return copy


def plant(monkeypatch, module_name: str, old: str, new: str) -> None:
    """Use the copy's functions, classes and kernels wherever the original's are used."""
    copy = planted(module_name, old, new)
    original = sys.modules[module_name]
    users = [m for n, m in list(sys.modules.items()) if n.startswith("kernels")]
    for name, value in list(vars(original).items()):
        if not callable(value) or name.startswith("__") or not hasattr(copy, name):
            continue
        for user in users:
            if user is not copy and vars(user).get(name) is value:
                monkeypatch.setattr(user, name, getattr(copy, name))
    for kernel in jit_functions():  # kernels compiled before may contain the original
        monkeypatch.setattr(kernel, "hash", None)
        monkeypatch.setattr(kernel, "used_global_vals", {})
        monkeypatch.setattr(kernel, "device_caches", defaultdict(kernel.create_binder))
    launch.forget()


def lost_results(listed: Collection[str]) -> dict[str, tuple[str, str, str, None]]:
    """Return bugs for the operators that are not listed, such as a newcomer's.

    In each bug one ``tl.store`` of the operator's own files stores zeros. The keys and values are
    those of ``test_planted_bugs.BUGS``.
    """
    return {
        f"{name}: result {number} of {module} is lost": (module, old, new, None)
        for name, op in OPS.items()
        if "triton" in op.implementations and name not in listed
        for module in own_modules(op)
        for number, (old, new) in enumerate(lost_stores(inspect.getsource(sys.modules[module])))
    }


def own_modules(op: Operator) -> list[str]:
    """Return the modules of an operator's file, or of its folder."""
    first = ".".join(op.function.__module__.split(".")[:2])
    return sorted(name for name in sys.modules if f"{name}.".startswith(f"{first}."))


def lost_stores(source: str) -> list[tuple[str, str]]:
    """Return each ``tl.store`` of a source, and one that stores zeros in its place.

    Calls that repeat are left out, because a bug is planted in one of them.
    """
    bugs = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "tl.store":
            call = ast.get_source_segment(source, node) or ""
            value = ast.get_source_segment(source, node.args[1]) or ""
            if source.count(call) == 1:
                start, end = call[: call.index(",")], call[call.index(",") :]
                bugs.append((call, start + end.replace(value, f"0 * ({value})", 1)))
    return bugs


def jit_functions() -> list[Any]:
    """Return the library's jitted functions; none in the interpreter, which caches nothing."""
    if INTERPRETED or not INSTALLED:
        return []
    functions = {
        id(value): value
        for name, module in list(sys.modules.items())
        if name.startswith("kernels")
        for value in vars(module).values()
        if isinstance(value, JITFunction)
    }
    return list(functions.values())


# The following are in the form of ``BUGS`` in ``test_planted_bugs``.
STEP = "kernels.ssd_step._kernels"
DECODING = {"batch": 2, "heads": 4, "dim": 9, "groups": 2, "states": 20, "log": True}
CONV = "kernels.causal_conv1d._kernels"
CONV_STEP = {"batch": 2, "length": 1, "dim": 5, "width": 4, "update": True}
STATE_BUGS = {
    "ssd_step: the decay is the logarithm itself": (STEP, "a = -tl.exp(a)", "a = -a", DECODING),
    "ssd_step: the gradient of the logarithm is that of A": (
        STEP,
        "        da *= a\n",
        "        da *= 1.0\n",
        DECODING,
    ),
    "ssd_step: the update is lost": (
        STEP,
        "tl.store(new_ptr + o_state, b_state, mask=m)",
        "tl.store(new_ptr + o_state, b_state, mask=m & (not IN_PLACE))",
        DECODING | {"update": True},
    ),
    "ssd_step: the last row is not updated": (
        STEP,
        "tl.store(new_ptr + o_state, b_state, mask=m)",
        "tl.store(new_ptr + o_state, b_state, mask=m & (o_p < P - 1)[:, None])",
        DECODING | {"update": True},
    ),
    "causal_conv1d: a row is loaded after another is stored over it": (
        CONV,
        "tl.debug_barrier()",
        "tl.store(final_ptr + (i_b * dim + o_d) * W + 1, b_b, mask=m_d)\n"
        "            b_a = _row(x_ptr, state_ptr, t, length, x_row, o_d, dim, W, HAS_STATE)",
        CONV_STEP,
    ),
    "causal_conv1d: the newest row is not updated": (
        CONV,
        "tl.store(p_final + 3, b_d, mask=m_d)",
        "tl.store(p_final + 3, b_c, mask=m_d)",
        CONV_STEP,
    ),
}

# Bugs in the loss.
LOSS = "kernels.linear_cross_entropy._kernels"
LOSS_BUGS = {
    "linear_cross_entropy: the target is not subtracted": (
        LOSS, "tl.where(start + o_v == target, 1.0, 0.0)", "0.0", None,
    ),
    "linear_cross_entropy: ignored tokens have a gradient": (
        LOSS, "tl.where(counts, b_d * share, 0.0)", "b_d * share", None,
    ),
    "linear_cross_entropy: only the last block of words counts": (
        LOSS, "total = total * tl.exp(top - higher) + tl",
        "total = total * 0.0 + tl", {"rows": 2, "dim": 4, "words": 66000},
    ),
    "linear_cross_entropy: numbers after the last word count": (
        LOSS, 'b_x = tl.where(o_v < V, b_x, float("-inf"))', "b_x += 0.0",
        {"rows": 2, "dim": 4, "words": 100},
    ),
    "linear_cross_entropy: the mean is over all tokens": (
        LOSS, "((b_target != ignore_index) & m)", "m", None,
    ),
    "linear_cross_entropy: gradients are for a gradient of 1 of the loss": (
        LOSS, "if factor != 1.0:", "if factor < -1e9:", None,
    ),
}  # fmt: skip

# Bugs in the other kernels of decoding steps.
LINEAR = "kernels.linear._kernels"
SURROUNDED = {"rows": 3, "k": 100, "n": 33, "gated": True, "norm": True, "residual": True}
FEW_ROWS = {"rows": 3, "k": 100, "n": 33, "bias": True}
CACHE = "kernels.rope_to_cache._kernels"
TOKEN = {"batch": 5, "heads": 2, "kv_heads": 1, "dim": 24, "capacity": 6, "position": 3}
DECODING_BUGS = {
    "linear: the last output is left out": (
        LINEAR,
        "m_n = o_n < n_outputs\n",
        "m_n = o_n < n_outputs - 1\n",
        None,
    ),
    "linear: the last row is left out": (
        LINEAR,
        "m_m = o_m < n_rows\n",
        "m_m = o_m < n_rows - 1\n",
        FEW_ROWS,
    ),
    "linear: only the last step reaches the sum": (
        LINEAR,
        "acc=b_y, input",
        "input",
        FEW_ROWS | {"k": 1040},
    ),
    "linear: the sums of a step read the same inputs": (
        LINEAR,
        "tl.arange(0, SPLIT)[:, None, None] * BLOCK_K",
        "tl.zeros([SPLIT, 1, 1], tl.int32)",
        FEW_ROWS,
    ),
    "linear: the last input is left out": (
        LINEAR,
        "m_m[None, None, :] & (o_x_k < K)",
        "m_m[None, None, :] & (o_x_k < K - 1)",
        None,
    ),
    "linear: the bias is left out": (LINEAR, "if HAS_BIAS:", "if False:", FEW_ROWS),
    "fused_linear: the gate is not multiplied": (
        LINEAR,
        "tl.sigmoid(b_y) * b_up",
        "tl.sigmoid(b_y)",
        SURROUNDED,
    ),
    "fused_linear: gate and the other half are the same": (
        LINEAR,
        "(o_n + n_outputs)",
        "o_n",
        SURROUNDED,
    ),
    "fused_linear: the other half has no factor of the norm": (
        LINEAR,
        "            b_up *= b_factor",
        "            b_up *= 1.0",
        SURROUNDED,
    ),
    "fused_linear: only the last step reaches the norm": (
        LINEAR,
        "b_squares += b_wide",
        "b_squares = b_wide",
        SURROUNDED | {"k": 1040},
    ),
    "fused_linear: the norm has no weight": (LINEAR, "(b_wide * b_norm)", "b_wide", SURROUNDED),
    "fused_linear: the norm has no factor": (
        LINEAR,
        "        b_y *= b_factor",
        "        b_y *= 1.0",
        SURROUNDED,
    ),
    "fused_linear: the residual is left out": (
        LINEAR,
        "if HAS_RESIDUAL:",
        "if False:",
        SURROUNDED,
    ),
    "qkv_rope: the first position is forgotten": (
        "kernels._qk_kernels",
        "position = i_s + offset\n",
        "position = i_s\n",
        {"batch": 2, "length": 5, "heads": 2, "kv_heads": 1, "dim": 8, "width": 16, "offset": 4},
    ),
    "rope_to_cache: values are rotated": (
        CACHE,
        "if i_h >= Q_HEADS + KV_HEADS:",
        "if i_h > Q_HEADS + KV_HEADS:",
        TOKEN,
    ),
    "rope_to_cache: the second half is not rotated": (
        CACHE,
        "b_b = b_b * b_cos + b_a * b_sin",
        "b_b = b_b * b_cos",
        TOKEN,
    ),
    "rope_to_cache: keys have the weights of queries": (
        CACHE,
        "load_weights(k_weight_ptr",
        "load_weights(q_weight_ptr",
        TOKEN | {"norm": True},
    ),
    "rope_to_cache: only the first half is multiplied by the matrix": (
        CACHE,
        "b_bottom, b_y,",
        "0.0 * b_bottom, b_y,",
        TOKEN | {"matrix": True},
    ),
    "rope_to_cache: keys and values go to the next position": (
        CACHE,
        "position * cache_token",
        "(position + 1) * cache_token",
        TOKEN,
    ),
    "rope_to_cache: the length is without the new token": (
        CACHE,
        "tl.store(length_ptr, position + 1)",
        "tl.store(length_ptr, position)",
        TOKEN,
    ),
    "rope_to_cache: every program writes the first samples": (
        CACHE,
        "tl.program_id(1) * BLOCK_B + tl.arange",
        "tl.arange",
        TOKEN | {"batch": 17},
    ),
}
