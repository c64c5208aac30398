#!/usr/bin/env bash
# Trino: `approx_percentile` of BIGINT is an error at 2^53 + 1, and of DOUBLE at infinity; that of a digest is not.
#
# Guess: an approximate percentile takes all values of its type and rounds those that it cannot represent.
# Seen with Trino 435, the last for Java 17: each BIGINT must be a double exactly, so a query over identifiers, hashes or nanoseconds runs
# until the first odd one beyond 2^53. `qdigest_agg` of the same values gives the exact value. The percentile 0.5 of 1 and 2 is 2. (Needs
# java and mvn.)
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
export LC_ALL=C
cat >pom.xml <<'XML'
<project>
  <modelVersion>4.0.0</modelVersion><groupId>x</groupId><artifactId>x</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>io.trino</groupId><artifactId>trino-main</artifactId><version>435</version></dependency>
  </dependencies>
</project>
XML
mvn --batch-mode --quiet -Dstyle.color=never org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies \
    -DoutputDirectory="$folder" </dev/null
cat ./*.jar | sha256sum --check --quiet <(echo "2bc63b6f37d2b643d984df277297a50e8a012c1bc74b4cfa716a197cb2042801  -")
cat >Main.java <<'JAVA'
import io.trino.testing.LocalQueryRunner;
import io.trino.testing.TestingSession;

public class Main {
    static LocalQueryRunner runner;

    static void expect(String query, String expected) {
        String seen;
        try {
            seen = runner.execute(query).getMaterializedRows().get(0).getFields().toString();
        } catch (RuntimeException error) {
            seen = error.getMessage();
        }
        System.out.println(query + ": " + seen);
        if (!seen.equals(expected)) throw new AssertionError("expected " + expected);
    }

    public static void main(String[] arguments) {
        runner = LocalQueryRunner.create(TestingSession.testSessionBuilder().build());
        String large = " FROM (VALUES 9007199254740993) AS t(x)";
        expect("SELECT approx_percentile(x, 0.5)" + large, "no exact double representation for long: 9007199254740993");
        expect("SELECT value_at_quantile(qdigest_agg(x), 0.5)" + large, "[9007199254740993]");
        expect("SELECT approx_percentile(x, 0.5) FROM (VALUES 9007199254740992) AS t(x)", "[9007199254740992]");
        expect("SELECT approx_percentile(x, 0.5) FROM (VALUES 1e0, 2e0, infinity()) AS t(x)", "value must be finite");
        expect("SELECT approx_percentile(x, 0.5) FROM (VALUES 1, 2) AS t(x)", "[2]");
        runner.close();
        System.exit(0);
    }
}
JAVA
java --add-opens=java.base/java.nio=ALL-UNNAMED -cp "$folder/*" Main.java 2>log || { tail -20 log; exit 1; }
