#!/usr/bin/env bash
# A cluster of one machine without containers, in a network namespace of its own.
#   cluster.sh up      etcd, an API server, its controllers, the Gateway API's resources, and pods.py in a kubelet's place
#   cluster.sh down    ends all that was started there, by its id, and removes the namespaces
. "$(dirname "$0")/common.sh"
HERE=$(cd "$(dirname "$0")" && pwd)
ETCD=${ETCD:-etcd}
CONTROLLERS=deployment-controller,replicaset-controller,endpointslice-controller,endpoints-controller,namespace-controller
CONTROLLERS+=,serviceaccount-controller,garbage-collector-controller,root-ca-certificate-publisher-controller

up() {
    [ ! -s "$PIDS" ] || down
    : >"$PIDS"
    rm -rf "$RUN/etcd"
    ip netns add "$NAMESPACE"
    ip -n "$NAMESPACE" link set lo up
    local last
    for last in $(seq "$ENGINE_ADDRESSES_MAX"); do
        ip -n "$NAMESPACE" address add "$ENGINE_ADDRESS_PREFIX.$last/32" dev lo
    done
    keys
    etcd_and_api_server
    resources
    start pods env PODS_SECONDS="${PODS_SECONDS:-3600}" python3 "$HERE/pods.py"
}

# Keys of an authority, the API server and its one user, which last a month.
keys() {
    cd "$RUN/keys"
    if [ -f authority.crt ] && openssl x509 -checkend 86400 -noout -in authority.crt >/dev/null; then
        return
    fi
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj /CN=conformance \
        -keyout authority.key -out authority.crt 2>/dev/null
    leaf server /CN=kube-apiserver DNS:localhost,DNS:kubernetes.default.svc,IP:127.0.0.1,IP:10.96.0.1
    leaf admin /O=system:masters/CN=admin DNS:admin
    openssl genrsa -out accounts.key 2048 2>/dev/null
    cat >"$KUBECONFIG" <<JSON
{
  "apiVersion": "v1", "kind": "Config", "current-context": "lab",
  "clusters": [{"name": "lab", "cluster": {"server": "https://127.0.0.1:6443", "certificate-authority": "$RUN/keys/authority.crt"}}],
  "users": [{"name": "admin", "user": {"client-certificate": "$RUN/keys/admin.crt", "client-key": "$RUN/keys/admin.key"}}],
  "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "admin"}}]
}
JSON
}

# leaf NAME SUBJECT ALTERNATIVE_NAMES
leaf() {
    openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "$2" -keyout "$1.key" -out "$1.csr" 2>/dev/null
    openssl x509 -req -in "$1.csr" -CA authority.crt -CAkey authority.key -CAcreateserial -days 30 -out "$1.crt" \
        -extfile <(printf 'subjectAltName=%s\nextendedKeyUsage=serverAuth,clientAuth' "$3") 2>/dev/null
}

etcd_and_api_server() {
    local keys=$RUN/keys
    start etcd "$ETCD" --data-dir "$RUN/etcd" --unsafe-no-fsync --listen-client-urls http://127.0.0.1:2379 \
        --advertise-client-urls http://127.0.0.1:2379 --listen-peer-urls http://127.0.0.1:2380
    start api-server "$KUBELAB/bin/kube-apiserver" --etcd-servers http://127.0.0.1:2379 \
        --bind-address 127.0.0.1 --secure-port 6443 --advertise-address 127.0.0.1 --endpoint-reconciler-type none \
        --service-cluster-ip-range 10.96.0.0/16 --authorization-mode RBAC --allow-privileged \
        --client-ca-file "$keys/authority.crt" --tls-cert-file "$keys/server.crt" --tls-private-key-file "$keys/server.key" \
        --service-account-issuer https://kubernetes.default.svc --service-account-key-file "$keys/accounts.key" \
        --service-account-signing-key-file "$keys/accounts.key" --disable-admission-plugins ServiceAccount \
        --kubelet-client-certificate "$keys/admin.crt" --kubelet-client-key "$keys/admin.key" \
        --kubelet-preferred-address-types InternalIP --enable-bootstrap-token-auth=false --max-requests-inflight 2000
    eventually 120 "the API server" ready
    start kube-controllers "$KUBELAB/bin/kube-controller-manager" --kubeconfig "$KUBECONFIG" --leader-elect=false \
        --controllers="$CONTROLLERS" --service-account-private-key-file "$keys/accounts.key" \
        --root-ca-file "$keys/authority.crt" --bind-address 127.0.0.1 --secure-port 10257
}

ready() {
    inside curl --fail --silent --cacert "$RUN/keys/authority.crt" --cert "$RUN/keys/admin.crt" --key "$RUN/keys/admin.key" \
        https://127.0.0.1:6443/readyz
}

# The Gateway API's, of the experimental channel: the suite has tests of both.
resources() {
    local folder file
    folder=$(go env GOMODCACHE)/sigs.k8s.io/gateway-api@$GATEWAY_API_VERSION/config/crd/experimental
    for file in "$folder"/*.networking*.yaml "$folder"/*.x-k8s*.yaml; do
        inside "$KUBELAB/bin/kubectl" apply --server-side --filename "$file" >/dev/null
    done
}

down() {
    local id name namespace
    if [ -f "$PIDS" ]; then
        tac "$PIDS" | while read -r id name; do
            # After a restart of the machine the number may be anybody's.
            [ "$(ip netns identify "$id" 2>/dev/null)" = "$NAMESPACE" ] || continue
            kill "$id" 2>/dev/null || continue
            for _ in $(seq 40); do
                is_running "$id" || break
                sleep 0.25
            done
            kill -9 "$id" 2>/dev/null || true
        done
        rm -f "$PIDS"
    fi
    # Namespaces of Pods are left where pods.py was killed.
    for namespace in $(ip netns list | awk '{ print $1 }' | grep -E "^$NAMESPACE(-p[0-9]+)?\$" || true); do
        ip netns delete "$namespace"
    done
}

case "${1:-}" in
    up | down) "$1" ;;
    *)
        sed -n '2,4s/^# \{0,1\}//p' "$0" >&2
        exit 2
        ;;
esac
