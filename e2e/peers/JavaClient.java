// A client of HTTP/2 by Java's java.net.http, for stories: java JavaClient STORY URL CA.
//
// Says a line for each thing that was as it should be, with how often it was, and "failed ..." for each that was not.

import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.FileInputStream;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse.BodyHandler;
import java.net.http.HttpResponse.BodyHandlers;
import java.security.KeyStore;
import java.security.MessageDigest;
import java.security.cert.CertificateFactory;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ConcurrentSkipListMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManagerFactory;

public class JavaClient {
    static final int LARGE = 8_000_000;

    final HttpClient http;
    final String url;
    final Map<String, Integer> counts = new ConcurrentSkipListMap<>();

    JavaClient(String url, String ca) throws Exception {
        this.url = url;
        http = HttpClient.newBuilder().sslContext(trusting(ca)).version(HttpClient.Version.HTTP_2).build();
    }

    public static void main(String[] arguments) throws Exception {
        JavaClient client = new JavaClient(arguments[1], arguments[2]);
        switch (arguments[0]) {
            case "at_once" -> client.atOnce();
            case "bodies" -> client.bodies();
            case "cancel" -> client.cancel();
            case "rounds" -> client.rounds();
            case "load" -> client.load();
            default -> throw new IllegalArgumentException(arguments[0]);
        }
        System.out.println((finishesAfterGoAway() ? 1 : 0) + " finishes after GOAWAY");
        client.counts.forEach((what, count) -> System.out.println(count + " " + what));
        System.exit(0);
    }

    /** Whether this Java has JDK-8335181, as far as its version says: else GOAWAY ends what is in progress. */
    static boolean finishesAfterGoAway() {
        Runtime.Version version = Runtime.version();
        return version.feature() >= 24 || version.feature() == 17 && version.update() >= 17;
    }

    static SSLContext trusting(String ca) throws Exception {
        KeyStore store = KeyStore.getInstance(KeyStore.getDefaultType());
        store.load(null, null);
        try (InputStream pem = new FileInputStream(ca)) {
            store.setCertificateEntry("ca", CertificateFactory.getInstance("X.509").generateCertificate(pem));
        }
        TrustManagerFactory managers = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        managers.init(store);
        SSLContext context = SSLContext.getInstance("TLS");
        context.init(null, managers.getTrustManagers(), null);
        return context;
    }

    void note(String what) {
        counts.merge(what, 1, Integer::sum);
    }

    void fail(String what, Throwable error) {
        while (error instanceof CompletionException && error.getCause() != null) {
            error = error.getCause();
        }
        note("failed " + what + ": " + String.valueOf(error).replaceAll("/?127\\.0\\.0\\.1:[0-9]+", "an address"));
    }

    void check(String what, Object found, Object wanted) {
        note(found.equals(wanted) ? what : "failed " + what + ": " + found + " instead of " + wanted);
    }

    HttpRequest.Builder to(String path) {
        return HttpRequest.newBuilder(URI.create(url + path)).timeout(Duration.ofSeconds(20));
    }

    /** Notes what came of a request; whatever comes has to come by HTTP/2. */
    CompletableFuture<Void> asked(String what, HttpRequest.Builder request, BodyHandler<?> body, Object wanted) {
        return http.sendAsync(request.build(), body).handle((response, error) -> {
            if (error != null) {
                fail(what, error);
                return null;
            }
            note(response.version() + " by " + response.headers().firstValue("X-Proto").orElse("nothing"));
            Object found = response.body() instanceof byte[] bytes ? sum(bytes) : response.body();
            check(what, response.statusCode() + " " + found, "200 " + wanted);
            return null;
        });
    }

    CompletableFuture<Void> get() {
        return asked("get", to("/hello").GET(), BodyHandlers.ofString(), "hello\n");
    }

    CompletableFuture<Void> slow() {
        return asked("slow", to("/slow?300").GET(), BodyHandlers.ofString(), "begun done\n");
    }

    CompletableFuture<Void> download(String what, int length) {
        return asked(what, to("/bytes?" + length).GET(), BodyHandlers.ofByteArray(), sum(content(length)));
    }

    /** A body, whose length the server is told. */
    CompletableFuture<Void> post(String what, int length, boolean expects) {
        byte[] body = content(length);
        HttpRequest.Builder request = to("/sum").POST(BodyPublishers.ofByteArray(body)).expectContinue(expects);
        return asked(what, request, BodyHandlers.ofString(), "POST " + length + " " + length + " " + sum(body) + "\n");
    }

    /** One whose length it is not told. */
    CompletableFuture<Void> stream(String what, int length) {
        byte[] body = content(length);
        HttpRequest.BodyPublisher publisher = BodyPublishers.ofInputStream(() -> new ByteArrayInputStream(body));
        String wanted = "POST " + length + " -1 " + sum(body) + "\n";
        String path = length < 65_536 ? "/sum?short" : "/sum";
        return asked(what, to(path).POST(publisher), BodyHandlers.ofString(), wanted);
    }

    static byte[] content(int length) {
        byte[] all = new byte[length];
        for (int index = 0; index < length; index++) {
            all[index] = (byte) ((index * 2_654_435_761L & 0xffff_ffffL) >> 13);
        }
        return all;
    }

    static String sum(byte[] bytes) {
        try {
            return HexFormat.of().formatHex(MessageDigest.getInstance("SHA-256").digest(bytes));
        } catch (Exception error) {
            throw new IllegalStateException(error);
        }
    }

    static void join(List<CompletableFuture<?>> all) {
        all.forEach(CompletableFuture::join);
    }

    /** The first alone, for it brings the server's settings: Java opens further connections until it has them. */
    void atOnce() {
        get().join();
        hundred();
    }

    void hundred() {
        List<CompletableFuture<?>> all = new ArrayList<>();
        for (int round = 0; round < 20; round++) {
            all.addAll(List.of(get(), post("known", 700, false), stream("unknown", 70_000)));
            all.addAll(List.of(slow(), download("bytes", 200_000)));
        }
        join(all);
    }

    /** A hundred for each line of the standard input, and a line when they are answered. */
    void rounds() throws Exception {
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
        for (int round = 1; orders.readLine() != null; round++) {
            hundred();
            System.out.println("round " + round);
        }
    }

    void bodies() {
        get().join();
        List<CompletableFuture<?>> all = new ArrayList<>();
        for (int round = 0; round < 2; round++) {
            all.addAll(List.of(download("download", LARGE), post("upload", LARGE, false)));
            all.add(stream("unknown upload", LARGE));
        }
        join(all);
        post("continued", 9_000, true).join();
    }

    void cancel() throws Exception {
        get().join();
        for (int round = 0; round < 50; round++) {
            InputStream body = http.send(to("/endless?20").GET().build(), BodyHandlers.ofInputStream()).body();
            body.readNBytes(20_000);
            body.close();
            note("closed");
        }
        CountDownLatch answered = new CountDownLatch(50);
        BodyHandler<String> hanging = head -> {
            answered.countDown();
            return BodyHandlers.ofString().apply(head);
        };
        List<CompletableFuture<?>> all = new ArrayList<>();
        for (int round = 0; round < 50; round++) {
            all.add(http.sendAsync(to("/endless?20").GET().build(), hanging));
        }
        answered.await(20, TimeUnit.SECONDS);
        for (CompletableFuture<?> future : all) {
            future.cancel(true);
            note(future.isCompletedExceptionally() ? "cancelled" : "failed: a cancelled request is not over");
        }
        all.clear();
        for (int round = 0; round < 20; round++) {
            all.addAll(List.of(get(), post("known", 700, false), download("bytes", 200_000)));
        }
        join(all);
    }

    /** Requests that are to be answered whatever happens, eight at a time, until the standard input ends. */
    void load() throws Exception {
        AtomicBoolean stop = new AtomicBoolean();
        List<Thread> threads = new ArrayList<>();
        for (int thread = 0; thread < 8; thread++) {
            threads.add(new Thread(() -> {
                while (!stop.get()) {
                    get().join();
                    post("known", 700, false).join();
                    // Less than a window: Java may forget a request whose body waits for one when GOAWAY comes.
                    stream("unknown", 30_000).join();
                    slow().join();
                    download("bytes", 200_000).join();
                }
            }));
        }
        threads.forEach(Thread::start);
        System.in.readAllBytes();
        stop.set(true);
        for (Thread thread : threads) {
            thread.join();
        }
    }
}
