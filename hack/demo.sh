#!/usr/bin/env bash
# Starts a cluster, tells the story of podbridge on it step by step, and stops it.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
hack cluster.demo "$@"
