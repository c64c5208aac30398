#!/usr/bin/env bash
# Cassandra: AVG of the decimals 0 and ninety-nine times 1 is 0, and of 1 and 2 it is 1, of 2 and 1 it is 2.
#
# Guess: the average of decimals is their exact sum by their number, rounded once, so 1 or 0.99; the order of rows does not matter.
# Seen with Cassandra 5.0.5: AVG keeps a running average and rounds it, half to even, to the scale of the values after each row. So what a
# row adds is lost once it is less than half a unit of the last place; more rows do not help. SUM and COUNT are right. The same holds of
# varint. (Needs java and mvn.)
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
import java.math.BigDecimal;
import java.math.BigInteger;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import org.apache.cassandra.cql3.functions.AggregateFcts;
import org.apache.cassandra.cql3.functions.AggregateFunction;
import org.apache.cassandra.cql3.functions.Arguments;
import org.apache.cassandra.cql3.functions.NativeAggregateFunction;
import org.apache.cassandra.db.marshal.AbstractType;
import org.apache.cassandra.db.marshal.DecimalType;
import org.apache.cassandra.db.marshal.IntegerType;
import org.apache.cassandra.transport.ProtocolVersion;

public class Main {
    static <T> void expect(String what, NativeAggregateFunction function, AbstractType<T> type, List<T> values, String expected) {
        AggregateFunction.Aggregate aggregate = function.newAggregate();
        for (T value : values) {
            Arguments arguments = function.newArguments(ProtocolVersion.V5);
            arguments.set(0, type.decompose(value));
            aggregate.addInput(arguments);
        }
        ByteBuffer result = aggregate.compute(ProtocolVersion.V5);
        String text = String.valueOf(function.returnType().compose(result));
        System.out.println(what + ": " + text);
        if (!text.equals(expected)) throw new AssertionError("expected " + expected);
    }

    static List<BigDecimal> decimals(String... texts) {
        List<BigDecimal> values = new ArrayList<>();
        for (String text : texts) values.add(new BigDecimal(text));
        return values;
    }

    public static void main(String[] arguments) {
        List<BigDecimal> many = new ArrayList<>(decimals("0"));
        many.addAll(Collections.nCopies(99, BigDecimal.ONE));
        NativeAggregateFunction average = AggregateFcts.avgFunctionForDecimal;
        expect("average of 0 and 99 times 1", average, DecimalType.instance, many, "0");
        expect("their sum", AggregateFcts.sumFunctionForDecimal, DecimalType.instance, many, "99");
        expect("average of 1, 2", average, DecimalType.instance, decimals("1", "2"), "1");
        expect("average of 2, 1", average, DecimalType.instance, decimals("2", "1"), "2");
        expect("average of 1.0, 2.0", average, DecimalType.instance, decimals("1.0", "2.0"), "1.5");
        expect("average of the varints 1, 2", AggregateFcts.avgFunctionForVarint, IntegerType.instance,
            List.of(BigInteger.ONE, BigInteger.TWO), "1");
        System.exit(0);
    }
}
JAVA
java -cp "$folder/*" Main.java 2>log || { tail -20 log; exit 1; }
