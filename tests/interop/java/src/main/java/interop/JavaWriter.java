package interop;

import com.alicloud.openservices.tablestore.ClientConfiguration;
import com.alicloud.openservices.tablestore.SyncClient;
import com.alicloud.openservices.tablestore.model.ColumnValue;
import com.alicloud.openservices.tablestore.model.PrimaryKey;
import com.alicloud.openservices.tablestore.model.PrimaryKeyBuilder;
import com.alicloud.openservices.tablestore.model.PrimaryKeyValue;
import com.alicloud.openservices.tablestore.model.PutRowRequest;
import com.alicloud.openservices.tablestore.model.RowPutChange;

/**
 * The official SDK as a writer: puts rows with the keys {@code java-0}, {@code java-1} and so on, one request each, and
 * prints how many it put.
 *
 * <p>Settings are system properties: endpoint, accessKeyId, accessKeySecret, instance, token, table, rows.
 */
public final class JavaWriter {
    private JavaWriter() {
    }

    public static void main(String[] arguments) {
        SyncClient client = new SyncClient(
            System.getProperty("endpoint"), System.getProperty("accessKeyId"), System.getProperty("accessKeySecret"),
            System.getProperty("instance"), new ClientConfiguration(), System.getProperty("token"));
        int rows = Integer.getInteger("rows");
        for (int number = 0; number < rows; number++) {
            PrimaryKey key = PrimaryKeyBuilder.createPrimaryKeyBuilder()
                .addPrimaryKeyColumn("id", PrimaryKeyValue.fromString("java-" + number)).build();
            RowPutChange change = new RowPutChange(System.getProperty("table"), key);
            change.addColumn("amount", ColumnValue.fromLong(number));
            client.putRow(new PutRowRequest(change));
        }
        client.shutdown();
        System.out.println(rows);
    }
}
