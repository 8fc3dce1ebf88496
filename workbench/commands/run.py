"""Run one configuration, or a script after --, without a window; print the measurements."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from sessions import numerics
from sessions.ceilings import ceiling_words, utilization
from sessions.model import HF, OWN, Configuration, Phase, Scalar, Segment, Session
from sessions.numbers import counted
from sessions.reproduction import command_lines
from sessions.studies import next_steps
from sessions.tables import segments_table
from sessions.verdicts import statistics
from sessions.verdicts.comparison import steady_peak_bytes
from workbench import calibration, presets, protocol
from workbench.client import runner_command
from workbench.commands import _script
from workbench.commands._arguments import (
    integer,
    positive_float,
    positive_int,
    verbose_argument,
)
from workbench.commands._command import (
    DONE,
    FAILED,
    Command,
    Mistaken,
    answer,
    answer_json,
    check_output_there,
    check_session,
    print_status,
)
from workbench.commands._headless import as_data, drive, exit_code, settle
from workbench.commands._tables import evidence_lines, render
from workbench.protocol.catalogue import expected

_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
SYNTHETIC = "synthetic"  # data that no file has
SECONDS = 10.0  # duration if neither steps nor seconds are requested


def configuration_arguments(parser: argparse.ArgumentParser, family_default: str = "") -> None:
    """Add the arguments that name a configuration; a family with a default may be left out."""
    text = "model family; `workbench doctor` lists them; or hf:CONFIG, as for --model"
    if family_default:
        text += f"; default: {family_default}"
    parser.add_argument("family", nargs="?", help=text)
    parser.set_defaults(family_default=family_default or None)
    parser.add_argument(
        "--model",
        metavar="FILE.py[:build]|hf:CONFIG",
        help="your own model instead of a family: the file's build() returns (module, "
        "example), where the example is a tensor or a tuple of arguments with the batch first, or "
        "(module, make_inputs, loss) with functions make_inputs(batch) and loss(output, *inputs); "
        "or a Hugging Face configuration (a bundled one, a config.json or its folder)",
    )
    parser.add_argument("--preset", default="", help="default: one that fits this device")
    parser.add_argument("--workload", default="forward", help="what a step does; default: forward")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="a field of model or workload",
    )
    parser.add_argument(
        "--toggle",
        action="append",
        default=[],
        metavar="NAME[=OPTION]",
        help="an optimization; the name alone is enough if it has an option 'on' or only two "
        "options; @SET or @FILE.json: all usable options of a toggle set; later ones win",
    )
    parser.add_argument(
        "--seed", type=integer, default=0, help="seed of weights and data; default: 0"
    )
    parser.add_argument("--data", default=SYNTHETIC, help="a text file, whose bytes are tokens")


def _arguments(parser: argparse.ArgumentParser) -> None:
    configuration_arguments(parser)
    parser.epilog = _script.RUN_HELP
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--steps", type=positive_int, help="end after this many steps")
    length.add_argument("--seconds", type=positive_float, help=f"default: {SECONDS:g}")
    parser.add_argument(
        "--check",
        action="store_true",
        help="compare the results with a reference after the last step; wrong ones exit with 1",
    )
    parser.add_argument(
        "--pairing-share",
        type=_share,
        default=protocol.PAIRING_SHARE,
        metavar="SHARE",
        help="share of the time in which a run returns to its baseline after a toggle, for a "
        f"paired ratio; 0: never; default: {protocol.PAIRING_SHARE:g}",
    )
    verbose_argument(parser)
    parser.add_argument("-o", "--output", type=Path, metavar="FILE.h5", help="save the session")
    parser.add_argument(
        "--save-state",
        type=Path,
        metavar="FILE",
        help="decode, generate: file for the decode state at the end of the run",
    )
    parser.add_argument(
        "--load-state",
        type=Path,
        metavar="FILE",
        help="decode, generate: continue from a saved state of the same configuration; the first "
        "step of the run compiles and does not count as decoded",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def _share(text: str) -> float:
    """Read a part of the time; raises what argparse expects."""
    try:
        share = float(text)
    except ValueError:
        share = math.nan
    if not 0 <= share <= protocol.MOST_PAIRING_SHARE:
        most = f"{protocol.MOST_PAIRING_SHARE:g}"
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number from 0 to {most}")
    return share


def _run(arguments: argparse.Namespace) -> int:
    check_session(arguments.output, arguments.save_state)
    if arguments.script is not None:
        return _script.run(arguments, summary)
    if arguments.save_state is not None:
        check_output_there(arguments.save_state)
    seconds = arguments.seconds
    if arguments.steps is None and seconds is None:
        seconds = SECONDS

    def begin(catalogue: protocol.Catalogue) -> protocol.Start:
        command = protocol.Start(
            configuration=configure(catalogue, arguments),
            steps=arguments.steps,
            seconds=seconds,
            check="last" if arguments.check else "never",
            load_state=_sent(arguments.load_state),
            save_state=_sent(arguments.save_state),
            pairing_share=arguments.pairing_share,
        )
        return calibration.respected(catalogue, command)

    outcome = drive(begin, arguments.steps, seconds)
    session = outcome.session
    if session.segments:
        session.title = session.segments[-1].configuration.title
    saved = settle(outcome, arguments.output)
    if arguments.json:
        answer_json(
            {
                **as_data(outcome, saved),
                "segments": [summary(segment) for segment in session.segments],
            }
        )
    else:
        for line in _lines(session, arguments, saved):
            answer(line)
    code = exit_code(outcome)
    wrong = any(numerics.are_wrong(segment.ledger) for segment in session.segments)
    return FAILED if wrong and code == DONE else code


def _lines(session: Session, arguments: argparse.Namespace, saved: str | None) -> Iterator[str]:
    """Yield the result as lines of text: segments, evidence, numbers, next steps and files."""
    if session.segments:
        yield render(segments_table(session))
        if hint := command_lines.session_hint(session):
            yield hint
        yield from evidence_lines(session.segments[-1].evidence, arguments.verbose)
        for segment in session.segments:
            if mark := numerics.mark(segment.ledger):
                yield f"numbers {mark}: {numerics.text(segment.ledger)}"
            if "text" in segment.ledger:
                yield _generated(segment)
    yield from next_steps.lines(session)
    if saved:
        yield f"saved {saved}"
    yield from (event.text for event in session.events if event.kind == "info")
    host_suffix = runner_command.host_suffix(session.environment)
    if host_suffix and arguments.save_state is not None:
        yield f"{arguments.save_state} is{host_suffix}"


def configure(catalogue: protocol.Catalogue, arguments: argparse.Namespace) -> Configuration:
    """Return the configuration of the arguments, in the catalogue's terms."""
    families = {family.name: family for family in catalogue.families}
    workloads = {workload.name: workload for workload in catalogue.workloads}
    family, source = arguments.family, arguments.model
    if family is None and source is None:
        family = arguments.family_default
    if family is not None and source is not None:
        raise Mistaken(f"{family!r} and --model name two models; leave one out")
    if family is not None and family.startswith(HF):
        family, source = None, family
    if family is None and source is None:
        raise Mistaken(f"name a family, one of {', '.join(families)}, or --model FILE.py:build")
    name = family or OWN
    family = _known("unknown family", name, families)
    workload = _known("unknown workload", arguments.workload, workloads)
    model_fields = {field.name: field for field in family.fields}
    step_fields = {field.name: field for field in workload.fields}
    model: dict[str, Scalar] = {}
    if source is not None:
        is_file = not source.startswith(HF)
        model["source"] = runner_command.path(Path(source)) if is_file else source
    settings: dict[str, Scalar] = {}
    for text in arguments.set:
        name, equals, value = text.partition("=")
        if not equals:
            raise Mistaken(f"--set {text}: expected FIELD=VALUE")
        field = _known("--set: unknown field", name, {**model_fields, **step_fields})
        (settings if name in step_fields else model)[name] = _read(field, value)
    return Configuration(
        family=family.name,
        preset=arguments.preset or family.default_preset,
        model=model,
        workload=workload.name,
        settings=settings,
        toggles=_chosen(arguments.toggle, catalogue),
        seed=arguments.seed,
        data=data_path(arguments.data),
    )


def data_path(text: str) -> str:
    """Return the source of the data, so that a session can be run again from any folder."""
    return text if text == SYNTHETIC else runner_command.path(Path(text))


def with_toggles(
    catalogue: protocol.Catalogue, configuration: Configuration, text: str
) -> Configuration:
    """Return the configuration with the toggles of ``NAME=OPTION,...`` and ``@SET`` added."""
    toggles = {**configuration.toggles, **toggles_in(catalogue, text)}
    return msgspec.structs.replace(configuration, toggles=toggles)


def toggles_in(catalogue: protocol.Catalogue, text: str) -> dict[str, str]:
    """Return the option of each toggle in ``NAME=OPTION,...``, where ``@SET`` names several."""
    return _chosen([word.strip() for word in text.split(",") if word.strip()], catalogue)


def changed_toggles(
    catalogue: protocol.Catalogue, base: Configuration, text: str
) -> dict[str, str]:
    """Return the toggles of ``NAME=OPTION,...`` and ``@SET`` that differ from those of ``base``."""
    toggles = with_toggles(catalogue, base, text).toggles
    return {name: option for name, option in toggles.items() if base.toggles.get(name) != option}


def summary(segment: Segment) -> dict[str, Any]:
    """Return a segment in numbers, for the JSON answer."""
    steady = statistics.summarize(statistics.steady_ms(segment))
    return {
        "label": segment.label,
        "configuration": msgspec.to_builtins(segment.configuration),
        "steps": len(segment.steps["t_s"]),
        "steady_steps": steady.n,
        "median_ms": steady.median,
        "p95_ms": steady.p95,
        "clock": statistics.clock(segment),
        "model_flops_utilization": utilization(segment, steady.median),
        "ceiling": ceiling_words(segment),
        "peak_bytes": steady_peak_bytes(segment),
        "phases": [[Phase(p.phase).title, p.start_s, p.stop_s] for p in segment.phases],
        "evidence": [msgspec.to_builtins(evidence) for evidence in segment.evidence],
        "ledger": segment.ledger,
    }


def _chosen(texts: Sequence[str], catalogue: protocol.Catalogue) -> dict[str, str]:
    """Return the option of each toggle that a text or its preset names; the last text counts."""
    toggles = {toggle.name: toggle for toggle in catalogue.toggles}
    chosen: dict[str, str] = {}
    for text in texts:
        if text.startswith(presets.MARK):
            try:
                options, unknown = presets.find(text, catalogue)
            except ValueError as error:
                raise Mistaken(f"--toggle {text}: {error}") from None
            for sentence in unknown:
                print_status(f"{text}: {sentence}")
            chosen |= options
        else:
            chosen |= dict([_toggle(text, toggles)])
    return chosen


def _generated(segment: Segment) -> str:
    """Return a segment's last text with its prompt, and the time of the prompts."""
    ledger = segment.ledger
    tokens = counted(int(segment.configuration.settings["sequence"]), "token")
    return (
        f"\nprefill: {ledger['prefill_ms']} ms for {tokens} "
        f"(median of {ledger['prefills']})\n\nprompt:\n{ledger['prompt']}\n\n"
        f"generated:\n{ledger['text']}"
    )


def _toggle(text: str, toggles: Mapping[str, protocol.ToggleInfo]) -> tuple[str, str]:
    name, _, option = text.partition("=")
    toggle = _known("unknown toggle", name, toggles)
    options = [option.name for option in toggle.options]
    if not option:
        if "on" not in options and len(options) != 2:
            raise Mistaken(f"--toggle {name}: name an option, one of {', '.join(options)}")
        option = "on" if "on" in options else options[1]
    return name, _known(f"toggle {name}: unknown option", option, dict.fromkeys(options, option))


def _known(kind: str, name: str, allowed: Mapping[str, Any]) -> Any:
    if name not in allowed:
        raise Mistaken(f"{kind} {name!r}; expected {expected(name, allowed)}")
    return allowed[name]


def _read(field: protocol.Field, text: str) -> Scalar:
    """Return the text as the field's kind."""
    try:
        if isinstance(field.default, bool):
            return {"true": True, "false": False}[text.lower()]
        value: Scalar = type(field.default)(text)
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError  # messages cannot contain it
        return value
    except (ValueError, KeyError):
        kind = _KINDS[type(field.default)]
        raise Mistaken(f"--set {field.name}={text}: expected {kind}") from None


def _sent(path: Path | None) -> str:
    return "" if path is None else runner_command.path(path)


COMMAND = Command(
    name="run",
    help=__doc__,
    arguments=_arguments,
    run=_run,
    tabular=True,
    drives=True,
    takes_script=True,
)
