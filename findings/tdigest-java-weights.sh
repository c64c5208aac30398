#!/usr/bin/env bash
# t-digest in Java: of a million ones and one 2, added by weight, the quantile 0.999 is 1.998.
#
# Guess: adding 1 with the weight 1,000,000 is adding it a million times, so all quantiles but the last are 1.
# Seen with t-digest 3.3: two centroids are taken for the means of a spread of values, so quantiles between them are interpolated, from
# the median on. Added one by one, the same values have 1 at each of these quantiles. An AVL digest has 1.945 for 0.999 even then, and a
# digest that is restored or merged from weights meets it. (Needs java and mvn.)
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
com.tdunning:t-digest:3.3 dc8be5228e0733e12fbe35eeffb6f720dff576bb2eb5dee69c1c211adcd7aeb9
JARS
cat >Main.java <<'JAVA'
import com.tdunning.math.stats.TDigest;

public class Main {
    static String quantiles(TDigest digest) {
        return digest.size() + " values: " + digest.quantile(0.5) + " " + digest.quantile(0.9) + " " + digest.quantile(0.999);
    }

    public static void main(String[] arguments) {
        for (boolean merging : new boolean[] {true, false}) {
            TDigest weighted = merging ? TDigest.createMergingDigest(100) : TDigest.createAvlTreeDigest(100);
            TDigest single = merging ? TDigest.createMergingDigest(100) : TDigest.createAvlTreeDigest(100);
            weighted.add(1, 1000000);
            for (int i = 0; i < 1000000; i++) single.add(1);
            weighted.add(2);
            single.add(2);
            System.out.println(quantiles(weighted) + ", one by one: " + quantiles(single));
            if (Math.abs(weighted.quantile(0.999) - 1.998) > 0.001 || Math.abs(weighted.quantile(0.9) - 1.8) > 0.001) throw new AssertionError();
            if (single.quantile(0.9) > 1.001 || (single.quantile(0.999) == 1) != merging) throw new AssertionError();
        }
    }
}
JAVA
java -cp "$folder/*" Main.java 2>log || { tail -20 log; exit 1; }
