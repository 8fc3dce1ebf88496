"""Run what optional packages and newer GPUs offer: 8-bit AdamW, FlashAttention, FP8, TorchScript.

    python tests/gpu/run_optional.py            # about 4 minutes on one H100

Prints a Markdown table: what ran and its verdict, and what cannot run here and why. FP8 training is
the forward pass and the gradients in FP8: the workbench offers FP8 for inference alone, and the
table says so. Exits with 1 if something that can run here fails or has wrong numbers.
"""

from __future__ import annotations

import json
import subprocess
import sys

TRAIN = ("--workload", "train")
# Title, family, arguments, the options of the side that is judged.
CASES = (
    ("AdamW in 8 bits, torchao", "hydra", (*TRAIN, "--toggle", "precision=amp_bf16"),
     "adamw=8bit_torchao"),
    ("AdamW in 8 bits, bitsandbytes", "hydra", (*TRAIN, "--toggle", "precision=amp_bf16"),
     "adamw=8bit_bitsandbytes"),
    *(
        (f"{backend}, {workload}", "hydra",
         ("--workload", workload, "--toggle", "precision=amp_bf16"), f"attention={backend}")
        for backend in ("flash2", "flash3", "flash4", "xformers")
        for workload in ("forward", "train")
    ),
    ("FP8 per tensor, inference", "hydra", ("--toggle", "precision=bf16"),
     "quantization=fp8_tensor"),
    ("FP8 per row, inference", "hydra", ("--toggle", "precision=bf16"), "quantization=fp8_row"),
    ("FP8, training", "hydra", (*TRAIN, "--toggle", "precision=bf16"), "quantization=fp8_tensor"),
    ("INT8 quantization-aware training", "hydra", (*TRAIN, "--toggle", "precision=bf16"),
     "quantized_training=int8"),
    ("TorchScript, forward", "mahia", ("--toggle", "triton=off"), "torchscript=trace"),
    ("TorchScript, training", "mahia", (*TRAIN, "--toggle", "triton=off"), "torchscript=trace"),
)  # fmt: skip
NOT_OFFERED = "FP8, training"


def main() -> int:
    """Run every case and print the table; 1 if one failed."""
    failed = 0
    print("| what | result | step time | numbers and evidence |\n| --- | --- | ---: | --- |")
    for title, family, arguments, option in CASES:
        command = [sys.executable, "-m", "workbench", "ab", family, "--preset", "base", *arguments]
        command += ["--b", option, "--budget", "5", "--json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240)
        try:
            answer = json.loads(done.stdout)
        except ValueError:
            answer = {}
        if not answer.get("verdict"):
            failures = [failure["sentence"] for failure in answer.get("failures", [])]
            why = "; ".join(failures or done.stderr.strip().splitlines()[-1:] or ["no answer"])
            blocked = done.returncode == 2
            failed += not blocked
            result = "cannot run here" if blocked else "**failed**"
            if title == NOT_OFFERED and blocked:
                result = "not offered: codes have no gradient, so that FP8 is for inference alone"
            print(f"| {title} | {result} | – | {why.replace('|', '/')} |", flush=True)
            continue
        wrong = done.returncode != 0
        failed += wrong
        ratio = answer.get("ratio")
        shown = f"{ratio:.3f}" if isinstance(ratio, float) else "–"
        texts = "; ".join(check["text"] for check in (answer.get("numerics") or {}).values())
        verdict = f"**exit code {done.returncode}**" if wrong else answer["verdict"]
        print(f"| {title} | {verdict} | {shown} | {texts.replace('|', '/')} |", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
