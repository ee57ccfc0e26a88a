#!/usr/bin/env bash
# Makes sure that this machine can build and test Propylon.
#   scripts/setup.sh build   looks for the tools of the build; installs nothing
#   scripts/setup.sh cluster also looks for those of the demo of a cluster; installs nothing
#   scripts/setup.sh test    also installs the peers of the tests, if they are missing: by apt-get, as root
# It may be run again at any time and does nothing when nothing is missing.
set -euo pipefail
cd "$(dirname "$0")/.."

# Where servers are installed, which is not on every user's path.
PATH="$PATH:/usr/sbin:/sbin"

# The peers of the tests: the command, then the Debian package that has it.
PEERS=(
    "curl curl"
    "openssl openssl"
    "nginx nginx"
    "haproxy haproxy"
    "python3 python3"
    "gunicorn gunicorn"
    "chromium chromium"
    "h2load nghttp2-client"
    "nghttpd nghttp2-server"
    "softhsm2-util softhsm2"
    "pkcs11-tool opensc"
    "pebble pebble"
    "pebble-challtestsrv pebble"
    "go golang-go"
    # Packages of releases.
    "strip binutils"
    "xz xz-utils"
    "dpkg-deb dpkg"
    "lintian lintian"
    "rpmbuild rpm"
    # Judge of the dashboard for people who see or hear it otherwise: axe-core, by npm.
    "npm npm"
    # Passwords as others hash them.
    "htpasswd apache2-utils"
    "argon2 argon2"
    # With java; where there is that alone, no compiler is.
    "javac default-jdk-headless"
    # Those of clusters: what engines share, how routers hear of them, and their second hop.
    "etcd etcd-server"
    "etcdctl etcd-client"
    "bird bird2"
    "keepalived keepalived"
    "ip iproute2"
    "tc iproute2"
    "clang clang"
)
# The commands that the demo of a cluster starts, each with its package.
CLUSTER=(
    "etcd etcd-server"
    "etcdctl etcd-client"
    "bird bird2"
    "ip iproute2"
    "tc iproute2"
    "nsenter util-linux"
)
# Services that these packages start where there is systemd. No test needs one: each starts its own, with its own files.
SERVICES=(
    "nginx nginx"
    "haproxy haproxy"
    "etcd-server etcd"
    "php-fpm php8.2-fpm"
    "bird2 bird"
    "keepalived keepalived"
)
# And the modules of Debian's Python, whatever other Python comes first in the path.
PYTHON=/usr/bin/python3
MODULES=(
    "grpc python3-grpcio"
    "websockets python3-websockets"
    "jwt python3-jwt"
    "cryptography python3-cryptography"
)

main() {
    case "${1:-}" in
        build) need_build_tools ;;
        cluster) need_build_tools && need_cluster ;;
        test) need_build_tools && need_peers && need_axe ;;
        *)
            sed -n '2,6s/^# \{0,1\}//p' "$0" >&2
            exit 2
            ;;
    esac
}

need_build_tools() {
    has cargo || fail "cargo is not installed. Propylon needs Rust 1.89 or later: see https://rustup.rs"
    # Part of the cryptography is C.
    has cc || fail "no C compiler is installed. On Debian and Ubuntu: apt-get install -y gcc libc6-dev"
}

# What runs in network namespaces is started by root alone.
need_cluster() {
    local packages=() peer
    for peer in "${CLUSTER[@]}"; do
        has "${peer%% *}" || packages+=("${peer##* }")
    done
    if [ ${#packages[@]} -gt 0 ]; then
        fail "the demo of a cluster needs ${packages[*]}. As root: apt-get install -y --no-install-recommends ${packages[*]}"
    fi
    if [ "$(id -u)" -ne 0 ]; then
        fail "the demo of a cluster makes network namespaces and routes in them, which takes root. As root: make cluster-demo"
    fi
}

need_peers() {
    local packages=() peer module
    for peer in "${PEERS[@]}"; do
        has "${peer%% *}" || packages+=("${peer##* }")
    done
    # Whose name has a version in it.
    compgen -c php-fpm >/dev/null || packages+=("php-fpm")
    for module in "${MODULES[@]}"; do
        "$PYTHON" -c "import ${module%% *}" 2>/dev/null || packages+=("${module##* }")
    done
    if [ ${#packages[@]} -eq 0 ]; then
        return
    fi
    local install="apt-get install -y --no-install-recommends ${packages[*]}"
    has apt-get || fail "the tests need ${packages[*]}, and there is no apt-get here: install them by hand"
    if [ "$(id -u)" -ne 0 ]; then
        fail "the tests need ${packages[*]}. As root: $install"
    fi
    echo "installing ${packages[*]}"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    $install
    if [ -d /run/systemd/system ]; then
        tell_of_services "${packages[@]}"
    fi
}

# axe-core, in the version that the lock file names, beside what is built. Nothing of it goes into a program or a package.
need_axe() {
    local folder lock="package-lock.json"
    folder="${CARGO_TARGET_DIR:-target}/peers"
    cmp -s "e2e/peers/$lock" "$folder/$lock" && [ -f "$folder/node_modules/axe-core/axe.min.js" ] && return
    mkdir -p "$folder"
    cp e2e/peers/package.json "e2e/peers/$lock" "$folder/"
    npm ci --ignore-scripts --no-audit --no-fund --silent --prefix "$folder" ||
        fail "axe-core is not to be had: npm ci --prefix $folder"
}

# Of packages that have been installed just now.
tell_of_services() {
    local services=() service
    for service in "${SERVICES[@]}"; do
        case " $* " in
            *" ${service%% *} "*) services+=("${service##* }") ;;
        esac
    done
    if [ ${#services[@]} -gt 0 ]; then
        echo "The packages may have started services of their own: ${services[*]}."
        echo "The tests do not need them: systemctl disable --now ${services[*]}"
    fi
}

has() {
    command -v "$1" >/dev/null 2>&1
}

fail() {
    echo "$1" >&2
    exit 1
}

main "$@"
