#!/usr/bin/env bash
# Stands between cargo and rustc in a guided build (RUSTC_WRAPPER), and keeps the profile from the kernels: with one, the
# compiler inlines and orders them by other rules, and their machine code is no longer what was read (`cargo xtask lanes`).
set -euo pipefail

APART="propylon_lanes"

arguments=() name="" before=""
for argument in "$@"; do
    [ "$before" != --crate-name ] || name="$argument"
    before="$argument"
done
for argument in "$@"; do
    case "$name:$argument" in
        "$APART:-Cprofile-use="*) ;;
        *) arguments+=("$argument") ;;
    esac
done
exec ${PROPYLON_RUSTC_WRAPPER:-} "${arguments[@]}"
