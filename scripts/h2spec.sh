#!/bin/sh
# Runs h2spec, summerwind's suite for RFC 9113 and RFC 7541, in strict mode against an engine: over TLS and by prior
# knowledge, before a server of HTTP/1.1 and one of HTTP/2.
#
#   scripts/h2spec.sh                   # all four, whole suite
#   scripts/h2spec.sh http2/5.1 hpack   # these sections
#
# Wants: a built engine and bench (PROPYLON, PROPYLON_BENCH: their paths; target/release, else target/debug), openssl, and
# nghttpd for the server of HTTP/2 (without it that half is left out). h2spec is the one on the PATH (or H2SPEC); where there
# is none Go fetches it into target/h2spec. What is written there: the certificate, the configurations and the reports.
set -eu

cd "$(dirname "$0")/.."
version=v2.2.1+incompatible
work=target/h2spec
mkdir -p "$work"

built() {
    for profile in release debug; do
        [ -x "target/$profile/$1" ] && echo "target/$profile/$1" && return
    done
    echo "h2spec.sh: no $1 in target/release or target/debug: cargo build -p propylon -p propylon-bench" >&2
    exit 1
}

engine=${PROPYLON:-$(built propylon)}
bench=${PROPYLON_BENCH:-$(built propylon-bench)}
h2spec=${H2SPEC:-$(command -v h2spec || echo "$work/bin/h2spec")}
if [ ! -x "$h2spec" ]; then
    GOBIN="$PWD/$work/bin" go install "github.com/summerwind/h2spec/cmd/h2spec@$version"
fi

started=
finish() {
    for pid in $started; do kill "$pid" 2>/dev/null || true; done
}
trap finish EXIT INT TERM

openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost \
    -addext "subjectAltName=DNS:localhost,IP:127.0.0.1" -keyout "$work/key.pem" -out "$work/chain.pem" 2>/dev/null
# A key that others may read is refused.
rm -f "$work/both.pem"
(umask 077 && cat "$work/chain.pem" "$work/key.pem" >"$work/both.pem")

# What a program says of the address that it listens on, once it does.
address_in() {
    for _ in $(seq 100); do
        address=$(sed -n 's/.*listening[^0-9]*\(127\.0\.0\.1:[0-9]*\).*/\1/p' "$1" | head -n 1)
        [ -n "$address" ] && echo "$address" && return
        sleep 0.1
    done
    echo "h2spec.sh: nothing listens, see $1" >&2
    exit 1
}

"$bench" origin --bind 127.0.0.1:0 >"$work/origin.log" 2>&1 &
started="$started $!"
origin=$(address_in "$work/origin.log")
servers="h1=$origin"
if command -v nghttpd >/dev/null; then
    mkdir -p "$work/pages"
    # More than a few bytes: some cases wait for the second DATA frame of an answer.
    head -c 4096 /dev/zero | tr '\0' 'x' >"$work/pages/index.html"
    h2_port=${H2_PORT:-18731}
    nghttpd --no-tls -a 127.0.0.1 -d "$work/pages" "$h2_port" >"$work/nghttpd.log" 2>&1 &
    started="$started $!"
    servers="$servers h2=127.0.0.1:$h2_port"
else
    echo "h2spec.sh: no nghttpd, so no server of HTTP/2"
fi

failed=0
plain_port=${PLAIN_PORT:-18732}
tls_port=${TLS_PORT:-18733}
for server in $servers; do
    name=${server%%=*}
    config="$work/$name.toml"
    cat >"$config" <<TOML
[process]
workers = 1

[listener.plain]
bind = "127.0.0.1:$plain_port"

[listener.secure]
bind = "127.0.0.1:$tls_port"
tls = "public"

[tls.public]
certificates = ["both.pem"]

[backend.app]
servers = ["${server#*=}"]
protocol = "$([ "$name" = h2 ] && echo h2 || echo http1)"

[[route]]
backend = "app"
TOML
    "$engine" run -c "$config" >"$work/$name.log" 2>&1 &
    running=$!
    started="$started $running"
    for _ in $(seq 100); do
        openssl s_client -connect "127.0.0.1:$tls_port" </dev/null >/dev/null 2>&1 && break
        sleep 0.1
    done
    for door in plain secure; do
        report="$work/$name-$door.txt"
        port=$plain_port
        flags="-S -h 127.0.0.1 -o 3"
        if [ "$door" = secure ]; then
            port=$tls_port
            flags="$flags -t -k"
        fi
        # shellcheck disable=SC2086
        "$h2spec" "$@" $flags -p "$port" -j "$work/$name-$door.xml" >"$report" 2>&1 || true
        printf '%s server, %s: %s\n' "$name" "$door" "$(tail -n 1 "$report")"
        # The plaintext door speaks HTTP/1.1 as well, so what is no preface of HTTP/2 gets an answer of HTTP/1.1 before the end: h2spec
        # takes that for a broken frame. Over TLS, where ALPN has agreed on HTTP/2, the case passes.
        wrong=$(sed -n '/^Failures:/,$p' "$report" | grep '×' || true)
        [ "$door" = plain ] && wrong=$(echo "$wrong" | grep -v 'Sends invalid connection preface' || true)
        if [ -n "$wrong" ] || ! grep -q '^[0-9]* tests, ' "$report"; then
            failed=1
            sed -n '/^Failures:/,$p' "$report"
        fi
    done
    kill "$running"
    wait "$running" || true
done
exit "$failed"
