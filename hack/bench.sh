#!/usr/bin/env bash
# Measures podbridge against what this machine allows, and prints one table.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
hack cluster.bench "$@"
