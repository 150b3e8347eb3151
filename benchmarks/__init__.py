"""Benchmarks of speed and memory, compared with other libraries: `make bench`."""

import sys
from pathlib import Path

# The benchmarks share modules with the programs in tools, which are no package.
sys.path.append(str(Path(__file__).parents[1] / "tools"))
