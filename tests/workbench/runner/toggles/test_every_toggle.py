"""Every toggle shows that it took effect, somewhere on a CPU, or says that it is for a GPU alone.

That none shows an effect that it did not have, test_disarmed_toggles.py and test_field_toggles.py
tell.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from built_arms import CPU, configuration, evidence_of, stepped
from disarmed import BESIDE as NEEDED
from disarmed import DATA, PLAIN, WHERE, usual_place

from models import FAMILIES
from sessions.model import Configuration
from workbench.runner.config.resolve import availability
from workbench.runner.toggles import all_toggles

IMAGES = Path(__file__).parents[3] / "examples" / "own_model.py"
KERNELS = IMAGES.with_name("own_kernels.py")
PLACES = WHERE | {
    **dict.fromkeys(("activation_offload", "adamw", "checkpointing"), ("hydra", "train")),
    **dict.fromkeys(("data_parallel", "fused_loss", "quantized_training"), ("hydra", "train")),
    **dict.fromkeys(("pipeline_parallel", "micro_batches", "schedule"), ("hydra", "train")),
    "gradient_compression": ("hydra", "train"),
    **dict.fromkeys(("tensor_parallel", "sequence_parallel"), ("hydra", "forward")),
    "adaptive_precision": ("adaattn", "forward"),
    "adaptive_rank": ("adaattn", "forward"),
    "attention_every": ("mamba2", "forward"),
    "diffusion_steps": ("mahia", "forward"),
    "dynamic_depth": ("mahia", "forward"),
    "fused_add_norm": ("mamba2", "forward"),
    "in_place": ("moe", "forward"),
    "low_rank": ("adaattn", "forward"),
    "kernel_fourier_mix": ("mahia", "forward"),
    "quantization": ("hydra", "forward"),
    "reuse_buffers": ("moe", "forward"),
    "use_fourier": ("mahia", "forward"),
}
# Fields of the model, for options that have nothing to do with the preset's.
MODELS = {
    "adaptive_rank": {"adaptive_rank": False, "qk_dimensions": 8, "refresh_every": 1},
    "adaptive_precision": {"adaptive_precision": False, "refresh_every": 1},
    "low_rank": {"qk_dimensions": 4, "refresh_every": 1},
}
TRAINING = {"activation_offload", "adamw", "checkpointing", "data_parallel", "fused_loss",
            "gradient_compression", "micro_batches", "patch_loss", "pipeline_parallel",
            "quantized_training", "schedule",
            "triton_token_router"}  # fmt: skip
BESIDE = NEEDED | {
    "gradient_compression": {"data_parallel": "2"},
    "micro_batches": {"pipeline_parallel": "2"},
    "schedule": {"pipeline_parallel": "2"},
    "sdp_flash": {"attention": "sdpa"},
    "sequence_parallel": {"tensor_parallel": "2"},
}
# Compiled code is looked at in test_compile_toggles.py. Forbidding torch's last resort on a CPU
# leaves nothing: test_engine_toggles.py and test_engine_toggles_gpu.py. Ranks that keep shares:
# test_shards.py.
ELSEWHERE = {"compile", "compile_scope", "compile_shapes", "sdp_math", "sharding"}
ON_A_GPU = (
    "the same as without this option",
    "needs a CUDA GPU",
    "in the host's memory already",
    "this machine has 1 CPU core",
)
# Of operators of the library that no bundled family calls, but models of one's own may.
UNCALLED = {"triton_geglu": "geglu", "triton_qk_norm": "qk_norm"}


def requested(name: str, option: str) -> Configuration:
    if name in UNCALLED:
        family, workload = "own", "forward"
    else:
        family, workload = PLACES.get(name) or usual_place(name)
    if workload == "train" and name not in TRAINING and not needs_training(family, name):
        workload = "forward"  # it is quicker
    toggles = {"triton": "off", **BESIDE.get(name, {}), name: option}
    if family != "own":
        sequence = 32 if family == "mahia" else 40
        wanted = configuration(
            family, workload, 2, sequence, toggles=toggles, model=MODELS.get(name, {})
        )
        return msgspec.structs.replace(wanted, data=DATA.get(name, wanted.data))
    source = KERNELS if name in UNCALLED else PLAIN if all_toggles()[name].brings else IMAGES
    return Configuration(
        family="own",
        preset="file",
        model={"source": str(source)},
        workload=workload,
        settings={"batch": 2},
        toggles=toggles,
    )


def needs_training(family: str, name: str) -> bool:
    """Return True if all options of a toggle that has no row above are blocked in inference."""
    if name in PLACES or family == "own":
        return False
    there = availability(Configuration(family=family, preset="tiny", workload="forward"), CPU)
    return there.blocked.get(name, {}).keys() >= set(list(all_toggles()[name].options)[1:])


@pytest.mark.parametrize("name", [name for name in all_toggles() if name not in ELSEWHERE])
def test_an_option_of_each_takes_effect_where_it_can(name):
    reasons = []
    for option in list(all_toggles()[name].options)[1:]:
        wanted = requested(name, option)
        there = availability(wanted, CPU)
        if why := there.blocked.get(name, {}).get(option):
            reasons.append(why.reason)
            continue
        assert not there.problems
        arm = stepped(wanted)
        for _ in range(4 * (name in MODELS)):  # until what adapts has settled
            with arm.entered():
                arm.step()
        evidence = evidence_of(arm, name)
        if evidence.status == "as default":
            reasons.append(evidence.text)
            continue
        if evidence.status == "no effect" and "identical with the option off" in evidence.text:
            continue  # automatic choice takes it, too; another option has to show an effect
        assert evidence.status == "effective", evidence.text
        return
    assert reasons and all(any(text in reason for text in ON_A_GPU) for reason in reasons), reasons


def test_what_is_said_to_be_called_by_no_family_is_not():
    called = [family.operators(family.presets["tiny"], workload)
              for family in FAMILIES.values() for workload in family.workloads]  # fmt: skip
    assert not set(UNCALLED.values()) & frozenset.union(*called)
