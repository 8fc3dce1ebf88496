"""Compare the current commit with a baseline session: step time, memory and results."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from sessions.model import (
    HF,
    OWN,
    SCRIPT,
    Configuration,
    Judgement,
    Segment,
    Session,
    split_source,
)
from sessions.tables import escaped
from sessions.verdicts import verdict
from sessions.verdicts.comparison import choose
from sessions.verdicts.multiple_comparisons import judgement_of
from sessions.verdicts.ratios import Measurement, machine, segment_ratios
from sessions.verdicts.regression import (
    MODEL_COMMIT,
    MODEL_FILE,
    Finding,
    compare_memory,
    compare_results,
    compare_step_time,
    compare_unpaired,
    findings_table,
)
from sessions.verdicts.statistics import clock, steady_ms, summarize
from sessions.verdicts.verdict_words import headline, ratio_line, remarks
from sessions.verdicts.work import COMMIT, short_commit
from workbench import protocol
from workbench.alternating_runners import AlternatingRunners, Variant, VariantFailed
from workbench.client.headless import Outcome
from workbench.commands._arguments import (
    budget_argument,
    integer,
    percent,
    positive_int,
    region_argument,
    result_arguments,
)
from workbench.commands._command import (
    DONE,
    FAILED,
    UNDECIDED,
    Command,
    Failed,
    Mistaken,
    answer,
    answer_json,
    check_session,
    load,
    print_status,
)
from workbench.commands._headless import Bar, as_data, drive, exit_code, settle
from workbench.commands._tables import render
from workbench.commands.ab import EXPECTATIONS, is_expected
from workbench.commit_checkout import NotCheckedOut, checked_out
from workbench.git import commit_of, repository_of, why_no_repository

BUDGET_S = 60.0
UNPAIRED_S = 10.0  # seconds of steps if only the file can be compared
NOT_SLOWER = "not-slower"
TITLE_DIGITS = 13  # digits of a commit in a title; histories recognise a baseline by it


@dataclass(frozen=True)
class Commits:
    """The two sides: their names, configurations, and the folders that they import from."""

    baseline: Variant | None  # None if it cannot be run
    current: Variant
    why: str = ""  # the baseline cannot be run


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--baseline", type=Path, required=True, metavar="BASE.h5")
    parser.add_argument(
        "--segment",
        type=integer,
        metavar="N",
        help="segment of the baseline; default: the one with the most steady steps",
    )
    parser.add_argument(
        "--model",
        type=Path,
        metavar="FILE.py",
        help="the current file of your own model; default: the same path in this repository",
    )
    parser.add_argument(
        "--expect",
        choices=EXPECTATIONS,
        default=NOT_SLOWER,
        help="exit with 1 if it does not hold or if memory or results regressed, with 3 if one of "
        f"the three is not known; default: {NOT_SLOWER}",
    )
    budget_argument(parser, BUDGET_S)
    region_argument(parser)
    parser.add_argument(
        "--memory-region",
        type=percent,
        metavar="PERCENT",
        help="smaller growth of peak memory does not count; default: 1 on a GPU, 5 on the CPU",
    )
    parser.add_argument(
        "--builds",
        type=positive_int,
        default=1,
        metavar="N",
        help="start both commits N times; from 3 on, the interval includes process differences",
    )
    parser.add_argument("--markdown", action="store_true", help="print Markdown for a pull request")
    result_arguments(parser)


def _run(arguments: argparse.Namespace) -> int:
    check_session(arguments.output, arguments.baseline)
    if arguments.builds == 2:
        raise Mistaken(
            "--builds 2: two are too few to estimate how far processes differ; expected 1 or 3"
        )
    session = load(arguments.baseline)
    base = choose(session, arguments.segment)
    if base.configuration.family == SCRIPT:
        raise Mistaken(
            f"{arguments.baseline} is of a script, which no check can repeat; compare two settings "
            "with `workbench ab --b NAME=OPTION -- COMMAND`"
        )
    with commits_of(session, base, arguments.model) as commits:
        why, outcome = commits.why, None
        if commits.baseline is not None:
            try:
                outcome = _alternate(commits.baseline, commits.current, arguments)
            except VariantFailed as failed:
                if failed.number == 1:
                    raise Failed(
                        f"the current commit failed: {failed.failure.sentence_with_fix}"
                    ) from None
                reason = failed.failure.sentence_with_fix.rstrip(".")
                why = f"the old commit failed here: {reason}"
        if outcome is None:
            print_status(f"The old commit is not run: {why}. The ratio to the file is unpaired.")
            outcome = _run_current(commits.current, arguments)
    outcome.session.title = f"{base.configuration.title}: check"
    saved = settle(outcome, arguments.output)
    paired = bool(outcome.session.comparisons)
    # An interrupted pair that has not begun leaves at most a segment of the old commit.
    findings = _findings(session, base, outcome.session, arguments) if why or paired else []
    code = _code(outcome, findings)
    if arguments.json:
        rows = [dataclasses.asdict(finding) for finding in findings]
        extra = {"findings": rows, "paired": paired, "unpaired_because": "" if paired else why}
        answer_json(as_data(outcome, saved) | extra)
        return code
    lines = (
        _lines(session, commits, outcome.session, why) if findings else ["Nothing was compared."]
    )
    table = findings_table("Check against the baseline", findings)
    if arguments.markdown:
        lines = [f"- {escaped(line)}" for line in lines]
    answer("\n".join([render(table), *lines] if findings else lines))
    if saved:
        print_status(f"saved {saved}")
    return code


@contextlib.contextmanager
def commits_of(session: Session, base: Segment, file: Path | None) -> Iterator[Commits]:
    """Check the baseline's commit out for as long as the block runs; raises ``Mistaken``."""
    configuration, is_of_file = base.configuration, _is_of_file(base.configuration)
    commit = str(
        base.ledger.get(MODEL_COMMIT, "") if is_of_file else session.environment.get(COMMIT, "")
    )
    relative = str(base.ledger.get(MODEL_FILE, ""))
    current = _with_source(configuration, _current_file(configuration, relative, file))
    folder = Path(_file_and_function(current)[0]).parent if is_of_file else _own_folder()
    repository = repository_of(folder)
    current_commit = commit_of(repository) if repository else ""
    name = short_commit(current_commit, TITLE_DIGITS)
    variant = Variant(f"current {name}".strip(), current, repository)
    why = ""
    if not commit:
        why = "the baseline does not record its commit"
    elif repository is None:
        why = why_no_repository(folder)
    elif commit.endswith("+") and not is_of_file:
        why = f"the baseline was recorded with uncommitted changes on {commit[:12]}"
    if why or repository is None:
        yield Commits(None, variant, why)
        return
    with contextlib.ExitStack() as stack:
        try:
            checkout = stack.enter_context(checked_out(repository, commit.rstrip("+")))
        except NotCheckedOut as reason:
            yield Commits(None, variant, str(reason))
            return
        old = configuration  # has the SHA-256, so that another content is refused
        if is_of_file:
            file = (checkout / relative).resolve()
            if not file.is_relative_to(checkout):  # otherwise the current file would be used
                yield Commits(None, variant, "the baseline's file is outside of its repository")
                return
            old = _with_source(configuration, file, keep_digest=True)
        yield Commits(Variant(f"baseline {commit[:TITLE_DIGITS]}", old, checkout), variant)


def _is_of_file(configuration: Configuration) -> bool:
    """Return True for a model from a user's file; a Hugging Face model has no file in a commit."""
    source = str(configuration.model.get("source", ""))
    return configuration.family == OWN and not source.startswith(HF)


def _own_folder() -> Path:
    return Path(__file__).resolve().parents[2]


def _current_file(configuration: Configuration, relative: str, file: Path | None) -> Path | None:
    """Return the model's file as it is now; None for a family. Raises ``Mistaken``."""
    if not _is_of_file(configuration):
        if file is not None:
            ran = configuration.model.get("source", f"the family {configuration.family}")
            raise Mistaken(f"--model {file}: the baseline ran {ran}")
        return None
    if file is not None:
        if file.is_file():
            return file.resolve()
        raise Mistaken(f"{file}: there is no such file; name the model's with --model")
    recorded = _file_and_function(configuration)[0]
    if not recorded:
        raise Mistaken("the baseline does not record its model's file; name it with --model")
    # A session file may come from a stranger: it decides on no code outside of this folder.
    folder = (repository_of(Path.cwd()) or Path.cwd()).resolve()
    paths = [path for path in (folder / relative, Path(recorded)) if path.is_file()]
    for path in paths:
        if path.resolve().is_relative_to(folder):
            return path.resolve()
    reason = f"it is outside of {folder}" if paths else "there is no such file"
    raise Mistaken(f"{recorded}: {reason}; name the model's with --model")


def _file_and_function(configuration: Configuration) -> tuple[str, str]:
    """Return the path and the function of a user's model; the path is empty if none is recorded."""
    return split_source(str(configuration.model.get("source", "")))


def _with_source(
    configuration: Configuration, file: Path | None, keep_digest: bool = False
) -> Configuration:
    if file is None:
        return configuration
    function = _file_and_function(configuration)[1]
    model = {**configuration.model, "source": f"{file}:{function}"}
    if not keep_digest:
        model["sha256"] = ""
    return msgspec.structs.replace(configuration, model=model)


def _alternate(base: Variant, current: Variant, arguments: argparse.Namespace) -> Outcome:
    command = protocol.Compare(
        base=base.configuration,
        other=current.configuration,
        budget_s=arguments.budget,
        region=arguments.region / 100,
        build_count=arguments.builds,
        seed=current.configuration.seed,
    )
    decides = functools.partial(_decides, arguments.expect, command)
    with Bar() as progress_bar:
        return AlternatingRunners((base, current), command, decides, progress_bar.watch).run()


def _decides(expectation: str, command: protocol.Compare, judgement: Judgement) -> bool:
    region = max(command.region, command.floor)
    return is_expected(expectation, judgement, region) is not None


def _run_current(current: Variant, arguments: argparse.Namespace) -> Outcome:
    seconds = min(UNPAIRED_S, arguments.budget)
    start = protocol.Start(configuration=current.configuration, seconds=seconds, check="last")
    return drive(lambda _catalogue: start, seconds=seconds)


def _findings(
    baseline: Session, base: Segment, measured: Session, arguments: argparse.Namespace
) -> list[Finding]:
    """Return the findings of step time, memory and results."""
    if not measured.segments:
        return []
    current = measured.segments[-1]
    region = None if arguments.memory_region is None else arguments.memory_region / 100
    if measured.comparisons:
        comparison = measured.comparisons[0]
        judgement, same = judgement_of(comparison), verdict.region_of(comparison)
        shown = is_expected(arguments.expect, judgement, same)
        time = compare_step_time(comparison, None if shown is None else not shown)
        base = measured.segments[0]
        return [time, compare_memory(base, current, region), compare_results(base, current)]
    sides = [
        Measurement(session, segment, clock(segment), summarize(steady_ms(segment)))
        for session, segment in ((baseline, base), (measured, current))
    ]
    ratio = segment_ratios(sides, 0)[1]
    assert ratio is not None
    time = compare_unpaired(sides[0].summary.median, sides[1].summary.median, ratio)
    memory = compare_memory(base, current, region)
    if machine(baseline.environment) != machine(measured.environment):
        memory = dataclasses.replace(memory, regressed=None)  # measured on another machine
    return [time, memory, compare_results(base, current)]


def _lines(baseline: Session, commits: Commits, measured: Session, why: str) -> list[str]:
    if not measured.comparisons:
        return [
            f"The old commit was not run: {why}.",
            "The step times were measured at different times: their ratio is unpaired and proves "
            "nothing.",
        ]
    comparison = measured.comparisons[0]
    lines = [
        f"{headline(comparison)} (A: {commits.baseline.title if commits.baseline else ''}, "
        f"B: {commits.current.title}).",
        f"{ratio_line(comparison)}.",
        *remarks(comparison),
    ]
    baseline_commit = baseline.environment.get(COMMIT, "")
    current_commit = measured.environment.get(COMMIT, "")
    if baseline_commit != current_commit and commits.current.configuration.family == OWN:
        lines.append(
            f"The workbench's commit was {baseline_commit or 'unknown'} "
            f"and is now {current_commit or 'unknown'}."
        )
    return lines


def _code(outcome: Outcome, findings: list[Finding]) -> int:
    code = exit_code(outcome)
    if code != DONE:
        return code
    for finding in findings:
        if finding.regressed:
            print_status(f"{finding.measure}: {finding.change}")
        elif finding.regressed is None:
            print_status(f"{finding.measure}: not known if it regressed ({finding.change})")
    if any(finding.regressed for finding in findings):
        return FAILED
    known = findings and all(finding.regressed is False for finding in findings)
    return DONE if known else UNDECIDED


COMMAND = Command(name="check", help=__doc__, arguments=_arguments, run=_run)
