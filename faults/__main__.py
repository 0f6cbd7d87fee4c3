"""`python -m faults`: try every fault, print a table of what was tried and what was lost."""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from faults.scenarios import SCENARIOS
from faults.small import Row, few_pictures


def main() -> None:
    """Run them all, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(SCENARIOS)}; all without any")
    parser.add_argument("--quick", action="store_true", help="a few of each")
    parser.add_argument("--markdown", type=Path, help="write the table here")
    given = parser.parse_args()
    unknown = [name for name in given.names if name not in SCENARIOS]
    if unknown:
        parser.error(f"unknown fault {unknown[0]!r}; known: {', '.join(SCENARIOS)}")
    os.environ["MSVQ_HOME"] = tempfile.mkdtemp(prefix="msvq-faults-home-")
    few_pictures()
    rows: list[Row] = []
    table = Table("fault", "tried", "what came of it", "lost")
    for name in given.names or SCENARIOS:
        started = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="msvq-faults-") as folder:
            Path(folder).chmod(0o755)
            found = SCENARIOS[name](Path(folder), given.quick)
        rows += found if isinstance(found, list) else [found]
        sys.stderr.write(f"{name}: nothing lost, {time.monotonic() - started:.0f} s\n")
    for row in rows:
        table.add_row(row.fault, str(row.tried), row.outcome, "nothing")
    Console().print(table)
    if given.markdown:
        lines = ["| fault | tried | what came of it | lost |", "|---|---|---|---|"]
        lines += [f"| {row.fault} | {row.tried} | {row.outcome} | nothing |" for row in rows]
        given.markdown.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
