#!/usr/bin/env bash
# The tests in four parts at once, so that both processors of a small machine are busy while tests wait or Spark starts.
# Usage: scripts/test.sh PYTEST [OPTION...]
#   OPTION...  of pytest; by default those that leave out what takes minutes
set -euo pipefail
pytest=$1
options=("${@:2}")
((${#options[@]})) || options=(-m "not slow")
# Tests start Python by the hundred: what one process has compiled of the modules, the others read.
unset PYTHONDONTWRITEBYTECODE

declare -A parts
start() { # NAME NICENESS WHAT...
  nice -n "$2" "$pytest" "${options[@]}" "${@:3}" >"build/$1.log" 2>&1 &
  parts[$1]=$!
}
mkdir -p build
trap 'kill "${parts[@]}" 2>/dev/null || true' EXIT
# Tests on the wire and of containers watch time limits, so the others leave the processors to them.
start wire 0 tests/wire tests/docs tests/deploy
start simulation 10 tests/simulation
start others 10 tests --ignore=tests/{spark,sql,wire,docs,deploy,simulation}

failed=no
nice -n 5 "$pytest" "${options[@]}" tests/spark tests/sql || failed=yes
for part in "${!parts[@]}"; do
  wait "${parts[$part]}" || failed=yes
  printf '\nThe tests that ran beside these, build/%s.log:\n' "$part"
  cat "build/$part.log"
done
trap - EXIT
[[ $failed == no ]]
