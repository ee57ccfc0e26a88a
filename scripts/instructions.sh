#!/usr/bin/env bash
# Counts user instructions per request and per handshake by callgrind, for each program that is named:
#
#     scripts/instructions.sh target/release/propylon /path/of/another/propylon
#     ROWS="plain tls" COUNT=500 scripts/instructions.sh target/release/propylon
#     ROWS="plain changes rewrite limit" scripts/instructions.sh target/release/propylon    # plain requests, and with a step
#
# One worker, one connection at a time, access log and sandbox off. After a warm-up COUNT units are counted, then twice
# as many; a row is the difference, so that what does not come with each unit is left out. Counts of one program differ
# by some 1 % from run to run. valgrind's processor has neither AVX-512 nor ADX nor SHA instructions: the C of a
# handshake weighs more here than it does in life.
# PROFILE=DIRECTORY keeps callgrind's files, for callgrind_annotate.
set -euo pipefail

ROWS="${ROWS:-plain tls h2 handshake-ec}"
COUNT="${COUNT:-1000}"
TARGET="$(realpath -m "${CARGO_TARGET_DIR:-target}")"
BENCH="$(realpath "${BENCH:-$TARGET/release/propylon-bench}")"
WORK="$(mktemp -d)"
# Seconds until valgrind's engine must run, and until it must have written what it has counted.
START_MAX=120
DUMP_MAX=60
# Processes that run now, and what the last row has counted.
ORIGIN_PID=""
ENGINE=""
COUNTED=""

main() {
    [ $# -gt 0 ] || { sed -n '2,14p' "$0"; exit 2; }
    trap finish EXIT
    local programs=() program row
    for program in "$@"; do programs+=("$(realpath "$program")"); done
    cd "$WORK"
    "$BENCH" certificates --out certs --keys ec --split > /dev/null
    coproc ORIGIN { exec "$BENCH" origin; }
    read -r _ address _ <&"${ORIGIN[0]}"
    write_configuration "$address"
    printf '%-14s' row; printf ' %24s' "${programs[@]/*\/target/target}"; echo
    for row in $ROWS; do
        printf '%-14s' "$row"
        # No shell of its own counts: the engine would outlive it when a row fails, and the failure would be lost.
        for program in "${programs[@]}"; do count "$program" "$row"; printf ' %24s' "$COUNTED"; done
        echo
    done
}

finish() {
    local pid
    for pid in $ENGINE ${ORIGIN_PID:-}; do
        kill -KILL "$pid" 2> /dev/null || true
        wait "$pid" 2> /dev/null || true
    done
    rm -rf "$WORK"
}

write_configuration() {
    cat > propylon.toml <<END
[process]
workers = 1
sandbox = "off"
drain_timeout = "1s"
[log]
access = "off"
[listener.plain]
bind = "127.0.0.1:0"
[listener.changes]
bind = "127.0.0.1:0"
[listener.rewrite]
bind = "127.0.0.1:0"
[listener.limit]
bind = "127.0.0.1:0"
[listener.secure]
bind = "127.0.0.1:0"
tls = "site"
[tls.site]
certificates = ["certs/localhost.ec.pem"]
[backend.origin]
servers = ["$1"]
[[route]]
listener = "changes"
request = { set = { X-Real-IP = "{client.ip}" } }
response = { set = { Strict-Transport-Security = "max-age=31536000" }, remove = ["X-Origin"] }
backend = "origin"
[[route]]
listener = "rewrite"
request = { path = { regex = '^/api/v([0-9]+)/(.*)\$', to = '/\$2?version=\$1' } }
backend = "origin"
[[route]]
listener = "limit"
limit = [{ rate = "1000000/s", burst = 1000000 }]
backend = "origin"
[[route]]
backend = "origin"
END
}

# Counts the instructions of one unit of a row, into COUNTED.
count() {
    local program="$1" row="$2" listener=secure log=engine.log profile="$WORK/callgrind" port once twice
    case "$row" in plain | changes | rewrite | limit) listener="$row" ;; esac
    : > "$log"
    rm -f "$profile"*
    valgrind --tool=callgrind --instr-atstart=no --callgrind-out-file="$profile" "$program" run -c propylon.toml > "$log" 2>&1 &
    ENGINE=$!
    await "$START_MAX" ' runs' "$log" || { cat "$log" >&2; exit 1; }
    port="$(sed -n "s/.*listener \"$listener\" at [a-z]*:\/\/127\.0\.0\.1:\([0-9]*\).*/\1/p" "$log" | head -n 1)"
    load "$row" "$port" 100
    once="$(counted "$profile" 1 "$row" "$port" "$COUNT")"
    twice="$(counted "$profile" 2 "$row" "$port" $((2 * COUNT)))"
    kill "$ENGINE"
    wait "$ENGINE" || true
    ENGINE=""
    [ -z "${PROFILE:-}" ] || { mkdir -p "$PROFILE"; cp "$profile.2" "$PROFILE/$row.callgrind"; }
    COUNTED=$(((twice - once) / COUNT))
}

# Waits so many seconds for a line in a file, as long as the engine is there.
await() {
    local until=$((SECONDS + $1))
    until grep -qs "$2" "$3"; do
        kill -0 "$ENGINE" 2> /dev/null && [ "$SECONDS" -lt "$until" ] || return 1
        sleep 0.2
    done
}

# Prints the instructions of so many units: callgrind's dump has the sum of all threads.
counted() {
    local profile="$1" dump="$2"
    callgrind_control -i on "$ENGINE" > /dev/null 2>&1
    load "${@:3}"
    callgrind_control -i off "$ENGINE" > /dev/null 2>&1
    callgrind_control -d "$ENGINE" > /dev/null 2>&1
    await "$DUMP_MAX" '^totals:' "$profile.$dump" ||
        { echo "callgrind has not written $profile.$dump" >&2; exit 1; }
    awk '/^totals:/ { print $2 }' "$profile.$dump"
}

load() {
    local row="$1" port="$2" count="$3" kind=()
    case "$row" in
    plain | changes | limit) kind=(requests --plain --connections 1) ;;
    rewrite) kind=(requests --plain --connections 1 --path /api/v2/items/7) ;;
    tls) kind=(requests --connections 1) ;;
    h2) kind=(requests --http 2 --connections 1 --streams 10) ;;
    handshake-ec) kind=(handshakes --tls 1.3 --key ec --group x25519) ;;
    *) echo "no row $row" >&2; exit 2 ;;
    esac
    "$BENCH" "${kind[@]}" --target "127.0.0.1:$port" --warmup 0 --count "$count" > load.log 2>&1 ||
        { cat load.log >&2; exit 1; }
}

main "$@"
