"""Look up known vulnerabilities of the direct requirements, as installed, at the package index; exit code 1 if any.

The same data as pip-audit's, without its twenty requirements. Without network, or where the index does not tell, it
says so in a line and passes: a build does not depend on it.
"""

import json
import re
import sys
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any
from urllib.request import urlopen

INDEX = "https://pypi.org/pypi"
TIMEOUT = 5.0  # seconds; all are asked at once
ACCEPTED: dict[str, str] = {}  # the id of a vulnerability, and why it does not concern us


def installed(project: Path) -> dict[str, str]:
    """Name and version of each direct requirement that is here."""
    found = {}
    for requirement in tomllib.loads(project.read_text(encoding="utf-8"))["project"]["dependencies"]:
        name = re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0]
        try:
            found[name] = version(name).partition("+")[0]  # "+cpu" is a build, not a release
        except PackageNotFoundError:
            continue
    return found


def look_up(name: str, release: str) -> list[str] | None:
    """A line for each vulnerability; None if the index does not tell."""
    try:
        with urlopen(f"{INDEX}/{name}/{release}/json", timeout=TIMEOUT) as answer:
            known: list[dict[str, Any]] = json.load(answer)["vulnerabilities"]
        return [
            f"{name} {release}: {one['id']}, fixed in {', '.join(one.get('fixed_in') or ['no release'])}"
            for one in known
            if not one.get("withdrawn") and one["id"] not in ACCEPTED
        ]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def audit(requirements: dict[str, str]) -> tuple[Sequence[str], Sequence[str]]:
    """What is known of the requirements, and those of which nothing could be learned."""
    with ThreadPoolExecutor(len(requirements) or 1) as threads:
        answers = dict(zip(requirements, threads.map(look_up, *zip(*requirements.items(), strict=True)), strict=True))
    lines = [line for answer in answers.values() for line in answer or ()]
    return lines, [name for name, answer in answers.items() if answer is None]


def main() -> int:
    """Print what was found."""
    requirements = installed(Path(__file__).parent.parent / "pyproject.toml")
    lines, unknown = audit(requirements)
    if len(unknown) == len(requirements):
        sys.stdout.write("audit of the requirements: skipped, the package index does not tell (no network?)\n")
        return 0
    told = len(requirements) - len(unknown)
    missing = f"; not told of: {', '.join(unknown)}" if unknown else ""
    sys.stdout.write(f"audit of the requirements: {told} looked up, {len(lines)} known vulnerabilities{missing}\n")
    sys.stdout.writelines(f"  {line}\n" for line in lines)
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
