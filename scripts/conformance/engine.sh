#!/usr/bin/env bash
# Starts an engine and its controller in the cluster that `cluster.sh up` has started: those of target/release, else of
# target/debug (PROPYLON, PROPYLON_GATEWAY: their paths).
. "$(dirname "$0")/common.sh"
ROOT=$(cd "$(dirname "$0")/../.." && pwd)

built() {
    local profile
    for profile in release debug; do
        if [ -x "$ROOT/target/$profile/$1" ]; then
            echo "$ROOT/target/$profile/$1"
            return
        fi
    done
    fail "no $1 in target/release or target/debug: cargo build --locked --workspace --bins"
}

engine=${PROPYLON:-$(built propylon)}
controller=${PROPYLON_GATEWAY:-$(built propylon-gateway)}
rm -rf "$RUN/state" "$RUN/files" "$RUN/admin.sock"
mkdir -p "$RUN/state" "$RUN/files"
cat >"$RUN/propylon.toml" <<TOML
[process]
state = "$RUN/state"
sandbox_paths = ["$RUN/files"]
drain_timeout = "1s"

[admin]
bind = "unix:$RUN/admin.sock"

[log]
access = "$RUN/access.log"

[listener.ready]
bind = "127.0.0.1:9080"
monitor_path = "/ready"

[[route]]
listener = "ready"
respond = { status = 404 }
TOML
start engine "$engine" run -c "$RUN/propylon.toml"
eventually 60 "the engine" inside curl --fail --silent http://127.0.0.1:9080/ready
addresses=()
for last in $(seq "$ENGINE_ADDRESSES_MAX"); do
    addresses+=(--address "$ENGINE_ADDRESS_PREFIX.$last")
done
start controller "$controller" --engine "unix:$RUN/admin.sock" --base "$RUN/propylon.toml" --files "$RUN/files" \
    --kubeconfig "$KUBECONFIG" "${addresses[@]}"
inside "$KUBELAB/bin/kubectl" apply --filename - >/dev/null <<YAML
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata:
  name: propylon
spec:
  controllerName: propylon.dev/gateway-controller
YAML
accepted() {
    inside "$KUBELAB/bin/kubectl" wait --for=condition=Accepted --timeout=1s gatewayclass/propylon
}
eventually 60 "the class" accepted
