"""Launchers make the launches that Triton would, and leave unknown situations to Triton."""

from __future__ import annotations

import random

import pytest
import torch
from stubbed_triton import stubbed

import kernels
from kernels.core import bound_launch, replay, triton_helpers
from kernels.core import launch as _launch
from kernels.measure.host_cost import host_cost

pytestmark = [
    pytest.mark.skipif(not triton_helpers.INSTALLED, reason="Triton is not installed"),
    pytest.mark.skipif(
        triton_helpers.INTERPRETED, reason="the interpreter keeps no compiled kernels"
    ),
]

SIZES = (1, 15, 16, 63, 64, (1 << 31) - 1, 1 << 31, (1 << 31) + 16)


class LauncherOf36:
    """Launcher of Triton 3.6: allocates memory and calls its function."""

    def __call__(self, x, y, z, stream, function, *arguments):
        scratch = None
        if size := self.global_scratch_size:
            allocator = triton_helpers.triton.runtime._allocation._allocator.get()
            scratch = allocator(x * y * z * size, self.global_scratch_align, stream)
        self.launch(
            x, y, z, stream, function, self.launch_cooperative_grid, self.launch_pdl, scratch, None,
            *arguments,
        )  # fmt: skip


@pytest.fixture
def driver(request, monkeypatch):
    """Yield a driver with the launcher of the installed Triton version, or of the given one."""
    version = getattr(request, "param", "installed")
    if version != "installed":
        monkeypatch.setattr("triton.__version__", version)
        monkeypatch.setattr("triton.backends.nvidia.driver.CudaLauncher", LauncherOf36)
    with stubbed() as driver:
        yield driver


@pytest.fixture
def launch(driver):
    """Return a launcher of a kernel that reads two tensors, one optional, and two integers."""
    return _launch.launcher(plain())


with_each_launcher = pytest.mark.parametrize(
    "driver", ["installed", "3.6.0", "0.0.0"], indirect=True
)


def plain():
    triton, tl = triton_helpers.triton, triton_helpers.tl

    @triton.jit(do_not_specialize=["offset"])
    def kernel(x_ptr, y_ptr, n, offset, D: tl.constexpr, EPS: tl.constexpr):
        pass

    return kernel


def comparable(arguments):
    """Return the comparable parts of a launch: grid and stream, compiled kernel, arguments."""
    given = [x.data_ptr() if isinstance(x, torch.Tensor) else x for x in arguments[9:]]
    return (*arguments[:4], arguments[4], *given)


def drawn(rng):
    """Draw arguments that differ in one of the properties that Triton distinguishes."""

    def tensor():
        dtype = rng.choice([torch.float16, torch.bfloat16, torch.float32, torch.int64])
        return torch.empty(64, dtype=dtype)[rng.choice([0, 0, 1, 2, 8, 16]) :]

    arguments = [tensor(), rng.choice([None, tensor()]), rng.choice(SIZES), rng.choice(SIZES)]
    constants = {"D": rng.choice([1, 16, 64]), "EPS": rng.choice([1e-6, 0.5])}
    options = rng.choice([{}, {"num_warps": 4}, {"num_warps": 8}, {"num_stages": 4}])
    return arguments, constants | options


@with_each_launcher
def test_what_was_launched_before_is_launched_as_triton_would_launch_it(driver, launch):
    rng, kernel, seen = random.Random(0), plain(), set()
    for _ in range(400):
        driver.device, driver.stream = rng.choice([(0, 0), (0, 7), (1, 9)])
        grid = rng.choice([(3,), (3, 2), (3, 2, 5)])
        arguments, named = drawn(rng)
        driver.launches.clear()
        for _ in range(2):  # the second time it is cached
            launch(grid, *arguments, **named)
        kernel[grid](*arguments, **named)
        first, again, triton_s = map(comparable, driver.launches)
        assert first == again == triton_s
        seen.add(first[4])
    assert len(seen) > 200, "kernels that Triton tells apart"


@with_each_launcher
def test_what_is_kept_is_launched_without_triton(driver, launch, monkeypatch):
    x = torch.empty(64)
    launch((3,), x, None, 5, 6, D=64, EPS=0.5, num_warps=4)
    monkeypatch.setattr("triton.runtime.jit.JITFunction.run", None)
    launch((3,), x, None, 5, 6, D=64, EPS=0.5, num_warps=4)
    first, again = map(comparable, driver.launches)
    assert first == again


@with_each_launcher
def test_a_replay_launches_what_was_launched(driver, launch):
    called = []

    def function(x, n):
        called.append(n)
        launch((3, 2), x, None, n, 6, D=64, EPS=0.5, num_warps=4)

    x, replayed = torch.empty(64), replay.replayed(function)
    with torch.no_grad():
        for _ in range(replay.BEFORE + 4):
            replayed(x, 5)
    assert len(called) < len(driver.launches) == replay.BEFORE + 4
    assert len({comparable(arguments) for arguments in driver.launches}) == 1


@with_each_launcher
def test_integers_that_triton_does_not_tell_apart_are_launched_without_it(
    driver, launch, monkeypatch
):
    x = torch.empty(64)
    for n in (5, 16):
        launch((3,), x, None, n, 6, D=64, EPS=0.5)
    monkeypatch.setattr("triton.runtime.jit.JITFunction.run", None)
    for n in (7, 63, 64, 7):
        launch((3,), x, None, n, n + 1, D=64, EPS=0.5)
        assert driver.launches[-1][-2:] == (n, n + 1)
        assert driver.launches[-1][4] == driver.launches[n % 16 == 0][4]
    for other in ({"n": 1}, {"n": 1 << 31}, {"offset": 1 << 31}, {"D": 32}, {"num_warps": 8}):
        named = {"n": 5, "offset": 6, "D": 64, "EPS": 0.5} | other
        with pytest.raises(TypeError, match="NoneType"):  # raised by Triton's own launch
            launch((3,), x, None, **named)


@with_each_launcher
def test_kernels_that_want_memory_for_their_profile_are_left_to_triton(driver, launch, monkeypatch):
    launch((3,), torch.empty(64), None, 5, 6, D=64, EPS=0.5)
    ((*_, compiled),) = _launch._CACHES[-2].values()
    form = bound_launch.form()
    assert form.bound(plain(), compiled) is not None
    if form is not bound_launch.RUN:  # otherwise the form is Triton's complete launcher
        monkeypatch.setattr(compiled.run, "profile_scratch_size", 128)
        assert form.bound(plain(), compiled) is None


@pytest.mark.parametrize("driver", ["installed", "3.6.0"], indirect=True)
def test_what_wants_scratch_memory_is_given_it_anew_at_each_launch(driver, launch, monkeypatch):
    given = []

    def memory(size, alignment=0, stream=None):
        given.append(torch.empty(size, dtype=torch.int8))
        return given[-1]

    for module in (bound_launch, _launch):
        monkeypatch.setattr(module, "scratch_memory", memory)
    driver.scratch = 128

    def function(x, n):
        launch((3, 2), x, None, n, 6, D=64, EPS=0.5)

    x, replayed = torch.empty(64), replay.replayed(function)
    with torch.no_grad():
        for _ in range(replay.BEFORE + 4):
            replayed(x, 5)
    assert len(driver.launches) == len(given) == replay.BEFORE + 4
    assert {memory.nbytes for memory in given} == {3 * 2 * 128}
    (recording,) = replay._CACHES[-1].values()
    assert not recording.allocations, "each launch makes its own"


@pytest.mark.parametrize("driver", ["0.0.0"], indirect=True)
def test_an_unknown_launcher_that_asks_for_memory_is_left_to_triton(driver, launch):
    launch((3,), torch.empty(64), None, 5, 6, D=64, EPS=0.5)
    ((*_, compiled),) = _launch._CACHES[-2].values()
    assert bound_launch.RUN.bound(plain(), compiled) is not None
    compiled.run.global_scratch_size = 128
    assert bound_launch.RUN.bound(plain(), compiled) is None


@with_each_launcher
def test_hooks_and_debugging_put_triton_s_own_launch_back(driver, launch, monkeypatch):
    from triton import knobs

    def launched_by_triton():
        driver.launches.clear()
        launch((3,), torch.empty(64), None, 5, 6, D=64, EPS=0.5)
        return isinstance(driver.launches[-1][9], torch.Tensor)  # and not an address

    launched_by_triton()
    assert not launched_by_triton()
    for owner, name, value in (
        (knobs.runtime, "debug", True),
        (knobs.runtime, "launch_enter_hook", lambda _: None),
        (knobs.runtime, "launch_exit_hook", lambda _: None),
        (knobs.compilation, "instrumentation_mode", "any"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, value)
            assert launched_by_triton(), name
        assert not launched_by_triton()
    for chain in (knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook):
        hook = chain.calls.append
        hook(print)
        try:
            assert launched_by_triton()
        finally:
            chain.calls.clear()
        assert not launched_by_triton()


@with_each_launcher
def test_sizes_that_change_at_every_call_are_not_kept_without_end(driver, launch, monkeypatch):
    monkeypatch.setattr(_launch, "MAX_CACHED", 8)
    x = torch.empty(64)
    cache = _launch._CACHES[-1]
    for n in range(2, 100):
        launch((3,), x, None, n, 6, D=64, EPS=0.5)
        assert len(cache) <= 8
    assert [arguments[-2] for arguments in driver.launches] == list(range(2, 100))


@with_each_launcher
def test_a_tensor_where_a_number_belongs_is_left_to_triton(driver, launch):
    before = len(_launch._CACHES[-1])
    launch((3,), torch.empty(64), None, torch.empty(64), 6, D=64, EPS=0.5)
    assert len(_launch._CACHES[-1]) == before and len(driver.launches) == 1


def test_time_in_launches_is_told_apart(driver):
    def busy():
        driver.launches.clear()
        return kernels.swiglu(x, x, impl="triton")

    x = torch.randn(3, 5)
    cost = host_cost(busy, "cpu", calls=50)
    assert 0 < cost.outside_us < 1e6 and 0 < cost.call_us < 1e6
    with _launch.launches_timed() as spent_ns:
        busy()
        busy()
        assert len(spent_ns) == 2 and min(spent_ns) > 0
    busy()
    assert len(spent_ns) == 2, "and no more afterwards"


@with_each_launcher
def test_a_size_that_is_new_while_launches_are_timed_is_timed_no_longer_than_others(driver, launch):
    x = torch.empty(64)
    for n in (32, 32):
        launch((3,), x, None, n, 6, D=64, EPS=0.5)
    with _launch.launches_timed() as spent_ns:
        launch((3,), x, None, 48, 6, D=64, EPS=0.5)
    timed = len(spent_ns)
    launch((3,), x, None, 48, 6, D=64, EPS=0.5)
    assert len(spent_ns) == timed


def test_a_changed_precision_of_products_takes_effect_at_the_next_call(driver):
    q = torch.randn(1, 2, 9, 16)
    before = torch.get_float32_matmul_precision()
    try:
        for precision, product in (("highest", "tf32x3"), ("high", "tf32"), ("highest", "tf32x3")):
            torch.set_float32_matmul_precision(precision)
            for _ in range(2):
                driver.launches.clear()
                with kernels.using(attention="triton"):
                    kernels.attention(q, q, q)
                _, _, key = driver.launches[-1][4]
                assert f"'{product}'" in key
    finally:
        torch.set_float32_matmul_precision(before)


def test_choices_take_effect_at_the_next_call_and_are_counted_each_time(driver):
    x, weight = torch.randn(3, 8), torch.ones(8)
    kernels.reset_usage()
    for impl in ("triton", "torch", "triton", "triton"):
        with kernels.using(rms_norm=impl):
            kernels.rms_norm(x, weight)
    assert kernels.usage() == {"rms_norm": {"triton": 3, "torch": 1}}
    assert len(driver.launches) == 3
    with pytest.raises(kernels.Unavailable, match="does not support FP64"):
        kernels.rms_norm(x.double(), weight.double(), impl="triton")
    kernels.rms_norm(x.double(), weight.double())
    kernels.rms_norm(x, weight, impl="triton")
    assert kernels.usage() == {"rms_norm": {"triton": 4, "torch": 2}}
    kernels.reset_usage()
