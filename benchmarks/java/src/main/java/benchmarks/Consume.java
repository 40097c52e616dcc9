package benchmarks;

import com.alicloud.openservices.tablestore.ClientConfiguration;
import com.alicloud.openservices.tablestore.SyncClient;
import com.alicloud.openservices.tablestore.model.PrimaryKeyColumn;
import com.alicloud.openservices.tablestore.model.RecordColumn;
import com.alicloud.openservices.tablestore.model.StreamRecord;
import com.aliyun.openservices.ots.internal.streamclient.ClientConfig;
import com.aliyun.openservices.ots.internal.streamclient.StreamConfig;
import com.aliyun.openservices.ots.internal.streamclient.Worker;
import com.aliyun.openservices.ots.internal.streamclient.model.IRecordProcessor;
import com.aliyun.openservices.ots.internal.streamclient.model.IRecordProcessorFactory;
import com.aliyun.openservices.ots.internal.streamclient.model.InitializationInput;
import com.aliyun.openservices.ots.internal.streamclient.model.ProcessRecordsInput;
import com.aliyun.openservices.ots.internal.streamclient.model.ShutdownInput;
import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;

/**
 * Reads a stream to its end with the official stream client and its default settings: "consume", endpoint, access key
 * id and secret, instance, data table, status table, records per page, whether to look at each cell, number of records,
 * whether to check the MD5 of each answer, which is not the default. The answer has the time from the first initialize
 * to the last stored checkpoint. It also has the processor time of the whole process, with the worker's start and end,
 * the garbage collector and the compiler.
 */
final class Consume implements Rounds.Round {
    private static final long LONGEST_SECONDS = 180;

    private final OperatingSystemMXBean clock =
            (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();

    @Override
    public String run(String[] arguments) throws Exception {
        ClientConfiguration connection = new ClientConfiguration();
        connection.setEnableResponseContentMD5Checking(Boolean.parseBoolean(arguments[10]));
        SyncClient client = new SyncClient(arguments[1], arguments[2], arguments[3], arguments[4], connection);
        ExecutorService executor = Executors.newCachedThreadPool();
        Course course = new Course(Boolean.parseBoolean(arguments[8]), Long.parseLong(arguments[9]));
        StreamConfig config = new StreamConfig();
        config.setOTSClient(client);
        config.setDataTableName(arguments[5]);
        config.setStatusTableName(arguments[6]);
        config.setMaxRecords(Integer.parseInt(arguments[7]));
        Worker worker = new Worker("worker", new ClientConfig(), config, course, executor);
        Thread runner = new Thread(worker, "worker");
        long started = clock.getProcessCpuTime();
        try {
            runner.start();
            if (!course.done.await(LONGEST_SECONDS, TimeUnit.SECONDS)) {
                throw new IllegalStateException(course.count + " records came; " + worker.getException());
            }
        } finally {
            worker.shutdown();
            runner.join();
            executor.shutdownNow();
            client.shutdown();
        }
        return String.format(
                "{\"nanos\": %d, \"cpu_nanos\": %d, \"records\": %d}",
                course.ended.get() - course.started.get(), clock.getProcessCpuTime() - started, course.count.get());
    }

    /** Makes the processors of one round, and finds out when all records have come. */
    private static final class Course implements IRecordProcessorFactory {
        private final boolean looks;
        private final long expected;
        private final AtomicLong started = new AtomicLong();
        private final AtomicLong ended = new AtomicLong();
        private final AtomicLong count = new AtomicLong();
        private final CountDownLatch done = new CountDownLatch(1);

        Course(boolean looks, long expected) {
            this.looks = looks;
            this.expected = expected;
        }

        @Override
        public IRecordProcessor createProcessor() {
            return new Processor(this);
        }
    }

    private static final class Processor implements IRecordProcessor {
        private final Course course;
        private long seen;

        Processor(Course course) {
            this.course = course;
        }

        @Override
        public void initialize(InitializationInput input) {
            course.started.compareAndSet(0, System.nanoTime());
        }

        @Override
        public void processRecords(ProcessRecordsInput input) {
            if (input.getRecords().isEmpty()) {
                return;
            }
            if (course.looks) {
                look(input);
            }
            try {
                input.getCheckpointer().checkpoint();
            } catch (Exception refused) {
                throw new IllegalStateException(refused);
            }
            course.ended.set(System.nanoTime());
            if (course.count.addAndGet(input.getRecords().size()) >= course.expected) {
                course.done.countDown();
            }
        }

        @Override
        public void shutdown(ShutdownInput input) {
            // Each batch has its checkpoint. The sum is used here, so that no compiler leaves out the work for it.
            if (seen == Long.MIN_VALUE) {
                System.err.println(seen);
            }
        }

        private void look(ProcessRecordsInput input) {
            for (StreamRecord record : input.getRecords()) {
                for (PrimaryKeyColumn column : record.getPrimaryKey().getPrimaryKeyColumns()) {
                    seen += column.getValue() == null ? 0 : 1;
                }
                for (RecordColumn column : record.getColumns()) {
                    seen += column.getColumn().getValue() == null ? 0 : 1;
                }
            }
        }
    }
}
