"""`python -m fuzz TARGET [--seconds 60]`: search for an input that a target cannot bear. Exit status 0: none found."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

TORTURE = Path(__file__).parents[1] / "tests" / "captures" / "sip-torture"
LONGEST = 16384


def main() -> None:
    try:
        import atheris
    except ImportError:
        sys.exit("fuzz: install callagent with the extra 'fuzz'")
    # What is imported from here on counts its branches.
    with atheris.instrument_imports(include=["callagent"]):
        from fuzz.targets import TARGETS, run, seeds
    parser = argparse.ArgumentParser(prog="python -m fuzz")
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--seconds", type=int, default=60)
    options = parser.parse_args()
    target = TARGETS[options.target]
    with tempfile.TemporaryDirectory() as corpus:
        found = seeds(options.target)
        if options.target == "sip":
            found += [path.read_bytes() for path in sorted(TORTURE.rglob("*.dat"))]
        for number, seed in enumerate(found):
            Path(corpus, str(number)).write_bytes(seed)
        search = [f"-max_total_time={options.seconds}", f"-max_len={LONGEST}", "-timeout=5", "-rss_limit_mb=2048"]
        atheris.Setup([sys.argv[0], *search, corpus], lambda data: run(target, data))
        atheris.Fuzz()


if __name__ == "__main__":
    main()
