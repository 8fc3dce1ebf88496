"""Time the operators of the kernel library against PyTorch, torch.compile and installed peers."""

from __future__ import annotations

import argparse

from sessions.studies.kernel_leaders import leaders, leaders_table
from sessions.studies.kernels import kernels_table, speedups, tuned_tiles
from workbench import protocol
from workbench.commands._arguments import positive_float, result_arguments
from workbench.commands._command import Command, Mistaken, answer, answer_json, check_session
from workbench.commands._headless import as_data, drive, exit_code, settle
from workbench.commands._tables import render
from workbench.commands.run import summary


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("operators", nargs="*", metavar="OPERATOR", help="default: all")
    parser.add_argument(
        "--dtype",
        default="",
        help="bfloat16, float16 or float32; default: the fastest that the device computes well in",
    )
    parser.add_argument(
        "--every-case",
        action="store_true",
        help="time the small odd sizes too, not only the typical ones",
    )
    parser.add_argument(
        "--tune",
        action="store_true",
        help="first measure each Triton kernel's tiles on this GPU and store the fastest; the "
        "table then compares tuned kernels with those of the heuristics",
    )
    parser.add_argument(
        "--model-shapes",
        nargs="*",
        metavar="MODEL",
        help="use the shapes of public models, such as 'Llama 3.1 8B', from 1 token to 64K, "
        "instead of the operators' own cases; without a name: of all models. The answer then "
        "begins with the best bundled and the best public kernel of each shape",
    )
    parser.add_argument(
        "--budget",
        type=positive_float,
        metavar="SECONDS",
        help="longest total time of timing, shared equally by the cases; a case ends earlier if "
        "its intervals are narrow; building and checking take additional time; default: a few "
        "rounds of each case",
    )
    result_arguments(parser)


def _run(arguments: argparse.Namespace) -> int:
    check_session(arguments.output)

    def begin(catalogue: protocol.Catalogue) -> protocol.Bench:
        for name in arguments.operators:
            if name not in catalogue.operators:
                allowed = ", ".join(catalogue.operators)
                raise Mistaken(f"unknown operator {name!r}; expected one of {allowed}")
        return protocol.Bench(
            operators=arguments.operators,
            dtype=arguments.dtype,
            every_case=arguments.every_case,
            tune=arguments.tune,
            model_shapes=arguments.model_shapes,
            budget_s=arguments.budget,
        )

    outcome = drive(begin)
    session = outcome.session
    session.title = " ".join(["kernels", *arguments.operators])
    saved = settle(outcome, arguments.output)
    if arguments.json:
        answer_json(
            {
                **as_data(outcome, saved),
                "rows": [
                    {**summary(segment), "speedups": speedups(segment, session)}
                    for segment in session.segments
                ],
                "leaders": leaders(session),
            }
        )
    else:
        if arguments.model_shapes is not None and session.segments:
            answer(leaders_table(session).to_markdown())
        if session.segments:
            answer(render(kernels_table(session)))
        if arguments.tune and session.segments:
            answer(tuned_tiles(session))
        if saved:
            answer(f"saved {saved}")
    return exit_code(outcome)


COMMAND = Command(
    name="bench", help=__doc__, arguments=_arguments, run=_run, tabular=True, drives=True
)
