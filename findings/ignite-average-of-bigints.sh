#!/usr/bin/env bash
# Ignite: the average of two equal BIGINTs, 1234567890123456789, is 1234567890123457000, and that of the largest BIGINT an error.
#
# Guess: the average of a column of equal values is that value, since sums are exact decimals, as they are here.
# Seen with Ignite 2.17.0 and its Calcite engine: the sum is exact, and is divided with 16 digits; so is that of decimals: the average of
# one amount 1234567890123456789.25 has lost its last digits. The result has the type of the column, so the average of 1 and 2 is 1.
# Identifiers and times in nanoseconds have 19 digits. (Needs java and mvn.)
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
export LC_ALL=C
cat >pom.xml <<'XML'
<project>
  <modelVersion>4.0.0</modelVersion><groupId>x</groupId><artifactId>x</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>org.apache.ignite</groupId><artifactId>ignite-core</artifactId><version>2.17.0</version></dependency>
    <dependency><groupId>org.apache.ignite</groupId><artifactId>ignite-calcite</artifactId><version>2.17.0</version></dependency>
  </dependencies>
</project>
XML
mvn --batch-mode --quiet -Dstyle.color=never org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies \
    -DoutputDirectory="$folder" </dev/null
cat ./*.jar | sha256sum --check --quiet <(echo "8967bc0da0152e4d1da5737250ca2a846cdd854f0d0b827e513331d61f6161f5  -")
cat >Main.java <<'JAVA'
import java.util.List;
import org.apache.ignite.Ignite;
import org.apache.ignite.IgniteCache;
import org.apache.ignite.Ignition;
import org.apache.ignite.cache.query.SqlFieldsQuery;
import org.apache.ignite.calcite.CalciteQueryEngineConfiguration;
import org.apache.ignite.configuration.IgniteConfiguration;
import org.apache.ignite.configuration.SqlConfiguration;
import org.apache.ignite.logger.NullLogger;
import org.apache.ignite.spi.discovery.tcp.TcpDiscoverySpi;
import org.apache.ignite.spi.discovery.tcp.ipfinder.vm.TcpDiscoveryVmIpFinder;

public class Main {
    static IgniteCache<Integer, Integer> cache;

    static void expect(String query, String expected) {
        String seen;
        try {
            seen = cache.query(new SqlFieldsQuery(query)).getAll().get(0).toString();
        } catch (RuntimeException error) {
            seen = "error";
        }
        System.out.println(query + ": " + seen);
        if (!seen.equals(expected)) throw new AssertionError("expected " + expected);
    }

    public static void main(String[] arguments) {
        TcpDiscoveryVmIpFinder alone = new TcpDiscoveryVmIpFinder();
        alone.setAddresses(List.of("127.0.0.1:47500..47509"));
        IgniteConfiguration settings = new IgniteConfiguration().setLocalHost("127.0.0.1").setGridLogger(new NullLogger())
                .setWorkDirectory(System.getProperty("user.dir")).setDiscoverySpi(new TcpDiscoverySpi().setIpFinder(alone))
                .setSqlConfiguration(new SqlConfiguration().setQueryEnginesConfiguration(new CalciteQueryEngineConfiguration()));
        try (Ignite ignite = Ignition.start(settings)) {
            cache = ignite.getOrCreateCache("x");
            String equal = " FROM (VALUES (1234567890123456789), (1234567890123456789)) AS t(x)";
            expect("SELECT SUM(x), AVG(x)" + equal, "[2469135780246913578, 1234567890123457000]");
            expect("SELECT AVG(x) FROM (VALUES (9223372036854775807)) AS t(x)", "error");
            expect("SELECT MAX(x), AVG(x) FROM (VALUES (1234567890123456789.25)) AS t(x)", "[1234567890123456789.25, 1.234567890123457E+18]");
            expect("SELECT AVG(x) FROM (VALUES (1), (2)) AS t(x)", "[1]");
        }
    }
}
JAVA
for package in java.base/jdk.internal.misc java.base/sun.nio.ch java.management/com.sun.jmx.mbeanserver jdk.internal.jvmstat/sun.jvmstat.monitor \
    java.base/sun.reflect.generics.reflectiveObjects jdk.management/com.sun.management.internal java.base/java.io java.base/java.nio \
    java.base/java.net java.base/java.util java.base/java.util.concurrent java.base/java.util.concurrent.locks \
    java.base/java.util.concurrent.atomic java.base/java.lang java.base/java.lang.invoke java.base/java.math \
    java.base/java.time java.sql/java.sql; do
    opens+=("--add-opens=$package=ALL-UNNAMED")
done
java "${opens[@]}" -cp "$folder/*" Main.java 2>log || { tail -20 log; exit 1; }
