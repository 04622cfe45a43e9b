#!/usr/bin/env python3
"""Print the navigation of the site (mkdocs' nav) from the map, docs/README.md.

Each heading of the map is a part, and each link below it a page, under the text of the link.
"""
import json
import re
from pathlib import Path

page = Path(__file__).resolve().parent.parent / "docs/README.md"
print("nav:\n  - dhelix: README.md\n  - Map: docs/README.md")
for line in page.read_text().split("\n"):
    if heading := re.match(r"## +(.*)", line):
        print(f"  - {json.dumps(heading[1])}:")
    for text, target in re.findall(r"\[([^]]+)\]\(([^)#]+\.md)\)", line):
        print(f"      - {json.dumps(text)}: docs/{target}")
