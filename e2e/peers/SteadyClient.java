// A client by Java's java.net.http that asks without a pause to speak of, for stories: java SteadyClient URL CA
// VERSION, with a version of "1" or "2".
//
// Says "goes on" for each fifty answers until its standard input ends; then how many requests were answered, and a line
// for each way in which one failed. Every other request is a POST, which Java repeats never.

import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.atomic.AtomicBoolean;

public class SteadyClient {
    static final int THREADS = 3;
    static final int LENGTH = 20_000;
    static final Map<String, Integer> counts = new TreeMap<>();

    static synchronized void note(String what) {
        if (counts.merge(what, 1, Integer::sum) % 50 == 0 && what.equals("answered")) {
            System.out.println("goes on");
        }
    }

    public static void main(String[] arguments) throws Exception {
        HttpClient.Version version = HttpClient.Version.valueOf(arguments[2].equals("1") ? "HTTP_1_1" : "HTTP_2");
        HttpClient http = HttpClient.newBuilder().sslContext(JavaClient.trusting(arguments[1])).version(version).build();
        AtomicBoolean stop = new AtomicBoolean();
        List<Thread> threads = new ArrayList<>();
        for (int thread = 0; thread < THREADS; thread++) {
            threads.add(new Thread(() -> {
                for (int round = 0; !stop.get(); round++) {
                    try {
                        note(ask(http, arguments[0], round % 2 == 0, version));
                        Thread.sleep(5);
                    } catch (Exception error) {
                        note("failed: " + error);
                    }
                }
            }));
        }
        threads.forEach(Thread::start);
        System.in.readAllBytes();
        stop.set(true);
        for (Thread thread : threads) {
            thread.join();
        }
        System.out.println((JavaClient.finishesAfterGoAway() ? 1 : 0) + " finishes after GOAWAY");
        counts.forEach((what, count) -> System.out.println(count + " " + what));
        System.exit(0);
    }

    static String ask(HttpClient http, String url, boolean posts, HttpClient.Version version) throws Exception {
        HttpRequest.Builder request = HttpRequest.newBuilder().timeout(Duration.ofSeconds(20));
        if (posts) {
            request.uri(URI.create(url + "/sum")).POST(BodyPublishers.ofByteArray(new byte[LENGTH]));
        } else {
            request.uri(URI.create(url + "/bytes?" + LENGTH));
        }
        HttpResponse<byte[]> response = http.send(request.build(), BodyHandlers.ofByteArray());
        byte[] body = response.body();
        String wanted = "POST " + LENGTH + " " + LENGTH + " ";
        boolean whole = posts ? new String(body).startsWith(wanted) : body.length == LENGTH;
        boolean good = response.statusCode() == 200 && response.version() == version && whole;
        return good ? "answered" : "failed: " + response.version() + " " + response.statusCode() + " " + body.length;
    }
}
