# Names and questions that both start scripts use.
auth=/etc/redis-auth
VALKEYCLI_AUTH=$(cat $auth/admin)
REDISCLI_AUTH=$VALKEYCLI_AUTH
export VALKEYCLI_AUTH REDISCLI_AUTH
tls=${REDIS_TLS:-}  # folder of the certificate, by the component redis-tls: all ports then speak TLS alone
cli="valkey-cli --no-auth-warning --raw"
if [ -n "$tls" ]; then cli="$cli --tls --cacert $tls/ca.crt"; fi

listening() {  # settings of port $1
    if [ -z "$tls" ]; then
        echo "port $1"
        return
    fi
    echo "port 0"
    echo "tls-port $1"
    echo "tls-cert-file $tls/tls.crt"
    echo "tls-key-file $tls/tls.key"
    echo "tls-ca-cert-file $tls/ca.crt"
    echo "tls-auth-clients no"
    echo "tls-replication yes"  # of sentinels, too: they ask Valkey and each other by TLS
}

renewed() {  # true once the certificate is another one than $1
    until [ "$(cksum < "$tls/tls.crt")" != "$1" ]; do sleep 20; done
}

to_sentinel() {  # a command to sentinel $1
    number=$1
    shift
    timeout 2 env -u VALKEYCLI_AUTH -u REDISCLI_AUTH \
        $cli -h "sentinel-$number.sentinel" -p 26379 "$@" 2>/dev/null
}

sentinel() {  # a question to sentinel $1
    number=$1
    shift
    to_sentinel "$number" sentinel "$@"
}

agreed() {  # the primary's name, if two of three sentinels say the same
    for number in 0 1 2; do sentinel "$number" get-master-addr-by-name primary | head -n 1; done |
        sort | uniq -c | awk '$1 >= 2 && $2 != "" { print $2 }'
}

role_of() {  # master, slave, or nothing
    timeout 2 $cli -h "$1" --user admin role 2>/dev/null | head -n 1
}

has_rows() {  # true for a Valkey that holds something
    rows=$(timeout 2 $cli -h "$1" --user admin dbsize 2>/dev/null)
    [ "${rows:-0}" -gt 0 ] 2>/dev/null
}

acting() {  # a Valkey that says it is the primary
    for name in valkey-0.valkey valkey-1.valkey; do
        if [ "$(role_of $name)" = master ]; then
            echo $name
            return
        fi
    done
}

known() {  # the primary's name: that of the sentinels, else of the Valkey that acts as one; waits until there is one
    told=
    while :; do
        primary=$(agreed)
        if [ -z "$primary" ]; then primary=$(acting); fi
        if [ -n "$primary" ]; then break; fi
        if [ -z "$told" ]; then echo "waiting for two sentinels that name the same primary" >&2; fi
        told=yes
        sleep 1
    done
    echo "$primary"
}

acts() {  # true if sentinel $1 would do what it is told
    to_sentinel "$1" info sentinel | grep -q '^sentinel_tilt:0'
}

fail_over() {  # ask a sentinel to make the replica the primary; false if none does
    for number in 0 1 2; do
        if acts $number; then
            case $(sentinel $number failover primary) in OK | *INPROG*) return 0 ;; esac
        fi
    done
    return 1
}

promote() {  # tell $1, which is to be the primary, that it is, if it copies another
    if [ "$(role_of "$1")" = slave ]; then
        echo "$1 is to be the primary, and copies another; telling it"
        $cli -h "$1" --user admin replicaof no one
    fi
}
