#!/usr/bin/env bash
# Hazelcast: in SQL, the decimals 1.0 and 1.00 are equal in WHERE and in a join, and they are two groups.
#
# Guess: decimals are grouped by their value, as `=` compares them; a DECIMAL(9, 1) has one digit after the point.
# Seen with Hazelcast 5.5.0: groups and DISTINCT use Java's equality, which has the scale in it. The scale of a column is that of each
# value, since precision and scale in a CAST are ignored: 1.15 stays 1.15 as DECIMAL(9, 1). The amounts 5.0 of one source and 5.00 of
# another are counted as two. (Needs java and mvn.)
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
import com.hazelcast.config.Config;
import com.hazelcast.config.NetworkConfig;
import com.hazelcast.core.Hazelcast;
import com.hazelcast.core.HazelcastInstance;
import com.hazelcast.sql.SqlResult;
import com.hazelcast.sql.SqlRow;
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
            String amounts = "(SELECT CAST(x AS DECIMAL(9, 1)) AS y FROM (VALUES ('1.0'), ('1.00')) AS t(x))";
            expect("SELECT COUNT(*) FROM " + amounts + " WHERE y = 1", "[2]");
            expect("SELECT COUNT(DISTINCT y) FROM " + amounts, "[2]");
            expect("SELECT y FROM " + amounts + " GROUP BY y", "[1.0, 1.00]");
            expect("SELECT COUNT(*) FROM " + amounts + " a JOIN " + amounts + " b ON a.y = b.y", "[4]");
            expect("SELECT CAST('1.15' AS DECIMAL(9, 1))", "[1.15]");
        } finally {
            hazelcast.shutdown();
        }
    }
}
JAVA
java -cp "$folder/*" Main.java 2>log || { tail -20 log; exit 1; }
