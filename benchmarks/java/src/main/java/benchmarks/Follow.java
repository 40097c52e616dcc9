package benchmarks;

import com.alicloud.openservices.tablestore.SyncClient;
import com.alicloud.openservices.tablestore.model.RecordColumn;
import com.alicloud.openservices.tablestore.model.StreamRecord;
import com.aliyun.openservices.ots.internal.streamclient.ClientConfig;
import com.aliyun.openservices.ots.internal.streamclient.StreamConfig;
import com.aliyun.openservices.ots.internal.streamclient.Worker;
import com.aliyun.openservices.ots.internal.streamclient.model.IRecordProcessor;
import com.aliyun.openservices.ots.internal.streamclient.model.InitializationInput;
import com.aliyun.openservices.ots.internal.streamclient.model.ProcessRecordsInput;
import com.aliyun.openservices.ots.internal.streamclient.model.ShutdownInput;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;

/**
 * Follows a stream with the official stream client and its default settings. "begin", endpoint, access key id and
 * secret, instance, data table, status table, number of shards: starts a worker, and answers when it has a processor for
 * each shard. "end", number of records: waits until this number of records has come, and ends the worker. The answer has
 * the age of each record in nanoseconds, from the moment in its column "due" to the call of processRecords. Records due
 * at 0 do not count. The class is the twin of benchmarks/following.py.
 */
final class Follow implements Rounds.Round {
    private static final long LONGEST_SECONDS = 180;
    private static final long CHECKPOINT_NANOS = 1_000_000_000;

    private List<Long> ages;
    private CountDownLatch ready;
    private SyncClient client;
    private ExecutorService executor;
    private Worker worker;
    private Thread runner;

    @Override
    public String run(String[] arguments) throws Exception {
        return arguments[0].equals("begin") ? begin(arguments) : end(Integer.parseInt(arguments[1]));
    }

    private String begin(String[] arguments) throws Exception {
        ages = new ArrayList<>();
        ready = new CountDownLatch(Integer.parseInt(arguments[7]));
        client = new SyncClient(arguments[1], arguments[2], arguments[3], arguments[4]);
        executor = Executors.newCachedThreadPool();
        StreamConfig config = new StreamConfig();
        config.setOTSClient(client);
        config.setDataTableName(arguments[5]);
        config.setStatusTableName(arguments[6]);
        List<Long> own = ages;
        CountDownLatch counter = ready;
        worker = new Worker("worker", new ClientConfig(), config, () -> new Processor(own, counter), executor);
        runner = new Thread(worker, "worker");
        runner.start();
        if (!ready.await(LONGEST_SECONDS, TimeUnit.SECONDS)) {
            throw new IllegalStateException(ready.getCount() + " shards have no processor; " + worker.getException());
        }
        return "{}";
    }

    private String end(int count) throws Exception {
        List<Long> found;
        try {
            found = await(count);
        } finally {
            worker.shutdown();
            runner.join();
            executor.shutdownNow();
            client.shutdown();
        }
        return "{\"nanos\": " + found + "}";
    }

    private List<Long> await(int count) throws Exception {
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(LONGEST_SECONDS);
        synchronized (ages) {
            while (ages.size() < count) {
                long left = TimeUnit.NANOSECONDS.toMillis(deadline - System.nanoTime());
                if (left <= 0) {
                    throw new IllegalStateException(ages.size() + " records came; " + worker.getException());
                }
                ages.wait(left);
            }
            return new ArrayList<>(ages);
        }
    }

    private static final class Processor implements IRecordProcessor {
        private final List<Long> ages;
        private final CountDownLatch ready;
        private long stored = System.nanoTime() - CHECKPOINT_NANOS;

        Processor(List<Long> ages, CountDownLatch ready) {
            this.ages = ages;
            this.ready = ready;
        }

        @Override
        public void initialize(InitializationInput input) {
            ready.countDown();
        }

        @Override
        public void processRecords(ProcessRecordsInput input) {
            if (input.getRecords().isEmpty()) {
                return;
            }
            note(input.getRecords());
            if (System.nanoTime() - stored >= CHECKPOINT_NANOS) {
                stored = System.nanoTime();
                try {
                    input.getCheckpointer().checkpoint();
                } catch (Exception refused) {
                    throw new IllegalStateException(refused);
                }
            }
        }

        private void note(List<StreamRecord> records) {
            Instant clock = Instant.now();
            long now = TimeUnit.SECONDS.toNanos(clock.getEpochSecond()) + clock.getNano();
            List<Long> found = new ArrayList<>();
            for (StreamRecord record : records) {
                for (RecordColumn column : record.getColumns()) {
                    if (column.getColumn().getName().equals("due") && column.getColumn().getValue().asLong() != 0) {
                        found.add(now - column.getColumn().getValue().asLong());
                    }
                }
            }
            synchronized (ages) {
                ages.addAll(found);
                ages.notifyAll();
            }
        }

        @Override
        public void shutdown(ShutdownInput input) {
            // The status table is deleted afterwards.
        }
    }
}
