"""Attribution: what it says of planted effects, by simulation (seeds fixed, rates stated).

The simulated steps are those of ``test_verdict``: an AR(1) series of lag-1 correlation 0.8 and 2 %
scatter in blocks of 20, plus drift or a changing clock, with the arms of a round in random order.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import special
from session_samples import step_noise

from sessions.model import Evidence, Study
from sessions.studies.attribution import design, estimation
from sessions.studies.attribution import words as attribution_words
from sessions.studies.attribution.rows import Arm, arm_rows
from sessions.verdicts import verdict

STEPS = 20
MARGIN = math.log1p(verdict.REGION)
NAMES = "abcdefgh"


def measured(truth, disturbance="none", *, trials=1, rounds=20, seed=1):
    """Return logs of block medians (trials, rounds, arms) around the true logs of the arms."""
    truth = np.asarray(truth, float)
    rng = np.random.default_rng(seed)
    arms = len(truth)
    n = rounds * arms * STEPS
    x = step_noise(rng, (trials, n))
    if disturbance == "drift":
        x += np.linspace(0, 0.2, n)
    if disturbance == "clock":
        for sign in (1, -1, 1, -1):
            x += 0.03 * sign * (np.arange(n) >= rng.integers(0, n, (trials, 1)))
    if disturbance == "load":  # another program, which comes and goes in the middle of blocks
        changes = rng.random((trials, n)) < 1 / 300
        x += 0.47 * (np.cumsum(changes, axis=-1) % 2)
    if disturbance == "builds":  # each arm's build differs for as long as it lives
        truth = truth + 0.0014 * rng.normal(size=(trials, 1, arms))
    medians = np.median(x.reshape(trials, rounds, arms, STEPS), axis=-1)
    order = rng.permuted(np.broadcast_to(np.arange(arms), medians.shape), axis=-1)
    return truth + np.take_along_axis(medians, order, axis=-1)


def design_arms(mode, count, orders=(), missing=None):
    arms = design.subsets(mode, count, orders)
    return arms, design.contrasts(mode, NAMES[:count], arms, missing or {}, orders)


def judge(contrasts, logs, mean_logs=None, **options):
    unknown = np.full_like(logs, np.nan)
    means = None if mean_logs is None else np.exp(mean_logs)
    return estimation.measure(contrasts, np.exp(logs), unknown, means, **options)


def by_name(effects, kind):
    return {
        effect.contrast.name: effect.judgement for effect in effects if effect.contrast.kind == kind
    }


@pytest.mark.parametrize("rounds", [8, 10, 12])
def test_how_much_longer_would_decide_is_told_of_what_is_undecided(rounds):
    _, contrasts = design_arms("ladder", 2)
    truth, spent_s = [0.0, -0.05, -0.07], 10.0
    few = judge(contrasts, measured(truth, rounds=rounds)[0], seconds=spent_s)
    clear, close = (by_name(few, "step")[name] for name in "ab")
    assert (clear.verdict, close.verdict) == ("FASTER", "UNDECIDED")
    assert clear.more_s is None and estimation.more_s(few) == close.more_s > 0
    pairs_needed = math.ceil(rounds * (1 + close.more_s / spent_s))
    enough = judge(contrasts, measured(truth, rounds=2 * pairs_needed)[0], seconds=2 * spent_s)
    assert by_name(enough, "step")["b"].verdict == "FASTER"
    assert estimation.more_s(enough) is None


def test_the_words_tell_the_seconds_more_and_the_budget_that_they_make():
    facts = {"final": True, "rounds": 12, "seconds": 10.0, "more_s": 34.0}
    remarks = attribution_words.remarks(Study("attribution", "", 0.0, facts=facts))
    assert remarks[-2:] == [
        "12 rounds in 10 s.",
        "Undecided effects: measuring about 34 s more should decide, 44 s in total.",
    ]
    single = attribution_words.remarks(Study("attribution", "", 0.0, facts=facts | {"rounds": 1}))
    assert single[-2] == "1 round in 10 s."
    del facts["more_s"]
    assert "12 rounds in 10 s." in remarks and not any(
        "undecided" in sentence for sentence in remarks[:-1]
    )
    assert remarks[:-1] == attribution_words.remarks(Study("attribution", "", 0.0, facts=facts))


@pytest.mark.parametrize(("facts", "says"), [({}, True), ({"rebuilt_each_block": True}, False)])
def test_the_words_say_that_ratios_are_of_the_builds_that_ran(facts, says):
    facts = {"final": True, "seconds": 5.0, "rounds": 12, **facts}
    remarks = attribution_words.remarks(Study("attribution", "", 0.0, {}, facts, {}))
    assert (attribution_words.ONE_BUILD in remarks) is says


def test_what_the_orders_leave_open_is_not_said_to_be_decided_by_more_rounds():
    orders = design.sampled_orders(6, 4, 3)
    arms, contrasts = design_arms("shapley", 6, orders)
    logs = measured(np.random.default_rng(5).normal(0, 0.05, len(arms)), rounds=12)[0]
    effects = judge(contrasts, logs, seconds=10.0)
    shares = [effect.judgement for effect in effects if effect.contrast.orders]
    assert any(judgement.verdict == "UNDECIDED" for judgement in shares)
    assert all(judgement.more_s is None for judgement in shares)


# Error rates


@pytest.mark.parametrize("disturbance", ["none", "drift", "clock", "load", "builds"])
@pytest.mark.parametrize("mode", ["ladder", "leave-one-out", "factorial"])
def test_toggles_that_do_nothing_are_rarely_said_to_do_something(mode, disturbance):
    """At any look, of 400 attributions with three toggles, before any region and correction.

    An interval that ever leaves 0 outside, for each effect: found 0.5 to 3.5 %. Called FASTER or
    SLOWER beyond +-1 %: none. Builds that differ as much as on an H100 are not called different.
    """
    arms, contrasts = design_arms(mode, 3)
    logs = measured(np.zeros(len(arms)), disturbance, trials=400, rounds=40)
    for contrast in contrasts:
        mean, half = verdict.paths(estimation.values(contrast.weights, logs))
        mean, half = mean[:, verdict.MIN_PAIRS - 1 :], half[:, verdict.MIN_PAIRS - 1 :]
        if disturbance != "builds":  # the intervals are those of the builds
            assert (np.abs(mean) > half).any(axis=1).mean() <= 0.05, contrast
        assert (np.abs(mean) - half > MARGIN).any(axis=1).mean() <= 0.01, contrast


@pytest.mark.parametrize("disturbance", ["none", "drift", "clock"])
def test_the_interval_of_a_fixed_number_of_rounds_covers_in_about_95_percent(disturbance):
    """Check t alone on 600 ladders of 3 rungs, 12 rounds: 93.5 to 96.5 % of rungs are covered."""
    truth = np.array([0.0, -0.1, -0.1, -0.4])
    _, contrasts = design_arms("ladder", 3)
    logs = measured(truth, disturbance, trials=600, rounds=12, seed=3)
    for contrast in contrasts:
        mean, half = verdict.paths(estimation.values(contrast.weights, logs))
        fixed = half[:, -1] / verdict.critical(12) * special.stdtrit(11, 0.975)
        covered = np.abs(mean[:, -1] - estimation.values(contrast.weights, truth)) <= fixed
        assert 0.93 <= covered.mean() <= 0.98, contrast


# What is planted is found


def test_a_ladder_finds_each_rung_and_the_total_is_their_product():
    truth = np.array([0.0, -0.2, -0.2, 0.05, -0.5])
    _, contrasts = design_arms("ladder", 4)
    effects = judge(contrasts, measured(truth, "drift", rounds=150)[0])
    steps = by_name(effects, "step")
    assert [steps[name].verdict for name in "abcd"] == ["FASTER", "SAME", "SLOWER", "FASTER"]
    for name, step in zip("abcd", np.diff(truth), strict=True):
        assert steps[name].low < math.exp(step) < steps[name].high
    (total,) = by_name(effects, "total").values()
    assert total.ratio == pytest.approx(math.prod(effect.ratio for effect in steps.values()))


@pytest.mark.parametrize("disturbance", ["none", "drift"])
def test_a_factorial_finds_additive_effects_and_no_interaction_between_them(disturbance):
    sizes = (-0.3, 0.1, 0.0)
    arms, contrasts = design_arms("factorial", 3)
    truth = [sum(sizes[toggle] for toggle in subset) for subset in arms]
    effects = judge(contrasts, measured(truth, disturbance, rounds=150)[0])
    shares = by_name(effects, "share")
    assert [shares[name].verdict for name in "abc"] == ["FASTER", "SLOWER", "SAME"]
    for name, size in zip("abc", sizes, strict=True):
        assert shares[name].low < math.exp(size) < shares[name].high
    interactions = by_name(effects, "interaction")
    assert len(interactions) == 3
    assert {interaction.verdict for interaction in interactions.values()} == {"SAME"}


def test_a_planted_interaction_is_found_and_only_that_one():
    """Option b gives nothing alone, and 20 % more once a is on; Shapley halves it between them."""
    arms, contrasts = design_arms("factorial", 3)
    truth = [-0.1 * (0 in s) - 0.2 * ({0, 1} <= s) for s in arms]
    effects = judge(contrasts, measured(truth, "clock", rounds=150)[0])
    interactions = by_name(effects, "interaction")
    assert {name: interaction.verdict for name, interaction in interactions.items()} == {
        "a x b": "FASTER",
        "a x c": "SAME",
        "b x c": "SAME",
    }
    assert interactions["a x b"].low < math.exp(-0.2) < interactions["a x b"].high
    shares = by_name(effects, "share")
    for name, size in (("a", -0.2), ("b", -0.1), ("c", 0.0)):
        assert shares[name].low < math.exp(size) < shares[name].high


def test_leaving_one_out_shows_what_each_still_gives_beside_the_others():
    """Options a and b do the same: either alone gives all of it, so leaving one out is free."""
    arms, contrasts = design_arms("leave-one-out", 3)
    truth = [-0.3 * bool(s & {0, 1}) - 0.1 * (2 in s) for s in arms]
    effects = judge(contrasts, measured(truth, rounds=150)[0])
    remaining = by_name(effects, "without")
    assert [remaining[name].verdict for name in "abc"] == ["SAME", "SAME", "FASTER"]
    (total,) = by_name(effects, "total").values()
    assert total.low < math.exp(-0.4) < total.high


def test_sampled_shares_cover_the_true_ones_though_not_every_order_was_run():
    """Check 40 samples of 6 orders of 6 toggles with interactions: 95 % of the shares are covered.

    By the rounds alone, as if all orders had been run, it would be 39 %.
    """
    count = 6

    def log(subset):
        return -0.1 * len(subset) - 0.15 * ({0, 1} <= subset) + 0.1 * (len(subset & {2, 3, 4}) > 1)

    orders = list(itertools.permutations(range(count)))
    true = np.zeros(count)
    for order in orders:
        for rung, own in enumerate(order):
            before = frozenset(order[:rung])
            true[own] += (log(before | {own}) - log(before)) / len(orders)
    covered, narrow = [], []
    for seed in range(40):
        sample = design.sampled_orders(count, 6, seed)
        arms, contrasts = design_arms("shapley", count, sample)
        logs = measured([log(subset) for subset in arms], rounds=12, seed=seed)[0]
        shares = by_name(judge(contrasts, logs), "share")
        for name, truth in zip(NAMES[:count], true, strict=True):
            effect = shares[name]
            covered.append(math.log(effect.low) <= truth <= math.log(effect.high))
            plain = next(c for c in contrasts if c.name == name)
            own = verdict.interval(estimation.values(plain.weights, logs))
            narrow.append(own.low <= truth <= own.high)
    assert np.mean(covered) >= 0.93
    assert np.mean(narrow) < 0.6


@pytest.mark.parametrize("rounds", [7, 20])
def test_what_leaves_a_sampled_share_open_is_told_once_and_in_rounds(rounds):
    arms, contrasts = design_arms("shapley", 6, design.sampled_orders(6, 6, 0))
    logs = np.random.default_rng(0).normal(0, 0.06, (rounds, len(arms)))
    reasons = by_name(judge(contrasts, logs), "share")["a"].reasons
    open_ = "measured 7 of at least 8 rounds" if rounds == 7 else "the interval crosses"
    assert len(reasons) == 2 and reasons[0].startswith(open_)
    assert reasons[1].startswith("sampling 6 orders of the toggles widens the interval by")


# What always holds


@pytest.mark.parametrize("count", range(1, 6))
def test_shares_add_up_to_the_total_whatever_the_arms_took(count):
    orders = design.sampled_orders(count, 5, count)
    for mode in ("factorial", "shapley"):
        arms, contrasts = design_arms(mode, count, orders)
        logs = np.random.default_rng(count).normal(size=len(arms))
        shares = [estimation.values(c.weights, logs) for c in contrasts if c.kind == "share"]
        (total,) = (estimation.values(c.weights, logs) for c in contrasts if c.kind == "total")
        assert math.isclose(sum(shares), total, abs_tol=1e-9)


@pytest.mark.parametrize("mode", design.MODES)
def test_what_all_arms_share_is_no_effect(mode):
    orders = design.sampled_orders(4, 5, 0)
    arms, contrasts = design_arms(mode, 4, orders)
    for contrast in contrasts:
        assert abs(sum(contrast.weights.values())) < 1e-12
        assert all(abs(sum(part.values())) < 1e-12 for part in contrast.orders)
    assert arms[0] == frozenset() and len(set(arms)) == len(arms)


def needs(chosen):
    """Return whether the set satisfies that option c needs option a."""
    return 2 not in chosen or 0 in chosen


@pytest.mark.parametrize("mode", ["factorial", "shapley"])
def test_a_toggle_that_needs_another_one_has_a_share_beside_it_whatever_their_order(mode):
    shares_by_order = []
    for order in itertools.permutations(range(3)):
        back = {toggle: own for own, toggle in enumerate(order)}

        def can_be(chosen, back=back):
            return needs({back[toggle] for toggle in chosen})

        orders = design.sampled_orders(3, 6, 0, can_be)
        arms = design.subsets(mode, 3, orders, can_be)
        assert all(map(can_be, arms)) and len(arms) == 6
        names = ["abc"[back[toggle]] for toggle in range(3)]
        contrasts = design.contrasts(mode, names, arms, {}, orders)
        logs = np.array([sum({0: -1.0, 1: -0.2, 2: -3.0}[back[toggle]] for toggle in arm)
                         for arm in arms])  # fmt: skip
        shares_by_order.append(
            {
                contrast.name: float(estimation.values(contrast.weights, logs))
                for contrast in contrasts
                if contrast.kind == "share" and not contrast.reason
            }
        )
    for shares in shares_by_order:
        assert shares == pytest.approx({"a": -1.0, "b": -0.2, "c": -3.0})


def test_an_interaction_of_which_no_square_can_be_says_so_and_the_others_are_measured():
    arms = design.subsets("factorial", 3, (), needs)
    contrasts = design.contrasts("factorial", NAMES[:3], arms, {})
    reasons = {
        contrast.name: contrast.reason for contrast in contrasts if contrast.kind == "interaction"
    }
    assert reasons["a x c"] == "a and c cannot be switched separately"
    assert not reasons["a x b"] and not reasons["b x c"]
    logs = np.array([-2.0 * ({1, 2} <= arm) for arm in arms])
    values = {contrast.name: estimation.values(contrast.weights, logs) for contrast in contrasts}
    assert values["b x c"] == -2.0, "where a is on"
    assert values["a x b"] == 0.0


def test_a_toggle_is_left_out_together_with_what_needs_it():
    arms = design.subsets("leave-one-out", 3, (), needs)
    contrasts = design.contrasts("leave-one-out", NAMES[:3], arms, {})
    assert [contrast.name for contrast in contrasts] == ["a + c", "b", "c", "all together"]
    logs = np.array([-float(len(arm)) for arm in arms])
    values = [float(estimation.values(contrast.weights, logs)) for contrast in contrasts]
    assert values == [-2.0, -1.0, -1.0, -3.0]


def test_many_effects_are_corrected_for_their_number():
    _, contrasts = design_arms("ladder", 8)
    rng = np.random.default_rng(2)
    rounds = 8
    logs = np.cumsum(np.zeros((rounds, 9)), axis=1)
    doubtful = -0.028 + 0.012 * rng.permutation(np.linspace(-1, 1, rounds))
    logs[:, 1:] += doubtful[:, None]
    alone = judge(contrasts[:1], logs)[0].judgement
    assert alone.verdict == "FASTER" and 0.005 < alone.p < 0.05
    among = judge(contrasts, logs)[0].judgement
    assert among.verdict == "UNDECIDED" and "among 9 comparisons (Holm)" in among.reasons[0]


def test_a_rung_that_could_not_be_measured_counts_with_the_next_one():
    _, contrasts = design_arms("ladder", 3, missing={2: "out of memory"})
    steps = [contrast for contrast in contrasts if contrast.kind == "step"]
    assert [contrast.name for contrast in steps] == ["a", "b", "b + c"]
    assert steps[1].reason == "out of memory"
    assert estimation.values(steps[2].weights, np.array([0.0, 1.0, np.nan, 5.0])) == 4.0
    effects = judge(contrasts, measured([0, 0, np.nan, -0.5])[0])
    assert effects[1].judgement is None and effects[1].reason == "out of memory"
    assert effects[2].judgement.verdict == "FASTER"


def test_an_effect_that_needs_a_missing_arm_says_why_it_is_not_known():
    arms, contrasts = design_arms("factorial", 2, missing={3: "out of memory"})
    assert arms[3] == {0, 1}
    assert {contrast.reason for contrast in contrasts} == {"out of memory"}


def test_void_blocks_leave_a_hole_that_only_effects_with_their_arm_see():
    table = estimation.rounds(
        [0, 0, 0, 2, 2, 2], [1, 1, 0, 0, 1, 2], [9, 2, 1, 3, 4, 5], ["void"] + [""] * 5, 3
    )
    np.testing.assert_array_equal(table, [[1, 2, np.nan], [3, 4, 5]])
    first, second, third = estimation.against_first(table)
    assert (first.n, second.n, third.n) == (2, 2, 1)
    paired = np.log([2, 4 / 3])
    assert second.deviation == pytest.approx(paired.std(ddof=1)), "within rounds, not over all"


def test_memory_is_counted_and_its_effects_are_exact():
    _, contrasts = design_arms("ladder", 2)
    ratios = estimation.memory(contrasts, [1000.0, 500.0, 400.0])
    assert ratios == pytest.approx([0.5, 0.8, 0.4])
    assert np.isnan(estimation.memory(contrasts, [1000.0, math.nan, 400.0])[:2]).all()


@pytest.mark.parametrize(
    ("mode", "count", "sentence"),
    [
        ("stairs", 2, "mode: unknown 'stairs'; expected one of"),
        ("ladder", 0, "at least one toggle"),
        ("factorial", 6, "6 toggles make 64 arms; use at most 5 toggles, or mode shapley"),
    ],
)
def test_what_cannot_be_attributed_is_refused_in_one_sentence(mode, count, sentence):
    with pytest.raises(ValueError, match=sentence):
        design.subsets(mode, count)


def test_what_only_the_median_step_gains_is_no_effect():
    _, contrasts = design_arms("ladder", 1)
    scatter = 0.001 * np.random.default_rng(3).normal(size=(12, 2))
    logs = np.array([0.0, math.log(0.67)]) + scatter
    claimed = by_name(judge(contrasts, logs), "total")["all together"]
    assert claimed.verdict == "FASTER"
    refuted = by_name(judge(contrasts, logs, logs + np.array([0.0, 0.8])), "total")["all together"]
    assert refuted.verdict == "UNDECIDED"
    assert any("the ratio of mean step times" in reason for reason in refuted.reasons)


def test_the_words_and_the_table_name_the_path_of_each_arm():
    arms = [Arm(frozenset(), "base"), Arm(frozenset({0}), "+ x"), Arm(frozenset({0, 1}), "+ y")]
    for arm, path in zip(arms, ("loop", "padded", "padded"), strict=True):
        arm.path = f"moe_experts by {path}"
    columns = arm_rows(arms, np.full((1, 3), np.nan))
    columns = {name: np.array(cells, object) for name, cells in columns.items()}
    columns |= {name: np.full(3, np.nan) for name in ("wrong", "ratio", "low", "high")}
    study = Study("attribution", "three arms", 0.0, {}, {}, {"arms": columns})
    remarks = attribution_words.remarks(study)
    assert remarks[-2:] == ["moe_experts by loop (base).", "moe_experts by padded (+ x, + y)."]
    table = attribution_words.arms_table(study)
    assert [row[table.column("path")] for row in table.rows] == [arm.path for arm in arms]
    del columns["path"]  # of a file from before it was kept
    table = attribution_words.arms_table(study)
    assert "path" not in [column.name for column in table.columns]
    assert attribution_words.remarks(study) == remarks[:-2]


def test_an_effect_that_compares_an_arm_with_itself_is_refused():
    with pytest.raises(ValueError, match="compares nothing"):
        design.Contrast("without", "a", {0: 1.0} | {0: -1.0})


def test_reasons_of_options_without_effect_are_complete():
    """A reason may itself have semicolons, as the entries of an arm have between them."""
    reason = "attention ran in math; flash: the head dimension is odd; torch gives no other reason"
    evidence = [
        Evidence("adamw", "fused", "effective", "1 kernel; fused"),
        Evidence("sdpa", "flash", "no effect", reason),
        Evidence("compile", "max-autotune", "unknown", "no graph: it failed; see above"),
    ]
    columns = arm_rows([Arm(frozenset(), "base", evidence=evidence)], np.ones((1, 1)))
    row = {"evidence": columns["evidence"][0]}
    assert attribution_words.without_effect(row) == [f"sdpa=flash: no effect: {reason}"]
