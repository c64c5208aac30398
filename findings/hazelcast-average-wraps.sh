#!/usr/bin/env bash
# Hazelcast: by an aggregator, the average of 2^63 - 1 and 1 is negative, and by SQL it is right.
#
# Guess: `Aggregators.longAvg` returns a double, so it adds doubles or big integers; SQL over the same map uses the same aggregates.
# Seen with Hazelcast 5.5.0: `longSum` and `longAvg` wrap around without a word. `integerSum` and `integerAvg` add longs, `numberAvg`
# doubles, `bigDecimalAvg` raises for 0, 1 and 0, as their quotient has no last digit. SQL adds BIGINT as DECIMAL. (Needs java and mvn.)
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
com.hazelcast:hazelcast:5.5.0 cf560b40b988526e780e4fae12cb6fe01c5158bb9e00839882857f32b544a19e
com.hazelcast:hazelcast-sql:5.5.0 5e091414c6107c46dd692625c532877e094a97c6ce0c71bc43139cd3312d1e96
JARS
cat >Main.java <<'JAVA'
import com.hazelcast.aggregation.Aggregators;
import com.hazelcast.config.Config;
import com.hazelcast.config.NetworkConfig;
import com.hazelcast.core.Hazelcast;
import com.hazelcast.core.HazelcastInstance;
import com.hazelcast.map.IMap;
import com.hazelcast.sql.SqlResult;
import com.hazelcast.sql.SqlRow;
import java.math.BigDecimal;
import java.util.TreeSet;
import java.util.Set;
public class Main {
    static HazelcastInstance hazelcast;

    static void expect(String name, Object seen, String expected) {
        System.out.println(name + ": " + seen);
        if (!seen.toString().equals(expected)) throw new AssertionError("expected " + expected);
    }

    static void expect(String query, String expected) {
        Set<String> seen = new TreeSet<>();
        try (SqlResult rows = hazelcast.getSql().execute(query)) {
            for (SqlRow row : rows) seen.add("" + row.getObject(0));
        }
        expect(query, seen, expected);
    }

    public static void main(String[] arguments) {
        Config settings = new Config().setProperty("hazelcast.logging.type", "none").setProperty("hazelcast.phone.home.enabled", "false");
        settings.getJetConfig().setEnabled(true);
        NetworkConfig network = settings.getNetworkConfig();
        network.getInterfaces().setEnabled(true).addInterface("127.0.0.1");
        network.getJoin().getAutoDetectionConfig().setEnabled(false);
        network.getJoin().getMulticastConfig().setEnabled(false);
        hazelcast = Hazelcast.newHazelcastInstance(settings);
        try {
            IMap<Integer, Long> values = hazelcast.getMap("values");
            values.put(1, Long.MAX_VALUE);
            values.put(2, 1L);
            expect("longSum", values.aggregate(Aggregators.longSum()), "-9223372036854775808");
            expect("longAvg", values.aggregate(Aggregators.longAvg()), "-4.6116860184273879E18");
            expect("numberAvg", values.aggregate(Aggregators.numberAvg()), "4.6116860184273879E18");
            IMap<Integer, BigDecimal> amounts = hazelcast.getMap("amounts");
            for (int i = 0; i < 3; i++) amounts.put(i, BigDecimal.valueOf(i % 2));
            String average;
            try {
                average = "" + amounts.aggregate(Aggregators.bigDecimalAvg());
            } catch (ArithmeticException error) {
                average = "error";
            }
            expect("bigDecimalAvg of 0, 1, 0", average, "error");
            expect("SELECT AVG(x) FROM (VALUES (9223372036854775807), (CAST(1 AS BIGINT))) AS t(x)", "[4611686018427387904]");
        } finally {
            hazelcast.shutdown();
        }
    }
}
JAVA
java -cp "$folder/*" Main.java 2>log || { tail -20 log; exit 1; }
