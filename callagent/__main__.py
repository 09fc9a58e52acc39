"""`python -m callagent`."""

from __future__ import annotations

import sys

from callagent.cli import main

sys.exit(main())
