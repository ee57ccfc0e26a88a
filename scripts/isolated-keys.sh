#!/bin/sh
# What keys.isolate costs: CPU time for each new TLS connection, of an engine and its key process together, beside an engine
# that has its keys itself. Needs release builds of propylon and propylon-bench; changes nothing.
#
#   scripts/isolated-keys.sh [CONNECTIONS] [FOLDER OF THE PROGRAMS]
set -eu

count=${1:-20000}
bin=${2:-target/release}
work=$(mktemp -d)
pids=
trap 'for pid in $pids; do kill "$pid" 2>/dev/null || true; done; wait; rm -rf "$work"' EXIT INT TERM

"$bin/propylon-bench" certificates --out "$work/keys" --name localhost >/dev/null

# Ticks of a process and of those that it has started, and so on: an engine, its supervisor, the key process.
ticks() {
    own=$(sed 's/.*) //' "/proc/$1/stat" | cut -d' ' -f12,13)
    sum=$(( ${own% *} + ${own#* } ))
    for task in /proc/"$1"/task/*/children; do
        for child in $(cat "$task"); do
            sum=$(( sum + $(ticks "$child") ))
        done
    done
    echo "$sum"
}

port=24430
for isolate in false true; do
    for key in ec rsa; do
        port=$((port + 1))
        cat >"$work/propylon.toml" <<TOML
[process]
workers = 1
[keys]
isolate = $isolate
[log]
level = "warn"
access = "off"
[listener.web]
bind = "127.0.0.1:$port"
tls = "public"
[tls.public]
certificates = ["keys/localhost.$key.pem"]
[[route]]
respond = { status = 200, body = "ok" }
TOML
        "$bin/propylon" run -c "$work/propylon.toml" &
        engine=$!
        pids="$pids $engine"
        until "$bin/propylon-bench" handshakes --target "127.0.0.1:$port" --key "$key" --count 200 >/dev/null 2>&1; do
            kill -0 "$engine"
        done
        before=$(ticks "$engine")
        "$bin/propylon-bench" handshakes --target "127.0.0.1:$port" --key "$key" --count "$count" --warmup 0 >"$work/load"
        after=$(ticks "$engine")
        micros=$(( (after - before) * 1000000 / $(getconf CLK_TCK) / count ))
        echo "isolate = $isolate, $key: $micros us of CPU for each new connection; $(grep -iE 'p99|99 ?%' "$work/load" | head -1)"
        kill "$engine"
        wait "$engine" || true
    done
done
