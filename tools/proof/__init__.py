"""The machine-checked proof of exact release: `make proof`. See docs/exact-release-proof.md."""

import sys
from pathlib import Path

# `python -m tools.proof` starts in the root; the modules import each other as `proof`.
sys.path.append(str(Path(__file__).parents[1]))
