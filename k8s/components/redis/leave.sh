#!/bin/sh
# preStop of Valkey: hand the primary's role over before the process ends. Writes wait meanwhile, so that the replica
# has all of them; the end of the process then sends the clients to the new primary.
set -eu
. /scripts/common.sh
me=$HOSTNAME.valkey
[ "$(role_of 127.0.0.1)" = master ] || exit 0
for number in 0 1 2; do
    timeout 2 $cli -h 127.0.0.1 --user admin client pause 15000 write > /dev/null
    if [ "$(sentinel $number failover primary)" = OK ]; then break; fi
done
waited=0
while [ "$(agreed)" = "$me" ] && [ $waited -lt 12 ]; do
    sleep 1
    waited=$((waited + 1))
done
