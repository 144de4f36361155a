#!/bin/sh
# Check an overlay against the cluster and apply it: k8s/apply.sh [--render | --check] OVERLAY
#
#   --render   print what would be applied, and end
#   --check    ask the API server for a dry run, and end
#
# It is `kubectl apply --server-side -k OVERLAY` and, besides:
#
#   JobSets       A JobSet's pods cannot be changed. Each gets a name that ends with a hash of it, as the addresses of its pods
#                 do. The former JobSet is deleted first, and commits: two trainers never share a checkpoint.
#   autoscalers   Where KEDA is to scale a Deployment, no autoscaler of another name may: they would fight. This refuses.
#
# NAMESPACE is the namespace (livectr).
set -eu
namespace=${NAMESPACE:-livectr}
kube() { kubectl --namespace "$namespace" "$@"; }

do=apply
case "${1:-}" in --render | --check) do=${1#--}; shift ;; esac
if [ $# != 1 ]; then
    sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0" >&2
    exit 2
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

kubectl kustomize "$1" > "$work/rendered"
mkdir "$work/objects"  # one file each, in kustomize's order
awk -v folder="$work/objects" '
    /^---$/ { close(file); n++; next }
    { file = sprintf("%s/%04d.yaml", folder, n); print > file }' "$work/rendered"
of_kind() { grep --recursive --files-with-matches --line-regexp "kind: $1" "$work/objects" || true; }
sha256() { if command -v sha256sum > /dev/null; then sha256sum; else shasum -a 256; fi; }
name_in() {  # `name` of a map: metadata ('^[a-z]' ends it) or spec.scaleTargetRef ('^  [a-zA-Z]')
    awk -v map="$1:" -v ends="$2" '$0 ~ ends { within = $1 == map; next } within && $1 == "name:" { print $2 }' "$3"
}

new=
for file in $(of_kind JobSet); do
    name=$(name_in metadata '^[a-z]' "$file") hash=$(sha256 < "$file" | cut -c1-8)
    sed "s/^  name: $name\$/  name: $name-$hash/; s/ $name-nodes-/ $name-$hash-nodes-/" "$file" > "$work/named"
    mv "$work/named" "$file"
    new="$new $name-$hash"
done

if [ $do = render ]; then
    for file in "$work"/objects/*; do echo ---; cat "$file"; done
    exit
fi

scaled=
for file in $(of_kind ScaledObject); do scaled="$scaled $(name_in scaleTargetRef '^  [a-zA-Z]' "$file") "; done
if [ -n "$scaled" ]; then
    kube get horizontalpodautoscalers --output \
        'jsonpath={range .items[*]}{.spec.scaleTargetRef.name} {.metadata.name} {.metadata.ownerReferences[*].kind}{"\n"}{end}' \
        > "$work/scalers"
    while read -r target name owner; do  # KEDA takes over the base's, which has the name of its Deployment
        case "$scaled" in *" $target "*) ;; *) continue ;; esac
        if [ "$owner" != ScaledObject ] && [ "$name" != "$target" ]; then
            echo "$0: HorizontalPodAutoscaler/$name scales $target, and so would KEDA: the two would fight. Delete it first:" >&2
            echo "    kubectl --namespace $namespace delete horizontalpodautoscaler $name" >&2
            exit 3
        fi
    done < "$work/scalers"
fi

kube apply --server-side --dry-run=server --filename "$work/objects"
if [ $do = check ]; then exit; fi

for name in $new; do
    for former in $(kube get jobsets --output 'jsonpath={.items[*].metadata.name}'); do
        case "$former" in
            "$name") ;;
            "${name%-*}" | "${name%-*}"-????????) kube delete jobset "$former" --cascade=foreground ;;
        esac
    done
done
kube apply --server-side --filename "$work/objects"
