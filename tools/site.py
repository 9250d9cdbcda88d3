"""Build the documentation site and check it: links, anchors, images, navigation, nothing from other hosts."""

import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).parents[1]
SITE = ROOT / "build/site"
LOADED = {("script", "src"), ("img", "src"), ("link", "href"), ("iframe", "src"), ("source", "src")}
"""Attributes whose addresses a browser loads without being asked."""
UNREAD_LINKS = {"canonical", "prev", "next", "alternate"}


class Page(HTMLParser):
    """The anchors of a page of the site, and the addresses that it links to or loads."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.file = file
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect what one element names, links to, or loads."""
        values = {name: value for name, value in attrs if value}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag == "link" and values.get("rel") in UNREAD_LINKS:
            return
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        self.loaded += [value for name, value in values.items() if (tag, name) in LOADED]


def faults() -> list[str]:
    """What is wrong with the built site, one sentence each."""
    pages = {file: Page(file) for file in sorted(SITE.rglob("*.html")) if file.name != "404.html"}
    found = []
    for page in pages.values():
        name = page.file.relative_to(SITE)
        found += [
            f"{name} loads {address} from another host" for address in page.loaded if urlsplit(address).netloc
        ]
        found += [
            f"{name} refers to {address}, which does not exist"
            for address in dict.fromkeys(page.links + page.loaded)
            if not _exists(page, address, pages)
        ]
    return found + _not_in_navigation()


def _exists(page: Page, address: str, pages: dict[Path, Page]) -> bool:
    parts = urlsplit(address)
    if parts.scheme or parts.netloc:
        return True  # other hosts are not asked
    target = (page.file.parent / unquote(parts.path)).resolve() if parts.path else page.file
    if target.is_dir():
        target /= "index.html"
    if not target.is_file():
        return False
    if not parts.fragment or target not in pages:
        return True
    return unquote(parts.fragment) in pages[target].anchors


def _not_in_navigation() -> list[str]:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2].split()
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    named = {word for word in navigation if word.endswith(".md")}
    return [f"docs/{page} is not in the navigation of mkdocs.yml" for page in sorted(pages - named)] + [
        f"the navigation of mkdocs.yml names {page}, which does not exist" for page in sorted(named - pages)
    ]


def main() -> int:
    """Build, check, and report; the exit code is 1 if anything is wrong."""
    command = [str(Path(sys.executable).parent / "zensical"), "build", "--strict", "--clean"]
    if subprocess.run(command, cwd=ROOT, check=False).returncode:
        return 1
    found = faults()
    for fault in found:
        print(fault, file=sys.stderr)
    print(f"built {SITE.relative_to(ROOT)}/index.html")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
