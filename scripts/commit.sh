#!/usr/bin/env bash
# Says of which commit the sources in a folder are (by default these): its first 12 digits, and "-dirty" where the tree has
# other changes. Nothing where the folder is not the top of a repository, or git is not there.
set -euo pipefail
cd "${1:-$(dirname "$0")/..}"
top="$(git rev-parse --show-toplevel 2> /dev/null)" || exit 0
# Sources that were unpacked within somebody else's repository are not of its commits.
[ "$(realpath "$top")" = "$(realpath .)" ] || exit 0
commit="$(git rev-parse --verify --quiet --short=12 HEAD)" || exit 0
changes="$(git status --porcelain --untracked-files=no)" || exit 0
echo "$commit${changes:+-dirty}"
