#!/usr/bin/env bash
# The tests in three parts at once, so that a machine of two cores is busy while tests wait or Spark starts.
# Usage: scripts/test.sh PYTEST [OPTION...]
#   OPTION...  of pytest; by default, all tests but those that take minutes
set -euo pipefail
pytest=$1
shift
(($#)) || set -- -m "not slow"
# Tests start Python by the hundred: what one process has compiled of the modules, the others read.
unset PYTHONDONTWRITEBYTECODE

mkdir -p build
"$pytest" "$@" tests/wire tests/docs tests/deploy >build/wire.log 2>&1 &
wire=$!
# Those on the wire and in containers watch time limits, so the others leave the processors to them.
nice -n 10 "$pytest" "$@" --ignore=tests/spark --ignore=tests/wire --ignore=tests/docs --ignore=tests/deploy \
  >build/others.log 2>&1 &
others=$!
trap 'kill "$wire" "$others" 2>/dev/null || true' EXIT

failed=no
nice -n 5 "$pytest" "$@" tests/spark || failed=yes
for part in wire others; do
  wait "${!part}" || failed=yes
  printf '\nThe tests that ran beside these (build/%s.log):\n' "$part"
  cat "build/$part.log"
done
trap - EXIT
[[ $failed == no ]]
