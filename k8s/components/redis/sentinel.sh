#!/bin/sh
# Start a sentinel that watches the primary of the moment. Its state is found out again at each start.
set -eu
. /scripts/common.sh
primary=$(agreed)
if [ -z "$primary" ]; then primary=$(acting); fi
if [ -z "$primary" ] && has_rows valkey-1.valkey && ! has_rows valkey-0.valkey; then primary=valkey-1.valkey; fi
if [ -z "$primary" ]; then primary=valkey-0.valkey; fi
until getent hosts "$primary" > /dev/null; do sleep 1; done

umask 077
cat > /run/sentinel/sentinel.conf << END
$(listening 26379)
protected-mode no
dir /run/sentinel
sentinel myid $(printf %s "$HOSTNAME" | sha1sum | cut -c 1-40)
sentinel resolve-hostnames yes
sentinel announce-hostnames yes
sentinel announce-ip $HOSTNAME.sentinel
sentinel monitor primary $primary 6379 2
sentinel auth-user primary admin
sentinel auth-pass primary $(cat $auth/admin)
sentinel down-after-milliseconds primary 3000
sentinel failover-timeout primary 10000
sentinel parallel-syncs primary 1
END
if [ -n "$tls" ]; then
    used=$(cksum < "$tls/tls.crt")
    (  # a sentinel reads its certificate at the start alone; they end one after another
        renewed "$used"
        sleep $((${HOSTNAME##*-} * 60))
        echo "the certificate was renewed; starting again"
        kill $$
    ) &
fi
exec valkey-server /run/sentinel/sentinel.conf --sentinel
