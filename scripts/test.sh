#!/usr/bin/env bash
# The tests in six lanes beside each other: with Spark in two, statements of SQL, servers and containers, the simulation,
# and all others. Those with Spark and with servers wait as much as they work, so this suits two processors.
# Usage: scripts/test.sh PYTEST [OPTION...]
#   OPTION...  of pytest; by default those that leave out the slow tests
set -euo pipefail
pytest=$1
options=("${@:2}")
((${#options[@]})) || options=(-m "not slow")
# Tests start Python by the hundred: what one process has compiled of the modules, the others read.
unset PYTHONDONTWRITEBYTECODE

# The second lane with Spark: about a third of its time.
second=(tests/spark/test_{cdc,events,upserts,lifted,lifted_programs,lifted_results,over,over_stream,scalar}.py)
declare -A lanes=(
  [spark]="${second[*]}"
  [sql]="tests/sql --ignore=tests/sql/test_terminal.py"
  [wire]="tests/wire tests/deploy tests/sql/test_terminal.py"
  [simulation]="tests/simulation"
  [others]="tests --ignore=tests/spark --ignore=tests/sql --ignore=tests/wire --ignore=tests/deploy --ignore=tests/simulation"
)
mkdir -p build

beside=()
for lane in "${!lanes[@]}"; do
  # shellcheck disable=SC2086
  "$pytest" "${options[@]}" ${lanes[$lane]} >"build/$lane.log" 2>&1 &
  beside+=($!)
done
trap 'kill "${beside[@]}" 2>/dev/null || true' EXIT

failed=no
"$pytest" "${options[@]}" tests/spark "${second[@]/#/--ignore=}" || failed=yes
for each in "${beside[@]}"; do
  wait "$each" || failed=yes
done
for lane in "${!lanes[@]}"; do
  printf '\nThe tests that ran beside these, build/%s.log:\n' "$lane"
  cat "build/$lane.log"
done
trap - EXIT
[[ $failed == no ]]
