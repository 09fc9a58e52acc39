"""Run the command line as `python -m callagent`."""

from __future__ import annotations

import sys

from callagent.commands import main

sys.exit(main())
