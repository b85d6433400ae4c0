#!/bin/sh
# Draws the training set and trains lily-nano on a machine with one GPU; the weights lie in RUN within SECONDS.
# A training set that an earlier call left in target/ is used again.
#     sh retrain.sh RUN SECONDS
set -eu
deadline=$(($(date +%s) + $2))
run=$(mkdir -p "$1" && cd "$1" && pwd)
cd "$(dirname "$0")"
data=../../target/nano
mkdir -p $data
if [ ! -f $data/train.npz ]; then
    python3 generate.py train --shards 100 --processes "$(nproc)" --out $data/unfinished.npz
    mv $data/unfinished.npz $data/train.npz
fi
python3 -u train.py --data $data/train.npz --out "$run" --minutes 9.5 --deadline "$deadline" --eval-limit 30
