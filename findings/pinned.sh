# shellcheck shell=bash
# Sourced by the findings: `pinned PACKAGE==VERSION…` installs packages into a temporary folder, enters it, and removes it at the end.
# Afterwards `python` is the folder's own.
set -euo pipefail
pinned() {
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    cd "$folder"
    python3 -m venv venv
    venv/bin/pip install --quiet --no-cache-dir "$@"
    PATH=$folder/venv/bin:$PATH
}
