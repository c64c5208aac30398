#!/usr/bin/env bash
# RocksDB: by its merge operators the maximum of 10 and 9 is 9, and the sum of 5 and 251 is 0 in Java's order of bytes.
#
# Guess: the operators max and uint64add take the numbers that the program writes, or refuse what is none.
# Seen with rocksdbjni 9.10.0: `max` compares bytes, so it is right for unsigned numbers of one length, the highest byte first; -1 is
# above 5. `uint64add` adds numbers with the lowest byte first, which a ByteBuffer has not by default, so a carry is lost. A value that is
# not eight bytes long, such as the text 7, counts as 0 and is replaced, without an error. (Needs java and mvn.)
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
org.rocksdb:rocksdbjni:9.10.0 d68a10df820c811020ca27a332718e823cf577086f2eda9512b5f8e77bd17525
JARS
cat >Main.java <<'JAVA'
import java.nio.ByteBuffer;
import java.nio.file.Path;
import java.util.List;
import org.rocksdb.Options;
import org.rocksdb.RocksDB;

public class Main {
    static int folders;

    static byte[] bytes(long number) {
        return ByteBuffer.allocate(8).putLong(number).array();
    }

    static byte[] merge(String operator, byte[] first, byte[] second) throws Exception {
        Path folder = Path.of(System.getProperty("user.dir"), "db" + ++folders);
        try (Options options = new Options().setCreateIfMissing(true).setMergeOperatorName(operator);
                RocksDB database = RocksDB.open(options, folder.toString())) {
            byte[] key = "k".getBytes();
            database.put(key, first);
            database.merge(key, second);
            return database.get(key);
        }
    }

    public static void main(String[] arguments) throws Exception {
        String text = new String(merge("max", "10".getBytes(), "9".getBytes()));
        long largest = ByteBuffer.wrap(merge("max", bytes(5), bytes(-1))).getLong();
        long sum = ByteBuffer.wrap(merge("uint64add", bytes(5), bytes(251))).getLong();
        long afterText = ByteBuffer.wrap(merge("uint64add", "7".getBytes(), bytes(1))).getLong();
        System.out.println("max of '10', '9': " + text + "; of 5, -1: " + largest + "; 5 + 251: " + sum + "; '7' + 1: " + afterText);
        if (!text.equals("9") || largest != -1 || sum != 0 || afterText != 1) throw new AssertionError();
    }
}
JAVA
java -cp "$folder/*" Main.java 2>log || { tail -20 log; exit 1; }
