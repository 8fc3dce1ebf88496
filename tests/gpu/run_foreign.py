"""Run Hugging Face configurations on a GPU with the bundled operators inside their modules.

    python tests/gpu/run_foreign.py             # under 100 seconds on one H100

Every case builds the model of a configuration (a few of its layers, random weights), trains it in
AMP BF16 as it is and with every toggle of *Your model* at once, checks the numbers of both and lets
``ab`` judge. Prints a Markdown table: which modules were replaced, which kernels ran, ratios of
time and peak memory. Exits with 1 if a case fails, a module is not recognized or numbers are wrong.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

PATCHES = ("rms_norm", "swiglu", "geglu", "rope", "attention", "loss", "experts",
           "causal_conv1d", "ssd_scan", "gated_rms_norm")  # fmt: skip
DECODER = {"rms_norm", "rope", "attention", "loss"}
# Configuration, batch, what must be replaced. Few layers and words: the parts are full-sized.
_SMALL = "vocab_size=16384,sequence=512"
CASES = (
    (f"hf:olmoe-1b-7b:num_hidden_layers=1,{_SMALL}", 2, DECODER | {"experts"}),
    (f"hf:mixtral-8x7b:num_hidden_layers=1,num_local_experts=3,{_SMALL}", 2,
     DECODER | {"experts"}),
    (f"hf:llama-3.1-8b:num_hidden_layers=1,{_SMALL}", 2, DECODER | {"swiglu"}),
    (f"hf:qwen3-0.6b:num_hidden_layers=4,{_SMALL}", 2, DECODER | {"swiglu"}),
    (f"hf:gemma-3-1b:num_hidden_layers=6,{_SMALL},sliding_window=128", 2, DECODER | {"geglu"}),
    (f"hf:mamba2-780m:num_hidden_layers=4,{_SMALL}", 2,
     {"rms_norm", "gated_rms_norm", "causal_conv1d", "ssd_scan", "loss"}),
    (f"hf:gpt2:n_layer=4,{_SMALL}", 4, {"attention", "loss"}),
    (f"hf:bert-base:num_hidden_layers=4,{_SMALL}", 4, {"attention"}),
)  # fmt: skip
OWN = ("tests/examples/own_plain.py", 16, set(PATCHES))
AT_ONCE = 4  # processes that build on the CPU while others use the GPU; times are not the point


def judge(case: tuple[str, int, set[str]]) -> tuple[str, bool]:
    """Return the row of a case, and True if all is as it should be."""
    source, batch, expected = case
    options = ",".join(f"patch_{name}=on" for name in PATCHES)
    command = [sys.executable, "-m", "workbench", "ab", "--model", source, "--workload", "train"]
    command += ["--set", f"batch={batch}", "--toggle", "precision=amp_bf16", "--b", options]
    command += ["--budget", "3", "--builds", "1", "--no-energy", "--json"]
    began = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    seconds = time.monotonic() - began
    try:
        result = json.loads(done.stdout)
    except ValueError:
        result = {}
    if not result.get("verdict"):
        failures = [failure["sentence"] for failure in result.get("failures", [])]
        why = "; ".join(failures or done.stderr.strip().splitlines()[-1:] or ["no answer"])
        return f"| {source} | **failed** | – | {why.replace('|', '/')} | {seconds:.0f} |", False
    evidence = {
        row["toggle"].removeprefix("patch_"): row
        for row in result["arms"][1]["evidence"]
        if row["toggle"].startswith("patch_")
    }
    missing = [name for name in expected if evidence.get(name, {}).get("status") != "effective"]
    texts = [f"{name}: {evidence[name]['text']}" for name in sorted(expected & evidence.keys())]
    numbers = {side: row["ok"] for side, row in (result.get("numerics") or {}).items()}
    is_right = bool(numbers) and all(ok is not False for ok in numbers.values())
    good = not missing and is_right
    ratio = result.get("ratio")
    shown = f"{ratio:.3f}" if isinstance(ratio, float) else "–"
    if missing:
        texts.insert(0, f"**not effective: {', '.join(sorted(missing))}**")
    if not is_right:
        texts.insert(0, f"**numbers: {numbers}** {json.dumps(result.get('numerics'))}")
    text = "; ".join(texts).replace("|", "/")
    return f"| {source} | {result['verdict']} | {shown} | {text} | {seconds:.0f} |", good


def main() -> int:
    """Run every case and print the table; 1 if one failed."""
    print(
        "| configuration | verdict | step time | evidence | s |\n| --- | --- | ---: | --- | ---: |"
    )
    good = True
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for row, is_good in pool.map(judge, (*CASES, OWN)):
            print(row, flush=True)
            good &= is_good
    return int(not good)


if __name__ == "__main__":
    raise SystemExit(main())
