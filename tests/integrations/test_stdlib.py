"""SecureRandom: CPython's tests of SystemRandom, and nothing twice in threads or after a fork."""

import copy
import os
import pickle
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import pytest
from support.forks import fork_in_c, needs_fork, output_of_child, output_of_child_of_thread

from dpnoise.core import forks
from dpnoise.core.entropy import Key, Words
from dpnoise.core.errors import ArgumentError
from dpnoise.integrations import stdlib
from dpnoise.integrations.stdlib import SecureRandom
from dpnoise.testing import _FixedSource

test_random = pytest.importorskip("test.test_random", reason="this Python comes without its tests")

KEY = bytes(range(32))
if TYPE_CHECKING:
    from unittest import TestCase as CPythonTests
else:
    CPythonTests = test_random.SystemRandom_TestBasicOps


class TestOfCPython(CPythonTests):
    """CPython's own tests of SystemRandom."""

    gen = SecureRandom()


def test_it_has_every_method_of_random() -> None:
    rng = SecureRandom()
    assert isinstance(rng, random.Random)
    calls: dict[str, tuple[object, ...]] = {
        "betavariate": (2, 3), "choice": ("ab",), "choices": ("ab",), "expovariate": (1.0,),
        "gammavariate": (2, 1), "gauss": (0, 1), "getrandbits": (3,), "lognormvariate": (0, 1),
        "normalvariate": (0, 1), "paretovariate": (1,), "randbytes": (3,), "randint": (1, 6),
        "random": (), "randrange": (6,), "sample": (range(9), 2), "seed": (), "shuffle": ([1, 2],),
        "triangular": (0, 1, 0.5), "uniform": (0, 1), "vonmisesvariate": (0, 1),
        "weibullvariate": (1, 1), "binomialvariate": (10, 0.5),
    }  # fmt: skip
    without_state = {"getstate", "setstate", "VERSION", "gauss_next"}
    public = {name for name in dir(random.Random) if not name.startswith("_")} - without_state
    assert public <= set(calls)
    for name in public:
        getattr(rng, name)(*calls[name])


def test_a_seed_is_an_error_where_a_generator_is_made() -> None:
    """Python's SystemRandom ignores it in silence; its method `seed` is called by libraries."""
    with pytest.raises(ArgumentError, match=r"no seed.*Call SecureRandom\(\)\."):
        SecureRandom(3)  # type: ignore[arg-type] # That is what is tested.
    rng = SecureRandom(None)
    rng.seed(3)
    first = rng.random()
    rng.seed(3)
    assert rng.random() != first


def test_numbers_are_the_first_bits_of_the_key_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stdlib, "SYSTEM", _FixedSource(KEY, "AES-256-CTR"))
    words = np.empty(stdlib._BUFFER_WORDS, dtype=np.uint64)
    Key(KEY).stream().fill(words)
    last = words[::-1].tolist()
    assert [SecureRandom().random()] == [(last[0] >> 11) / 2**53]
    monkeypatch.setattr(stdlib, "SYSTEM", _FixedSource(KEY, "AES-256-CTR"))
    rng = SecureRandom()
    assert [rng.getrandbits(k) for k in (64, 1, 0, 53)] == [
        last[0],
        last[1] >> 63,
        0,
        last[3] >> 11,
    ]


def test_a_second_gauss_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SecureRandom, "random", lambda _: 0.25)
    rng = SecureRandom()
    rng.gauss_next = 100.0  # type: ignore[attr-defined]
    first = rng.gauss(1.0, 2.0)
    assert first == pytest.approx(1.0, abs=1e-15)  # The cosine of a quarter turn.
    assert rng.gauss(1.0, 2.0) == first


def test_gauss_is_gaussian() -> None:
    """False-alarm rate: below 1e-8, by six standard errors of the mean and of the mean square."""
    size = 20_000
    rng = SecureRandom()
    drawn = np.array([rng.gauss(3.0, 2.0) for _ in range(size)])
    assert abs(drawn.mean() - 3.0) < 6 * 2.0 / size**0.5
    assert abs(((drawn - 3.0) ** 2).mean() - 4.0) < 6 * 4.0 * (2 / size) ** 0.5


@pytest.mark.parametrize("do", [copy.copy, copy.deepcopy, pickle.dumps])
def test_it_is_not_copied_or_pickled(do: Callable[[object], object]) -> None:
    rng = SecureRandom()
    rng.random()
    with pytest.raises(NotImplementedError, match="does not have state"):
        do(rng)
    assert str(rng._floats[0][-1]) not in repr(rng)


def test_threads_draw_different_numbers() -> None:
    rng = SecureRandom()
    with ThreadPoolExecutor(4) as pool:
        drawn = list(pool.map(lambda _: [rng.getrandbits(64) for _ in range(3000)], range(4)))
    assert len(set().union(*drawn)) == 12_000


def numbers(rng: SecureRandom) -> str:
    return f"{rng.random()} {rng.getrandbits(64)}"


def without_wiped_memory(_: int) -> None:
    return None


@needs_fork
@pytest.mark.parametrize("fork", [os.fork, fork_in_c])
@pytest.mark.parametrize("way", ["wiped memory", "process number"])
def test_children_of_a_fork_draw_different_numbers(
    fork: Callable[[], int], way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "process number":
        monkeypatch.setattr(forks, "wiped_memory", without_wiped_memory)
    monkeypatch.setattr(forks, "_marks", [forks._new_mark()])
    rng = SecureRandom()
    numbers(rng)
    drawn = [output_of_child(lambda: numbers(rng), fork) for _ in range(2)]
    drawn.append(output_of_child_of_thread(lambda: numbers(rng)))
    # The last child forks before it draws.
    drawn.append(output_of_child(lambda: output_of_child(lambda: numbers(rng), fork), fork))
    drawn.append(numbers(rng))
    assert len(set(" ".join(drawn).split())) == 10


@needs_fork
def test_a_fork_during_a_draw_shares_no_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal handler may fork at any instruction, for example when the words are drawn."""
    draw_words = stdlib._draw_words
    children: list[int] = []

    def fork_after_draw() -> Words:
        words = draw_words()
        monkeypatch.setattr(stdlib, "_draw_words", draw_words)
        children.append(os.fork())
        return words

    monkeypatch.setattr(stdlib, "_draw_words", fork_after_draw)
    reader, writer = os.pipe()
    drawn = SecureRandom().random()  # Returns in both processes.
    if children == [0]:
        os.write(writer, str(drawn).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        assert float(pipe.read()) != drawn
    os.waitpid(children[0], 0)
