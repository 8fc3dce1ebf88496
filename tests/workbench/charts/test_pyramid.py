import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.charts.series.pyramid import BRANCH, Pyramid

samples = st.lists(
    st.floats(-1e6, 1e6, width=32) | st.just(float("nan")), min_size=1, max_size=6000
)


def brute(values, start, stop):
    part = values[start:stop]
    finite = part[np.isfinite(part)]
    return (finite.min(), finite.max()) if len(finite) else (np.nan, np.nan)


def pieces(rng, total):
    cuts = np.sort(rng.integers(0, total + 1, rng.integers(0, 12)))
    return [*cuts.tolist(), total]


def check(pyramid, values, edges):
    starts, low, high = pyramid.query(values, edges)
    stops = [*starts[1:], None]
    for start, stop, least, most in zip(starts, stops, low, high, strict=True):
        if stop is None:
            # The last bin reaches to the end of the block that the last edge lies in.
            reach = [int(edges[-1])]
            reach += [-(-reach[0] // BRANCH**k) * BRANCH**k for k in range(1, 6)]
            assert any(
                np.array_equal(
                    brute(values, start, min(end, len(values))), (least, most), equal_nan=True
                )
                for end in reach
            )
        else:
            assert np.array_equal(brute(values, start, stop), (least, most), equal_nan=True)
    return starts


@given(st.integers(1, 20_000), st.integers(0, 2**32), st.integers(1, 500))
@settings(max_examples=60, deadline=None)
def test_bins_have_the_extremes_of_their_samples_however_the_series_was_appended(n, seed, bins):
    rng = np.random.default_rng(seed)
    values = rng.normal(size=n).astype(np.float32)
    values[rng.random(n) < 0.2] = np.nan
    pyramid = Pyramid()
    for end in pieces(rng, n):
        pyramid.extend(values[:end])
    first, last = np.sort(rng.integers(0, n + 1, 2))
    if first == last:
        return
    edges = np.linspace(first, last, bins + 1).astype(np.int64)
    starts = check(pyramid, values, edges)
    assert starts[0] <= first


@given(samples, st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_appending_in_pieces_builds_the_same_levels_as_appending_at_once(values, seed):
    values = np.array(values, np.float32)
    at_once, in_pieces = Pyramid(), Pyramid()
    at_once.extend(values)
    for end in pieces(np.random.default_rng(seed), len(values)):
        in_pieces.extend(values[:end])
    assert len(at_once._levels) == len(in_pieces._levels)
    for level, other in zip(at_once._levels, in_pieces._levels, strict=True):
        np.testing.assert_array_equal(level.low, other.low)
        np.testing.assert_array_equal(level.high, other.high)


def test_a_single_spike_among_a_million_samples_is_never_lost():
    values = np.zeros(1_000_000, np.float32)
    values[777_777] = 9.0
    pyramid = Pyramid()
    pyramid.extend(values)
    _, low, high = pyramid.query(values, np.linspace(0, len(values), 801).astype(np.int64))
    assert high.max() == 9.0
    assert low.min() == 0.0


def test_a_bin_of_nothing_but_nan_is_nan_and_its_neighbours_are_not():
    values = np.ones(4096, np.float32)
    values[1024:2048] = np.nan
    pyramid = Pyramid()
    pyramid.extend(values)
    _, low, _ = pyramid.query(values, np.arange(0, 4097, 1024))
    assert np.isnan(low).tolist() == [False, True, False, False]
