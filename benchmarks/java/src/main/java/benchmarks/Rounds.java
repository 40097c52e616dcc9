package benchmarks;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;

/**
 * Measurements in Java. Each line of standard input is one round: its name and its arguments, separated by tabs. The
 * answer is one line of JSON. The process lives until its input ends, so its compiler stays warm.
 */
public final class Rounds {
    interface Round {
        String run(String[] arguments) throws Exception;
    }

    public static void main(String[] arguments) throws Exception {
        Map<String, Round> rounds = new HashMap<>();
        rounds.put("decode", new Decode());
        rounds.put("consume", new Consume());
        Round follow = new Follow();
        rounds.put("begin", follow);
        rounds.put("end", follow);
        PrintStream answers = System.out;
        System.setOut(System.err); // logs must not mix with the answers
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split("\t");
            answers.println(rounds.get(words[0]).run(words));
            answers.flush();
        }
    }
}
