"""On a host with several GPUs: strong and weak scaling of every kind, beside torch's own engine.

    python tests/gpu/run_scale.py --out FOLDER [--ranks 1,2] [--parts strong weak plain]

Runs ``workbench scale`` on HYDRA training in AMP BF16, compiled, and saves a session and the JSON
of each part in FOLDER, with the charts as PNG. *strong*: 32 sequences in total; *weak*: 16 for each
rank. *experts*: expert parallelism of the family ``moe``, not compiled. *context*: one long
sequence, split among the ranks. *plain*: torch's engine around a plain model
(``plain/distributed.py``) on the most ranks. Prints the tables; exits with 1 if a part failed or
computed wrong numbers.

About a minute for each kind and number of ranks, and two for *plain*: ten minutes on two GPUs with
the default kinds, and twenty on eight.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KINDS = "data,fsdp,sequence,pipeline"
COMBINED = "data+tensor"  # from four ranks on
COMPILED = ("compile=default", "compile_scope=blocks")
AMP = ("precision=amp_bf16", "adamw=fused", "triton=on")
PER_RANK, SEQUENCE = 16, 1024
PLOTS = ("scaling", "rank_lanes")


def main() -> int:
    """Run the parts that were requested; return 1 if one of them failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--ranks", default="1,2")
    parser.add_argument("--parts", nargs="+", default=["strong", "weak", "plain"])
    parser.add_argument("--kinds", default="")
    parser.add_argument("--preset", default="base")
    parser.add_argument("--batch", type=int, default=2 * PER_RANK)
    parser.add_argument("--sequence", type=int, default=SEQUENCE)
    parser.add_argument("--long-sequence", type=int, default=32768)
    parser.add_argument("--budget", type=float, default=8.0)
    parser.add_argument("--device-options", nargs="*", default=[*AMP, *COMPILED])
    parser.add_argument("--with", dest="beside", default="", help="as of workbench scale")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    most = max(map(int, options.ranks.split(",")))
    if not options.kinds:
        options.kinds = KINDS if most < 4 else f"{KINDS},{COMBINED}"
    failed = []
    for part in options.parts:
        began = time.monotonic()
        code = run_plain(options, most) if part == "plain" else run_part(options, part)
        print(f"{part}: {time.monotonic() - began:.0f} s, exit code {code}", flush=True)
        failed += [part] if code else []
    return bool(failed)


def run_part(options: argparse.Namespace, part: str) -> int:
    """Run ``workbench scale`` once; save the session, its JSON and its charts."""
    family, kinds, toggles = "hydra", options.kinds, [*options.device_options]
    mode, batch, sequence = "strong", options.batch, options.sequence
    if part == "weak":
        mode, batch = "weak", PER_RANK
    elif part == "experts":
        family, kinds = "moe", "expert"
        toggles = [toggle for toggle in toggles if toggle not in COMPILED]
    elif part == "context":
        kinds, batch, sequence = "context", 1, options.long_sequence
    session = options.out / f"{part}.h5"
    command = ["scale", family, "--preset", options.preset, "--ranks", options.ranks]
    command += ["--mode", mode, "--kinds", kinds, "--budget", str(options.budget)]
    command += ["--set", f"batch={batch}", "--set", f"sequence={sequence}"]
    if options.beside:
        command += ["--with", options.beside]
    if part == "context":  # longer than the presets allow
        command += ["--set", f"max_sequence={sequence}"]
    for toggle in toggles:
        command += ["--toggle", toggle]
    code, text = workbench([*command, "--json", "-o", str(session)])
    (options.out / f"{part}.json").write_text(text)
    if not session.exists():
        return code or 1
    print(workbench(["export", str(session), "--table", "scaling"])[1])
    print(workbench(["export", str(session), "--table", "ranks"])[1])
    for plot in PLOTS:
        image = options.out / f"{part}-{plot}.png"
        code = workbench(["export", str(session), "--plot", plot, "-o", str(image)])[0] or code
    return code


def workbench(arguments: list[str]) -> tuple[int, str]:
    """Run one command; return its exit code and its output."""
    done = subprocess.run(
        [sys.executable, "-m", "workbench", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


def run_plain(options: argparse.Namespace, ranks: int) -> int:
    """Run torch's engine around a plain model on the most ranks, in strong scaling."""
    out = options.out / "plain.json"
    script = Path(__file__).parent / "plain" / "distributed.py"
    command = ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks), str(script), str(out)]
    code = subprocess.run([sys.executable, *command], check=False, timeout=300).returncode
    if code == 0:
        rows = json.loads(out.read_text())
        for name, row in rows.items():
            efficiency = rows["one_gpu"]["ms"] / (ranks * row["ms"])
            print(f"plain {name:12}{row['ms']:9.2f} ms, efficiency on {ranks}: {efficiency:.3f}")
    return code


if __name__ == "__main__":
    raise SystemExit(main())
