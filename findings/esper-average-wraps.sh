#!/usr/bin/env bash
# Esper: the average of the ints 2147483647 and 1 is -1073741824.0.
#
# Guess: avg() is a double, so it sums doubles; at worst sum() of ints wraps around, as Java's + does.
# Seen with Esper 8.9.0: avg() divides a sum of the type of the property, which wraps for int and long, and is rounded to 24 bits for float:
# the average of 16777216, 1, 1 is a third of 16777216. stddev() and median() of the same longs are right. (Needs java and mvn.)
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
        expect("select avg(x) as y from E", "int", List.of(2147483647, 1), "[2.147483647E9, -1.073741824E9]");
        expect("select avg(x) as y from E", "double", List.of(2147483647.0, 1.0), "[2.147483647E9, 1.073741824E9]");
        expect("select median(x) as y from E", "int", List.of(2147483647, 1), "[2.147483647E9, 1.073741824E9]");
        expect("select avg(x) as y from E", "long", List.of(Long.MAX_VALUE, 1L), "[9.223372036854776E18, -4.6116860184273879E18]");
        expect("select avg(x) as y from E", "float", List.of(16777216f, 1f, 1f), "[1.6777216E7, 8388608.0, 5592405.333333333]");
    }
}
JAVA
java -cp "$folder/*" Main.java 2>log || { tail -20 log; exit 1; }
