#!/usr/bin/env bash
# Drools: the average of the BigDecimals 1 and 2 is 2, and that of the Integers is 1.5.
#
# Guess: decimals are averaged with more digits than the values have, and not worse than integers.
# Seen with Drools 8.44.2: accumulate's `average` of BigDecimal divides at the scale of the sum and rounds half up. That of integers is a
# double, and does not wrap around; their `sum` does. Amounts without cents have averages without cents. (Needs java and mvn.)
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
export LC_ALL=C
cat >pom.xml <<'XML'
<project>
  <modelVersion>4.0.0</modelVersion><groupId>x</groupId><artifactId>x</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>org.drools</groupId><artifactId>drools-engine</artifactId><version>8.44.2.Final</version></dependency>
    <dependency><groupId>org.drools</groupId><artifactId>drools-mvel</artifactId><version>8.44.2.Final</version></dependency>
  </dependencies>
</project>
XML
mvn --batch-mode --quiet -Dstyle.color=never org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies \
    -DoutputDirectory="$folder" </dev/null
cat ./*.jar | sha256sum --check --quiet <(echo "577441645347646a1833cbde22ad3afc3949133a99e9a9eaf205c05fe39bb570  -")
cat >Main.java <<'JAVA'
import java.math.BigDecimal;
import java.util.ArrayList;
import java.util.List;
import org.kie.api.KieServices;
import org.kie.api.builder.KieFileSystem;
import org.kie.api.runtime.KieSession;

public class Main {
    static void expect(String type, String function, List<?> facts, Object expected) {
        KieServices services = KieServices.get();
        KieFileSystem files = services.newKieFileSystem();
        files.write("src/main/resources/rule.drl", "import java.math.BigDecimal\n global java.util.List results;\n"
                + "rule x when accumulate(" + type + "($x : this); $y : " + function + "($x)) then results.add($y); end");
        KieSession session = services.newKieContainer(services.newKieBuilder(files).buildAll().getKieModule().getReleaseId()).newKieSession();
        List<Object> results = new ArrayList<>();
        session.setGlobal("results", results);
        facts.forEach(session::insert);
        session.fireAllRules();
        session.dispose();
        System.out.println(function + " of " + type + " " + facts + ": " + results);
        if (!results.equals(List.of(expected))) throw new AssertionError("expected " + expected);
    }

    public static void main(String[] arguments) {
        expect("BigDecimal", "average", List.of(new BigDecimal("1"), new BigDecimal("2")), new BigDecimal("2"));
        expect("Integer", "average", List.of(1, 2), 1.5);
        expect("BigDecimal", "average", List.of(new BigDecimal("1.0"), new BigDecimal("2")), new BigDecimal("1.5"));
        expect("Integer", "average", List.of(2147483647, 1), 1073741824.0);
        expect("Integer", "sum", List.of(2147483647, 1), -2147483648);
    }
}
JAVA
java -cp "$folder/*" Main.java 2>log || { tail -20 log; exit 1; }
