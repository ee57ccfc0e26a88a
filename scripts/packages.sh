#!/usr/bin/env bash
# Makes packages of the programs in TARGET/dist (or PROGRAMS), in TARGET/packages: Debian packages, RPMs, a tarball, and an
# OCI image without a daemon. Two builds of one commit with one compiler have the same bytes: all times are the commit's.
#
#   scripts/packages.sh [debian] [rpm] [tarball] [image]        without arguments all of them
#
# Pages for `man` and completions for shells come from the programs, or lie in PAGES already; lists of what they are
# made of come from `cargo xtask sbom`, or lie in SBOM. ONLY="propylon propylonctl" packs these alone.
#
# Wants dpkg-deb, rpmbuild, GNU tar, gzip, xz, strip and objdump; says which package has what is missing.
set -euo pipefail
ROOT="$(cd "$(dirname "$0")/.." && pwd)"
cd "$ROOT"
TARGET="${CARGO_TARGET_DIR:-$ROOT/target}"
PROGRAMS="${PROGRAMS:-$TARGET/dist}"
OUT="${OUT:-$TARGET/packages}"
read -r -a ALL <<< "${ONLY:-propylon propylonctl propylon-keyserver propylon-bench propylon-gateway}"
# The largest that a stripped program may be, in bytes; 0 for programs of a debug build. docs/decisions/0081-sizes.md
# says why it is what it is.
PROGRAM_BYTES_MAX="${PROGRAM_BYTES_MAX:-31457280}"
MAINTAINER="Propylon maintainers <maintainers@propylon.invalid>"

fail() {
    echo "packages: $*" >&2
    exit 1
}

need() {
    command -v "$1" > /dev/null || fail "$1 is missing: apt-get install -y $2"
}

main() {
    [ $# -gt 0 ] || set -- debian rpm tarball image
    need strip binutils
    need xz xz-utils
    for program in "${ALL[@]}"; do
        [ -x "$PROGRAMS/$program" ] || fail "$PROGRAMS/$program is not there: \`make release\` builds it"
    done
    VERSION="${VERSION:-$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -1)}"
    SOURCE_DATE_EPOCH="${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}"
    export SOURCE_DATE_EPOCH
    case "$(uname -m)" in
        x86_64) DEBIAN_ARCHITECTURE=amd64 OCI_ARCHITECTURE=amd64 ;;
        aarch64) DEBIAN_ARCHITECTURE=arm64 OCI_ARCHITECTURE=arm64 ;;
        *) fail "machines of the kind $(uname -m) have no packages" ;;
    esac
    WORK="$(mktemp -d)"
    trap 'rm -rf "$WORK"' EXIT
    mkdir -p "$OUT" "$WORK/bin" "$WORK/debug"
    for program in "${ALL[@]}"; do
        stripped "$program"
    done
    if [ -z "${PAGES:-}" ]; then
        PAGES="$WORK/pages"
        "$PROGRAMS/propylonctl" pages "$PAGES"
        "$PROGRAMS/propylon-bench" pages "$PAGES"
        "$PROGRAMS/propylon-gateway" --pages "$PAGES"
    fi
    if [ -z "${SBOM:-}" ]; then
        SBOM="$WORK/sbom"
        # By those that are built together: they have features of their packages in common.
        cargo xtask sbom "$SBOM" propylon propylonctl propylon-keyserver
        cargo xtask sbom "$SBOM" propylon-bench propylon-gateway
    fi
    for kind in "$@"; do
        case "$kind" in
            debian) debian ;;
            rpm) rpm ;;
            tarball) tarball ;;
            image) image ;;
            *) fail "there is no kind of package \"$kind\": debian, rpm, tarball, image" ;;
        esac
    done
    for program in "${ALL[@]}"; do
        [ ! -f "$SBOM/$program.cdx.json" ] || install -m 644 "$SBOM/$program.cdx.json" "$OUT/$program-$VERSION.cdx.json"
    done
    (cd "$OUT" && find . -maxdepth 1 -type f ! -name SHA256SUMS -printf '%f\n' | sort | xargs sha256sum > SHA256SUMS)
    echo "packages in $OUT:"
    (cd "$OUT" && find . -maxdepth 1 -type f ! -name SHA256SUMS -printf '%f %s bytes\n' | sort)
}

# A program without its debug symbols, which lie apart.
stripped() {
    objcopy --only-keep-debug "$PROGRAMS/$1" "$WORK/debug/$1.debug"
    strip --strip-unneeded -o "$WORK/bin/$1" "$PROGRAMS/$1"
    (cd "$WORK/debug" && objcopy --add-gnu-debuglink="$1.debug" "$WORK/bin/$1")
    local bytes
    bytes="$(stat -c %s "$WORK/bin/$1")"
    echo "$1: $bytes bytes, and symbols of $(stat -c %s "$WORK/debug/$1.debug") apart"
    if [ "$PROGRAM_BYTES_MAX" -gt 0 ] && [ "$bytes" -gt "$PROGRAM_BYTES_MAX" ]; then
        fail "$1 has $bytes bytes without its symbols, and may have $PROGRAM_BYTES_MAX"
    fi
}

# Gives all files below a folder the commit's time and plain modes.
settle() {
    find "$1" -type d -exec chmod 755 {} +
    find "$1" -depth -print0 | xargs -0 touch --no-dereference --date="@$SOURCE_DATE_EPOCH"
}

# The lowest version of the C library that has all functions of a program.
glibc() {
    objdump -T "$WORK/bin/$1" | grep -o 'GLIBC_[0-9.]*' | sort -V | tail -1 | cut -d _ -f 2
}

# FILE MODE DESTINATION, relative to the root of a package.
put() {
    install -D -m "$2" "$1" "$TREE/$3"
}

# An example unit with the path of packages, without the guide at its top.
unit() {
    mkdir -p "$TREE/usr/lib/systemd/system"
    sed -n '/^\[Unit\]/,$p' "$1" | sed 's#/usr/local/bin/#/usr/bin/#g' > "$TREE/usr/lib/systemd/system/$(basename "$1")"
    chmod 644 "$TREE/usr/lib/systemd/system/$(basename "$1")"
}

# PROGRAM: its completions for shells.
completions() {
    put "$PAGES/completions/$1.bash" 644 "usr/share/bash-completion/completions/$1"
    put "$PAGES/completions/_$1" 644 "usr/share/zsh/vendor-completions/_$1"
    put "$PAGES/completions/$1.fish" 644 "usr/share/fish/vendor_completions.d/$1.fish"
}

# Pages for man(1), packed.
pages() {
    local page
    for page in "$@"; do
        mkdir -p "$TREE/usr/share/man/man8"
        gzip -9nc "$PAGES/man8/$page" > "$TREE/usr/share/man/man8/$page.gz"
        chmod 644 "$TREE/usr/share/man/man8/$page.gz"
    done
}

# Names of pages of a program and its commands.
pages_of() {
    (cd "$PAGES/man8" && ls "$1"*)
}

# Names of pages of propylonctl's commands, which are also `propylon COMMAND`: those of no other program.
pages_of_commands() {
    pages_of propylon | grep -vxE 'propylon(-run|-upgrade|-check)?\.8|propylon-(keyserver|bench|gateway)(-.*)?\.8'
}

# PROGRAM FOLDER: the list of what the program is made of.
parts() {
    [ ! -f "$SBOM/$1.cdx.json" ] || put "$SBOM/$1.cdx.json" 644 "$2/$1.cdx.json"
}

documents() {
    local folder="usr/share/doc/$1"
    mkdir -p "$TREE/$folder"
    parts "$1" "$folder"
    {
        echo "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/"
        echo "Upstream-Name: Propylon"
        echo
        echo "Files: *"
        echo "Copyright: 2026 the authors of Propylon"
        echo "License: Apache-2.0"
        echo " The text is in /usr/share/common-licenses/Apache-2.0."
    } > "$TREE/$folder/copyright"
    gzip -9nc CHANGELOG.md > "$TREE/$folder/changelog.gz"
    {
        printf '%s (%s-1) unstable; urgency=medium\n\n  * changelog.gz tells what is new.\n\n -- %s  %s\n' \
            "$1" "$VERSION" "$MAINTAINER" "$(date -u -R -d "@$SOURCE_DATE_EPOCH")"
    } | gzip -9nc > "$TREE/$folder/changelog.Debian.gz"
    mkdir -p "$TREE/usr/share/lintian/overrides"
    {
        echo "# It is not uploaded to Debian, where a first version closes a wish for it."
        echo "$1: initial-upload-closes-no-bugs *"
        [ ! -f "packaging/lintian/$1" ] || cat "packaging/lintian/$1"
    } > "$TREE/usr/share/lintian/overrides/$1"
    chmod 644 "$TREE/usr/share/lintian/overrides/$1"
    chmod 644 "$TREE/$folder"/*
}

fill_propylon() {
    put "$WORK/bin/propylon" 755 usr/bin/propylon
    put packaging/propylon.toml 644 etc/propylon/propylon.toml
    put packaging/welcome.html 644 usr/share/propylon/welcome.html
    put packaging/propylon.logrotate 644 etc/logrotate.d/propylon
    put packaging/propylon.sysusers 644 usr/lib/sysusers.d/propylon.conf
    put packaging/propylon.tmpfiles 644 usr/lib/tmpfiles.d/propylon.conf
    put docs/manual.md 644 usr/share/doc/propylon/manual.md
    for file in propylon.rules.yml propylon.rules.test.yml propylon.dashboard.json; do
        put "packaging/monitoring/$file" 644 "usr/share/propylon/monitoring/$file"
    done
    pages propylon.8 propylon-run.8 propylon-upgrade.8 propylon-check.8
    completions propylon
    put examples/propylon.toml 644 usr/share/doc/propylon/examples/propylon.toml
    put examples/systemd/propylon.socket 644 usr/share/doc/propylon/examples/propylon.socket
    unit examples/systemd/propylon.service
    printf '/etc/propylon/propylon.toml\n/etc/logrotate.d/propylon\n' > "$TREE/DEBIAN/conffiles"
}

fill_propylonctl() {
    put "$WORK/bin/propylonctl" 755 usr/bin/propylonctl
    # shellcheck disable=SC2046
    pages $(pages_of_commands)
    completions propylonctl
}

fill_propylon-keyserver() {
    put "$WORK/bin/propylon-keyserver" 755 usr/bin/propylon-keyserver
    put packaging/propylon-keyserver.sysusers 644 usr/lib/sysusers.d/propylon-keyserver.conf
    put packaging/propylon-keyserver.tmpfiles 644 usr/lib/tmpfiles.d/propylon-keyserver.conf
    put docs/keyserver.md 644 usr/share/doc/propylon-keyserver/keyserver.md
    # shellcheck disable=SC2046
    pages $(pages_of propylon-keyserver)
    completions propylon-keyserver
    put examples/keyserver.toml 644 usr/share/doc/propylon-keyserver/examples/keyserver.toml
    unit examples/propylon-keyserver.service
}

fill_propylon-bench() {
    put "$WORK/bin/propylon-bench" 755 usr/bin/propylon-bench
    put docs/bench.md 644 usr/share/doc/propylon-bench/bench.md
    # shellcheck disable=SC2046
    pages $(pages_of propylon-bench)
    completions propylon-bench
}

fill_propylon-gateway() {
    put "$WORK/bin/propylon-gateway" 755 usr/bin/propylon-gateway
    # shellcheck disable=SC2046
    pages $(pages_of propylon-gateway)
    completions propylon-gateway
    for file in deploy/gateway/*.yaml; do
        put "$file" 644 "usr/share/doc/propylon-gateway/examples/$(basename "$file")"
    done
}

about() {
    case "$1" in
        propylon) echo "TLS-offload load balancer" ;;
        propylonctl) echo "command line of the load balancer Propylon" ;;
        propylon-keyserver) echo "private keys for load balancers that have none" ;;
        propylon-bench) echo "load, origin and comparison for load balancers" ;;
        propylon-gateway) echo "controller of the Kubernetes Gateway API for Propylon" ;;
    esac
}

accounts() {
    case "$1" in
        propylon | propylon-keyserver) echo ", systemd | systemd-standalone-sysusers | adduser" ;;
    esac
}

debian() {
    need dpkg-deb dpkg
    for program in "${ALL[@]}"; do
        TREE="$WORK/debian/$program"
        mkdir -p "$TREE/DEBIAN"
        "fill_$program"
        documents "$program"
        control "$program" "$(about "$program")" "libc6 (>= $(glibc "$program")), libgcc-s1$(accounts "$program")"
        for script in postinst prerm postrm; do
            [ ! -f "packaging/debian/$program.$script" ] || install -m 755 "packaging/debian/$program.$script" "$TREE/DEBIAN/$script"
        done
        built "$program"
    done
    # Symbols for all of them, found by their names in .gnu_debuglink.
    TREE="$WORK/debian/propylon-dbgsym"
    mkdir -p "$TREE/DEBIAN"
    for program in "${ALL[@]}"; do
        put "$WORK/debug/$program.debug" 644 "usr/lib/debug/usr/bin/$program.debug"
    done
    documents propylon-dbgsym
    control propylon-dbgsym "debug symbols of Propylon's programs" ""
    built propylon-dbgsym
}

# NAME, DESCRIPTION, DEPENDENCIES
control() {
    local size
    size="$(du -k --apparent-size -s "$TREE" | cut -f 1)"
    {
        echo "Package: $1"
        echo "Version: $VERSION-1"
        echo "Architecture: $DEBIAN_ARCHITECTURE"
        echo "Maintainer: $MAINTAINER"
        echo "Installed-Size: $size"
        [ -z "$3" ] || echo "Depends: $3"
        [ "$1" != propylon ] || echo "Recommends: propylonctl, ca-certificates, logrotate"
        echo "Section: $([ "$1" = propylon-dbgsym ] && echo debug || echo net)"
        echo "Priority: optional"
        echo "Description: $2"
        echo " Propylon terminates TLS in software on many cores, in front of servers that"
        echo " are spared it, and balances their load."
    } > "$TREE/DEBIAN/control"
}

built() {
    (cd "$TREE" && find . -path ./DEBIAN -prune -o -type f -printf '%P\n' | sort | xargs md5sum > DEBIAN/md5sums)
    settle "$TREE"
    dpkg-deb --root-owner-group -Zxz -z"${XZ_LEVEL:-6}" --build "$TREE" "$OUT/${1}_$VERSION-1_$DEBIAN_ARCHITECTURE.deb" > /dev/null
}

# The same files as RPMs, in the folders that such systems have. Symbols are in none of them.
rpm() {
    need rpmbuild rpm
    local requires recommends
    for program in "${ALL[@]}"; do
        TREE="$WORK/rpm/$program"
        mkdir -p "$TREE/DEBIAN"
        "fill_$program"
        rm -r "$TREE/DEBIAN"
        if [ -d "$TREE/usr/share/zsh" ]; then
            mv "$TREE/usr/share/zsh/vendor-completions" "$TREE/usr/share/zsh/site-functions"
        fi
        put LICENSE 644 "usr/share/licenses/$program/LICENSE"
        parts "$program" "usr/share/doc/$program"
        requires=()
        recommends=()
        case "$program" in
            propylon)
                requires=(--define "requires shadow-utils")
                recommends=(--define "recommends propylonctl ca-certificates logrotate")
                mkdir -p "$TREE/etc/propylon/certs" "$TREE/var/lib/propylon" "$TREE/var/log/propylon"
                ;;
            propylon-keyserver)
                requires=(--define "requires shadow-utils")
                mkdir -p "$TREE/etc/propylon-keys/keys"
                ;;
        esac
        settle "$TREE"
        (cd "$TREE" && rights) > "$WORK/rpm/$program.list"
        : > "$WORK/rpm/$program.scripts"
        [ ! -f "packaging/rpm/$program.scripts" ] || cp "packaging/rpm/$program.scripts" "$WORK/rpm/$program.scripts"
        rpmbuild -bb --quiet --target "$(uname -m)" --define "_topdir $WORK/rpm/top" --define "_rpmdir $OUT" \
            --define "_rpmfilename %%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm" --define "program $program" \
            --define "about $(about "$program")" --define "version ${VERSION//-/\~}" --define "tree $TREE" \
            --define "scripts $WORK/rpm/$program.scripts" --define "list $WORK/rpm/$program.list" \
            "${requires[@]}" "${recommends[@]}" packaging/rpm/package.spec > "$WORK/rpm/$program.log" 2>&1 ||
            { cat "$WORK/rpm/$program.log" >&2 && fail "rpmbuild has not made $program"; }
    done
}

# Files and own folders of the tree that is the current one, as a package lists them.
rights() {
    echo '%defattr(-,root,root,-)'
    find . -mindepth 1 -type d -printf '/%P\n' | sort | while read -r folder; do
        case "$folder" in
            /etc/propylon | /etc/propylon/certs) echo "%dir %attr(0750,root,propylon) $folder" ;;
            /var/lib/propylon) echo "%dir %attr(0700,propylon,propylon) $folder" ;;
            /var/log/propylon) echo "%dir %attr(0750,propylon,propylon) $folder" ;;
            /etc/propylon-keys | /etc/propylon-keys/keys) echo "%dir %attr(0750,root,propylon-keys) $folder" ;;
            */propylon* | */propylonctl*) echo "%dir $folder" ;;
        esac
    done
    find . -type f -printf '/%P\n' | sort | while read -r file; do
        case "$file" in
            /etc/propylon/*) echo "%config(noreplace) %attr(0640,root,propylon) $file" ;;
            /etc/*) echo "%config(noreplace) $file" ;;
            /usr/share/licenses/*) echo "%license $file" ;;
            *) echo "$file" ;;
        esac
    done
}

# Archives of a folder, the same for the same files.
archive() {
    tar --create --sort=name --format=ustar --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" -C "$1" .
}

tarball() {
    local name
    name="propylon-$VERSION-linux-$(uname -m)"
    TREE="$WORK/tarball"
    for program in "${ALL[@]}"; do
        put "$WORK/bin/$program" 755 "$name/bin/$program"
        parts "$program" "$name/sbom"
    done
    for file in docs/manual.md docs/keyserver.md docs/bench.md LICENSE README.md CHANGELOG.md; do
        put "$file" 644 "$name/$(basename "$file")"
    done
    for file in examples/propylon.toml examples/keyserver.toml examples/propylon-keyserver.service \
        examples/systemd/propylon.service examples/systemd/propylon.socket deploy/gateway/*.yaml; do
        put "$file" 644 "$name/examples/$(basename "$file")"
    done
    for file in packaging/monitoring/* "$PAGES"/completions/*; do
        put "$file" 644 "$name/$(basename "$(dirname "$file")")/$(basename "$file")"
    done
    for file in "$PAGES"/man8/*; do
        put "$file" 644 "$name/man/man8/$(basename "$file")"
    done
    settle "$TREE"
    archive "$TREE" | xz -"${XZ_LEVEL:-9}" > "$OUT/$name.tar.xz"
}

# An image layout of the OCI for the engine, and one for the controller, as archives that `podman load`, `skopeo copy
# oci-archive:` and `crane push` take: the program and the libraries that it is linked to, and nothing else. It runs as
# nobody, and writes nowhere.
image() {
    local program
    for program in "${ALL[@]}"; do
        TREE="$WORK/image/$program"
        case "$program" in
            propylon)
                put packaging/propylon.image.toml 644 etc/propylon/propylon.toml
                put packaging/welcome.html 644 usr/share/propylon/welcome.html
                layout propylon '"ExposedPorts":{"8080/tcp":{}},' '"run","-c","/etc/propylon/propylon.toml"'
                ;;
            propylon-gateway) layout propylon-gateway "" "" ;;
        esac
    done
}

# Puts the program, its libraries and what a system has to tell them into the tree.
root_of() {
    put "$WORK/bin/$1" 755 "usr/bin/$1"
    parts "$1" "usr/share/doc/$1"
    local library
    ldd "$WORK/bin/$1" | grep -o '/[^ ]*' | sort -u | while read -r library; do
        put "$(readlink -f "$library")" 755 "${library#/}"
    done
    printf 'root:x:0:0:root:/:/usr/sbin/nologin\nnobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n' > "$WORK/passwd"
    printf 'root:x:0:\nnogroup:x:65534:\n' > "$WORK/group"
    printf 'hosts: files dns\n' > "$WORK/nsswitch.conf"
    for file in passwd group nsswitch.conf; do
        put "$WORK/$file" 644 "etc/$file"
    done
    # Authorities that servers' certificates are verified by, where the machine has them.
    [ ! -f /etc/ssl/certs/ca-certificates.crt ] || put /etc/ssl/certs/ca-certificates.crt 644 etc/ssl/certs/ca-certificates.crt
    mkdir -p "$TREE/tmp" "$TREE/run"
    settle "$TREE"
}

# PROGRAM PORTS ARGUMENTS: the tree as a layer of an image. The latter two are JSON.
layout() {
    root_of "$1"
    local created plain
    LAYOUT="$WORK/layout/$1"
    mkdir -p "$LAYOUT/blobs/sha256"
    created="$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)"
    archive "$TREE" > "$WORK/layer.tar"
    plain="$(sha256sum "$WORK/layer.tar" | cut -d ' ' -f 1)"
    gzip -"${GZIP_LEVEL:-9}" -n --force "$WORK/layer.tar"
    local layer config manifest
    layer="$(blob "$WORK/layer.tar.gz")"
    printf '{"created":"%s","architecture":"%s","os":"linux","config":{"User":"65534:65534",%s"Env":["PATH=/usr/bin"],"Entrypoint":["/usr/bin/%s"],"Cmd":[%s],"WorkingDir":"/","StopSignal":"SIGTERM","Labels":{"org.opencontainers.image.title":"%s","org.opencontainers.image.version":"%s","org.opencontainers.image.licenses":"Apache-2.0"}},"rootfs":{"type":"layers","diff_ids":["sha256:%s"]},"history":[{"created":"%s","created_by":"scripts/packages.sh image"}]}' \
        "$created" "$OCI_ARCHITECTURE" "$2" "$1" "$3" "$1" "$VERSION" "$plain" "$created" > "$WORK/config.json"
    config="$(blob "$WORK/config.json")"
    printf '{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":{"mediaType":"application/vnd.oci.image.config.v1+json",%s},"layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar+gzip",%s}]}' \
        "$config" "$layer" > "$WORK/manifest.json"
    manifest="$(blob "$WORK/manifest.json")"
    printf '{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json",%s,"platform":{"architecture":"%s","os":"linux"},"annotations":{"org.opencontainers.image.ref.name":"%s"}}]}' \
        "$manifest" "$OCI_ARCHITECTURE" "$VERSION" > "$LAYOUT/index.json"
    printf '{"imageLayoutVersion":"1.0.0"}' > "$LAYOUT/oci-layout"
    settle "$LAYOUT"
    archive "$LAYOUT" > "$OUT/$1-$VERSION-$OCI_ARCHITECTURE.oci.tar"
}

# Puts a file into the layout; prints its digest and size as a descriptor has them.
blob() {
    local digest
    digest="$(sha256sum "$1" | cut -d ' ' -f 1)"
    cp "$1" "$LAYOUT/blobs/sha256/$digest"
    printf '"digest":"sha256:%s","size":%s' "$digest" "$(stat -c %s "$1")"
}

main "$@"
