# Names and questions that both start scripts use.
auth=/etc/redis-auth
VALKEYCLI_AUTH=$(cat $auth/admin)
REDISCLI_AUTH=$VALKEYCLI_AUTH
export VALKEYCLI_AUTH REDISCLI_AUTH

sentinel() {  # a question to sentinel $1
    number=$1
    shift
    timeout 2 env -u VALKEYCLI_AUTH -u REDISCLI_AUTH \
        valkey-cli -h "sentinel-$number.sentinel" -p 26379 --raw sentinel "$@" 2>/dev/null
}

agreed() {  # the primary's name, if two of three sentinels say the same
    for number in 0 1 2; do sentinel "$number" get-master-addr-by-name primary | head -n 1; done |
        sort | uniq -c | awk '$1 >= 2 && $2 != "" { print $2 }'
}

role_of() {  # master, slave, or nothing
    timeout 2 valkey-cli -h "$1" --user admin --no-auth-warning --raw role 2>/dev/null | head -n 1
}

acting() {  # a Valkey that says it is the primary
    for name in valkey-0.valkey valkey-1.valkey; do
        if [ "$(role_of $name)" = master ]; then
            echo $name
            return
        fi
    done
}
