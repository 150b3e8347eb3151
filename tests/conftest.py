"""Settings of the whole test run."""

import hashlib
import os
from pathlib import Path

from hypothesis import settings

ROOT = Path(__file__).parent.parent

# Numba's cache looks at the file of a kernel, not at the files that it calls. Keeping one cache for
# each state of the kernels makes a stale one impossible in the tests.
_sources = b"".join(
    path.read_bytes()
    for folder in ("kernels", "attacks")
    for path in sorted((ROOT / "src/dpnoise" / folder).glob("*.py"))
)
os.environ.setdefault(
    "NUMBA_CACHE_DIR", str(ROOT / ".numba_cache" / hashlib.sha256(_sources).hexdigest()[:16])
)

# No test has a limit in time: the first call of a kernel compiles it, and machines are busy.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")
