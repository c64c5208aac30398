import java.net.InetSocketAddress;
import java.util.Map;
import org.apache.iceberg.CatalogUtil;
import org.apache.iceberg.rest.RESTCatalogAdapter;
import org.apache.iceberg.rest.RESTCatalogServlet;
import org.eclipse.jetty.ee10.servlet.ServletContextHandler;
import org.eclipse.jetty.ee10.servlet.ServletHolder;
import org.eclipse.jetty.server.Server;

/** Iceberg's own REST catalogue over tables in a folder: RestCatalogue PORT FOLDER. */
public class RestCatalogue {
    public static void main(String[] arguments) throws Exception {
        Map<String, String> properties = Map.of(
                "catalog-impl", "org.apache.iceberg.jdbc.JdbcCatalog",
                "uri", "jdbc:sqlite:" + arguments[1] + "/rest.db",
                "jdbc.schema-version", "V1",
                "io-impl", "org.apache.iceberg.TestTables$LocalFileIO",
                "warehouse", arguments[1] + "/rest");
        RESTCatalogAdapter adapter =
                new RESTCatalogAdapter(CatalogUtil.buildIcebergCatalog("rest", properties, null));
        ServletContextHandler context = new ServletContextHandler();
        context.addServlet(new ServletHolder(new RESTCatalogServlet(adapter)), "/*");
        Server server = new Server(new InetSocketAddress("127.0.0.1", Integer.parseInt(arguments[0])));
        server.setHandler(context);
        server.start();
        server.join();
    }
}
