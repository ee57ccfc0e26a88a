#!/usr/bin/env bash
# Orders a certificate from Pebble, an authority for tests, on this machine, and shows what is served then.
#   scripts/rehearse-acme.sh [tls-alpn-01 | http-01]
# Needs pebble, pebble-challtestsrv, openssl and curl (scripts/setup.sh test installs them) and a propylon: $PROPYLON, or the
# one in target/, or the one in the path. Everything lies in one folder, which is removed at the end, and so are the processes.
set -euo pipefail

CHALLENGE="${1:-tls-alpn-01}"
HERE="$(cd "$(dirname "$0")/.." && pwd)"
DIRECTORY_PORT=14000
MANAGEMENT_PORT=15000
NAMES_PORT=8053
HTTP_PORT=5002
TLS_PORT=5001
ADMIN_PORT=9901

main() {
    local propylon
    propylon="$(find_propylon)"
    FOLDER="$(mktemp -d)"
    PIDS=()
    trap clean EXIT
    cd "$FOLDER"
    authority
    configuration > propylon.toml
    "$propylon" check -c propylon.toml
    "$propylon" run -c propylon.toml &
    PIDS+=($!)
    echo "waiting for the certificate ..."
    wait_for 60 curl -sf -o /dev/null --cacert root.pem --resolve "shop.test:$TLS_PORT:127.0.0.1" "https://shop.test:$TLS_PORT/"
    echo | openssl s_client -connect "127.0.0.1:$TLS_PORT" -servername shop.test -CAfile root.pem 2>/dev/null |
        openssl x509 -noout -subject -issuer -dates -ext subjectAltName
    curl -s "http://127.0.0.1:$ADMIN_PORT/metrics" | grep '^propylon_acme'
    echo "ordered by $CHALLENGE, and verified by curl"
}

find_propylon() {
    local known
    for known in "${PROPYLON:-}" "$HERE/target/release/propylon" "$HERE/target/debug/propylon"; do
        if [ -n "$known" ] && [ -x "$known" ]; then
            echo "$known"
            return
        fi
    done
    command -v propylon || { echo "no propylon: cargo build --release -p propylon" >&2; exit 1; }
}

# Pebble, with a certificate of its own for its directory, and a name server that leads every name here.
authority() {
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj "/CN=localhost" \
        -addext "subjectAltName=DNS:localhost" -addext "basicConstraints=critical,CA:FALSE" \
        -keyout pebble.key -out pebble.pem 2>/dev/null
    cat > pebble.json <<JSON
{"pebble": {"listenAddress": "127.0.0.1:$DIRECTORY_PORT", "managementListenAddress": "127.0.0.1:$MANAGEMENT_PORT",
 "certificate": "pebble.pem", "privateKey": "pebble.key", "httpPort": $HTTP_PORT, "tlsPort": $TLS_PORT}}
JSON
    pebble-challtestsrv -defaultIPv4 127.0.0.1 -defaultIPv6 "" -http01 "" -https01 "" -tlsalpn01 "" \
        -dns01 "127.0.0.1:$NAMES_PORT" -management 127.0.0.1:8055 >/dev/null 2>&1 &
    PIDS+=($!)
    PEBBLE_VA_NOSLEEP=1 pebble -config pebble.json -dnsserver "127.0.0.1:$NAMES_PORT" >/dev/null 2>&1 &
    PIDS+=($!)
    wait_for 10 curl -sf -o root.pem --cacert pebble.pem "https://localhost:$MANAGEMENT_PORT/roots/0"
}

configuration() {
    cat <<TOML
[admin]
bind = "127.0.0.1:$ADMIN_PORT"

[listener.plain]
bind = "127.0.0.1:$HTTP_PORT"

[listener.web]
bind = "127.0.0.1:$TLS_PORT"
tls = "public"

[acme.rehearsal]
directory = "https://localhost:$DIRECTORY_PORT/dir"
ca = "pebble.pem"
terms_agreed = true
state = "state"
challenge = "$CHALLENGE"

[tls.public]
certificates = [{ acme = "rehearsal", names = ["shop.test"] }]

[[route]]
respond = { status = 200, body = "hello\n" }
TOML
}

# wait_for SECONDS COMMAND...
wait_for() {
    local left=$(($1 * 5))
    shift
    until "$@" 2>/dev/null; do
        left=$((left - 1))
        [ "$left" -gt 0 ] || { echo "in vain: $*" >&2; exit 1; }
        sleep 0.2
    done
}

clean() {
    for pid in "${PIDS[@]}"; do
        kill "$pid" 2>/dev/null || true
    done
    wait 2>/dev/null || true
    rm -rf "$FOLDER"
}

main
