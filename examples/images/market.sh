#!/bin/sh
# Logs of five simulated days with pictures, and their features: market.sh DIR [SEEDS]
# writes DIR/logs-1, DIR/ledger-1.arrows, DIR/features-1, … of SEEDS markets [1].
set -eu
for seed in $(seq "${2:-1}"); do
    livectr logs simulate --to "file:$1/logs-$seed" --seed "$seed" --fast --start 2024-01-01T00:00:00Z \
        --rate 0.7 --seconds 432000 --tick 60s --label-window 10m \
        --users 1500 --ads 1200 --ad-interval 2h --ad-life 36 --image-effect 0.4,0.6,0.3 \
        --ledger "$1/ledger-$seed.arrows"
    livectr features encode "file:$1/logs-$seed" --topic ad_images --encoder small --out "$1/features-$seed"
done
