"""Repeated calls are replayed: the same launches, without the code that decided them."""

from __future__ import annotations

import dataclasses
import functools
import gc
import weakref
from unittest import mock

import pytest
import torch
from stubbed_triton import missing_on_cpu, stubbed

import kernels
from kernels import OPS, _gated
from kernels.core import dispatch, launch, replay, triton_helpers
from kernels.core.check import as_tuple, poisoned
from kernels.core.operator import Implementation
from kernels.measure.host_cost import calls_of, recording, small_inputs

pytestmark = pytest.mark.skipif(
    not triton_helpers.INSTALLED or triton_helpers.INTERPRETED,
    reason="needs an installed Triton outside its interpreter, which keeps no compiled kernels",
)
CPU = torch.device("cpu")
launcher_of, ELSEWHERE = {}, torch.randn(64)
REPLAYED = sorted(
    name
    for name, op in OPS.items()
    if "triton" in op.implementations and op.implementations["triton"].replayed
)


@pytest.fixture
def driver():
    with stubbed() as driver, torch.no_grad():
        yield driver


@pytest.fixture
def called():
    """Return a list that grows each time the Python of a call runs."""
    return []


@pytest.fixture
def function(called):
    def function(x, n):
        called.append(n)
        y = torch.empty_like(x)
        launch_plain((3,), x, y, n, 6, D=n, EPS=0.5)
        return y

    return replay.replayed(function)


def launch_plain(*args, **options):
    return launcher_of["plain"](*args, **options)


@pytest.fixture(autouse=True)
def plain(driver, monkeypatch):
    monkeypatch.setattr(replay, "BEFORE", 1)
    triton, tl = triton_helpers.triton, triton_helpers.tl

    @triton.jit
    def kernel(x_ptr, y_ptr, n, offset, D: tl.constexpr, EPS: tl.constexpr):
        pass

    launcher_of["plain"] = launch.launcher(kernel)
    launch_plain((1,), ELSEWHERE, ELSEWHERE, 1, 1, D=1, EPS=0.0)  # replays need a launch before


def swiglu(*tensors):
    return kernels.swiglu(*tensors, impl="triton")


def launches_of(driver, call):
    driver.launches.clear()
    result = call()  # alive, so that no two tensors of one call share an address
    return [tuple(map(address_of, launch)) for launch in driver.launches], result


def address_of(value):
    return value.data_ptr() if isinstance(value, torch.Tensor) else value


def the_same(first, second):
    """Assert that two calls launch the same, except for the addresses that they allocate."""
    where = {}
    assert len(first) == len(second)
    for mine, theirs in zip(first, second, strict=True):
        assert len(mine) == len(theirs) and mine[:9] == theirs[:9], "grid, stream, kernel"
        for a, b in zip(mine[9:], theirs[9:], strict=True):
            assert a == b or (isinstance(a, int) and min(a, b) > 1 << 20)
            assert where.setdefault(a, b) == b, "one address stands for one"


@pytest.mark.parametrize("name", REPLAYED)
def test_a_replay_launches_what_the_call_itself_launches(driver, name, monkeypatch):
    op = OPS[name]
    inputs = small_inputs(op, "triton", CPU, torch.bfloat16)
    with kernels.using(**{name: "triton"}), torch.enable_grad():
        with mock.patch.object(torch, "empty", torch.zeros):  # unwritten memory must be equal
            calls = calls_of(op, inputs)
        for title, call in calls.items():
            with recording(title):
                call()
                again, results = launches_of(driver, call)
                replays = []
                for _ in range(2):
                    with monkeypatch.context() as patch:
                        if title == "forward":  # nothing is decided again
                            patch.setitem(dispatch.OPS, name, None)
                        replays.append(launches_of(driver, call))
            assert again or (name, title) == ("linear", "backward"), "what is launched"
            for replay, result in replays:
                the_same(replay, again)
                for first, other in zip(as_tuple(result), as_tuple(results), strict=True):
                    assert (first is None) == (other is None)
                    if first is not None:
                        assert first.shape == other.shape and first.stride() == other.stride()
                        assert first.dtype == other.dtype
            driver.launches.clear()


@pytest.mark.parametrize("before", [1, 4])
def test_the_python_of_a_call_runs_until_it_is_recorded_and_never_again(
    driver, function, called, monkeypatch, before
):
    monkeypatch.setattr(replay, "BEFORE", before)
    x = torch.randn(4, 8)
    for _ in range(8):
        function(x, 7)
    assert called == [7] * (before + 1)
    assert len(driver.launches) == 1 + 8


@pytest.mark.parametrize(
    "other",
    [
        (torch.randn(4, 9), 7),
        (torch.randn(8, 4).T, 7),
        (torch.randn(4, 8).half(), 7),
        (torch.randn(5, 8)[1:].flatten()[1:29].view(4, 7), 7),
        (torch.randn(40)[1:33].view(4, 8), 7),  # whose address is no multiple of 16
        (torch.randn(4, 8), 8),
    ],
)
def test_other_arguments_are_another_call(driver, function, called, other):
    for _ in range(3):
        function(torch.randn(4, 8), 7)
    called.clear()
    launched, y = launches_of(driver, lambda: function(*other))
    assert called == [other[1]]
    assert y.shape == other[0].shape and y.dtype == other[0].dtype
    assert launched[0][9] == other[0].data_ptr()


def test_what_is_bad_after_what_is_good_raises_its_sentence_each_time():
    x = torch.randn(3, 8)
    for _ in range(4):
        kernels.rms_norm(x, torch.ones(8), impl="triton")
    for _ in range(4):
        with pytest.raises(kernels.Mistake, match=r"weight must have shape \(8,\).* has \(7,\)$"):
            kernels.rms_norm(x, torch.ones(7), impl="triton")
        with pytest.raises(kernels.Mistake, match=r"on one device.* weight on meta$"):
            kernels.rms_norm(x, torch.ones(8, device="meta"), impl="triton")
        with pytest.raises(kernels.Unavailable, match="does not support FP64"):
            kernels.rms_norm(x.double(), torch.ones(8), impl="triton")
        with pytest.raises(kernels.Mistake, match="unknown implementation 'fast'"):
            kernels.rms_norm(x, torch.ones(8), impl="fast")
    assert not launch.recorders


def test_one_tensor_given_twice_is_not_taken_for_two(driver):
    x, y = torch.randn(3, 8), torch.randn(3, 8)
    for _ in range(4):
        swiglu(x, x)
    launched, _ = launches_of(driver, lambda: swiglu(x, y))
    assert launched[0][9:11] == (x.data_ptr(), y.data_ptr())


def test_choices_are_heeded_and_every_replay_is_counted(driver):
    x = torch.randn(3, 8)
    kernels.reset_usage()
    with kernels.using(swiglu="auto"):
        for _ in range(4):
            kernels.swiglu(x, x)
    assert kernels.usage() == {"swiglu": {"triton": 4}}
    assert kernels.reasons()["swiglu"] == ("triton", missing_on_cpu(OPS["swiglu"]))
    for impl, count in (("triton", 8), ("torch", 8)):
        with kernels.using(swiglu=impl):
            for _ in range(4):
                kernels.swiglu(x, x)
        assert kernels.reasons()["swiglu"] == (impl, kernels.REQUESTED)
        assert len(driver.launches) == 1 + count
    assert kernels.usage() == {"swiglu": {"triton": 8, "torch": 4}}
    kernels.reset_usage()


def test_what_is_watched_is_computed_where_the_watch_says(driver):
    x, seen = torch.randn(3, 8), []
    for _ in range(4):
        swiglu(x, x)
    with dispatch.watched(lambda op, name, args: seen.append((op.name, name))):
        swiglu(x, x)
    assert seen == [("swiglu", "triton")]


def test_another_device_or_stream_is_launched_on(driver):
    x = torch.randn(3, 8)
    for _ in range(4):
        swiglu(x, x)
    for device, stream in ((1, 5), (1, 6), (0, 7)):
        driver.device, driver.stream = device, stream
        for _ in range(3):
            launched, _ = launches_of(driver, lambda: swiglu(x, x))
            *_, on_stream, (_, on_device, _) = launched[0][:5]
            assert (on_device, on_stream) == (device, stream)


def test_a_tile_that_is_chosen_anew_is_launched(driver, monkeypatch):
    x = torch.randn(3, 5000)

    def block():
        return next(
            int(b) for b in (256, 1024, 2048) if launched_grid(driver, x) == (-(-15000 // b), 1, 1)
        )

    for _ in range(4):
        assert block() == 1024
    monkeypatch.setattr(_gated._FORWARD, "candidates", lambda *_: [(256, 4)])
    kernels.reset_tiles()
    for _ in range(4):
        assert block() == 256
    key = next(iter(_gated._FORWARD._tiles))
    kernels.reset_tiles()
    with _gated._FORWARD.trying(key, (2048, 8)):
        for _ in range(4):
            assert block() == 2048
    for _ in range(4):
        assert block() == 256


def launched_grid(driver, x):
    launched, _ = launches_of(driver, lambda: swiglu(x, x))
    return launched[0][:3]


def test_hooks_put_triton_s_own_launch_back(driver):
    from triton import knobs

    x = torch.randn(3, 8)
    for _ in range(4):
        swiglu(x, x)
    for chain in (knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook):
        chain.calls.append(print)
        try:
            swiglu(x, x)
        finally:
            chain.calls.clear()
        assert isinstance(driver.launches[-1][9], torch.Tensor), "and not an address"
        swiglu(x, x)
        assert isinstance(driver.launches[-1][9], int)


def test_memory_that_a_replay_allocates_is_poisoned_too():
    x = torch.randn(3, 8)
    for _ in range(4):
        swiglu(x, x)
    with poisoned():
        assert swiglu(x, x).isnan().all()  # as nothing is written here


NEWER = functools.partial(setattr, torch.backends.cuda.matmul, "fp32_precision")
WAYS = [(torch.set_float32_matmul_precision, "highest", "high"), (NEWER, "ieee", "tf32")]


@pytest.mark.parametrize(("choose", "exact", "fast"), WAYS, ids=["older", "newer"])
def test_a_precision_of_products_that_changes_is_heeded(driver, choose, exact, fast):
    call = functools.partial(kernels.attention, *[torch.randn(1, 2, 9, 16)] * 3, backend="triton")
    for precision, product in ((exact, "tf32x3"), (fast, "tf32"), (exact, "tf32x3")):
        choose(precision)
        try:
            for _ in range(4):
                launched, _ = launches_of(driver, call)
                assert f"'{product}'" in launched[-1][4][2]
        finally:
            torch.set_float32_matmul_precision("highest")


def test_autocast_is_heeded_after_replays_without_it(driver):
    q = torch.randn(1, 2, 9, 16)
    for _ in range(2):
        for _ in range(4):
            assert kernels.attention(q, q, q, backend="triton").dtype == torch.float32
        with torch.autocast("cpu", torch.bfloat16):
            for _ in range(4):
                assert kernels.attention(q, q, q, backend="triton").dtype == torch.bfloat16


def test_strided_inputs_that_are_copied_are_copied_by_a_replay(driver):
    x = torch.randn(3, 16)[:, ::2]
    seen = []
    for _ in range(4):
        launched, _ = launches_of(driver, lambda: swiglu(x, x))
        seen.append(launched)
        assert x.data_ptr() not in launched[0][9:]
    the_same(seen[3], seen[1])


@pytest.mark.parametrize(
    "spoil",
    [
        lambda x: x.sum(),
        lambda x: x.add_(0),
        lambda x: launch_plain((3,), ELSEWHERE, x, 7, 6, D=7, EPS=0.5),
        lambda x: kernels.swiglu(x, x, impl="triton"),
        lambda x: torch.full_like(x, 2.0),
        lambda x: torch.empty(4, 4).mm(x),
    ],
    ids=[
        "computes",
        "writes",
        "reads memory of its own",
        "calls an operator",
        "fills",
        "multiplies what it made",
    ],
)
def test_what_does_more_than_allocate_and_launch_is_not_replayed(driver, called, spoil):
    @replay.replayed
    def function(x):
        called.append(1)
        spoil(x)
        return torch.empty_like(x)

    x = torch.randn(4, 8)
    for _ in range(5):
        function(x)
    assert len(called) == 5


def test_products_and_copies_of_arguments_are_made_anew(driver, called):
    @replay.replayed
    def function(x, weight):
        called.append(1)
        y = torch.nn.functional.linear(x.reshape(-1, 8), weight)
        wide = weight.double()
        launch_plain((3,), y, wide, 7, 6, D=7, EPS=0.5)
        return y, wide

    for _ in range(4):
        x, weight = torch.randn(2, 3, 8), torch.randn(40, 8)[::5]
        y, wide = function(x, weight)
        assert torch.equal(y, torch.nn.functional.linear(x.reshape(-1, 8), weight))
        assert torch.equal(wide, weight.double())
        read = tuple(map(address_of, driver.launches[-1][9:11]))
        assert read == (y.data_ptr(), wide.data_ptr())
    assert len(called) == 2


def test_views_of_arguments_are_where_they_were(driver):
    @replay.replayed
    def function(x):
        launch_plain((3,), x[2:, 4:], x.view(-1)[8:], 7, 6, D=7, EPS=0.5)

    for _ in range(4):
        x = torch.randn(4, 8)
        function(x)
        read = map(address_of, driver.launches[-1][9:11])
        assert [address - x.data_ptr() for address in read] == [4 * (2 * 8 + 4), 4 * 8]


class Marked(torch.Tensor):
    pass


@pytest.mark.parametrize("other", [[1], object(), torch.randn(3).as_subclass(Marked)])
def test_arguments_of_which_more_counts_than_their_layout_are_asked_anew(called, other):
    @replay.replayed
    def function(x, other):
        called.append(other)
        return torch.empty_like(x)

    for _ in range(4):
        function(ELSEWHERE, other)
    assert len(called) == 4 and all(argument is other for argument in called)


def test_calls_in_poisoned_memory_are_recorded_after_it(function, called):
    x = torch.randn(4, 8)
    with poisoned():
        for _ in range(4):
            function(x, 7)
    called.clear()
    for _ in range(4):
        function(x, 7)
    assert called == [7, 7]


def test_an_implementation_that_was_passed_over_is_asked_again(monkeypatch):
    why = {"reason": "is busy"}
    first = Implementation(lambda *_: "first", refuses=lambda *_: why["reason"], replayed=True)
    second = Implementation(lambda *_: None)
    op = dataclasses.replace(
        OPS["swiglu"], name="either", implementations={"first": first, "second": second}
    )
    monkeypatch.setitem(OPS, "either", op)
    for _ in range(4):
        assert dispatch.run(op, "auto", ELSEWHERE, None) is None
    why["reason"] = None
    assert dispatch.run(op, "auto", ELSEWHERE, None) == "first"
    kernels.reset_usage()


@pytest.mark.parametrize("of", [lambda x: x, torch.empty_like], ids=["argument", "what is made"])
@pytest.mark.parametrize("give", [lambda x: (x, 3), lambda x: x.view(2, 32).detach()])
def test_what_returns_something_else_than_its_tensors_is_not_replayed(called, of, give):
    @replay.replayed
    def function(x):
        called.append(1)
        return give(of(x))

    for _ in range(5):
        function(ELSEWHERE)
    assert len(called) == 5


def test_an_error_while_a_call_is_recorded_leaves_no_recorder(driver):
    @replay.replayed
    def function(x):
        raise ZeroDivisionError

    for _ in range(4):
        with pytest.raises(ZeroDivisionError):
            function(ELSEWHERE)
    assert not launch.recorders


def test_what_was_recorded_before_a_change_is_not_kept_after_it(driver, called):
    @replay.replayed
    def function(x):
        called.append(1)
        if len(called) == 2:
            replay.forget()  # as another thread may, during a recording
        return torch.empty_like(x)

    for _ in range(6):
        function(ELSEWHERE)
    assert len(called) == 4


def test_calls_that_are_ever_different_are_not_kept_without_end(function, monkeypatch):
    monkeypatch.setattr(replay, "MAX_CACHED", 8)
    x = torch.randn(4, 8)
    cache = replay._CACHES[-1]
    for n in range(2, 60):
        function(x, n)
        assert len(cache) <= 8


def test_with_gradients_on_a_function_is_not_replayed(function, called):
    x = torch.randn(4, 8)
    with torch.enable_grad():
        for _ in range(5):
            function(x, 7)
    assert len(called) == 5


def test_a_recording_keeps_no_tensor(driver):
    x = torch.randn(3, 16)[:, ::2]
    for _ in range(4):
        y = swiglu(x, x)
    gone = [weakref.ref(t) for t in (x, y)]
    driver.launches.clear()
    del x, y
    gc.collect()
    assert [reference() for reference in gone] == [None, None]


def test_small_temporaries_of_a_replay_are_one_allocation(driver):
    name = "ssd_scan"
    inputs = small_inputs(OPS[name], "triton", CPU, torch.bfloat16)
    made = []
    with kernels.using(**{name: "triton"}):
        for _ in range(4):
            OPS[name].function(**inputs)
        empty = torch.empty
        with mock.patch.object(
            torch, "empty", lambda *a, **o: made.append(empty(*a, **o)) or made[-1]
        ):
            launched, _ = launches_of(driver, lambda: OPS[name].function(**inputs))
    assert len(made) == 1
    begin, end = made[0].data_ptr(), made[0].data_ptr() + made[0].nbytes
    inside = [x for launch in launched for x in launch[9:] if begin <= x < end]
    assert len(set(inside)) == 2 and len(inside) == 4, "steps and decays, written and read"
    assert all((x - begin) % 512 == 0 for x in inside)
