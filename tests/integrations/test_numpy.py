"""SecureBitGenerator: NumPy's own tests, the key stream, and nothing twice after forks."""

import copy
import ctypes
import multiprocessing
import os
import pickle
import runpy
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import numpy as np
import pytest
import scipy.stats
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from numpy.typing import NDArray
from support.alarms import LONG
from support.forks import fork_in_c, needs_fork, output_of_child, output_of_child_of_thread

from dpnoise.core.entropy import KEY_BYTES, Key
from dpnoise.core.errors import ArgumentError, SecretError
from dpnoise.integrations import numpy as integration
from dpnoise.integrations.numpy import SecureBitGenerator

numpy_smoke = pytest.importorskip("numpy.random.tests.test_smoke")
numpy_direct = pytest.importorskip("numpy.random.tests.test_direct")

if TYPE_CHECKING:

    class SmokeTests:
        """Tests that NumPy does not type."""

    DirectTests = SmokeTests
else:
    SmokeTests, DirectTests = numpy_smoke.RNG, numpy_direct.Base

EXAMPLE = Path(__file__).parents[2] / "examples" / "secure_generators.py"
KEY = bytes(range(KEY_BYTES))
WORDS = integration._WORDS


def generator() -> np.random.Generator:
    return np.random.Generator(SecureBitGenerator())


def compile_with(monkeypatch: pytest.MonkeyPatch, urandom: Callable[[int], bytes]) -> None:
    """Compile code that takes its bytes of the system from a function of Python."""

    def fill(address: int, count: int) -> int:
        try:
            drawn = os.urandom(8) if count == 8 else urandom(count)  # 8 while it compiles.
            ctypes.memmove(address, drawn, count)
        except OSError:
            return 1 - integration._ENTROPY_GIVEN
        return integration._ENTROPY_GIVEN

    getentropy = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t)(fill)
    named = integration._c_function
    replaced = {"getentropy": getentropy}
    monkeypatch.setattr(integration, "_c_function", lambda name: replaced.get(name) or named(name))
    engine = integration._compile()
    engine.entropy = getentropy  # It must live as long as the code.
    monkeypatch.setattr(integration, "_machine_code", lambda: engine)


@pytest.fixture(params=[True, False], ids=["fills the buffer", "returns bytes"])
def cipher_call(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Call the cipher as the installed cryptography allows it, and as older versions do."""
    monkeypatch.setattr(integration, "_FILLS_BUFFERS", request.param and integration._FILLS_BUFFERS)


@pytest.fixture
def fixed_key(cipher_call: None, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ARG001
    compile_with(monkeypatch, lambda count: KEY[:count])


def fixed_words() -> NDArray[np.uint64]:
    """Return the words of a buffer under KEY, in the order in which they are drawn."""
    words = np.empty(WORDS, dtype=np.uint64)
    Key(KEY).stream(4).fill(words)
    return words[::-1]


class TestSmokeOfNumPy(SmokeTests):
    """NumPy's smoke tests of bit generators, without those that read or set a state or a seed."""

    test_init = test_advance = test_jump = test_entropy_init = test_seed = test_seed_array = None
    test_reset_state = test_reset_state_gauss = test_reset_state_uint32 = None
    test_reset_state_float = test_pickle = test_uniform_float = test_gamma_floats = None
    test_normal_floats = test_normal_zig_floats = test_output_fill = None
    test_output_filling_uniform = test_output_filling_exponential = None
    test_output_filling_gamma = test_output_filling_gamma_broadcast = None
    test_integers_broadcast = None

    @classmethod
    def _create_rng(cls) -> Any:
        return numpy_smoke.RNGData(SecureBitGenerator, 0, [], generator(), 64)


@pytest.mark.usefixtures("fixed_key")
class TestDirectOfNumPy(DirectTests):
    """NumPy's tests of the words of bit generators, under a fixed key in place of a seed."""

    # These read or set a state.
    test_pickle = test_pickle_preserves_seed_sequence = None
    test_invalid_state_value = test_getstate = None
    # NumPy makes two float32 of a word, and we one.
    test_uniform_float = None

    @classmethod
    def setup_class(cls) -> None:
        """Set the class and the words to expect."""
        words = {"seed": [], "data": fixed_words()[:1000]}
        settings = {
            "bit_generator": SecureBitGenerator, "bits": 64, "dtype": np.uint64,
            "data1": words, "data2": words,
            "invalid_init_types": [(1, 2)], "invalid_init_values": [(1,), ("seed",)],
        }  # fmt: skip
        for name, setting in settings.items():
            setattr(cls, name, setting)


@pytest.mark.usefixtures("fixed_key")
def test_numbers_are_the_first_bits_of_the_words() -> None:
    words = fixed_words()
    single = generator().random(4, dtype=np.float32)
    assert single.tolist() == ((words[:4] >> np.uint64(40)) * 2.0**-24).tolist()
    assert generator().random(WORDS).tolist() == ((words >> np.uint64(11)) * 2.0**-53).tolist()
    both = SecureBitGenerator().random_raw(WORDS + 1)
    assert both[-1] == words[0]  # The next buffer, under the next key, which is the same here.


def buffer_of(bits: SecureBitGenerator) -> NDArray[np.uint64]:
    return np.frombuffer(bits._memory, dtype=np.uint64)  # With a tag of 16 bytes at its end.


@pytest.mark.usefixtures("fixed_key")
def test_used_words_and_keys_are_overwritten() -> None:
    bits = SecureBitGenerator()
    used = bits.random_raw(1000)
    buffer = buffer_of(bits)
    left = int(buffer[integration._LEFT])
    assert left == WORDS - 1000
    assert not buffer[integration._FIRST + left :].any()
    assert buffer[integration._FIRST : integration._FIRST + left].all()
    assert not set(used) & set(buffer)


@pytest.mark.usefixtures("cipher_call")
def test_a_refill_overwrites_its_key_and_its_stream_and_keeps_no_object(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keys: list[bytes] = []
    streams: list[bytes] = []
    ciphers: WeakSet[object] = WeakSet()

    class KeepingCipher:
        """Keeps what it gets and returns."""

        def __init__(self, key: memoryview) -> None:
            self._cipher = AESGCM(key)
            keys.append(bytes(key))
            ciphers.add(self)

        def encrypt(self, nonce: bytes, data: bytes, associated: None) -> bytes:
            """Encrypt like AESGCM."""
            streams.append(self._cipher.encrypt(nonce, data, associated))
            return streams[-1]

        def encrypt_into(self, *arguments: Any) -> int:
            """Encrypt like AESGCM."""
            return int(self._cipher.encrypt_into(*arguments))

    monkeypatch.setattr(integration, "AESGCM", KeepingCipher)
    compile_with(monkeypatch, os.urandom)
    bits = SecureBitGenerator()
    assert not set(bits.random_raw(WORDS + 1)) & {0}
    assert len(set(keys)) == 2
    assert all(any(key) for key in keys)
    parts = buffer_of(bits)
    assert not parts[integration._KEY : integration._FIRST].any()
    assert not parts[integration._FIRST + WORDS :].any()
    assert [stream[: 8 * WORDS].count(0) for stream in streams] == [8 * WORDS] * len(streams)
    assert len(streams) == (0 if integration._FILLS_BUFFERS else 2)
    assert not ciphers
    listed = [bytes(bytearray(KEY))]
    assert all(sys.getrefcount(each) == sys.getrefcount(listed[0]) + 1 for each in streams)


def test_a_seed_is_an_error() -> None:
    with pytest.raises(ArgumentError, match=r"takes no seed.* Call SecureBitGenerator\(\)"):
        SecureBitGenerator(1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "use",
    [
        copy.copy,
        copy.deepcopy,
        pickle.dumps,
        lambda bits: bits.state,
        lambda bits: setattr(bits, "state", {}),
        lambda bits: bits.__getstate__(),
        lambda bits: bits.__setstate__(({}, None)),
        lambda bits: pickle.dumps(np.random.Generator(bits)),
        lambda bits: copy.deepcopy(np.random.RandomState(bits)),
    ],
)
def test_it_has_no_state(use: Callable[[Any], object]) -> None:
    with pytest.raises(SecretError, match="no state to read, set, copy or pickle"):
        use(SecureBitGenerator())


def test_its_children_are_independent_and_of_its_class() -> None:
    rng = generator()
    children = rng.spawn(3)
    assert all(isinstance(child.bit_generator, SecureBitGenerator) for child in children)
    words = [x.bit_generator.random_raw(2 * WORDS) for x in (rng, *children)]
    assert len(set(np.concatenate(words))) == 8 * WORDS


def test_many_draws_are_uniform_and_never_the_same() -> None:
    """Bytes by a chi-square test: false-alarm rate 1e-9."""
    rng = generator()
    counts = np.zeros(256, dtype=np.int64)
    for _ in range(500 if LONG else 1):  # 10^8 words, or 200,000.
        words = rng.bit_generator.random_raw(200_000)
        assert len(set(words)) == 200_000
        counts += np.bincount(words.view(np.uint8), minlength=256)
    assert scipy.stats.chisquare(counts).pvalue > 1e-9


def test_scipy_takes_it() -> None:
    drawn = scipy.stats.norm(loc=5, scale=2).rvs(size=10_000, random_state=generator())
    assert abs(drawn.mean() - 5) < 6 * 2 / 100


def test_scikit_learn_takes_it() -> None:
    pytest.importorskip("sklearn")
    from sklearn.linear_model import SGDClassifier
    from sklearn.model_selection import train_test_split

    state = np.random.RandomState(SecureBitGenerator())  # It takes no Generator.
    first, second = train_test_split(np.arange(1000), random_state=state)
    assert sorted([*first, *second]) == list(range(1000))
    points = np.arange(100.0)[:, None] / 100
    model = SGDClassifier(random_state=state).fit(points, points[:, 0] > 0.5)
    assert model.score(points, points[:, 0] > 0.5) > 0.7


def test_permutations_are_of_their_input() -> None:
    rng = generator()
    assert sorted(rng.permutation(1000)) == list(range(1000))
    assert rng.permutation(1000).tolist() != list(range(1000))
    things = [object() for _ in range(100)]
    shuffled = list(things)
    rng.shuffle(shuffled)
    assert set(map(id, shuffled)) == set(map(id, things))


# Threads, signals and failures. -------------------------------------------------------------------


def test_threads_draw_different_numbers() -> None:
    bits = SecureBitGenerator()
    rng = np.random.Generator(bits)
    with ThreadPoolExecutor(4) as pool:
        raw = [pool.submit(bits.random_raw, WORDS) for _ in range(8)]
        scalars = [pool.submit(lambda: [rng.random() for _ in range(500)]) for _ in range(4)]
        words = np.concatenate([future.result() for future in raw])
        floats = [x for future in scalars for x in future.result()]
    assert len(set(words)) == 8 * WORDS
    assert len(set(floats)) == 2000


@pytest.fixture
def alarm() -> Iterator[None]:
    before = signal.getsignal(signal.SIGALRM)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@needs_fork
@pytest.mark.usefixtures("alarm")
def test_an_interrupt_during_a_long_draw_is_raised_after_it() -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGALRM, interrupt)
    rng = generator()
    drawn = np.zeros(20 * WORDS)
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - the interrupt comes in one of them
        signal.setitimer(signal.ITIMER_REAL, 0.001)
        for _ in range(1000):
            rng.random(out=drawn)
    assert drawn.all()  # Each 0 has probability 2^-53.
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(rng.random).result(timeout=60) >= 0


@pytest.mark.parametrize("failure", [MemoryError, KeyboardInterrupt, OSError])
def test_without_a_cipher_words_come_from_the_system(
    failure: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    def fail(key: memoryview) -> None:
        calls.append(len(key))
        raise failure

    monkeypatch.setattr(integration, "AESGCM", fail)
    bits = SecureBitGenerator()
    words = bits.random_raw(32 * 30)
    assert len(calls) == 30
    assert len(set(words)) == 32 * 30
    assert words.all()
    assert scipy.stats.chisquare(np.bincount(words.view(np.uint8), minlength=256)).pvalue > 1e-9
    assert not buffer_of(bits)[integration._KEY :].any()


def test_a_draw_waits_while_the_system_gives_no_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def fail_often(count: int) -> bytes:
        calls.append(count)
        if len(calls) < 10:
            raise OSError
        return os.urandom(count)

    compile_with(monkeypatch, fail_often)
    bits = SecureBitGenerator()
    assert bits.random_raw() > 0
    assert len(calls) == 10
    assert buffer_of(bits)[integration._LEFT] in (31, WORDS - 1)


def test_a_draw_inside_a_refill_shares_no_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """A finalizer of Python may draw from the same generator."""
    inner: list[int] = []
    made: list[SecureBitGenerator] = []

    def draw_inside(count: int) -> bytes:
        if not inner:
            inner.append(-1)
            inner[:] = made[0].random_raw(100).tolist()
        return os.urandom(count)

    compile_with(monkeypatch, draw_inside)
    made.append(SecureBitGenerator())
    outer = made[0].random_raw(WORDS).tolist()
    assert len({*inner, *outer}) == WORDS + 100


# Forks. -------------------------------------------------------------------------------------------


@pytest.fixture(params=["wiped memory", "process number"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Notice forks on a system that wipes memory, or on one that does not."""
    if request.param == "process number":
        monkeypatch.setattr(integration, "wiped_memory", lambda _: None)
        integration._compares_processes.cache_clear()
        compile_with(monkeypatch, os.urandom)
    yield request.param
    monkeypatch.undo()
    integration._compares_processes.cache_clear()


def words_of(bits: SecureBitGenerator) -> str:
    return " ".join(map(str, bits.random_raw(10)))


@needs_fork
@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("fork", [os.fork, fork_in_c])
def test_children_of_a_fork_draw_different_words(fork: Callable[[], int]) -> None:
    bits = SecureBitGenerator()
    bits.random_raw(5)
    assert buffer_of(bits)[integration._LEFT] == WORDS - 5
    drawn = [output_of_child(lambda: words_of(bits), fork) for _ in range(2)]
    assert buffer_of(bits)[integration._LEFT] == WORDS - 5  # Children take no words of it.
    drawn.append(output_of_child_of_thread(lambda: words_of(bits)))
    # A child that forks before it draws.
    drawn.append(output_of_child(lambda: output_of_child(lambda: words_of(bits), fork), fork))
    drawn.append(words_of(bits))
    assert len(set(" ".join(drawn).split())) == 50


@needs_fork
@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("draws_in_child", [False, True])
def test_a_fork_inside_a_refill_shares_no_words(
    draws_in_child: bool,  # noqa: FBT001 - a parameter of a test
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    children: list[int] = []
    made: list[SecureBitGenerator] = []

    def fork_inside(count: int) -> bytes:
        key = os.urandom(count)
        if not children:
            children.append(os.fork())
            if draws_in_child and children == [0]:
                made[0].random_raw(10)
        return key

    compile_with(monkeypatch, fork_inside)
    made.append(SecureBitGenerator())
    reader, writer = os.pipe()
    drawn = words_of(made[0])  # Returns in both processes.
    if children == [0]:
        os.write(writer, drawn.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        assert len({*pipe.read().split(), *drawn.split()}) == 20
    os.waitpid(children[0], 0)


@needs_fork
def test_a_child_forked_while_another_thread_draws_can_draw() -> None:
    bits = SecureBitGenerator()
    rng = np.random.Generator(bits)
    holding, free = threading.Event(), threading.Event()

    def hold() -> None:
        with bits.lock:
            holding.set()
            free.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    assert holding.wait(60)

    def draw() -> str:
        signal.alarm(20)  # It would wait for the lock.
        return str(rng.random())

    try:
        assert 0 <= float(output_of_child(draw, os.fork)) < 1
    finally:
        free.set()
        thread.join()
    lock: Any = bits.lock
    with lock:  # A thread that forks keeps its own lock.
        assert output_of_child(lambda: str(lock._is_owned()), os.fork) == "True"


@needs_fork
def test_children_forked_during_draws_draw_different_words() -> None:
    bits = SecureBitGenerator()
    drawn: list[NDArray[np.uint64]] = []
    stop = threading.Event()

    def draw_on() -> None:
        while not stop.is_set():
            drawn.append(bits.random_raw(100))
            time.sleep(0.001)

    thread = threading.Thread(target=draw_on)
    thread.start()
    texts = [output_of_child(lambda: words_of(bits), os.fork) for _ in range(5)]
    stop.set()
    thread.join()
    words = [*map(int, " ".join(texts).split())]
    assert len(set(words)) == 50
    assert not set(words) & set(np.concatenate(drawn).tolist())


def draw_in_pool(_: int) -> int:
    return int(SecureBitGenerator().random_raw())


@pytest.mark.long
def test_spawned_processes_draw_different_words() -> None:
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        assert len(set(pool.map(draw_in_pool, range(8)))) == 8


def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    assert len(capsys.readouterr().out.splitlines()) == 4
