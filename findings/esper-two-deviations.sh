#!/usr/bin/env bash
# Esper: the deviation of values near 10^9 is 1 by stddev(), and 0 by the view of the same window that computes it.
#
# Guess: the function and the view `#uni`, both for statistics of a window, have one algorithm.
# Seen with Esper 8.9.0: `stddev` is of Welford's kind, `#uni` subtracts the square of a sum from a sum of squares, so it is 0, or NaN, for
# values that are large and close to each other: prices in cents, identifiers, times. (Needs java and mvn.)
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
com.espertech:esper-common:8.9.0 2259fb4df7f94e5278e63136233b199a61837799684f8c57398f3ac9a6a1c2ca
com.espertech:esper-compiler:8.9.0 3208cbaf1b4e3f575a65f47d869f2445278b9da4689e650aeadc616455968ea6
com.espertech:esper-runtime:8.9.0 604d9e227ec5eb0bbb15872ddf57b27b1bad2808adfda23f0a86d89aa0dd5303
org.antlr:antlr4-runtime:4.9.3 131a6594969bc4f321d652ea2a33bc0e378ca312685ef87791b2c60b29d01ea5
org.codehaus.janino:commons-compiler:3.1.9 d988a3ebc17188e9a1a3efadd8e958b90eb995c4fcc077292a5dfe5fe1109d25
org.codehaus.janino:janino:3.1.9 7df88d90aa165ab48bdebea425fa009eeef04918c82e98cdbea5e747e114508d
org.slf4j:slf4j-api:1.7.36 d3ef575e3e4979678dc01bf1dcce51021493b4d11fb7f1be8ad982877c16a1c0
JARS
cat >Main.java <<'JAVA'
import com.espertech.esper.common.client.EventBean;
import com.espertech.esper.common.client.configuration.Configuration;
import com.espertech.esper.compiler.client.CompilerArguments;
import com.espertech.esper.compiler.client.EPCompilerProvider;
import com.espertech.esper.runtime.client.EPRuntime;
import com.espertech.esper.runtime.client.EPRuntimeProvider;
import com.espertech.esper.runtime.client.EPStatement;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;

public class Main {
    static void expect(String query, String type, List<Object> values, String expected) throws Exception {
        Configuration settings = new Configuration();
        settings.getCommon().addEventType("E", Map.of("x", type));
        settings.getRuntime().getThreading().setInternalTimerEnabled(false);
        var compiled = EPCompilerProvider.getCompiler().compile(query, new CompilerArguments(settings));
        EPRuntime runtime = EPRuntimeProvider.getRuntime(query + type, settings);
        EPStatement statement = runtime.getDeploymentService().deploy(compiled).getStatements()[0];
        List<Object> seen = new ArrayList<>();
        statement.addListener((added, removed, s, r) -> {
            for (EventBean row : added) seen.add(row.get("y"));
        });
        for (Object x : values) runtime.getEventService().sendEventMap(Map.of("x", x), "E");
        runtime.destroy();
        System.out.println(query + " of " + type + " " + values + ": " + seen);
        if (!seen.toString().equals(expected)) throw new AssertionError("expected " + expected);
    }

    public static void main(String[] arguments) throws Exception {
        List<Object> large = List.of(1e9 + 1, 1e9 + 2, 1e9 + 3), small = List.of(1.0, 2.0, 3.0);
        expect("select stddev(x) as y from E#length(3)", "double", small, "[null, 0.7071067811865476, 1.0]");
        expect("select stddev as y from E#length(3)#uni(x)", "double", small, "[NaN, 0.7071067811865476, 1.0]");
        expect("select stddev(x) as y from E#length(3)", "double", large, "[null, 0.7071067811865476, 1.0]");
        expect("select stddev as y from E#length(3)#uni(x)", "double", large, "[NaN, 0.0, 0.0]");
    }
}
JAVA
java -cp "$folder/*" Main.java 2>log || { tail -20 log; exit 1; }
