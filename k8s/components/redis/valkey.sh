#!/bin/sh
# Start Valkey in the role that the sentinels give it.
set -eu
. /scripts/common.sh
me=$HOSTNAME.valkey

# A secret may hold any character but a space.
umask 077
for user in admin trainer server monitor; do
    eval "$user=\$(cat $auth/$user)"
done
awk -v a="$admin" -v t="$trainer" -v s="$server" -v m="$monitor" '{
    for (i = 1; i <= NF; i++) {
        if ($i == ">ADMIN") $i = ">" a
        if ($i == ">TRAINER") $i = ">" t
        if ($i == ">SERVER") $i = ">" s
        if ($i == ">MONITOR") $i = ">" m
    }
    print
}' /etc/valkey/users.acl > /run/valkey/users.acl

# Never a guess: two Valkeys that each copy the other do so for ever, and no sentinel can part them.
primary=$(known)
if [ "$me" = valkey-0.valkey ]; then other=valkey-1.valkey; else other=valkey-0.valkey; fi
if [ "$primary" = "$me" ] && has_rows "$other"; then
    # It was the primary and has lost its memory. The replica, which has the data, must take its place first, or
    # it would copy the emptiness. Sentinels that were held up do nothing for half a minute, and then find that the
    # replica has missed its primary for too long: where none makes it the primary, it is told so.
    echo "this was the primary; asking for a failover"
    end=$(($(date +%s) + 45))
    while [ "$primary" = "$me" ]; do
        if ! fail_over; then promote "$other"; fi
        sleep 1
        primary=$(known)
        if [ "$(date +%s)" -ge $end ]; then primary=$other; fi
    done
fi
if [ "$primary" != "$me" ]; then promote "$primary"; fi

{
    echo "include /etc/valkey/valkey.conf"
    listening 6379
    echo "replica-announce-ip $me"
    echo "maxmemory $((MEMORY_LIMIT / 10 * 7))"
    echo "masteruser admin"
    echo "masterauth $admin"
    if [ "$primary" != "$me" ]; then echo "replicaof $primary 6379"; fi
} > /run/valkey/valkey.conf
if [ -n "$tls" ]; then
    used=$(cksum < "$tls/tls.crt")
    while renewed "$used"; do
        used=$(cksum < "$tls/tls.crt")
        until [ "$($cli -h 127.0.0.1 --user admin config set tls-cert-file "$tls/tls.crt" \
            tls-key-file "$tls/tls.key" tls-ca-cert-file "$tls/ca.crt" 2>&1)" = OK ]; do sleep 5; done
        echo "the certificate was renewed"
    done &
fi
echo "starting; the primary is $primary"
exec valkey-server /run/valkey/valkey.conf
