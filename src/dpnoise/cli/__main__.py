"""`python -m dpnoise.cli`."""

import sys

from dpnoise.cli import main

sys.exit(main())
