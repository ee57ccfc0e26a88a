#!/usr/bin/env bash
# Builds what the suite needs beside Propylon, from modules of Go: an API server, its controllers, kubectl, the suite and its
# server of echoes. Cold it takes some 15 minutes of a core and 3 GB of memory; what is there is not built again.
. "$(dirname "$0")/common.sh"

programs() {
    local version=$KUBE_VERSION staging="v0.${KUBE_VERSION#1.}" module flags name
    for name in kube-apiserver kube-controller-manager kubectl; do
        [ -x "$KUBELAB/bin/$name" ] || break
        [ "$name" != kubectl ] || return 0
    done
    mkdir -p "$KUBELAB/build/kube"
    cd "$KUBELAB/build/kube"
    module=$(go mod download -json "k8s.io/kubernetes@v$version")
    # The module has no part of itself that is published as a module of its own: each is replaced by that.
    {
        printf 'module conformance/kube\ngo 1.26.0\ngodebug default=go1.26\nrequire k8s.io/kubernetes v%s\nreplace (\n' "$version"
        sed -n "s#^\t\(k8s.io/[a-z-]*\) => ./staging.*#\t\1 => \1 $staging#p" "$(field GoMod "$module")"
        echo ")"
    } >go.mod
    cp "$(field Dir "$module")/go.sum" .
    chmod +w go.sum
    flags="-s -w"
    for name in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
        flags+=" -X $name.gitVersion=v$version -X $name.gitMajor=1 -X $name.gitMinor=${version#1.}"
    done
    for name in kube-apiserver kube-controller-manager kubectl; do
        echo "building $name"
        go build -mod=mod -ldflags "$flags" -o "$KUBELAB/bin/$name" "k8s.io/kubernetes/cmd/$name"
    done
}

suite() {
    local api=sigs.k8s.io/gateway-api suite=sigs.k8s.io/gateway-api/conformance version=$GATEWAY_API_VERSION
    [ ! -x "$KUBELAB/bin/conformance.test" ] || return 0
    mkdir -p "$KUBELAB/build/suite"
    cd "$KUBELAB/build/suite"
    printf 'module conformance/suite\ngo 1.26.0\nrequire (\n\t%s %s\n\t%s %s\n)\n' "$api" "$version" "$suite" "$version" >go.mod
    printf '//go:build tools\n\npackage suite\n\nimport _ "%s"\n' "$suite" >tools.go
    echo "building the suite"
    go build -mod=mod -ldflags '-s -w' -o "$KUBELAB/bin/echo-basic" "$suite/echo-basic"
    go test -mod=mod -c -o "$KUBELAB/bin/conformance.test" "$suite"
}

# A value of what `go mod download -json` prints: field NAME JSON
field() {
    python3 -c 'import json, sys; print(json.loads(sys.argv[2])[sys.argv[1]])' "$1" "$2"
}

programs
suite
