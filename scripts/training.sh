#!/usr/bin/env bash
# Leads an engine and a key server through the traffic that a profile is made of, and ends them.
#   scripts/training.sh FOLDER_OF_PROGRAMS PROPYLON_BENCH
# The work is counted and not timed, so that slow and fast machines weigh it alike. Left out on purpose, so that a profile
# can be judged by what it has never seen: pipelined requests, chunked bodies, the PROXY protocol, passthrough, HTTP/1.0 and
# signatures with RSA by a key server. The engine runs without its sandbox, which would not let it write profiles.
set -euo pipefail

PROGRAMS="$1"
BENCH="$2"
# What a browser sends, in its order.
BROWSER=(
    --header "User-Agent: Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/139.0 Safari/537.36"
    --header "Accept: text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"
    --header "Accept-Language: en-GB,en;q=0.8,de;q=0.5"
    --header "Accept-Encoding: gzip, deflate, br, zstd"
    --header "Cookie: session=8f14e45fceea167a5a36dedd4bea2543; consent=all; theme=dark"
    --header "Referer: https://localhost/catalogue/shoes?page=3"
    --header "Cache-Control: max-age=0"
)

main() {
    FOLDER="$(mktemp -d)"
    PIDS=()
    trap clean EXIT
    cd "$FOLDER"
    "$BENCH" certificates --out certs --keys ec,rsa --split >/dev/null
    mkdir keys
    cp certs/localhost.*.key.pem keys/
    start_origins
    start_key_server
    start_engine
    new_connections
    requests
    bodies
    relays
    signatures
    reloads
    local status=0
    stop "$ENGINE" || status=$?
    stop "$KEY_SERVER" || status=$?
    if [ "$status" -ne 0 ]; then
        echo "a program did not end well ($status):" >&2
        tail -n 5 engine.log keyserver.log >&2
        exit 1
    fi
}

start_origins() {
    origin http
    origin http2 --http2
    origin tls --tls certs/localhost.ec.pem
    origin echo --raw echo
    origin source --raw source
    origin sink --raw sink
}

# Starts an origin on a free port, which is written to FOLDER/origin.NAME.
origin() {
    local name="$1"
    shift
    "$BENCH" origin "$@" > "origin.$name" &
    PIDS+=($!)
    wait_for "origin.$name" "listening"
    declare -g "ORIGIN_${name^^}=$(sed -n 's/^listening //p' "origin.$name")"
}

start_key_server() {
    cat > keyserver.toml <<TOML
[server]
bind = "127.0.0.1:0"
identity = "certs/localhost.ec.pem"
ca = "certs/ca.pem"
workers = 1
[keys]
paths = ["keys/"]
[sandbox]
landlock = false
seccomp = false
TOML
    "$PROGRAMS/propylon-keyserver" run -c keyserver.toml > keyserver.log 2>&1 &
    KEY_SERVER=$!
    PIDS+=("$KEY_SERVER")
    wait_for keyserver.log " runs"
    SIGNER="$(grep -oE -m 1 '127\.0\.0\.1:[0-9]+' keyserver.log)"
}

start_engine() {
    configuration > propylon.toml
    "$PROGRAMS/propylon" run -c propylon.toml > engine.log 2>&1 &
    ENGINE=$!
    PIDS+=("$ENGINE")
    wait_for engine.log " runs with"
}

configuration() {
    cat <<TOML
[process]
workers = 1
sandbox = "off"
drain_timeout = "5s"
[admin]
bind = "127.0.0.1:0"
[log]
access = "access.log"

[listener.plain]
bind = "127.0.0.1:0"
[listener.secure]
bind = "127.0.0.1:0"
tls = "site"
[listener.onward]
bind = "127.0.0.1:0"
tls = "site"
[listener.sealed]
bind = "127.0.0.1:0"
tls = "site"
[listener.remote]
bind = "127.0.0.1:0"
tls = "signed"
[listener.echo]
bind = "127.0.0.1:0"
protocol = "tcp"
[listener.down]
bind = "127.0.0.1:0"
protocol = "tcp"
[listener.up]
bind = "127.0.0.1:0"
protocol = "tcp"
tls = "site"

[tls.site]
certificates = ["certs/localhost.ec.pem", "certs/localhost.rsa.pem"]
[tls.signed]
certificates = ["certs/localhost.ec.cert.pem"]
signer = "vault"
[signer.vault]
servers = [{ address = "$SIGNER", server_name = "localhost" }]
identity = "certs/localhost.ec.pem"
ca = "certs/ca.pem"

[backend.origin]
servers = ["$ORIGIN_HTTP"]
health = { path = "/", interval = "1s" }
max_idle = 1024
[backend.fair]
servers = ["$ORIGIN_HTTP"]
balance = "least-connections"
sticky = { cookie = "server" }
[backend.http2]
servers = ["$ORIGIN_HTTP2"]
protocol = "h2"
[backend.tls]
servers = ["$ORIGIN_TLS"]
tls = { ca = "certs/ca.pem", server_name = "localhost" }
[backend.echo]
servers = ["$ORIGIN_ECHO"]
[backend.source]
servers = ["$ORIGIN_SOURCE"]
[backend.sink]
servers = ["$ORIGIN_SINK"]

[[route]]
backend = "origin"
[[route]]
path = "/fair/"
backend = "fair"
[[route]]
path = { exact = "/ok" }
respond = { status = 200, body = "ok" }
[[route]]
host = "other.localhost"
path = "/static/"
backend = "origin"
[[route]]
listener = "onward"
backend = "http2"
[[route]]
listener = "sealed"
backend = "tls"
[[route]]
listener = "echo"
backend = "echo"
[[route]]
listener = "down"
backend = "source"
[[route]]
listener = "up"
backend = "sink"
TOML
}

new_connections() {
    local plain secure
    plain="$(port plain)" secure="$(port secure)"
    load handshakes "$plain" --plain --count 4000
    load handshakes "$secure" --tls 1.3 --key ec --group x25519 --count 5000
    load handshakes "$secure" --tls 1.3 --key ec --group x25519mlkem768 --count 3000
    load handshakes "$secure" --tls 1.3 --key rsa --group x25519 --count 1000
    load handshakes "$secure" --tls 1.2 --key ec --count 2000
    load handshakes "$secure" --tls 1.2 --key rsa --count 500
    load handshakes "$secure" --tls 1.3 --resumed --count 4000
    load handshakes "$secure" --tls 1.2 --resumed --count 3000
    load handshakes "$secure" --tls 1.2 --resumed session-id --count 1000
}

requests() {
    local plain secure onward sealed
    plain="$(port plain)" secure="$(port secure)" onward="$(port onward)" sealed="$(port sealed)"
    load requests "$plain" --plain --count 30000
    load requests "$plain" --plain --count 15000 --path "/fair/catalogue?page=3" "${BROWSER[@]}"
    load requests "$plain" --plain --count 5000 --path /ok
    load requests "$plain" --plain --count 5000 --method POST --body-bytes 100
    load requests "$secure" --count 20000
    load requests "$secure" --count 10000 --path "/catalogue/shoes?page=3" "${BROWSER[@]}"
    load requests "$secure" --count 5000 --tls 1.2
    load requests "$secure" --count 3000 --suite chacha20
    load requests "$secure" --count 2000 --path /status/204 "${BROWSER[@]}"
    load requests "$secure" --count 5000 --method POST --body-bytes 100
    load requests "$secure" --http 2 --streams 10 --count 30000
    load requests "$secure" --http 2 --streams 10 --count 15000 --path "/fair/catalogue?page=3" "${BROWSER[@]}"
    load requests "$secure" --http 2 --streams 10 --count 3000 --path /ok
    load requests "$secure" --http 2 --streams 10 --count 10000 --method POST --body-bytes 100
    load requests "$onward" --http 2 --streams 10 --count 15000
    load requests "$onward" --count 10000
    load requests "$sealed" --count 10000
}

bodies() {
    local plain secure onward sealed
    plain="$(port plain)" secure="$(port secure)" onward="$(port onward)" sealed="$(port sealed)"
    load throughput "$plain" --plain --direction down --count 600
    load throughput "$plain" --plain --direction up --count 300
    load throughput "$secure" --direction down --count 600
    load throughput "$secure" --direction up --count 300
    load throughput "$secure" --direction both --body 256KiB --count 300
    load throughput "$secure" --http 2 --streams 4 --direction down --count 400
    load throughput "$secure" --http 2 --streams 4 --direction up --count 200
    load throughput "$onward" --http 2 --streams 4 --direction down --count 200
    load throughput "$sealed" --direction down --count 200
}

relays() {
    load throughput "$(port echo)" --tcp --new-connections --count 3000
    load throughput "$(port down)" --tcp --direction down --count 1000
    load throughput "$(port up)" --tcp tls --direction up --count 500
}

signatures() {
    load handshakes "$(port remote)" --tls 1.3 --key ec --group x25519 --count 1000
    load keyserver "${SIGNER##*:}" --identity certs/localhost.ec.pem --ca certs/ca.pem \
        --certificate certs/localhost.ec.cert.pem --op ecdsa-sha256 --count 10000 --verify-share 0
}

# Reads the configuration again, changed, in the midst of requests.
reloads() {
    local plain round load
    plain="$(port plain)"
    for round in 1 2 3; do
        load requests "$plain" --plain --count 3000 &
        load=$!
        printf '[[route]]\npath = "/round/%s/"\nbackend = "fair"\n' "$round" >> propylon.toml
        kill -HUP "$ENGINE"
        wait "$load"
        wait_for engine.log "is in effect, .* generation $((round + 1))\$"
    done
}

# Loads 127.0.0.1:PORT, where errors end the training: a profile of refusals is worth nothing. On a busy machine a warm-up may
# end before every client has a session to resume, so there are three attempts.
load() {
    local command="$1" target="$2" attempt
    shift 2
    for attempt in 1 2 3; do
        "$BENCH" "$command" --target "127.0.0.1:$target" --warmup 300ms "$@" > load.txt 2>&1 && return
    done
    echo "propylon-bench $command $* fails, the $attempt times that it was tried:" >&2
    grep -E '^(done|errors|propylon-bench)' load.txt >&2
    tail -n 3 engine.log >&2
    exit 1
}

# Port of a listener.
port() {
    sed -n "s/.*listener \"$1\" at [a-z]*:\/\/127\.0\.0\.1:\([0-9]*\).*/\1/p" engine.log | head -n 1
}

wait_for() {
    local attempt
    for attempt in $(seq 300); do
        grep -q "$2" "$1" 2>/dev/null && return
        sleep 0.1
    done
    echo "$1 does not say \"$2\":" >&2
    tail -n 5 "$1" >&2
    exit 1
}

stop() {
    kill -TERM "$1"
    wait "$1"
}

clean() {
    local pid
    for pid in "${PIDS[@]}"; do
        kill "$pid" 2>/dev/null || true
    done
    wait
    rm -rf "$FOLDER"
}

main
