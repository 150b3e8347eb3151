"""Settings of the whole test run; puts this folder on the path of the tests below it."""

import gc

from hypothesis import HealthCheck, settings

# No test has a limit in time: the first call of a kernel compiles it, and machines are busy.
settings.register_profile(
    "no deadline", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("no deadline")


def pytest_collection_finish() -> None:
    """Let the collector of garbage pass over what is there before the first test, and stays."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    """Let it take all at the end: some libraries say so if anything is left."""
    gc.unfreeze()
