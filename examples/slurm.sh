#!/bin/bash
# Four nodes with eight GPUs each: sbatch examples/slurm.sh
# All ranks record the same ten steps. This script assumes that all nodes share the directory of sbatch.
# Without a shared disk: docs/nodes.md, Slurm.
#SBATCH --job-name=pretrain
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
set -euo pipefail
# Paddle's launcher needs the master's IP address: with a host name it waits for ever. This script runs on
# the first node, and asks for the address in the launcher's way.
master=$(python -c 'import socket; print(socket.gethostbyname(socket.getfqdn()))')
srun ppprof run --nproc 8 --master "$master:8090" --nnodes "$SLURM_NNODES" \
    --log "$SLURM_SUBMIT_DIR/profiler_log" train.py --config pretrain.yaml
ppprof ranks "$SLURM_SUBMIT_DIR/profiler_log"
ppprof report "$SLURM_SUBMIT_DIR/profiler_log" -o "$SLURM_SUBMIT_DIR/report.html"
