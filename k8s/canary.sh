#!/bin/sh
# Canary track: k8s/canary.sh status | share PODS | compare | promote [RULE] | rollback
#
#   status          pods of both tracks, and the track that the Services select
#   share N         N pods of each kind of server beside the stable ones: N of all pods is the canary's share of requests
#   compare         what both trainers predicted for the same examples before they learned them, until Ctrl-C
#   promote [RULE]  the canary gets as many pods as the stable track, and then all requests. With a RULE, such as
#                   'examples >= 50000 and auc > -0.001', this waits for its answer; if that is no, it rolls back (exit code 1)
#   rollback        the stable track gets all requests again, and the canary has no more servers
#
# NAMESPACE is the namespace (livectr), ROLES are the kinds of servers (rank prerank): add recommend where it is deployed.
# RUNS are the checkpoints of the stable and the canary's trainer, as the canary's pod sees them (/stable/run /checkpoint/run),
# or the prediction log of a trainer whose setting `predictions` names another place than its checkpoint.
# Both tracks stay up after `promote`, so that `rollback` takes seconds.
set -eu
namespace=${NAMESPACE:-livectr}
roles=${ROLES:-rank prerank}
runs=${RUNS:-/stable/run /checkpoint/run}
kube() { kubectl --namespace "$namespace" "$@"; }

pods_of() { kube get deployment "$1" --output 'jsonpath={.spec.replicas}'; }

ready() {  # wait until all servers of the canary answer
    for role in $roles; do kube rollout status "deployment/$role-canary" --timeout=15m; done
}

select_track() {  # `null` removes the label from a selector: both tracks
    for role in $roles; do
        kube patch service "$role" "$role-pods" --type=merge \
            --patch "{\"spec\":{\"selector\":{\"livectr.dev/track\":$1}}}"
    done
}

compare() {  # in the pod that has both checkpoints
    kube exec statefulset/trainer-canary --container trainer -- livectr experiment compare $runs --watch "$@"
}

allowed() {  # ask a rule; the last line is its answer, as the exit code may be that of a lost connection
    said=$(mktemp)
    trap 'rm -f "$said"' EXIT
    { compare --rule "$1" || true; } | tee "$said"
    case "$(tail -n 1 "$said")" in
        promote:*) ;;
        refuse:*) return 1 ;;
        *) echo "$0: the comparison ended without an answer, and nothing was changed; say it again" >&2; exit 3 ;;
    esac
}

rollback() {
    select_track '"stable"'
    for role in $roles; do kube scale "deployment/$role-canary" --replicas=0; done
}

case "${1:-}" in
    status)
        kube get pods --selector "app.kubernetes.io/name in ($(echo $roles | tr ' ' ,))" --label-columns livectr.dev/track
        kube get service $roles --output 'custom-columns=SERVICE:.metadata.name,SELECTS:.spec.selector'
        ;;
    share)
        case "${2:-}" in '' | *[!0-9]*) echo "say how many pods: $0 share N" >&2; exit 2 ;; esac
        for role in $roles; do kube scale "deployment/$role-canary" --replicas="$2"; done
        select_track null
        [ "$2" = 0 ] || ready
        ;;
    compare)
        compare
        ;;
    promote)
        if [ $# -gt 1 ] && ! allowed "$2"; then
            rollback
            exit 1
        fi
        for role in $roles; do kube scale "deployment/$role-canary" --replicas="$(pods_of "$role")"; done
        ready
        select_track '"canary"'
        ;;
    rollback)
        rollback
        ;;
    *)
        sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0" >&2
        exit 2
        ;;
esac
