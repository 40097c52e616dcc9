package interop;

import com.alicloud.openservices.tablestore.TunnelClient;
import com.alicloud.openservices.tablestore.model.PrimaryKeyColumn;
import com.alicloud.openservices.tablestore.model.RecordColumn;
import com.alicloud.openservices.tablestore.model.StreamRecord;
import com.alicloud.openservices.tablestore.tunnel.worker.IChannelProcessor;
import com.alicloud.openservices.tablestore.tunnel.worker.ProcessRecordsInput;
import com.alicloud.openservices.tablestore.tunnel.worker.TunnelWorker;
import com.alicloud.openservices.tablestore.tunnel.worker.TunnelWorkerConfig;
import java.time.Instant;
import java.util.concurrent.TimeUnit;

/** Consumes a tunnel with the official worker and prints one JSON object per line; stops when its input is closed. */
public final class TunnelConsumer {
    private TunnelConsumer() {
    }

    public static void main(String[] arguments) throws Exception {
        TunnelClient client = new TunnelClient(property("endpoint"), property("accessKeyId"),
                property("accessKeySecret"), property("instance"));
        TunnelWorkerConfig config = new TunnelWorkerConfig(new Printer());
        config.setHeartbeatIntervalInSec(Long.parseLong(property("heartbeatSeconds")));
        config.setHeartbeatTimeoutInSec(Long.parseLong(property("timeoutSeconds")));
        config.setCheckpointIntervalInMillis(200);
        TunnelWorker worker = new TunnelWorker(property("tunnelId"), client, config);
        worker.connectAndWorking();
        print("{\"event\":\"started\"}");
        while (System.in.read() >= 0) {
            continue;
        }
        worker.shutdown();
        config.shutdown();
        client.shutdown();
        print("{\"event\":\"stopped\"}");
        System.exit(0);
    }

    private static final class Printer implements IChannelProcessor {
        @Override
        public void process(ProcessRecordsInput input) {
            for (StreamRecord record : input.getRecords()) {
                print(line(input.getChannelId(), record));
            }
        }

        @Override
        public void shutdown() {
            print("{\"event\":\"channel shutdown\"}");
        }
    }

    private static String line(String channel, StreamRecord record) {
        PrimaryKeyColumn key = record.getPrimaryKey().getPrimaryKeyColumn(0);
        Instant now = Instant.now();
        String value = "null";
        for (RecordColumn column : record.getColumns()) {
            if (column.getColumn().getName().equals("value") && column.getColumnType() == RecordColumn.ColumnType.PUT) {
                value = Long.toString(column.getColumn().getValue().asLong());
            }
        }
        return "{\"event\":\"record\",\"channel\":\"" + channel + "\",\"type\":\"" + record.getRecordType()
                + "\",\"key\":" + key.getValue().asLong() + ",\"value\":" + value
                + ",\"micros\":" + record.getSequenceInfo().getTimestamp()
                + ",\"nanos\":" + (TimeUnit.SECONDS.toNanos(now.getEpochSecond()) + now.getNano())
                + ",\"originals\":" + (record.getOriginColumns() == null ? 0 : record.getOriginColumns().size()) + "}";
    }

    private static synchronized void print(String text) {
        System.out.println(text);
        System.out.flush();
    }

    private static String property(String name) {
        String value = System.getProperty(name);
        if (value == null) {
            throw new IllegalArgumentException("missing -D" + name);
        }
        return value;
    }
}
