#!/usr/bin/env bash
# Cassandra: the SUM of the ints 2147483647 and 1 is -2147483648, and the AVG of 1 and 2 is 1.
#
# Guess: the sum of ints is a bigint or an error, the average of ints is a double, and over no rows both are null, as max is.
# Seen with Cassandra 5.0.5: SUM and AVG have the type of their column. The sum wraps around without an error: two tinyints of 100 are -56.
# The average is computed exactly and then cut. Over rows that are all null, both are 0, and MAX is null. (Needs java and mvn.)
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
export LC_ALL=C
cat >pom.xml <<'XML'
<project>
  <modelVersion>4.0.0</modelVersion><groupId>x</groupId><artifactId>x</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>org.apache.cassandra</groupId><artifactId>cassandra-all</artifactId><version>5.0.5</version></dependency>
  </dependencies>
</project>
XML
mvn --batch-mode --quiet -Dstyle.color=never org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies \
    -DoutputDirectory="$folder" </dev/null
cat ./*.jar | sha256sum --check --quiet <(echo "47925b02807d3c3891c75977371f5d15729327ac9401ea76886957ed9c160d3b  -")
cat >Main.java <<'JAVA'
import java.nio.ByteBuffer;
import org.apache.cassandra.cql3.functions.AggregateFcts;
import org.apache.cassandra.cql3.functions.AggregateFunction;
import org.apache.cassandra.cql3.functions.Arguments;
import org.apache.cassandra.cql3.functions.NativeAggregateFunction;
import org.apache.cassandra.db.marshal.AbstractType;
import org.apache.cassandra.db.marshal.ByteType;
import org.apache.cassandra.db.marshal.Int32Type;
import org.apache.cassandra.db.marshal.LongType;
import org.apache.cassandra.transport.ProtocolVersion;

public class Main {
    @SafeVarargs
    static <T> void expect(String what, NativeAggregateFunction function, AbstractType<T> type, String expected, T... values) {
        AggregateFunction.Aggregate aggregate = function.newAggregate();
        for (T value : values) {
            Arguments arguments = function.newArguments(ProtocolVersion.V5);
            arguments.set(0, value == null ? null : type.decompose(value));
            aggregate.addInput(arguments);
        }
        ByteBuffer result = aggregate.compute(ProtocolVersion.V5);
        String text = result == null ? "null" : String.valueOf(function.returnType().compose(result));
        System.out.println(what + ": " + text);
        if (!text.equals(expected)) throw new AssertionError("expected " + expected);
    }

    public static void main(String[] arguments) {
        NativeAggregateFunction sum = AggregateFcts.sumFunctionForInt32;
        NativeAggregateFunction average = AggregateFcts.avgFunctionForInt32;
        NativeAggregateFunction maximum = AggregateFcts.makeMaxFunction(Int32Type.instance);
        expect("sum of ints", sum, Int32Type.instance, "-2147483648", 2147483647, 1);
        expect("sum of tinyints", AggregateFcts.sumFunctionForByte, ByteType.instance, "-56", (byte) 100, (byte) 100);
        expect("sum of bigints", AggregateFcts.sumFunctionForLong, LongType.instance, "-9223372036854775808", Long.MAX_VALUE, 1L);
        expect("average of 1, 2", average, Int32Type.instance, "1", 1, 2);
        expect("average of -1, -2", average, Int32Type.instance, "-1", -1, -2);
        expect("average of the largest int twice", average, Int32Type.instance, "2147483647", 2147483647, 2147483647);
        expect("sum of null", sum, Int32Type.instance, "0", (Integer) null);
        expect("average of null", average, Int32Type.instance, "0", (Integer) null);
        expect("maximum of null", maximum, Int32Type.instance, "null", (Integer) null);
        System.exit(0);
    }
}
JAVA
java -cp "$folder/*" Main.java 2>log || { tail -20 log; exit 1; }
