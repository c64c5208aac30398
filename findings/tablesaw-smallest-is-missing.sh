#!/usr/bin/env bash
# Tablesaw: -2147483648 that is read from a file is missing, missing numbers join, and times lose their microseconds.
#
# Guess: a column of integers holds each integer of its type, or takes the next larger type, as it does for 2147483648; a comparison with a
# missing number is false, as in SQL; a column of LocalDateTime keeps what it is given.
# Seen with Tablesaw 0.44.4: the smallest int is the missing value, in a file and in `append`, as is the smallest long. `isNotEqualTo(1)`
# finds missing numbers, `isLessThan(2)` does not, and they join each other. DateTimeColumn and InstantColumn cut to milliseconds.
# `roundInt` of 10^10 is 1410065408, `asIntColumn` 2147483647. (Needs java and mvn.)
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
export LC_ALL=C
cat >pom.xml <<'XML'
<project>
  <modelVersion>4.0.0</modelVersion><groupId>x</groupId><artifactId>x</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>tech.tablesaw</groupId><artifactId>tablesaw-core</artifactId><version>0.44.4</version></dependency>
  </dependencies>
</project>
XML
mvn --batch-mode --quiet -Dstyle.color=never org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies \
    -DoutputDirectory="$folder" </dev/null
cat ./*.jar | sha256sum --check --quiet <(echo "b67aaf3b52f83d75be0822b1c5e58d0eea9294990209043b4c263af9ddc7216c  -")
cat >Main.java <<'JAVA'
import java.io.StringReader;
import java.time.Instant;
import java.time.LocalDateTime;
import tech.tablesaw.api.DateTimeColumn;
import tech.tablesaw.api.DoubleColumn;
import tech.tablesaw.api.InstantColumn;
import tech.tablesaw.api.IntColumn;
import tech.tablesaw.api.LongColumn;
import tech.tablesaw.api.Table;

public class Main {
    static void expect(String what, Object result, Object expected) {
        System.out.println(what + ": " + result);
        if (!result.toString().equals(expected.toString())) throw new AssertionError("expected " + expected);
    }

    static String read(String text) {
        Table table = Table.read().csv(new StringReader("x\n" + text + "\n"));
        return table.column("x").type() + ", missing " + table.column("x").countMissing();
    }

    public static void main(String[] arguments) {
        expect("-2147483648 and 5 from a file", read("-2147483648\n5"), "INTEGER, missing 1");
        expect("2147483648 and 5 from a file", read("2147483648\n5"), "LONG, missing 0");
        IntColumn integers = IntColumn.create("x");
        integers.append(Integer.MIN_VALUE).append(1).append(3);
        expect("missing ints of three", integers.countMissing(), 1);
        expect("their sum", integers.sum(), 4.0);
        expect("missing longs", LongColumn.create("x", Long.MIN_VALUE, 1).countMissing(), 1);
        expect("ints not equal to 1, of missing, 1, 3", integers.isNotEqualTo(1).size(), 2);
        expect("doubles not equal to 1, of NaN, 1, 3", DoubleColumn.create("x", Double.NaN, 1, 3).isNotEqualTo(1).size(), 2);
        expect("ints less than 2, of missing, 1, 3", integers.isLessThan(2).size(), 1);
        Table left = Table.create("left", IntColumn.create("k", new Integer[] {null, 1}));
        Table right = Table.create("right", IntColumn.create("k", new Integer[] {null, 2}));
        expect("rows of a join of missing", left.joinOn("k").inner(right).rowCount(), 1);
        expect("a time", DateTimeColumn.create("x", LocalDateTime.parse("2024-01-01T00:00:00.123456")).get(0), "2024-01-01T00:00:00.123");
        Instant instant = Instant.parse("2024-01-01T00:00:00.123456Z");
        expect("an instant", InstantColumn.create("x", instant).get(0), "2024-01-01T00:00:00.123Z");
        expect("10^10 by roundInt", DoubleColumn.create("x", 1e10).roundInt().getDouble(0), 1410065408.0);
        expect("10^10 by asIntColumn", DoubleColumn.create("x", 1e10).asIntColumn().get(0), 2147483647);
    }
}
JAVA
java -cp "$folder/*" Main.java 2>log || { tail -20 log; exit 1; }
