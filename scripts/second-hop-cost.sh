#!/bin/sh
# Cost of the flow table where no packet needs a second hop, as a part of a request's CPU time: an engine with one worker
# behind a link of two network namespaces, h2load before it, nginx behind it, and the program of propylon-flows on its
# interface. The kernel counts the program's time (kernel.bpf_stats_enabled), reading a clock twice for each packet; with
# clang an empty program beside it tells what that alone costs. The processor is the others' too: run it on a quiet machine.
#
#   scripts/second-hop-cost.sh [ROUNDS]        as root; needs h2load, nginx, bpftool, and a release build
set -eu

rounds=${1:-3}
root=$(cd "$(dirname "$0")/.." && pwd)
bin=${CARGO_TARGET_DIR:-$root/target}/release
for needed in ip tc h2load nginx bpftool openssl taskset; do
    command -v "$needed" >/dev/null || { echo "cannot measure: $needed is missing" >&2; exit 1; }
done
[ "$(id -u)" = 0 ] || { echo "cannot measure: it takes root" >&2; exit 1; }
[ -x "$bin/propylon-flows" ] || { echo "cannot measure: build first, by cargo build --release --workspace --bins" >&2; exit 1; }

work=$(mktemp -d)
client=propylon-cost-c server=propylon-cost-s
pins=/sys/fs/bpf/propylon-second-hop-cost
stats=$(sysctl -n kernel.bpf_stats_enabled)
engine='' flows=''
clean() {
    [ -z "$flows" ] || kill "$flows" 2>/dev/null || true
    [ -z "$engine" ] || kill "$engine" 2>/dev/null || true
    [ ! -f "$work/nginx.pid" ] || kill "$(cat "$work/nginx.pid")" 2>/dev/null || true
    sysctl -q "kernel.bpf_stats_enabled=$stats"
    wait
    "$bin/propylon-flows" detach --pin "$pins" >/dev/null 2>&1 || true
    rm -rf "$pins"
    ip netns del "$client" 2>/dev/null || true
    ip netns del "$server" 2>/dev/null || true
    rm -rf "$work"
}
trap clean EXIT
trap 'exit 130' INT TERM
cd "$work"

ip netns add "$client"
ip netns add "$server"
ip link add c netns "$client" type veth peer name s netns "$server"
for name in "$client" "$server"; do ip -n "$name" link set lo up; done
ip -n "$client" addr add 10.77.0.1/24 dev c
ip -n "$server" addr add 10.77.0.2/24 dev s
ip -n "$client" link set c up
ip -n "$server" link set s up
ip -n "$server" addr add 10.77.9.9/32 dev lo
ip -n "$client" route add 10.77.9.9/32 via 10.77.0.2

openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout key.pem -out certificate.pem -days 2 \
    -subj /CN=vip.test -addext subjectAltName=DNS:vip.test 2>/dev/null
cat certificate.pem key.pem >both.pem
chmod 600 both.pem
cat >engine.toml <<C
[process]
workers = 1
[listener.web]
bind = "10.77.9.9:443"
tls = "public"
[tls.public]
certificates = ["both.pem"]
[[route]]
listener = "web"
backend = "app"
[backend.app]
servers = ["127.0.0.1:8081"]
C
# 4,096 buckets, all of them this engine's.
buckets=$(head -c 16384 /dev/zero | base64 -w 0)
cat >table.json <<C
{"version": 1, "generation": 1, "seed": "01010101010101010101010101010101", "self": 0, "port": 6655, "vips": ["10.77.9.9"],
 "engines": [{"slot": 0, "name": "a", "address": "10.77.0.2"}, {"slot": 1, "name": "b", "address": "10.77.0.3"}],
 "buckets": "$buckets"}
C
cat >nginx.conf <<C
worker_processes 1; pid $work/nginx.pid; error_log $work/nginx.error;
events { worker_connections 4096; }
http { access_log off; keepalive_requests 1000000000; server { listen 127.0.0.1:8081; location / { return 200 "$(printf %0100d 0)"; } } }
C
ip netns exec "$server" nginx -c "$work/nginx.conf" -p "$work"
ip netns exec "$server" taskset -c 0 "$bin/propylon" run --config engine.toml >engine.log 2>&1 &
engine=$!
ip netns exec "$server" "$bin/propylon-flows" run --interface s --table table.json --status status.json --pin "$pins" \
    --clsact >flows.log 2>&1 &
flows=$!
sleep 3
if command -v clang >/dev/null; then
    printf '%s\n' '__attribute__((section("classifier"), used)) int nothing(void *skb) { return -1; }' \
        '__attribute__((section("license"), used)) char terms[] = "Apache-2.0";' >nothing.c
    clang -target bpfel -O2 -c nothing.c -o nothing.o
    ip netns exec "$server" tc filter add dev s egress bpf direct-action obj nothing.o sec classifier
fi
id() { bpftool prog show | sed -n "s/^\([0-9]*\): sched_cls  name $1 .*/\1/p" | tail -n 1; }
hop=$(id second_hop) nothing=$(id nothing)
[ -n "$hop" ] || { cat flows.log engine.log >&2; exit 1; }
counted() {
    [ -z "$1" ] || bpftool prog show id "$1" | sed -n 's/.*run_time_ns \([0-9]*\) run_cnt \([0-9]*\).*/\1 \2/p'
}
cpu() { awk '{ print $14 + $15 }' "/proc/$engine/stat"; }

sysctl -q kernel.bpf_stats_enabled=1
ticks=$(getconf CLK_TCK)
while [ "$rounds" -gt 0 ]; do
    rounds=$((rounds - 1))
    before="$(counted "$hop") $(cpu)" empty=$(counted "$nothing")
    ip netns exec "$client" taskset -c 1 h2load --h1 -c 32 -D 5 https://10.77.9.9/ >h2load.log
    after="$(counted "$hop") $(cpu)" filled=$(counted "$nothing")
    requests=$(sed -n 's/.* \([0-9]*\) succeeded.*/\1/p' h2load.log)
    echo "${before:-0} ${after:-0} $requests $ticks ${empty:-0 0} ${filled:-0 0}" | awk '{
        # Without runs before there are no figures: the fields of before are then fewer.
        if (NF == 10) { $0 = "0 0 " $0 }
        packets = $5 - $2; each = (packets > 0) ? ($4 - $1) / packets : 0
        clock = ($12 > $10) ? ($11 - $9) / ($12 - $10) : 0
        request = ($6 - $3) / $8 * 1e9 / $7
        printf "%d requests of %.1f us; %.2f packets each, of %.0f ns: %.2f %%", $7, request / 1e3, packets / $7, each, \
            100 * each * packets / $7 / request
        if (clock) printf "; reading the clock %.0f ns of it, %.2f %% without", clock, \
            100 * (each - clock) * packets / $7 / request
        printf "\n" }'
done
