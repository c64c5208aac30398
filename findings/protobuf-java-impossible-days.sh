#!/usr/bin/env bash
# protobuf in Java: 2024-02-30 is read as 2024-03-01; -1.5 s as a duration and as a time are two numbers of seconds.
#
# Guess: a day that does not exist is an error, and whole seconds are rounded in one direction.
# Seen with protobuf-java-util 4.30.2: `Timestamps.parse` and the JSON parser take the 30th of February for the 1st of March, and 24:00 or
# second 60 for the next day. `Durations.toSeconds` cuts -1.5 s to -1; `Timestamps.toSeconds` of 1.5 s before 1970 is -2. (Needs java and
# mvn.)
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
com.google.code.gson:gson:2.8.9 d3999291855de495c94c743761b8ab5176cfeabe281a5ab0d8e8d45326fd703e
com.google.guava:failureaccess:1.0.1 a171ee4c734dd2da837e4b16be9df4661afab72a41adaf31eb84dfdaf936ca26
com.google.guava:guava:32.0.1-jre bd7fa227591fb8509677d0d1122cf95158f3b8a9f45653f58281d879f6dc48c5
com.google.protobuf:protobuf-java:4.30.2 0f3a4e9264db07cec429f2a68a66030e9b7487277b76863cdd0e9238cece249b
com.google.protobuf:protobuf-java-util:4.30.2 35a2c968a94f85d443c2bbed3770e2dc4d0a5b571b7d8d4debbade18d405dbc5
JARS
cat >Main.java <<'JAVA'
import com.google.protobuf.Timestamp;
import com.google.protobuf.util.Durations;
import com.google.protobuf.util.JsonFormat;
import com.google.protobuf.util.Timestamps;

public class Main {
    public static void main(String[] arguments) throws Exception {
        Timestamp.Builder fromJson = Timestamp.newBuilder();
        JsonFormat.parser().merge("\"2024-02-30T00:00:00Z\"", fromJson);
        String days = Timestamps.toString(Timestamps.parse("2024-02-30T00:00:00Z")) + " " + Timestamps.toString(fromJson.build()) + " "
                + Timestamps.toString(Timestamps.parse("2016-12-31T23:59:60Z"));
        String seconds = Durations.toSeconds(Durations.parse("-1.500s")) + " " + Timestamps.toSeconds(Timestamps.fromMillis(-1500));
        System.out.println(days + "; whole seconds of -1.5: " + seconds);
        if (!days.equals("2024-03-01T00:00:00Z 2024-03-01T00:00:00Z 2017-01-01T00:00:00Z")) throw new AssertionError();
        if (!seconds.equals("-1 -2")) throw new AssertionError();
    }
}
JAVA
java -cp "$folder/*" Main.java 2>log || { tail -20 log; exit 1; }
