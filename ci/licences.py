#!/usr/bin/env python3
"""The licences of every crate that is in the program, as their authors wrote them: what a binary has to come with.

Reads `cargo metadata` of this tree; needs the crates' sources, which the build has fetched."""

import json
import pathlib
import subprocess
import sys

PLATFORM = "x86_64-unknown-linux-gnu"
FILES = ("LICENSE", "LICENCE", "COPYING", "NOTICE", "UNLICENSE", "COPYRIGHT")


def metadata():
    """What cargo says of all packages and who needs whom."""
    command = ["cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", PLATFORM]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def in_the_program(cargo):
    """Packages of others that are compiled in: not those of tests and build scripts."""
    nodes = {node["id"]: node for node in cargo["resolve"]["nodes"]}
    seen, left = set(), [cargo["resolve"]["root"]]
    while left:
        package = left.pop()
        if package in seen:
            continue
        seen.add(package)
        for needed in nodes[package]["deps"]:
            if any(kind["kind"] is None for kind in needed["dep_kinds"]):
                left.append(needed["pkg"])
    own = set(cargo["workspace_members"])
    packages = [package for package in cargo["packages"] if package["id"] in seen - own]
    return sorted(packages, key=lambda package: (package["name"], package["version"]))


def texts(package):
    """The files in its folder that state terms."""
    folder = pathlib.Path(package["manifest_path"]).parent
    named = [path for path in sorted(folder.iterdir()) if path.is_file() and path.name.upper().startswith(FILES)]
    return [path.read_text(encoding="utf-8", errors="replace").strip() for path in named]


def main():
    """Prints each text once, below the names of the crates that come with it."""
    owners, without = {}, []
    for package in in_the_program(metadata()):
        name = f"{package['name']} {package['version']} ({package['license'] or 'see its files'})"
        found = texts(package)
        for text in found:
            owners.setdefault(text, []).append(name)
        if not found:
            without.append(f"{name} {package['repository'] or ''}".strip())
    if not owners:
        sys.exit("ci/licences.py: cargo names no crate with a licence")
    rule = "=" * 100
    print("zbench is under the Apache License 2.0 (LICENSE). The program contains these crates:")
    for text, names in owners.items():
        print(f"\n{rule}\n" + "\n".join(names) + f"\n{rule}\n\n{text}")
    if without:
        print(f"\n{rule}\nCrates that come without a file of their licence:\n{rule}\n\n" + "\n".join(without))


if __name__ == "__main__":
    main()
