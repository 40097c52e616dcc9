package interop;

import com.alicloud.openservices.tablestore.ClientConfiguration;
import com.alicloud.openservices.tablestore.SyncClient;
import com.alicloud.openservices.tablestore.model.DefaultRetryStrategy;
import com.alicloud.openservices.tablestore.model.PrimaryKeyColumn;
import com.alicloud.openservices.tablestore.model.RecordSequenceInfo;
import com.alicloud.openservices.tablestore.model.RetryStrategy;
import com.alicloud.openservices.tablestore.model.StreamRecord;
import com.aliyun.openservices.ots.internal.streamclient.ClientConfig;
import com.aliyun.openservices.ots.internal.streamclient.StreamConfig;
import com.aliyun.openservices.ots.internal.streamclient.Worker;
import com.aliyun.openservices.ots.internal.streamclient.model.IRecordProcessor;
import com.aliyun.openservices.ots.internal.streamclient.model.IRecordProcessorCheckpointer;
import com.aliyun.openservices.ots.internal.streamclient.model.IRecordProcessorFactory;
import com.aliyun.openservices.ots.internal.streamclient.model.InitializationInput;
import com.aliyun.openservices.ots.internal.streamclient.model.ProcessRecordsInput;
import com.aliyun.openservices.ots.internal.streamclient.model.ShutdownInput;
import com.aliyun.openservices.ots.internal.streamclient.model.ShutdownReason;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.PrintStream;
import java.util.List;
import java.util.concurrent.Executors;
import java.util.concurrent.ExecutorService;
import org.apache.http.ConnectionClosedException;

/**
 * The official stream client as a worker. It prints one JSON object per line to standard output for everything that
 * happens to its processors, and stops when its standard input ends.
 *
 * <p>Settings are system properties: endpoint, accessKeyId, accessKeySecret, instance, dataTable, statusTable, worker,
 * leaseDurationMillis, intervalMillis, batchMillis (how long each batch takes), maxRecords.
 */
public final class JavaWorker {
    /** The client's own logging may go to System.out, so the events get a stream of their own. */
    private static final PrintStream EVENTS = new PrintStream(new FileOutputStream(FileDescriptor.out), true);

    private JavaWorker() {
    }

    public static void main(String[] arguments) throws Exception {
        System.setOut(System.err);
        ClientConfiguration connection = new ClientConfiguration();
        connection.setRetryStrategy(new ReadsAgain());
        SyncClient client = new SyncClient(
            setting("endpoint"), setting("accessKeyId"), setting("accessKeySecret"), setting("instance"), connection);
        ExecutorService executor = Executors.newCachedThreadPool();
        final Worker worker = new Worker(setting("worker"), clientConfig(), streamConfig(client), factory(), executor);
        Thread runner = new Thread(worker, "worker");
        emit("start", "worker", setting("worker"));
        runner.start();
        stopWithInput(worker);
        runner.join();
        String problem = worker.getException() == null ? "" : stackTrace(worker.getException());
        emit("stop", "status", worker.getWorkerStatus().toString(), "exception", problem);
        executor.shutdownNow();
        client.shutdown();
        System.exit(problem.isEmpty() ? 0 : 1);
    }

    private static String setting(String name) {
        String value = System.getProperty(name);
        if (value == null) {
            throw new IllegalArgumentException("system property " + name + " is missing");
        }
        return value;
    }

    private static ClientConfig clientConfig() {
        long interval = Long.parseLong(setting("intervalMillis"));
        ClientConfig config = new ClientConfig();
        config.setLeaseDurationMillis(Long.parseLong(setting("leaseDurationMillis")));
        config.setRenewerIntervalMillis(interval);
        config.setTakerIntervalMillis(interval);
        config.setSyncShardIntervalMillis(interval);
        config.setParentShardPollIntervalMillis(interval);
        return config;
    }

    private static StreamConfig streamConfig(SyncClient client) {
        StreamConfig config = new StreamConfig();
        config.setOTSClient(client);
        config.setDataTableName(setting("dataTable"));
        config.setStatusTableName(setting("statusTable"));
        config.setMaxRecords(Integer.parseInt(setting("maxRecords")));
        return config;
    }

    private static IRecordProcessorFactory factory() {
        return new IRecordProcessorFactory() {
            @Override
            public IRecordProcessor createProcessor() {
                return new Processor();
            }
        };
    }

    private static void stopWithInput(final Worker worker) {
        Thread watcher = new Thread("input") {
            @Override
            public void run() {
                try {
                    while (System.in.read() >= 0) {
                        continue;
                    }
                } catch (java.io.IOException closed) {
                    // A closed input is the signal itself.
                }
                worker.shutdown();
            }
        };
        watcher.setDaemon(true);
        watcher.start();
    }

    /**
     * Reads once more what found its connection closed.
     *
     * <p>The SDK closes connections that were idle for five seconds, at times one that it has just chosen for a request.
     * By default that request fails, and the worker of the stream client ends with it.
     */
    private static final class ReadsAgain extends DefaultRetryStrategy {
        @Override
        public RetryStrategy clone() {
            return new ReadsAgain();
        }

        @Override
        public boolean shouldRetry(String action, Exception problem) {
            boolean isRead = action.startsWith("Get") || action.startsWith("Describe") || action.startsWith("List");
            return isRead && isOfClosedConnection(problem) || super.shouldRetry(action, problem);
        }

        private static boolean isOfClosedConnection(Throwable problem) {
            for (Throwable cause = problem; cause != null; cause = cause.getCause()) {
                if (cause instanceof ConnectionClosedException) {
                    return true;
                }
            }
            return false;
        }
    }

    /** Checkpoints every batch that moved the position; says when it starts and ends to work on a batch. */
    private static final class Processor implements IRecordProcessor {
        private String shard = "";
        private String lease = "";
        private String stored = "";

        @Override
        public void initialize(InitializationInput input) {
            shard = input.getShardInfo().getShardId();
            lease = input.getShardInfo().getLeaseIdentifier();
            stored = input.getInitialCheckpoint();
            say("initialize", "checkpoint", stored);
        }

        @Override
        public void processRecords(ProcessRecordsInput input) {
            if (!input.getRecords().isEmpty()) {
                sayRecords(input.getRecords());
                pause();
            }
            checkpoint(input.getCheckpointer());
            if (!input.getRecords().isEmpty()) {
                say("done", "count", String.valueOf(input.getRecords().size()));
            }
        }

        @Override
        public void shutdown(ShutdownInput input) {
            if (input.getShutdownReason() != ShutdownReason.ZOMBIE) {
                checkpoint(input.getCheckpointer());
            }
            say("shutdown", "reason", input.getShutdownReason().toString());
        }

        private void checkpoint(IRecordProcessorCheckpointer checkpointer) {
            String value = checkpointer.getLargestPermittedCheckpointValue();
            if (value.equals(stored)) {
                return;
            }
            try {
                checkpointer.checkpoint();
                stored = value;
                say("checkpoint", "value", value);
            } catch (Exception refused) {
                say("refused", "error", refused.toString());
            }
        }

        private void pause() {
            try {
                Thread.sleep(Long.parseLong(setting("batchMillis")));
            } catch (InterruptedException stopped) {
                Thread.currentThread().interrupt();
            }
        }

        private void say(String event, String name, String value) {
            emit(event, "shard", shard, "lease", lease, name, value);
        }

        private void sayRecords(List<StreamRecord> records) {
            StringBuilder list = new StringBuilder();
            for (StreamRecord record : records) {
                list.append(list.length() == 0 ? "" : ",").append(describe(record));
            }
            emitRaw(object("records", "shard", shard, "lease", lease) + ",\"records\":[" + list + "]}");
        }
    }

    /** [type, value of the first key column, epoch, microseconds, row index]. */
    private static String describe(StreamRecord record) {
        PrimaryKeyColumn key = record.getPrimaryKey().getPrimaryKeyColumn(0);
        RecordSequenceInfo sequence = record.getSequenceInfo();
        return "[" + quote(record.getRecordType().toString()) + "," + quote(key.getValue().toString()) + ","
            + sequence.getEpoch() + "," + sequence.getTimestamp() + "," + sequence.getRowIndex() + "]";
    }

    private static String stackTrace(Exception exception) {
        java.io.StringWriter text = new java.io.StringWriter();
        exception.printStackTrace(new java.io.PrintWriter(text, true));
        return text.toString();
    }

    private static void emit(String event, String... fields) {
        emitRaw(object(event, fields) + "}");
    }

    /** An object without its closing brace. */
    private static String object(String event, String... fields) {
        StringBuilder text = new StringBuilder("{\"event\":").append(quote(event));
        // The monotonic clock of the machine, which other processes read as well, and the wall clock.
        text.append(",\"nanos\":").append(System.nanoTime());
        text.append(",\"millis\":").append(System.currentTimeMillis());
        for (int index = 0; index < fields.length; index += 2) {
            text.append(',').append(quote(fields[index])).append(':').append(quote(fields[index + 1]));
        }
        return text.toString();
    }

    private static void emitRaw(String line) {
        synchronized (EVENTS) {
            EVENTS.println(line);
            EVENTS.flush();
        }
    }

    private static String quote(String text) {
        StringBuilder quoted = new StringBuilder("\"");
        for (char character : text.toCharArray()) {
            if (character == '"' || character == '\\') {
                quoted.append('\\').append(character);
            } else if (character < ' ' || character > '~') {
                quoted.append(String.format("\\u%04x", (int) character));
            } else {
                quoted.append(character);
            }
        }
        return quoted.append('"').toString();
    }
}
