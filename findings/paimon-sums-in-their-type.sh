#!/usr/bin/env bash
# Paimon: the merge engine `aggregation` has 100 + 100 as TINYINT as -56, and 99.99 + 5.01 as DECIMAL(4, 2) as 105.00.
#
# Guess: a sum that does not fit its column is an error when records are merged, or at least NULL, and never a value that the type cannot
# have.
# Seen with Paimon 1.2.0: integers wrap around, for `sum` and `product`. A sum of decimals gets more digits than its column has, and a
# product of them that does not fit is NULL. `listagg` of VARCHAR(3) has 7 characters. (Needs java and mvn.)
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
export LC_ALL=C
cat >pom.xml <<'XML'
<project>
  <modelVersion>4.0.0</modelVersion><groupId>x</groupId><artifactId>x</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>org.apache.paimon</groupId><artifactId>paimon-bundle</artifactId><version>1.2.0</version></dependency>
  </dependencies>
</project>
XML
mvn --batch-mode --quiet -Dstyle.color=never org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies \
    -DoutputDirectory="$folder" </dev/null
cat ./*.jar | sha256sum --check --quiet <(echo "687c0472a1721f059cc9c69524edab87782eb3c14ebfda63d04e71db02a5cc3b  -")
cat >Main.java <<'JAVA'
import java.math.BigDecimal;
import java.util.HashMap;
import org.apache.paimon.CoreOptions;
import org.apache.paimon.data.BinaryString;
import org.apache.paimon.data.Decimal;
import org.apache.paimon.mergetree.compact.aggregate.FieldAggregator;
import org.apache.paimon.mergetree.compact.aggregate.factory.FieldAggregatorFactory;
import org.apache.paimon.types.BigIntType;
import org.apache.paimon.types.DataType;
import org.apache.paimon.types.DecimalType;
import org.apache.paimon.types.IntType;
import org.apache.paimon.types.TinyIntType;
import org.apache.paimon.types.VarCharType;

public class Main {
    static void expect(String function, DataType type, String expected, Object... values) {
        CoreOptions options = new CoreOptions(new HashMap<String, String>());
        FieldAggregator aggregator = FieldAggregatorFactory.create(type, "x", function, options);
        Object result = null;
        for (Object value : values) result = aggregator.agg(result, value);
        System.out.println(function + " of " + type + ": " + result);
        if (!String.valueOf(result).equals(expected)) throw new AssertionError("expected " + expected);
    }

    static Decimal decimal(String text) {
        return Decimal.fromBigDecimal(new BigDecimal(text), 4, 2);
    }

    public static void main(String[] arguments) {
        expect("sum", new TinyIntType(), "-56", (byte) 100, (byte) 100);
        expect("sum", new IntType(), "-2147483648", 2147483647, 1);
        expect("sum", new BigIntType(), "-9223372036854775808", Long.MAX_VALUE, 1L);
        expect("product", new IntType(), "0", 65536, 65536);
        expect("sum", new DecimalType(4, 2), "105.00", decimal("99.99"), decimal("5.01"));
        expect("product", new DecimalType(4, 2), "null", decimal("50.50"), decimal("50.50"));
        expect("listagg", new VarCharType(3), "abc,def", BinaryString.fromString("abc"), BinaryString.fromString("def"));
    }
}
JAVA
java -cp "$folder/*" Main.java 2>log || { tail -20 log; exit 1; }
