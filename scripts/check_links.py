#!/usr/bin/env python3
"""Check the links of the documentation.

    scripts/check_links.py        prints each broken link as FILE:LINE, and exits 1 if there is one

1. A relative link of a Markdown page names a file or folder of the tree; its #anchor is a heading of that page.
2. A page that other files name (docs/NAME.md in sources, scripts, jobs) is there, with its #anchor. Jobs of
   validation/ name pages of other projects and are left out.
3. Every page below docs/ is linked from the map, docs/README.md. scripts/site.sh takes its navigation from there.
4. A path in a code span of a page (`src/...`, `scripts/...`) is that of a file or folder. Of the changelog none is asked for.
5. A function that docs/tour.md names, as `name()` after the link of a file, is defined in that file.
"""
import re
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAP = ROOT / "docs/README.md"
TOUR = ROOT / "docs/tour.md"
TOPS = "bench|clusters|cmake|docs|examples|fuzz|include|python|scripts|src|tests|validation"


def lines(page):
    """(number, line) of a page outside of code blocks."""
    fenced = False
    for number, line in enumerate(page.read_text().split("\n"), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced:
            yield number, line


@lru_cache(maxsize=None)
def anchors(page):
    """Anchors of a page's headings, as GitHub makes them."""
    found = {}
    for _, line in lines(page):
        if heading := re.match(r"#+ +(.*)", line):
            text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading[1]).strip().lower()
            slug = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
            found[slug] = found.get(slug, -1) + 1
            if found[slug]:
                found[f"{slug}-{found[slug]}"] = 0
    return found


def links(page):
    """(line, target) of a page's relative links."""
    for number, line in lines(page):
        for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "", line)):
            if not re.match(r"[a-z]+:", target):
                yield number, target


def wrong(base, target):
    """What is wrong with a link from the file base, or None."""
    path, _, anchor = target.partition("#")
    file = (base.parent / path).resolve() if path else base
    if not file.exists():
        return "no such file"
    if anchor and (file.suffix != ".md" or anchor not in anchors(file)):
        return "no such heading"
    return None


def paths(page):
    """(line, path) of a page's code spans; those with a placeholder are left out."""
    for number, line in lines(page):
        for span in re.findall(r"`([^`]+)`", line):
            for path in re.findall(rf"(?<!\S)((?:{TOPS})/[\w./-]+)(?!\S)", span):
                if "NAME" not in path and "..." not in path:
                    yield number, path


def defines(file, function):
    return re.search(rf"^(?!\s)[^;{{}}#/]*?\b{function}\([^;{{]*\)\s*{{", file.read_text(), re.M)


def tour():
    """(line, function, what is wrong) of functions that the tour names and their file does not define."""
    file, named = None, 0
    for number, line in lines(TOUR):
        for target, function in re.findall(r"\]\(([^)]+\.c)\)|`(\w+)\(\)`", line):
            file = (TOUR.parent / target).resolve() if target else file
            if function:
                named += 1
                if not file.exists() or not defines(file, function):
                    yield number, function, f"not defined in {file.relative_to(ROOT)}"
        for stop in re.findall(r"^## \d+\. .*`(\w+)`", line):
            if f"`{stop}()`" not in TOUR.read_text():
                yield number, stop, "a stop without its file"
    if named < 12:
        yield 1, "tour", "names fewer than twelve functions"


def main():
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True)
    files = [ROOT / name for name in listed.stdout.split("\n") if name and (ROOT / name).is_file()]
    broken = []
    for file in files:
        if file.suffix == ".md":
            broken += [(file, n, t, why) for n, t in links(file) if (why := wrong(file, t))]
            broken += [(file, n, path, "no such file") for n, path in paths(file)
                       if file.name != "CHANGELOG.md" and not (ROOT / path).exists()]
        elif "validation/jobs" not in str(file) and file.suffix in (".c", ".h", ".cu", ".cuh", ".def", ".sh", ".py", ".yaml", ".txt", ".cmake", ".in"):
            for number, line in enumerate(file.read_text(errors="replace").split("\n"), 1):
                for target in re.findall(r"(?<![\w/])docs/[\w/-]+\.md(?:#[\w-]+)?", line):
                    if "NAME" not in target and (why := wrong(ROOT / "top", target)):
                        broken.append((file, number, target, why))
    mapped = {(MAP.parent / target.partition("#")[0]).resolve() for _, target in links(MAP)}
    broken += [(MAP, 1, page.relative_to(MAP.parent), "a page that the map does not link")
               for page in files if page.suffix == ".md" and MAP.parent in page.parents and page not in mapped | {MAP}]
    broken += [(TOUR, *found) for found in tour()]
    for file, number, target, why in broken:
        print(f"{file.relative_to(ROOT)}:{number}: {target}: {why}")
    return 1 if broken else 0


sys.exit(main())
