#!/usr/bin/env bash
# Pinot: the sample deviation of one value is -Infinity, the median of 1, 2, 3, 4 is 3, and MAX of the LONG 2^53 + 1 is 2^53.
#
# Guess: with null handling on, an aggregate without a value is NULL, the sample variance of one row included; MAX, MIN and MODE of a
# LONG are values of the column; the range is the maximum less the minimum.
# Seen with Pinot 1.3.0: var_samp and stddev_samp of one row are -Infinity, the value for "nothing" without null handling, in both modes, so
# they are less than all others. MAX, MIN, MODE and PERCENTILE of LONGs are doubles. PERCENTILE(x, 50) of an even number of values is the
# upper one, PERCENTILETDIGEST lies between them, and PERCENTILEKLL is the lower one. MIN and MAX of 1, NaN, 3 are NaN, and MINMAXRANGE is
# 2. Without null handling, PERCENTILEEST of no rows is -2^63. (Needs java and mvn.)
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
export LC_ALL=C
cat >pom.xml <<'XML'
<project>
  <modelVersion>4.0.0</modelVersion><groupId>x</groupId><artifactId>x</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>com.fasterxml.jackson.core</groupId><artifactId>jackson-core</artifactId><version>2.18.2</version></dependency>
    <dependency><groupId>org.apache.pinot</groupId><artifactId>pinot-core</artifactId><version>1.3.0</version></dependency>
  </dependencies>
</project>
XML
mvn --batch-mode --quiet -Dstyle.color=never org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies \
    -DoutputDirectory="$folder" </dev/null
cat ./*.jar | sha256sum --check --quiet <(echo "8cf63c81271d3a193b4e073c22c6ade2863ea529042b74a87826187fafb9e3dd  -")
cat >Main.java <<'JAVA'
import java.lang.reflect.Proxy;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import org.apache.pinot.common.request.context.ExpressionContext;
import org.apache.pinot.common.request.context.RequestContextUtils;
import org.apache.pinot.core.common.BlockValSet;
import org.apache.pinot.core.query.aggregation.AggregationResultHolder;
import org.apache.pinot.core.query.aggregation.function.AggregationFunction;
import org.apache.pinot.core.query.aggregation.function.AggregationFunctionFactory;
import org.apache.pinot.spi.data.FieldSpec.DataType;

public class Main {
    /** A block of a column as a segment gives it: each type of numbers can be read. */
    static BlockValSet block(double[] doubles, long[] longs) {
        return (BlockValSet) Proxy.newProxyInstance(Main.class.getClassLoader(), new Class<?>[] {BlockValSet.class}, (proxy, method, x) ->
            switch (method.getName()) {
                case "getValueType" -> longs == null ? DataType.DOUBLE : DataType.LONG;
                case "isSingleValue" -> true;
                case "getNullBitmap", "getDictionary" -> null;
                case "getDoubleValuesSV" -> doubles;
                case "getLongValuesSV" -> longs == null ? Arrays.stream(doubles).mapToLong(value -> (long) value).toArray() : longs;
                default -> throw new UnsupportedOperationException(method.getName());
            });
    }

    @SuppressWarnings({"unchecked", "rawtypes"})
    static void expect(boolean nulls, String call, Object expected, double[] doubles, long[] longs) {
        AggregationFunction function =
            AggregationFunctionFactory.getAggregationFunction(RequestContextUtils.getExpression(call).getFunction(), nulls);
        AggregationResultHolder holder = function.createAggregationResultHolder();
        Map<ExpressionContext, BlockValSet> blocks = new HashMap<>();
        for (Object input : function.getInputExpressions()) blocks.put((ExpressionContext) input, block(doubles, longs));
        if (doubles.length > 0) function.aggregate(doubles.length, holder, blocks);
        Object result = function.extractFinalResult(function.extractAggregationResult(holder));
        String values = longs == null ? Arrays.toString(doubles) : Arrays.toString(longs);
        System.out.println(call + (nulls ? " with nulls, " : " without nulls, ") + values + ": " + result);
        if (!String.valueOf(result).equals(String.valueOf(expected))) throw new AssertionError("expected " + expected);
    }

    static void expect(String call, Object expected, double... values) {
        expect(true, call, expected, values, null);
    }

    static void expectOfLongs(String call, Object expected, long... values) {
        expect(true, call, expected, Arrays.stream(values).mapToDouble(value -> value).toArray(), values);
    }

    public static void main(String[] arguments) {
        expect("stddev_samp(x)", Double.NEGATIVE_INFINITY, 5);
        expect("var_samp(x)", Double.NEGATIVE_INFINITY, 5);
        expect("var_pop(x)", 0.0, 5);
        expect("var_samp(x)", null);
        long large = (1L << 53) + 1;
        for (String call : new String[] {"max(x)", "min(x)", "mode(x)", "percentile(x, 50)"}) expectOfLongs(call, 0x1p53, large);
        expectOfLongs("percentileest(x, 50)", large, large);
        expect("percentile(x, 50)", 3.0, 1, 2, 3, 4);
        expect("percentiletdigest(x, 50)", 2.5, 1, 2, 3, 4);
        expect("percentilekll(x, 50)", 2.0, 1, 2, 3, 4);
        expect("max(x)", Double.NaN, 1, Double.NaN, 3);
        expect("min(x)", Double.NaN, 1, Double.NaN, 3);
        expect("minmaxrange(x)", 2.0, 1, Double.NaN, 3);
        expect(false, "avg(x)", Double.NEGATIVE_INFINITY, new double[0], null);
        expect(false, "percentileest(x, 50)", Long.MIN_VALUE, new double[0], null);
    }
}
JAVA
java -cp "$folder/*" Main.java 2>log || { tail -20 log; exit 1; }
