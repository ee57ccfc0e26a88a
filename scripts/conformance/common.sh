# Settings of the scripts beside this file, which source it.
#   KUBELAB    folder for what is built and written here; nothing of it belongs into the repository
#   NAMESPACE  network namespace in which everything runs; those of Pods have names that begin with it
set -euo pipefail

KUBELAB=${KUBELAB:-${XDG_CACHE_HOME:-$HOME/.cache}/propylon-conformance}
NAMESPACE=${NAMESPACE:-propylon-conformance}
KUBE_VERSION=${KUBE_VERSION:-1.36.3}
GATEWAY_API_VERSION=${GATEWAY_API_VERSION:-v1.6.1}
# Addresses that Gateways may have. The last one is what the suite asks for by name.
ENGINE_ADDRESSES_MAX=60
ENGINE_ADDRESS_PREFIX=10.245.0

RUN=$KUBELAB/run
KUBECONFIG=$RUN/admin.json
# Ids of processes that were started here, one a line.
PIDS=$RUN/pids
export KUBELAB NAMESPACE RUN KUBECONFIG CGO_ENABLED=0 GOTOOLCHAIN=auto
# The folders of ip, which are not on every user's path.
export PATH="$PATH:/usr/sbin:/sbin"
mkdir -p "$KUBELAB/bin" "$KUBELAB/build" "$RUN/keys"

fail() {
    echo "$1" >&2
    exit 1
}

# Runs a command in the namespace.
inside() {
    ip netns exec "$NAMESPACE" "$@"
}

# Starts a command in the namespace, with its output in $RUN/NAME.log: start NAME COMMAND...
start() {
    local name=$1
    shift
    ip netns exec "$NAMESPACE" "$@" >"$RUN/$name.log" 2>&1 &
    echo "$! $name" >>"$PIDS"
}

is_running() {
    kill -0 "$1" 2>/dev/null
}

# Waits until a command succeeds, asked four times a second: eventually SECONDS WHAT COMMAND...
eventually() {
    local tries=$(($1 * 4)) what=$2
    shift 2
    while ! "$@" >/dev/null 2>&1; do
        tries=$((tries - 1))
        [ "$tries" -gt 0 ] || fail "$what: not in time; see the logs in $RUN"
        sleep 0.25
    done
}
