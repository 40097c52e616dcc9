package benchmarks;

import com.alicloud.openservices.tablestore.core.ResponseContentWithMeta;
import com.alicloud.openservices.tablestore.core.protocol.OtsInternalApi;
import com.alicloud.openservices.tablestore.core.protocol.ResponseFactory;
import com.alicloud.openservices.tablestore.model.Response;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.HashMap;
import java.util.Map;

/**
 * Decodes a page of GetStreamRecord into records, like the SDK's client: "decode", file, number of repetitions.
 * The answer has the processor time of this thread, without the time of the garbage collector and of the compiler.
 */
final class Decode implements Rounds.Round {
    private final Map<Path, byte[]> bodies = new HashMap<>();
    private final ThreadMXBean clock = ManagementFactory.getThreadMXBean();

    @Override
    public String run(String[] arguments) throws Exception {
        Path path = Paths.get(arguments[1]);
        if (!bodies.containsKey(path)) {
            bodies.put(path, Files.readAllBytes(path));
        }
        byte[] body = bodies.get(path);
        int times = Integer.parseInt(arguments[2]);
        long records = 0;
        long started = clock.getCurrentThreadCpuTime();
        for (int time = 0; time < times; time++) {
            records += decoded(body);
        }
        long nanos = clock.getCurrentThreadCpuTime() - started;
        return String.format("{\"nanos\": %d, \"records\": %d}", nanos, records);
    }

    private static int decoded(byte[] body) throws Exception {
        ResponseContentWithMeta meta = new ResponseContentWithMeta(null, new Response());
        return ResponseFactory.createGetStreamRecordResponse(
                        meta, OtsInternalApi.GetStreamRecordResponse.parseFrom(body), false)
                .getRecords()
                .size();
    }
}
