"""What mkdocs does besides: it makes the reference from the code, and turns links to the repository into names.

The pages are read in two places. On a code-hosting page a link such as `../src/msvq/api.py` leads to the file; the site
holds no such file, so its name is left. A file that is not there is a warning, which ends a strict build.
"""

import logging
import re
import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"\[(?P<words>[^\]]+)\]\((?P<target>\.\./[^)#\s]+)\)")
NEEDS = re.compile(r"^<!-- needs: (?P<what>.+?) -->$", re.MULTILINE)
log = logging.getLogger("mkdocs.plugins.msvq")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made from the code."""
    sys.path[:0] = [str(ROOT), str(ROOT / "src")]  # this checkout's own code is what the reference is about
    from docs.reference import PAGES

    for path, make in PAGES.items():
        files.append(File.generated(config, path, content=make()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Name the repository's files instead of linking them, and show what the commands of a block need."""
    place = Path(config.docs_dir, page.file.src_uri).parent

    def named(link: re.Match[str]) -> str:
        target = (place / link["target"]).resolve()
        if target.is_relative_to(config.docs_dir):
            return link[0]
        if not target.exists():
            log.warning("%s links to %s, which is not there", page.file.src_uri, link["target"])
        name = f"`{target.relative_to(ROOT)}`" if target.is_relative_to(ROOT) else f"`{target.name}`"
        return name if link["words"] in name else f"{link['words']} ({name})"

    return NEEDS.sub(r"*This needs \g<what>:*", LINK.sub(named, markdown))
