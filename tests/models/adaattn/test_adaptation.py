"""Measurements of a head, and the resulting rank and precision, by rules written out here."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import kernels
from models.layers.adaptive.adaptation import (
    MARGIN,
    PATIENCE,
    TOLERANCE,
    Adaptation,
    settle,
)
from models.layers.adaptive.measurements import SAMPLES, TOKENS, Sight, longest, look, sampled
from models.layers.adaptive.rules import Rules

HEADS, DIM = 3, 16


def drawn(*shape, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def orthogonal(heads, dim, seed=0):
    return torch.linalg.qr(drawn(heads, dim, dim, seed=seed, dtype=torch.float64))[0]


def measured_by_hand(q, k, scale, seen):
    """Compute entropy and largest score per head, one query at a time, in FP64."""
    q, k = q.double(), k.double()
    batch, heads, length, _ = q.shape
    n = min(SAMPLES, length)
    entropies, largest = torch.zeros(heads), torch.zeros(heads)
    for h in range(heads):
        values = []
        for b in range(batch):
            for i in range(1, n + 1):
                position = i * length // n - 1
                allowed = [t for t in range(k.shape[2]) if seen(b, h, position, t)]
                if not allowed:
                    continue
                scores = torch.stack([q[b, h, position] @ k[b, h, t] * scale for t in allowed])
                largest[h] = max(largest[h], scores.abs().max())
                if len(allowed) > 1:
                    p = scores.softmax(0)
                    values.append(-(p * p.log()).sum() / math.log(len(allowed)))
        entropies[h] = torch.stack(values).mean()
    return entropies, largest


def analyse(q, k, scale, causal, mask=None):
    """Analyse one layer that does not adapt its rank."""
    (batch, heads, length, dim), keys = q.shape, k.shape[2]
    sight = Sight.of(batch, length, keys, causal, q.device, mask)
    layer = look(q, k, sight, scale) | {"q": longest(q, None), "k": longest(k, None)}
    adaptation = Adaptation(1, heads, dim, Rules(adaptive_rank=False))
    measured = adaptation.measures([layer | {"rows": sampled(q, k, sight)}], sight)
    return {name: values[0] for name, values in measured.items()} | {
        "largest": layer["largest"] * scale
    }


@pytest.mark.parametrize("length", [2, 5, 45, 70])
@pytest.mark.parametrize("causal", [True, False])
def test_the_analysis_is_its_definition(length, causal):
    q, k = drawn(2, HEADS, length, DIM), 2 * drawn(2, HEADS, length + 3, DIM, seed=1)
    actual = analyse(q, k, 0.3, causal)
    entropy, largest = measured_by_hand(q, k, 0.3, lambda b, h, s, t: not causal or t <= s + 3)
    torch.testing.assert_close(actual["entropy"], entropy, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(actual["largest"], largest, rtol=1e-5, atol=1e-6)
    assert not any(value.requires_grad for value in actual.values())


def test_the_analysis_sees_what_a_mask_lets_it_see():
    q, k = drawn(2, HEADS, 9, DIM), drawn(2, HEADS, 9, DIM, seed=1)
    mask = drawn(2, 1, 1, 9, seed=2) > -0.3  # keys of padding
    actual = analyse(q, k, 0.3, True, mask)
    entropy, largest = measured_by_hand(
        q, k, 0.3, lambda b, h, s, t: t <= s and bool(mask[b, 0, 0, t])
    )
    torch.testing.assert_close(actual["entropy"], entropy, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(actual["largest"], largest, rtol=1e-5, atol=1e-6)


def test_equal_keys_have_all_the_entropy_and_one_that_stands_out_has_none():
    q = torch.ones(1, 1, 8, DIM)
    k = torch.zeros(1, 1, 8, DIM)
    assert analyse(q, k, 1.0, True)["entropy"].item() == pytest.approx(1)
    k[:, :, 0] = 100
    assert analyse(q, k, 1.0, True)["entropy"].item() == pytest.approx(0, abs=1e-6)


def update(adaptation, entropy=0.5, largest=1.0, rows=None, times=1):
    heads, dim = adaptation.heads, adaptation.head_dim
    if rows is None:
        rows = drawn(heads, 2 * TOKENS, dim)
    for _ in range(times):
        adaptation.update(
            {
                "entropy": torch.as_tensor(entropy).float().expand(adaptation.rows, heads),
                "largest": torch.as_tensor(largest).float().expand(adaptation.rows, heads),
                "rows": rows.expand(adaptation.rows, *rows.shape),
            }
        )


def rows_of_spectrum(spectrum, seed=0):
    """Draw queries and keys with this energy spectrum (squared), rotated by some basis."""
    spectrum = torch.as_tensor(spectrum, dtype=torch.float64)
    dim = len(spectrum)
    x = torch.linalg.qr(drawn(HEADS, 2, TOKENS, dim, seed=seed, dtype=torch.float64))[0]
    basis = orthogonal(HEADS, dim, seed=seed + 1)
    return (x * spectrum @ basis.mT[:, None]).flatten(1, 2).float(), basis


@pytest.mark.parametrize("every", [1, 24])
def test_the_basis_becomes_as_good_as_that_of_a_full_decomposition(every):
    """Also by the calls between the analyses that count."""
    rows, _ = rows_of_spectrum([0.8**i for i in range(DIM)])
    adaptation = Adaptation(1, HEADS, DIM, Rules(refresh_every=every))
    update(adaptation, rows=rows, times=25)
    (basis,) = adaptation.chosen().basis
    eye = torch.eye(DIM).expand(HEADS, DIM, DIM)
    torch.testing.assert_close(basis.mT @ basis, eye, rtol=0, atol=1e-5)
    for rank in (2, 8, 14):
        leading = basis[..., :rank]
        lost = (rows - rows @ leading @ leading.mT).flatten(1).norm(dim=1) / rows.flatten(1).norm(
            dim=1
        )
        _, least = kernels.low_rank(rows, rank, impl="torch")
        assert (lost <= 1.05 * least).all() and (lost >= 0.999 * least).all(), rank


def test_the_basis_follows_when_what_matters_changes_places():
    forwards = torch.diag_embed(torch.linspace(1, 0.1, DIM)).repeat(HEADS, 2 * TOKENS // DIM, 1)
    adaptation = Adaptation(1, HEADS, DIM, Rules(refresh_every=1))
    update(adaptation, rows=forwards, times=3)
    update(adaptation, rows=forwards.flip(-1), times=16)
    (basis,) = adaptation.chosen().basis
    leading = basis[..., : DIM // 4]
    lost = (forwards.flip(-1) @ (torch.eye(DIM) - leading @ leading.mT)).flatten(1).norm(dim=1)
    _, least = kernels.low_rank(forwards.flip(-1), DIM // 4, impl="torch")
    assert (lost / forwards.flatten(1).norm(dim=1) <= 1.02 * least).all()


@pytest.mark.parametrize(
    ("rules", "spectrum", "entropy", "rank"),
    [
        ({}, [1.0] * DIM, 0.5, DIM),  # no direction can be left out
        ({}, [1.0] * 5 + [0.01] * 11, 0.5, DIM // 2),
        ({}, [1.0] * 5 + [0.01] * 11, 0.99, DIM),  # looks at all keys alike
        ({"rank_threshold": 0.4}, [1.0] * 5 + [0.01] * 11, 0.5, DIM),
        ({"rank_ratio": 0.1}, [1.0] * 3 + [0.01] * 13, 0.5, DIM // 4),
        ({"rank_ratio": 0.1}, [1.0] * 6 + [0.01] * 10, 0.5, DIM // 2),
        ({"rank_ratio": 0.6}, [1.0] * 3 + [0.01] * 13, 0.5, DIM),
        ({"rank_estimation": "energy"}, [1.0] * 5 + [0.01] * 11, 0.99, DIM // 2),
        ({"rank_estimation": "energy"}, [1.0] * 5 + [0.3] * 11, 0.5, DIM),
        ({"rank_estimation": "energy", "rank_threshold": 0.8}, [1.0] * 5 + [0.3] * 11, 0.5, 8),
        ({"adaptive_rank": False}, [1.0] * 3 + [0.01] * 13, 0.5, DIM),
    ],
)
def test_the_rank_follows_from_the_entropies_or_the_energy(rules, spectrum, entropy, rank):
    rows, _ = rows_of_spectrum(spectrum)
    adaptation = Adaptation(2, HEADS, DIM, Rules(refresh_every=1, **rules))
    update(adaptation, entropy=entropy, rows=rows, times=PATIENCE)
    assert adaptation.rank_LH.tolist() == [[rank] * HEADS] * 2


def test_the_scale_goes_from_the_rank_s_to_that_of_all_columns():
    """1 / sqrt(rank) where all columns matter equally, 1 / sqrt(D) where the rest holds nothing."""
    for spectrum, expected in (([1.0] * DIM, math.sqrt(DIM / 8)), ([1.0] * 8 + [0.0] * 8, 1.0)):
        rows, _ = rows_of_spectrum(spectrum)
        rules = Rules(refresh_every=1, rank_estimation="energy", rank_threshold=0.4)
        adaptation = Adaptation(1, HEADS, DIM, rules)
        update(adaptation, rows=rows, times=PATIENCE)
        assert adaptation.rank_LH.eq(8).all()
        torch.testing.assert_close(
            adaptation.factor_LH, torch.full((1, HEADS), expected), rtol=2e-3, atol=0
        )


@pytest.mark.parametrize(
    ("largest", "allow_fp8", "bits"),
    [
        (1.0, True, 8),
        (1.0, False, 16),
        (TOLERANCE / 2**-3 * 1.01, True, 16),
        (TOLERANCE / 2**-10 * 1.01, True, 32),
    ],
)
def test_the_precision_follows_from_the_largest_score(largest, allow_fp8, bits):
    adaptation = Adaptation(1, HEADS, DIM, Rules(refresh_every=1, allow_fp8=allow_fp8))
    update(adaptation, largest=largest, times=PATIENCE)
    assert adaptation.bits_LH.tolist() == [[bits] * HEADS]


def test_only_every_nth_analysis_counts():
    rows, _ = rows_of_spectrum([1.0] * 3 + [0.01] * 13)
    adaptation = Adaptation(1, HEADS, DIM, Rules(refresh_every=3))
    ranks = []
    for _ in range(6):
        update(adaptation, rows=rows)
        ranks.append(adaptation.rank_LH[0, 0].item())
    assert ranks == [16, 16, 16, 8, 8, 8]  # the first and the fourth count, and it takes two
    adaptation.rebuild_buffers(torch.device("cpu"))
    assert adaptation.rank_LH.eq(DIM).all() and adaptation.step == 0


@pytest.mark.parametrize("what", ["entropy", "largest", "rows"])
def test_a_head_whose_measurements_are_not_finite_keeps_what_it_has(what):
    rows, _ = rows_of_spectrum([1.0] * 3 + [0.01] * 13)
    adaptation = Adaptation(1, HEADS, DIM, Rules(refresh_every=1))
    update(adaptation, rows=rows, times=PATIENCE)
    # What does not follow from the bad measurement may change.
    free = ["step", *(("bits_LH", "bits_calm_LH") if what == "rows" else ("next_basis_LHDD",))]
    fixed = {name: buffer for name, buffer in adaptation.named_buffers() if name not in free}
    before = {name: buffer.clone() for name, buffer in fixed.items()}
    bad = {"entropy": torch.tensor(0.5), "largest": torch.tensor(1.0), "rows": rows.clone()}
    bad[what].fill_(torch.nan)
    update(adaptation, **bad, times=3)
    for name, buffer in fixed.items():
        assert torch.equal(buffer, before[name]), name


levels = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=60)


@given(levels, st.integers(0, 3), st.integers(1, 4))
def test_a_level_rises_at_once_and_falls_only_after_calm_analyses_in_a_row(pairs, level, patience):
    level, calm = torch.tensor(level), torch.tensor(0)
    since = 0  # analyses in a row that ask for less, since the level last fell
    for first, other in pairs:
        wanted, relaxed = min(first, other), max(first, other)
        previous = level
        level, calm = settle(level, torch.tensor(wanted), torch.tensor(relaxed), calm, patience)
        since = since + 1 if relaxed < previous else 0
        assert level >= wanted
        if wanted > previous:
            assert level == wanted
        elif level < previous:
            assert level == relaxed and since == patience
        else:
            assert level == previous and since < patience
        since = 0 if since == patience else since


@given(
    centre=st.floats(0.5, 600),
    noise=st.lists(st.floats(-1, 1), min_size=20, max_size=60),
)
def test_measurements_that_waver_within_the_margin_change_a_head_once_at_most(centre, noise):
    adaptation = Adaptation(1, 1, 4, Rules(refresh_every=1, allow_fp8=True, adaptive_rank=False))
    half = MARGIN / (2 + MARGIN)  # the highest is then at most 1 + MARGIN times the lowest
    history = []
    for deviation in noise:
        update(adaptation, largest=centre * (1 + half * deviation * 0.999))
        history.append(adaptation.bits_LH.item())
    settled = history[PATIENCE:]
    assert sum(a != b for a, b in itertools.pairwise(settled)) <= 1
