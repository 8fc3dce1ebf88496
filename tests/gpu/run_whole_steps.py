"""On a GPU host: our best settings of each family beside plain PyTorch, whole steps, one process.

    python tests/gpu/run_whole_steps.py --out steps.json [--families hydra moe mamba2 adaattn mahia]
        [--workload train|forward|decode] [--budget 140] [--only "plain" "graphs"] [--preset base]

Contenders are the plain model of ``plain/families.py`` (compiled, and captured by ``reduce-
overhead``), for Mamba-2 also with the kernels of ``mamba_ssm`` if it is installed, the Llama or
Mixtral of ``transformers``, and settings of the window through the runner's own code. Families
without a plain model run their own modules with PyTorch's operators alone. All have the same
weights: in AMP BF16 in training, and in BF16 in inference. A decoding step adds one token to each
sequence after the prompt. A contender whose loss (in inference, the size of the logits) differs by
more than ``LOSS`` is not timed. Blocks of steps alternate in random order. A ratio is ours over the
best contender that is not ours, with a 95 % interval and a verdict by the window's rules. The
settings with one operator by Triton show which kernels cost more under torch.compile than what
Inductor fuses. *Fused* settings also fuse the loss, and additions with the norms after them. Writes
JSON after each family. In decoding, *fused norms* leaves gates and norms out of linear layers, and
*not compiled* captures a step of separate kernels in a CUDA graph.
``--device cpu`` only tries the script out.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import functools
import gc
import json
import math
import random
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from peer_cases import absent
from plain.decoding import begin_own, begin_plain, begin_theirs, decoded_size, decoding, size_of
from plain.families import plain_model
from torch import Tensor

import kernels
from models import FAMILIES
from sessions.model import Configuration
from sessions.verdicts import verdict
from workbench.runner.building.variant_cache import VariantCache
from workbench.runner.config import resolve
from workbench.runner.instruments.phases import PhaseTracker
from workbench.runner.toggles import all_toggles
from workbench.runner.training.trainer import forget_graph
from workbench.runner.variants.variant import Variant

LOSS = 5e-3  # relative difference of two losses in BF16
BLOCK_MS, ROUNDS = 120.0, 12
OURS = "ours: "
BASE = {"precision": "amp_bf16", "adamw": "fused", "compile": "default", "triton": "off"}
GRAPHS = BASE | {"cuda_graphs": "on"}
PRESETS = {"hydra": "base", "moe": "base", "mamba2": "96M", "adaattn": "base", "mahia": "base"}
SIZES = {"cuda": {"batch": 8, "sequence": 1024}, "cpu": {"batch": 2, "sequence": 32}}
NEW_TOKENS = 128
FUSED = {
    "fused_linear": "fused_linear",
    "fused_cache": "rope_to_cache",
    "fused_heads": "qkv_rope",
    "fused_loss": "linear_cross_entropy",
    "fused_add_norm": "add_rms_norm",
}
PYTORCH = functools.partial(kernels.using, all="torch")
Step = Callable[[], Any]


class Contender(NamedTuple):
    """A contender that can be timed.

    ``loss`` is its own, ``expected`` that of plain operators with the same weights. Its steps run
    inside ``entered()``. ``idle``: why toggles of a setting had no effect.
    """

    loss: float
    expected: float
    step: Step
    entered: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
    idle: tuple[str, ...] = ()


Make = Callable[[], Contender]


def settings(family: str, workload: str) -> dict[str, dict[str, str]]:
    """Return settings of the window by name, the most promising first."""
    operators = FAMILIES[family].operators
    called: frozenset[str] = frozenset()
    if operators is not None:
        called = operators(FAMILIES[family].presets[PRESETS[family]], workload)
    fused = {toggle: "triton" for toggle, name in FUSED.items() if name in called}
    made = {
        "graphs": GRAPHS,
        "graphs, measured": GRAPHS | {"triton": "auto"},
        "graphs, cuDNN": GRAPHS | {"attention": "sdpa_cudnn"},
        "graphs, Triton": GRAPHS | {"triton": "on"},
        "reduce-overhead": BASE | {"compile": "reduce-overhead"},
        "graphs, measured, fused": GRAPHS | {"triton": "auto"} | fused,
        "graphs, Triton, fused": GRAPHS | {"triton": "on"} | fused,
        "reduce-overhead, fused": BASE | {"compile": "reduce-overhead"} | fused,
    }
    if "fused_linear" in called:
        norms = GRAPHS | {"triton": "auto"} | fused | {"fused_linear": "off"}
        made["graphs, measured, fused norms"] = norms
        made["not compiled, measured, fused"] = made["graphs, measured, fused"] | {"compile": "off"}
    if "swiglu" in called:
        made["reduce-overhead, fused"] |= {"triton_swiglu": "triton"}
    for name in sorted(called - {"attention", *FUSED.values()}):
        if f"triton_{name}" in all_toggles():
            made[f"graphs, {name} by Triton"] = GRAPHS | {f"triton_{name}": "triton"}
    return made


def main() -> int:
    """Time every family; return 1 if one of ours gives another loss, or nothing was timed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("steps.json"))
    parser.add_argument("--families", nargs="+", default=["hydra", "moe", "mamba2"])
    parser.add_argument("--workload", default="train", choices=("train", "forward", "decode"))
    parser.add_argument("--preset", default="")
    parser.add_argument("--budget", type=float, default=140.0)
    parser.add_argument("--only", nargs="+", default=[])
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    deadline = time.monotonic() + options.budget
    report: dict[str, Any] = {"versions": {"torch": torch.__version__}, "families": {}}
    if options.device == "cuda":
        report["device"] = torch.cuda.get_device_name()
    wrong = False
    for number, family in enumerate(options.families):
        share = (deadline - time.monotonic()) / (len(options.families) - number)
        result = measure_family(family, options, time.monotonic() + share)
        report["families"][family] = result
        wrong = wrong or any(
            why.startswith("ArithmeticError") for why in result["failures"].values()
        )
        print(table(family, result), flush=True)
        options.out.write_text(json.dumps(report, indent=1))
        gc.collect()
        if options.device == "cuda":
            torch.cuda.empty_cache()
    timed = any(result["median_ms"] for result in report["families"].values())
    return int(wrong or not timed)


def measure_family(family: str, options: argparse.Namespace, until: float) -> dict[str, Any]:
    """Build, check and time the contenders of one family."""
    preset = options.preset or PRESETS[family]
    device, arms = torch.device(options.device), VariantCache()
    contenders: dict[str, Contender] = {}
    failures: dict[str, str] = {}
    reserve = 0.25 * max(until - time.monotonic(), 0.0)  # for the timing
    for name, make in makers(family, preset, options, device, arms):
        if options.only and not any(part in name for part in options.only):
            continue
        if time.monotonic() > until - reserve:
            failures[name] = "not reached in the budget"
            continue
        began = time.monotonic()
        try:
            contender = make()
            loss, expected = contender.loss, contender.expected
            if not abs(loss / expected - 1) <= LOSS:
                raise ArithmeticError(f"loss {loss:.5f}, expected {expected:.5f}")
            with contender.entered():
                for _ in range(6):
                    contender.step()
                synchronize(device)
            contenders[name] = contender
            if contender.idle:
                failures[f"{name}, without effect"] = "; ".join(contender.idle)
            print(f"  {family} {name}: ready in {time.monotonic() - began:.1f} s", flush=True)
        except Exception as error:  # noqa: BLE001  the other contenders are still to be timed
            failures[name] = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            print(f"  {family} {name}: {failures[name]}\n{traceback.format_exc(limit=-2)}")
    return result_of(rounds(contenders, device, until), failures, preset)


def makers(
    family: str, preset: str, options: argparse.Namespace, device: torch.device, arms: VariantCache
) -> Iterator[tuple[str, Make]]:
    """Yield names of contenders and functions that build them."""
    trains, decodes = options.workload == "train", options.workload == "decode"
    base = {} if device.type == "cuda" else {"precision": "fp32", "compile": "off"}
    sizes = dict(SIZES[device.type])
    longest = FAMILIES[family].longest(FAMILIES[family].presets[preset])
    if decodes:
        sizes["new_tokens"] = NEW_TOKENS
        longest -= NEW_TOKENS
    sizes["sequence"] = min(sizes["sequence"], longest)

    def arm_of(toggles: dict[str, str]) -> Variant:
        usable = toggles | base
        if device.type != "cuda":
            usable = {k: v for k, v in usable.items() if k in ("adamw", "precision", "compile")}
        if not trains:
            usable.pop("adamw", None)
            if usable.get("precision") == "amp_bf16":
                usable["precision"] = "bf16"
        configuration = Configuration(
            family=family, preset=preset, workload=options.workload, settings=sizes,
            toggles=usable,
        )  # fmt: skip
        situation = resolve.resolve(configuration, device)
        resolve.require_unblocked(situation)
        return arms.get(situation, PhaseTracker(lambda phase: None))

    def called(arm: Variant) -> Any:
        return arm.model.loss if trains else arm.model

    reference: list[Variant] = []  # plain operators with the weights that all arms train

    def expected() -> float:
        reference[:] = reference or [arm_of({"adamw": "fused"})]
        with reference[0].entered():
            return loss_of(called(reference[0]), reference[0], device)

    def ours(toggles: dict[str, str]) -> Make:
        def make() -> Contender:
            arm, wanted = arm_of(toggles), expected()
            with arm.entered():
                if arm.decoder is None:
                    loss = loss_of(called(arm), arm, device)
                else:
                    loss = decoded_size(arm.compute, arm)
                arm.restart()
                arm.prepare()
                with arm.watched():
                    arm.step()
                for _ in range(3):  # reduce-overhead records a graph in the second step or third
                    arm.step()
            idle = tuple(
                f"{evidence.toggle}: {evidence.text}"
                for evidence in arm.find_evidence()
                if evidence.status == "no effect"
            )
            # A toggle may replace the arm's step, as by a captured one.
            return Contender(loss, wanted, lambda: arm.step(), arm.entered, idle)

        return make

    def given_weights() -> Variant:
        return arm_of({"adamw": "fused"} if trains else {"precision": "bf16"})

    def plain(mode: str, published: bool = False) -> Make:
        def make() -> Contender:
            arm = given_weights()
            model = plain_model(family, arm.situation.config, arm.model, published)
            if model is None:  # a copy: gradients that stay between its steps belong to no arm
                model = copy.deepcopy(arm.model)
                call: Any = model.loss if trains else model
                begun = functools.partial(begin_own, model, arm)
            else:
                call, begun = model, functools.partial(begin_plain, model, arm)
            with PYTORCH():
                if decodes:
                    call = begun()
                    loss = decoded_size(call, arm)
                    step = decoding(call, arm, mode)
                else:
                    loss = loss_of(call, arm, device)
                    step = stepped(model, call, arm, device, mode, trains)
            return Contender(loss, expected(), step, PYTORCH)

        return make

    def theirs(mode: str) -> Make:
        def make() -> Contender:
            sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "models"))
            from transformers_peers import peer

            arm = given_weights()
            model = peer(arm.model, arm.situation.config).to(device).eval()
            if decodes:
                call, after = begin_theirs(model, arm)
                loss = decoded_size(call, arm)
                return Contender(loss, expected(), decoding(call, arm, mode, after))
            model.train(trains)

            def call(tokens: Tensor, targets: Tensor | None = None) -> Tensor:
                logits = model(input_ids=tokens, use_cache=False).logits
                if targets is None:
                    return logits
                flat = logits.flatten(0, 1).float()
                return torch.nn.functional.cross_entropy(flat, targets.flatten())

            loss = loss_of(call, arm, device)
            return Contender(loss, expected(), stepped(model, call, arm, device, mode, trains))

        return make

    yield "plain compiled", plain("default")
    if device.type == "cuda":
        yield "plain reduce-overhead", plain("reduce-overhead")
    every = settings(family, options.workload)
    first = ("graphs", "graphs, measured", "graphs, cuDNN")
    for name in first:
        yield OURS + name, ours(every[name])
    if family in ("hydra", "moe"):
        yield "transformers compiled", theirs("default")
        if device.type == "cuda":
            yield "transformers reduce-overhead", theirs("reduce-overhead")
    if family == "mamba2" and device.type == "cuda" and not absent("mamba_ssm"):
        yield "plain with mamba_ssm, eager", plain("eager", True)
        yield "plain with mamba_ssm, compiled", plain("default", True)
        yield "plain with mamba_ssm, reduce-overhead", plain("reduce-overhead", True)
    for name, toggles in every.items():
        if name not in first:
            yield OURS + name, ours(toggles)


def autocast(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Return AMP in BF16 on a GPU."""
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")


def loss_of(call: Any, arm: Variant, device: torch.device) -> float:
    """Return the loss of the current batch, or the size of the outputs in inference.

    In decoding, it is that of the logits after the prompt and once more its last token.
    """
    targets = arm.batches.targets if arm.situation.workload.trains else ()
    inputs = arm.batches.inputs
    if arm.decoder is not None:
        inputs = (torch.cat([arm.decoder.prompt_BS, arm.decoder.prompt_BS[:, -1:]], 1),)
    with torch.no_grad(), autocast(device):
        outputs = call(*inputs, *targets)
        return size_of(outputs if arm.decoder is None else outputs[:, -1:])


def stepped(
    model: torch.nn.Module, call: Any, arm: Variant, device: torch.device, mode: str, trains: bool
) -> Step:
    """Return the step that a user would write around a compiled model."""
    torch.set_float32_matmul_precision("high")
    compiled = call
    if mode != "eager":
        compiled = torch.compile(call, mode=None if mode == "default" else mode, dynamic=False)
    inputs = arm.batches.inputs
    if not trains:
        model.eval()

        def infer() -> None:
            with torch.no_grad():
                compiled(*inputs)

        return infer
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=device.type == "cuda")
    given = (*inputs, *arm.batches.targets)

    def train() -> None:
        optimizer.zero_grad(set_to_none=True)
        with autocast(device):
            loss = compiled(*given)
        loss.backward()
        optimizer.step()
        forget_graph(loss)  # its nodes would keep the stream, and no other step could be captured

    return train


def rounds(
    contenders: dict[str, Contender], device: torch.device, until: float
) -> dict[str, list[float]]:
    """Time blocks of all steps in random order; return milliseconds of a step by round."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    counts = dict.fromkeys(contenders, 3)
    draw = random.Random(0)
    for number in range(ROUNDS + 1):
        if number > 3 and time.monotonic() > until:
            break
        for name in draw.sample(list(contenders), len(contenders)):
            ms = block_ms(contenders[name], counts[name], device)
            if number:
                times[name].append(ms)
            else:
                counts[name] = int(max(3, min(60, BLOCK_MS / ms)))
    return times


def block_ms(contender: Contender, count: int, device: torch.device) -> float:
    """Return the time of one step of a block, after a step that is not timed."""
    with contender.entered():
        contender.step()
        synchronize(device)
        began = time.perf_counter()
        for _ in range(count):
            contender.step()
        synchronize(device)
        return 1e3 * (time.perf_counter() - began) / count


def synchronize(device: torch.device) -> None:
    """Wait for the GPU."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def result_of(
    times: dict[str, list[float]], failures: dict[str, str], preset: str
) -> dict[str, Any]:
    """Return medians, and each of ours against the best that is not ours."""
    median = {name: statistics.median(ms) for name, ms in times.items() if ms}
    public = [name for name in median if not name.startswith(OURS)]
    best = min(public, key=lambda name: median[name], default="")
    ratios = {}
    for name in median:
        if name.startswith(OURS) and best:
            logs = [math.log(a / b) for a, b in zip(times[name], times[best], strict=True)]
            span = verdict.interval(logs)
            word, _ = verdict.decide(span, math.log1p(verdict.REGION))
            ends = (span.mean, span.low, span.high)
            ratios[name] = [word, *[round(math.exp(log), 4) for log in ends]]
    measured = {
        f"{op} [{shape}]": value.text(True) for (op, shape), value in kernels.measurements().items()
    }
    return {
        "preset": preset,
        "median_ms": dict(sorted(median.items(), key=lambda item: item[1])),
        "best_other": best,
        "ratios": ratios,
        "rounds_ms": times,
        "failures": failures,
        "measured": measured,
    }


def table(family: str, result: dict[str, Any]) -> str:
    """Return the result as Markdown."""
    lines = [f"\n{family} {result['preset']}; best that is not ours: {result['best_other']}", ""]
    lines += ["| contender | ms | verdict | ratio | 95 % |", "|---|---:|---|---:|---|"]
    for name, ms in result["median_ms"].items():
        word, ratio, low, high = result["ratios"].get(name, (None,) * 4)
        ends = "" if word is None else f"{word} | {ratio:.3f} | {low:.3f} to {high:.3f}"
        lines.append(f"| {name} | {ms:.3f} | {ends or ' |  | '} |")
    lines += [f"- {name}: {why}" for name, why in result["failures"].items()]
    lines += [f"- {what}: {text}" for what, text in result["measured"].items()]
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
