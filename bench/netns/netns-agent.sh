#!/bin/sh
# Open MPI's remote shell for run.sh: netns-agent.sh HOST COMMAND... runs the command line in the
# network namespace $DHELIX_NETNS-HOST, under that host's name, as ssh would on another machine.
host=$1
shift
exec ip netns exec "$DHELIX_NETNS-$host" unshare --uts \
    sh -c 'hostname "$0" && eval "$1"' "$host" "$*"
