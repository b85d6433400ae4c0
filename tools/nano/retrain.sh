#!/bin/sh
# Trains lily-nano on a machine with one GPU; the weights lie in RUN within SECONDS.
#     sh retrain.sh data            draws the training set into target/nano, and does no more
#     sh retrain.sh RUN SECONDS     draws it where none is left, and trains
set -eu
now=$(date +%s)
if [ "$1" != data ]; then
    deadline=$((now + $2))
    run=$(mkdir -p "$1" && cd "$1" && pwd)
fi
cd "$(dirname "$0")"
data=../../target/nano
mkdir -p $data
if [ "$1" = data ] || [ ! -f $data/train.npz ]; then
    python3 generate.py train --shards 100 --processes "$(nproc)" --out $data/unfinished.npz
    mv $data/unfinished.npz $data/train.npz
fi
[ "$1" = data ] || python3 -u train.py --data $data/train.npz --out "$run" --minutes 9.5 --deadline "$deadline" --eval-limit 30
