#!/usr/bin/env bash
# Builds Debian's nginx on AWS-LC, the fastest peer there is for TLS, for `propylon-bench compare --nginx PATH`.
#
#     scripts/nginx-on-aws-lc.sh [FOLDER]          FOLDER defaults to target/peers
#
# nginx comes from Debian's source package, AWS-LC from the crate that this project builds with anyway. Needs root (or
# sudo) for apt-get, and cmake, ninja and a C and C++ compiler, which it installs. Two minutes on two cores.
set -euo pipefail

here=$(cd "$(dirname "$0")/.." && pwd)
out=$(mkdir -p "${1:-$here/target/peers}" && cd "${1:-$here/target/peers}" && pwd)

fail() { echo "nginx-on-aws-lc: $*" >&2; exit 1; }

if [ "$(id -u)" -eq 0 ]; then root=(); else root=(sudo -n); fi
command -v apt-get > /dev/null || fail "needs apt-get; elsewhere build nginx with --with-cc-opt/--with-ld-opt for AWS-LC"

"${root[@]}" apt-get install -y -qq cmake ninja-build g++ dpkg-dev libpcre2-dev zlib1g-dev > /dev/null

# The machine's own list of sources, asked for source packages, beside the list and not in it.
sources=$(mktemp -d)
trap 'rm -rf "$sources"' EXIT
sed 's/^Types: .*/Types: deb-src/' /etc/apt/sources.list.d/debian.sources > "$sources/debian.sources" 2> /dev/null ||
    rm "$sources/debian.sources"
sed -n 's/^deb /deb-src /p' /etc/apt/sources.list > "$sources/debian.list" 2> /dev/null || true
lists="$out/apt-lists"
mkdir -p "$lists/partial"
apt=(-o Dir::Etc::sourcelist=- -o "Dir::Etc::sourceparts=$sources" -o "Dir::State::lists=$lists")
"${root[@]}" apt-get "${apt[@]}" update -qq
(cd "$out" && apt-get "${apt[@]}" source -qq --download-only nginx)
nginx_archive=$(ls "$out"/nginx_*.orig.tar.gz | tail -1)
rm -rf "$out/nginx" && mkdir -p "$out/nginx"
tar xf "$nginx_archive" -C "$out/nginx" --strip-components=1

manifest=$(cargo metadata --format-version 1 --manifest-path "$here/Cargo.toml" |
    python3 -c 'import json, sys
print([p["manifest_path"] for p in json.load(sys.stdin)["packages"] if p["name"] == "aws-lc-sys"][0])')
rm -rf "$out/aws-lc" && cp -r "$(dirname "$manifest")/aws-lc" "$out/aws-lc"
cmake -S "$out/aws-lc" -B "$out/aws-lc/build" -GNinja -DCMAKE_BUILD_TYPE=Release \
    -DBUILD_TESTING=OFF -DBUILD_TOOL=OFF -DDISABLE_GO=ON > "$out/aws-lc.log"
ninja -C "$out/aws-lc/build" crypto ssl >> "$out/aws-lc.log"

cd "$out/nginx"
./configure --prefix="$out/nginx-run" --with-http_ssl_module --with-http_v2_module --with-stream \
    --with-stream_ssl_module --with-threads --with-cc-opt="-O2 -Wno-error -I$out/aws-lc/include" \
    --with-ld-opt="-L$out/aws-lc/build/ssl -L$out/aws-lc/build/crypto -lstdc++" > "$out/nginx.log"
make -s -j"$(nproc)" >> "$out/nginx.log" 2>&1 || { tail -20 "$out/nginx.log" >&2; fail "nginx did not build"; }
objs/nginx -V 2>&1 | grep -q AWS-LC || fail "the nginx that was built does not run on AWS-LC"
echo "$out/nginx/objs/nginx"
