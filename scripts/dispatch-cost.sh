#!/bin/bash
# Latency of quiet clients beside heavy ones, and processor time of a request, with two workers that share clients and
# with two that do not (process.dispatch), in turns: 56 connections of HTTP/2 with 20 requests a second each, and 8 with
# many, that come one after another. The engine answers by itself. On a machine of two cores the load has the same ones,
# and the scheduler evens out much of what the hash does not: use one with more, and put the load on the others by LOAD.
#
#   scripts/dispatch-cost.sh [ROUNDS]         needs h2load, and a release build of propylon and propylon-bench
#   HEAVY=9000  requests a second of each heavy client        LOAD="taskset -c 2-7"  what goes before h2load
set -euo pipefail

rounds=${1:-3}
heavy=${HEAVY:-9000}
load=${LOAD:-}
seconds=5
root=$(cd "$(dirname "$0")/.." && pwd)
bin=${CARGO_TARGET_DIR:-$root/target}/release
command -v h2load > /dev/null || { echo "cannot measure: h2load is missing (nghttp2-client)" >&2; exit 1; }
[ -x "$bin/propylon" ] || { echo "cannot measure: build first, by cargo build --release --workspace --bins" >&2; exit 1; }

work=$(mktemp -d)
engine=''
clean() {
    [ -z "$engine" ] || kill "$engine" 2> /dev/null || true
    wait
    rm -rf "$work"
}
trap clean EXIT
trap 'exit 130' INT TERM
cd "$work"
"$bin/propylon-bench" certificates --out certs --name localhost --keys ec > /dev/null
body=$(printf '%0100d' 0)

measure() { # DISPATCH
    cat > engine.toml <<C
[process]
workers = 2
dispatch = $1
[admin]
bind = "127.0.0.1:0"
[listener.web]
bind = "127.0.0.1:24443"
tls = "public"
[tls.public]
certificates = ["certs/localhost.ec.pem"]
[[route]]
respond = { body = "$body" }
C
    "$bin/propylon" run --config engine.toml > engine.log 2>&1 &
    engine=$!
    sleep 1
    rm -f light.* heavy.*
    local clients=() number
    for number in 1 2 3 4 5 6 7 8; do
        $load h2load -c 7 -m 1 -D "$seconds" --rps 20 --log-file "light.$number" https://127.0.0.1:24443/ > /dev/null 2>&1 &
        clients+=($!)
        sleep 0.05
        $load h2load -c 1 -m 16 -D "$seconds" --rps "$heavy" https://127.0.0.1:24443/ > "heavy.$number" 2>&1 &
        clients+=($!)
        sleep 0.15
    done
    wait "${clients[@]}"
    local ticks done_
    ticks=$(awk '{ print $14 + $15 }' "/proc/$engine/stat")
    kill "$engine"
    wait "$engine" || true
    engine=''
    done_=$(sed -n 's/.* \([0-9]*\) succeeded.*/\1/p' heavy.* | awk '{ s += $1 } END { print s }')
    cut -f 3 light.* | sort -n | awk -v dispatch="$1" -v ticks="$ticks" -v heavy="$done_" -v hz="$(getconf CLK_TCK)" '
        { v[NR] = $1 }
        END {
            printf "dispatch = %-5s  light: %d requests, p50 %d us, p99 %d us, p99.9 %d us   CPU %.2f us a request\n",
                dispatch, NR, v[int(NR * .5)], v[int(NR * .99)], v[int(NR * .999)], ticks * 1e6 / hz / (NR + heavy)
        }'
}

while [ "$rounds" -gt 0 ]; do
    rounds=$((rounds - 1))
    measure true
    measure false
done
