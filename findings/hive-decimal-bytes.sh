#!/usr/bin/env bash
# Hive: the decimal 300 is 45 as a byte, 255 is 0, and 3000000000 is 4305 as a short.
#
# Guess: a decimal as a byte is its last eight bits, as of all numbers in Java, so 300 is 44; or an error.
# Seen with hive-storage-api 2.8.1, whose HiveDecimal is in ORC, Hive and Spark: `byteValue` and `shortValue` reduce by 255 and 65535
# instead of 256 and 65536, so 256 is 1. `intValue` and `longValue` are Java's. A product that has more than 38 digits is null, not an
# error. (Needs java and mvn.)
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
org.apache.hive:hive-storage-api:2.8.1 2bb77d246a9724a371301049239c6e53039efe4136b0ed34ee5a9c7b3cd861d8
org.slf4j:slf4j-api:1.7.30 cdba07964d1bb40a0761485c6b1e8c2f8fd9eb1d19c53928ac0d7f9510105c57
JARS
cat >Main.java <<'JAVA'
import java.util.ArrayList;
import java.util.List;
import org.apache.hadoop.hive.common.type.HiveDecimal;

public class Main {
    public static void main(String[] arguments) {
        List<Integer> bytes = new ArrayList<>();
        for (String text : new String[] {"127", "128", "255", "256", "300", "-300"}) {
            HiveDecimal decimal = HiveDecimal.create(text);
            bytes.add((int) decimal.byteValue());
            System.out.println(text + " as a byte: " + decimal.byteValue() + ", as Java has it: " + decimal.bigDecimalValue().byteValue());
        }
        int small = HiveDecimal.create("3000000000").shortValue();
        HiveDecimal product = HiveDecimal.create("12345678901234567890").multiply(HiveDecimal.create("12345678901234567890"));
        System.out.println("3000000000 as a short: " + small + "; a product of 39 digits: " + product);
        if (!bytes.equals(List.of(127, -128, 0, 1, 45, -45)) || small != 4305 || product != null) throw new AssertionError();
    }
}
JAVA
java -cp "$folder/*" Main.java 2>log || { tail -20 log; exit 1; }
