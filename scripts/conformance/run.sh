#!/usr/bin/env bash
# `make conformance`: the Gateway API's conformance suite against an engine and its controller, in a cluster of its own on this
# machine. As root, since Pods are network namespaces. Everything that was started is ended, and every namespace removed, also
# where it fails. Arguments go to the suite (--run-test HTTPRouteWeight); without any the report is put into docs/conformance.
HERE=$(cd "$(dirname "$0")" && pwd)
. "$HERE/common.sh"

# The commands, each with its Debian package.
COMMANDS=("etcd etcd-server" "ip iproute2" "curl curl" "openssl openssl" "python3 python3" "go golang-go")

packages=()
for command in "${COMMANDS[@]}"; do
    command -v "${command%% *}" >/dev/null || packages+=("${command##* }")
done
[ ${#packages[@]} -eq 0 ] || fail "the suite needs ${packages[*]}. As root: apt-get install -y --no-install-recommends ${packages[*]}"
[ "$(id -u)" -eq 0 ] || fail "the suite needs network namespaces, which takes root. As root: make conformance"
"$HERE/build.sh"
trap '"$HERE/cluster.sh" down' EXIT
trap 'exit 1' INT TERM
"$HERE/cluster.sh" up
"$HERE/engine.sh"
"$HERE/suite.sh" "$@"
if [ $# -eq 0 ]; then
    cp "$RUN/report.yaml" "$HERE/../../docs/conformance/report.yaml"
fi
