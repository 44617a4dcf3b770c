#!/usr/bin/env bash
# MPICH 4.0.3 (PyPI): mpiexec that gets SIGTERM passes it on, and its ranks die of it. What it then returns depends on which of its
# processes hears of that first: 15, the signal, in most runs, and 0, as if the ranks had ended well, in some (3 of 12 on two cores; 5 of 8 with
# Debian's 4.0.2). A script that cancels a job and reads the exit code takes a cancelled run for a complete one. 5.0.2 returned 15 in
# 12 of 12. Ranks that end by themselves on SIGTERM, with a code, have it returned.
# shellcheck source=findings/pinned.sh
. "$(dirname "$0")/pinned.sh"
pinned mpich==4.0.3

for try in $(seq 60); do
    mpiexec -n 2 sleep 60 >/dev/null 2>&1 &
    sleep 0.7
    kill -TERM $!
    code=0
    wait $! 2>/dev/null || code=$?
    echo "try $try: exit code $code"
    if [ "$code" = 0 ]; then exit 0; fi
    [ "$code" = 15 ]
done
echo "60 tries returned the signal: this has changed" >&2
exit 1
