#!/usr/bin/env bash
# The tests that do not take minutes: those of Spark beside all others, for each leaves half of a small machine idle.
# Usage: scripts/test.sh PYTEST
set -euo pipefail
pytest=$1
log=build/others.log

mkdir -p build
"$pytest" -m "not slow" --ignore=tests/spark >"$log" 2>&1 &
others=$!
trap 'kill "$others" 2>/dev/null || true' EXIT
"$pytest" -m "not slow" tests/spark && spark=yes || spark=no
echo "the tests that run beside these:"
wait "$others" && rest=yes || rest=no
trap - EXIT
cat "$log"
[[ $spark == yes && $rest == yes ]]
