#!/usr/bin/env bash
# Day.js: 1.5 days after midnight of the 1st is midnight of the 3rd, and 1.5 hours are 1.5 hours.
#
# Guess: a part of a day is hours, or is cut in all units.
# Seen with dayjs 1.11.18: days, weeks, months and years are rounded to whole days, months and years, halves up, and shorter units are
# exact. Half a week is four days, so windows of half a week or of 1.5 days do not meet. 2024-02-30 is 1 March. (Needs node and npm.)
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --ignore-scripts --no-audit --no-fund dayjs@1.11.18
cat >main.mjs <<'JS'
import assert from "node:assert";
import dayjs from "dayjs";

const start = dayjs("2024-01-01T00:00:00");
const seen = [[1.5, "day"], [0.5, "week"], [1.5, "hour"], [-0.5, "day"]].map(([count, unit]) => {
  const text = start.add(count, unit).format("MM-DD HH:mm");
  console.log(`${count} ${unit}: ${text}`);
  return text;
});
assert.deepStrictEqual(seen, ["01-03 00:00", "01-05 00:00", "01-01 01:30", "01-01 00:00"]);
assert.strictEqual(dayjs("2024-02-30").format("MM-DD"), "03-01");
JS
node main.mjs
