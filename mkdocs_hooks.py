"""Hooks of the docs site: files of the repository that pages link to become part of the site.

Pages link to `../protos/livectr.proto`, as GitHub and editors expect. MkDocs knows docs/ only. These hooks
add each linked file under `repository/` and rewrite the links to it.
"""

import os.path
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent
DOCS = ROOT / "docs"
LINK = re.compile(r"(\]\()(?!\w+:|#)([^)#\s]+)")
ALSO = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
"""Pages of the navigation that no page needs to link to."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add files outside docs/ that pages link to, and what those link to."""
    waiting = [*sorted(DOCS.rglob("*.md")), *sorted((ROOT / "examples").glob("*/README.md"))]
    waiting += [ROOT / name for name in ALSO]
    seen: set[Path] = set()
    while waiting:
        source = waiting.pop()
        if source in seen or not source.is_file() or ROOT not in source.parents:
            continue
        seen.add(source)
        if DOCS not in source.parents:
            files.append(File.generated(config, site_path(source), abs_src_path=str(source)))
        if source.suffix == ".md":
            waiting += [(source.parent / link[2]).resolve() for link in LINK.finditer(source.read_text())]
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite links between docs/ and the rest of the repository to their places in the site."""
    here = page.file.src_uri
    source = ROOT / here.removeprefix("repository/") if here.startswith("repository/") else DOCS / here

    def rewritten(link: re.Match[str]) -> str:
        target = (source.parent / link[2]).resolve()
        if not target.is_file() or ROOT not in target.parents:
            return link[0]
        return link[1] + os.path.relpath(site_path(target), Path(here).parent)

    return LINK.sub(rewritten, markdown)


def site_path(source: Path) -> str:
    """Path in the site: models.md of docs/models.md, repository/examples/… of examples/…."""
    if DOCS in source.parents:
        return source.relative_to(DOCS).as_posix()
    return f"repository/{source.relative_to(ROOT).as_posix()}"
