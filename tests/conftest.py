"""Settings of the whole test run; puts this folder on the path of the tests below it."""

import gc
import os

# The tests run in one process on each core. OpenMP's threads would wait for a core that is busy,
# and spend as much processor time waiting as working. It reads this when it is loaded.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Collection makes many objects and drops few. pytest_collection_finish starts the collector again.
gc.disable()

import pytest  # noqa: E402 - after what must be set first
from hypothesis import HealthCheck, settings  # noqa: E402
from support.choices import cases_left_out  # noqa: E402

# No test has a limit in time: the first call of a kernel compiles it, and machines are busy.
settings.register_profile(
    "no deadline", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("no deadline")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out cases of tests marked `sample`, of those that `-m` and `-k` have selected."""
    left_out = cases_left_out(items)
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]


def pytest_collection_finish() -> None:
    """Let the collector of garbage pass over what is there before the first test, and stays."""
    gc.enable()
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    """Let it take all at the end: some libraries say so if anything is left."""
    gc.unfreeze()
