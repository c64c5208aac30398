#!/usr/bin/env bash
# Lucene: as facets, the maximum of -5 and -7 is 0, and -0.0 is neither in the range from 0 nor in the range below 0.
#
# Guess: the values that are associated with a label are aggregated as in SQL: a sum of ints is a long or an error, a maximum is one of the
# values; two ranges of doubles, [0, ...] and [..., 0), have each number in one of them.
# Seen with Lucene 9.12.0: TaxonomyFacetIntAssociations begins with 0 and adds ints, so 2147483647 and 1 are -2147483648; the maximum of
# floats begins with 0, too, and a sum of floats stays at 2^24. A range of doubles is one of their bits, in which -0.0 is less than 0.0, and
# the bound "below 0" is the number before 0.0, less than -0.0. So a DoublePoint of -0.0 is not found by x = 0 either, but by x <= 0.
# (Needs java and mvn.)
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
export LC_ALL=C
cat >pom.xml <<'XML'
<project>
  <modelVersion>4.0.0</modelVersion><groupId>x</groupId><artifactId>x</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>org.apache.lucene</groupId><artifactId>lucene-facet</artifactId><version>9.12.0</version></dependency>
  </dependencies>
</project>
XML
mvn --batch-mode --quiet -Dstyle.color=never org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies \
    -DoutputDirectory="$folder" </dev/null
cat ./*.jar | sha256sum --check --quiet <(echo "fd699c0449b549c9dc412161c13155f9d95402de0f992e1f8d3eb6deb680d618  -")
cat >Main.java <<'JAVA'
import org.apache.lucene.document.Document;
import org.apache.lucene.document.DoubleDocValuesField;
import org.apache.lucene.document.DoublePoint;
import org.apache.lucene.facet.FacetsCollector;
import org.apache.lucene.facet.FacetsConfig;
import org.apache.lucene.facet.range.DoubleRange;
import org.apache.lucene.facet.range.DoubleRangeFacetCounts;
import org.apache.lucene.facet.taxonomy.AssociationAggregationFunction;
import org.apache.lucene.facet.taxonomy.FloatAssociationFacetField;
import org.apache.lucene.facet.taxonomy.IntAssociationFacetField;
import org.apache.lucene.facet.taxonomy.TaxonomyFacetFloatAssociations;
import org.apache.lucene.facet.taxonomy.TaxonomyFacetIntAssociations;
import org.apache.lucene.facet.taxonomy.TaxonomyReader;
import org.apache.lucene.facet.taxonomy.directory.DirectoryTaxonomyReader;
import org.apache.lucene.facet.taxonomy.directory.DirectoryTaxonomyWriter;
import org.apache.lucene.index.DirectoryReader;
import org.apache.lucene.index.IndexWriter;
import org.apache.lucene.index.IndexWriterConfig;
import org.apache.lucene.search.IndexSearcher;
import org.apache.lucene.search.MatchAllDocsQuery;
import org.apache.lucene.store.ByteBuffersDirectory;

public class Main {
    static void expect(String what, Number result, Number expected) {
        System.out.println(what + ": " + result);
        if (!result.equals(expected)) throw new AssertionError("expected " + expected);
    }

    static Number aggregate(AssociationAggregationFunction function, Number... values) throws Exception {
        FacetsConfig config = new FacetsConfig();
        config.setIndexFieldName("label", "$label");
        config.setMultiValued("label", true);
        ByteBuffersDirectory rows = new ByteBuffersDirectory(), labels = new ByteBuffersDirectory();
        boolean ints = values[0] instanceof Integer;
        try (IndexWriter writer = new IndexWriter(rows, new IndexWriterConfig(null));
             DirectoryTaxonomyWriter taxonomy = new DirectoryTaxonomyWriter(labels)) {
            for (Number value : values) {
                Document document = new Document();
                document.add(ints ? new IntAssociationFacetField(value.intValue(), "label", "a")
                    : new FloatAssociationFacetField(value.floatValue(), "label", "a"));
                writer.addDocument(config.build(taxonomy, document));
            }
        }
        TaxonomyReader taxonomy = new DirectoryTaxonomyReader(labels);
        FacetsCollector collector = new FacetsCollector();
        new IndexSearcher(DirectoryReader.open(rows)).search(new MatchAllDocsQuery(), collector);
        return ints ? new TaxonomyFacetIntAssociations("$label", taxonomy, config, collector, function).getSpecificValue("label", "a")
            : new TaxonomyFacetFloatAssociations("$label", taxonomy, config, collector, function).getSpecificValue("label", "a");
    }

    public static void main(String[] arguments) throws Exception {
        expect("maximum of -5, -7", aggregate(AssociationAggregationFunction.MAX, -5, -7), 0);
        expect("maximum of -1.5f, -2f", aggregate(AssociationAggregationFunction.MAX, -1.5f, -2f), 0f);
        expect("sum of -5, -7", aggregate(AssociationAggregationFunction.SUM, -5, -7), -12);
        expect("sum of 2147483647, 1", aggregate(AssociationAggregationFunction.SUM, 2147483647, 1), -2147483648);
        expect("sum of 16777216f, 1f, 1f", aggregate(AssociationAggregationFunction.SUM, 16777216f, 1f, 1f), 16777216f);

        ByteBuffersDirectory rows = new ByteBuffersDirectory();
        try (IndexWriter writer = new IndexWriter(rows, new IndexWriterConfig(null))) {
            Document document = new Document();
            document.add(new DoubleDocValuesField("x", -0.0));
            document.add(new DoublePoint("point", -0.0));
            writer.addDocument(document);
        }
        IndexSearcher searcher = new IndexSearcher(DirectoryReader.open(rows));
        FacetsCollector collector = new FacetsCollector();
        searcher.search(new MatchAllDocsQuery(), collector);
        double infinity = Double.POSITIVE_INFINITY;
        DoubleRange from = new DoubleRange("from 0", 0, true, infinity, true);
        DoubleRange below = new DoubleRange("below 0", -infinity, true, 0, false);
        DoubleRangeFacetCounts counts = new DoubleRangeFacetCounts("x", collector, from, below);
        expect("-0.0 from 0", counts.getAllChildren("x").labelValues[0].value, 0);
        expect("-0.0 below 0", counts.getAllChildren("x").labelValues[1].value, 0);
        expect("-0.0 by x = 0", searcher.count(DoublePoint.newExactQuery("point", 0)), 0);
        expect("-0.0 by x >= 0", searcher.count(DoublePoint.newRangeQuery("point", 0, infinity)), 0);
        expect("-0.0 by x <= 0", searcher.count(DoublePoint.newRangeQuery("point", -infinity, 0)), 1);
    }
}
JAVA
java -cp "$folder/*" Main.java 2>log || { tail -20 log; exit 1; }
