#!/usr/bin/env bash
# Starts real clusters on this machine, and podbridge on them: ./hack/up.sh --help
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
hack cluster up "$@"
