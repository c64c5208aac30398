#!/usr/bin/env bash
# Paimon: a retraction of an older value makes `last_value` NULL, and that of a 0 makes `product` NaN.
#
# Guess: a retraction takes back what the retracted record added: `last_value` stays 5 if 3 is retracted, a product without its 0 is that of
# the others, and a map loses the entry that was retracted. What cannot be taken back is an error, as it is for `max`.
# Seen with Paimon 1.2.0: `last_value` and `last_non_null_value` are NULL after any retraction. `product` divides, so after a 0 it is NaN as
# DOUBLE, and 65536 and 65537 without 65537 are 0 as INT, since their product has wrapped around. `merge_map` removes the key, though its
# value is another one. (Needs java and mvn.)
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
import java.util.HashMap;
import java.util.Map;
import org.apache.paimon.CoreOptions;
import org.apache.paimon.data.GenericMap;
import org.apache.paimon.mergetree.compact.aggregate.FieldAggregator;
import org.apache.paimon.mergetree.compact.aggregate.factory.FieldAggregatorFactory;
import org.apache.paimon.types.DataType;
import org.apache.paimon.types.DoubleType;
import org.apache.paimon.types.IntType;
import org.apache.paimon.types.MapType;

public class Main {
    static FieldAggregator aggregator(String function, DataType type) {
        return FieldAggregatorFactory.create(type, "x", function, new CoreOptions(new HashMap<String, String>()));
    }

    static void expect(String what, Object result, Object expected) {
        System.out.println(what + ": " + result);
        if (!String.valueOf(result).equals(String.valueOf(expected))) throw new AssertionError("expected " + expected);
    }

    public static void main(String[] arguments) {
        FieldAggregator last = aggregator("last_value", new IntType());
        expect("last_value of 3, 5 without 3", last.retract(last.agg(last.agg(null, 3), 5), 3), null);
        FieldAggregator known = aggregator("last_non_null_value", new IntType());
        expect("last_non_null_value of 3, 5 without 3", known.retract(known.agg(known.agg(null, 3), 5), 3), null);
        FieldAggregator product = aggregator("product", new DoubleType());
        Object zero = product.agg(product.agg(null, 5.0), 0.0);
        expect("product of 5.0, 0.0 without 0.0", product.retract(zero, 0.0), Double.NaN);
        FieldAggregator wrapped = aggregator("product", new IntType());
        Object product3 = wrapped.agg(wrapped.agg(null, 65536), 65537);
        expect("product of 65536, 65537 without 65537", wrapped.retract(product3, 65537), 0);
        FieldAggregator maps = aggregator("merge_map", new MapType(new IntType(), new IntType()));
        Object map = maps.agg(new GenericMap(Map.of(1, 10)), new GenericMap(Map.of(1, 99)));
        expect("size of {1: 10}, {1: 99} without {1: 10}", ((GenericMap) maps.retract(map, new GenericMap(Map.of(1, 10)))).size(), 0);
        try {
            aggregator("max", new IntType()).retract(5, 3);
            throw new AssertionError("no error");
        } catch (UnsupportedOperationException error) {
            System.out.println("max: " + error.getMessage());
        }
    }
}
JAVA
java -cp "$folder/*" Main.java 2>log || { tail -20 log; exit 1; }
