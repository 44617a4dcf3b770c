#!/usr/bin/env python3
"""mdBook's preprocessor for links out of docs/: to a file of the tree (../ci/run-gate) or a folder.

Where REPOSITORY_URL is set (https://HOST/OWNER/NAME/blob/COMMIT) they lead there; else the words stay and the link goes: a site
has no such page."""

import json
import os
import posixpath
import re
import sys

LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")


def mended(text, folder, repository):
    """A page's text with the links that lead out of docs/ replaced. `folder` is the page's, below docs/."""

    def link(match):
        words, target = match.groups()
        if re.match(r"[a-z]+:|#", target):
            return match.group(0)
        path = posixpath.normpath(posixpath.join("docs", folder, target))
        if path.startswith("docs/") and path.partition("#")[0].endswith((".md", ".svg")):
            return match.group(0)
        return f"[{words}]({repository}/{path})" if repository else words

    return LINK.sub(link, text)


def walk(items, repository):
    """Every chapter, and those below it."""
    for item in items:
        chapter = item.get("Chapter") if isinstance(item, dict) else None
        if chapter and chapter.get("path"):
            chapter["content"] = mended(chapter["content"], posixpath.dirname(chapter["path"]), repository)
        if chapter:
            walk(chapter["sub_items"], repository)


def main():
    """As mdBook calls it: `supports RENDERER`, or the book on standard input."""
    if sys.argv[1:2] == ["supports"]:
        return
    _, book = json.load(sys.stdin)
    walk(book.get("items", book.get("sections", [])), os.environ.get("REPOSITORY_URL", "").rstrip("/"))
    json.dump(book, sys.stdout)


if __name__ == "__main__":
    main()
