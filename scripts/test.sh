#!/usr/bin/env bash
# The tests in three lanes beside each other: with Spark, with servers and containers, and all others. The first two wait
# as much as they work, so this suits two processors.
# Usage: scripts/test.sh PYTEST [OPTION...]
#   OPTION...  of pytest; by default those that leave out what takes minutes
set -euo pipefail
pytest=$1
options=("${@:2}")
((${#options[@]})) || options=(-m "not slow")
# Tests start Python by the hundred: what one process has compiled of the modules, the others read.
unset PYTHONDONTWRITEBYTECODE

declare -A tests=(
  [wire]="tests/wire tests/deploy tests/sql/test_terminal.py"
  [others]="tests --ignore=tests/spark --ignore=tests/sql --ignore=tests/wire --ignore=tests/deploy --ignore=tests/simulation"
  [simulation]="tests/simulation"
)
mkdir -p build

lane() { # PART...: one part after the other; each ends in its log
  local part failed=0
  trap 'kill $(jobs -p) 2>/dev/null; exit 1' TERM
  for part; do
    # shellcheck disable=SC2086
    "$pytest" "${options[@]}" ${tests[$part]} >"build/$part.log" 2>&1 &
    wait $! || failed=1
  done
  return $failed
}

lane wire &
beside=($!)
lane others simulation &
beside+=($!)
trap 'kill "${beside[@]}" 2>/dev/null || true' EXIT

failed=no
"$pytest" "${options[@]}" tests/spark tests/sql --ignore=tests/sql/test_terminal.py || failed=yes
for each in "${beside[@]}"; do
  wait "$each" || failed=yes
done
for part in "${!tests[@]}"; do
  printf '\nThe tests that ran beside these, build/%s.log:\n' "$part"
  cat "build/$part.log"
done
trap - EXIT
[[ $failed == no ]]
