//! Cost of a head: parse and rewrite, in nanoseconds per request and per response.
//!
//! `cargo run --release -p propylon-http --example h1_cost`

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Instant;

use propylon_config::{Forwarded, PathRules};
use propylon_http::h1::*;

const BROWSER: &[u8] = b"GET /catalogue/shoes/running?colour=blue&size=43&sort=price HTTP/1.1\r\n\
    Host: shop.example.com\r\n\
    Connection: keep-alive\r\n\
    Cache-Control: max-age=0\r\n\
    Upgrade-Insecure-Requests: 1\r\n\
    User-Agent: Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/126.0.0.0 Safari/537.36\r\n\
    Accept: text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,image/apng,*/*;q=0.8\r\n\
    Sec-Fetch-Site: same-origin\r\n\
    Sec-Fetch-Mode: navigate\r\n\
    Referer: https://shop.example.com/catalogue/shoes\r\n\
    Accept-Encoding: gzip, deflate, br, zstd\r\n\
    Accept-Language: en-GB,en;q=0.9,de;q=0.8\r\n\
    Cookie: session=5f0c1e7b2a9d4c3e8f6a; theme=dark; basket=17,23,42; seen=1720000000\r\n\r\n";

const CURL: &[u8] = b"GET / HTTP/1.1\r\nHost: shop.example\r\nUser-Agent: curl/8.5.0\r\nAccept: */*\r\n\r\n";

const NGINX: &[u8] = b"HTTP/1.1 200 OK\r\nServer: nginx/1.26.1\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\n\
    Content-Type: text/html; charset=utf-8\r\nContent-Length: 5120\r\nConnection: keep-alive\r\n\
    Last-Modified: Sat, 05 Nov 1994 08:49:37 GMT\r\nETag: \"6543210f-1400\"\r\nCache-Control: max-age=600\r\n\
    Vary: Accept-Encoding\r\nAccept-Ranges: bytes\r\n\r\n";

const LIMITS: Limits = Limits { head_bytes: 16384, headers: 100 };

/// The best of several runs: the others were disturbed.
fn cost(mut once: impl FnMut()) -> f64 {
    const TIMES: u32 = 200_000;
    let run = |once: &mut dyn FnMut()| {
        let start = Instant::now();
        for _ in 0..TIMES {
            once();
        }
        start.elapsed().as_nanos() as f64 / f64::from(TIMES)
    };
    (0..9).map(|_| run(&mut once)).fold(f64::MAX, f64::min)
}

fn request(name: &str, text: &[u8]) {
    let mut head = RequestHead::default();
    let parse = cost(|| {
        let verdict = parse_request(black_box(text), &LIMITS, &mut head);
        assert_eq!(verdict, Ok(Parsed::Complete));
    });
    let client = ClientAddress::new(IpAddr::V4(Ipv4Addr::new(203, 0, 113, 7)));
    let context = ForwardContext {
        client: &client,
        scheme: Scheme::Https,
        forwarded: Forwarded::Replace,
        host: None,
        body: head.body,
        expect_continue: false,
        keep_alive: true,
        via: false,
    };
    let mut out = Vec::new();
    let write = cost(|| {
        out.clear();
        write_request(black_box(&head), black_box(text), &context, &mut out);
    });
    let mut slots = [httparse::EMPTY_HEADER; 64];
    let peer = cost(|| {
        let mut request = httparse::Request::new(&mut slots);
        assert!(request.parse(black_box(text)).is_ok());
    });
    let path = cost(|| {
        let verdict = head.canonicalize_target(black_box(text), PathRules::default());
        assert_eq!(verdict, Ok(()));
    });
    println!("{name}: its path in canonical form {path:.1} ns");
    let fields = head.fields.len();
    println!(
        "{name}: {} bytes, {fields} fields: parse {parse:.0} ns (httparse alone, which decides nothing: {peer:.0} ns), rewrite {write:.0} ns",
        text.len()
    );
}

fn response(name: &str, text: &[u8]) {
    let asked = Asked { method: Method::Get, upgrade: None };
    let mut head = ResponseHead::default();
    let parse = cost(|| {
        let verdict = parse_response(black_box(text), asked, &LIMITS, &mut head);
        assert_eq!(verdict, Ok(Parsed::Complete));
    });
    let context = AnswerContext {
        client: Version::Http11,
        framing: head.framing_for(Version::Http11),
        keep_alive: true,
        date: b"Sun, 06 Nov 1994 08:49:37 GMT",
    };
    let mut out = Vec::new();
    let write = cost(|| {
        out.clear();
        write_response(black_box(&head), black_box(text), &context, &mut out);
    });
    println!("{name}: {} bytes, {} fields: parse {parse:.0} ns, rewrite {write:.0} ns", text.len(), head.fields.len());
}

fn main() {
    request("odd path", b"GET /catalogue//shoes/../%73hirts?x HTTP/1.1\r\nHost: shop.example\r\n\r\n");
    request("browser request", BROWSER);
    request("curl request", CURL);
    response("nginx response", NGINX);
    println!(
        "sizes: RequestHead {} bytes, ResponseHead {} bytes, Decoder {} bytes",
        size_of::<RequestHead>(),
        size_of::<ResponseHead>(),
        size_of::<Decoder>()
    );
}
