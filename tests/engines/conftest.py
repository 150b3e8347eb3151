"""One Spark for the whole run: a driver, and two executors that are processes of their own."""

import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from dpnoise.errors import ArgumentError
from dpnoise.statistics.engines import tally
from dpnoise.statistics.plan import Plan, Rows


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings: dict[str, bool | float | str | None] = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "3",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.master("local-cluster[2,1,1024]").appName("dpnoise")
    session = builder.config(map=settings).getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    kept = session.range(3)
    yield session
    session.stop()
    with pytest.raises(ArgumentError, match="Is its session or connection still open"):
        tally(kept, Plan((Rows(),)))
