#!/bin/sh
# preStop of Valkey: hand the primary's role over before the process ends. Writes wait meanwhile, so that no write is
# answered that the replica lacks; the end of the process then sends the clients to the new primary.
#
# It must not end before: a primary that starts again before the sentinels miss it has lost its memory, and stays the
# primary. A sentinel that was held up for two seconds (TILT) does nothing for half a minute: writes continue until
# one acts again.
set -eu
. /scripts/common.sh
me=$HOSTNAME.valkey
[ "$(role_of 127.0.0.1)" = master ] || exit 0

pause() {  # writes wait for 15 s more; reads continue
    timeout 2 $cli -h 127.0.0.1 --user admin client pause 15000 write > /dev/null
}

copied() {  # true if a replica has all that was written; while writes wait, it stays so
    timeout 2 $cli -h 127.0.0.1 --user admin info replication | tr -d '\r' | awk -F '[:,=]' '
        $1 ~ /^slave[0-9]+$/ && /state=online/ {
            for (i = 2; i < NF; i++) if ($i == "offset" && $(i + 1) + 0 > most + 0) most = $(i + 1)
        }
        $1 == "master_repl_offset" { end = $2 }
        END { exit !(most != "" && most + 0 >= end + 0) }'
}

end=$(($(date +%s) + 70))  # the pod is killed after 90 s
while [ "$(date +%s)" -lt $end ]; do
    for number in 0 1 2; do
        if acts "$number"; then
            if pause && copied; then sentinel "$number" failover primary > /dev/null || true; fi
            break
        fi
    done
    sleep 1
    primary=$(agreed)
    if [ -n "$primary" ] && [ "$primary" != "$me" ]; then
        echo "handed over to $primary"
        exit 0
    fi
    echo "not handed over yet; asking again"
done
echo "no replica took over"
