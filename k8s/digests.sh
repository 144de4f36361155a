#!/bin/sh
# Pin the images of an overlay by digest: k8s/digests.sh OVERLAY FOLDER
#
# It asks the registries for what the overlay's tags are today, by crane, skopeo or docker, whichever there is, and writes FOLDER,
# a kustomization to name last under `transformers` of the overlay. Then a tag that moves changes nothing. Run it again for new
# versions, and look at the difference.
set -eu
if [ $# != 2 ]; then
    sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0" >&2
    exit 2
fi
digest() {
    if command -v crane > /dev/null; then crane digest "$1"
    elif command -v skopeo > /dev/null; then skopeo inspect --format '{{.Digest}}' "docker://$1"
    elif command -v docker > /dev/null; then docker buildx imagetools inspect --format '{{.Manifest.Digest}}' "$1"
    else echo "$0: install crane, skopeo or docker: one of them asks the registry." >&2; return 3
    fi
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
kubectl kustomize "$1" > "$work/rendered"
sed -n 's/^ *\(- \)\{0,1\}image: *\([^ ]*\)$/\2/p' "$work/rendered" | sed 's/@sha256:.*//' | sort -u > "$work/images"
while read -r image; do
    found=$(digest "$image") || true
    case "$found" in
        sha256:*) ;;
        *) echo "$0: no digest of $image: ${found:-no answer}" >&2; exit 3 ;;
    esac
    name=${image%:*} tag=${image##*:}
    cat << YAML
---
apiVersion: builtin
kind: ImageTagTransformer
metadata:
  name: $(echo "$name" | tr -c 'a-z0-9\n' -)
imageTag:
  name: $name
  newTag: "$tag"
  digest: $found
YAML
done < "$work/images" > "$work/images.yaml"

mkdir -p "$2"
cp "$work/images.yaml" "$2/images.yaml"
cat > "$2/kustomization.yaml" << YAML
# Written by k8s/digests.sh.
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources:
  - images.yaml
YAML
