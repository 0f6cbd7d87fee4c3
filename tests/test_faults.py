"""A few of the faults that `make faults` tries by the hundred."""

import subprocess
import sys
from pathlib import Path

FAULTS = [
    "kills",
    "second_signals",
    "full_disk",
    "read_only",
    "lost_permission",
    "damage",
    "not_a_number",
    "clock",
]  # the others have tests of their own


def test_nothing_is_lost() -> None:
    root = Path(__file__).parent.parent
    answer = subprocess.run(
        [sys.executable, "-m", "faults", "--quick", *FAULTS], cwd=root, capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.count("nothing") >= 11
