#!/usr/bin/env bash
# Commons Math: the variance of 1, 2 and an empty part is NaN; the mean and the minimum are right.
#
# Guess: a part without values changes nothing when parts are united, so an aggregate of a partition may be empty.
# Seen with Commons Math 3.6.1: `AggregateSummaryStatistics.aggregate` unites the moments of all parts, and those of an empty part are NaN.
# A part that was added to through `createContributingStatistics` does no harm. `SummaryStatistics` skips a NaN for minimum and maximum, and
# has it in the mean; `DescriptiveStatistics` leaves it out of percentiles only. (Needs java and mvn.)
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
while read -r name digest; do
    mvn --batch-mode --quiet -Dstyle.color=never org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy \
        -Dartifact="$name" -DoutputDirectory="$folder" </dev/null
    IFS=: read -r _ artifact version <<<"$name"
    echo "$digest  $artifact-$version.jar" | sha256sum --check --quiet
done <<'JARS'
org.apache.commons:commons-math3:3.6.1 1e56d7b058d28b65abd256b8458e3885b674c1d588fa43cd7d1cbb9c7ef2b308
JARS
cat >Main.java <<'JAVA'
import java.util.List;
import org.apache.commons.math3.stat.descriptive.AggregateSummaryStatistics;
import org.apache.commons.math3.stat.descriptive.DescriptiveStatistics;
import org.apache.commons.math3.stat.descriptive.StatisticalSummary;
import org.apache.commons.math3.stat.descriptive.SummaryStatistics;

public class Main {
    static void expect(String name, List<Double> seen, List<Double> expected) {
        System.out.println(name + ": " + seen);
        if (!seen.equals(expected)) throw new AssertionError("expected " + expected);
    }

    static List<Double> values(StatisticalSummary s) {
        return List.of(s.getMin(), s.getMax(), s.getMean(), s.getVariance());
    }

    static SummaryStatistics of(double... values) {
        SummaryStatistics statistics = new SummaryStatistics();
        for (double x : values) statistics.addValue(x);
        return statistics;
    }

    public static void main(String[] arguments) {
        double nan = Double.NaN;
        expect("1 | 2", values(AggregateSummaryStatistics.aggregate(List.of(of(1), of(2)))), List.of(1.0, 2.0, 1.5, 0.5));
        expect("1, 2 | nothing", values(AggregateSummaryStatistics.aggregate(List.of(of(1, 2), of()))), List.of(1.0, 2.0, 1.5, nan));
        AggregateSummaryStatistics live = new AggregateSummaryStatistics();
        SummaryStatistics part = live.createContributingStatistics();
        live.createContributingStatistics();
        part.addValue(1);
        part.addValue(2);
        expect("1, 2 | nothing, contributing", values(live.getSummary()), List.of(1.0, 2.0, 1.5, 0.5));
        expect("1, NaN, 3", values(of(1, nan, 3)), List.of(1.0, 3.0, nan, nan));
        DescriptiveStatistics kept = new DescriptiveStatistics(new double[] {1, nan, 3});
        expect("1, NaN, 3: median and mean", List.of(kept.getPercentile(50), kept.getMean()), List.of(2.0, nan));
    }
}
JAVA
java -cp "$folder/*" Main.java
