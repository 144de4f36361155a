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
    # it would copy the emptiness. Sentinels that were held up do nothing for half a minute.
    echo "this was the primary; asking for a failover"
    waited=0
    while [ "$primary" = "$me" ] && [ $waited -lt 45 ]; do
        fail_over
        sleep 1
        waited=$((waited + 1))
        primary=$(known)
    done
fi
if [ "$primary" != "$me" ] && [ "$(role_of "$primary")" = slave ]; then
    echo "$primary is to be the primary, and copies another; telling it"
    $cli -h "$primary" --user admin replicaof no one
fi

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
