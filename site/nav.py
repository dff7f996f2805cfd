"""Makes the navigation of the site from the index of pages, docs/README.md."""

import pathlib
import re


def on_config(config):
    """Gives each section of the index, and each of its groups, an entry for each of its pages."""
    nav, entries = [{"Tare": "README.md"}, {"All pages": "docs/README.md"}], None
    for line in pathlib.Path(config.docs_dir, "docs/README.md").read_text().splitlines():
        if line.startswith("## "):
            entries = []
            nav.append({line.removeprefix("## "): entries})
        elif page := re.match(r"- \[(.+?)\]\(([^)]+\.md)\)", line):
            entries.append({page[1]: "docs/" + page[2]})
    config.nav = nav
    return config
